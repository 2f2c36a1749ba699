package oracle

import (
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Flow is a conversation that was begun: a packet as it was sent, and what became
// of it.
type Flow struct {
	Probe Probe
	// At is where it was delivered, Packet how it looked there.
	At     Place
	Packet packet.Packet
}

// from is where answers go: for a hostNetwork pod that is its node.
func (f Flow) from(m *Model) Place {
	if pod, ok := m.snap.Pods.Get(f.Probe.From.Pod); ok && f.Probe.From.Kind == Pod && pod.HostNetwork {
		return Place{Kind: Node, Node: pod.Node}
	}
	return f.Probe.From
}

// Flows are the conversations that exist. The zero value and nil are none.
type Flows struct {
	// Adopting says that a plane has just been installed: TCP flows that it has
	// never seen go on.
	Adopting bool
	list     []Flow
}

// Begin notes that a probe was sent and delivered, unless it belongs to a flow
// already. An answer that came another way, with another source, is a new one.
func (f *Flows) Begin(p Probe, delivered Outcome) {
	_, reply := f.replied(p)
	known := f.begun(p) || reply && delivered.Packet.Src == p.Packet.Src
	if !delivered.Dropped && !known {
		f.list = append(f.list, Flow{Probe: p, At: delivered.At, Packet: delivered.Packet})
	}
}

func (f *Flows) adopting() bool { return f != nil && f.Adopting }

// with returns flows that hold at least the given one.
func (f *Flows) with(flow Flow) *Flows {
	g := &Flows{list: []Flow{flow}}
	if f != nil {
		g.Adopting = f.Adopting
		g.list = append(g.list, f.list...)
	}
	return g
}

// sameFlow: two packets of one direction of one conversation.
func sameFlow(a, b packet.Packet) bool {
	a.SYN, b.SYN = false, false
	return a == b
}

// begun reports whether a probe goes the way of a known flow.
func (f *Flows) begun(p Probe) bool {
	return f != nil && slices.ContainsFunc(f.list, func(k Flow) bool { return samePlace(k.Probe.From, p.From) && sameFlow(k.Probe.Packet, p.Packet) })
}

// replied returns the flow that a probe answers. The latest counts.
func (f *Flows) replied(p Probe) (Flow, bool) {
	if f == nil {
		return Flow{}, false
	}
	for _, k := range slices.Backward(f.list) {
		if samePlace(k.At, p.From) && sameFlow(k.Packet, p.Packet.Reverse()) {
			return k, true
		}
	}
	return Flow{}, false
}

// samePlace: the outside is one place, whichever node a packet meets first.
func samePlace(a, b Place) bool {
	if a.Kind == Outside && b.Kind == Outside {
		return true
	}
	return a == b
}

// quoted returns the flow that an ICMP error is about, and whether it goes to the
// flow's sender. The quoted packet must be one that the error's sender can have
// seen, and the error must go to that packet's source.
func (f *Flows) quoted(p Probe) (flow Flow, toSender, ok bool) {
	icmp := p.Packet.Protocol == packet.ICMP || p.Packet.Protocol == packet.ICMPv6
	if f == nil || !icmp || p.Packet.Dst != p.Embedded.Src {
		return Flow{}, false, false
	}
	for _, k := range slices.Backward(f.list) {
		seenThere := samePlace(k.At, p.From) || p.From.Kind == Outside
		if seenThere && sameFlow(k.Packet, *p.Embedded) {
			return k, true, true
		}
		if samePlace(k.Probe.From, p.From) && sameFlow(k.Probe.Packet.Reverse(), *p.Embedded) {
			return k, false, true
		}
	}
	return Flow{}, false, false
}

// Family is an IP version.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

func (f Family) bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

// probePort is the source port of probes: the first ephemeral one (RFC 6335).
const probePort = 49152

// JudgeProbe judges the first packet of a conversation between two pods of the
// world. Allowed says that somebody answers: the destination declares the port.
func JudgeProbe(snap *world.Snapshot, from, to world.Key, proto packet.Protocol, port uint16, family Family) Verdict {
	return Read(snap).JudgeProbe(from, to, proto, port, family)
}

// JudgeProbe is the function of that name, for whoever asks more than once.
func (m *Model) JudgeProbe(from, to world.Key, proto packet.Protocol, port uint16, family Family) Verdict {
	src, srcPlace, ok := m.addressOf(from, family)
	if !ok {
		return refused("source", "the pod "+from.String()+" is not known, or has no address of that family")
	}
	dst, _, ok := m.addressOf(to, family)
	if !ok {
		return refused("destination", "the pod "+to.String()+" is not known, or has no address of that family")
	}
	p := packet.Packet{Src: src, Dst: dst, Protocol: proto, SrcPort: probePort, DstPort: port, SYN: proto == packet.TCP}
	v := m.Judge(nil, Probe{From: srcPlace, Packet: p})
	if !v.Allowed {
		return v
	}
	target, _ := m.snap.Pods.Get(to)
	if target.Finished || !slices.ContainsFunc(target.Ports, func(c world.ContainerPort) bool { return c.Protocol == proto && c.Port == port }) {
		v.Allowed = false
		v.Stages = append(v.Stages, Stage{Name: "delivery", Why: "the pod " + to.String() + " does not listen on that port"})
	}
	return v
}

func refused(stage, why string) Verdict {
	return Verdict{Stages: []Stage{{Name: stage, Why: why}}, Outcomes: []Outcome{{Dropped: true}}}
}
