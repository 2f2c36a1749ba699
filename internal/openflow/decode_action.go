package openflow

import (
	"encoding/binary"
	"net/netip"
)

// maxNesting bounds how deep actions may lie in actions.
const maxNesting = 8

// actions reads a list to its end. An action that is not known, or that says what
// this package cannot say, becomes an Unknown.
func (r *reader) actions(depth int) []Action {
	if depth > maxNesting {
		r.fail("actions are nested more than %d deep", maxNesting)
		return nil
	}
	var actions []Action
	for r.more() {
		if r.left() < 8 {
			r.fail("an action has %d bytes, want at least 8", r.left())
			return nil
		}
		whole := r.take(max(8, int(binary.BigEndian.Uint16(r.b[2:]))))
		if r.err != nil {
			return nil
		}
		a := reader{b: whole[4:]}
		action := a.action(binary.BigEndian.Uint16(whole), depth)
		if action == nil || a.err != nil {
			action = Unknown{append([]byte(nil), whole...)}
		}
		actions = append(actions, action)
	}
	return actions
}

func (r *reader) action(typ uint16, depth int) Action {
	switch typ {
	case actOutput:
		port, limit := Port(r.u32()), r.u16()
		if port == PortController && limit != 0 {
			return nil
		}
		return Output{port}
	case actGroup:
		return GroupAction{r.u32()}
	case actMeter:
		return MeterAction{r.u32()}
	case actDecTTL:
		return DecTTL{}
	case actSetField:
		return r.setField()
	case actCopyField:
		n, from, to := uint8(r.u16()), uint8(r.u16()), uint8(r.u16())
		r.u16()
		return Move{Subfield{r.source(), from, n}, Subfield{r.source(), to, n}}
	case actExperimenter:
		if r.u32() == vendorNicira {
			return r.nicira(r.u16(), depth)
		}
	}
	return nil
}

func (r *reader) setField() Action {
	f, masked, _ := r.fieldHeader()
	a := SetField{Field: f, Value: r.value(f.size())}
	if masked {
		if a.Mask = r.value(f.size()).And(f.full()); a.Mask.IsZero() {
			return nil
		}
	}
	if a.Mask == f.full() {
		a.Mask = Value{}
	}
	return a
}

func (r *reader) nicira(subtype uint16, depth int) Action {
	switch subtype {
	case nxResubmit:
		return Resubmit{InPort: r.port16(), Table: TableAll}
	case nxResubmitTable, nxResubmitTableCT:
		return Resubmit{r.port16(), r.u8(), subtype == nxResubmitTableCT}
	case nxNote:
		return Note{r.rest()}
	case nxOutputReg:
		ofs, f := r.u16(), r.source()
		return OutputField{subfield(f, ofs)}
	case nxOutputReg2:
		ofs := r.u16()
		r.u16()
		return OutputField{subfield(r.source(), ofs)}
	case nxConjunction:
		return Conjunction{Clause: r.u8() + 1, Clauses: r.u8(), ID: r.u32()}
	case nxCT:
		return r.ct(depth)
	case nxClone:
		r.take(6)
		return nested(r, depth, func(list []Action) Action { return Clone{list} })
	case nxCTClear:
		return CTClear{}
	case nxCheckPktLarger:
		length, bit := r.u16(), r.u16()
		return CheckPktLarger{length, Subfield{r.source(), uint8(bit), 1}}
	case nxLearn, nxLearn2:
		return r.learn(subtype == nxLearn2)
	}
	return nil
}

// nested reads actions within an action; nil if they are wrong.
func nested(r *reader, depth int, wrap func([]Action) Action) Action {
	list := r.actions(depth + 1)
	if r.err != nil {
		return nil
	}
	return wrap(list)
}

func subfield(f Field, offsetBits uint16) Subfield {
	return Subfield{f, uint8(offsetBits >> 6), uint8(offsetBits&0x3f) + 1}
}

// port16 widens a port of Nicira's actions.
func (r *reader) port16() Port {
	p := r.u16()
	switch {
	case p == portInPort16:
		return 0
	case p >= 0xff00:
		return Port(p) | 0xffff0000
	}
	return Port(p)
}

func (r *reader) ct(depth int) Action {
	flags := r.u16()
	a := CT{Commit: flags&ctCommit != 0, Force: flags&ctForce != 0}
	source, zone := r.source(), r.u16()
	if source != fieldNone {
		a.ZoneSource = subfield(source, zone)
	} else {
		a.Zone = zone
	}
	if table := r.u8(); table != ctNoRecirc {
		a.Recirc, a.Table = true, table
	}
	r.take(3)
	a.ALG = r.u16()
	if flags&^(ctCommit|ctForce) != 0 {
		return nil
	}
	const natHead = 10
	if b := r.b; len(b) >= natHead && binary.BigEndian.Uint16(b) == actExperimenter &&
		binary.BigEndian.Uint32(b[4:]) == vendorNicira && binary.BigEndian.Uint16(b[8:]) == nxNAT {
		n := r.sub(int(binary.BigEndian.Uint16(b[2:])))
		n.take(natHead)
		if a.NAT = n.nat(); n.err != nil {
			return nil
		}
	}
	return nested(r, depth, func(list []Action) Action {
		a.Exec = list
		return a
	})
}

func (r *reader) nat() *NAT {
	r.u16()
	flags, has := r.u16(), r.u16()
	n := &NAT{Persistent: flags&natPersist != 0, Hash: flags&natHash != 0, Random: flags&natRandom != 0}
	switch flags & (natSource | natDest) {
	case natSource:
		n.Kind = NATSource
	case natDest:
		n.Kind = NATDestination
	case natSource | natDest:
		r.fail("nat is both of source and of destination")
	}
	addr := func(size int, bit uint16) (a netip.Addr) {
		if has&bit == 0 {
			return a
		}
		if v := r.value(size); size == 4 {
			return v.Addr4()
		} else {
			return v.Addr6()
		}
	}
	port := func(bit uint16) uint16 {
		if has&bit == 0 {
			return 0
		}
		return r.u16()
	}
	n.Min, n.Max = addr(4, natIPv4Min), addr(4, natIPv4Max)
	if has&(natIPv6Min|natIPv6Max) != 0 {
		n.Min, n.Max = addr(16, natIPv6Min), addr(16, natIPv6Max)
	}
	n.PortMin, n.PortMax = port(natProtoMin), port(natProtoMax)
	return n
}
