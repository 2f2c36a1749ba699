package sim

import (
	"fmt"
	"net/netip"
	"strings"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// fieldCount is one more than the last field.
const fieldCount = int(of.TCPFlags) + 1

// Packet is what flows can read of a packet, by field. It is a value: a walk changes its
// own copy. The zero Packet is an Ethernet frame of type 0 from no port.
type Packet struct {
	// Length in bytes, with the Ethernet header, for check_pkt_larger.
	Length int
	// ICMPID is the identifier of an ICMP or ICMPv6 echo; no flow can read it.
	ICMPID uint16
	// Quoted is the packet that an ICMP error is about, as the error's sender saw it.
	Quoted *Tuple

	// values of narrow fields; a wide register is made of them.
	values [fieldCount]of.Value
}

// Make makes a packet that has the values of a match, as ofproto/trace does. What the
// match leaves open is zero.
func Make(m of.Match) Packet {
	var p Packet
	for _, t := range m {
		p.Set(t.Field, t.Value.And(t.Mask))
	}
	return p
}

// Link is the port that a packet comes from, and the addresses of its Ethernet header.
type Link struct {
	InPort   of.Port
	Src, Dst packet.MAC
}

// Of makes a packet of the model one that flows can read: a TCP segment has SYN
// alone or ACK alone, an ICMP packet is an echo request, the TTL is 64.
func Of(k packet.Packet, from Link) Packet {
	var p Packet
	p.set(of.InPort, uint64(from.InPort))
	p.Set(of.EthSrc, of.MACValue(from.Src))
	p.Set(of.EthDst, of.MACValue(from.Dst))
	ethType, src, dst := uint64(of.EthTypeIPv6), of.IPv6Src, of.IPv6Dst
	if k.Src.Is4() {
		ethType, src, dst = of.EthTypeIPv4, of.IPSrc, of.IPDst
	}
	p.set(of.EthType, ethType)
	p.Set(src, of.AddrValue(k.Src))
	p.Set(dst, of.AddrValue(k.Dst))
	p.set(of.IPProto, uint64(k.Protocol))
	p.set(of.IPTTL, defaultTTL)
	switch k.Protocol {
	case packet.TCP:
		p.set(of.TCPFlags, of.TCPAck)
		if k.SYN {
			p.set(of.TCPFlags, of.TCPSyn)
		}
	case packet.ICMP:
		p.set(of.ICMPType, icmpEcho)
	case packet.ICMPv6:
		p.set(of.ICMPv6Type, icmp6Echo)
	}
	if s, d, ok := p.ports(); ok {
		p.set(s, uint64(k.SrcPort))
		p.set(d, uint64(k.DstPort))
	}
	return p
}

const defaultTTL = 64

// Plain is the inverse of Of, as far as the model knows packets. What is not IP has no
// addresses.
func (p *Packet) Plain() packet.Packet {
	const opening = of.TCPSyn | of.TCPAck
	out := packet.Packet{Src: p.Src(), Dst: p.Dst(), Protocol: packet.Protocol(p.num(of.IPProto))}
	out.SYN = out.Protocol == packet.TCP && p.num(of.TCPFlags)&opening == of.TCPSyn
	if s, d, ok := p.ports(); ok {
		out.SrcPort, out.DstPort = uint16(p.num(s)), uint16(p.num(d))
	}
	return out
}

// Src is the source address, the zero Addr of what is not IP.
func (p *Packet) Src() netip.Addr { return p.addr(of.IPSrc, of.IPv6Src) }

// Dst is the destination address, the zero Addr of what is not IP.
func (p *Packet) Dst() netip.Addr { return p.addr(of.IPDst, of.IPv6Dst) }

func (p *Packet) addr(f4, f6 of.Field) netip.Addr {
	switch p.num(of.EthType) {
	case of.EthTypeIPv4:
		return p.Get(f4).Addr4()
	case of.EthTypeIPv6:
		return p.Get(f6).Addr6()
	}
	return netip.Addr{}
}

// Get reads a field. One that the packet does not have is zero.
func (p *Packet) Get(f of.Field) of.Value {
	if f == of.InPort16 {
		return of.Num(port16(of.Port(p.num(of.InPort))))
	}
	if parts := f.Parts(); parts != nil {
		var v of.Value
		for _, part := range parts {
			v = v.Lsh(32).Or(p.Get(part))
		}
		return v
	}
	if int(f) >= fieldCount {
		return of.Value{}
	}
	return p.values[f]
}

// Set writes a field, what is wider than it is cut off.
func (p *Packet) Set(f of.Field, v of.Value) {
	v = v.And(of.Ones(f.Bits()))
	if f == of.InPort16 {
		p.values[of.InPort] = of.Num(uint64(port32(v.Lo)))
		return
	}
	if parts := f.Parts(); parts != nil {
		for i, part := range parts {
			p.Set(part, v.Rsh(32*(len(parts)-1-i)))
		}
		return
	}
	if int(f) < fieldCount {
		p.values[f] = v
	}
}

// setAddr writes an address of either family to one of two fields.
func (p *Packet) setAddr(f4, f6 of.Field, a netip.Addr) {
	if a.Is4() {
		p.Set(f4, of.AddrValue(a))
	} else {
		p.Set(f6, of.AddrValue(a))
	}
}

func (p *Packet) set(f of.Field, v uint64) { p.Set(f, of.Num(v)) }

func (p *Packet) num(f of.Field) uint64 { return p.Get(f).Lo }

// part reads a part of a field.
func (p *Packet) part(s of.Subfield) of.Value {
	return p.Get(s.Field).And(s.Mask()).Rsh(int(s.Offset))
}

// write sets the bits of mask of a field to those of v.
func (p *Packet) write(f of.Field, v, mask of.Value) {
	p.Set(f, p.Get(f).And(mask.Not()).Or(v.And(mask)))
}

// ports are the fields that hold the ports, if the protocol has some and the packet
// is not a later fragment.
func (p *Packet) ports() (src, dst of.Field, ok bool) {
	if !p.isIP() || p.num(of.IPFrag)&of.FragLater != 0 {
		return 0, 0, false
	}
	switch p.num(of.IPProto) {
	case of.ProtoTCP:
		return of.TCPSrc, of.TCPDst, true
	case of.ProtoUDP:
		return of.UDPSrc, of.UDPDst, true
	case of.ProtoSCTP:
		return of.SCTPSrc, of.SCTPDst, true
	}
	return 0, 0, false
}

func (p *Packet) isIP() bool {
	t := p.num(of.EthType)
	return t == of.EthTypeIPv4 || t == of.EthTypeIPv6
}

// has reports whether the packet has a field at all (the prerequisites of
// ovs-fields(7)).
func (p *Packet) has(f of.Field) bool {
	ethType, protocol := p.num(of.EthType), p.num(of.IPProto)
	first := p.isIP() && p.num(of.IPFrag)&of.FragLater == 0
	icmp6 := ethType == of.EthTypeIPv6 && protocol == of.ProtoICMPv6 && first
	nd := func(typ uint64) bool {
		return icmp6 && p.num(of.ICMPv6Type) == typ && p.num(of.ICMPv6Code) == 0
	}
	switch f {
	case of.IPSrc, of.IPDst:
		return ethType == of.EthTypeIPv4
	case of.IPv6Src, of.IPv6Dst:
		return ethType == of.EthTypeIPv6
	case of.IPProto, of.IPDSCP, of.IPECN, of.IPTTL, of.IPFrag:
		return p.isIP()
	case of.ARPSPA, of.ARPTPA, of.ARPOp, of.ARPSHA, of.ARPTHA:
		return ethType == of.EthTypeARP || ethType == of.EthTypeRARP
	case of.TCPSrc, of.TCPDst, of.TCPFlags:
		return first && protocol == of.ProtoTCP
	case of.UDPSrc, of.UDPDst:
		return first && protocol == of.ProtoUDP
	case of.SCTPSrc, of.SCTPDst:
		return first && protocol == of.ProtoSCTP
	case of.ICMPType, of.ICMPCode:
		return first && ethType == of.EthTypeIPv4 && protocol == of.ProtoICMP
	case of.ICMPv6Type, of.ICMPv6Code:
		return icmp6
	case of.NDSLL:
		return nd(of.NeighborSolicit)
	case of.NDTLL:
		return nd(of.NeighborAdvert)
	case of.NDTarget, of.NDReserved, of.NDOptionsType:
		return nd(of.NeighborSolicit) || nd(of.NeighborAdvert)
	}
	return true
}

// port16 is the number that OpenFlow 1.0 has for a port, and port32 the one of today.
func port16(p of.Port) uint64 { return uint64(p) & 0xffff }

func port32(v uint64) of.Port {
	const firstReserved = 0xff00
	if v >= firstReserved {
		v |= 0xffff0000
	}
	return of.Port(v)
}

// Match demands what the packet has; fields that are zero are left out.
func (p *Packet) Match() of.Match {
	var terms []of.Term
	for i := 1; i < fieldCount; i++ {
		if f := of.Field(i); !p.values[i].IsZero() && p.has(f) {
			terms = append(terms, of.EqValue(f, p.values[i]))
		}
	}
	return of.NewMatch(terms...)
}

// Flow is the packet as ofproto/trace (ovs-vswitchd(8)) takes it, which wants to hear of
// udp_src and not of tp_src.
func (p *Packet) Flow() string {
	names := map[string]of.Field{}
	if src, dst, ok := p.ports(); ok {
		names["tp_src"], names["tp_dst"] = src, dst
	}
	if p.has(of.ICMPv6Type) {
		names["icmp_type"], names["icmp_code"] = of.ICMPv6Type, of.ICMPv6Code
	}
	items := strings.Split(p.Match().String(), ",")
	for i, item := range items {
		name, value, _ := strings.Cut(item, "=")
		if f, ok := names[name]; ok {
			items[i] = f.String() + "=" + value
		}
	}
	return strings.Join(items, ",")
}

// String is the packet as a match.
func (p Packet) String() string {
	s := p.Match().String()
	if p.Quoted != nil {
		s += fmt.Sprintf(" about %s", p.Quoted)
	}
	return s
}
