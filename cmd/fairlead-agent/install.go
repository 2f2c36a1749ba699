package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead-sdn/fairlead/internal/agent"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/serve/socket"
)

// binDirFlag and confDirFlag are where a runtime looks for the CNI plugin.
func binDirFlag(f *pflag.FlagSet, p *agent.Plugin) {
	f.StringVar(&p.BinDir, "bin-dir", "/opt/cni/bin", "directory in which the container runtime looks for plugins")
}

func confDirFlag(f *pflag.FlagSet, p *agent.Plugin) {
	f.StringVar(&p.ConfDir, "conf-dir", "/etc/cni/net.d", "directory in which the container runtime looks for network configurations")
}

// offerFlags are the running agent's.
func offerFlags(f *pflag.FlagSet, p *agent.Plugin) {
	f.StringVar(&p.List, "conflist", "", "network configuration list to give the container runtime once this node can serve pods (default: none)")
	confDirFlag(f, p)
}

func installCommand() *cobra.Command {
	var p agent.Plugin
	c := &cobra.Command{
		Use: "install", Short: "Install the CNI plugin for the container runtime", Args: cobra.NoArgs,
		Long: "Install the CNI plugin for the container runtime. Its network configuration comes later, from the\nrunning agent (--conflist): the runtime takes the node for ready with it.",
		RunE: func(*cobra.Command, []string) error {
			if err := p.Install(); err != nil {
				return runFailure{err}
			}
			return nil
		},
	}
	binDirFlag(c.Flags(), &p)
	c.Flags().StringVar(&p.Program, "plugin", "/usr/bin/fairlead-cni", "the plugin")
	return c
}

func uninstallCommand(config *string) *cobra.Command {
	var p agent.Plugin
	c := &cobra.Command{
		Use: "uninstall", Short: "Remove everything of Fairlead from this node, kernel and files; pods lose their network", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return uninstall(cmd.Context(), *config, p) },
	}
	binDirFlag(c.Flags(), &p)
	confDirFlag(c.Flags(), &p)
	return c
}

// stopPatience is how long an uninstall waits for an agent that is ending.
const stopPatience = 30 * time.Second

// noAgent waits until no agent runs on this node, and keeps one from starting until the
// returned function is called: an agent would put back what an uninstall removes.
func noAgent(ctx context.Context, c config.Agent, log *slog.Logger) (done func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		l, err := socket.Listen(filepath.Join(c.RunDir, "cni.sock"), "CNI", log)
		if err == nil {
			return func() error { return errors.Join(l.Close(), l.Remove()) }, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

func uninstall(ctx context.Context, path string, p agent.Plugin) (err error) {
	c, log, err := load(path)
	if err != nil {
		return err
	}
	done, err := noAgent(ctx, c, log)
	if err != nil {
		return runFailure{err}
	}
	defer func() { err = finish(err, done()) }()
	// First, so that the runtime makes no more pods.
	if err := p.Remove(); err != nil {
		return runFailure{err}
	}
	plane, err := openPlane(ctx, c, log)
	if err != nil {
		return runFailure{err}
	}
	defer func() { err = finish(err, plane.Close()) }()
	if err := plane.Uninstall(ctx); err != nil {
		return runFailure{err}
	}
	// Only now: what is left of an uninstall that failed can still be told apart.
	if err := agent.RemoveFiles(c); err != nil {
		return runFailure{err}
	}
	return nil
}

// pauseCommand is for the pod that has uninstalled: it must run to count as ready.
func pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "pause", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return pause(cmd.Context()) },
	}
}

func pause(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
