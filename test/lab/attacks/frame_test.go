package attacks

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Ethernet types and IP protocols.
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
	etherIPv6 = 0x86dd

	protoHopByHop = 0
	protoICMP     = 1
	protoUDP      = 17
	protoFragment = 44
	protoICMPv6   = 58
	protoDestOpts = 60
)

var broadcast = packet.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ethernet is a frame, padded to what Ethernet wants.
func ethernet(dst, src packet.MAC, typ uint16, payload []byte) []byte {
	return slices.Concat(dst[:], src[:], binary.BigEndian.AppendUint16(nil, typ), payload)
}

// vlan puts an 802.1Q tag before a payload of the given type.
func vlan(id, typ uint16, payload []byte) []byte {
	out := binary.BigEndian.AppendUint16(nil, id)
	return append(binary.BigEndian.AppendUint16(out, typ), payload...)
}

// frame is an IP packet in Ethernet.
func frame(dst, src packet.MAC, ip []byte) []byte {
	typ := uint16(etherIPv4)
	if ip[0]>>4 == 6 {
		typ = etherIPv6
	}
	return ethernet(dst, src, typ, ip)
}

// ip is an IP packet of the addresses' family; proto is its next header.
func ip(src, dst netip.Addr, proto uint8, payload []byte) []byte {
	if src.Is4() {
		return ipv4(src, dst, proto, 0, payload)
	}
	h := []byte{0x60, 0, 0, 0}
	h = binary.BigEndian.AppendUint16(h, uint16(len(payload)))
	h = append(h, proto, 255)
	return slices.Concat(h, src.AsSlice(), dst.AsSlice(), payload)
}

// ipv4 is an IPv4 packet, or a fragment: frag are its flags and offset.
func ipv4(src, dst netip.Addr, proto uint8, frag uint16, payload []byte) []byte {
	h := []byte{0x45, 0}
	h = binary.BigEndian.AppendUint16(h, uint16(20+len(payload)))
	h = append(h, 0x46, 0x4c) // identification
	h = binary.BigEndian.AppendUint16(h, frag)
	h = append(h, 64, proto, 0, 0)
	h = slices.Concat(h, src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, payload...)
}

// extension is an IPv6 header of 8 bytes that says nothing: hop-by-hop or
// destination options with padding.
func extension(next uint8, payload []byte) []byte {
	return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, payload...)
}

// fragment6 is the IPv6 fragment header; offset counts 8 bytes.
func fragment6(next uint8, offset uint16, more bool, payload []byte) []byte {
	h := []byte{next, 0}
	if more {
		h = binary.BigEndian.AppendUint16(h, offset<<3|1)
	} else {
		h = binary.BigEndian.AppendUint16(h, offset<<3)
	}
	return slices.Concat(h, []byte{0x46, 0x4c, 0, 1}, payload)
}

func udp(src, dst netip.Addr, sport, dport uint16, payload []byte) []byte {
	h := binary.BigEndian.AppendUint16(nil, sport)
	h = binary.BigEndian.AppendUint16(h, dport)
	h = binary.BigEndian.AppendUint16(h, uint16(8+len(payload)))
	h = append(h, 0, 0)
	h = append(h, payload...)
	binary.BigEndian.PutUint16(h[6:], checksum(pseudo(src, dst, protoUDP, h)))
	return h
}

// icmp is an ICMP or ICMPv6 message; rest are the 4 bytes after the checksum.
func icmp(src, dst netip.Addr, typ, code uint8, rest uint32, body []byte) []byte {
	h := []byte{typ, code, 0, 0}
	h = binary.BigEndian.AppendUint32(h, rest)
	h = append(h, body...)
	sum := checksum(h)
	if src.Is6() {
		sum = checksum(pseudo(src, dst, protoICMPv6, h))
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

// vxlan is the VXLAN header (RFC 7348) and the inner frame.
func vxlan(vni packet.VNI, inner []byte) []byte {
	h := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, uint32(vni)<<8)
	return append(h, inner...)
}

// arp is an ARP packet for Ethernet and IPv4; op 1 asks, 2 answers.
func arp(op uint16, sha packet.MAC, spa netip.Addr, tha packet.MAC, tpa netip.Addr) []byte {
	h := []byte{0, 1, 8, 0, 6, 4}
	h = binary.BigEndian.AppendUint16(h, op)
	return slices.Concat(h, sha[:], spa.AsSlice(), tha[:], tpa.AsSlice())
}
