package openflow

import "encoding/binary"

func (f Field) size() int {
	if !f.valid() {
		return 0
	}
	return int(fieldTable[f].size)
}

// header32 is the field's header without mask.
func (f Field) header32() uint32 {
	if !f.valid() {
		return 0
	}
	info := &fieldTable[f]
	return uint32(info.class)<<16 | uint32(info.num)<<9 | uint32(info.size)
}

func appendFieldHeader(b []byte, f Field, masked bool, length int) []byte {
	h := f.header32()&^0xff | uint32(length)
	if masked {
		h |= 1 << 8
	}
	return be32(b, h)
}

// fieldHeader is what tells the headers of fields apart.
type fieldHeader struct {
	class uint16
	num   uint8
}

// fieldByHeader finds a field, whichever of its headers a switch uses.
func fieldByHeader(h uint32) (Field, bool) {
	class, num := uint16(h>>16), uint8(h>>9&0x7f)
	for f := fieldNone + 1; f < fieldEnd; f++ {
		if fieldTable[f].class == class && fieldTable[f].num == num {
			return f, true
		}
	}
	f, ok := legacyHeaders[fieldHeader{class, num}]
	return f, ok
}

// legacyHeaders are further headers of fields that have one in fieldTable. The
// switch uses them inside of actions that are older than the other header.
var legacyHeaders = map[fieldHeader]Field{
	{classNXM0, 1}: EthDst, {classNXM0, 2}: EthSrc, {classNXM0, 3}: EthType,
	{classNXM0, 6}: IPProto, {classNXM0, 7}: IPSrc, {classNXM0, 8}: IPDst,
	{classNXM0, 9}: TCPSrc, {classNXM0, 10}: TCPDst, {classNXM0, 11}: UDPSrc,
	{classNXM0, 12}: UDPDst, {classNXM0, 13}: ICMPType, {classNXM0, 14}: ICMPCode,
	{classNXM0, 15}: ARPOp, {classNXM0, 16}: ARPSPA, {classNXM0, 17}: ARPTPA,
	{classNXM, 16}: TunID, {classNXM, 17}: ARPSHA, {classNXM, 18}: ARPTHA,
	{classNXM, 19}: IPv6Src, {classNXM, 20}: IPv6Dst, {classNXM, 21}: ICMPv6Type,
	{classNXM, 22}: ICMPv6Code, {classNXM, 23}: NDTarget, {classNXM, 24}: NDSLL,
	{classNXM, 25}: NDTLL, {classNXM, 28}: IPECN, {classNXM, 34}: TCPFlags,
}

// appendMatch appends a match with its header and padding.
func appendMatch(b []byte, m Match) []byte {
	start := len(b)
	b = be16(b, 1) // OXM
	b = be16(b, 0)
	for _, t := range wireOrder(m) {
		size := t.Field.size()
		if t.Exact() {
			b = appendFieldHeader(b, t.Field, false, size)
			b = t.Value.appendBytes(b, size)
			continue
		}
		b = appendFieldHeader(b, t.Field, true, 2*size)
		b = t.Value.appendBytes(b, size)
		b = t.Mask.appendBytes(b, size)
	}
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start))
	return pad8(b, start)
}

// wireOrder sorts the terms such that a field comes after those that it needs,
// as the switch demands.
func wireOrder(m Match) []Term {
	ordered := make([]Term, 0, len(m))
	for _, rank := range [...]uint8{0, 1, 2, 3} {
		for _, t := range m {
			if wireRank(t.Field) == rank {
				ordered = append(ordered, t)
			}
		}
	}
	return ordered
}

func wireRank(f Field) uint8 {
	switch f {
	case EthType, CTState:
		return 0
	case IPProto, CTNwProto:
		return 1
	case ICMPType, ICMPv6Type:
		return 2
	}
	if f.valid() && fieldTable[f].need != needNothing {
		return 3
	}
	return 0
}
