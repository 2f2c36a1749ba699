package cli

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/internal/agent"
	"github.com/fairlead-sdn/fairlead/internal/agent/nodeplane"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/config"
)

// defaultAgentFile is where an agent without a DaemonSet has its configuration.
const defaultAgentFile = "/etc/fairlead/agent.yaml"

// uninstallOptions are the flags of "fairlead uninstall".
type uninstallOptions struct {
	dryRun bool
	// config and plugin are of this host.
	config string
	plugin agent.Plugin
	// objects and timeout are of a cluster.
	objects bool
	timeout time.Duration
}

func (a *app) uninstallCommand() *cobra.Command {
	var o uninstallOptions
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Take Fairlead away from this host, or from a cluster; pods lose their network", Args: usage.Arguments(0, 0),
		Long: `Take Fairlead away; pods lose their network. Without a cluster: from this host, on which no agent
may run. With one (--kubeconfig, --context, or as a plugin of kubectl): agents and controller are
deleted, every node is cleaned, and waited for. The objects, with all VPCs and Subnets, and their
definitions stay, until --objects is given too. What was removed is printed; run it again if it
was broken off.`,
	}
	f := cmd.Flags()
	f.BoolVar(&o.dryRun, "dry-run", false, "only print what would be removed")
	f.StringVar(&o.config, "config", defaultAgentFile, "configuration of this host's agent, if it has one")
	f.StringVar(&o.plugin.BinDir, "bin-dir", "/opt/cni/bin", "this host's directory of CNI plugins")
	f.StringVar(&o.plugin.ConfDir, "conf-dir", "/etc/cni/net.d", "this host's directory of network configurations")
	f.BoolVar(&o.objects, "objects", false, "delete Fairlead's objects, definitions and accounts from the cluster as well")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long the nodes of a cluster may take")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.flags.check(); err != nil {
			return err
		}
		if a.flags.kubernetes() {
			for _, name := range []string{"config", "bin-dir", "conf-dir"} {
				if f.Changed(name) {
					return usagef("--%s is about this host, --kubeconfig and --context about a cluster", name)
				}
			}
			return a.uninstallCluster(cmd.Context(), o)
		}
		if f.Changed("objects") || f.Changed("timeout") {
			return usagef("--objects and --timeout are about a cluster: name it with --kubeconfig or --context")
		}
		if a.flags.lab != "" || len(a.flags.etcd) > 0 {
			return usagef("this command is about this host or a cluster; fairlead lab down removes a lab")
		}
		return a.uninstallHost(cmd.Context(), o)
	}
	return cmd
}

// uninstallHost removes Fairlead from the host that the command runs on.
func (a *app) uninstallHost(ctx context.Context, o uninstallOptions) error {
	if os.Geteuid() != 0 {
		return usagef("it must run as root: it removes links, routes, nftables and BPF programs")
	}
	c, err := config.LoadAgent(o.config)
	if errors.Is(err, fs.ErrNotExist) && o.config == defaultAgentFile {
		c, err = config.DefaultAgent(), nil // that of a DaemonSet is not on the host
	}
	if err != nil {
		return usageError(err)
	}
	u := nodeplane.Uninstall{Config: c, Plugin: o.plugin, Log: slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if o.dryRun {
		found, err := u.Found()
		if err != nil {
			return err
		}
		return errors.Join(a.list(found, "would be removed: %s", "nothing of Fairlead is on this host"), u.Check(found))
	}
	removed, err := u.Run(ctx)
	if len(removed) > 0 || err == nil {
		err = errors.Join(a.list(removed, "removed: %s", "nothing of Fairlead was on this host"), err)
	}
	return err
}

// list prints a line for each of the things, or that there are none.
func (a *app) list(things []string, format, none string) error {
	if len(things) == 0 {
		return a.say("%s", none)
	}
	for _, x := range things {
		if err := a.say(format, x); err != nil {
			return err
		}
	}
	return nil
}
