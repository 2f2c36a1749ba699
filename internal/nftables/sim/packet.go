package sim

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Packet is what rules can read of a packet. It is a value: a walk changes its own
// copy. The zero values of the fields are what most packets have.
type Packet struct {
	// Src and Dst are of one family. The ports of a protocol that has none are the first
	// four bytes of its header: "th dport" reads them all the same.
	Src, Dst         netip.Addr
	Protocol         packet.Protocol
	SrcPort, DstPort uint16
	// TCPFlags are the bits nftables.TCPSyn and so on.
	TCPFlags uint32
	// ICMPType is the type of an ICMP or ICMPv6 message, ICMPID the identifier of an
	// echo.
	ICMPType uint8
	ICMPID   uint16
	// Quoted is the packet that an ICMP error is about, as the error's sender saw it.
	Quoted *Tuple

	// In and Out are the interfaces; "" is none, as In is for what the machine itself
	// sends, and Out before routing.
	In, Out string
	// InType is the ARPHRD number of In, as in "meta iiftype"; zero is Ethernet
	// where there is an In at all.
	InType             uint16
	EtherSrc, EtherDst packet.MAC
	// PktType is the kind of delivery, as in "meta pkttype"; zero is to this host.
	PktType uint8
	Mark    uint32

	// CT is what conntrack says about the packet.
	CT CT
}

// Of returns the packet of the model as one that rules can read: a TCP segment has
// SYN alone or ACK alone, an ICMP packet is an echo request.
func Of(p packet.Packet) Packet {
	out := Packet{Src: p.Src, Dst: p.Dst, Protocol: p.Protocol, SrcPort: p.SrcPort, DstPort: p.DstPort}
	switch p.Protocol {
	case packet.TCP:
		out.TCPFlags = nftables.TCPAck
		if p.SYN {
			out.TCPFlags = nftables.TCPSyn
		}
	case packet.ICMP:
		out.ICMPType = icmpEcho
	case packet.ICMPv6:
		out.ICMPType = icmp6Echo
	}
	return out
}

// Plain is the inverse of Of, as far as the model knows packets.
func (p Packet) Plain() packet.Packet {
	const opening = nftables.TCPSyn | nftables.TCPAck
	out := packet.Packet{Src: p.Src, Dst: p.Dst, Protocol: p.Protocol, SYN: p.Protocol == packet.TCP && p.TCPFlags&opening == nftables.TCPSyn}
	if hasPorts(p.Protocol) {
		out.SrcPort, out.DstPort = p.SrcPort, p.DstPort
	}
	return out
}

// String is the packet with its interfaces, "flpabc: 10.0.0.1:1 > 10.0.0.2:80/TCP".
func (p Packet) String() string {
	s := p.Plain().String()
	if p.In != "" {
		s = p.In + ": " + s
	}
	if p.Out != "" {
		s += " → " + p.Out
	}
	if p.Mark != 0 {
		s += fmt.Sprintf(" mark 0x%08x", p.Mark)
	}
	return s
}

// CT is conntrack's word on a packet. The zero value is that of a packet that has
// no entry: "ct state invalid".
type CT struct {
	// State is one of nftables.CTNew, CTEstablished, CTRelated, CTUntracked and
	// CTInvalid; zero is CTInvalid. Invalid and untracked packets have no entry, and
	// the fields below do not count.
	State uint32
	// Reply says that the packet goes against the direction of the flow's first.
	Reply bool
	// First says that the entry is not complete: the chains of type nat see the
	// packet.
	First bool
	// Original and Answer are the tuples of the two directions, the latter as answers
	// look when they arrive, so behind NAT.
	Original, Answer Tuple
	Mark, Status     uint32
	Zone             uint16
}

// tracked reports whether the packet has a conntrack entry.
func (c CT) tracked() bool {
	return c.State == nftables.CTNew || c.State == nftables.CTEstablished || c.State == nftables.CTRelated
}

// Tuple identifies one direction of a flow. Of ICMP both ports are the identifier.
type Tuple struct {
	Src, Dst         netip.Addr
	Protocol         packet.Protocol
	SrcPort, DstPort uint16
}

// Tuple of the packet as it is.
func (p Packet) Tuple() Tuple {
	t := Tuple{Src: p.Src, Dst: p.Dst, Protocol: p.Protocol}
	switch {
	case hasPorts(p.Protocol):
		t.SrcPort, t.DstPort = p.SrcPort, p.DstPort
	case p.isICMP():
		t.SrcPort, t.DstPort = p.ICMPID, p.ICMPID
	}
	return t
}

// Reverse is the tuple of what answers.
func (t Tuple) Reverse() Tuple {
	t.Src, t.Dst, t.SrcPort, t.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
	return t
}

// String is "10.0.0.1:1 > 10.0.0.2:80/TCP".
func (t Tuple) String() string {
	return packet.Packet{Src: t.Src, Dst: t.Dst, Protocol: t.Protocol, SrcPort: t.SrcPort, DstPort: t.DstPort}.String()
}

// ICMP types that conntrack tells apart (RFC 792, RFC 4443, RFC 4861).
const (
	icmpEchoReply    = 0
	icmpUnreachable  = 3
	icmpQuench       = 4
	icmpRedirect     = 5
	icmpEcho         = 8
	icmpTimeExceeded = 11
	icmpParameter    = 12
	icmpTimestamp    = 13
	icmpInfo         = 15
	icmpAddressMask  = 17

	icmp6Echo      = 128
	icmp6EchoReply = 129
)

func (p Packet) isICMP() bool { return p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6 }

// isError reports whether the packet is an ICMP error, which quotes another packet.
func (p Packet) isError() bool {
	switch p.Protocol {
	case packet.ICMP:
		switch p.ICMPType {
		case icmpUnreachable, icmpQuench, icmpRedirect, icmpTimeExceeded, icmpParameter:
			return true
		}
	case packet.ICMPv6:
		return p.ICMPType < icmp6Echo
	}
	return false
}

// check refuses what is no packet.
func (p Packet) check() error {
	if !p.Src.IsValid() || !p.Dst.IsValid() || p.Src.Is4() != p.Dst.Is4() || p.Src.Is4In6() != p.Dst.Is4In6() {
		return fmt.Errorf("%s and %s are not two addresses of one family", p.Src, p.Dst)
	}
	if len(p.In) > maxIfName || len(p.Out) > maxIfName {
		return fmt.Errorf("interface names %q and %q: at most %d bytes", p.In, p.Out, maxIfName)
	}
	return nil
}

// maxIfName is IFNAMSIZ without its end.
const maxIfName = 15

// Protocols beside the model's that have ports.
const (
	protoDCCP    = 33
	protoUDPLite = 136
)

// hasPorts reports whether a protocol's flows differ by ports.
func hasPorts(p packet.Protocol) bool {
	switch p {
	case packet.TCP, packet.UDP, packet.SCTP, protoDCCP, protoUDPLite:
		return true
	}
	return false
}
