package oracle

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Judge reads a world and judges one packet. Whoever has several asks one Model.
func Judge(snap *world.Snapshot, flows *Flows, p Probe) Verdict { return Read(snap).Judge(flows, p) }

// Judge says what may happen to a packet, given the flows that exist; nil is none.
func (m *Model) Judge(flows *Flows, p Probe) Verdict {
	t := &trial{m: m, flows: flows, probe: p}
	if p.Embedded != nil {
		return t.judgeError()
	}
	if f, ok := flows.replied(p); ok {
		return t.judgeReply(f)
	}
	return t.judge()
}

// trial is one packet on its way through the rules. The fields are filled from the
// top down.
type trial struct {
	m     *Model
	flows *Flows
	probe Probe

	stages []Stage
	from   Place
	source holding // zero where the source address is of no Subnet
	to     Place
	target holding // zero where the destination address is of no Subnet
	packet packet.Packet
	others []netip.Addr // sources that are permitted instead of packet.Src
	oneWay string       // why there is no way back
	unsure string       // why it may be dropped all the same
	match  *PolicyMatch // what policy decided in the stage that is being judged
}

func (t *trial) judge() Verdict {
	for _, rule := range []struct {
		name string
		rule func() (why string, pass bool)
	}{
		{"source", t.ruleSource},
		{"destination", t.ruleDestination},
		{"vpc", t.ruleVPC},
		{"tenant", t.ruleTenant},
		{"egress", t.ruleEgress},
		{"flow", t.ruleFlow},
		{"nat", t.ruleNAT},
		{"path", t.rulePath},
		{"ingress", t.ruleIngress},
	} {
		t.match = nil
		why, pass := rule.rule()
		t.stages = append(t.stages, Stage{Name: rule.name, Pass: pass, Why: why, Match: t.match})
		if !pass {
			return Verdict{Stages: t.stages, Outcomes: []Outcome{{Dropped: true}}}
		}
	}
	return t.deliver()
}

// deliver ends the way of a packet that passed every rule.
func (t *trial) deliver() Verdict {
	natted := t.packet.Src != t.probe.Packet.Src
	v := Verdict{Allowed: true, Outcomes: []Outcome{{At: t.to, Packet: t.packet, AnySrcPort: natted}}}
	for _, src := range t.others {
		p := t.packet
		p.Src = src
		v.Outcomes = append(v.Outcomes, Outcome{At: t.to, Packet: p, AnySrcPort: natted})
	}
	stage := Stage{Name: "delivery", Pass: true, Why: v.Outcomes[0].String()}
	if t.oneWay != "" {
		v.Allowed = false
		v.Outcomes = append([]Outcome{{Dropped: true}}, v.Outcomes...)
		stage = Stage{Name: "delivery", Why: t.oneWay}
	}
	if t.unsure != "" {
		v.Allowed = false
		v.Outcomes = append(v.Outcomes, Outcome{Dropped: true})
		stage = Stage{Name: "delivery", Why: t.unsure}
	}
	if t.target.pod != nil && t.target.pod.Finished {
		v.Allowed = false
		v.Outcomes = append(v.Outcomes, Outcome{Dropped: true}) // The last: it may be delivered all the same.
		stage = Stage{Name: "delivery", Why: "the pod " + t.to.Pod.String() + " has finished: nobody listens"}
	}
	v.Stages = append(t.stages, stage)
	return v
}

// ruleSource: who sends has a network, and bears an address of its own.
func (t *trial) ruleSource() (string, bool) {
	p := t.probe.Packet
	t.from, t.packet = t.probe.From, p
	if p.Src.BitLen() != p.Dst.BitLen() {
		return fmt.Sprintf("%s and %s are not two addresses of one family", p.Src, p.Dst), false
	}
	if !isUnicast(p.Src) {
		return fmt.Sprintf("%s is no address of one machine on a network", p.Src), false
	}
	if pod, ok := t.m.snap.Pods.Get(t.from.Pod); ok && t.from.Kind == Pod && pod.HostNetwork {
		t.from = Place{Kind: Node, Node: pod.Node}
	}
	switch t.from.Kind {
	case Pod, Node:
		if t.from.Kind == Node && t.m.hasUnderlay(t.from.Node, p.Src) {
			return p.Src.String() + " is the node's own", true
		}
		i := slices.IndexFunc(t.m.owners[p.Src], func(h holding) bool { return h.place == t.from })
		if i < 0 {
			return fmt.Sprintf("%s is no address of %s", p.Src, t.from), false
		}
		t.source = t.m.owners[p.Src][i]
		if why := t.m.unconnected(t.source); why != "" {
			return fmt.Sprintf("%s has no network: %s", t.from, why), false
		}
		return fmt.Sprintf("%s is an address of %s", p.Src, t.from), true
	}
	if t.m.subnetOf(p.Src) != nil || t.m.nodeOf(p.Src) != "" {
		return fmt.Sprintf("%s is an address of a node or a Subnet, and comes from outside", p.Src), false
	}
	return p.Src.String() + " is outside", true
}

// ruleDestination: who has the destination address.
func (t *trial) ruleDestination() (string, bool) {
	dst := t.packet.Dst
	if !isUnicast(dst) {
		return fmt.Sprintf("%s is no address of one machine on a network", dst), false
	}
	s := t.m.subnetOf(dst)
	if s == nil {
		if node := t.m.nodeOf(dst); node != "" {
			t.to = Place{Kind: Node, Node: node}
			return fmt.Sprintf("%s is node %s", dst, node), true
		}
		t.to = Place{Kind: Outside, Node: t.from.Node}
		return fmt.Sprintf("%s is outside", dst), true
	}
	holders := t.m.owners[dst]
	if len(holders) == 0 {
		return fmt.Sprintf("%s lies in Subnet %s, and nobody has it", dst, s.Name), false
	}
	if len(holders) > 1 {
		return fmt.Sprintf("%s lies in Subnet %s, and %d hold it", dst, s.Name, len(holders)), false
	}
	t.target = holders[0]
	t.to = t.target.place
	if why := t.m.unconnected(t.target); why != "" {
		return fmt.Sprintf("%s has no network: %s", t.to, why), false
	}
	return fmt.Sprintf("%s is %s", dst, t.to), true
}

// ruleVPC: no packet crosses a VPC.
func (t *trial) ruleVPC() (string, bool) {
	a, b := t.source.subnet, t.target.subnet
	switch {
	case a == nil || b == nil:
		return "one end is in no VPC", true
	case a.VPC != b.VPC:
		return fmt.Sprintf("the source is in VPC %s, the destination in %s", a.VPC, b.VPC), false
	}
	return "both are in VPC " + a.VPC, true
}

// ruleTenant: in a VPC that isolates, different tenants are cut apart.
func (t *trial) ruleTenant() (string, bool) {
	if t.from.Kind != Pod || t.to.Kind != Pod {
		return "one end is no pod", true
	}
	v := t.m.vpc(t.source.subnet.VPC)
	if !v.Tenant {
		return "the VPC " + v.Name + " does not isolate tenants", true
	}
	a, b := t.m.tenants[t.from.Pod.Namespace], t.m.tenants[t.to.Pod.Namespace]
	switch {
	case a.global || b.global:
		return "one tenant is global", true
	case a.vni != b.vni:
		return fmt.Sprintf("the source is of tenant %d, the destination of %d", a.vni, b.vni), false
	}
	return fmt.Sprintf("both are of tenant %d", a.vni), true
}

// ruleFlow: a new TCP flow that a pod is an end of begins with a SYN.
func (t *trial) ruleFlow() (string, bool) {
	switch {
	case t.packet.Protocol != packet.TCP || t.packet.SYN:
		return "it may begin a flow", true
	case t.from.Kind != Pod && t.to.Kind != Pod:
		return "no pod is an end of it", true
	case t.from.Kind == Node && t.from.Node == t.to.Node:
		return "what the own node sends to a pod is allowed by origin", true
	case t.flows.adopting():
		return "flows are being adopted", true
	case t.flows.begun(t.probe):
		return "it goes with a known flow", true
	}
	return "it is in the middle of a TCP flow that nobody knows", false
}

// ruleNAT: what leaves the Subnets of a VPC bears the node's address, if the
// source's Subnet says natOutgoing; packets to the own node never do.
func (t *trial) ruleNAT() (string, bool) {
	leaves := t.target.subnet == nil && (t.to.Kind == Outside || t.to.Node != t.from.Node)
	if t.source.subnet == nil || !t.source.subnet.NATOutgoing || !leaves {
		return "the source address stays", true
	}
	for _, own := range t.m.underlay[t.from.Node] {
		if own.Addr().BitLen() == t.packet.Src.BitLen() {
			t.packet.Src = own.Addr()
			return fmt.Sprintf("natOutgoing of Subnet %s: the source becomes node %s, %s", t.source.subnet.Name, t.from.Node, own.Addr()), true
		}
	}
	return fmt.Sprintf("node %s has no address of that family to send with", t.from.Node), false
}

// rulePath: how the packet gets from node to node.
func (t *trial) rulePath() (string, bool) {
	if t.target.subnet == nil {
		return t.pathOut()
	}
	if t.from.Kind == Outside && !t.m.hasFamily(t.from.Node, t.packet.Dst) {
		return fmt.Sprintf("node %s has no address of that family on the underlay", t.from.Node), false
	}
	if t.from.Node == t.to.Node {
		return "it stays on node " + t.to.Node, true
	}
	s := t.target.subnet
	direct := t.m.plain(s) && t.m.sameSegment(t.from.Node, t.to.Node, t.packet.Dst)
	switch {
	case direct:
		return fmt.Sprintf("nodes %s and %s are in one segment: it goes as it is", t.from.Node, t.to.Node), true
	case s.Transport == world.Routed:
		return fmt.Sprintf("Subnet %s is Routed, and nodes %s and %s are in no common segment", s.Name, t.from.Node, t.to.Node), false
	case !t.m.commonFamily(t.from.Node, t.to.Node):
		return fmt.Sprintf("nodes %s and %s have no address family in common", t.from.Node, t.to.Node), false
	case t.source.subnet == nil:
		return t.tunnelSource()
	case t.source.subnet.Transport == world.Routed && !t.m.sameSegment(t.from.Node, t.to.Node, t.packet.Src):
		return fmt.Sprintf("node %s has no way back to %s: Subnet %s is Routed, and the nodes are in no common segment", t.to.Node, t.packet.Src, t.source.subnet.Name), false
	}
	return fmt.Sprintf("through the tunnel from %s to %s", t.from.Node, t.to.Node), true
}

// pathOut: a packet to the underlay leaves by an address family that the node has.
// Another node takes a pod's address from the underlay only where packets between
// the two may go as they are: so without natOutgoing pods of an overlay do not
// reach other nodes.
func (t *trial) pathOut() (string, bool) {
	if t.from.Kind == Outside || t.to.Kind == Node && t.to.Node == t.from.Node {
		return "the underlay delivers it", true
	}
	if !t.m.hasFamily(t.from.Node, t.packet.Dst) {
		return fmt.Sprintf("node %s has no address of that family on the underlay", t.from.Node), false
	}
	s := t.m.subnetOf(t.packet.Src)
	if t.to.Kind == Outside || s == nil {
		return "by the underlay of node " + t.from.Node, true
	}
	if !t.m.sameSegment(t.from.Node, t.to.Node, t.packet.Dst) {
		return fmt.Sprintf("node %s takes %s, an address of Subnet %s, from the tunnel only", t.to.Node, t.packet.Src, s.Name), false
	}
	if !t.m.plain(s) {
		t.oneWay = fmt.Sprintf("answers of node %s to %s, an address of Subnet %s, would have to be tunnelled with a source that is not of its blocks", t.to.Node, t.packet.Src, s.Name)
	}
	return "by the underlay of node " + t.from.Node + ", as it is", true
}

// tunnelSource: what enters the tunnel from elsewhere, the node itself or the
// outside, bears the node's tunnel address in the destination's Subnet: the receiver
// takes nothing that is not of the sending node.
func (t *trial) tunnelSource() (string, bool) {
	var own []netip.Addr
	for a, holders := range t.m.owners {
		for _, h := range holders {
			if h.place == (Place{Kind: Node, Node: t.from.Node}) && h.subnet == t.target.subnet && a.BitLen() == t.packet.Src.BitLen() {
				own = append(own, a)
			}
		}
	}
	if len(own) == 0 {
		return fmt.Sprintf("node %s has no tunnel address in Subnet %s", t.from.Node, t.target.subnet.Name), false
	}
	slices.SortFunc(own, netip.Addr.Compare)
	t.packet.Src, t.others = own[0], own[1:]
	return fmt.Sprintf("through the tunnel, with the node's tunnel address %s", own[0]), true
}

// judgeReply: a packet that answers a flow goes to where the flow came from, as
// long as the flow itself is still allowed.
func (t *trial) judgeReply(f Flow) Verdict {
	p := t.probe.Packet
	// Without masquerading the routers may know another way back, on which nobody
	// knows the flow.
	otherWay := p.Dst == f.Probe.Packet.Src && t.probe.From.Kind == Outside && t.probe.From.Node != f.Probe.From.Node
	if cut, is := t.cut(f, "it answers a flow that is not allowed any more"); is {
		if otherWay {
			cut.Outcomes = append(cut.Outcomes, t.judge().Outcomes...)
		}
		return cut
	}
	v := Verdict{Allowed: true, Stages: []Stage{{Name: "flow", Pass: true, Why: "it answers a known flow: " + f.Probe.Packet.String()}}}
	original := p
	original.Dst, original.DstPort = f.Probe.Packet.Src, f.Probe.Packet.SrcPort
	v.Outcomes = []Outcome{{At: f.from(t.m), Packet: original}}
	if f.Probe.From.Kind == Node {
		// A node may have chosen its tunnel address itself, or had it put in.
		v.Outcomes = append(v.Outcomes, Outcome{At: f.from(t.m), Packet: p})
	}
	if otherWay {
		v.Outcomes = append(v.Outcomes, t.judge().Outcomes...)
	}
	return v
}

// cut judges a flow again: what belongs to one that is not allowed any more is cut in
// both directions, established or not.
func (t *trial) cut(f Flow, why string) (Verdict, bool) {
	again := (&trial{m: t.m, flows: t.flows.with(f), probe: f.Probe}).judge()
	if !again.Outcomes[0].Dropped {
		return Verdict{}, false
	}
	return Verdict{Stages: append(again.Stages, Stage{Name: "flow", Why: why}), Outcomes: []Outcome{{Dropped: true}}}, true
}

// judgeError: an ICMP error is judged by the flow that it quotes, and by no other
// rule: routers on the way send them too.
func (t *trial) judgeError() Verdict {
	f, toSender, ok := t.flows.quoted(t.probe)
	if !ok {
		return Verdict{
			Stages:   []Stage{{Name: "flow", Why: "it is an ICMP error that quotes no known flow"}},
			Outcomes: []Outcome{{Dropped: true}},
		}
	}
	if cut, is := t.cut(f, "it is an ICMP error about a flow that is not allowed any more"); is {
		return cut
	}
	p := t.probe.Packet
	at := f.At
	if toSender {
		at = f.from(t.m)
		p.Dst = f.Probe.Packet.Src
	} else {
		p.Dst = f.Packet.Dst
	}
	return Verdict{
		Allowed:  true,
		Stages:   []Stage{{Name: "flow", Pass: true, Why: "it is an ICMP error about a known flow: " + f.Probe.Packet.String()}},
		Outcomes: []Outcome{{At: at, Packet: p}},
	}
}
