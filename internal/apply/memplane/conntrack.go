package memplane

import (
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

// conntrack knows one node's conversations, in both directions: how a packet of
// each looks after translation.
type conntrack struct {
	known map[tuple]tuple
}

// translate rewrites a packet of a known conversation.
func (c *conntrack) translate(p packet.Packet) (packet.Packet, bool) {
	t, ok := c.known[tupleOf(p)]
	if !ok {
		return p, false
	}
	p.Src, p.Dst, p.SrcPort, p.DstPort = t.src, t.dst, t.srcPort, t.dstPort
	return p, true
}

// begin notes a conversation that starts with before and leaves as after.
func (c *conntrack) begin(before, after packet.Packet) {
	c.known[tupleOf(before)] = tupleOf(after)
	c.known[tupleOf(after.Reverse())] = tupleOf(before.Reverse())
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
