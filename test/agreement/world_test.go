package agreement_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
	"github.com/fairlead-sdn/fairlead/test/agreement"
)

// people are those of a drawn world who can send, and the addresses there are.
type people struct {
	snap      *world.Snapshot
	outside   oracle.Place
	senders   []oracle.Place
	addresses []netip.Addr
	own       map[oracle.Place][]netip.Addr
}

func meet(t *rapid.T, snap *world.Snapshot) *people {
	p := &people{snap: snap, own: map[oracle.Place][]netip.Addr{}}
	for n := range snap.NodeNetworks.Values() {
		node := oracle.Place{Kind: oracle.Node, Node: n.Name}
		p.senders = append(p.senders, node)
		for _, a := range n.Addresses {
			p.add(node, a.Addr())
		}
		for _, a := range n.Borrowed {
			p.hold(a, n.Name)
		}
	}
	// The routers outside know one way to the pods.
	p.outside = oracle.Place{Kind: oracle.Outside, Node: rapid.SampledFrom(p.senders).Draw(t, "entry").Node}
	p.senders = append(p.senders, p.outside)
	p.own[p.outside] = []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")}
	for b := range snap.Blocks.Values() {
		raw := b.CIDR.Addr().AsSlice()
		raw[len(raw)-1] |= 0x0f
		vacant, _ := netip.AddrFromSlice(raw)
		p.addresses = append(p.addresses, vacant)
		for _, a := range b.Allocations {
			p.hold(a, b.Node)
		}
	}
	for _, s := range []string{"203.0.113.7", "203.0.113.8", "2001:db8::7", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "fe80::9", "169.254.1.1", "169.254.169.254", "10.128.77.1"} {
		p.addresses = append(p.addresses, netip.MustParseAddr(s))
	}
	return p
}

func (p *people) add(at oracle.Place, a netip.Addr) {
	p.addresses = append(p.addresses, a)
	p.own[at] = append(p.own[at], a)
}

func (p *people) hold(a world.Allocation, node string) {
	at := oracle.Place{Kind: oracle.Pod, Node: node, Pod: world.Key{Namespace: a.Owner.Namespace, Name: a.Owner.Name}}
	if strings.HasPrefix(a.Owner.Name, "node/") {
		at = oracle.Place{Kind: oracle.Node, Node: node}
	}
	if !slices.Contains(p.senders, at) {
		p.senders = append(p.senders, at)
	}
	p.add(at, a.Addr)
}

// shot is a packet to send.
type shot struct {
	oracle.Probe
	flags uint32
	// kind of packet, for the statistics.
	kind string
	// detour: an answer comes in by another node than the one that knows its flow.
	detour bool
}

// packet makes a packet of a seed: mostly honest and new, sometimes spoofed, in the
// middle of a flow, another one of a flow that was delivered before, an answer, or an
// ICMP error about it.
func (p *people) packet(seed uint64, sent []oracle.Flow, first bool) shot {
	s := p.draw(seed, sent, first)
	if s.From.Kind != oracle.Pod {
		s.flags = 0 // Of no flow, kernels send no other segments by themselves.
	}
	return s
}

func (p *people) draw(seed uint64, sent []oracle.Flow, first bool) shot {
	r := rand.New(rand.NewPCG(seed, 1))
	if len(sent) > 0 {
		f := pick(r, sent...)
		left := f
		if f.At.Kind == oracle.Outside {
			f.At = p.outside
		}
		switch r.IntN(8) {
		case 0, 1:
			detour := left.At.Kind == oracle.Outside && f.At.Node != left.At.Node && f.Packet.Src == f.Probe.Packet.Src
			return shot{Probe: oracle.Probe{From: f.At, Packet: f.Packet.Reverse()}, flags: pick(r, middle...), kind: "answer", detour: detour}
		case 2:
			again := f.Probe
			again.Packet.SYN = again.Packet.SYN && r.IntN(4) == 0
			return shot{Probe: again, flags: pick(r, middle...), kind: "again"}
		case 3:
			return shot{Probe: p.icmpError(r, left), kind: "ICMP error"}
		}
	}
	return p.fresh(r, first)
}

// middle are flags of segments that do not begin a flow.
var middle = []uint32{nftables.TCPAck, nftables.TCPAck | nftables.TCPPsh, nftables.TCPSyn | nftables.TCPAck, nftables.TCPFin | nftables.TCPAck, nftables.TCPRst}

func (p *people) fresh(r *rand.Rand, first bool) shot {
	from := pick(r, p.senders...)
	protocols := []packet.Protocol{packet.TCP, packet.UDP, packet.SCTP}
	if first { // Without ports a masqueraded conversation is like any other between two machines.
		protocols = append(protocols, packet.ICMP)
	}
	k := packet.Packet{Dst: pick(r, p.addresses...), Protocol: pick(r, protocols...)}
	if own := p.own[pick(r, p.senders...)]; len(own) > 0 && r.IntN(2) == 0 {
		k.Dst = pick(r, own...)
	}
	kind, own := "new", p.own[from]
	sameFamily := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return a.BitLen() != k.Dst.BitLen() })
	if len(sameFamily) > 0 {
		own = sameFamily
	}
	if len(own) == 0 || r.IntN(12) == 0 {
		kind, own = "spoofed", p.addresses
	}
	k.Src = pick(r, own...)
	flags := uint32(0)
	switch {
	case k.Protocol == packet.ICMP && !k.Dst.Is4():
		k.Protocol = packet.ICMPv6
	case k.Protocol == packet.ICMP:
	default:
		k.SrcPort, k.DstPort = uint16(40000+r.IntN(3)), pick[uint16](r, 80, 80, 53, 79, 81)
		k.SYN = k.Protocol == packet.TCP && r.IntN(5) > 0
		if k.Protocol == packet.TCP && !k.SYN {
			flags, kind = pick(r, middle...), "mid-stream"
		}
	}
	return shot{Probe: oracle.Probe{From: from, Packet: k}, flags: flags, kind: kind}
}

// icmpError is an error about a flow: of one of its ends, which sends with the address
// that the packet was for, as kernels do, or of another
// pod, or a router on the way to the outside.
func (p *people) icmpError(r *rand.Rand, f oracle.Flow) oracle.Probe {
	from, quoted := f.At, f.Packet
	if r.IntN(4) == 0 {
		from, quoted = f.Probe.From, f.Probe.Packet.Reverse()
	}
	quoted.SYN = false
	k := packet.Packet{Src: quoted.Dst, Dst: quoted.Src, Protocol: packet.ICMP}
	other := pick(r, p.senders...)
	own := slices.DeleteFunc(slices.Clone(p.own[other]), func(a netip.Addr) bool { return a.BitLen() != k.Dst.BitLen() })
	router := other.Kind == oracle.Outside && f.At.Kind == oracle.Outside
	if (other.Kind == oracle.Pod && other != f.At && other != f.Probe.From || router) && len(own) > 0 && r.IntN(3) == 0 {
		from, k.Src = other, pick(r, own...)
		if router {
			from = f.At // By the node that knows the flow.
		}
	}
	if k.Dst.Is6() {
		k.Protocol = packet.ICMPv6
	}
	return oracle.Probe{From: from, Packet: k, Embedded: &quoted}
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// outOfScope reports whether nothing is promised about a packet: it comes from outside
// and stays there, or bears an address that may come in by the underlay as it is,
// and the underlay cannot tell; or a pod sends an error about itself, which does not leave the pod.
func (p *people) outOfScope(c *agreement.Cluster, s shot) bool {
	if s.Embedded != nil && slices.Contains(p.own[s.From], s.Packet.Dst) {
		return true
	}
	if s.From.Kind != oracle.Outside {
		return false
	}
	stays := true
	for n := range p.snap.NodeNetworks.Values() {
		desired, _ := c.Intent(n.Name)
		for _, u := range desired.Underlay {
			if u.Addr() == s.Packet.Src {
				return true
			}
			stays = stays && u.Addr() != s.Packet.Dst
		}
		for _, sub := range desired.Subnets {
			stays = stays && !slices.ContainsFunc(sub.CIDRs, func(c netip.Prefix) bool { return c.Contains(s.Packet.Dst) })
		}
		for _, set := range desired.AddressSets {
			if set.Name == intent.SetDirect && set.Contains(s.Packet.Src) {
				return true
			}
		}
	}
	return stays
}

// samePaths reports whether the same pods and nodes have a network in two worlds, and reach
// each other in the same way. Whoever loses it loses its flows, also if it is given back,
// and a flow that began without the tunnel does not go on in it: the model knows nothing
// of that.
func samePaths(a, b *world.Snapshot) bool {
	for n := range a.NodeNetworks.Values() {
		compiler := decide.New(decide.Config{Node: n.Name})
		x, _, _ := compiler.Compile(nil, worldtest.Local(a, n.Name))
		y, _, _ := compiler.Compile(nil, worldtest.Local(b, n.Name))
		same := func(p, q intent.Port) bool { return p.ID == q.ID && slices.Equal(p.Addresses, q.Addresses) }
		if !slices.EqualFunc(x.Ports, y.Ports, same) || !slices.EqualFunc(x.Tunnels, y.Tunnels, intent.TunnelAddress.Equal) ||
			!slices.EqualFunc(x.Routes, y.Routes, intent.Route.Equal) {
			return false
		}
	}
	return true
}
