package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctTupleOrig  = 1
	ctTupleReply = 2
	ctProtoInfo  = 4
	ctMark       = 8
	ctID         = 12
	ctZone       = 18
	ctMarkMask   = 21
	ctFilter     = 25

	ctTupleIP    = 1
	ctTupleProto = 2

	ctIPv4Src = 1
	ctIPv4Dst = 2
	ctIPv6Src = 3
	ctIPv6Dst = 4

	ctProtoNum     = 1
	ctProtoSrcPort = 2
	ctProtoDstPort = 3

	ctProtoInfoTCP = 1
	ctTCPState     = 1

	// States of TCP (linux/netfilter/nf_conntrack_tcp.h) in which nobody sends any more. In
	// FIN_WAIT one end has closed, and conntrack has seen nothing of the other since: it
	// would see an ACK soon if that one went on.
	tcpFinWait = 4
	tcpLastAck = 6
	tcpClose   = 8 // TIME_WAIT, 7, is between

	// Since Linux 5.8: which fields of a tuple a dump is filtered by.
	ctFilterOrigFlags  = 1
	ctFilterReplyFlags = 2
	ctFilterIPSrc      = 1 << 0

	// Of the statistics.
	ctStatsEntries = 1
)

const (
	attrHeader = 4
	attrNested = 1 << 15
	attrType   = 1<<14 - 1
)

// entry is a Flow with what the kernel finds it by. The byte slices belong to the
// receive buffer.
type entry struct {
	Flow
	// tuple, zone and id are the values of the entry's attributes as they came.
	tuple, zone, id []byte
}

// attributes calls fn for each attribute; it reports whether they were well formed.
func attributes(b []byte, fn func(typ uint16, value []byte) bool) bool {
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrHeader || size > len(b) || !fn(binary.NativeEndian.Uint16(b[2:])&attrType, b[attrHeader:size]) {
			return false
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return true
}

// parse reads the attributes of an entry.
func parse(b []byte) (e entry, ok bool) {
	var orig, reply tuple
	ok = attributes(b, func(typ uint16, v []byte) (ok bool) {
		switch typ {
		case ctTupleOrig:
			e.tuple = v
			orig, ok = parseTuple(v)
			return ok
		case ctTupleReply:
			reply, ok = parseTuple(v)
			return ok
		case ctMark:
			if len(v) != 4 {
				return false
			}
			e.Mark = binary.BigEndian.Uint32(v)
		case ctProtoInfo:
			e.Ended = ended(v)
		case ctZone:
			if len(v) != 2 {
				return false
			}
			e.zone, e.Zone = v, binary.BigEndian.Uint16(v)
		case ctID:
			e.id = v
		}
		return true
	})
	e.Src, e.Dst, e.Protocol, e.SrcPort, e.DstPort = orig.src, orig.dst, orig.protocol, orig.srcPort, orig.dstPort
	e.ReplySrc, e.ReplyDst, e.ReplySrcPort = reply.src, reply.dst, reply.srcPort
	return e, ok && orig.src.IsValid() && orig.dst.IsValid() && reply.src.IsValid() && reply.dst.IsValid()
}

// ended reads what is known of the protocol: whether nobody sends any more.
func ended(b []byte) (over bool) {
	attributes(b, func(typ uint16, v []byte) bool {
		return typ != ctProtoInfoTCP || attributes(v, func(typ uint16, v []byte) bool {
			if typ == ctTCPState && len(v) == 1 {
				over = v[0] == tcpFinWait || v[0] >= tcpLastAck && v[0] <= tcpClose
			}
			return true
		})
	})
	return over
}

type tuple struct {
	src, dst         netip.Addr
	protocol         packet.Protocol
	srcPort, dstPort uint16
}

func parseTuple(b []byte) (t tuple, ok bool) {
	ok = attributes(b, func(typ uint16, v []byte) bool {
		switch typ {
		case ctTupleIP:
			return attributes(v, t.address)
		case ctTupleProto:
			return attributes(v, t.proto)
		}
		return true
	})
	return t, ok
}

func (t *tuple) address(typ uint16, v []byte) (ok bool) {
	switch typ {
	case ctIPv4Src, ctIPv6Src:
		t.src, ok = netip.AddrFromSlice(v)
	case ctIPv4Dst, ctIPv6Dst:
		t.dst, ok = netip.AddrFromSlice(v)
	default:
		return true
	}
	return ok
}

func (t *tuple) proto(typ uint16, v []byte) bool {
	switch {
	case typ == ctProtoNum && len(v) == 1:
		t.protocol = packet.Protocol(v[0])
	case typ == ctProtoSrcPort && len(v) == 2:
		t.srcPort = binary.BigEndian.Uint16(v)
	case typ == ctProtoDstPort && len(v) == 2:
		t.dstPort = binary.BigEndian.Uint16(v)
	case typ <= ctProtoDstPort:
		return false
	}
	return true
}

// filter is what the kernel is asked for in a dump.
type filter struct {
	// addr is the source of the first packet or, with reply, of answers.
	addr       netip.Addr
	reply      bool
	mark, mask uint32
}

// family is AF_UNSPEC, both, if there is no address.
func (f filter) family() uint8 {
	if !f.addr.IsValid() {
		return unix.AF_UNSPEC
	}
	return familyOf(f.addr)
}

func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (f filter) append(b []byte) []byte {
	if f.mask != 0 {
		b = appendUint32(b, ctMark, f.mark)
		b = appendUint32(b, ctMarkMask, f.mask)
	}
	if !f.addr.IsValid() {
		return b
	}
	typ, flags, ip := uint16(ctTupleOrig), uint16(ctFilterOrigFlags), uint16(ctIPv4Src)
	if f.reply {
		typ, flags = ctTupleReply, ctFilterReplyFlags
	}
	if f.addr.Is6() {
		ip = ctIPv6Src
	}
	addr := appendAttr(nil, ip, f.addr.AsSlice())
	b = appendAttr(b, typ|attrNested, appendAttr(nil, ctTupleIP|attrNested, addr))
	// The flags are in the machine's byte order, unlike all else.
	return appendAttr(b, ctFilter|attrNested, appendAttr(nil, flags, binary.NativeEndian.AppendUint32(nil, ctFilterIPSrc)))
}

func appendAttr(b []byte, typ uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendUint32(b []byte, typ uint16, v uint32) []byte {
	return appendAttr(b, typ, binary.BigEndian.AppendUint32(nil, v))
}

// appendChange appends the message that brings a decision about an entry into the
// kernel.
func appendChange(b []byte, seq uint32, e entry, d Decision) []byte {
	typ := uint16(unix.NFNL_SUBSYS_CTNETLINK<<8 | msgNew)
	if d.Delete {
		typ = unix.NFNL_SUBSYS_CTNETLINK<<8 | msgDelete
	}
	return appendMessage(b, typ, 0, seq, familyOf(e.Src), func(b []byte) []byte {
		b = appendAttr(b, ctTupleOrig|attrNested, e.tuple)
		if len(e.zone) > 0 {
			b = appendAttr(b, ctZone, e.zone)
		}
		if d.Delete {
			// Not another entry that has the same tuple by now.
			if len(e.id) > 0 {
				b = appendAttr(b, ctID, e.id)
			}
			return b
		}
		b = appendUint32(b, ctMark, d.Mark&d.Mask)
		return appendUint32(b, ctMarkMask, d.Mask)
	})
}
