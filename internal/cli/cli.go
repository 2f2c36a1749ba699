package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
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

// app is what all commands share. Its functions are what a command reaches the
// world through.
type app struct {
	version string
	in      io.Reader
	// out is written to through print and say, which let no control character
	// through; err lets none through by itself.
	out, err io.Writer
	// terminal says that out is one: progress is for people.
	terminal bool
	// now is the clock; times are printed in its zone.
	now func() time.Time
	// openStore opens the datastore that the flags name.
	openStore func() (datastore.Store, error)
	// agents returns the agents of the named nodes, or of every node.
	agents func(ctx context.Context, names []string) ([]agentOf, error)
	// settle is how long a change may take to arrive on the nodes.
	settle time.Duration

	// unreadable are the values of the datastore that could not be decoded: an error a key.
	unreadable sync.Map

	flags targetFlags
}

// Main runs the command line and returns the exit code.
func Main(ctx context.Context, args []string, version string) int {
	a := &app{
		version: version, in: os.Stdin, out: os.Stdout, err: clean{os.Stderr},
		terminal: isTerminal(os.Stdout), now: time.Now, settle: 2 * time.Second,
	}
	a.flags.plugin = isPlugin(os.Args[0])
	a.openStore, a.agents = a.targetStore, a.targetAgents
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		err = fmt.Errorf("interrupted: %w", err)
	}
	fmt.Fprintln(a.err, "fairlead:", err)
	var usage usageError
	if errors.As(err, &usage) || errors.Is(err, lab.ErrPreflight) {
		return exitUsage
	}
	return exitFailed
}

func isTerminal(f *os.File) bool {
	// Other character devices, such as /dev/null, are none.
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("TERM") != "dumb"
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
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := "fairlead --help lists the commands"
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = "did you mean " + strings.Join(near, " or ") + "?"
			}
			return usagef("there is no command %q: %s", args[0], hint)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w (%s --help lists the flags)", err, cmd.CommandPath())
	})
	a.flags.register(root)
	root.AddCommand(
		a.labCommand(), a.getCommand(), a.applyCommand(), a.deleteCommand(), a.statusCommand(), a.nodeCommand(),
		a.eventsCommand(), a.ipamCommand(), a.tenantCommand(), a.policyCommand(), a.traceCommand(), a.auditCommand(), a.journalCommand(), a.captureCommand(), a.diagCommand(), a.preflightCommand(), a.uninstallCommand(),
		a.configCommand(), a.versionCommand(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	strict(root)
	return root
}

// strict makes wrong arguments of a command, and of those below it, usageErrors with
// a hint: cobra gives them no type, and takes a group without a command for a call for
// help.
func strict(cmd *cobra.Command) {
	check := cmd.Args
	if !cmd.Runnable() {
		check = oneOf
		cmd.RunE = func(*cobra.Command, []string) error { return nil }
	}
	if check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil {
				err = cmd.ValidateFlagGroups() // Cobra asks later, and gives the error no type.
			}
			if usage := (usageError{}); err == nil || errors.As(err, &usage) {
				return err
			}
			return usagef("%w: %s", err, cmd.UseLine())
		}
	}
	for _, c := range cmd.Commands() {
		strict(c)
	}
}

// oneOf refuses to run a group, and tells which commands it has.
func oneOf(cmd *cobra.Command, args []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	if len(args) == 0 {
		return usagef("%s: say which: %s", cmd.CommandPath(), strings.Join(names, ", "))
	}
	return usagef("%s: %q is none of %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short}
	g.AddCommand(commands...)
	return g
}

// noArgs is for commands whose arguments are all flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q is one argument too many", args[0])
	}
	return nil
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: noArgs, RunE: func(*cobra.Command, []string) error {
		return a.say("%s", a.version)
	}}
}

func (a *app) configCommand() *cobra.Command {
	check := &cobra.Command{
		Use: "check FILE…", Short: "Check configuration files of the daemons", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var errs []error
			for _, f := range args {
				kind, err := config.Check(f)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				if err := a.say("%s: a valid %s", f, kind); err != nil {
					return err
				}
			}
			return errors.Join(errs...)
		},
	}
	return group("config", "Configuration of the daemons", check)
}
