package openflow

import "fmt"

// FlowMonitorID names a monitor within a connection.
type FlowMonitorID uint32

// MonitorFlags say what a monitor tells (OpenFlow 1.5.1, 7.3.5.17).
type MonitorFlags uint16

const (
	// MonitorInitial tells the flows that exist when the monitor is made.
	MonitorInitial MonitorFlags = 1 << iota
	MonitorAdded
	MonitorRemoved
	MonitorModified
	// MonitorActions tells the actions of flows too.
	MonitorActions
	// MonitorOwn tells in full what this connection itself changes. Without it
	// such a change is an UpdateOwn.
	MonitorOwn
)

const monitorDelete = 2

// AppendFlowMonitor appends a request to be told about changes of the flows that
// a filter chooses (its cookie is not looked at). The answer is a FlowUpdates with
// this xid; each later change is one with xid 0.
func AppendFlowMonitor(b []byte, xid uint32, id FlowMonitorID, f FlowFilter, flags MonitorFlags) []byte {
	b, start := beginMultipart(b, multipartMonitor, xid)
	return finish(appendMonitor(b, id, f, flags, 0), start)
}

// AppendFlowMonitorCancel appends a request to be told no more.
func AppendFlowMonitorCancel(b []byte, xid uint32, id FlowMonitorID) []byte {
	b, start := beginMultipart(b, multipartMonitor, xid)
	return finish(appendMonitor(b, id, FlowFilter{}, 0, monitorDelete), start)
}

func appendMonitor(b []byte, id FlowMonitorID, f FlowFilter, flags MonitorFlags, command byte) []byte {
	b = be32(b, uint32(id))
	b = be32(b, anything)
	b = be32(b, anything)
	b = be16(b, uint16(flags))
	b = append(b, f.Table, command)
	return appendMatch(b, f.Match)
}

// FlowUpdates is what a monitor tells.
type FlowUpdates struct {
	Updates []FlowUpdate
	More    bool
}

func (FlowUpdates) body() {}

// FlowEvent is what happened to a flow.
type FlowEvent uint16

// The events (OpenFlow 1.5.1, 7.3.5.17).
const (
	UpdateInitial FlowEvent = iota
	UpdateAdded
	UpdateRemoved
	UpdateModified
	// UpdateOwn is a change that this connection made with the message XID.
	UpdateOwn
	// UpdatePaused says that updates are lost from now on, as the reader is too
	// slow; UpdateResumed that they are not any more, and that all flows that
	// changed meanwhile were told.
	UpdatePaused
	UpdateResumed
)

// FlowUpdate is one change.
type FlowUpdate struct {
	Event FlowEvent
	// Flow is the flow; with its actions if MonitorActions was asked for.
	Flow Flow
	// Reason is why the flow was removed, as in FlowRemoved.
	Reason uint8
	// XID is that of the message that UpdateOwn is about.
	XID uint32
	// Err says why match or actions could not be read.
	Err error
}

func (r *reader) flowUpdates(more bool) Body {
	u := FlowUpdates{More: more}
	for r.more() {
		u.Updates = append(u.Updates, r.flowUpdate())
	}
	return u
}

func (r *reader) flowUpdate() FlowUpdate {
	e := r.sub(int(r.u16()) - 2)
	u := FlowUpdate{Event: FlowEvent(e.u16())}
	switch {
	case u.Event == UpdateOwn:
		u.XID = e.u32()
	case u.Event <= UpdateModified:
		f := &u.Flow
		f.Table = e.u8()
		u.Reason = e.u8()
		f.IdleTimeout, f.HardTimeout, f.Priority = e.u16(), e.u16(), e.u16()
		e.take(4)
		f.Cookie = e.u64()
		if e.err == nil {
			f.Match = e.match()
			f.Actions = e.instructions()
			if u.Err = e.err; u.Err != nil {
				u.Err = fmt.Errorf("openflow: a flow of table %d, priority %d, cookie %#x: %w", f.Table, f.Priority, f.Cookie, e.err)
			}
			return u
		}
	}
	if e.err != nil {
		r.fail("an update: %w", e.err)
	}
	return u
}
