package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
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
	// Ready is the Subnet's condition, "False (Overlap)".
	Ready string `json:"ready"`
}

type ipamReport struct {
	Subnets   []subnetUse `json:"subnets"`
	Addresses []address   `json:"addresses"`

	// borrowed is what nodes say that they hold of others' blocks, by node.
	borrowed map[string]map[string]v1alpha1.AddressOwner
}

// unconfirmed is the owner of an address that is lent to a node which does not list
// it: it has not begun to, or has given it back.
const unconfirmed = "(not confirmed)"

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
		return nil, err
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
	r := ipamReport{Subnets: []subnetUse{}, Addresses: []address{}, borrowed: map[string]map[string]v1alpha1.AddressOwner{}}
	subnets, err := listTyped[*v1alpha1.Subnet](ctx, s, datastore.KindSubnet)
	if err != nil {
		return r, err
	}
	for _, n := range subnets {
		r.Subnets = append(r.Subnets, subnetUse{
			n.Name, n.Spec.CIDRs, n.Status.Blocks, n.Status.Allocated, n.Status.Capacity, ready(n.Status.Conditions),
		})
	}
	blocks, err := listTyped[*v1alpha1.IPBlock](ctx, s, datastore.KindIPBlock)
	if err != nil {
		return r, err
	}
	nodes, err := listTyped[*v1alpha1.NodeNetwork](ctx, s, datastore.KindNodeNetwork)
	if err != nil {
		return r, err
	}
	for _, n := range nodes {
		r.borrowed[n.Name] = n.Status.Borrowed
	}
	for _, b := range blocks {
		for addr, o := range b.Spec.Allocations {
			r.Addresses = append(r.Addresses, address{Address: addr, Subnet: b.Spec.Subnet, Block: b.Name, Node: b.Spec.Node, Owner: ownerName(o), UID: string(o.UID)})
		}
		for addr, node := range b.Spec.Lent {
			o := r.borrowed[node][addr]
			r.Addresses = append(r.Addresses, address{Address: addr, Subnet: b.Spec.Subnet, Block: b.Name, Node: node, LentBy: b.Spec.Node, Owner: cmp.Or(ownerName(o), unconfirmed), UID: string(o.UID)})
		}
	}
	slices.SortFunc(r.Addresses, func(x, y address) int {
		return cmp.Or(cmp.Compare(x.Subnet, y.Subnet), compareAddr(x.Address, y.Address), cmp.Compare(x.Block, y.Block), cmp.Compare(x.Node, y.Node))
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
	cmd := &cobra.Command{Use: "show", Short: "Show Subnets and every address in use", Args: usage.Arguments(0, 0)}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			r, err := readIPAM(ctx, s)
			if err != nil {
				return err
			}
			if format.forPeople() {
				t := drawSubnets(r.Subnets)
				if err := t.write(a.out); err != nil {
					return err
				}
				fmt.Fprintln(a.out)
			}
			return a.print(format, r, func(wide bool) table { return drawAddresses(r.Addresses, wide) })
		})
	}
	return cmd
}

func drawSubnets(subnets []subnetUse) table {
	t := table{header: []string{"SUBNET", "CIDRS", "BLOCKS", "USED", "READY"}}
	for _, n := range subnets {
		t.add(n.Subnet, strings.Join(n.CIDRs, ","), fmt.Sprint(n.Blocks), used(n.Allocated, n.Capacity), n.Ready)
	}
	return t
}

func drawAddresses(addresses []address, wide bool) table {
	t := table{header: []string{"ADDRESS", "SUBNET", "NODE", "OWNER", "LENT-BY"}}
	if wide {
		t.header = append(t.header, "BLOCK", "UID")
	}
	for _, x := range addresses {
		row := []string{x.Address, x.Subnet, x.Node, x.Owner, cmp.Or(x.LentBy, "-")}
		if wide {
			row = append(row, x.Block, cmp.Or(x.UID, "-"))
		}
		t.add(row...)
	}
	return t
}
