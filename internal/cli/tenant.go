package cli

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
)

func (a *app) tenantCommand() *cobra.Command {
	complete := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.completeNames(cmd.Context(), datastore.KindNetNamespace)
	}
	join := &cobra.Command{
		Use: "join NAMESPACE NAMESPACE…", Short: "Make namespaces one tenant: the first one's", Args: usage.Arguments(2, -1),
		Example: "  fairlead tenant join shop bank", ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
				first, err := netNamespace(ctx, s, args[0])
				if err != nil {
					return err
				}
				if err := sameVPC(ctx, s, args); err != nil {
					return err
				}
				for _, name := range args[1:] {
					if err := a.change(ctx, s, name, func(n *v1alpha1.NetNamespace) { n.Spec.VNI = first.Spec.VNI }); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	isolate := &cobra.Command{
		Use: "isolate NAMESPACE…", Short: "Make each namespace a tenant of its own again", Args: usage.Arguments(1, -1),
		Example: "  fairlead tenant isolate shop", ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
				for _, name := range args {
					if err := a.isolate(ctx, s, name); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	global := &cobra.Command{
		Use: "global NAMESPACE…", Short: "Let namespaces reach, and be reached by, every tenant of their VPC", Args: usage.Arguments(1, -1),
		Example: "  fairlead tenant global monitoring", ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
				for _, name := range args {
					if err := a.change(ctx, s, name, func(n *v1alpha1.NetNamespace) { n.Spec.Global = true }); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	return group("tenant", "Tenants of a VPC with isolation Tenant", join, isolate, global)
}

// sameVPC refuses what cannot be one tenant, before anything is changed.
func sameVPC(ctx context.Context, s datastore.Store, namespaces []string) error {
	snap, err := readWorld(ctx, s)
	if err != nil {
		return err
	}
	tenants := tenancy.Decide(snap.Namespaces, snap.VPCs, snap.NetNamespaces)
	first, _ := tenants.VPCOf(namespaces[0])
	for _, n := range namespaces[1:] {
		if _, err := netNamespace(ctx, s, n); err != nil {
			return err
		}
		if vpc, known := tenants.VPCOf(n); known && first != "" && vpc != first {
			return fmt.Errorf("namespace %s is in VPC %s and namespace %s in VPC %s: a tenant is in one VPC", namespaces[0], first, n, vpc)
		}
	}
	return nil
}

func netNamespace(ctx context.Context, s datastore.Store, name string) (*v1alpha1.NetNamespace, error) {
	o, err := s.Get(ctx, datastore.KindNetNamespace, datastore.Key{Name: name})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("namespace %s has no tenant: its VPC has isolation None, or the namespace does not exist (fairlead get netns lists tenants)", name)
	}
	if err != nil {
		return nil, err
	}
	n, ok := o.(*v1alpha1.NetNamespace)
	if !ok {
		return nil, fmt.Errorf("NetNamespace %s: the datastore answered with another kind", name)
	}
	return n, nil
}

// change changes a NetNamespace, again if somebody else changed it meanwhile.
func (a *app) change(ctx context.Context, s datastore.Store, name string, f func(*v1alpha1.NetNamespace)) error {
	for try := 1; ; try++ {
		n, err := netNamespace(ctx, s, name)
		if err != nil {
			return err
		}
		f(n)
		_, err = s.Update(ctx, n)
		if apierrors.IsConflict(err) && try < applyRetries {
			continue
		}
		if err != nil {
			return err
		}
		return a.say("namespace %s: VNI %d, global %t", name, n.Spec.VNI, n.Spec.Global)
	}
}

// maxVNI is the largest identifier that the wire carries.
const maxVNI = 1<<24 - 1

// isolate gives a namespace a VNI that nobody has. One that is alone already keeps
// its own.
func (a *app) isolate(ctx context.Context, s datastore.Store, name string) error {
	all, err := listTyped[*v1alpha1.NetNamespace](ctx, s, datastore.KindNetNamespace)
	if err != nil {
		return err
	}
	vpcs, err := listTyped[*v1alpha1.VPC](ctx, s, datastore.KindVPC)
	if err != nil {
		return err
	}
	used := map[int32]bool{}
	for _, v := range vpcs {
		used[v.Status.VNI] = true
	}
	for _, n := range all {
		if n.Name != name {
			used[n.Spec.VNI] = true
		}
	}
	if len(used) >= maxVNI/2 {
		return fmt.Errorf("isolate %s: half of all VNIs are in use", name)
	}
	return a.change(ctx, s, name, func(n *v1alpha1.NetNamespace) {
		n.Spec.Global = false
		for used[n.Spec.VNI] {
			n.Spec.VNI = 1 + rand.Int32N(maxVNI)
		}
	})
}
