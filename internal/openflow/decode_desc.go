package openflow

import (
	"bytes"
	"fmt"
	"time"
)

// flowDesc reads one flow. Only a wrong length is an error of the message.
func (r *reader) flowDesc() FlowDesc {
	e := r.sub(int(r.u16()) - 2)
	e.take(2)
	var d FlowDesc
	d.Flow.Table = e.u8()
	e.take(1)
	d.Flow.Priority = e.u16()
	d.Flow.IdleTimeout = e.u16()
	d.Flow.HardTimeout = e.u16()
	e.take(4) // flags, importance
	d.Flow.Cookie = e.u64()
	if e.err != nil {
		r.fail("a flow: %w", e.err)
		return d
	}
	d.Flow.Match = e.match()
	e.stats(&d)
	d.Flow.Actions = e.instructions()
	if d.Err = e.err; d.Err != nil {
		d.Err = fmt.Errorf("openflow: a flow of table %d, priority %d, cookie %#x: %w", d.Flow.Table, d.Flow.Priority, d.Flow.Cookie, e.err)
	}
	return d
}

// Statistics of a flow (OpenFlow 1.5.1, 7.2.4.2).
const (
	statDuration = 0
	statIdle     = 1
	statPackets  = 4
	statBytes    = 5
)

func (r *reader) stats(d *FlowDesc) {
	r.u16()
	n := int(r.u16())
	s := r.sub(n - 4)
	r.take(min(r.left(), (8-n%8)%8))
	for s.more() {
		class, num := s.u16(), s.u8()>>1
		v := s.sub(int(s.u8()))
		if class != classPacketRegs+1 && class != classBasic {
			continue
		}
		switch num {
		case statDuration:
			d.Age = v.duration()
		case statIdle:
			d.Idle = v.duration()
		case statPackets:
			d.Packets = v.u64()
		case statBytes:
			d.Bytes = v.u64()
		}
		if v.err != nil {
			s.fail("statistics: %w", v.err)
		}
	}
	if s.err != nil {
		r.fail("%w", s.err)
	}
}

func (r *reader) duration() time.Duration {
	seconds, nanos := r.u32(), r.u32()
	return time.Duration(seconds)*time.Second + time.Duration(nanos)
}

func (r *reader) instructions() []Action {
	var actions []Action
	for r.more() {
		typ, n := r.u16(), int(r.u16())
		i := r.sub(n - 4)
		switch typ {
		case instructionApply:
			i.take(4)
			actions = append(actions, i.actions(0)...)
		case instructionGoto:
			actions = append(actions, GotoTable{i.u8()})
		default:
			i.fail("instruction %d is not known", typ)
		}
		if i.err != nil {
			r.fail("%w", i.err)
		}
	}
	return actions
}

func (r *reader) groupDesc() GroupDesc {
	e := r.sub(int(r.u16()) - 2)
	d := GroupDesc{Group: Group{Type: GroupType(e.u8())}}
	e.take(1)
	d.Group.ID = e.u32()
	n := int(e.u16())
	e.take(6)
	buckets := e.sub(n)
	if e.err != nil {
		r.fail("a group: %w", e.err)
		return d
	}
	for buckets.more() {
		d.Group.Buckets = append(d.Group.Buckets, buckets.bucket())
	}
	e.groupProperties(&d.Group)
	for _, err := range []error{buckets.err, e.err} {
		if err != nil && d.Err == nil {
			d.Err = fmt.Errorf("openflow: group %d: %w", d.Group.ID, err)
		}
	}
	return d
}

func (r *reader) bucket() Bucket {
	n, actions := int(r.u16()), int(r.u16())
	e := r.sub(n - 4)
	b := Bucket{ID: e.u32()}
	list := e.sub(actions)
	b.Actions = list.actions(0)
	for e.more() {
		typ, length := e.u16(), int(e.u16())
		p := e.sub(length - 4)
		e.take(min(e.left(), (8-length%8)%8))
		switch typ {
		case propWeight:
			b.Weight = p.u16()
		default:
			e.fail("property %d of a bucket is not known", typ)
		}
		if p.err != nil {
			e.fail("%w", p.err)
		}
	}
	for _, err := range []error{list.err, e.err} {
		if err != nil {
			r.fail("bucket %d: %w", b.ID, err)
		}
	}
	return b
}

func (r *reader) groupProperties(g *Group) {
	for r.more() {
		typ, n := r.u16(), int(r.u16())
		p := r.sub(n - 4)
		r.take(min(r.left(), (8-n%8)%8))
		vendor, exp := p.u32(), p.u32()
		if typ != propExperimenter || vendor != vendorNetronome || exp != selectionMethod {
			r.fail("property %#x of a group is not known", typ)
			return
		}
		p.take(4)
		name, _, _ := bytes.Cut(p.take(selectionNameSize), []byte{0})
		g.Method = string(name)
		g.MethodParam = p.u64()
		for p.more() {
			f, _, size := p.fieldHeader()
			p.take(size)
			g.Fields = append(g.Fields, f)
		}
		if p.err != nil {
			r.fail("selection method: %w", p.err)
		}
	}
}

func (r *reader) meterDesc() MeterDesc {
	e := r.sub(int(r.u16()) - 2)
	flags := e.u16()
	d := MeterDesc{Meter: Meter{ID: e.u32(), PerPacket: flags&meterPktps != 0}}
	if e.err != nil {
		r.fail("a meter: %w", e.err)
		return d
	}
	typ, n := e.u16(), e.u16()
	d.Meter.Rate, d.Meter.Burst = e.u32(), e.u32()
	e.take(4)
	switch {
	case e.err != nil:
		d.Err = fmt.Errorf("openflow: meter %d: %w", d.Meter.ID, e.err)
	case typ != bandDrop || n != 16 || e.more():
		d.Err = fmt.Errorf("openflow: meter %d is not one that drops at a single rate", d.Meter.ID)
	case flags&meterBurst == 0:
		d.Meter.Burst = 0
	}
	return d
}

const (
	portNameSize = 16
	portDown     = 1
	portNoLink   = 1
)

func (r *reader) port() PortDesc {
	d := PortDesc{Port: Port(r.u32())}
	n := int(r.u16())
	e := r.sub(n - 6)
	e.take(2)
	if b := e.take(6); b != nil {
		d.MAC = [6]byte(b)
	}
	e.take(2)
	name, _, _ := bytes.Cut(e.take(portNameSize), []byte{0})
	d.Name = string(name)
	d.Down = e.u32()&portDown != 0
	d.NoLink = e.u32()&portNoLink != 0
	if e.err != nil {
		r.fail("port %d: %w", d.Port, e.err)
	}
	return d
}

func (r *reader) flowRemoved() Body {
	var f FlowRemoved
	f.Flow.Table = r.u8()
	f.Reason = r.u8()
	f.Flow.Priority = r.u16()
	f.Flow.IdleTimeout = r.u16()
	f.Flow.HardTimeout = r.u16()
	f.Flow.Cookie = r.u64()
	m := reader{b: r.rest()}
	if r.err == nil {
		f.Flow.Match = m.match()
		f.Err = m.err
	}
	return f
}
