package openflow

import "encoding/binary"

// FlowCommand is what a FlowMod does.
type FlowCommand uint8

// The commands (OpenFlow 1.5.1, 7.3.4.2).
const (
	// FlowAdd adds a flow, or replaces the one with the same key.
	FlowAdd FlowCommand = iota
	// FlowModify sets the actions of every flow that is at least as narrow.
	FlowModify
	// FlowModifyStrict sets the actions of the flow with the same key.
	FlowModifyStrict
	// FlowDelete deletes every flow that is at least as narrow.
	FlowDelete
	// FlowDeleteStrict deletes the flow with the same key.
	FlowDeleteStrict
)

// FlowMod changes a table.
type FlowMod struct {
	Command FlowCommand
	// Flow is the flow. To delete, only its table (TableAll: every one), match,
	// priority (FlowDeleteStrict) and cookie matter.
	Flow Flow
	// CookieMask restricts the commands but FlowAdd to flows whose cookie equals
	// Flow.Cookie where the mask has ones.
	CookieMask uint64
}

// AppendFlowMod appends a change of a table.
func AppendFlowMod(b []byte, xid uint32, m FlowMod) []byte {
	b, start := begin(b, TypeFlowMod, xid)
	b = be64(b, m.Flow.Cookie)
	b = be64(b, m.CookieMask)
	b = append(b, m.Flow.Table, byte(m.Command))
	b = be16(b, m.Flow.IdleTimeout)
	b = be16(b, m.Flow.HardTimeout)
	b = be16(b, m.Flow.Priority)
	b = be32(b, anything) // no buffered packet
	b = be32(b, anything) // no restriction by output port
	b = be32(b, anything) // nor by group
	b = be32(b, 0)        // flags, importance
	b = appendMatch(b, m.Flow.Match)
	if m.Command != FlowDelete && m.Command != FlowDeleteStrict {
		b = appendInstructions(b, m.Flow.Actions)
	}
	return finish(b, start)
}

// Kinds of instructions (OpenFlow 1.5.1, 7.2.5).
const (
	instructionGoto  = 1
	instructionApply = 4
)

// appendInstructions appends what a list of actions is on the wire: what to do at
// once, and where to go on.
func appendInstructions(b []byte, actions []Action) []byte {
	last := len(actions) - 1
	var next *GotoTable
	if last >= 0 {
		if g, ok := actions[last].(GotoTable); ok {
			next, actions = &g, actions[:last]
		}
	}
	if len(actions) > 0 {
		start := len(b)
		b = be16(b, instructionApply)
		b = be16(b, 0)
		b = be32(b, 0)
		b = appendActionsWire(b, actions)
		binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start))
	}
	if next != nil {
		b = be16(b, instructionGoto)
		b = be16(b, 8)
		b = append(b, next.Table, 0, 0, 0)
	}
	return b
}

// GroupCommand is what AppendGroupMod does.
type GroupCommand uint16

// The commands (OpenFlow 1.5.1, 7.3.4.3, and Open vSwitch).
const (
	GroupAdd    GroupCommand = 0
	GroupModify GroupCommand = 1
	// GroupDelete deletes a group, or GroupIDAll, with the flows that use it.
	GroupDelete GroupCommand = 2
	// GroupAddOrModify adds a group or replaces what is there.
	GroupAddOrModify GroupCommand = 0x8000
)

const (
	// GroupIDMax is the greatest number of a group.
	GroupIDMax uint32 = 0xffffff00
	// GroupIDAll stands for every group in GroupDelete.
	GroupIDAll uint32 = 0xfffffffc
)

const (
	bucketAll         = 0xffffffff
	bucketMax         = 0xffffff00
	propWeight        = 0
	propExperimenter  = 0xffff
	selectionMethod   = 1
	selectionNameSize = 16
)

// AppendGroupMod appends a change of a group.
func AppendGroupMod(b []byte, xid uint32, c GroupCommand, g Group) []byte {
	b, start := begin(b, TypeGroupMod, xid)
	b = be16(b, uint16(c))
	b = append(b, byte(g.Type), 0)
	b = be32(b, g.ID)
	length := len(b)
	b = be32(b, 0)
	b = be32(b, bucketAll)
	if c == GroupDelete {
		return finish(b, start)
	}
	buckets := len(b)
	for _, bucket := range g.Buckets {
		b = appendBucket(b, g.Type, bucket)
	}
	binary.BigEndian.PutUint16(b[length:], uint16(len(b)-buckets))
	if g.Method != SelectDefault {
		b = appendSelection(b, g)
	}
	return finish(b, start)
}

func appendBucket(b []byte, t GroupType, bucket Bucket) []byte {
	start := len(b)
	b = be32(b, 0)
	b = be32(b, bucket.ID)
	b = appendActionsWire(b, bucket.Actions)
	actions := len(b) - start - 8
	if t == GroupSelect {
		b = be16(b, propWeight)
		b = be16(b, 8)
		b = be16(b, bucket.Weight)
		b = be16(b, 0)
	}
	binary.BigEndian.PutUint16(b[start:], uint16(len(b)-start))
	binary.BigEndian.PutUint16(b[start+2:], uint16(actions))
	return b
}

func appendSelection(b []byte, g Group) []byte {
	start := len(b)
	b = be16(b, propExperimenter)
	b = be16(b, 0)
	b = be32(b, vendorNetronome)
	b = be32(b, selectionMethod)
	b = be32(b, 0)
	var name [selectionNameSize]byte
	copy(name[:selectionNameSize-1], g.Method)
	b = append(b, name[:]...)
	b = be64(b, g.MethodParam)
	for _, f := range g.Fields {
		b = appendFieldHeader(b, f, false, f.size())
		b = f.full().appendBytes(b, f.size())
	}
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start))
	return pad8(b, start)
}

// MeterCommand is what AppendMeterMod does.
type MeterCommand uint16

// The commands (OpenFlow 1.5.1, 7.3.4.5).
const (
	MeterAdd MeterCommand = iota
	MeterModify
	// MeterDelete deletes a meter, or MeterIDAll.
	MeterDelete
)

const (
	// MeterIDMax is the greatest number of a meter.
	MeterIDMax uint32 = 0xffff0000
	// MeterIDAll stands for every meter in MeterDelete.
	MeterIDAll uint32 = 0xffffffff
)

const (
	meterKbps  = 1
	meterPktps = 2
	meterBurst = 4
	bandDrop   = 1
)

// AppendMeterMod appends a change of a meter.
func AppendMeterMod(b []byte, xid uint32, c MeterCommand, m Meter) []byte {
	b, start := begin(b, TypeMeterMod, xid)
	flags := uint16(meterKbps)
	if m.PerPacket {
		flags = meterPktps
	}
	if m.Burst != 0 {
		flags |= meterBurst
	}
	b = be16(b, uint16(c))
	b = be16(b, flags)
	b = be32(b, m.ID)
	if c == MeterDelete {
		return finish(b, start)
	}
	b = be16(b, bandDrop)
	b = be16(b, 16)
	b = be32(b, m.Rate)
	b = be32(b, m.Burst)
	return finish(be32(b, 0), start)
}
