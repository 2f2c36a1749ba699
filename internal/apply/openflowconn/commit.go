package openflowconn

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/openflow"
)

// maxRefusals bounds how many refusals an error carries.
const maxRefusals = 32

// Refusal is one rule that cannot be installed. Exactly one of the pointers is set.
type Refusal struct {
	Flow  *openflow.FlowMod
	Group *GroupMod
	Meter *MeterMod
	// Err is the switch's openflow.Error, or why it was not sent.
	Err error
}

// Comment names the object that the rule came from, as the rule says.
func (r Refusal) Comment() string {
	switch {
	case r.Flow != nil:
		return r.Flow.Flow.Comment
	case r.Group != nil:
		return r.Group.Group.Comment
	case r.Meter != nil:
		return r.Meter.Meter.Comment
	}
	return ""
}

func (r Refusal) String() string {
	var said openflow.Error
	if !errors.As(r.Err, &said) {
		return r.Err.Error() // names the rule
	}
	var what string
	switch {
	case r.Flow != nil:
		what = "flow " + r.Flow.Flow.String()
	case r.Group != nil:
		what = "group " + r.Group.Group.String()
	case r.Meter != nil:
		what = "meter " + r.Meter.Meter.String()
	}
	if comment := r.Comment(); comment != "" {
		what += " (" + comment + ")"
	}
	return what + ": " + said.Name()
}

// RefusedError says that the switch refused rules. Of the bundle that they were in
// nothing holds.
type RefusedError struct {
	// Refused are at least one, at most 32 of the rules that were refused.
	Refused []Refusal
	// Committed counts the messages of earlier bundles of the same Commit, which hold.
	Committed int
}

// Error implements error.
func (e *RefusedError) Error() string {
	var b strings.Builder
	b.WriteString("the switch refuses ")
	for i, r := range e.Refused {
		if i == 3 {
			fmt.Fprintf(&b, " and %d more", len(e.Refused)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(r.String())
	}
	if e.Committed > 0 {
		fmt.Fprintf(&b, " (%d changes before it were made)", e.Committed)
	}
	return b.String()
}

// message is one change on its way.
type message struct {
	refusal Refusal // without its error
	append  func(b []byte, xid uint32) []byte
}

func flowMessage(m openflow.FlowMod) message {
	return message{Refusal{Flow: &m}, func(b []byte, xid uint32) []byte { return openflow.AppendFlowMod(b, xid, m) }}
}

func groupMessage(m GroupMod) message {
	return message{Refusal{Group: &m}, func(b []byte, xid uint32) []byte {
		return openflow.AppendGroupMod(b, xid, m.Command, m.Group)
	}}
}

func meterMessage(m MeterMod) message {
	return message{Refusal{Meter: &m}, func(b []byte, xid uint32) []byte {
		return openflow.AppendMeterMod(b, xid, m.Command, m.Meter)
	}}
}

// Commit makes changes, see the package. After an error the tables are as they were
// before the first bundle that is not mentioned as committed; after ErrUncertain or
// ErrDisconnected they must be read. A flow that is invalid in itself is refused before
// anything is sent.
func (c *Conn) Commit(ctx context.Context, changes Changes) error {
	if err := validate(changes); err != nil {
		return err
	}
	before, bundled, after := sequence(changes)
	if err := c.plain(ctx, before); err != nil {
		return err
	}
	committed, size := 0, c.config.MaxBundle
	if changes.Together {
		size = len(bundled)
	}
	for len(bundled) > 0 {
		part := bundled[:min(len(bundled), size)]
		if err := c.commit(ctx, part, committed); err != nil {
			return err
		}
		committed += len(part)
		bundled = bundled[len(part):]
	}
	return c.plain(ctx, after)
}

// Prepared is a bundle that the switch has taken, and of which nothing holds yet.
type Prepared struct {
	conn      *Conn
	id, first uint32
	messages  []message
}

// ErrNotOneBundle says that changes do not fit into one bundle.
var ErrNotOneBundle = errors.New("the changes do not fit into one bundle")

// Prepare hands changes to the switch as one bundle, to be committed or discarded within some
// seconds. Nothing of it holds, and it is a matter of one short message that it does.
func (c *Conn) Prepare(ctx context.Context, changes Changes) (*Prepared, error) {
	if err := validate(changes); err != nil {
		return nil, err
	}
	before, bundled, after := sequence(changes)
	if len(before)+len(after) > 0 || len(bundled) > c.config.MaxBundle {
		return nil, ErrNotOneBundle
	}
	return c.fill(ctx, bundled, 0)
}

// Commit makes the changes, or none of them; its errors are those of Conn.Commit.
func (p *Prepared) Commit(ctx context.Context) error {
	return p.conn.finish(ctx, p, &RefusedError{})
}

// Discard gives the bundle up.
func (p *Prepared) Discard(ctx context.Context) { p.conn.discard(ctx, p.id) }

// validate refuses what the switch would, or what cannot be sent at all.
func validate(changes Changes) error {
	refused := &RefusedError{}
	refuse := func(r Refusal, err error) {
		if err != nil && len(refused.Refused) < maxRefusals {
			r.Err = err
			refused.Refused = append(refused.Refused, r)
		}
	}
	for i, m := range changes.Flows {
		if rank(m.Command) == 0 {
			refuse(Refusal{Flow: &changes.Flows[i]}, m.Flow.Validate())
		} else {
			refuse(Refusal{Flow: &changes.Flows[i]}, m.Flow.Match.Validate())
		}
	}
	for i, m := range changes.Groups {
		if m.Command != openflow.GroupDelete {
			refuse(Refusal{Group: &changes.Groups[i]}, m.Group.Validate())
		}
	}
	for i, m := range changes.Meters {
		if m.Command != openflow.MeterDelete {
			refuse(Refusal{Meter: &changes.Meters[i]}, m.Meter.Validate())
		}
	}
	if len(refused.Refused) > 0 {
		return refused
	}
	return nil
}

// sequence orders changes so that what is there never refers to what is not: meters,
// groups and flows are made; flows, groups and meters are deleted.
func sequence(changes Changes) (before, bundled, after []message) {
	for _, m := range changes.Meters {
		if m.Command == openflow.MeterDelete {
			after = append(after, meterMessage(m))
		} else {
			before = append(before, meterMessage(m))
		}
	}
	bundled = make([]message, 0, len(changes.Groups)+len(changes.Flows))
	var groupsGone []message
	for _, m := range changes.Groups {
		if m.Command == openflow.GroupDelete {
			groupsGone = append(groupsGone, groupMessage(m))
		} else {
			bundled = append(bundled, groupMessage(m))
		}
	}
	for _, last := range []int{0, 1} {
		for _, m := range changes.Flows {
			if rank(m.Command) == last {
				bundled = append(bundled, flowMessage(m))
			}
		}
	}
	return before, append(bundled, groupsGone...), after
}

// plain sends messages outside of a bundle, and a barrier.
func (c *Conn) plain(ctx context.Context, messages []message) error {
	if len(messages) == 0 {
		return nil
	}
	first := c.reserve(len(messages) + 1)
	var b []byte
	for i, m := range messages {
		b = m.append(b, first+uint32(i))
	}
	refused := &RefusedError{}
	b = openflow.AppendBarrierRequest(b, first+uint32(len(messages)))
	err := c.do(ctx, first, len(messages)+1, b, refused.collect(first, messages, func(m openflow.Message) (bool, error) {
		return answered[openflow.BarrierReply](m)
	}))
	return uncertain(refused, err)
}

// collect makes a receiver that keeps the errors about messages, whose xids begin with
// first, and hands everything else to take.
func (e *RefusedError) collect(first uint32, messages []message, take func(openflow.Message) (bool, error)) func(openflow.Message) (bool, error) {
	return func(m openflow.Message) (bool, error) {
		i := m.Header.XID - first
		body, refused := m.Body.(openflow.Error)
		if !refused || i >= uint32(len(messages)) {
			return take(m)
		}
		if len(e.Refused) < maxRefusals {
			r := messages[i].refusal
			r.Err = body
			e.Refused = append(e.Refused, r)
		}
		return false, nil
	}
}

func uncertain(refused *RefusedError, err error) error {
	var said openflow.Error
	switch {
	case len(refused.Refused) > 0:
		return refused
	case errors.As(err, &said):
		return fmt.Errorf("the switch made no change: %w", said)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	}
	return nil
}

const bundleFlags = openflow.BundleAtomic | openflow.BundleOrdered

// commit sends one bundle. It is filled first; only when the switch has taken all of
// it, which a barrier tells, it is committed.
func (c *Conn) commit(ctx context.Context, messages []message, committed int) error {
	p, err := c.fill(ctx, messages, committed)
	if err != nil {
		return err
	}
	return c.finish(ctx, p, &RefusedError{Committed: committed})
}

func (c *Conn) fill(ctx context.Context, messages []message, committed int) (*Prepared, error) {
	id := c.bundle.Add(1)
	first := c.reserve(len(messages) + 2)
	open, barrier := first+uint32(len(messages)), first+uint32(len(messages))+1
	b := openflow.AppendBundleControl(make([]byte, 0, 160*(len(messages)+1)), open, id, openflow.BundleOpen, bundleFlags)
	for i, m := range messages {
		b = openflow.AppendBundleAdd(b, first+uint32(i), id, bundleFlags, m.append)
	}
	b = openflow.AppendBarrierRequest(b, barrier)
	refused := &RefusedError{Committed: committed}
	err := c.do(ctx, first, len(messages)+2, b, refused.collect(first, messages, func(m openflow.Message) (bool, error) {
		if m.Header.XID == open {
			_, err := answered[openflow.BundleReply](m)
			return false, err
		}
		return answered[openflow.BarrierReply](m)
	}))
	if err != nil || len(refused.Refused) > 0 {
		c.discard(ctx, id)
		if len(refused.Refused) > 0 {
			return nil, refused
		}
		return nil, fmt.Errorf("fill a bundle of %d changes: %w", len(messages), err)
	}
	return &Prepared{c, id, first, messages}, nil
}

// finish commits a bundle that is filled. The switch says which message it refused
// under that message's xid, and then that the commit failed.
func (c *Conn) finish(ctx context.Context, p *Prepared, refused *RefusedError) error {
	xid := c.reserve(1)
	// The errors bear the xids of the messages, which lie before that of the commit,
	// with those of other callers between.
	n := int(xid-p.first) + 1
	b := openflow.AppendBundleControl(nil, xid, p.id, openflow.BundleCommit, bundleFlags)
	err := c.do(ctx, p.first, n, b, refused.collect(p.first, p.messages, func(m openflow.Message) (bool, error) {
		if m.Header.XID != xid {
			return false, nil
		}
		return answered[openflow.BundleReply](m)
	}))
	return uncertain(refused, err)
}

// discard gives up a bundle. The switch forgets one that nobody touches after some
// seconds, so that a failure is no matter.
func (c *Conn) discard(ctx context.Context, id uint32) {
	xid := c.reserve(1)
	b := openflow.AppendBundleControl(nil, xid, id, openflow.BundleDiscard, bundleFlags)
	_ = c.do(ctx, xid, 1, b, func(m openflow.Message) (bool, error) {
		return answered[openflow.BundleReply](m)
	})
}
