package packet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// MAC is an EUI-48 hardware address. The zero value means "none".
type MAC [6]byte

// IsZero reports whether m is the zero address.
func (m MAC) IsZero() bool { return m == MAC{} }

// String is the usual form, "0a:58:0a:80:00:05".
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText implements encoding.TextMarshaler; the zero MAC is empty text.
func (m MAC) MarshalText() ([]byte, error) {
	if m.IsZero() {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = MAC{}
		return nil
	}
	parsed, err := ParseMAC(string(text))
	if err != nil {
		return err
	}
	*m = parsed
	return nil
}

// ParseMAC reads the colon form of an EUI-48 address.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	raw, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	if err != nil || len(raw) != len(m) || len(s) != 17 {
		return MAC{}, fmt.Errorf("parse MAC address %q: want six hexadecimal bytes with colons", s)
	}
	copy(m[:], raw)
	return m, nil
}

// DefaultVPC is the name of the VPC that takes every namespace no other VPC
// selects.
const DefaultVPC = "default"

// PodMAC derives the hardware address of a pod's interface from its primary
// address, so that no MAC address is ever distributed: 0a:58 and the IPv4
// address in the default VPC, otherwise a hash of VPC and address
// (locally administered, unicast).
func PodMAC(vpc string, addr netip.Addr) MAC {
	if vpc == DefaultVPC && addr.Is4() {
		a := addr.As4()
		return MAC{0x0a, 0x58, a[0], a[1], a[2], a[3]}
	}
	sum := sha256.Sum256([]byte("pod\x00" + vpc + "\x00" + addr.String()))
	return MAC{0x0e, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// VTEPMAC derives the hardware address of a node's VXLAN device from the
// node's name. Every node's device needs an address of its own: the kernel
// silently drops frames whose source is the receiving device's address.
func VTEPMAC(node string) MAC {
	sum := sha256.Sum256([]byte("vtep\x00" + node))
	return MAC{0x06, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// VNI is a 24-bit VXLAN network identifier (RFC 7348 section 4). It belongs to
// exactly one VPC and names one tenant of it, or the VPC itself. Zero is "none".
type VNI uint32

// MaxVNI is the largest identifier that fits the wire.
const MaxVNI VNI = 1<<24 - 1

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that the model tells apart.
const (
	ICMP   Protocol = 1
	TCP    Protocol = 6
	UDP    Protocol = 17
	ICMPv6 Protocol = 58
	SCTP   Protocol = 132
)

// String is the name that Kubernetes uses, or the number.
func (p Protocol) String() string {
	switch p {
	case ICMP:
		return "ICMP"
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case ICMPv6:
		return "ICMPv6"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("IP-%d", uint8(p))
}

// ParseProtocol reads a protocol name, whatever its case.
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range []Protocol{TCP, UDP, SCTP, ICMP, ICMPv6} {
		if strings.EqualFold(s, p.String()) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %q: want TCP, UDP, SCTP, ICMP or ICMPv6", s)
}

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Protocol) UnmarshalText(text []byte) error {
	parsed, err := ParseProtocol(string(text))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}

// Packet is what the oracle judges: the headers that matter, in one direction.
type Packet struct {
	Src      netip.Addr `json:"src"`
	Dst      netip.Addr `json:"dst"`
	Protocol Protocol   `json:"protocol"`
	// SrcPort and DstPort are zero for protocols without ports.
	SrcPort uint16 `json:"srcPort,omitempty"`
	DstPort uint16 `json:"dstPort,omitempty"`
	// SYN says that a TCP segment opens a connection (SYN without ACK).
	SYN bool `json:"syn,omitempty"`
}

// String is "10.0.0.1:1234 > 10.0.0.2:80/TCP".
func (p Packet) String() string {
	return fmt.Sprintf("%s > %s/%s", netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort), p.Protocol)
}

// Reverse is the packet of the other direction of the same flow.
func (p Packet) Reverse() Packet {
	p.Src, p.Dst = p.Dst, p.Src
	p.SrcPort, p.DstPort = p.DstPort, p.SrcPort
	p.SYN = false
	return p
}
