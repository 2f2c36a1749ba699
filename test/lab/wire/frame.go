package wire

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Ethernet types and IP protocols.
const (
	EtherIPv4 = 0x0800
	EtherARP  = 0x0806
	EtherVLAN = 0x8100
	EtherQinQ = 0x88a8
	EtherIPv6 = 0x86dd

	ProtoHopByHop = 0
	ProtoICMP     = 1
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoRouting  = 43
	ProtoFragment = 44
	ProtoICMPv6   = 58
	ProtoDestOpts = 60
)

// Ethernet is a frame, padded to what Ethernet wants.
func Ethernet(dst, src packet.MAC, typ uint16, payload []byte) []byte {
	return slices.Concat(dst[:], src[:], binary.BigEndian.AppendUint16(nil, typ), payload)
}

// VLAN puts an 802.1Q tag before a payload of the given type.
func VLAN(id, typ uint16, payload []byte) []byte {
	out := binary.BigEndian.AppendUint16(nil, id)
	return append(binary.BigEndian.AppendUint16(out, typ), payload...)
}

// Frame is an IP packet in Ethernet.
func Frame(dst, src packet.MAC, ip []byte) []byte {
	typ := uint16(EtherIPv4)
	if ip[0]>>4 == 6 {
		typ = EtherIPv6
	}
	return Ethernet(dst, src, typ, ip)
}

// IP is an IP packet of the addresses' family; proto is its next header.
func IP(src, dst netip.Addr, proto uint8, payload []byte) []byte {
	if src.Is4() {
		return IPv4(src, dst, proto, 0, payload)
	}
	h := []byte{0x60, 0, 0, 0}
	h = binary.BigEndian.AppendUint16(h, uint16(len(payload)))
	h = append(h, proto, 255)
	return slices.Concat(h, src.AsSlice(), dst.AsSlice(), payload)
}

// IPv4 is an IPv4 packet, or a fragment: frag are its flags and offset.
func IPv4(src, dst netip.Addr, proto uint8, frag uint16, payload []byte) []byte {
	h := []byte{0x45, 0}
	h = binary.BigEndian.AppendUint16(h, uint16(20+len(payload)))
	h = append(h, 0x46, 0x4c) // identification
	h = binary.BigEndian.AppendUint16(h, frag)
	h = append(h, 64, proto, 0, 0)
	h = slices.Concat(h, src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, payload...)
}

// Extension is an IPv6 header of 8 bytes that says nothing: hop-by-hop or
// destination options with padding.
func Extension(next uint8, payload []byte) []byte {
	return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, payload...)
}

// Fragment6 is the IPv6 fragment header; offset counts 8 bytes.
func Fragment6(next uint8, offset uint16, more bool, payload []byte) []byte {
	h := []byte{next, 0}
	if more {
		h = binary.BigEndian.AppendUint16(h, offset<<3|1)
	} else {
		h = binary.BigEndian.AppendUint16(h, offset<<3)
	}
	return slices.Concat(h, []byte{0x46, 0x4c, 0, 1}, payload)
}

func UDP(src, dst netip.Addr, sport, dport uint16, payload []byte) []byte {
	h := binary.BigEndian.AppendUint16(nil, sport)
	h = binary.BigEndian.AppendUint16(h, dport)
	h = binary.BigEndian.AppendUint16(h, uint16(8+len(payload)))
	h = append(h, 0, 0)
	h = append(h, payload...)
	binary.BigEndian.PutUint16(h[6:], checksum(pseudo(src, dst, ProtoUDP, h)))
	return h
}

// ICMP is an ICMP or ICMPv6 message; rest are the 4 bytes after the checksum.
func ICMP(src, dst netip.Addr, typ, code uint8, rest uint32, body []byte) []byte {
	h := []byte{typ, code, 0, 0}
	h = binary.BigEndian.AppendUint32(h, rest)
	h = append(h, body...)
	sum := checksum(h)
	if src.Is6() {
		sum = checksum(pseudo(src, dst, ProtoICMPv6, h))
	}
	binary.BigEndian.PutUint16(h[2:], sum)
	return h
}

// pseudo is what the checksums of UDP and ICMPv6 cover.
func pseudo(src, dst netip.Addr, proto uint8, body []byte) []byte {
	p := slices.Concat(src.AsSlice(), dst.AsSlice())
	p = binary.BigEndian.AppendUint32(p, uint32(len(body)))
	return append(append(p, 0, 0, 0, proto), body...)
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// VXLAN is the VXLAN header (RFC 7348) and the inner frame.
func VXLAN(vni packet.VNI, inner []byte) []byte {
	h := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, uint32(vni)<<8)
	return append(h, inner...)
}

// ARP is an ARP packet for Ethernet and IPv4; op 1 asks, 2 answers.
func ARP(op uint16, sha packet.MAC, spa netip.Addr, tha packet.MAC, tpa netip.Addr) []byte {
	h := []byte{0, 1, 8, 0, 6, 4}
	h = binary.BigEndian.AppendUint16(h, op)
	return slices.Concat(h, sha[:], spa.AsSlice(), tha[:], tpa.AsSlice())
}

// Flags of TCP, RFC 9293 section 3.1.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// TCP is a segment with flags.
func TCP(src, dst netip.Addr, sport, dport uint16, flags uint8, payload []byte) []byte {
	h := binary.BigEndian.AppendUint16(nil, sport)
	h = binary.BigEndian.AppendUint16(h, dport)
	h = append(h, 1, 2, 3, 4, 0, 0, 0, 0) // sequence and acknowledgment numbers
	h = append(h, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	h = append(h, payload...)
	binary.BigEndian.PutUint16(h[16:], checksum(pseudo(src, dst, ProtoTCP, h)))
	return h
}

// Split makes two fragments of an IP payload, cut at a multiple of 8 bytes. Fragments
// with the same id are parts of the same packet.
func Split(src, dst netip.Addr, proto uint8, payload []byte, at int, id uint16) [2][]byte {
	if src.Is4() {
		const more = 0x2000
		out := [2][]byte{IPv4(src, dst, proto, more, payload[:at]), IPv4(src, dst, proto, uint16(at/8), payload[at:])}
		for _, b := range out {
			h := b[:20]
			binary.BigEndian.PutUint16(h[4:], id)
			binary.BigEndian.PutUint16(h[10:], 0)
			binary.BigEndian.PutUint16(h[10:], checksum(h))
		}
		return out
	}
	out := [2][]byte{
		IP(src, dst, ProtoFragment, Fragment6(proto, 0, true, payload[:at])),
		IP(src, dst, ProtoFragment, Fragment6(proto, uint16(at/8), false, payload[at:])),
	}
	for _, b := range out {
		binary.BigEndian.PutUint32(b[44:], uint32(id))
	}
	return out
}
