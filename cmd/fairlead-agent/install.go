package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead-sdn/fairlead/internal/agent"
	"github.com/fairlead-sdn/fairlead/internal/agent/nodeplane"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
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
		Use: "install", Short: "Install the CNI plugin for the container runtime", Args: usage.Arguments(0, 0),
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
		Use: "uninstall", Short: "Remove everything of Fairlead from this node, kernel and files; pods lose their network", Args: usage.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return uninstall(cmd.Context(), *config, p) },
	}
	binDirFlag(c.Flags(), &p)
	confDirFlag(c.Flags(), &p)
	return c
}

// stopPatience is how long an uninstall waits for an agent that is ending.
const stopPatience = 30 * time.Second

func uninstall(ctx context.Context, path string, p agent.Plugin) error {
	c, log, err := load(path)
	if err != nil {
		return err
	}
	removed, err := nodeplane.Uninstall{Config: c, Plugin: p, Patience: stopPatience, Log: log}.Run(ctx)
	for _, what := range removed {
		log.Info("removed", "what", what)
	}
	if err != nil {
		return runFailure{err}
	}
	return nil
}

// pauseCommand is for the pod that has uninstalled: it must run to count as ready.
func pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "pause", Hidden: true, Args: usage.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return pause(cmd.Context()) },
	}
}

func pause(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
