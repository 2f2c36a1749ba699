package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// finding is one thing that ipam check found.
type finding struct {
	Address string `json:"address"`
	Problem string `json:"problem"`
}

func (a *app) ipamCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check", Short: "Compare blocks with pods: doubles, leaks, strangers", Args: usage.Arguments(0, 0),
		Long: "Compare blocks with pods, nodes and loans. Exits with 1 if an address is held twice, held for\nsomebody who is gone, or used by somebody who does not hold it.",
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			// A pod that was there before the blocks were read has its addresses in them;
			// who holds an address in them is there afterwards.
			before, err := listTyped[*corev1.Pod](ctx, s, datastore.KindPod)
			if err != nil {
				return err
			}
			r, err := readIPAM(ctx, s)
			if err != nil {
				return err
			}
			after, err := listTyped[*corev1.Pod](ctx, s, datastore.KindPod)
			if err != nil {
				return err
			}
			nodes, err := listTyped[*corev1.Node](ctx, s, datastore.KindNode)
			if err != nil {
				return err
			}
			return a.printFindings(format, checkIPAM(r, before, after, nodes), len(r.Addresses))
		})
	}
	return cmd
}

func (a *app) printFindings(format *outputFormat, found []finding, held int) error {
	if len(found) == 0 && format.forPeople() {
		return a.say("%s: each is held by whom it should be", count(held, "address", "addresses"))
	}
	if err := a.print(format, found, func(bool) table {
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
}

// checkIPAM compares what blocks say with what pods, nodes and borrowers say; pods as
// they were before and after the blocks were read.
func checkIPAM(r ipamReport, before, after []*corev1.Pod, nodes []*corev1.Node) []finding {
	c := ipamChecker{holder: map[string]address{}, pods: map[string]*corev1.Pod{}, nodes: map[string]bool{}, found: []finding{}}
	for _, n := range nodes {
		c.nodes[n.Name] = true
	}
	for _, x := range r.Addresses {
		if first, double := c.holder[x.Address]; double {
			c.add(x.Address, "held twice: by %s in block %s and by %s in block %s", first.Owner, first.Block, x.Owner, x.Block)
		} else {
			c.holder[x.Address] = x
		}
	}
	for _, p := range after {
		c.pods[podName(p)] = p
	}
	for _, p := range before {
		if now := c.pods[podName(p)]; now != nil && now.UID == p.UID {
			c.users(now, p.Status.PodIPs)
		}
	}
	for _, x := range r.Addresses {
		c.owner(x)
	}
	for _, node := range slices.Sorted(maps.Keys(r.borrowed)) {
		for addr, o := range r.borrowed[node] {
			if x := c.holder[addr]; x.LentBy == "" || x.Node != node {
				c.add(addr, "node %s has borrowed it for %s, no block lends it to that node", node, ownerName(o))
			}
		}
	}
	slices.SortFunc(c.found, func(x, y finding) int {
		return cmp.Or(compareAddr(x.Address, y.Address), cmp.Compare(x.Problem, y.Problem))
	})
	return c.found
}

func podName(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

type ipamChecker struct {
	holder map[string]address
	pods   map[string]*corev1.Pod
	nodes  map[string]bool
	found  []finding
}

func (c *ipamChecker) add(addr, format string, args ...any) {
	c.found = append(c.found, finding{addr, fmt.Sprintf(format, args...)})
}

// users finds strangers: pods with an address that is not theirs. One that ends or has
// ended keeps its address in its status, and nothing else.
func (c *ipamChecker) users(p *corev1.Pod, ips []corev1.PodIP) {
	if p.Spec.HostNetwork || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	name := podName(p)
	for _, ip := range ips {
		addr := ip.IP
		if parsed, err := netip.ParseAddr(addr); err == nil {
			addr = parsed.Unmap().String()
		}
		if x, ok := c.holder[addr]; !ok {
			c.add(addr, "pod %s has it, no block says so", name)
		} else if x.Owner != name {
			c.add(addr, "pod %s has it, block %s gives it to %s", name, x.Block, x.Owner)
		}
	}
}

// owner finds leaks: addresses that are held for nobody.
func (c *ipamChecker) owner(x address) {
	if node, found := strings.CutPrefix(x.Owner, "node/"); found || x.Owner == unconfirmed {
		node, _, _ = strings.Cut(node, "/")
		if x.Owner == unconfirmed {
			node = x.Node
		}
		if !c.nodes[node] {
			c.add(x.Address, "held for node %s, which does not exist", node)
		}
		return
	}
	if strings.HasPrefix(x.Owner, "container/") || strings.HasPrefix(x.Owner, "record/") {
		return // Only the node knows.
	}
	if p := c.pods[x.Owner]; p == nil {
		c.add(x.Address, "held for pod %s, which does not exist (node %s)", x.Owner, x.Node)
	} else if x.UID != "" && x.UID != string(p.UID) && x.UID != p.Annotations["kubernetes.io/config.hash"] {
		c.add(x.Address, "held for an earlier pod %s (node %s)", x.Owner, x.Node)
	}
}

func (a *app) ipamRelease() *cobra.Command {
	return &cobra.Command{
		Use: "release ADDRESS", Short: "Free an address that is held for a pod that is gone", Args: usage.Arguments(1, 1), Example: "  fairlead ipam release 10.128.0.17",
		Long: `Free an address that is held for a pod that does not exist any more and whose node is
gone. While the node's agent runs, it alone frees addresses, and what its records hold
it writes again: delete the pod or call CNI DEL instead.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := netip.ParseAddr(args[0])
			if err != nil || addr.Zone() != "" {
				return usagef("%q is not an address such as 10.128.0.17 or fd00:10::11", args[0])
			}
			return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
				return a.release(ctx, s, addr.Unmap().String())
			})
		},
	}
}

func (a *app) release(ctx context.Context, s datastore.Store, addr string) error {
	b, err := blockHolding(ctx, s, addr)
	if err != nil {
		return err
	}
	o := b.Spec.Allocations[addr]
	if o.Namespace != "" {
		gone, err := isGone(ctx, s, datastore.KindPod, datastore.Key{Namespace: o.Namespace, Name: o.Name})
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("%s is held for pod %s, which exists: delete the pod instead", addr, ownerName(o))
		}
	}
	gone, err := isGone(ctx, s, datastore.KindNode, datastore.Key{Name: b.Spec.Node})
	if err != nil {
		return err
	}
	if !gone {
		return fmt.Errorf("%s is in a block of node %s, which exists: only its agent frees the address, once the attachment is gone", addr, b.Spec.Node)
	}
	delete(b.Spec.Allocations, addr)
	if _, err := s.Update(ctx, b); err != nil {
		return fmt.Errorf("free %s in block %s: %w", addr, b.Name, err)
	}
	return a.say("%s is free (it was held for %s)", addr, ownerName(o))
}

// blockHolding returns the block that gives an address to somebody of its own node.
func blockHolding(ctx context.Context, s datastore.Store, addr string) (*v1alpha1.IPBlock, error) {
	blocks, err := listTyped[*v1alpha1.IPBlock](ctx, s, datastore.KindIPBlock)
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		if _, ok := b.Spec.Allocations[addr]; ok {
			return b, nil
		}
		if node, ok := b.Spec.Lent[addr]; ok {
			return nil, fmt.Errorf("%s is lent to node %s: the agent of %s takes it back when that node no longer needs it", addr, node, b.Spec.Node)
		}
	}
	return nil, fmt.Errorf("no block holds %s; fairlead ipam show lists what is held", addr)
}

func isGone(ctx context.Context, s datastore.Store, kind datastore.Kind, key datastore.Key) (bool, error) {
	_, err := s.Get(ctx, kind, key)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}
