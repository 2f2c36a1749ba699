package nftables

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"go4.org/netipx"
)

// Type is the type of one field of a key, or of one datum of a map.
type Type uint8

// The types that sets and maps can hold.
const (
	// TypeIPv4Addr is ipv4_addr, 4 bytes.
	TypeIPv4Addr Type = iota + 1
	// TypeIPv6Addr is ipv6_addr, 16 bytes.
	TypeIPv6Addr
	// TypeEtherAddr is ether_addr, 6 bytes.
	TypeEtherAddr
	// TypeInetProto is inet_proto, an IP protocol number.
	TypeInetProto
	// TypeInetService is inet_service, a port.
	TypeInetService
	// TypeIfName is ifname, the name of an interface.
	TypeIfName
	// TypeMark is mark, 32 bits of a packet or conntrack mark.
	TypeMark
	// TypeVerdict is verdict, only as the data of a map.
	TypeVerdict
)

// Types that occur in matches only.
const (
	TypeNFProto Type = iota + 32
	TypeCTState
	TypeCTDirection
	TypeCTStatus
	TypeCTZone
	TypeTCPFlags
	TypeICMPType
	TypeICMPv6Type
	TypeFibAddrType
	TypePktType
	TypeIfType
	// TypeBoolean is the answer of "fib … oif": exists (1) or missing (0).
	TypeBoolean
)

type typeInfo struct {
	name string
	size int
}

func (t Type) info() typeInfo {
	switch t {
	case TypeIPv4Addr:
		return typeInfo{"ipv4_addr", 4}
	case TypeIPv6Addr:
		return typeInfo{"ipv6_addr", 16}
	case TypeEtherAddr:
		return typeInfo{"ether_addr", 6}
	case TypeInetProto:
		return typeInfo{"inet_proto", 1}
	case TypeInetService:
		return typeInfo{"inet_service", 2}
	case TypeIfName:
		return typeInfo{"ifname", 16}
	case TypeMark:
		return typeInfo{"mark", 4}
	case TypeVerdict:
		return typeInfo{"verdict", 0}
	case TypeNFProto:
		return typeInfo{"nf_proto", 1}
	case TypeCTState:
		return typeInfo{"ct_state", 4}
	case TypeCTDirection:
		return typeInfo{"ct_dir", 1}
	case TypeCTStatus:
		return typeInfo{"ct_status", 4}
	case TypeCTZone:
		return typeInfo{"ct_zone", 2}
	case TypeTCPFlags:
		return typeInfo{"tcp_flag", 1}
	case TypeICMPType:
		return typeInfo{"icmp_type", 1}
	case TypeICMPv6Type:
		return typeInfo{"icmpv6_type", 1}
	case TypeFibAddrType:
		return typeInfo{"fib_addrtype", 4}
	case TypePktType:
		return typeInfo{"pkt_type", 1}
	case TypeIfType:
		return typeInfo{"iface_type", 2}
	case TypeBoolean:
		return typeInfo{"boolean", 4}
	}
	return typeInfo{"invalid", 0}
}

// String is the name that nft gives the type.
func (t Type) String() string { return t.info().name }

// Size is the width of the type in bytes; zero for verdicts and unknown types.
func (t Type) Size() int { return t.info().size }

// HostOrder says whether the kernel keeps the type as a number in the byte
// order of the machine. All others are strings of bytes in network order.
func (t Type) HostOrder() bool {
	switch t {
	case TypeMark, TypeCTState, TypeCTStatus, TypeCTZone, TypeFibAddrType, TypeIfType, TypeBoolean:
		return true
	}
	return false
}

// Value is one value, or one range of values, of a type. It is comparable. The
// zero Value is invalid; constructors return it for input that no value of the
// type can express, and Validate names the place.
type Value struct {
	Type Type
	// From and To are the bounds, both included and equal for a single value.
	// The first Type.Size() bytes count; numbers are big-endian whatever the
	// machine, so that the bytes sort as the values do.
	From, To [16]byte
}

// Addr is a single address, IPv4 or IPv6. Zones are refused.
func Addr(a netip.Addr) Value {
	a = a.Unmap()
	if !a.IsValid() || a.Zone() != "" {
		return Value{}
	}
	return addrRange(a, a)
}

// Prefix is all the addresses of a prefix; bits behind its length are ignored.
func Prefix(p netip.Prefix) Value {
	r := netipx.RangeOfPrefix(p.Masked())
	if !r.IsValid() {
		return Value{}
	}
	return AddrRange(r)
}

// AddrRange is all the addresses of a range.
func AddrRange(r netipx.IPRange) Value {
	if !r.IsValid() || r.From().Zone() != "" {
		return Value{}
	}
	return addrRange(r.From().Unmap(), r.To().Unmap())
}

func addrRange(from, to netip.Addr) Value {
	v := Value{Type: TypeIPv6Addr}
	if from.Is4() && to.Is4() {
		v.Type = TypeIPv4Addr
	}
	copy(v.From[:], from.AsSlice())
	copy(v.To[:], to.AsSlice())
	return v
}

// IfName is the name of an interface, 1 to 15 bytes.
func IfName(name string) Value {
	if name == "" || len(name) > 15 {
		return Value{}
	}
	v := Value{Type: TypeIfName}
	copy(v.From[:], name)
	v.To = v.From
	return v
}

// IfNamePrefix is every interface whose name begins with prefix ("flp*"), 1 to
// 14 bytes. Only a Match can hold it.
func IfNamePrefix(prefix string) Value {
	if prefix == "" || len(prefix) > 14 {
		return Value{}
	}
	v := Value{Type: TypeIfName, To: [16]byte(bytes.Repeat([]byte{0xff}, 16))}
	copy(v.From[:], prefix)
	copy(v.To[:], prefix)
	return v
}

// MAC is an Ethernet address.
func MAC(m [6]byte) Value {
	v := Value{Type: TypeEtherAddr}
	copy(v.From[:], m[:])
	v.To = v.From
	return v
}

// Proto is an IP protocol number.
func Proto(p uint8) Value { return number(TypeInetProto, uint32(p)) }

// Port is a port of TCP, UDP or SCTP.
func Port(p uint16) Value { return number(TypeInetService, uint32(p)) }

// PortRange is the ports from lo to hi, both included.
func PortRange(lo, hi uint16) Value {
	v := number(TypeInetService, uint32(lo))
	v.To = number(TypeInetService, uint32(hi)).From
	return v
}

// Mark is a packet or conntrack mark.
func Mark(m uint32) Value { return number(TypeMark, m) }

// number is a single value of a numeric type of up to four bytes.
func number(t Type, n uint32) Value {
	v := Value{Type: t}
	var wide [4]byte
	binary.BigEndian.PutUint32(wide[:], n)
	copy(v.From[:], wide[max(4-t.Size(), 0):])
	v.To = v.From
	return v
}

// Uint is the lower bound of a numeric value of up to four bytes; zero for wider
// types.
func (v Value) Uint() uint32 { return v.uint(v.From) }

// UintTo is the upper bound, as Uint.
func (v Value) UintTo() uint32 { return v.uint(v.To) }

func (v Value) uint(b [16]byte) uint32 {
	size := v.Type.Size()
	if size > 4 {
		return 0
	}
	var wide [4]byte
	copy(wide[4-size:], b[:size])
	return binary.BigEndian.Uint32(wide[:])
}

// IsRange says whether v holds more than one value.
func (v Value) IsRange() bool { return v.From != v.To }

// Contains says whether the value w lies within v. Values of different types
// contain nothing of each other.
func (v Value) Contains(w Value) bool {
	return v.Type == w.Type && bytes.Compare(v.From[:], w.From[:]) <= 0 && bytes.Compare(w.To[:], v.To[:]) <= 0
}

// overlaps says whether v and w of the same type have a value in common.
func (v Value) overlaps(w Value) bool {
	return bytes.Compare(v.From[:], w.To[:]) <= 0 && bytes.Compare(w.From[:], v.To[:]) <= 0
}

// PrefixBits is the length in bits of the prefix that v covers exactly, and
// whether there is one. A single value is a prefix of its full width.
func (v Value) PrefixBits() (int, bool) {
	size := v.Type.Size()
	bits := 0
	for bits < size*8 && bit(v.From, bits) == bit(v.To, bits) {
		bits++
	}
	for i := bits; i < size*8; i++ {
		if bit(v.From, i) != 0 || bit(v.To, i) != 1 {
			return 0, false
		}
	}
	return bits, true
}

func bit(b [16]byte, i int) byte { return b[i/8] >> (7 - i%8) & 1 }

// valid says whether v is a well-formed value of its type.
func (v Value) valid() bool {
	size := v.Type.Size()
	return size > 0 && bytes.Compare(v.From[:], v.To[:]) <= 0 &&
		(v.Type == TypeIfName || [16]byte{} == tail(v.From, size) && [16]byte{} == tail(v.To, size))
}

// tail is what of b lies behind its first size bytes.
func tail(b [16]byte, size int) (rest [16]byte) {
	copy(rest[:], b[size:])
	return rest
}
