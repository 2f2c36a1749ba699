// Command fairlead is the command line of Fairlead, and its lab: a whole cluster's
// network on one machine. "fairlead --help" lists the commands.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead-sdn/fairlead/internal/cli"
	"github.com/fairlead-sdn/fairlead/lab"
)

// version is set by the linker.
var version = "dev"

func main() {
	// The lab's own processes are this program again.
	if handled, exit := lab.Main(os.Args[1:]); handled {
		os.Exit(exit)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	exit := cli.Main(ctx, os.Args[1:], version)
	stop()
	os.Exit(exit)
}
