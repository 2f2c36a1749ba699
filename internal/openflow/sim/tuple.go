package sim

import (
	"cmp"
	"fmt"
	"net/netip"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Tuple identifies one direction of a connection.
type Tuple struct {
	Src, Dst netip.Addr
	Protocol packet.Protocol
	// SrcPort and DstPort are zero for protocols that have none. Of an ICMP echo both
	// are the identifier.
	SrcPort, DstPort uint16
	// ICMPType is that of an ICMP or ICMPv6 message.
	ICMPType uint8
}

// TupleOf is the tuple of a packet of the model, see Of.
func TupleOf(k packet.Packet) Tuple {
	p := Of(k, Link{})
	return p.Tuple()
}

// Tuple of the packet as it is.
func (p *Packet) Tuple() Tuple {
	t := Tuple{Src: p.Src(), Dst: p.Dst(), Protocol: packet.Protocol(p.num(of.IPProto))}
	if s, d, ok := p.ports(); ok {
		t.SrcPort, t.DstPort = uint16(p.num(s)), uint16(p.num(d))
	}
	if typ, _, ok := p.icmp(); ok {
		t.SrcPort, t.DstPort, t.ICMPType = p.ICMPID, p.ICMPID, typ
	}
	return t
}

// Reverse is the tuple of what answers.
func (t Tuple) Reverse() Tuple {
	t.Src, t.Dst, t.SrcPort, t.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
	switch {
	case t.Protocol == packet.ICMP && t.Src.Is4():
		t.ICMPType = opposite(t.ICMPType, icmpAnswers)
	case t.Protocol == packet.ICMPv6 && t.Src.Is6():
		t.ICMPType = opposite(t.ICMPType, icmp6Answers)
	}
	return t
}

// String is "10.0.0.1:1 > 10.0.0.2:80/TCP".
func (t Tuple) String() string {
	s := packet.Packet{Src: t.Src, Dst: t.Dst, Protocol: t.Protocol, SrcPort: t.SrcPort, DstPort: t.DstPort}.String()
	if t.ICMPType != 0 {
		s += fmt.Sprintf(" type %d", t.ICMPType)
	}
	return s
}

func (t Tuple) compare(o Tuple) int {
	return cmp.Or(t.Src.Compare(o.Src), t.Dst.Compare(o.Dst), cmp.Compare(t.Protocol, o.Protocol),
		cmp.Compare(t.SrcPort, o.SrcPort), cmp.Compare(t.DstPort, o.DstPort), cmp.Compare(t.ICMPType, o.ICMPType))
}

// ICMP types (RFC 792, RFC 4443).
const (
	icmpUnreachable  = 3
	icmpQuench       = 4
	icmpRedirect     = 5
	icmpEcho         = 8
	icmpTimeExceeded = 11
	icmpParameter    = 12

	icmp6LastError = 4
	icmp6Echo      = 128
)

// icmpAnswers are the questions that have an answer, by their types.
var (
	icmpAnswers  = [][2]uint8{{icmpEcho, 0}, {13, 14}, {15, 16}}
	icmp6Answers = [][2]uint8{{icmp6Echo, 129}}
)

func opposite(typ uint8, pairs [][2]uint8) uint8 {
	for _, pair := range pairs {
		switch typ {
		case pair[0]:
			return pair[1]
		case pair[1]:
			return pair[0]
		}
	}
	return typ
}

// icmp is the type and the code of an ICMP or ICMPv6 message.
func (p *Packet) icmp() (typ, code uint8, ok bool) {
	switch {
	case p.has(of.ICMPType):
		return uint8(p.num(of.ICMPType)), uint8(p.num(of.ICMPCode)), true
	case p.has(of.ICMPv6Type):
		return uint8(p.num(of.ICMPv6Type)), uint8(p.num(of.ICMPv6Code)), true
	}
	return 0, 0, false
}

// isError reports whether the packet is an ICMP error, which quotes another packet.
func (p *Packet) isError() bool {
	typ, _, ok := p.icmp()
	if !ok {
		return false
	}
	if p.num(of.EthType) == of.EthTypeIPv6 {
		return typ >= 1 && typ <= icmp6LastError
	}
	switch typ {
	case icmpUnreachable, icmpQuench, icmpRedirect, icmpTimeExceeded, icmpParameter:
		return true
	}
	return false
}

// key is the tuple under which the connection tracker looks a packet up, and whether it
// is that of the packet that an ICMP error is about; false for what it cannot place
// (conn_key_extract).
func (p *Packet) key() (t Tuple, related, ok bool) {
	typ, code, isICMP := p.icmp()
	switch {
	case !p.isIP():
		return Tuple{}, false, false
	case !isICMP:
		return p.Tuple(), false, true
	case p.isError():
		// It has to go to whom the quoted packet came from.
		if p.Quoted == nil || p.Quoted.Src != p.Dst() {
			return Tuple{}, false, false
		}
		return p.Quoted.Reverse(), true, true
	}
	t = p.Tuple()
	return t, false, code == 0 && t.Reverse().ICMPType != typ
}

// begins reports whether a packet of no known connection may begin one (valid_new).
func (p *Packet) begins() bool {
	typ, _, isICMP := p.icmp()
	switch {
	case isICMP && p.num(of.EthType) == of.EthTypeIPv6:
		return typ == icmp6Echo
	case isICMP:
		return typ == icmpEcho || typ == 13 || typ == 15
	case p.has(of.TCPFlags):
		flags := p.num(of.TCPFlags)
		const answer = of.TCPSyn | of.TCPAck
		return validFlags(flags) && flags&answer != answer
	}
	return true
}

// validFlags are the combinations that TCP knows (tcp_invalid_flags).
func validFlags(flags uint64) bool {
	switch {
	case flags&of.TCPSyn != 0:
		if flags&(of.TCPRst|of.TCPFin) != 0 {
			return false
		}
	case flags&(of.TCPAck|of.TCPRst) == 0:
		return false
	}
	return flags&of.TCPAck != 0 || flags&(of.TCPFin|of.TCPPsh|of.TCPUrg) == 0
}
