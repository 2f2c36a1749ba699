package memplane

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// cluster is a drawn world, compiled for every node and applied.
type cluster struct {
	snap   *world.Snapshot
	model  *oracle.Model
	fabric *Fabric
	flows  oracle.Flows
	// sent are the packets that were delivered, to be answered later.
	sent []oracle.Flow

	outside   oracle.Place
	senders   []oracle.Place
	addresses []netip.Addr
}

func newCluster(t *rapid.T, snap *world.Snapshot) *cluster {
	c := &cluster{fabric: NewFabric()}
	c.become(t, snap)
	for n := range snap.NodeNetworks.Values() {
		c.senders = append(c.senders, oracle.Place{Kind: oracle.Node, Node: n.Name})
		for _, p := range n.Addresses {
			c.addresses = append(c.addresses, p.Addr())
		}
		for _, a := range n.Borrowed {
			c.hold(a, n.Name)
		}
	}
	// The routers outside know one way to the pods.
	entry := rapid.SampledFrom(slices.Collect(snap.NodeNetworks.Values())).Draw(t, "entry").Name
	c.outside = oracle.Place{Kind: oracle.Outside, Node: entry}
	c.senders = append(c.senders, c.outside)
	for b := range snap.Blocks.Values() {
		c.addresses = append(c.addresses, last(b.CIDR)) // Nobody has it.
		for _, a := range b.Allocations {
			c.hold(a, b.Node)
		}
	}
	for _, s := range []string{"203.0.113.7", "203.0.113.8", "2001:db8::7", "127.0.0.1", "::1", "224.0.0.1", "fe80::9", "169.254.1.1", "10.128.77.1"} {
		c.addresses = append(c.addresses, netip.MustParseAddr(s))
	}
	return c
}

// become compiles and applies another world.
func (c *cluster) become(t *rapid.T, snap *world.Snapshot) {
	c.snap, c.model = snap, oracle.Read(snap)
	for n := range snap.NodeNetworks.Values() {
		desired, _, _ := decide.New(decide.Config{Node: n.Name}).Compile(nil, worldtest.Local(snap, n.Name))
		if faults := intent.Validate(desired); len(faults) > 0 {
			t.Fatalf("invalid intent of %s: %v\n%s", n.Name, faults, desired)
		}
		if _, err := c.fabric.Node(n.Name).Apply(t.Context(), desired, apply.Options{}); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *cluster) hold(a world.Allocation, node string) {
	c.addresses = append(c.addresses, a.Addr)
	if strings.HasPrefix(a.Owner.Name, "node/") {
		return
	}
	p := oracle.Place{Kind: oracle.Pod, Node: node, Pod: world.Key{Namespace: a.Owner.Namespace, Name: a.Owner.Name}}
	if !slices.Contains(c.senders, p) {
		c.senders = append(c.senders, p)
	}
}

func last(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	raw[len(raw)-1] |= 0x0f
	a, _ := netip.AddrFromSlice(raw)
	return a
}

// own returns the addresses that a place may send with.
func (c *cluster) own(p oracle.Place) []netip.Addr {
	var own []netip.Addr
	mine := func(a world.Allocation, node string) bool {
		if node != p.Node {
			return false
		}
		if p.Kind == oracle.Node {
			return strings.HasPrefix(a.Owner.Name, "node/")
		}
		return p.Kind == oracle.Pod && a.Owner.Namespace == p.Pod.Namespace && a.Owner.Name == p.Pod.Name
	}
	for b := range c.snap.Blocks.Values() {
		for _, a := range b.Allocations {
			if mine(a, b.Node) {
				own = append(own, a.Addr)
			}
		}
	}
	for n := range c.snap.NodeNetworks.Values() {
		for _, a := range n.Borrowed {
			if mine(a, n.Name) {
				own = append(own, a.Addr)
			}
		}
		for _, a := range n.Addresses {
			if p.Kind == oracle.Node && n.Name == p.Node {
				own = append(own, a.Addr())
			}
		}
	}
	if p.Kind == oracle.Outside {
		own = append(own, netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7"))
	}
	return own
}

// packet makes a packet of a seed: mostly honest and new, sometimes spoofed, in the
// middle of a flow, or an answer to one that was delivered before.
func (c *cluster) packet(seed uint64) oracle.Probe {
	r := rand.New(rand.NewPCG(seed, 1))
	if len(c.sent) > 0 && r.IntN(4) == 0 {
		f := pick(r, c.sent)
		if f.At.Kind == oracle.Outside {
			f.At = c.outside
		}
		return oracle.Probe{From: f.At, Packet: f.Packet.Reverse()}
	}
	from := pick(r, c.senders)
	protocols := []packet.Protocol{packet.TCP, packet.UDP, packet.SCTP}
	if len(c.sent) == 0 { // Without ports a masqueraded conversation is like any other between two machines.
		protocols = append(protocols, packet.ICMP)
	}
	if len(c.sent) > 0 && r.IntN(6) == 0 { // Another packet of a flow.
		p := pick(r, c.sent).Probe
		p.Packet.SYN = false
		return p
	}
	p := packet.Packet{Dst: pick(r, c.addresses), Protocol: pick(r, protocols)}
	if own := c.own(pick(r, c.senders)); len(own) > 0 && r.IntN(2) == 0 {
		p.Dst = pick(r, own)
	}
	own := c.own(from)
	sameFamily := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return a.BitLen() != p.Dst.BitLen() })
	if len(sameFamily) > 0 {
		own = sameFamily
	}
	if len(own) == 0 || r.IntN(10) == 0 {
		own = c.addresses
	}
	p.Src = pick(r, own)
	if p.Protocol != packet.ICMP {
		p.SrcPort, p.DstPort = uint16(40000+r.IntN(3)), uint16(80+r.IntN(2))
		p.SYN = p.Protocol == packet.TCP && r.IntN(5) > 0
	}
	return oracle.Probe{From: from, Packet: p}
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// send sends a packet through the planes and says what was observed.
func (c *cluster) send(p oracle.Probe) (oracle.Outcome, Delivery) {
	from := Place{Node: p.From.Node, Outside: p.From.Kind == oracle.Outside}
	if p.From.Kind == oracle.Pod {
		from.Port = portID(p.From.Pod)
	}
	d := c.fabric.Send(from, p.Packet)
	if d.Dropped {
		return oracle.Outcome{Dropped: true}, d
	}
	o := oracle.Outcome{Packet: d.Packet, At: oracle.Place{Kind: oracle.Node, Node: d.At.Node}}
	switch {
	case d.At.Outside:
		o.At.Kind = oracle.Outside
	case d.At.Port != "":
		o.At.Kind = oracle.Pod
		o.At.Pod = c.podOf(d.At.Port)
	}
	return o, d
}

// portID is the ID that worldtest.Local gives.
func portID(pod world.Key) string {
	return pod.Namespace + "." + strings.TrimPrefix(pod.Name, "container/") + "/eth0"
}

func (c *cluster) podOf(id string) world.Key {
	i := slices.IndexFunc(c.senders, func(p oracle.Place) bool { return p.Kind == oracle.Pod && portID(p.Pod) == id })
	return c.senders[i].Pod
}

// outOfScope reports whether nothing is promised about a packet: it looks like one of
// another conversation after masquerading, and whoever gets it cannot tell. Or it is
// from outside and stays there, or bears an address that may come in by the underlay
// as it is, and the underlay cannot tell.
func (c *cluster) outOfScope(p oracle.Probe) bool {
	looks := tupleOf(p.Packet)
	if slices.ContainsFunc(c.sent, func(f oracle.Flow) bool {
		return f.At.Kind == oracle.Pod && tupleOf(f.Packet) == looks && tupleOf(f.Probe.Packet) != looks
	}) {
		return true
	}
	if p.From.Kind != oracle.Outside {
		return false
	}
	stays := true
	for _, n := range c.fabric.nodes {
		_, inside := n.subnet(p.Packet.Dst)
		stays = stays && !inside && !n.has(p.Packet.Dst)
		for _, s := range n.actual.AddressSets {
			if s.Name == intent.SetDirect && n.inSet(s.VPC, s.Name, p.Packet.Src) {
				return true
			}
		}
		if n.has(p.Packet.Src) {
			return true
		}
	}
	return stays
}

// TestAgreesWithOracle is the proof of the whole chain in memory: worlds, compiled
// for every node, applied to planes that carry packets by the wire contract; what
// happens to each packet must be one of the oracle's permitted outcomes.
func TestAgreesWithOracle(t *testing.T) {
	stages := []string{"source", "destination", "vpc", "tenant", "egress", "flow", "nat", "path", "ingress", "delivery", "cut", "cut answer"}
	counts := map[string]int{}
	missing := func(stage string) bool { return counts[stage] == 0 }
	// A round that meets every stage is usual, and proves something about each.
	for range 10 {
		rapid.Check(t, func(t *rapid.T) { agree(t, counts) })
		if t.Failed() || !slices.ContainsFunc(stages, missing) {
			break
		}
	}
	t.Logf("packets by the stage that ended their way: %v", counts)
	if i := slices.IndexFunc(stages, missing); i >= 0 && !t.Failed() {
		t.Errorf("no packet ended at the stage %s: the drawn worlds prove nothing about it", stages[i])
	}
}

// agree sends packets through one drawn world, whose policies change now and then.
func agree(t *rapid.T, counts map[string]int) {
	plain := worldtest.Draw(t)
	c := newCluster(t, worldtest.DrawPolicies(t, plain))
	for range rapid.IntRange(1, 3).Draw(t, "policies") {
		for _, seed := range rapid.SliceOfN(rapid.Uint64(), 10, 40).Draw(t, "packets") {
			probe := c.packet(seed)
			if !c.outOfScope(probe) {
				counts[c.agreeOn(t, probe)]++
			}
		}
		c.become(t, worldtest.DrawPolicies(t, plain))
	}
}

// agreeOn sends one packet, and returns the stage that ended its way.
func (c *cluster) agreeOn(t *rapid.T, probe oracle.Probe) string {
	verdict := c.model.Judge(&c.flows, probe)
	observed, delivery := c.send(probe)
	if !verdict.Permits(observed) {
		t.Fatal(c.explain(probe, verdict, observed, delivery))
	}
	c.flows.Begin(probe, observed)
	if !observed.Dropped {
		c.sent = append(c.sent, oracle.Flow{Probe: probe, At: observed.At, Packet: observed.Packet})
	}
	name := verdict.Stages[len(verdict.Stages)-1].Name
	switch {
	case !strings.Contains(delivery.Why, "which is cut"):
		return name
	case name == "flow":
		return "cut answer"
	}
	return "cut"
}

// explain prints a counterexample for people.
func (c *cluster) explain(p oracle.Probe, v oracle.Verdict, observed oracle.Outcome, d Delivery) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s sends %s (SYN %v)\nobserved: %s", p.From, p.Packet, p.Packet.SYN, observed)
	if d.Dropped {
		fmt.Fprintf(&b, " (%s)", d.Why)
	}
	fmt.Fprintf(&b, "\npermitted: %v\n", v.Outcomes)
	for _, s := range v.Stages {
		fmt.Fprintf(&b, "  %s\n", s)
	}
	for _, f := range d.Frames {
		fmt.Fprintf(&b, "  frame %+v\n", f)
	}
	for n := range c.snap.NodeNetworks.Values() {
		fmt.Fprintf(&b, "\n%s", c.fabric.nodes[n.Name].actual)
	}
	return b.String()
}
