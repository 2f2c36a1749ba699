package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// collect removes what vanished nodes have left: their blocks, then their NodeNetwork.
//
// The time since a node is missing is in the Record, so that a change of leaders does
// not begin it again; but every leader has itself missed the node for a quarter of the
// grace period, whatever the clock of the one before said. While pods are still
// bound to the node it has half a grace period more: its agent may be alive.
func (p *planner) collect() {
	left := p.leftBehind()
	pods := map[string]int{}
	if len(left) > 0 {
		for pod := range p.snap.Pods.Values() {
			if _, ok := left[pod.Node]; ok && !pod.Finished {
				pods[pod.Node]++
			}
		}
	}
	since := map[string]time.Time{}
	var living *livingPods
	for _, node := range slices.Sorted(maps.Keys(left)) {
		v := Vanished{Node: node, Blocks: len(left[node]), Pods: pods[node]}
		since[node], v.Due = p.due(node, v.Pods > 0)
		p.out.Vanished = append(p.out.Vanished, v)
		if p.Now.Before(v.Due) {
			p.again(v.Due)
			continue
		}
		if living == nil {
			living = p.livingPods()
		}
		p.removeNode(node, left[node], living)
	}
	if len(since) == 0 {
		since = nil
	}
	p.out.Record.Vanished = since
}

// leftBehind maps every node that has no Node object but a block or a NodeNetwork to its
// blocks. It also counts the nodes that are known.
func (p *planner) leftBehind() map[string][]*world.Block {
	left := map[string][]*world.Block{}
	for b := range p.snap.Blocks.Values() {
		if b.Node != "" && !p.nodeExists(b.Node) {
			left[b.Node] = append(left[b.Node], b)
		}
	}
	for n := range p.snap.NodeNetworks.Values() {
		if !p.nodeExists(n.Name) && left[n.Name] == nil {
			left[n.Name] = []*world.Block{}
		}
	}
	p.out.Nodes = p.snap.Nodes.Len() + len(left)
	return left
}

// due is since when a node has vanished and when what it left is removed.
func (p *planner) due(node string, pods bool) (since, due time.Time) {
	missed, ok := p.old.missing[node]
	if !ok {
		missed = p.Now
	}
	p.out.Memory.missing[node] = missed
	since, ok = p.Record.Vanished[node]
	if !ok || since.After(p.Now) {
		since = p.Now.UTC().Truncate(time.Second)
	}
	grace := p.Grace
	if pods {
		grace += p.Grace / 2
	}
	due = since.Add(grace)
	if own := missed.Add(p.Grace / 4); due.Before(own) {
		due = own
	}
	return since, due
}

func (p *planner) removeNode(node string, blocks []*world.Block, living *livingPods) {
	absent := Ref{Kind: datastore.KindNode, Key: datastore.Key{Name: node}}
	why := "node " + node + " is gone"
	for _, b := range blocks {
		if held := living.holds(b); held != "" {
			p.out.Held = append(p.out.Held, world.Problem{
				Kind: world.KindBlock, Key: world.Key{Name: b.Name}, Reason: "HeldByLivingPod",
				Message: fmt.Sprintf("its node %s is gone, and it is kept because %s", node, held),
			})
			continue
		}
		p.write(Write{
			Action: Release, Ref: Ref{Kind: datastore.KindIPBlock, Key: datastore.Key{Name: b.Name}, UID: types.UID(b.UID)},
			Absent: absent, Why: why,
		})
	}
	if o := p.Objects.NodeNetworks[node]; o != nil {
		if _, exists := p.snap.NodeNetworks.Get(world.Key{Name: node}); exists {
			p.write(Write{Action: Delete, Ref: Ref{Kind: datastore.KindNodeNetwork, Key: datastore.KeyOf(o), UID: o.UID}, Absent: absent, Why: why})
		}
	}
}

// livingPods are those bound to a Node that exists.
type livingPods struct {
	p *planner
	// held are their addresses, as their status says, in order.
	held []heldAddr
}

type heldAddr struct {
	addr netip.Addr
	pod  *world.Pod
}

func (p *planner) livingPods() *livingPods {
	l := &livingPods{p: p}
	for pod := range p.snap.Pods.Values() {
		if pod.HostNetwork || !l.lives(pod) {
			continue
		}
		for _, a := range pod.Addresses {
			l.held = append(l.held, heldAddr{a, pod})
		}
	}
	slices.SortStableFunc(l.held, func(a, b heldAddr) int { return a.addr.Compare(b.addr) })
	return l
}

func (l *livingPods) lives(pod *world.Pod) bool { return !pod.Finished && l.p.nodeExists(pod.Node) }

// holds says which living pod, or living borrower, needs a block; "" if none does.
func (l *livingPods) holds(b *world.Block) string {
	for _, a := range b.Allocations {
		pod, ok := l.p.snap.Pods.Get(world.Key{Namespace: a.Owner.Namespace, Name: a.Owner.Name})
		if ok && a.Owner.UID != "" && (pod.UID == a.Owner.UID || pod.StaticUID == a.Owner.UID) && l.lives(pod) {
			return fmt.Sprintf("pod %s/%s on node %s has %s", pod.Namespace, pod.Name, pod.Node, a.Addr)
		}
	}
	for _, loan := range b.Lent {
		if n, ok := l.p.snap.NodeNetworks.Get(world.Key{Name: loan.Node}); ok && l.p.nodeExists(loan.Node) {
			if i := slices.IndexFunc(n.Borrowed, func(a world.Allocation) bool { return a.Addr == loan.Addr }); i >= 0 && !ipam.IsUnused(n.Borrowed[i].Owner) {
				return fmt.Sprintf("node %s has borrowed %s for %s", loan.Node, loan.Addr, ipam.OwnerText(n.Borrowed[i].Owner))
			}
		}
	}
	return l.addressIn(b)
}

// addressIn looks for a living pod whose status names an address of the block, in case
// its node has not published it.
func (l *livingPods) addressIn(b *world.Block) string {
	subnet, ok := l.p.snap.Subnets.Get(world.Key{Name: b.Subnet})
	if !ok || !b.CIDR.IsValid() {
		return ""
	}
	i, _ := slices.BinarySearchFunc(l.held, b.CIDR.Addr(), func(h heldAddr, a netip.Addr) int { return h.addr.Compare(a) })
	for ; i < len(l.held) && b.CIDR.Contains(l.held[i].addr); i++ {
		pod := l.held[i].pod
		if vpc, _ := l.p.tenancy.VPCOf(pod.Namespace); vpc == subnet.VPC {
			return fmt.Sprintf("pod %s/%s on node %s has %s", pod.Namespace, pod.Name, pod.Node, l.held[i].addr)
		}
	}
	return ""
}
