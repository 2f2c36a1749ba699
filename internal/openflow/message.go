package openflow

import (
	"encoding/binary"
	"fmt"
)

// Version is the version byte of OpenFlow 1.5 in every message.
const Version = 0x06

// HeaderLen is the length of the header that every message starts with.
const HeaderLen = 8

// MaxMessage is the length of the longest message.
const MaxMessage = 0xffff

// Types of messages (OpenFlow 1.5.1, 7.1.1).
const (
	TypeHello            uint8 = 0
	TypeError            uint8 = 1
	TypeEchoRequest      uint8 = 2
	TypeEchoReply        uint8 = 3
	TypeFeaturesRequest  uint8 = 5
	TypeFeaturesReply    uint8 = 6
	TypePacketIn         uint8 = 10
	TypeFlowRemoved      uint8 = 11
	TypePortStatus       uint8 = 12
	TypeFlowMod          uint8 = 14
	TypeGroupMod         uint8 = 15
	TypeMultipartRequest uint8 = 18
	TypeMultipartReply   uint8 = 19
	TypeBarrierRequest   uint8 = 20
	TypeBarrierReply     uint8 = 21
	TypeMeterMod         uint8 = 29
	TypeBundleControl    uint8 = 33
	TypeBundleAdd        uint8 = 34
)

// Types of multipart messages (OpenFlow 1.5.1, 7.3.5).
const (
	multipartFlowDesc  = 1
	multipartGroupDesc = 7
	multipartMeterDesc = 10
	multipartPortDesc  = 13
	multipartMonitor   = 16

	multipartMore = 1 // flag: another reply follows
)

// anything stands for no restriction: any port, any group, no buffer.
const anything = 0xffffffff

// Header starts every message.
type Header struct {
	Version uint8
	Type    uint8
	// Length is that of the message, header included.
	Length uint16
	// XID pairs a reply, or an error, with its request.
	XID uint32
}

// ParseHeader reads a header, so that a reader knows how many bytes belong to the
// message. It fails if fewer than HeaderLen bytes are there or if the length is
// impossible.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, fmt.Errorf("openflow: a header of %d bytes, want %d", len(b), HeaderLen)
	}
	h := Header{b[0], b[1], binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:])}
	if h.Length < HeaderLen {
		return h, fmt.Errorf("openflow: a message of type %d says that it is %d bytes long, shorter than its header", h.Type, h.Length)
	}
	return h, nil
}

// AppendHello appends the message that opens a connection. It offers exactly
// OpenFlow 1.5.
func AppendHello(b []byte, xid uint32) []byte {
	b, start := begin(b, TypeHello, xid)
	b = be16(b, 1) // element: bitmap of versions
	b = be16(b, 8)
	return finish(be32(b, 1<<Version), start)
}

// AppendEchoRequest appends a question whether the switch is alive.
func AppendEchoRequest(b []byte, xid uint32, data []byte) []byte {
	b, start := begin(b, TypeEchoRequest, xid)
	return finish(append(b, data...), start)
}

// AppendEchoReply appends the answer to an EchoRequest with the same xid and data.
func AppendEchoReply(b []byte, xid uint32, data []byte) []byte {
	b, start := begin(b, TypeEchoReply, xid)
	return finish(append(b, data...), start)
}

// AppendFeaturesRequest appends a question for the switch's features.
func AppendFeaturesRequest(b []byte, xid uint32) []byte {
	b, start := begin(b, TypeFeaturesRequest, xid)
	return finish(b, start)
}

// AppendBarrierRequest appends a request that is answered when everything before
// it is done.
func AppendBarrierRequest(b []byte, xid uint32) []byte {
	b, start := begin(b, TypeBarrierRequest, xid)
	return finish(b, start)
}

// BundleType is a request or a reply about a bundle.
type BundleType uint16

// The life of a bundle (OpenFlow 1.5.1, 7.3.9.2).
const (
	BundleOpen BundleType = iota
	BundleOpened
	BundleClose
	BundleClosed
	BundleCommit
	BundleCommitted
	BundleDiscard
	BundleDiscarded
)

// BundleFlags say how a bundle is committed. They are the same in every message
// of a bundle.
type BundleFlags uint16

const (
	// BundleAtomic commits everything or nothing, and no packet sees a part.
	BundleAtomic BundleFlags = 1 << iota
	// BundleOrdered commits in the order in which messages were added.
	BundleOrdered
)

// AppendBundleControl appends a request about bundle id.
func AppendBundleControl(b []byte, xid, id uint32, t BundleType, flags BundleFlags) []byte {
	b, start := begin(b, TypeBundleControl, xid)
	b = be32(b, id)
	b = be16(b, uint16(t))
	return finish(be16(b, uint16(flags)), start)
}

// BundleOverhead is what AppendBundleAdd adds to the length of a message.
const BundleOverhead = 16

// AppendBundleAdd appends a message that adds the message which add appends to
// bundle id. Both bear the same xid, as they must:
//
//	b = AppendBundleAdd(b, xid, id, flags, func(b []byte, xid uint32) []byte {
//		return AppendFlowMod(b, xid, mod)
//	})
func AppendBundleAdd(b []byte, xid, id uint32, flags BundleFlags, add func(b []byte, xid uint32) []byte) []byte {
	b, start := begin(b, TypeBundleAdd, xid)
	b = be32(b, id)
	b = be16(b, 0)
	b = be16(b, uint16(flags))
	return finish(add(b, xid), start)
}

// FlowFilter chooses flows. The zero value is every flow of table 0.
type FlowFilter struct {
	// Table is a table, or TableAll.
	Table uint8
	// A flow is chosen if its cookie has the bits of Cookie where CookieMask has ones.
	Cookie, CookieMask uint64
	// A flow is chosen if its match is at least as narrow as Match.
	Match Match
}

// AppendFlowDescRequest appends a request for the flows that a filter chooses.
// The switch answers with one or more FlowDescReply.
func AppendFlowDescRequest(b []byte, xid uint32, f FlowFilter) []byte {
	b, start := beginMultipart(b, multipartFlowDesc, xid)
	b = append(b, f.Table, 0, 0, 0)
	b = be32(b, anything)
	b = be32(b, anything)
	b = be32(b, 0)
	b = be64(b, f.Cookie)
	b = be64(b, f.CookieMask)
	return finish(appendMatch(b, f.Match), start)
}

// AppendGroupDescRequest appends a request for every group, answered with one or
// more GroupDescReply.
func AppendGroupDescRequest(b []byte, xid uint32) []byte {
	b, start := beginMultipart(b, multipartGroupDesc, xid)
	return finish(be64(b, uint64(GroupIDAll)<<32), start)
}

// AppendMeterDescRequest appends a request for every meter, answered with one or
// more MeterDescReply.
func AppendMeterDescRequest(b []byte, xid uint32) []byte {
	b, start := beginMultipart(b, multipartMeterDesc, xid)
	return finish(be64(b, uint64(MeterIDAll)<<32), start)
}

// AppendPortDescRequest appends a request for every port, answered with one or
// more PortDescReply.
func AppendPortDescRequest(b []byte, xid uint32) []byte {
	b, start := beginMultipart(b, multipartPortDesc, xid)
	return finish(be64(b, uint64(PortAny)<<32), start)
}

// begin appends a header whose length finish sets.
func begin(b []byte, typ uint8, xid uint32) ([]byte, int) {
	start := len(b)
	b = append(b, Version, typ, 0, 0)
	return be32(b, xid), start
}

func beginMultipart(b []byte, typ uint16, xid uint32) ([]byte, int) {
	b, start := begin(b, TypeMultipartRequest, xid)
	b = be16(b, typ)
	b = be16(b, 0)
	return be32(b, 0), start
}

// finish sets the length of the message that starts at start. A message that is
// longer than any message can be is marked by length 0, which the switch refuses;
// Validate of what is in it says so before.
func finish(b []byte, start int) []byte {
	n := len(b) - start
	if n > MaxMessage {
		n = 0
	}
	binary.BigEndian.PutUint16(b[start+2:], uint16(n))
	return b
}

func be16(b []byte, v uint16) []byte { return binary.BigEndian.AppendUint16(b, v) }
func be32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }
func be64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

// pad8 appends zeros until the length since start is a multiple of 8.
func pad8(b []byte, start int) []byte {
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}
