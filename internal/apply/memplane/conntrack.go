package memplane

import (
	"maps"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// tuple identifies one direction of a conversation.
type tuple struct {
	src, dst         netip.Addr
	protocol         packet.Protocol
	srcPort, dstPort uint16
}

func tupleOf(p packet.Packet) tuple {
	return tuple{src: p.Src, dst: p.Dst, protocol: p.Protocol, srcPort: p.SrcPort, dstPort: p.DstPort}
}

// flow is what a node must know of a conversation to judge it again.
type flow struct {
	// first is its first packet as policies see it: with the source that it came with
	// and the destination that it went to.
	first packet.Packet
	// sender and receiver are the ports of this node at its ends, if there are any.
	sender, receiver string
	// own: the node itself began it.
	own bool
}

// direction is how packets of one direction of a conversation look after translation.
type direction struct {
	looks tuple
	flow  *flow
}

// conntrack knows one node's conversations, in both directions.
type conntrack struct {
	known map[tuple]direction
}

// translate rewrites a packet of a known conversation; of any other the flow is nil.
func (c *conntrack) translate(p packet.Packet) (packet.Packet, *flow) {
	d, ok := c.known[tupleOf(p)]
	if !ok {
		return p, nil
	}
	p.Src, p.Dst, p.SrcPort, p.DstPort = d.looks.src, d.looks.dst, d.looks.srcPort, d.looks.dstPort
	return p, d.flow
}

// begin notes a conversation that starts with before and leaves as after.
func (c *conntrack) begin(before, after packet.Packet, f *flow) {
	c.known[tupleOf(before)] = direction{tupleOf(after), f}
	c.known[tupleOf(after.Reverse())] = direction{tupleOf(before.Reverse()), f}
}

// forget drops the conversations that are to go.
func (c *conntrack) forget(gone func(*flow) bool) {
	maps.DeleteFunc(c.known, func(_ tuple, d direction) bool { return gone(d.flow) })
}

// masquerade gives a packet another source, and another source port if a known
// conversation already looks so.
func (c *conntrack) masquerade(p packet.Packet, src netip.Addr) packet.Packet {
	p.Src = src
	if p.Protocol != packet.TCP && p.Protocol != packet.UDP && p.Protocol != packet.SCTP {
		return p
	}
	for range 1 << 16 {
		if _, taken := c.known[tupleOf(p.Reverse())]; !taken {
			break
		}
		p.SrcPort = max(p.SrcPort+1, 1024)
	}
	return p
}
