// Command fairlead-agent makes one node's network what the objects say.
//
//	fairlead-agent [--config FILE]     run, until SIGTERM; the kernel keeps everything
//	fairlead-agent admin PATH          ask the running agent, "admin /v1/status"
//	fairlead-agent install             give the container runtime the CNI plugin
//	fairlead-agent uninstall           remove everything of ours from this node
//	fairlead-agent --version
//
// Exit codes: 0 ended as asked, 1 failed while running, 2 wrong arguments,
// configuration or privileges.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/internal/agent"
	"github.com/fairlead-sdn/fairlead/internal/agent/nodeplane"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// version is set by the linker.
var version = "dev"

// memoryTarget is the size, in bytes, that the collector steers for: an agent's
// live data is small, and a node's memory belongs to its pods.
const memoryTarget = 96 << 20

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fairlead-agent:", err)
	}
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(runFailure)):
		return 1
	}
	return 2
}

// runFailure is an error of the running agent, as opposed to one of its user.
type runFailure struct{ error }

func (f runFailure) Unwrap() error { return f.error }

func command() *cobra.Command {
	var path string
	var plugin agent.Plugin
	root := &cobra.Command{
		Use: "fairlead-agent", Short: "Make this node's network what the objects say", Version: version,
		Args: usage.Commands, SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), path, plugin) },
	}
	root.PersistentFlags().StringVar(&path, "config", "/etc/fairlead/agent.yaml", "configuration file")
	offerFlags(root.Flags(), &plugin)
	root.AddCommand(adminCommand(&path), installCommand(), uninstallCommand(&path), pauseCommand())
	usage.Strict(root)
	return root
}

func adminCommand(config *string) *cobra.Command {
	var untilEOF bool
	c := &cobra.Command{
		Use: "admin PATH", Short: "Ask the running agent and print its answer: JSON, of a capture a pcap file", Args: usage.Arguments(1, 1),
		Long: `Ask the running agent of this node and print its answer as it is, in JSON. PATH is status,
audit, peers, attachments, ipam, intent, config, tables, flows, or journal?since=TIME; its full
form is /v1/status. "fairlead node status", "fairlead audit" and others ask the same, of all nodes.`,
		Example: "  fairlead-agent admin status",
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), *config, pathOf(args[0]), untilEOF)
		},
	}
	c.Flags().BoolVar(&untilEOF, "until-eof", false, "end when standard input ends")
	return c
}

// pathOf is what the agent is asked for: "status" is short for "/v1/status".
func pathOf(request string) string {
	return "/v1/" + strings.TrimPrefix(strings.TrimPrefix(request, "/"), "v1/")
}

func readConfig(path string) (config.Agent, error) {
	c, err := config.LoadAgent(path)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: write it, or name another with --config", err)
	}
	return c, err
}

// load reads the configuration and checks that we may do what it asks.
func load(path string) (config.Agent, *slog.Logger, error) {
	c, err := readConfig(path)
	if err != nil {
		return config.Agent{}, nil, err
	}
	if os.Geteuid() != 0 {
		return config.Agent{}, nil, errors.New("must run as root: it changes links, routes, nftables and BPF programs")
	}
	return c, c.Log.Logger(os.Stderr).With("node", c.Node), nil
}

func run(ctx context.Context, path string, plugin agent.Plugin) (err error) {
	c, log, err := load(path)
	if err != nil {
		return err
	}
	debug.SetMemoryLimit(memoryTarget)
	allowSlack()
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	claim, err := agent.Claim(c.StateDir)
	if err != nil {
		return runFailure{err}
	}
	defer func() { err = finish(err, claim.Close()) }()
	store, err := openStore(c.Datastore, log)
	if err != nil {
		return err
	}
	defer func() { err = finish(err, store.Close()) }()
	plane, err := nodeplane.Open(ctx, c, log)
	if err != nil {
		return runFailure{err}
	}
	defer func() { err = finish(err, plane.Close()) }()
	a, err := agent.New(agent.Config{Agent: c, Version: version, Store: store, Plane: plane, Namespaces: plane, Logger: log, Plugin: plugin, Step: failpoints()})
	if err != nil {
		return runFailure{err}
	}
	log.Info("agent starts", "version", version, "plane", c.Plane)
	if err := a.Run(ctx); err != nil {
		return runFailure{err}
	}
	log.Info("agent ended; the kernel keeps what it has")
	return nil
}

// finish adds an error of closing, which is no fault of the user's.
func finish(err, closing error) error {
	if closing == nil {
		return err
	}
	return errors.Join(err, runFailure{closing})
}

// openStore connects to the datastore. A server that is away is no error.
func openStore(c config.Datastore, log *slog.Logger) (datastore.Store, error) {
	if k := c.Kubernetes; k != nil {
		return kube.New(kube.Config{
			Kubeconfig: k.Kubeconfig, Context: k.Context, UserAgent: "fairlead-agent/" + version, Lean: true, Logger: log,
		})
	}
	e := c.Etcd
	return etcd.New(etcd.Config{
		Endpoints: e.Endpoints, CA: e.CA, Cert: e.Cert, Key: e.Key, Prefix: e.Prefix,
		OnCorrupt: func(key string, err error) {
			log.Error("a value in the datastore cannot be read; its object is left out", "key", key, "err", err)
		},
	})
}

// ask prints the answer to a request as it comes. With untilEOF it ends when standard input
// does: one who asks from afar has left then.
func ask(ctx context.Context, path, request string, untilEOF bool) error {
	c, err := readConfig(path)
	if err != nil {
		return err
	}
	client := admin.NewClient(filepath.Join(c.RunDir, "admin.sock"))
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if untilEOF {
		go func() { // It ends with the process.
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	note, err := client.Stream(ctx, request, os.Stdout)
	if note != "" {
		fmt.Fprintln(os.Stderr, "fairlead-agent:", note)
	}
	if err != nil && !errors.Is(err, admin.ErrStopped) {
		return runFailure{err}
	}
	return nil
}
