package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	err := command().ExecuteContext(ctx)
	stop()
	var code exitCode
	if errors.As(err, &code) {
		os.Exit(int(code))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubernetes:", err)
		os.Exit(1)
	}
}

// exitCode is that of a command which was run for somebody.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

func command() *cobra.Command {
	root := &cobra.Command{Use: "kubernetes", Short: "Run a real Kubernetes cluster on this machine", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(
		simple("build", "Build what is missing of the programs and images", func(ctx context.Context, l layout) error { return ensure(ctx, l, os.Stdout) }),
		upCommand(),
		loadCommand(),
		simple("down", "Stop the cluster and remove everything of it", down),
		simple("status", "Say what runs", func(ctx context.Context, l layout) error { return status(ctx, l, os.Stdout) }),
		smokeCommand(),
		passing("kubectl -- ARGS...", "Run kubectl against the cluster", func(ctx context.Context, c *cluster, args []string) error {
			return c.pass(ctx, c.bin("kubectl"), args)
		}),
		passing("run -- CMD...", "Run a program of this machine in the network of the control plane, with KUBECONFIG", func(ctx context.Context, c *cluster, args []string) error {
			return c.pass(ctx, args[0], args[1:])
		}),
		endToEndCommand(),
		onCluster("cnp", "Run the conformance tests of ClusterNetworkPolicies", func(ctx context.Context, c *cluster) error {
			return c.policyConformance(ctx, os.Stdout)
		}),
		passing("exec MACHINE -- CMD...", "Run a command inside a machine (node1, control, outside, fabric)", func(_ context.Context, c *cluster, args []string) error {
			if len(args) < 2 {
				return errors.New("want a machine and a command")
			}
			code, err := c.exec(args[0], args[1:])
			if err == nil && code != 0 {
				err = exitCode(code)
			}
			return err
		}),
		benchCommand(),
		churnCommand(),
		faultsCommand(),
		verbsCommand(),
		uninstallCommand(),
		&cobra.Command{Use: "greet NUMBER ADDRESS...", Hidden: true, Args: cobra.MinimumNArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
			pod, err := strconv.Atoi(args[0])
			if err != nil {
				return err
			}
			return sendGreetings(cmd.Context(), pod, args[1:])
		}},
		&cobra.Command{Use: "machine FILE", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error { return bootMachine(args[0]) }},
	)
	return root
}

func simple(use, short string, run func(context.Context, layout) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		l, err := newLayout()
		if err != nil {
			return err
		}
		return run(cmd.Context(), l)
	}}
}

func onCluster(use, short string, run func(context.Context, *cluster) error) *cobra.Command {
	return simple(use, short, func(ctx context.Context, l layout) error {
		c, err := openCluster(l)
		if err != nil {
			return err
		}
		return run(ctx, c)
	})
}

// passing is a command with arguments of somebody else's.
func passing(use, short string, run func(context.Context, *cluster, []string) error) *cobra.Command {
	cmd := onCluster(use, short, nil)
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := newLayout()
		if err != nil {
			return err
		}
		c, err := openCluster(l)
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, args)
	}
	return cmd
}

func upCommand() *cobra.Command {
	var o upOptions
	cmd := simple("up", "Start a cluster", func(ctx context.Context, l layout) error { return up(ctx, l, o, os.Stdout) })
	cmd.Flags().IntVar(&o.nodes, "nodes", 3, "number of nodes")
	cmd.Flags().BoolVar(&o.ovs, "ovs", false, "run an Open vSwitch on every node, for Fairlead's plane of that name (a manifest with agent.plane=ovs)")
	cmd.Flags().StringVar(&o.cni, "cni", cniFairlead, "what pods get their network from: fairlead, bridge (the reference plugin) or none")
	o.installFlags(cmd)
	return cmd
}

func (o *upOptions) installFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.manifest, "manifest", "deploy/fairlead.yaml", "manifest that installs Fairlead")
	cmd.Flags().StringVar(&o.images, "images", "bin/fairlead-images.tar", "archive of Fairlead's image")
}

func loadCommand() *cobra.Command {
	var o upOptions
	var flows int
	cmd := onCluster("load", "Bring Fairlead on the running cluster to the version of the archive and the manifest", func(ctx context.Context, c *cluster) error {
		return c.loadUnder(ctx, o, flows, os.Stdout)
	})
	cmd.Flags().IntVar(&flows, "flows", 0, "number of UDP flows that run meanwhile, and must not notice")
	o.installFlags(cmd)
	return cmd
}

func smokeCommand() *cobra.Command {
	var fairlead string
	cmd := onCluster("smoke", "Check pods, services, DNS, the outside, exec, logs and probes, and ask kubectl fairlead about them", func(ctx context.Context, c *cluster) error {
		return c.smoke(ctx, fairlead, os.Stdout)
	})
	cmd.Flags().StringVar(&fairlead, "fairlead", "bin/fairlead", "the program that kubectl fairlead runs")
	return cmd
}

func benchCommand() *cobra.Command {
	var pods int
	cmd := onCluster("bench", "Measure how long pods take to be Ready, and how much of it is ADD", func(ctx context.Context, c *cluster) error {
		return c.bench(ctx, pods, os.Stdout)
	})
	cmd.Flags().IntVar(&pods, "pods", 30, "number of pods")
	return cmd
}

func churnCommand() *cobra.Command {
	var o churnOptions
	cmd := onCluster("churn", "Create and delete pods again and again, and check that nothing is left of them", func(ctx context.Context, c *cluster) error {
		return c.churn(ctx, o, os.Stdout)
	})
	cmd.Flags().IntVar(&o.pods, "pods", 50, "number of pods")
	cmd.Flags().IntVar(&o.rounds, "rounds", 10, "how often")
	cmd.Flags().StringVar(&o.fairlead, "fairlead", "bin/fairlead", "the program that checks the addresses")
	return cmd
}

func faultsCommand() *cobra.Command {
	var o faultOptions
	cmd := passing("faults [NAME...]", "Make things go wrong, and check what must hold meanwhile", func(ctx context.Context, c *cluster, args []string) error {
		return c.faults(ctx, o, args, os.Stdout)
	})
	cmd.Args = cobra.ArbitraryArgs
	cmd.Flags().DurationVar(&o.away, "away", time.Minute, "how long the API server is away")
	cmd.Flags().StringVar(&o.fairlead, "fairlead", "bin/fairlead", "the program that asks the agents")
	return cmd
}

func endToEndCommand() *cobra.Command {
	var procs int
	var skip string
	cmd := passing("e2e FOCUS [-- FLAGS...]", "Run Kubernetes' own tests whose names match a regular expression", func(ctx context.Context, c *cluster, args []string) error {
		return c.endToEnd(ctx, args[0], skip, procs, args[1:], os.Stdout)
	})
	cmd.Flags().IntVar(&procs, "procs", 1, "how many tests run side by side")
	// A kernel without SCTP makes each of these wait for many minutes.
	cmd.Flags().StringVar(&skip, "skip", "SCTPConnectivity", "regular expression of names that are left out")
	return cmd
}

func verbsCommand() *cobra.Command {
	var manifest string
	cmd := onCluster("verbs", "Compare what Fairlead's accounts have done with what they may do", func(_ context.Context, c *cluster) error {
		return c.verbs(manifest, os.Stdout)
	})
	cmd.Flags().StringVar(&manifest, "manifest", "deploy/fairlead.yaml", "manifest that grants the rights")
	return cmd
}

func uninstallCommand() *cobra.Command {
	var installed, uninstall string
	cmd := onCluster("uninstall", "Remove Fairlead from the cluster, and check that nothing is left of it", func(ctx context.Context, c *cluster) error {
		return c.uninstall(ctx, installed, uninstall, os.Stdout)
	})
	cmd.Flags().StringVar(&installed, "manifest", "deploy/fairlead.yaml", "manifest that has installed Fairlead")
	cmd.Flags().StringVar(&uninstall, "uninstall", "deploy/uninstall.yaml", "manifest that removes it from the nodes")
	return cmd
}

// pass runs a program with this program's input and output.
func (c *cluster) pass(ctx context.Context, name string, args []string) error {
	cmd := c.command(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return c.runIn(cmd)
}
