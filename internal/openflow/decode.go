package openflow

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Message is what a switch sent.
type Message struct {
	Header Header
	// Body is one of Hello, Error, EchoRequest, EchoReply, FeaturesReply,
	// BarrierReply, BundleReply, FlowDescReply, GroupDescReply, MeterDescReply,
	// PortDescReply, FlowUpdates, PortStatus, FlowRemoved, or, for everything else,
	// Other.
	Body Body
}

// Body is the content of a Message.
type Body interface{ body() }

// Hello opens a connection.
type Hello struct {
	// Versions has bit n set if the switch speaks the version whose number on the
	// wire is n.
	Versions uint32
}

// EchoRequest is to be answered by AppendEchoReply with the same xid and data.
type EchoRequest struct{ Data []byte }

// EchoReply answers AppendEchoRequest.
type EchoReply struct{ Data []byte }

// FeaturesReply answers AppendFeaturesRequest.
type FeaturesReply struct {
	// DatapathID is unique among switches; its lower 48 bits are a MAC address.
	DatapathID uint64
	Tables     uint8
}

// BarrierReply answers AppendBarrierRequest.
type BarrierReply struct{}

// BundleReply answers AppendBundleControl.
type BundleReply struct {
	ID   uint32
	Type BundleType
}

// FlowDescReply answers AppendFlowDescRequest.
type FlowDescReply struct {
	Flows []FlowDesc
	// More says that another reply with the same xid follows.
	More bool
}

// FlowDesc is a flow with its statistics.
type FlowDesc struct {
	Flow Flow
	// Err says why the match or the actions could not be read; the rest of Flow
	// is there.
	Err            error
	Packets, Bytes uint64
	// Age is how long the flow has existed, Idle how long it has matched nothing
	// (zero if the switch did not say).
	Age, Idle time.Duration
}

// GroupDescReply answers AppendGroupDescRequest.
type GroupDescReply struct {
	Groups []GroupDesc
	More   bool
}

// GroupDesc is a group, and why a part of it could not be read.
type GroupDesc struct {
	Group Group
	Err   error
}

// MeterDescReply answers AppendMeterDescRequest.
type MeterDescReply struct {
	Meters []MeterDesc
	More   bool
}

// MeterDesc is a meter, and why a part of it could not be read.
type MeterDesc struct {
	Meter Meter
	Err   error
}

// PortDescReply answers AppendPortDescRequest.
type PortDescReply struct {
	Ports []PortDesc
	More  bool
}

// PortDesc is a port of the switch.
type PortDesc struct {
	Port Port
	MAC  [6]byte
	Name string
	// Down says that the port is administratively down, NoLink that it has no link.
	Down, NoLink bool
}

// PortChange is why a PortStatus was sent.
type PortChange uint8

// The reasons (OpenFlow 1.5.1, 7.4.3).
const (
	PortAdded PortChange = iota
	PortDeleted
	PortModified
)

// PortStatus says that a port changed.
type PortStatus struct {
	Change PortChange
	Port   PortDesc
}

// FlowRemoved says that a flow that asked for it is gone.
type FlowRemoved struct {
	Flow Flow
	// Reason is 0 idle timeout, 1 hard timeout, 2 deleted, 3 group deleted,
	// 4 meter deleted, 5 evicted.
	Reason uint8
	// Err says why the match could not be read.
	Err error
}

// Other is a message that this package does not read.
type Other struct{ Data []byte }

func (Hello) body()          {}
func (Error) body()          {}
func (EchoRequest) body()    {}
func (EchoReply) body()      {}
func (FeaturesReply) body()  {}
func (BarrierReply) body()   {}
func (BundleReply) body()    {}
func (FlowDescReply) body()  {}
func (GroupDescReply) body() {}
func (MeterDescReply) body() {}
func (PortDescReply) body()  {}
func (PortStatus) body()     {}
func (FlowRemoved) body()    {}
func (Other) body()          {}

// Decode reads one whole message. What it gives holds no reference to b.
//
// A hello or an error is read whatever its version, since a switch that does not
// speak OpenFlow 1.5 says so in one.
func Decode(b []byte) (Message, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return Message{}, err
	}
	m := Message{Header: h}
	if int(h.Length) != len(b) {
		return m, fmt.Errorf("openflow: a message of %d bytes says that it is %d bytes long", len(b), h.Length)
	}
	if h.Version != Version && h.Type != TypeHello && h.Type != TypeError {
		return m, fmt.Errorf("openflow: a message of type %d of protocol version %#x, want %#x (OpenFlow 1.5)", h.Type, h.Version, Version)
	}
	r := reader{b: b[HeaderLen:]}
	m.Body = r.body(h)
	if r.err != nil {
		return m, fmt.Errorf("openflow: message of type %d, xid %d: %w", h.Type, h.XID, r.err)
	}
	return m, nil
}

func (r *reader) body(h Header) Body {
	switch h.Type {
	case TypeHello:
		return r.hello(h.Version)
	case TypeError:
		return r.errorMessage()
	case TypeEchoRequest:
		return EchoRequest{r.rest()}
	case TypeEchoReply:
		return EchoReply{r.rest()}
	case TypeFeaturesReply:
		id := r.u64()
		r.u32() // buffers
		return FeaturesReply{id, r.u8()}
	case TypeBarrierReply:
		return BarrierReply{}
	case TypeBundleControl:
		return BundleReply{r.u32(), BundleType(r.u16())}
	case TypePortStatus:
		change := PortChange(r.u8())
		r.take(7)
		return PortStatus{change, r.port()}
	case TypeFlowRemoved:
		return r.flowRemoved()
	case TypeMultipartReply:
		return r.multipart()
	}
	return Other{r.rest()}
}

func (r *reader) hello(version uint8) Body {
	// Without a bitmap, the version in the header is the highest one spoken.
	versions := uint32(1)<<min(31, uint(version)+1) - 1
	for r.more() {
		start := r.left()
		typ, n := r.u16(), int(r.u16())
		element := r.sub(n - 4)
		r.take(min(r.left(), (8-n%8)%8))
		if typ == 1 && element.left() >= 4 {
			versions = element.u32()
		}
		if r.left() == start {
			break
		}
	}
	return Hello{versions}
}

func (r *reader) multipart() Body {
	typ, flags := r.u16(), r.u16()
	r.u32()
	more := flags&multipartMore != 0
	switch typ {
	case multipartFlowDesc:
		reply := FlowDescReply{More: more}
		for r.more() {
			reply.Flows = append(reply.Flows, r.flowDesc())
		}
		return reply
	case multipartGroupDesc:
		reply := GroupDescReply{More: more}
		for r.more() {
			reply.Groups = append(reply.Groups, r.groupDesc())
		}
		return reply
	case multipartMeterDesc:
		reply := MeterDescReply{More: more}
		for r.more() {
			reply.Meters = append(reply.Meters, r.meterDesc())
		}
		return reply
	case multipartPortDesc:
		reply := PortDescReply{More: more}
		for r.more() {
			reply.Ports = append(reply.Ports, r.port())
		}
		return reply
	case multipartMonitor:
		return r.flowUpdates(more)
	}
	return Other{r.rest()}
}

// reader takes a message apart. After the first error everything is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) left() int { return len(r.b) }

func (r *reader) more() bool { return r.err == nil && len(r.b) > 0 }

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.b = nil
}

// take gives the next n bytes, not copied.
func (r *reader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.b) {
		r.fail("%d bytes are left, want %d", len(r.b), n)
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

// sub gives a reader of the next n bytes.
func (r *reader) sub(n int) *reader {
	b := r.take(n)
	return &reader{b: b, err: r.err}
}

// rest copies what is left.
func (r *reader) rest() []byte {
	return append([]byte(nil), r.take(len(r.b))...)
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) value(n int) Value {
	if n < 0 || n > 16 {
		r.fail("a value of %d bytes, want at most 16", n)
	}
	return valueOf(r.take(n))
}
