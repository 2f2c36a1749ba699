package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/apply/preflight"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

func (a *app) preflightCommand() *cobra.Command {
	var subnets, services []string
	o := preflight.Options{BPFDir: claims.BPFPinDir}
	cmd := &cobra.Command{
		Use: "preflight", Short: "Find out whether this host can be a node, and what is missing", Args: usage.Arguments(0, 0),
		Long: `Find out whether this host can be a node: what its kernel can do, and what stands in the way.
Exits with 2 if anything is missing. Nothing is changed: kernel features are tried in a network
namespace that is thrown away. With a cluster (--kubeconfig, --context) its Subnets are compared
too.`,
	}
	format := outputFlag(cmd)
	cmd.Flags().StringSliceVar(&subnets, "subnet", nil, "prefixes of pods")
	cmd.Flags().StringSliceVar(&services, "service-cidr", nil, "prefixes of Services")
	cmd.Flags().StringVar(&o.ConfDir, "conf-dir", "/etc/cni/net.d", "the container runtime's directory of network configurations")
	cmd.Flags().StringVar(&o.ConfFile, "conf-file", "10-fairlead.conflist", "name of Fairlead's configuration there")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if o.Subnets, err = parsePrefixes("--subnet", subnets); err != nil {
			return err
		}
		if o.Services, err = parsePrefixes("--service-cidr", services); err != nil {
			return err
		}
		if a.flags.kubernetes() {
			stored, err := a.storedSubnets(cmd.Context())
			if err != nil {
				return err
			}
			for _, s := range stored {
				if !slices.Contains(o.Subnets, s) {
					o.Subnets = append(o.Subnets, s)
				}
			}
		}
		checks := preflight.Run(o)
		if err := a.print(format, checks, func(bool) table { return drawChecks(checks) }); err != nil {
			return err
		}
		if slices.ContainsFunc(checks, func(c preflight.Check) bool { return c.State == preflight.Missing }) {
			return exitError(exitUsage)
		}
		return nil
	}
	return cmd
}

func drawChecks(checks []preflight.Check) table {
	t := table{header: []string{"CHECK", "STATE", "FOUND", "NEXT"}}
	for _, c := range checks {
		next := c.Next
		if next == "" {
			next = "-"
		}
		t.add(c.Name, string(c.State), c.Found, next)
	}
	return t
}

func parsePrefixes(flag string, texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || p != p.Masked() {
			return nil, usagef("%s %s: want a prefix, such as 10.244.0.0/16", flag, text)
		}
		out = append(out, p)
	}
	return out, nil
}

// storedSubnets are the prefixes of the cluster's Subnets.
func (a *app) storedSubnets(ctx context.Context) ([]netip.Prefix, error) {
	var out []netip.Prefix
	err := a.withStore(ctx, func(ctx context.Context, s datastore.Store) error {
		list, err := s.List(ctx, datastore.KindSubnet)
		if err != nil {
			return fmt.Errorf("list the cluster's Subnets: %w", err)
		}
		for _, o := range list.Items {
			if sn, ok := o.(*v1alpha1.Subnet); ok {
				for _, text := range sn.Spec.CIDRs {
					if p, err := netip.ParsePrefix(text); err == nil {
						out = append(out, p.Masked())
					}
				}
			}
		}
		return nil
	})
	return out, err
}
