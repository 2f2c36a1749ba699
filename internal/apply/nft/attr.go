package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Netlink and nf_tables numbers that golang.org/x/sys/unix does not have
// (linux/netlink.h, linux/netfilter/nf_tables.h).
const (
	attrNested  = 0x8000 // NLA_F_NESTED
	attrOrder   = 0x4000 // NLA_F_NET_BYTEORDER
	attrHeader  = 4
	maxAttrData = 0xffff - attrHeader

	tableOwner      = 7 // NFTA_TABLE_OWNER
	tableFlagOwner  = 0x2
	tableFlagLasts  = 0x4 // NFT_TABLE_F_PERSIST
	tableFlagsOwned = tableFlagOwner | tableFlagLasts

	setDescConcat = 2 // NFTA_SET_DESC_CONCAT
	setFieldLen   = 1 // NFTA_SET_FIELD_LEN
	setExpr       = 17
	setFlagConcat = 0x80
	elemKeyEnd    = 10 // NFTA_SET_ELEM_KEY_END

	maxAttr = 32
)

// attrs writes netlink attributes. Numbers are big-endian, as nf_tables wants.
type attrs struct{ b []byte }

func (a *attrs) header(typ uint16, size int) {
	a.b = binary.NativeEndian.AppendUint16(a.b, uint16(attrHeader+size))
	a.b = binary.NativeEndian.AppendUint16(a.b, typ)
}

func (a *attrs) pad() {
	for len(a.b)%4 != 0 {
		a.b = append(a.b, 0)
	}
}

func (a *attrs) bytes(typ uint16, data []byte) {
	a.header(typ, len(data))
	a.b = append(a.b, data...)
	a.pad()
}

// str writes a string with its terminating zero.
func (a *attrs) str(typ uint16, s string) {
	a.header(typ, len(s)+1)
	a.b = append(append(a.b, s...), 0)
	a.pad()
}

func (a *attrs) u8(typ uint16, n uint8) {
	a.header(typ, 1)
	a.b = append(a.b, n)
	a.pad()
}

func (a *attrs) u16(typ uint16, n uint16) {
	a.header(typ, 2)
	a.b = binary.BigEndian.AppendUint16(a.b, n)
	a.pad()
}

func (a *attrs) u32(typ uint16, n uint32) {
	a.header(typ, 4)
	a.b = binary.BigEndian.AppendUint32(a.b, n)
}

func (a *attrs) u64(typ uint16, n uint64) {
	a.header(typ, 8)
	a.b = binary.BigEndian.AppendUint64(a.b, n)
}

// nest writes what fill writes into one nested attribute. It must fit 64 KiB:
// all but lists of elements are far smaller, and those are split.
func (a *attrs) nest(typ uint16, fill func()) {
	start := len(a.b)
	a.header(typ|attrNested, 0)
	fill()
	binary.NativeEndian.PutUint16(a.b[start:], uint16(len(a.b)-start))
}

// data writes bytes as struct nft_data.
func (a *attrs) data(typ uint16, value []byte) {
	a.nest(typ, func() { a.bytes(unix.NFTA_DATA_VALUE, value) })
}

var errTruncated = errors.New("truncated netlink attribute")

// attr cuts the first attribute off b.
func attr(b []byte) (typ uint16, data, rest []byte, err error) {
	if len(b) < attrHeader {
		return 0, nil, nil, errTruncated
	}
	size := int(binary.NativeEndian.Uint16(b))
	typ = binary.NativeEndian.Uint16(b[2:]) &^ (attrNested | attrOrder)
	if size < attrHeader || size > len(b) {
		return 0, nil, nil, errTruncated
	}
	return typ, b[attrHeader:size], b[min((size+3)&^3, len(b)):], nil
}

// parsed holds the attributes of one level by type; those above maxAttr are
// unknown to us and left out, of repeated ones the last counts.
type parsed [maxAttr][]byte

func parse(b []byte) (p parsed, err error) {
	for len(b) > 0 {
		typ, data, rest, err := attr(b)
		if err != nil {
			return p, err
		}
		if int(typ) < len(p) {
			p[typ] = data
		}
		b = rest
	}
	return p, nil
}

// list calls fn for each attribute of one level.
func list(b []byte, fn func(data []byte) error) error {
	for len(b) > 0 {
		_, data, rest, err := attr(b)
		if err != nil {
			return err
		}
		if err := fn(data); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (p *parsed) has(typ int) bool { return p[typ] != nil }

// str is a string without its terminating zero; empty if absent.
func (p *parsed) str(typ int) string {
	b := p[typ]
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}

// num is a big-endian number of 1, 2, 4 or 8 bytes; zero if absent.
func (p *parsed) num(typ int) (uint64, error) {
	switch b := p[typ]; len(b) {
	case 0:
		return 0, nil
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), nil
	case 8:
		return binary.BigEndian.Uint64(b), nil
	default:
		return 0, fmt.Errorf("attribute %d has %d bytes, want a number", typ, len(b))
	}
}

// u32 is a number that must fit 32 bits.
func (p *parsed) u32(typ int) (uint32, error) {
	n, err := p.num(typ)
	if err == nil && n > 0xffffffff {
		err = fmt.Errorf("attribute %d is %d, want 32 bits", typ, n)
	}
	return uint32(n), err
}
