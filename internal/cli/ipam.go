package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

func (a *app) ipamCommand() *cobra.Command {
	return group("ipam", "Addresses: who has which", a.ipamShow(), a.ipamCheck(), a.ipamRelease())
}

// address is one address that somebody has.
type address struct {
	Address string `json:"address"`
	Subnet  string `json:"subnet"`
	Block   string `json:"block"`
	// Node that uses the address; LentBy owns its block, if another.
	Node   string `json:"node"`
	LentBy string `json:"lentBy,omitempty"`
	Owner  string `json:"owner"`
	UID    string `json:"uid,omitempty"`
}

// subnetUse is how full a Subnet is.
type subnetUse struct {
	Subnet    string   `json:"subnet"`
	CIDRs     []string `json:"cidrs"`
	Blocks    int32    `json:"blocks"`
	Allocated int64    `json:"allocated"`
	Capacity  int64    `json:"capacity"`
}

type ipamReport struct {
	Subnets   []subnetUse `json:"subnets"`
	Addresses []address   `json:"addresses"`
}

func ownerName(o v1alpha1.AddressOwner) string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// listTyped lists a kind as its type.
func listTyped[T datastore.Object](ctx context.Context, s datastore.Store, kind datastore.Kind) ([]T, error) {
	list, err := s.List(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("list %s objects: %w", kind, err)
	}
	var out []T
	for _, o := range list.Items {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out, nil
}

func readIPAM(ctx context.Context, s datastore.Store) (ipamReport, error) {
	r := ipamReport{Subnets: []subnetUse{}, Addresses: []address{}}
	subnets, err := listTyped[*v1alpha1.Subnet](ctx, s, datastore.KindSubnet)
	if err != nil {
		return r, err
	}
	for _, n := range subnets {
		r.Subnets = append(r.Subnets, subnetUse{n.Name, n.Spec.CIDRs, n.Status.Blocks, n.Status.Allocated, n.Status.Capacity})
	}
	blocks, err := listTyped[*v1alpha1.IPBlock](ctx, s, datastore.KindIPBlock)
	if err != nil {
		return r, err
	}
	nodes, err := listTyped[*v1alpha1.NodeNetwork](ctx, s, datastore.KindNodeNetwork)
	if err != nil {
		return r, err
	}
	borrowed := map[string]map[string]v1alpha1.AddressOwner{}
	for _, n := range nodes {
		borrowed[n.Name] = n.Status.Borrowed
	}
	for _, b := range blocks {
		for addr, o := range b.Spec.Allocations {
			r.Addresses = append(r.Addresses, address{Address: addr, Subnet: b.Spec.Subnet, Block: b.Name, Node: b.Spec.Node, Owner: ownerName(o), UID: string(o.UID)})
		}
		for addr, node := range b.Spec.Lent {
			o := borrowed[node][addr]
			r.Addresses = append(r.Addresses, address{Address: addr, Subnet: b.Spec.Subnet, Block: b.Name, Node: node, LentBy: b.Spec.Node, Owner: cmp.Or(ownerName(o), "(not confirmed)"), UID: string(o.UID)})
		}
	}
	slices.SortFunc(r.Addresses, func(x, y address) int {
		return cmp.Or(cmp.Compare(x.Subnet, y.Subnet), compareAddr(x.Address, y.Address))
	})
	return r, nil
}

// compareAddr orders addresses by number; what does not parse comes first.
func compareAddr(x, y string) int {
	a, _ := netip.ParseAddr(x)
	b, _ := netip.ParseAddr(y)
	return cmp.Or(a.Compare(b), cmp.Compare(x, y))
}

func (a *app) ipamShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show", Short: "Show Subnets and every address in use", Args: cobra.NoArgs}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			r, err := readIPAM(ctx, s)
			if err != nil {
				return err
			}
			if *format == "table" || *format == "wide" {
				t := table{header: []string{"SUBNET", "CIDRS", "BLOCKS", "USED"}}
				for _, n := range r.Subnets {
					t.add(n.Subnet, strings.Join(n.CIDRs, ","), fmt.Sprint(n.Blocks), used(n.Allocated, n.Capacity))
				}
				if err := t.write(a.out); err != nil {
					return err
				}
				fmt.Fprintln(a.out)
			}
			return a.print(*format, r, func(wide bool) table {
				t := table{header: []string{"ADDRESS", "SUBNET", "NODE", "OWNER", "LENT-BY"}}
				if wide {
					t.header = append(t.header, "BLOCK", "UID")
				}
				for _, x := range r.Addresses {
					row := []string{x.Address, x.Subnet, x.Node, x.Owner, cmp.Or(x.LentBy, "-")}
					if wide {
						row = append(row, x.Block, x.UID)
					}
					t.add(row...)
				}
				return t
			})
		})
	}
	return cmd
}

// finding is one thing that ipam check found.
type finding struct {
	Address string `json:"address"`
	Problem string `json:"problem"`
}

func (a *app) ipamCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check", Short: "Compare blocks with pods: doubles, leaks, strangers", Args: cobra.NoArgs,
		Long: "Compare blocks with pods. Exits with 1 if an address is held twice, held for a pod that is gone,\nor used by a pod that does not hold it.",
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			r, err := readIPAM(ctx, s)
			if err != nil {
				return err
			}
			pods, err := listTyped[*corev1.Pod](ctx, s, datastore.KindPod)
			if err != nil {
				return err
			}
			found := checkIPAM(r, pods)
			if len(found) == 0 && (*format == "table" || *format == "wide") {
				_, err := fmt.Fprintf(a.out, "%d addresses, all of them held by whom they should be\n", len(r.Addresses))
				return err
			}
			if err := a.print(*format, found, func(bool) table {
				t := table{header: []string{"ADDRESS", "PROBLEM"}}
				for _, f := range found {
					t.add(f.Address, f.Problem)
				}
				return t
			}); err != nil {
				return err
			}
			if len(found) > 0 {
				return exitError(exitFailed)
			}
			return nil
		})
	}
	return cmd
}

// checkIPAM compares what blocks say with what pods say.
func checkIPAM(r ipamReport, pods []*corev1.Pod) []finding {
	found := []finding{}
	holder := map[string]address{}
	for _, x := range r.Addresses {
		if first, double := holder[x.Address]; double && !strings.HasPrefix(x.Owner, "(") {
			found = append(found, finding{x.Address, fmt.Sprintf("held twice: by %s in block %s and by %s in block %s", first.Owner, first.Block, x.Owner, x.Block)})
		}
		holder[x.Address] = x
	}
	alive := map[string]*corev1.Pod{}
	for _, p := range pods {
		alive[p.Namespace+"/"+p.Name] = p
		if p.Spec.HostNetwork {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if x, ok := holder[ip.IP]; !ok {
				found = append(found, finding{ip.IP, fmt.Sprintf("pod %s/%s has it, no block says so", p.Namespace, p.Name)})
			} else if x.Owner != p.Namespace+"/"+p.Name {
				found = append(found, finding{ip.IP, fmt.Sprintf("pod %s/%s has it, block %s gives it to %s", p.Namespace, p.Name, x.Block, x.Owner)})
			}
		}
	}
	for _, x := range r.Addresses {
		if strings.HasPrefix(x.Owner, "node/") || strings.HasPrefix(x.Owner, "container/") || strings.HasPrefix(x.Owner, "record/") || strings.HasPrefix(x.Owner, "(") {
			continue
		}
		if p := alive[x.Owner]; p == nil {
			found = append(found, finding{x.Address, fmt.Sprintf("held for pod %s, which does not exist (node %s)", x.Owner, x.Node)})
		} else if x.UID != "" && x.UID != string(p.UID) && x.UID != p.Annotations["kubernetes.io/config.hash"] {
			found = append(found, finding{x.Address, fmt.Sprintf("held for an earlier pod %s (node %s)", x.Owner, x.Node)})
		}
	}
	slices.SortFunc(found, func(x, y finding) int {
		return cmp.Or(compareAddr(x.Address, y.Address), cmp.Compare(x.Problem, y.Problem))
	})
	return found
}

func (a *app) ipamRelease() *cobra.Command {
	return &cobra.Command{
		Use: "release ADDRESS", Short: "Free an address that is held for a pod that is gone", Args: cobra.ExactArgs(1),
		Long: `Free an address that is held for a pod that does not exist any more and whose node is
gone. While the node's agent runs, it alone frees addresses, and what its records hold
it writes again: delete the pod or call CNI DEL instead.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := netip.ParseAddr(args[0])
			if err != nil {
				return usagef("%q is not an address", args[0])
			}
			return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error { return a.release(ctx, s, addr.String()) })
		},
	}
}

func (a *app) release(ctx context.Context, s datastore.Store, addr string) error {
	blocks, err := listTyped[*v1alpha1.IPBlock](ctx, s, datastore.KindIPBlock)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(blocks, func(b *v1alpha1.IPBlock) bool { _, ok := b.Spec.Allocations[addr]; return ok })
	if i < 0 {
		return fmt.Errorf("no block holds %s; fairlead ipam show lists what is held", addr)
	}
	b := blocks[i]
	o := b.Spec.Allocations[addr]
	if o.Namespace != "" {
		if _, err := s.Get(ctx, datastore.KindPod, datastore.Key{Namespace: o.Namespace, Name: o.Name}); !apierrors.IsNotFound(err) {
			if err != nil {
				return err
			}
			return fmt.Errorf("%s is held for pod %s, which exists: delete the pod instead", addr, ownerName(o))
		}
	}
	if _, err := s.Get(ctx, datastore.KindNode, datastore.Key{Name: b.Spec.Node}); !apierrors.IsNotFound(err) {
		if err != nil {
			return err
		}
		return fmt.Errorf("%s is in a block of node %s, which exists: only its agent frees the address, once the attachment is gone", addr, b.Spec.Node)
	}
	delete(b.Spec.Allocations, addr)
	if _, err := s.Update(ctx, b); err != nil {
		return fmt.Errorf("free %s in block %s: %w", addr, b.Name, err)
	}
	_, err = fmt.Fprintf(a.out, "%s is free (it was held for %s)\n", addr, ownerName(o))
	return err
}
