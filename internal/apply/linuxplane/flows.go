package linuxplane

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/rtnl"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/flows"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// Flows are the entries of the kernel's connection tracking; *conntrack.Table is that.
type Flows interface {
	Walk(context.Context, []conntrack.Query, func(conntrack.Flow) conntrack.Decision) (conntrack.Result, error)
	io.Closer
}

// mostFlows bounds the flows that a Report names one by one.
const mostFlows = 20

// followPolicy makes the flows that the kernel knows already obey the rules that are in
// force now. If that does not succeed it is not known what was done: the next Apply
// looks at all flows.
func (a *application) followPolicy(ctx context.Context, desired intent.Node) {
	// Flows that nobody has judged are there when the table has just been made, and when an
	// agent of before there was policy had made it. What is not known to conntrack yet is
	// judged by the table when it sends again.
	change := flows.Compare(a.judged, desired, flows.Options{Adopting: a.made || a.judged == nil, AddOnly: a.options.AddOnly})
	err := a.decideFlows(ctx, desired, change)
	switch {
	case err != nil:
		a.judged = nil
		a.fail(apply.ObjectError{
			Ref: intent.Ref{Kind: "Node", Name: desired.Name},
			Err: fmt.Errorf("flows that began before may not follow policy; the next apply tries again: %w", err),
		})
	case !a.options.AddOnly:
		a.judged = &desired
	}
}

func (a *application) decideFlows(ctx context.Context, desired intent.Node, change *flows.Change) error {
	var queries []conntrack.Query
	for _, q := range change.Queries() {
		// Nobody has the address, and before somebody does its flows are forgotten.
		if q.End.IsValid() && a.vacant.keeps(q.End, desired) || q.Cut && !a.cut.may(change.Peer) {
			continue
		}
		queries = append(queries, query(q))
	}
	if len(queries) == 0 {
		return nil
	}
	own, err := a.ns.Addresses()
	if err != nil {
		return err
	}
	decider := change.Decider(own)
	var done tally
	cut := a.cut.during(queries)
	_, err = a.flows.Walk(ctx, queries, func(f conntrack.Flow) conntrack.Decision {
		first := firstPacket(f)
		v, why := decider.Decide(flows.Flow{First: first, Mark: f.Mark})
		done.add(v, first, why)
		if v == flows.Cut || v == flows.Keep && f.Mark&claims.CTCut != 0 {
			cut.add(first.Src, first.Dst)
		}
		mark, mask := v.Mark()
		return conntrack.Decision{Delete: v == flows.Forget, Mark: mark, Mask: mask}
	})
	a.report.Changes = append(a.report.Changes, done.lines()...)
	if err != nil {
		cut = cuts{}
	}
	a.cut = cut
	return err
}

// cuts knows the ends of all flows that were cut, so that a change which can only make more
// allowed need not look for such flows among all others. The zero value does not know them.
type cuts struct {
	known bool
	ends  map[netip.Addr]bool
}

// mostCuts bounds the ends that are remembered.
const mostCuts = 4096

// may reports whether a flow that was cut can have an end of which is says true.
func (c *cuts) may(is func(netip.Addr) bool) bool {
	if !c.known {
		return true
	}
	for a := range c.ends {
		if is(a) {
			return true
		}
	}
	return false
}

// during is what to add to while flows are read: what is known, or nothing if all that
// were cut will be seen.
func (c *cuts) during(queries []conntrack.Query) cuts {
	if slices.Contains(queries, conntrack.Query{}) || slices.Contains(queries, query(flows.Query{Cut: true})) {
		return cuts{known: true, ends: map[netip.Addr]bool{}}
	}
	return *c
}

func (c *cuts) add(ends ...netip.Addr) {
	for _, a := range ends {
		if c.known = c.known && len(c.ends) < mostCuts; c.known {
			c.ends[a] = true
		}
	}
}

// vacate makes ports that begin to carry inherit no flow, whatever was sent to their
// addresses before. It comes between their rules and their links, with which nobody
// reaches them who was not judged by their lists:
//
//   - A packet for such an address was marked as judged only where it had a route, which
//     led away from here: to another node, or out, when the address was nobody's or
//     somebody else's as far as this node knew. The flow lives as long as somebody sends.
//   - links.Vacate ends that: such packets find an unreachable route, which is before the
//     rules, so that nothing is marked and no new flow is known. What had its route before
//     is through when it returns.
//   - So what is forgotten then does not come back until Commit sets the link up and gives
//     it the route. The rules of the port are there by then, and judge the first packet.
//
// What the pod of another node had to do with the address is looked after by that node,
// and by followPolicy: sets name the addresses of pods elsewhere. It does not matter
// what was applied before, by whom, and whether all of it succeeded: a link that is up is
// one that has gone through this.
func (a *application) vacate(ctx context.Context, desired intent.Node, state linux.State) error {
	var vacated rtnl.Result
	var addrs []netip.Addr
	var err error
	a.aside(func() { vacated, addrs, err = a.links.Vacate(ctx, state, a.options) })
	a.took(vacated)
	if err != nil {
		a.vacant.forget()
		return fmt.Errorf("make the addresses of new ports unreachable: %w", err)
	}
	// Whatever was done to routes, what was known of them is not known any more.
	sure := !a.options.AddOnly && len(vacated.Failed) == 0
	if !sure || len(vacated.Changes) > 0 {
		a.vacant.forget()
	}
	known := !slices.ContainsFunc(addrs, func(addr netip.Addr) bool { return !a.vacant.has(addr) })
	if len(addrs) > 0 && !known {
		if err := a.forgetVacant(ctx, desired, addrs, sure); err != nil {
			return err
		}
	}
	a.vacant.follow(desired)
	return nil
}

// forgetVacant forgets the flows of addresses, and if sure, those of all vacant ones of the
// node's blocks, so that the next port need not.
func (a *application) forgetVacant(ctx context.Context, desired intent.Node, addrs []netip.Addr, sure bool) error {
	coming := make(map[netip.Addr]bool, len(addrs))
	queries := make([]conntrack.Query, 0, len(addrs))
	for _, addr := range addrs {
		coming[addr] = true
		queries = append(queries, conntrack.Query{End: addr})
	}
	gone := func(addr netip.Addr) bool { return coming[addr] }
	var all vacancy
	if sure {
		all.forgotten(desired)
		queries = []conntrack.Query{{}}
		gone = func(addr netip.Addr) bool { return coming[addr] || all.has(addr) }
	}
	r, err := a.flows.Walk(ctx, queries, func(f conntrack.Flow) conntrack.Decision {
		return conntrack.Decision{Delete: gone(f.Src) || gone(f.ReplySrc)}
	})
	if r.Changed > 0 {
		a.report.Changes = append(a.report.Changes, fmt.Sprintf("forget %d flows of addresses that nobody has, or that new pods get", r.Changed))
	}
	if err != nil {
		a.vacant.forget()
		return fmt.Errorf("forget flows of the addresses of new ports: %w", err)
	}
	if sure {
		a.vacant = all
	}
	return nil
}

func query(q flows.Query) conntrack.Query {
	out := conntrack.Query{End: q.End}
	switch {
	case q.Unjudged:
		out.Mask = claims.CTJudged | claims.CTCut
	case q.Cut:
		out.Mark, out.Mask = claims.CTCut, claims.CTCut
	}
	return out
}

// firstPacket is a flow's first packet as the rules saw it: behind destination NAT,
// before source NAT.
func firstPacket(f conntrack.Flow) packet.Packet {
	return packet.Packet{Src: f.Src, Dst: f.ReplySrc, Protocol: f.Protocol, SrcPort: f.SrcPort, DstPort: f.ReplySrcPort}
}

// tally counts what is done to flows.
type tally struct {
	named []string
	count [flows.Forget + 1]int
}

func (t *tally) add(v flows.Verdict, first packet.Packet, why string) {
	t.count[v]++
	if (v != flows.Cut && v != flows.Uncut) || len(t.named) == mostFlows {
		return
	}
	line := fmt.Sprintf("%s flow %s", v, first)
	if why != "" {
		line += " (" + why + ")"
	}
	t.named = append(t.named, line)
}

func (t *tally) lines() []string {
	out := t.named
	if more := t.count[flows.Cut] + t.count[flows.Uncut] - len(t.named); more > 0 {
		out = append(out, fmt.Sprintf("%d more flows, %d cut and %d uncut in all", more, t.count[flows.Cut], t.count[flows.Uncut]))
	}
	for _, what := range []struct {
		verdict flows.Verdict
		format  string
	}{
		{flows.Judge, "adopt %d flows that nobody had judged"},
		{flows.Forget, "forget %d flows of addresses that pods gave up"},
	} {
		if n := t.count[what.verdict]; n > 0 {
			out = append(out, fmt.Sprintf(what.format, n))
		}
	}
	return out
}
