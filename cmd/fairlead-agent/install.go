package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead-sdn/fairlead/internal/agent"
)

// pluginFlags are where a runtime looks for the CNI plugin.
func pluginFlags(f *pflag.FlagSet, p *agent.Plugin) {
	f.StringVar(&p.BinDir, "bin-dir", "/opt/cni/bin", "directory in which the container runtime looks for plugins")
	f.StringVar(&p.ConfDir, "conf-dir", "/etc/cni/net.d", "directory in which it looks for network configurations")
}

func installCommand() *cobra.Command {
	var p agent.Plugin
	c := &cobra.Command{
		Use: "install", Short: "Install the CNI plugin and its network configuration for the container runtime", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			warning, err := p.Install()
			if err != nil {
				return runFailure{err}
			}
			if warning != "" {
				fmt.Fprintln(os.Stderr, "fairlead-agent: warning:", warning)
			}
			return nil
		},
	}
	pluginFlags(c.Flags(), &p)
	c.Flags().StringVar(&p.Program, "plugin", "/usr/bin/fairlead-cni", "the plugin")
	c.Flags().StringVar(&p.List, "conflist", "/etc/fairlead/10-fairlead.conflist", "the network configuration list")
	return c
}

func uninstallCommand(config *string) *cobra.Command {
	var p agent.Plugin
	c := &cobra.Command{
		Use: "uninstall", Short: "Remove everything of Fairlead from this node, kernel and files; pods lose their network", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// First, so that the runtime makes no more pods.
			if err := p.Remove(); err != nil {
				return runFailure{err}
			}
			return uninstall(cmd.Context(), *config)
		},
	}
	pluginFlags(c.Flags(), &p)
	return c
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
