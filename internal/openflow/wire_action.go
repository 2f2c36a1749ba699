package openflow

import "encoding/binary"

// Kinds of actions (OpenFlow 1.5.1, 7.2.6).
const (
	actOutput       = 0
	actGroup        = 22
	actDecTTL       = 24
	actSetField     = 25
	actCopyField    = 28
	actMeter        = 29
	actExperimenter = 0xffff
)

// Subtypes of Nicira's actions (lib/ofp-actions.c of Open vSwitch).
const (
	nxResubmit        = 1
	nxNote            = 8
	nxResubmitTable   = 14
	nxOutputReg       = 15
	nxLearn           = 16
	nxOutputReg2      = 32
	nxConjunction     = 34
	nxCT              = 35
	nxNAT             = 36
	nxClone           = 42
	nxCTClear         = 43
	nxResubmitTableCT = 44
	nxLearn2          = 45
	nxCheckPktLarger  = 49
)

const (
	ctCommit     = 1
	ctForce      = 2
	ctNoRecirc   = 0xff
	natSource    = 1
	natDest      = 2
	natPersist   = 4
	natHash      = 8
	natRandom    = 16
	natIPv4Min   = 1
	natIPv4Max   = 2
	natIPv6Min   = 4
	natIPv6Max   = 8
	natProtoMin  = 16
	natProtoMax  = 32
	portInPort16 = 0xfff8
)

func appendActionsWire(b []byte, actions []Action) []byte {
	for _, a := range actions {
		if a != nil { // Validate refuses it
			b = a.appendWire(b)
		}
	}
	return b
}

// beginAction appends the head of a standard action; endAction pads and measures.
func beginAction(b []byte, typ uint16) ([]byte, int) {
	start := len(b)
	return be16(be16(b, typ), 0), start
}

func beginNicira(b []byte, subtype uint16) ([]byte, int) {
	b, start := beginAction(b, actExperimenter)
	return be16(be32(b, vendorNicira), subtype), start
}

func endAction(b []byte, start int) []byte {
	b = pad8(b, start)
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

// endAction24 also pads to the 24 bytes that some actions always have.
func endAction24(b []byte, start int) []byte {
	for len(b)-start < 24 {
		b = append(b, 0)
	}
	return endAction(b, start)
}

func (a Output) appendWire(b []byte) []byte {
	b, start := beginAction(b, actOutput)
	b = be32(b, uint32(a.Port))
	b = be16(b, 0) // bytes to the controller
	return endAction(append(b, 0, 0, 0, 0, 0, 0), start)
}

func (a OutputField) appendWire(b []byte) []byte {
	b, start := beginNicira(b, nxOutputReg2)
	b = be16(b, a.Source.offsetBits())
	b = be16(b, 0) // bytes to the controller
	return endAction24(be32(b, a.Source.Field.header32()), start)
}

// offsetBits is the switch's spelling of a range of bits.
func (s Subfield) offsetBits() uint16 { return uint16(s.Offset)<<6 | uint16(s.Width()-1)&0x3f }

func (a SetField) appendWire(b []byte) []byte {
	b, start := beginAction(b, actSetField)
	size := a.Field.size()
	if mask := a.mask(); mask != a.Field.full() {
		b = appendFieldHeader(b, a.Field, true, 2*size)
		b = a.Value.And(mask).appendBytes(b, size)
		b = mask.appendBytes(b, size)
	} else {
		b = appendFieldHeader(b, a.Field, false, size)
		b = a.Value.And(mask).appendBytes(b, size)
	}
	return endAction(b, start)
}

// mask resolves the zero value.
func (a SetField) mask() Value {
	if a.Mask.IsZero() {
		return a.Field.full()
	}
	return a.Mask
}

func (a Move) appendWire(b []byte) []byte {
	b, start := beginAction(b, actCopyField)
	b = be16(b, uint16(a.To.Width()))
	b = be16(b, uint16(a.From.Offset))
	b = be16(b, uint16(a.To.Offset))
	b = be16(b, 0)
	b = be32(b, a.From.Field.header32())
	return endAction(be32(b, a.To.Field.header32()), start)
}

// appendWire is never called for a flow that Validate accepts: instructions are
// not actions. Inside of one, a resubmit is the nearest thing.
func (a GotoTable) appendWire(b []byte) []byte { return Resubmit{Table: a.Table}.appendWire(b) }

func (a Resubmit) appendWire(b []byte) []byte {
	subtype := uint16(nxResubmitTable)
	if a.OriginalTuple {
		subtype = nxResubmitTableCT
	}
	b, start := beginNicira(b, subtype)
	b = be16(b, port16(a.InPort))
	return endAction(append(b, a.Table), start)
}

// port16 is a port in the 16 bits that Nicira's actions have for it.
func port16(p Port) uint16 {
	if p == 0 {
		return portInPort16
	}
	return uint16(p)
}

func (a CT) appendWire(b []byte) []byte {
	b, start := beginNicira(b, nxCT)
	var flags uint16
	if a.Commit {
		flags |= ctCommit
	}
	if a.Force {
		flags |= ctForce
	}
	b = be16(b, flags)
	if a.ZoneSource.Field != fieldNone {
		b = be32(b, a.ZoneSource.Field.header32())
		b = be16(b, a.ZoneSource.offsetBits())
	} else {
		b = be32(b, 0)
		b = be16(b, a.Zone)
	}
	table := byte(ctNoRecirc)
	if a.Recirc {
		table = a.Table
	}
	b = append(b, table, 0, 0, 0)
	b = be16(b, a.ALG)
	if a.NAT != nil {
		b = a.NAT.appendWire(b)
	}
	return endAction(appendActionsWire(b, a.Exec), start)
}

func (n *NAT) appendWire(b []byte) []byte {
	b, start := beginNicira(b, nxNAT)
	b = be16(b, 0)
	b = be16(b, n.flags())
	present := len(b)
	b = be16(b, 0)
	var has uint16
	addr := func(a Value, size int, bit uint16) {
		has |= bit
		b = a.appendBytes(b, size)
	}
	if n.Min.Is4() {
		addr(AddrValue(n.Min), 4, natIPv4Min)
		if n.hasMax() {
			addr(AddrValue(n.Max), 4, natIPv4Max)
		}
	} else if n.Min.IsValid() {
		addr(AddrValue(n.Min), 16, natIPv6Min)
		if n.hasMax() {
			addr(AddrValue(n.Max), 16, natIPv6Max)
		}
	}
	if n.PortMin != 0 {
		addr(Num(uint64(n.PortMin)), 2, natProtoMin)
		if n.PortMax > n.PortMin {
			addr(Num(uint64(n.PortMax)), 2, natProtoMax)
		}
	}
	binary.BigEndian.PutUint16(b[present:], has)
	return endAction(b, start)
}

func (n *NAT) hasMax() bool { return n.Max.IsValid() && n.Max != n.Min }

func (n *NAT) flags() uint16 {
	var flags uint16
	switch n.Kind {
	case NATSource:
		flags = natSource
	case NATDestination:
		flags = natDest
	}
	for _, f := range []struct {
		on  bool
		bit uint16
	}{{n.Persistent, natPersist}, {n.Hash, natHash}, {n.Random, natRandom}} {
		if f.on {
			flags |= f.bit
		}
	}
	return flags
}

func (CTClear) appendWire(b []byte) []byte {
	b, start := beginNicira(b, nxCTClear)
	return endAction(b, start)
}

func (a Conjunction) appendWire(b []byte) []byte {
	b, start := beginNicira(b, nxConjunction)
	b = append(b, a.Clause-1, a.Clauses)
	return endAction(be32(b, a.ID), start)
}

func (a Clone) appendWire(b []byte) []byte {
	b, start := beginNicira(b, nxClone)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return endAction(appendActionsWire(b, a.Actions), start)
}

func (DecTTL) appendWire(b []byte) []byte {
	b, start := beginAction(b, actDecTTL)
	return endAction(b, start)
}

func (a GroupAction) appendWire(b []byte) []byte {
	b, start := beginAction(b, actGroup)
	return endAction(be32(b, a.ID), start)
}

func (a MeterAction) appendWire(b []byte) []byte {
	b, start := beginAction(b, actMeter)
	return endAction(be32(b, a.ID), start)
}

func (a Note) appendWire(b []byte) []byte {
	b, start := beginNicira(b, nxNote)
	b = append(b, a.Data...)
	for len(b)-start < 16 {
		b = append(b, 0)
	}
	return endAction(b, start)
}

func (a CheckPktLarger) appendWire(b []byte) []byte {
	b, start := beginNicira(b, nxCheckPktLarger)
	b = be16(b, a.Length)
	b = be16(b, uint16(a.To.Offset))
	return endAction24(be32(b, a.To.Field.header32()), start)
}

func (a Unknown) appendWire(b []byte) []byte { return append(b, a.Wire...) }
