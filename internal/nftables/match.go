package nftables

// Conntrack states of a packet, bits of CTState (nf_conntrack_common.h).
const (
	CTInvalid     uint32 = 1 << 0
	CTEstablished uint32 = 1 << 1
	CTRelated     uint32 = 1 << 2
	CTNew         uint32 = 1 << 3
	CTUntracked   uint32 = 1 << 6
)

// Conntrack status bits of CTStatus (IPS_*).
const (
	CTExpected  uint32 = 1 << 0
	CTSeenReply uint32 = 1 << 1
	CTAssured   uint32 = 1 << 2
	CTConfirmed uint32 = 1 << 3
	CTSNAT      uint32 = 1 << 4
	CTDNAT      uint32 = 1 << 5
	CTDying     uint32 = 1 << 9
)

// TCP flags, bits of TCPFlags.
const (
	TCPFin uint32 = 1 << 0
	TCPSyn uint32 = 1 << 1
	TCPRst uint32 = 1 << 2
	TCPPsh uint32 = 1 << 3
	TCPAck uint32 = 1 << 4
	TCPUrg uint32 = 1 << 5
	TCPEcn uint32 = 1 << 6
	TCPCwr uint32 = 1 << 7
)

// Values of fields that have no constructor of their own, ready for Match.Value.
var (
	IPv4 = number(TypeNFProto, nfIPv4)
	IPv6 = number(TypeNFProto, nfIPv6)

	DirOriginal = number(TypeCTDirection, 0)
	DirReply    = number(TypeCTDirection, 1)

	FibUnspec      = number(TypeFibAddrType, 0)
	FibUnicast     = number(TypeFibAddrType, 1)
	FibLocal       = number(TypeFibAddrType, 2)
	FibBroadcast   = number(TypeFibAddrType, 3)
	FibAnycast     = number(TypeFibAddrType, 4)
	FibMulticast   = number(TypeFibAddrType, 5)
	FibBlackhole   = number(TypeFibAddrType, 6)
	FibUnreachable = number(TypeFibAddrType, 7)
	FibProhibit    = number(TypeFibAddrType, 8)

	Missing = number(TypeBoolean, 0)
	Exists  = number(TypeBoolean, 1)

	PktHost      = number(TypePktType, 0)
	PktBroadcast = number(TypePktType, 1)
	PktMulticast = number(TypePktType, 2)
	PktOther     = number(TypePktType, 3)

	IfTypeEther    = number(TypeIfType, 1)
	IfTypeLoopback = number(TypeIfType, 772)
)

// Number is a single value of the field's type for fields of at most four bytes,
// such as CTZone, ICMPType or MetaMark. It is invalid for wider fields.
func Number(f Field, n uint32) Value {
	size := f.Type().Size()
	if size == 0 || size > 4 || size < 4 && n>>(8*size) != 0 {
		return Value{}
	}
	return number(f.Type(), n)
}

// Is matches a field that equals v or lies in it.
func Is(f Field, v Value) Match { return Match{Field: f, Value: v} }

// IsNot matches a field that differs from v and lies outside of it.
func IsNot(f Field, v Value) Match { return Match{Field: f, Op: Neq, Value: v} }

// AnyFlag matches if any of the bits is set in the field, such as
// "ct state established,related".
func AnyFlag(f Field, bits uint32) Match {
	return Match{Field: f, Mask: bits, Op: Neq, Value: Number(f, 0)}
}

// NoFlag matches if none of the bits is set in the field.
func NoFlag(f Field, bits uint32) Match {
	return Match{Field: f, Mask: bits, Value: Number(f, 0)}
}

// Masked matches if the bits of mask in the field equal those of value, such as
// "meta mark & 0x0000ff00 == 0x00001200" or "tcp flags syn / fin,syn,rst,ack".
func Masked(f Field, mask, value uint32) Match {
	return Match{Field: f, Mask: mask, Value: Number(f, value)}
}
