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

	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab"
)

// The exit codes of the program.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError makes err a mistake of the caller.
func usageError(err error) error { return usage.Error{Err: err} }

func usagef(format string, args ...any) error { return usage.Errorf(format, args...) }

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
	// terminal says that out is one: progress is for people. It has so many columns, 0 if that
	// is not known.
	terminal bool
	columns  int
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
		terminal: isTerminal(os.Stdout), columns: widthOf(os.Stdout), now: time.Now, settle: 2 * time.Second,
	}
	a.flags.plugin = isPlugin(os.Args[0])
	a.openStore, a.agents = a.targetStore, a.targetAgents
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	out := &output{w: a.out}
	a.out = out
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.failed // Not everything that writes looks.
	}
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		// What it was at is of interest, and that a context ended is not.
		err = errors.New(strings.TrimSuffix("interrupted: "+err.Error(), ": "+context.Canceled.Error()))
	}
	fmt.Fprintln(a.err, "fairlead:", err)
	if errors.As(err, new(usage.Error)) || errors.Is(err, lab.ErrPreflight) {
		return exitUsage
	}
	return exitFailed
}

// output remembers the first error of writing.
type output struct {
	w      io.Writer
	failed error
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil && o.failed == nil {
		o.failed = err
	}
	return n, err
}

func isTerminal(f *os.File) bool {
	// Other character devices, such as /dev/null, are none.
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("TERM") != "dumb"
}

func widthOf(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
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
		Version: a.version, SuggestionsMinimumDistance: 2,
		Args: usage.Commands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	a.flags.register(root)
	root.AddCommand(
		a.labCommand(), a.getCommand(), a.applyCommand(), a.deleteCommand(), a.statusCommand(), a.nodeCommand(),
		a.eventsCommand(), a.ipamCommand(), a.tenantCommand(), a.policyCommand(), a.traceCommand(), a.auditCommand(), a.journalCommand(), a.captureCommand(), a.diagCommand(), a.preflightCommand(), a.uninstallCommand(),
		a.configCommand(), a.versionCommand(),
	)
	usage.Strict(root)
	return root
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short}
	g.AddCommand(commands...)
	return g
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: usage.Arguments(0, 0), RunE: func(*cobra.Command, []string) error {
		return a.say("%s", a.version)
	}}
}

func (a *app) configCommand() *cobra.Command {
	check := &cobra.Command{
		Use: "check FILE…", Short: "Check configuration files of the daemons", Args: usage.Arguments(1, -1),
		Example: "  fairlead config check /etc/fairlead/agent.yaml",
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
