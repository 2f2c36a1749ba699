package ovsplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// adoptFor is how long TCP flows may go on that connection tracking does not know: a
// sender that hears nothing sends again within that time.
const adoptFor = 30 * time.Second

// flowState is what is known of the bridge's tables.
type flowState struct {
	// known: the tables hold pipe and cut, and nothing else of ours, unless State says so.
	known bool
	// connection and touched are those of openflowconn.State when we last looked.
	connection, touched uint64
	pipe                *ovs.Pipeline
	// numbers are those of ports that pipe names.
	numbers ovs.Numbers
	// cut are the installed flows that cut conversations.
	cut []of.Flow
	// adopting: TCP may begin in the middle; until adoptUntil at least, and the first
	// Apply from then on.
	adopting   bool
	adoptUntil time.Time
}

// read lists what is installed. A switch with empty tables has forgotten its connections
// too: their flows are adopted. installed are the pipeline's flows.
func (a *application) read(ctx context.Context, st openflowconn.State) (installed []of.Flow, err error) {
	f := &a.flows
	f.known = false
	rules, err := a.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	f.cut = nil
	for _, flow := range rules.Flows {
		if isCut(flow) {
			f.cut = append(f.cut, flow)
		} else {
			installed = append(installed, flow)
		}
	}
	if st.Connection != f.connection {
		switch {
		case len(installed) == 0:
			f.adopting, f.adoptUntil = true, a.now().Add(adoptFor)
			// Should connection tracking be what it was, what cut has gone.
			a.tracks = tracks{}
		case f.connection == 0 && !refusesMiddle(installed):
			// Another agent began to adopt, and was gone before that was over.
			f.adopting, f.adoptUntil = true, a.now().Add(adoptFor)
		}
	}
	f.connection, f.touched = st.Connection, st.Touched
	a.seen.Store(st.Connection)
	return installed, nil
}

// refusesMiddle tells the flows of a pipeline that does not adopt.
func refusesMiddle(installed []of.Flow) bool {
	for _, want := range ovs.Render(intent.Node{}, nil, ovs.Options{}).Flows() {
		if want.Comment == ovs.MiddleOfTCP {
			return slices.ContainsFunc(installed, want.Equal)
		}
	}
	return false
}

// install makes the bridge's flows those of the intent.
func (a *application) install(ctx context.Context, desired intent.Node, numbers ovs.Numbers) error {
	f := &a.flows
	st, err := a.conn.Await(ctx)
	if err != nil {
		return err
	}
	var before []of.Flow
	reread := a.unread(st)
	if reread {
		if before, err = a.read(ctx, st); err != nil {
			return err
		}
	}
	// Of two versions of the pipeline there is never some of each.
	upgrade := len(before) > 0 && !ovs.OfThisVersion(before)
	if upgrade && a.options.AddOnly {
		f.known = false
		return errors.New("they are those of another version of the pipeline, and stay until the whole cluster is known again")
	}
	next := ovs.RenderAfter(f.pipe, desired, numbers, ovs.Options{Adopting: a.adopts()})
	for _, p := range next.Problems {
		a.fail(apply.ObjectError{Ref: p.Ref, Err: errors.New(p.Text)})
	}
	after := next.Flows()
	if !reread {
		before, after = next.Since(f.pipe)
	}
	whole, err := a.commit(ctx, desired, next, before, after, upgrade, reread && len(before) == 0)
	f.pipe, f.numbers, f.known = next, numbers, err == nil && whole
	return err
}

// adopts reports whether TCP may begin in the middle still.
func (a *application) adopts() bool {
	f := &a.flows
	if f.adopting && !a.options.AddOnly && !a.now().Before(f.adoptUntil) {
		f.adopting = false
	}
	return f.adopting
}

// unread reports whether the tables may hold something else than is known.
func (a *application) unread(st openflowconn.State) bool {
	f := &a.flows
	return !f.known || a.options.Refresh || st.Connection != f.connection || st.Touched != f.touched || !st.Watching
}

// commit brings the difference in. Flows of a port or a list that the switch refuses are
// left out with all that belongs to it; that closes, and opens nothing. whole reports
// whether nothing was left out or kept. upgrade is from another version of the pipeline;
// an empty bridge has no flows yet.
func (a *application) commit(ctx context.Context, desired intent.Node, p *ovs.Pipeline, before, after []of.Flow, upgrade, empty bool) (whole bool, err error) {
	whole = true
	const tries = 4
	for try := 1; ; try++ {
		changes := openflowconn.Diff(openflowconn.Rules{Flows: before}, openflowconn.Rules{Flows: after})
		if a.options.AddOnly {
			all := len(changes.Flows)
			changes.Flows = onlyAdditions(changes.Flows, before)
			whole = whole && len(changes.Flows) == all
		}
		if changes.Empty() {
			return whole, nil
		}
		inOrder(changes.Flows)
		changes.Together = upgrade || !empty && slices.ContainsFunc(changes.Flows, asksLists)
		err := a.conn.Commit(ctx, changes)
		var refused *openflowconn.RefusedError
		if err == nil {
			a.report.Changes = append(a.report.Changes, tellFlows(changes.Flows))
			return whole, nil
		}
		if !errors.As(err, &refused) {
			return false, err
		}
		whole = false
		left := without(p, after, a.refuse(desired, p, refused))
		if try == tries || len(left) == len(after) {
			return false, err
		}
		after = left
	}
}

// refuse fails the objects whose flows the switch refused, and returns those flows.
func (a *application) refuse(desired intent.Node, p *ovs.Pipeline, refused *openflowconn.RefusedError) map[of.Key]bool {
	keys := map[of.Key]bool{}
	for _, r := range refused.Refused {
		ref := objectOf(desired, r.Comment())
		if r.Flow != nil {
			key := r.Flow.Flow.Key()
			keys[key] = true
			if owner, ok := ownerOf(p, key); ok {
				ref = owner
			}
		}
		a.fail(apply.ObjectError{Ref: ref, Err: fmt.Errorf("the switch refuses %s", r)})
	}
	return keys
}

// ownerOf is the port or the list that all of the flow's part belongs to.
func ownerOf(p *ovs.Pipeline, key of.Key) (intent.Ref, bool) {
	for _, part := range p.Parts {
		if slices.ContainsFunc(part.Flows, func(f of.Flow) bool { return f.Key() == key }) {
			if id, ok := strings.CutPrefix(part.Name, "port "); ok {
				return intent.PortRef(id), true
			}
			id, ok := strings.CutPrefix(part.Name, "list ")
			return intent.RuleList{ID: id}.Ref(), ok
		}
	}
	return intent.Ref{}, false
}

// objectOf finds the object that a flow's comment names; the node if there is none.
func objectOf(n intent.Node, comment string) intent.Ref {
	best := intent.Ref{Kind: "Node", Name: n.Name}
	found := ""
	see := func(r intent.Ref) {
		if s := r.String(); len(s) > len(found) && strings.Contains(comment, s) {
			best, found = r, s
		}
	}
	for _, p := range n.Ports {
		see(p.Ref())
	}
	for _, r := range n.Routes {
		see(r.Ref())
	}
	for _, l := range n.RuleLists {
		see(l.Ref())
	}
	for _, s := range n.AddressSets {
		see(s.Ref())
	}
	for _, t := range n.Tunnels {
		see(t.Ref())
	}
	for _, p := range n.Peers {
		see(p.Ref())
	}
	for _, s := range n.Subnets {
		see(s.Ref())
	}
	for _, v := range n.VPCs {
		see(v.Ref())
	}
	return best
}

// without leaves out the parts of ports and lists that hold one of the flows.
func without(p *ovs.Pipeline, flows []of.Flow, refused map[of.Key]bool) []of.Flow {
	drop := map[of.Key]bool{}
	for _, part := range p.Parts {
		if !strings.HasPrefix(part.Name, "port ") && !strings.HasPrefix(part.Name, "list ") {
			continue
		}
		if slices.ContainsFunc(part.Flows, func(f of.Flow) bool { return refused[f.Key()] }) {
			for _, f := range part.Flows {
				drop[f.Key()] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(flows), func(f of.Flow) bool { return drop[f.Key()] })
}

// asksLists tells the flows of lists and of their peers. What the number of a class means
// is said by all of them together: they change in one bundle.
func asksLists(m of.FlowMod) bool { return direction(m) != 0 }

// direction is which lists such a flow belongs to: the first table of those, 0 for another
// flow.
func direction(m of.FlowMod) uint8 {
	if _, ofPort := m.Flow.Match.Get(ovs.SourcePort.Field); ofPort {
		return 0 // a pod is not asked about what it sends to itself
	}
	switch t := m.Flow.Table; {
	case t >= ovs.TableEgressPeer && t <= ovs.TableEgressPorts:
		return ovs.TableEgressPeer
	case t >= ovs.TableIngressPeer && t <= ovs.TableIngressPorts:
		return ovs.TableIngressPeer
	}
	return 0
}

// onlyAdditions are the changes that neither alter nor remove an installed flow. If lists
// of one direction cannot become what they should be by additions alone, they stay what
// they are; one that is not there yet allows nothing.
func onlyAdditions(mods []of.FlowMod, installed []of.Flow) []of.FlowMod {
	have := make(map[of.Key]bool, len(installed))
	for _, f := range installed {
		have[f.Key()] = true
	}
	stay := map[uint8]bool{}
	mods = slices.DeleteFunc(mods, func(m of.FlowMod) bool {
		if m.Command == of.FlowAdd && !have[m.Flow.Key()] {
			return false
		}
		stay[direction(m)] = true
		return true
	})
	stay[0] = false
	return slices.DeleteFunc(mods, func(m of.FlowMod) bool { return stay[direction(m)] })
}

// inOrder sorts changes so that a flow is there before what leads to it, and goes after
// it, should they not fit into one bundle.
func inOrder(mods []of.FlowMod) {
	removes := func(m of.FlowMod) int {
		if m.Command == of.FlowDeleteStrict {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(mods, func(a, b of.FlowMod) int {
		if c := cmp.Compare(removes(a), removes(b)); c != 0 {
			return c
		}
		if removes(a) == 1 {
			return cmp.Compare(a.Flow.Table, b.Flow.Table)
		}
		return cmp.Compare(b.Flow.Table, a.Flow.Table)
	})
}

func tellFlows(mods []of.FlowMod) string {
	var add, change, remove int
	for _, m := range mods {
		switch m.Command {
		case of.FlowAdd:
			add++
		case of.FlowDeleteStrict:
			remove++
		default:
			change++
		}
	}
	return fmt.Sprintf("add %d, change %d and remove %d flows", add, change, remove)
}

// auditFlows compares the bridge's flows with those of an intent.
func (p *Plane) auditFlows(ctx context.Context, desired intent.Node) ([]apply.Difference, error) {
	numbers, err := p.numbers(ctx)
	if err != nil {
		return nil, err
	}
	rules, err := p.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	installed := slices.DeleteFunc(rules.Flows, isCut)
	want := ovs.RenderAfter(p.flows.pipe, desired, numbers, ovs.Options{Adopting: p.flows.adopting || p.flows.pipe == nil && !refusesMiddle(installed)})
	var out []apply.Difference
	for _, m := range openflowconn.Diff(openflowconn.Rules{Flows: installed}, openflowconn.Rules{Flows: want.Flows()}).Flows {
		d := apply.Difference{Subsystem: "ovs", Object: "flow " + m.Flow.String(), Problem: differs}
		switch m.Command {
		case of.FlowAdd:
			d.Problem, d.Want = missing, m.Flow.Comment
		case of.FlowDeleteStrict:
			d.Problem = unexpected
		}
		out = append(out, d)
	}
	all, err := p.conn.Flows(ctx, of.FlowFilter{Table: of.TableAll})
	return append(out, shadowing(all, want.Flows())...), err
}
