package sim

import (
	"errors"
	"fmt"
	"hash/fnv"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// run is what all rounds of a packet share.
type run struct {
	result *Result
	steps  int
}

// walk is one round of a packet: up to a recirculation, which is a walk of its own.
type walk struct {
	sw  *Switch
	run *run
	// p is the packet as flows see it.
	p Packet
	// wire is what the packet has otherwise where it is sent: what NAT rewrote in a
	// connection tracker that the packet did not come back from.
	wire of.Match
	// was is what the last ct said, whatever flows see of it.
	was tracked

	round, depth, resubmits int
	// nested counts all that the trace shows as such.
	nested int
	table  uint8
	flow   *of.Flow
}

// visit says how a table is searched.
type visit struct {
	table uint8
	// inPort that the search sees; zero is the packet's.
	inPort of.Port
	// original searches with the tuple of the connection's first packet.
	original bool
	// deeper counts towards the limit of nesting.
	deeper bool
}

// errStop ends the actions of one flow, and of no other.
var errStop = errors.New("stop")

// enter searches a table and does what is found there.
func (w *walk) enter(v visit) error {
	switch {
	case w.depth >= maxDepth:
		return fmt.Errorf("table %d: more than %d resubmits within each other: a loop", v.table, maxDepth)
	case w.resubmits >= maxResubmits, w.run.steps >= maxSteps:
		return fmt.Errorf("table %d: more than %d tables were searched for one packet", v.table, w.resubmits)
	}
	w.run.steps++
	table, flow := w.table, w.flow
	defer func() { w.table, w.flow = table, flow }()
	w.table = v.table
	w.flow = w.sw.Pipeline.lookup(v.table, w.seen(v))
	if w.flow == nil {
		w.run.result.Why = fmt.Sprintf("no flow in table %s", w.place())
		w.note(Missed, nil, "")
		return nil
	}
	w.note(Matched, nil, "")
	if len(w.flow.Actions) == 0 {
		w.run.result.Why = w.flow.Comment
		if w.flow.Comment == "" {
			w.run.result.Why = fmt.Sprintf("dropped in table %s by %s", w.place(), describe(w.flow))
		}
	}
	w.resubmits++
	if v.deeper {
		w.depth++
		defer func() { w.depth-- }()
	}
	return w.flowActions(w.flow.Actions)
}

// flowActions does the actions of one flow or bucket.
func (w *walk) flowActions(list []of.Action) error {
	if err := w.actions(list); err != nil && !errors.Is(err, errStop) {
		return err
	}
	return nil
}

// seen is the packet as a table is searched with.
func (w *walk) seen(v visit) *Packet {
	if v.inPort == 0 && !v.original {
		return &w.p
	}
	p := w.p
	if v.inPort != 0 {
		p.set(of.InPort, uint64(v.inPort))
	}
	if v.original {
		for _, pair := range [...][2]of.Field{
			{of.IPSrc, of.CTNwSrc}, {of.IPDst, of.CTNwDst}, {of.IPv6Src, of.CTIPv6Src}, {of.IPv6Dst, of.CTIPv6Dst}, {of.IPProto, of.CTNwProto},
		} {
			p.Set(pair[0], w.p.Get(pair[1]))
		}
		src, dst, ok := p.ports()
		if !ok {
			src, dst = of.ICMPType, of.ICMPCode
			if p.num(of.EthType) == of.EthTypeIPv6 {
				src, dst = of.ICMPv6Type, of.ICMPv6Code
			}
		}
		p.Set(src, w.p.Get(of.CTTpSrc))
		p.Set(dst, w.p.Get(of.CTTpDst))
	}
	return &p
}

// actions does a list of actions in order.
func (w *walk) actions(list []of.Action) error {
	for i, a := range list {
		if c, ok := a.(of.CheckPktLarger); ok {
			return w.checkLength(c, list[i+1:])
		}
		if err := w.action(a); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) action(a of.Action) error {
	switch a := a.(type) {
	case of.Output:
		return w.output(a, a.Port)
	case of.OutputField:
		return w.outputField(a)
	case of.SetField:
		w.setField(a)
	case of.Move:
		w.move(a)
	case of.GotoTable:
		if a.Table <= w.table {
			return w.fault(a, "it does not lead to a later table")
		}
		return w.enter(visit{table: a.Table})
	case of.Resubmit:
		return w.resubmit(a)
	case of.CT:
		return w.ct(a)
	case of.CTClear:
		w.p.untrack()
		w.was = tracked{}
		w.note(Tracked, a, "forgotten")
	case of.Clone:
		return w.clone(a)
	case of.DecTTL:
		return w.decTTL(a)
	case of.GroupAction:
		return w.group(a)
	case of.MeterAction:
		w.note(Ignored, a, "meters let everything pass here")
	case of.Note, of.Conjunction:
	case nil:
		return w.fault(nil, "the action is nil")
	default:
		return w.fault(a, "it is not simulated")
	}
	return nil
}

// fault is an error of an action.
func (w *walk) fault(a of.Action, format string, args ...any) error {
	flow := "a flow"
	if w.flow != nil {
		flow = describe(w.flow)
		if w.flow.Comment != "" {
			flow += " (" + w.flow.Comment + ")"
		}
	}
	text := ""
	if a != nil {
		text = of.FormatActions([]of.Action{a})
	}
	return fmt.Errorf("table %s, %s: action %s: %w", w.place(), flow, text, fmt.Errorf(format, args...))
}

func (w *walk) place() string { return Step{Table: w.table, Name: w.name()}.Place() }

func (w *walk) name() string {
	if w.sw.TableName == nil {
		return ""
	}
	if name := w.sw.TableName(w.table); name != fmt.Sprint(w.table) {
		return name
	}
	return ""
}

// note adds a step to the trace, if there is to be one.
func (w *walk) note(e Effect, a of.Action, format string, args ...any) {
	if !w.sw.Trace {
		return
	}
	s := Step{Round: w.round, Depth: w.nested, Table: w.table, Name: w.name(), Effect: e, Detail: fmt.Sprintf(format, args...)}
	if w.flow != nil {
		s.Flow, s.Comment = describe(w.flow), w.flow.Comment
	}
	if a != nil {
		s.Statement = of.FormatActions([]of.Action{a})
	}
	w.run.result.Trace = append(w.run.result.Trace, s)
}

func (w *walk) resubmit(a of.Resubmit) error {
	v := visit{table: a.Table, original: a.OriginalTuple}
	if a.Table == of.TableAll {
		v.table = w.table
	}
	if a.InPort != of.PortInPort {
		v.inPort = a.InPort
	}
	if a.OriginalTuple && (w.p.num(of.CTNwProto) == 0 || !w.p.isIP()) {
		w.note(Ignored, a, "the packet is not tracked")
		return nil
	}
	v.deeper = v.table <= w.table
	w.note(Went, a, "to table %d, and comes back", v.table)
	w.nested++
	defer func() { w.nested-- }()
	return w.enter(v)
}

func (w *walk) clone(a of.Clone) error {
	w.note(Went, a, "with a copy")
	before := *w
	w.nested++
	err := w.flowActions(a.Actions)
	w.p, w.was, w.wire, w.nested = before.p, before.was, before.wire, before.nested
	return err
}

// checkLength does the rest of the actions to a copy that knows how long it is
// (xlate_check_pkt_larger).
func (w *walk) checkLength(a of.CheckPktLarger, rest []of.Action) error {
	before := w.p
	larger := uint64(0)
	if w.p.Length > int(a.Length) {
		larger = 1
	}
	w.p.write(a.To.Field, of.Num(larger).Lsh(int(a.To.Offset)), a.To.Mask())
	w.note(Changed, a, "%d bytes: %s is %d", w.p.Length, a.To, larger)
	err := w.actions(rest)
	w.p = before
	return err
}

func (w *walk) group(a of.GroupAction) error {
	g, ok := w.sw.Pipeline.groups[a.ID]
	if !ok {
		w.run.result.Why = fmt.Sprintf("group %d does not exist", a.ID)
		w.note(Ignored, a, "there is no such group")
		return nil
	}
	if w.depth >= maxDepth || w.resubmits >= maxResubmits || w.run.steps >= maxSteps {
		return w.fault(a, "groups are nested more than %d deep, or too many: a loop", maxDepth)
	}
	w.run.steps++
	switch g.Type {
	case of.GroupAll, of.GroupIndirect:
		for i := range g.Buckets {
			if err := w.bucket(a, g.Buckets[i]); err != nil {
				return err
			}
		}
		return nil
	case of.GroupSelect:
		i, ok := w.choose(g)
		if !ok {
			w.run.result.Why = fmt.Sprintf("group %d has no bucket to choose", a.ID)
			w.note(Ignored, a, "no bucket has a weight")
			return nil
		}
		return w.bucket(a, g.Buckets[i])
	}
	return w.fault(a, "a group of type %s is not simulated", g.Type)
}

// choose takes a bucket of a select group.
func (w *walk) choose(g of.Group) (int, bool) {
	var candidates []int
	var total uint64
	for i, b := range g.Buckets {
		if b.Weight > 0 {
			candidates = append(candidates, i)
			total += uint64(b.Weight)
		}
	}
	if len(candidates) == 0 {
		return 0, false
	}
	if w.sw.Choose != nil {
		i := w.sw.Choose(g, candidates, w.p)
		if i < 0 || i >= len(g.Buckets) {
			return 0, false
		}
		return i, true
	}
	h := fnv.New64a()
	fmt.Fprint(h, g.ID, w.p.Tuple())
	at := h.Sum64() % total
	for _, i := range candidates {
		if at < uint64(g.Buckets[i].Weight) {
			return i, true
		}
		at -= uint64(g.Buckets[i].Weight)
	}
	return 0, false
}

// bucket does the actions of a bucket to a copy (xlate_group_bucket).
func (w *walk) bucket(a of.Action, b of.Bucket) error {
	w.note(Went, a, "bucket %d", b.ID)
	before := w.p
	w.depth++
	w.nested++
	err := w.flowActions(inSetOrder(b.Actions))
	w.nested--
	w.depth--
	w.p = before
	return err
}

// inSetOrder is a list of actions as an action set does them
// (ofpacts_execute_action_set): the last dec_ttl, then what sets fields, then one last
// action, without which nothing happens.
func inSetOrder(list []of.Action) []of.Action {
	var ttl, last of.Action
	var sets []of.Action
	rank := 0
	final := func(a of.Action, r int) {
		if r >= rank {
			last, rank = a, r
		}
	}
	for _, a := range list {
		switch a.(type) {
		case of.DecTTL:
			ttl = a
		case of.SetField, of.Move:
			sets = append(sets, a)
		case of.CT:
			final(a, 1)
		case of.CTClear:
			final(a, 2)
		case of.Resubmit:
			final(a, 3)
		case of.Output:
			final(a, 4)
		case of.GroupAction:
			final(a, 5)
		}
	}
	if last == nil {
		return nil
	}
	if ttl != nil {
		sets = append([]of.Action{ttl}, sets...)
	}
	return append(sets, last)
}
