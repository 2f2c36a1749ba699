package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/lab"
)

// The exit codes of the program.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a mistake of the caller.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError ends the program with a status without a message: what is wrong has
// been printed.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// app is what all commands share.
type app struct {
	version string
	in      *os.File
	out     io.Writer
	err     io.Writer
	// terminal says that out is one: progress and colours are for people.
	terminal bool

	flags targetFlags
}

// Main runs the command line and returns the exit code.
func Main(ctx context.Context, args []string, version string) int {
	a := &app{version: version, in: os.Stdin, out: os.Stdout, err: os.Stderr, terminal: isTerminal(os.Stdout)}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	}
	fmt.Fprintln(a.err, "fairlead:", err)
	var usage usageError
	if errors.As(err, &usage) || errors.Is(err, lab.ErrPreflight) || isCobraUsage(err) {
		return exitUsage
	}
	return exitFailed
}

// isCobraUsage recognises the mistakes that cobra reports without a type.
func isCobraUsage(err error) bool {
	for _, s := range []string{"unknown command", "unknown flag", "unknown shorthand", "accepts ", "requires at least", "flag needs an argument", "invalid argument", "required flag"} {
		if strings.HasPrefix(err.Error(), s) {
			return true
		}
	}
	return false
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "fairlead", Short: "One network for Kubernetes, and a lab that runs it on one machine",
		Long: `Fairlead connects the pods of a cluster: VPCs, Subnets, routed or over VXLAN.

Try it without a cluster (as root):

  fairlead lab up                  three nodes, made of namespaces
  fairlead apply -f examples/      ordinary Kubernetes YAML
  fairlead lab check               probe every pair of pods, against the oracle
  fairlead lab down                leave nothing behind`,
		Version: a.version, SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	a.flags.register(root)
	root.AddCommand(
		a.labCommand(), a.getCommand(), a.applyCommand(), a.deleteCommand(), a.statusCommand(), a.nodeCommand(),
		a.eventsCommand(), a.ipamCommand(), a.tenantCommand(), a.auditCommand(), a.journalCommand(), a.diagCommand(),
		a.configCommand(), a.versionCommand(),
	)
	return root
}

// group is a command that only holds others: without one it tells which there are.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: func(cmd *cobra.Command, args []string) error {
		var names []string
		for _, c := range commands {
			names = append(names, c.Name())
		}
		if len(args) == 0 {
			return usagef("%s: say which: %s", cmd.CommandPath(), strings.Join(names, ", "))
		}
		return usagef("%s: %q is none of %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
	}, RunE: func(*cobra.Command, []string) error { return nil }}
	g.AddCommand(commands...)
	return g
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		_, err := fmt.Fprintln(a.out, a.version)
		return err
	}}
}
