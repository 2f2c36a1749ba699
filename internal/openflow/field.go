package openflow

import "slices"

// Field is a field of a packet or of its metadata. The order is the one in which
// ovs-ofctl prints a match, so that a sorted match prints as it is.
type Field uint8

// The fields, under the names that ovs-fields(7) gives them.
const (
	fieldNone Field = iota
	PktMark
	ConjID
	CTState
	CTZone
	CTMark
	CTLabel
	CTNwSrc
	CTIPv6Src
	CTNwDst
	CTIPv6Dst
	CTNwProto
	CTTpSrc
	CTTpDst
	Reg0
	Reg1
	Reg2
	Reg3
	Reg4
	Reg5
	Reg6
	Reg7
	Reg8
	Reg9
	Reg10
	Reg11
	Reg12
	Reg13
	Reg14
	Reg15
	// XReg0 is Reg0 (its upper half) and Reg1; XReg1 is Reg2 and Reg3, …
	XReg0
	XReg1
	XReg2
	XReg3
	XReg4
	XReg5
	XReg6
	XReg7
	// XXReg0 is XReg0 (its upper half) and XReg1, …
	XXReg0
	XXReg1
	XXReg2
	XXReg3
	TunID
	TunSrc
	TunDst
	TunIPv6Src
	TunIPv6Dst
	TunFlags
	Metadata
	// InPort is the port that the packet came from, as a match sees it.
	InPort
	// InPort16 is the same in 16 bits, as actions see it. They may set it: to 0,
	// so that the packet can go back through an Output to where it came from.
	InPort16
	// VLANVID is the VLAN id with the bit VLANPresent; zero, all bits matched,
	// is a packet without a VLAN header.
	VLANVID
	EthSrc
	EthDst
	// EthType is the type of what the VLAN headers, if any, hold.
	EthType
	IPSrc
	IPDst
	IPv6Src
	IPv6Dst
	ARPSPA
	ARPTPA
	// IPProto is the transport protocol of IPv4 or IPv6.
	IPProto
	ARPOp
	ARPSHA
	ARPTHA
	// IPDSCP is the upper six bits of TOS or traffic class, as a number of six bits.
	IPDSCP
	IPECN
	// IPTTL is the TTL or the hop limit.
	IPTTL
	IPFrag
	ICMPType
	ICMPCode
	ICMPv6Type
	ICMPv6Code
	NDTarget
	NDSLL
	NDTLL
	// NDReserved is what follows the checksum of a neighbour advertisement: its flags.
	NDReserved
	// NDOptionsType is the type of the first option, which NDSLL or NDTLL is in.
	NDOptionsType
	TCPSrc
	TCPDst
	UDPSrc
	UDPDst
	SCTPSrc
	SCTPDst
	TCPFlags
	fieldEnd
)

// VLANPresent is the bit of VLANVID that says that there is a VLAN header.
const VLANPresent = 0x1000

// Reg is register n of the sixteen that have 32 bits; fieldNone, which Validate
// refuses, if there is no such register.
func Reg(n int) Field { return nth(Reg0, n, 16) }

// XReg is register n of the eight that have 64 bits, see Reg.
func XReg(n int) Field { return nth(XReg0, n, 8) }

// XXReg is register n of the four that have 128 bits, see Reg.
func XXReg(n int) Field { return nth(XXReg0, n, 4) }

func nth(first Field, n, count int) Field {
	if n < 0 || n >= count {
		return fieldNone
	}
	return first + Field(n)
}

// Bits is the width of the field, 0 if there is no such field.
func (f Field) Bits() int {
	if !f.valid() {
		return 0
	}
	return int(fieldTable[f].bits)
}

// String is the field's name as set_field prints it.
func (f Field) String() string {
	if !f.valid() {
		return "no-field"
	}
	return fieldTable[f].name
}

// Writable says whether an action may change the field.
func (f Field) Writable() bool { return f.valid() && !fieldTable[f].readOnly }

// Maskable says whether a match may look at a part of the field.
func (f Field) Maskable() bool { return f.valid() && !fieldTable[f].exactOnly }

func (f Field) valid() bool { return f > fieldNone && f < fieldEnd }

func (f Field) full() Value { return Ones(f.Bits()) }

// Parts gives the 32-bit registers that a wide register is made of, highest
// first, and nil for any other field.
func (f Field) Parts() []Field {
	switch {
	case f >= XReg0 && f <= XReg7:
		r := Reg0 + 2*(f-XReg0)
		return []Field{r, r + 1}
	case f >= XXReg0 && f <= XXReg3:
		r := Reg0 + 4*(f-XXReg0)
		return []Field{r, r + 1, r + 2, r + 3}
	}
	return nil
}

// Subfield is a run of bits of a field. Bits 0 stands for all from Offset on.
type Subfield struct {
	Field Field
	// Offset is the number of the lowest bit.
	Offset uint8
	Bits   uint8
}

// Whole is a field from its first bit to its last.
func Whole(f Field) Subfield { return Subfield{Field: f, Bits: uint8(f.Bits())} }

// Range is the bits from to to, both included, as in NXM_NX_REG0[from..to].
func Range(f Field, from, to uint8) Subfield {
	return Subfield{Field: f, Offset: from, Bits: to - from + 1}
}

// Width is the number of bits.
func (s Subfield) Width() int {
	if s.Bits != 0 {
		return int(s.Bits)
	}
	return max(0, s.Field.Bits()-int(s.Offset))
}

// Mask has a one for each bit of the subfield, in its place in the field.
func (s Subfield) Mask() Value { return Ones(s.Width()).Lsh(int(s.Offset)) }

// fieldByName finds a field by any name that ovs-fields(7) gives it, but those of its
// headers.
func fieldByName(name string) (Field, bool) {
	if i := slices.IndexFunc(fieldAliases, func(a fieldAlias) bool { return a.name == name }); i >= 0 {
		return fieldAliases[i].field, true
	}
	for f := fieldNone + 1; f < fieldEnd; f++ {
		if fieldTable[f].name == name {
			return f, true
		}
	}
	return fieldNone, false
}
