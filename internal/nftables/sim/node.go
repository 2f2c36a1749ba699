package sim

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Loopback is the interface by which a machine talks to itself.
const Loopback = "lo"

// Routing is the part of a machine that knows addresses and routes.
type Routing interface {
	// Route says where a packet goes. In is empty for what the machine itself sends.
	Route(p Packet) Route
	// Source is the address that masquerading takes for an interface.
	Source(out string, is4 bool) (netip.Addr, bool)
}

// Route is a routing decision.
type Route struct {
	// Local: the machine itself is the destination.
	Local bool
	// Out is the interface that the packet leaves by. Where it is empty and Local is
	// false there is no way, and Why says so.
	Out string
	Why string
}

// Node walks packets through one machine: its table, its flows, its routes. It is not
// safe for concurrent use. The fields may be exchanged between two packets.
type Node struct {
	Rules   *Ruleset
	Routing Routing
	// Addresses answers the fib fields of rules; nil is an error for a table that asks.
	Addresses func(p Packet, f nftables.Field) (uint32, error)
	Flows     Flows
	// Trace fills in Journey.Trace.
	Trace bool
	// ports counts the random ones that were given out.
	ports uint16
}

// Journey is the way of one packet through a machine.
type Journey struct {
	// Dropped: it ended here, and Why says so.
	Dropped  bool
	Why      string
	Rejected *nftables.Reject
	// Local: it was delivered to the machine itself. Otherwise it left by Packet.Out.
	Local  bool
	Packet Packet
	Trace  Trace
}

// Receive walks a packet that came in by p.In.
func (n *Node) Receive(p Packet) (Journey, error) {
	if p.In == "" {
		return Journey{}, fmt.Errorf("receive %s: it came in by no interface", p)
	}
	if err := p.check(); err != nil {
		return Journey{}, fmt.Errorf("receive a packet: %w", err)
	}
	j := &journey{node: n, Journey: Journey{Packet: p}}
	j.Packet.Out = ""
	if !j.hook(nftables.HookPrerouting) || !j.route() {
		return j.end()
	}
	if j.Local {
		if j.hook(nftables.HookInput) {
			j.confirm()
		}
		return j.end()
	}
	if j.hook(nftables.HookForward) && j.hook(nftables.HookPostrouting) {
		j.confirm()
	}
	return j.end()
}

// Send walks a packet that the machine itself sends. What it sends to itself leaves
// by Loopback, and is to be received there.
func (n *Node) Send(p Packet) (Journey, error) {
	if err := p.check(); err != nil {
		return Journey{}, fmt.Errorf("send a packet: %w", err)
	}
	j := &journey{node: n, Journey: Journey{Packet: p}}
	j.Packet.In, j.Packet.Out = "", ""
	if !j.route() {
		return j.end()
	}
	before, mark := j.Packet.Dst, j.Packet.Mark
	if !j.hook(nftables.HookOutput) {
		return j.end()
	}
	// Destination NAT, and chains of type route, have it routed again.
	if j.Packet.Dst != before || j.Packet.Mark != mark && n.Rules.reroutes() {
		if !j.route() {
			return j.end()
		}
	}
	if j.hook(nftables.HookPostrouting) {
		j.confirm()
	}
	return j.end()
}

// reroutes reports whether there is a chain of type route.
func (r *Ruleset) reroutes() bool {
	for _, c := range r.filter[nftables.HookOutput] {
		if c.Base.Type == nftables.TypeRoute {
			return true
		}
	}
	return false
}

// journey is a Journey under way.
type journey struct {
	node *Node
	Journey
	err error
}

func (j *journey) end() (Journey, error) { return j.Journey, j.err }

// hook walks one hook and reports whether the packet goes on.
func (j *journey) hook(h nftables.Hook) bool {
	r, err := j.node.Rules.Hook(h, j.Packet, j.node, j.node.Trace)
	if err != nil {
		j.err = err
		return false
	}
	j.Packet = r.Packet
	j.Trace = append(j.Trace, r.Trace...)
	j.Dropped, j.Why, j.Rejected = r.Dropped, r.Why, r.Rejected
	j.keepMark()
	return !r.Dropped
}

// keepMark brings the mark that rules have set into the flow: also that of a packet
// that is dropped afterwards.
func (j *journey) keepMark() {
	c := j.Packet.CT
	if !c.tracked() || c.First {
		return
	}
	if d, ok := j.node.Flows.known[flowKey{c.Zone, c.Original}]; ok {
		d.flow.Mark = c.Mark
	}
}

func (j *journey) route() bool {
	r := j.node.Routing.Route(j.Packet)
	switch {
	case r.Local && j.Packet.In == "":
		j.Packet.Out = Loopback
	case r.Local:
		j.Local = true
	case r.Out == "":
		j.Dropped, j.Why = true, r.Why
		return false
	default:
		j.Packet.Out = r.Out
	}
	return true
}

// confirm makes the flow known, now that its packet has passed (nf_conntrack_confirm).
func (j *journey) confirm() {
	c := &j.Packet.CT
	if !c.tracked() || !c.First {
		return
	}
	if !j.node.Flows.confirm(Flow{Original: c.Original, Answer: c.Answer, Mark: c.Mark, Status: c.Status, Zone: c.Zone}) {
		j.Dropped, j.Why = true, "another flow has the same tuple"
		return
	}
	c.First, c.Status = false, c.Status|nftables.CTConfirmed
}

// Track implements Host.
func (n *Node) Track(p *Packet) {
	if p.CT.tracked() { // Sent by Loopback, and so seen before.
		return
	}
	p.CT = n.Flows.lookup(*p)
}

var errNoPort = errors.New("no port is free to translate to")

// Translate implements Host.
func (n *Node) Translate(p *Packet, at nftables.Hook, chosen *Translation) error {
	if p.CT.First && p.CT.State == nftables.CTNew {
		if err := n.choose(p, at, chosen); err != nil {
			return err
		}
	}
	rewrite(p, at)
	return nil
}

// choose gives a new flow the tuple of its answers. Without a choice it is kept, unless
// another flow has it already: then another source port is looked for, as the
// kernel does.
func (n *Node) choose(p *Packet, at nftables.Hook, chosen *Translation) error {
	kind := manip(at)
	answer := p.CT.Answer
	first, last := uint16(1024), uint16(1<<16-1)
	if chosen != nil {
		to := chosen.Addr
		if chosen.Masquerade() {
			own, ok := n.Routing.Source(p.Out, p.Src.Is4())
			if !ok {
				return fmt.Errorf("%s has no address to masquerade with", p.Out)
			}
			to = own
		}
		port, within := chosen.Port, chosen.Ports != (nftables.Value{})
		if within {
			first, last = uint16(chosen.Ports.Uint()), uint16(chosen.Ports.UintTo())
		}
		if port == 0 && kind == nftables.SNAT && hasPorts(p.Protocol) {
			switch own := answer.DstPort; {
			case chosen.Flags&(nftables.NATRandom|nftables.NATFullyRandom) != 0:
				port = n.anyPort(first, last)
			case within && (own < first || own > last):
				port = first
			}
		}
		answer = translated(answer, kind, to, port)
	} else if kind == nftables.DNAT {
		return nil
	}
	answer, err := n.free(p.CT, answer, kind, first, last)
	if err != nil {
		return err
	}
	if answer != p.CT.Answer {
		p.CT.Status |= map[nftables.NATKind]uint32{nftables.SNAT: nftables.CTSNAT, nftables.DNAT: nftables.CTDNAT}[kind]
		p.CT.Answer = answer
	}
	return nil
}

// anyPort stands for the port that the kernel takes at random: it is one that few
// others choose.
func (n *Node) anyPort(first, last uint16) uint16 {
	n.ports++
	if first <= firstRandomPort && firstRandomPort < last {
		first = firstRandomPort
	}
	return first + uint16(uint32(n.ports)%(uint32(last)-uint32(first)+1))
}

const firstRandomPort = 50000

// free returns the tuple with a port that no other flow has, from first to last. The
// kernel's choice is random, this one is the next.
func (n *Node) free(c CT, answer Tuple, kind nftables.NATKind, first, last uint16) (Tuple, error) {
	if !n.Flows.taken(c.Zone, answer) || kind == nftables.DNAT {
		return answer, nil
	}
	if !hasPorts(answer.Protocol) && answer.Protocol != packet.ICMP && answer.Protocol != packet.ICMPv6 {
		return answer, nil
	}
	for range 1 << 16 {
		if answer.DstPort++; answer.DstPort < first || answer.DstPort > last {
			answer.DstPort = first
		}
		if !hasPorts(answer.Protocol) {
			answer.SrcPort = answer.DstPort
		}
		if !n.Flows.taken(c.Zone, answer) {
			return answer, nil
		}
	}
	return answer, errNoPort
}

// Fib implements Host.
func (n *Node) Fib(p Packet, f nftables.Field) (uint32, error) {
	if n.Addresses == nil {
		return 0, errNoFib
	}
	return n.Addresses(p, f)
}
