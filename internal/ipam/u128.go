package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// u128 is an address as a number: IPv4 in the low 32 bits.
type u128 struct{ hi, lo uint64 }

func number(a netip.Addr) u128 {
	if a.Is4() {
		b := a.As4()
		return u128{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return u128{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

// addr is the inverse of number for a family.
func (n u128) addr(f Family) netip.Addr {
	if f == IPv4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

func (n u128) add(o u128) u128 {
	lo, carry := bits.Add64(n.lo, o.lo, 0)
	hi, _ := bits.Add64(n.hi, o.hi, carry)
	return u128{hi, lo}
}

func (n u128) sub(o u128) u128 {
	lo, borrow := bits.Sub64(n.lo, o.lo, 0)
	hi, _ := bits.Sub64(n.hi, o.hi, borrow)
	return u128{hi, lo}
}

func (n u128) shl(k uint) u128 {
	if k >= 64 {
		return u128{hi: n.lo << (k - 64)}
	}
	return u128{hi: n.hi<<k | n.lo>>(64-k), lo: n.lo << k}
}

func (n u128) shr(k uint) u128 {
	if k >= 64 {
		return u128{lo: n.hi >> (k - 64)}
	}
	return u128{hi: n.hi >> k, lo: n.lo>>k | n.hi<<(64-k)}
}
