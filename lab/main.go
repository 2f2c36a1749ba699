package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/machine"
	"github.com/fairlead-sdn/fairlead/lab/supervisor"
)

// hidden is the first argument of the processes that a lab consists of.
const hidden = "lab-process"

// exitBecome is what a container's process ends with if its command cannot be run.
const exitBecome = 127

// Main makes this program one of a lab's processes, if that is what args, the
// command line without the program's name, say. The programs that link this package
// call it first thing in main: handled means that they end with the status exit.
func Main(args []string) (handled bool, exit int) {
	if len(args) < 2 || args[0] != hidden {
		return false, 0
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := run(ctx, args[1], args[2:], log); err != nil {
		if args[1] == roleBecome {
			fmt.Fprintln(os.Stderr, "fairlead:", err)
			return true, exitBecome
		}
		log.Error("ended", "process", args[1], "err", err)
		return true, 1
	}
	return true, 0
}

// Names of the processes.
const (
	roleSupervisor = "supervisor"
	roleNode       = "node"
	roleEtcd       = "etcd"
	roleBecome     = "run"
)

func run(ctx context.Context, role string, args []string, log *slog.Logger) error {
	switch {
	case role == roleSupervisor && len(args) == 1:
		return supervisor.Run(ctx, args[0], commands{}, log)
	case role == roleNode && len(args) == 1:
		return machine.Run(ctx, commands{}.become(), log)
	case role == roleEtcd && len(args) >= 2:
		return supervisor.RunEtcd(ctx, args[0], args[1:])
	case role == roleBecome && len(args) == 0:
		return machine.Become(os.NewFile(fdLaunch, "launch"))
	}
	return errors.New("these arguments are for the processes of a lab: use fairlead lab")
}

// fdLaunch is where a process that becomes a command reads which.
const fdLaunch = 3

// commands are the command lines of the processes.
type commands struct{}

func (commands) line(args ...string) []string { return append([]string{"fairlead", hidden}, args...) }

// Node implements supervisor.Roles.
func (c commands) Node(name string) []string { return c.line(roleNode, name) }

// Etcd implements supervisor.Roles.
func (c commands) Etcd(dir string, urls []string) []string {
	return append(c.line(roleEtcd, dir), urls...)
}

func (c commands) become() []string { return c.line(roleBecome) }
