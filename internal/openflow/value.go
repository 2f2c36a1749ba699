package openflow

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Value is an unsigned number of up to 128 bits, as wide as the widest field.
// Addresses are numbers in network byte order.
type Value struct{ Hi, Lo uint64 }

// Num is the number n.
func Num(n uint64) Value { return Value{Lo: n} }

// MACValue is an Ethernet address as a number.
func MACValue(mac [6]byte) Value {
	var b [8]byte
	copy(b[2:], mac[:])
	return Value{Lo: binary.BigEndian.Uint64(b[:])}
}

// AddrValue is an IP address as a number, of 32 bits for IPv4 and 128 for IPv6.
// The zero address gives zero; zones are dropped.
func AddrValue(a netip.Addr) Value {
	switch {
	case a.Is4():
		b := a.As4()
		return Value{Lo: uint64(binary.BigEndian.Uint32(b[:]))}
	case a.IsValid():
		b := a.As16()
		return Value{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
	}
	return Value{}
}

// Ones is the number whose lowest n bits are set.
func Ones(n int) Value {
	switch {
	case n <= 0:
		return Value{}
	case n <= 64:
		return Value{Lo: ^uint64(0) >> (64 - n)}
	case n < 128:
		return Value{Hi: ^uint64(0) >> (128 - n), Lo: ^uint64(0)}
	}
	return Value{^uint64(0), ^uint64(0)}
}

// IsZero says whether no bit is set.
func (v Value) IsZero() bool { return v == Value{} }

// And gives the bits that v and w have in common.
func (v Value) And(w Value) Value { return Value{v.Hi & w.Hi, v.Lo & w.Lo} }

// Or gives the bits that v or w have.
func (v Value) Or(w Value) Value { return Value{v.Hi | w.Hi, v.Lo | w.Lo} }

// Not gives the bits that v has not.
func (v Value) Not() Value { return Value{^v.Hi, ^v.Lo} }

// Lsh shifts v left by n bits.
func (v Value) Lsh(n int) Value {
	switch {
	case n <= 0:
		return v
	case n < 64:
		return Value{v.Hi<<n | v.Lo>>(64-n), v.Lo << n}
	case n < 128:
		return Value{Hi: v.Lo << (n - 64)}
	}
	return Value{}
}

// Rsh shifts v right by n bits.
func (v Value) Rsh(n int) Value {
	switch {
	case n <= 0:
		return v
	case n < 64:
		return Value{v.Hi >> n, v.Lo>>n | v.Hi<<(64-n)}
	case n < 128:
		return Value{Lo: v.Hi >> (n - 64)}
	}
	return Value{}
}

// BitLen is the number of bits that v needs.
func (v Value) BitLen() int {
	if v.Hi != 0 {
		return 64 + bits.Len64(v.Hi)
	}
	return bits.Len64(v.Lo)
}

// Compare orders numbers.
func (v Value) Compare(w Value) int {
	switch {
	case v == w:
		return 0
	case v.Hi < w.Hi || v.Hi == w.Hi && v.Lo < w.Lo:
		return -1
	}
	return 1
}

// Addr4 reads the lowest 32 bits as an IPv4 address.
func (v Value) Addr4() netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(v.Lo))
	return netip.AddrFrom4(b)
}

// Addr6 reads all bits as an IPv6 address.
func (v Value) Addr6() netip.Addr { return netip.AddrFrom16(v.bytes()) }

// MAC reads the lowest 48 bits as an Ethernet address.
func (v Value) MAC() [6]byte {
	b := v.bytes()
	return [6]byte(b[10:])
}

func (v Value) bytes() (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], v.Hi)
	binary.BigEndian.PutUint64(b[8:], v.Lo)
	return b
}

// appendBytes appends the lowest n bytes in network byte order.
func (v Value) appendBytes(b []byte, n int) []byte {
	all := v.bytes()
	return append(b, all[16-n:]...)
}

// valueOf reads up to 16 bytes in network byte order.
func valueOf(b []byte) Value {
	var all [16]byte
	copy(all[16-len(b):], b)
	return Value{binary.BigEndian.Uint64(all[:8]), binary.BigEndian.Uint64(all[8:])}
}

// prefixLen gives the length of the prefix that mask is, in a field of the given
// width, or false if the mask is not a prefix.
func (v Value) prefixLen(width int) (int, bool) {
	inverse := v.Not().And(Ones(width))
	n := width - inverse.BitLen()
	return n, inverse == Ones(width-n)
}
