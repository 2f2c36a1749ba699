package sim

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Flow is one entry of conntrack.
type Flow struct {
	// Original is the tuple of the flow's first packet as it came, Answer that of what
	// answers as it comes: behind NAT the one is not the other's reverse.
	Original, Answer Tuple
	Mark, Status     uint32
	Zone             uint16
}

// Flows is the conntrack table of one machine. The zero value is empty. It is not
// safe for concurrent use.
type Flows struct {
	known map[flowKey]direction
}

type flowKey struct {
	zone  uint16
	tuple Tuple
}

type direction struct {
	flow  *Flow
	reply bool
}

// All are the flows, sorted by zone and original tuple. Their marks may be changed.
func (f *Flows) All() []*Flow {
	var all []*Flow
	for _, d := range f.known {
		if !d.reply {
			all = append(all, d.flow)
		}
	}
	slices.SortFunc(all, func(a, b *Flow) int {
		return cmp.Or(cmp.Compare(a.Zone, b.Zone), compareTuples(a.Original, b.Original))
	})
	return all
}

func compareTuples(a, b Tuple) int {
	return cmp.Or(a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.SrcPort, b.SrcPort), cmp.Compare(a.DstPort, b.DstPort))
}

// Find returns the flow of a tuple, of either direction, in zone 0.
func (f *Flows) Find(t Tuple) (flow *Flow, reply, ok bool) {
	d, ok := f.known[flowKey{tuple: t}]
	return d.flow, d.reply, ok
}

// Delete forgets a flow.
func (f *Flows) Delete(flow *Flow) {
	delete(f.known, flowKey{flow.Zone, flow.Original})
	delete(f.known, flowKey{flow.Zone, flow.Answer})
}

// confirm makes a new flow known, unless another one has a tuple of it.
func (f *Flows) confirm(flow Flow) bool {
	if f.taken(flow.Zone, flow.Original) || f.taken(flow.Zone, flow.Answer) {
		return false
	}
	if f.known == nil {
		f.known = map[flowKey]direction{}
	}
	flow.Status |= nftables.CTConfirmed
	f.known[flowKey{flow.Zone, flow.Answer}] = direction{&flow, true}
	f.known[flowKey{flow.Zone, flow.Original}] = direction{&flow, false}
	return true
}

func (f *Flows) taken(zone uint16, t Tuple) bool {
	_, ok := f.known[flowKey{zone, t}]
	return ok
}

// lookup says what conntrack says about a packet (nf_conntrack_in).
func (f *Flows) lookup(p Packet) CT {
	zone := p.CT.Zone
	if p.isError() {
		return f.related(p)
	}
	if p.Protocol == packet.ICMPv6 && neighbourDiscovery(p.ICMPType) {
		return CT{State: nftables.CTUntracked}
	}
	if p.Protocol == packet.TCP && !validFlags(p.TCPFlags) {
		return CT{State: nftables.CTInvalid}
	}
	t := p.Tuple()
	d, known := f.known[flowKey{zone, t}]
	if known {
		if d.reply { // Whatever becomes of the answer.
			d.flow.Status |= nftables.CTSeenReply
		}
		return d.ct(false)
	}
	if !p.begins() {
		return CT{State: nftables.CTInvalid}
	}
	return CT{State: nftables.CTNew, First: true, Original: t, Answer: t.Reverse(), Zone: zone}
}

// ct is the state of a packet of a known flow.
func (d direction) ct(related bool) CT {
	c := CT{
		State: nftables.CTNew, Reply: d.reply, Original: d.flow.Original, Answer: d.flow.Answer,
		Mark: d.flow.Mark, Status: d.flow.Status, Zone: d.flow.Zone,
	}
	switch {
	case related:
		c.State = nftables.CTRelated
	case d.reply, d.flow.Status&nftables.CTSeenReply != 0:
		c.State = nftables.CTEstablished
	}
	return c
}

// related finds the flow that an ICMP error is about, and whether the error goes to
// one of its ends (nf_conntrack_inet_error).
func (f *Flows) related(p Packet) CT {
	if p.Quoted == nil {
		return CT{State: nftables.CTInvalid}
	}
	d, ok := f.known[flowKey{p.CT.Zone, p.Quoted.Reverse()}]
	if !ok {
		return CT{State: nftables.CTInvalid}
	}
	to := d.flow.Original.Dst
	if d.reply {
		to = d.flow.Answer.Dst
	}
	if to != p.Dst {
		return CT{State: nftables.CTInvalid}
	}
	return d.ct(true)
}

// begins reports whether a packet of no known flow may begin one: of TCP neither
// what only answers nor what only ends (tcp_new), of ICMP only what asks
// (icmp_new, icmpv6_new). A bare ACK may: the kernel picks flows up in their middle
// (nf_conntrack_tcp_loose).
func (p Packet) begins() bool {
	switch p.Protocol {
	case packet.TCP:
		const answer = nftables.TCPSyn | nftables.TCPAck
		return p.TCPFlags&(nftables.TCPRst|nftables.TCPFin) == 0 && p.TCPFlags&answer != answer
	case packet.ICMP:
		switch p.ICMPType {
		case icmpEcho, icmpTimestamp, icmpInfo, icmpAddressMask:
			return true
		}
		return false
	case packet.ICMPv6:
		return p.ICMPType == icmp6Echo || p.ICMPType == icmp6NodeQuery
	}
	return true
}

const icmp6NodeQuery = 139

// neighbourDiscovery is never tracked (noct_valid_new in nf_conntrack_proto_icmpv6.c).
func neighbourDiscovery(icmpType uint8) bool {
	switch icmpType {
	case 130, 131, 132, 133, 134, 135, 136, 137, 143:
		return true
	}
	return false
}

// validFlags are the combinations that TCP knows (tcp_valid_flags).
func validFlags(flags uint32) bool {
	const fin, syn, rst, ack, urg = nftables.TCPFin, nftables.TCPSyn, nftables.TCPRst, nftables.TCPAck, nftables.TCPUrg
	switch flags & (fin | syn | rst | ack | urg) {
	case syn, syn | urg, syn | ack, rst, rst | ack, fin | ack, fin | ack | urg, ack, ack | urg:
		return true
	}
	return false
}

// manip says which end NAT rewrites at a hook (HOOK2MANIP).
func manip(h nftables.Hook) nftables.NATKind {
	if h == nftables.HookPrerouting || h == nftables.HookOutput {
		return nftables.DNAT
	}
	return nftables.SNAT
}

// rewrite makes a packet of a flow look as it does behind NAT (nf_nat_packet): at each
// hook the end that the hook rewrites, if the flow has been given another one.
func rewrite(p *Packet, at nftables.Hook) {
	kind := manip(at)
	status := nftables.CTSNAT
	if (kind == nftables.DNAT) != p.CT.Reply {
		status = nftables.CTDNAT
	}
	if p.CT.Status&status == 0 {
		return
	}
	target := p.CT.Answer.Reverse()
	if p.CT.Reply {
		target = p.CT.Original.Reverse()
	}
	if p.isError() {
		rewriteError(p, kind, target)
		return
	}
	if kind == nftables.SNAT {
		p.Src = target.Src
	} else {
		p.Dst = target.Dst
	}
	p.setPort(kind, target)
}

// rewriteError rewrites an ICMP error with the packet that it quotes, which goes the
// other way (nf_nat_icmp_reply_translation).
func rewriteError(p *Packet, kind nftables.NATKind, target Tuple) {
	quoted := *p.Quoted
	if kind == nftables.SNAT {
		p.Src = target.Src
		quoted.Dst, quoted.DstPort = target.Src, target.SrcPort
	} else {
		p.Dst = target.Dst
		quoted.Src, quoted.SrcPort = target.Dst, target.DstPort
	}
	p.Quoted = &quoted
}

func (p *Packet) setPort(kind nftables.NATKind, target Tuple) {
	switch {
	case p.isICMP():
		p.ICMPID = target.SrcPort
	case !hasPorts(p.Protocol):
	case kind == nftables.SNAT:
		p.SrcPort = target.SrcPort
	default:
		p.DstPort = target.DstPort
	}
}

// translated is the tuple of answers to a flow whose packets get a new end.
func translated(answer Tuple, kind nftables.NATKind, a netip.Addr, port uint16) Tuple {
	if kind == nftables.SNAT {
		answer.Dst = a
		if port != 0 {
			answer.DstPort = port
		}
		return answer
	}
	answer.Src = a
	if port != 0 {
		answer.SrcPort = port
	}
	return answer
}
