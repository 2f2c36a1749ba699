package linuxplane

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/apply/rtnl"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// Readable is what a Filter may be beside: it finds the rules of a table in the kernel,
// by chain, in the order of each chain's rules.
type Readable interface {
	Rules(ctx context.Context, want nftables.Table) (map[string][]nft.KernelRule, error)
}

// Rules implements Readable.
func (f *nftFilter) Rules(ctx context.Context, want nftables.Table) (map[string][]nft.KernelRule, error) {
	return f.driver.Rules(ctx, want)
}

// Underlay stands for the node's device on the underlay, which no rule names.
const Underlay = "underlay"

// Host is what the table and the routes of a node do to packets. Planes that have more,
// such as a bridge, follow packets through it on their way.
type Host struct {
	Node  intent.Node
	Table nftables.Table
	// Routes that the node should have.
	Routes []linux.Route
	// Ports whose neighbours the node should have.
	Ports []linux.Port
}

// Leg is the part of a packet's way that leads through the host.
type Leg struct {
	Steps []apply.Step
	// Verdict is "accept" or "drop"; empty if no route leads on, which is not for rules to
	// say.
	Verdict string
	// Packet as it leaves by Packet.Out, or as the node itself gets it, if Local.
	Packet sim.Packet
	Local  bool

	// route is the index of the route's step, to whom it led.
	route int
	way   *way
	// looks are the sets that rules looked into.
	looks map[string]bool
}

// Send follows what the node itself sends.
func (h Host) Send(p sim.Packet) (Leg, error) {
	return h.follow(p, (*sim.Node).Send, func(s apply.Step) bool { return false })
}

// Receive follows what comes in by p.In.
func (h Host) Receive(p sim.Packet) (Leg, error) {
	return h.follow(p, (*sim.Node).Receive, func(s apply.Step) bool { return s.Hook == nftables.HookPrerouting.String() })
}

// follow walks a packet; before tells the steps that come before routing.
func (h Host) follow(p sim.Packet, walk func(*sim.Node, sim.Packet) (sim.Journey, error), before func(apply.Step) bool) (Leg, error) {
	w := &way{host: h}
	j, err := walk(&sim.Node{Rules: sim.New(h.Table), Routing: w, Addresses: w.fib, Trace: true}, p)
	if err != nil {
		return Leg{}, fmt.Errorf("follow the packet through the rules: %w", err)
	}
	l := Leg{Verdict: "accept", Packet: j.Packet, Local: j.Local, route: -1, way: w}
	switch {
	case w.nowhere:
		l.Verdict = ""
	case j.Dropped:
		l.Verdict = "drop"
	}
	l.Steps, l.looks = stepsOf(h.Table, j.Trace.Taken())
	if !w.asked {
		return l, nil // Dropped before.
	}
	l.route = slices.IndexFunc(l.Steps, func(s apply.Step) bool { return !before(s) })
	if l.route < 0 {
		l.route = len(l.Steps)
	}
	l.Steps = slices.Insert(l.Steps, l.route, w.step())
	return l, nil
}

// Prove puts what the kernel holds to the steps of a leg, and notes on the walk what it
// does not hold.
func (h Host) Prove(ctx context.Context, l *Leg, f Filter, links *rtnl.Driver, walk *apply.Walk) error {
	var rules map[string][]nft.KernelRule
	if r, ok := f.(Readable); ok {
		var err error
		if rules, err = r.Rules(ctx, h.Table); err != nil {
			return err
		}
	}
	different, err := f.Audit(ctx, h.Table)
	if err != nil {
		return err
	}
	sets := map[string]bool{}
	for _, d := range different {
		if set, ok := strings.CutPrefix(d.Object, "set "); ok && l.looks[set] {
			sets[set] = true
			missed(walk, h.stageOfSet(l, set), d)
		}
	}
	for i := range l.Steps {
		switch s := &l.Steps[i]; {
		case i == l.route:
			if err := h.proveRoute(s, l.way, links, walk); err != nil {
				return err
			}
		case s.Rule >= 0 && rules != nil:
			proveRule(s, rules[s.Chain], h.looksOf(*s), sets, walk)
		}
	}
	return nil
}

// proveRule puts handle and counter to a step.
func proveRule(s *apply.Step, have []nft.KernelRule, looks []string, wrong map[string]bool, walk *apply.Walk) {
	if s.Rule >= len(have) || have[s.Rule].Handle == 0 {
		s.Live = "MISSING"
		walk.Miss(s.Stage, "rule %d of chain %s is not in the kernel: %s", s.Rule, s.Chain, s.Text)
		return
	}
	r := have[s.Rule]
	s.Handle = r.Handle
	s.Live = fmt.Sprintf("handle %d", r.Handle)
	if r.Counted {
		s.Packets = &r.Packets
		s.Live += ", " + apply.Packets(r.Packets)
	}
	for _, set := range looks {
		word := "as wanted"
		if wrong[set] {
			word = "DIFFERS"
		}
		s.Live += fmt.Sprintf("; @%s %s", set, word)
	}
}

// proveRoute asks the kernel for the route, and for the neighbour behind it.
func (h Host) proveRoute(s *apply.Step, w *way, links *rtnl.Driver, walk *apply.Walk) error {
	got, err := links.Lookup(w.dst)
	if err != nil {
		return err
	}
	s.Live = got.Route
	switch {
	case w.local != got.Local || w.nowhere && len(got.Hops) > 0 || !w.local && !w.nowhere && !w.leads(got.Hops):
		s.Live += " (DIFFERS)"
		walk.Miss(s.Stage, "the kernel's route to %s is %q, want %s", w.dst, got.Route, s.Text)
		return nil
	case got.MAC.IsZero():
	default:
		s.Live += ", at " + got.MAC.String()
	}
	want, permanent := h.neighbour(w)
	if permanent && (got.MAC != want || !got.Permanent) {
		s.Live += " (DIFFERS)"
		walk.Miss(apply.StageDelivery, "the kernel's neighbour for %s on %s is %s, want %s, permanent", w.dst, got.Dev, dashMAC(got.MAC), want)
	}
	return nil
}

func dashMAC(m packet.MAC) string {
	if m.IsZero() {
		return "none"
	}
	return m.String()
}

// neighbour is the hardware address of a pod here that a packet goes to.
func (h Host) neighbour(w *way) (packet.MAC, bool) {
	for _, p := range h.Ports {
		if p.HostName == w.out && slices.Contains(p.Addresses, w.dst) {
			return p.MAC, true
		}
	}
	return packet.MAC{}, false
}

// way is the node's routing, and what it said of the packet.
type way struct {
	host Host

	asked bool
	dst   netip.Addr
	// local: to the node itself; nowhere: an address of this node that nobody has.
	local, nowhere bool
	out            string
	// route that decided; nil: none of ours did.
	route *linux.Route
}

// Route implements sim.Routing: of the longest prefixes the lowest metric decides.
func (w *way) Route(p sim.Packet) sim.Route {
	w.asked, w.dst, w.local, w.nowhere, w.route, w.out = true, p.Dst, false, false, nil, Underlay
	if ownAddress(w.host.Node, p.Dst) {
		w.local = true
		return sim.Route{Local: true}
	}
	for i, r := range w.host.Routes {
		if r.Dst.Contains(p.Dst) && (w.route == nil || cmp.Or(cmp.Compare(w.route.Dst.Bits(), r.Dst.Bits()), cmp.Compare(r.Metric, w.route.Metric)) < 0) {
			w.route = &w.host.Routes[i]
		}
	}
	switch {
	case w.route == nil:
	case len(w.route.Hops) == 0:
		w.nowhere = true
		return sim.Route{Why: "no port has the address"}
	default:
		w.out = cmp.Or(w.route.Hops[0].Dev, Underlay)
	}
	return sim.Route{Out: w.out}
}

// Source implements sim.Routing.
func (w *way) Source(_ string, is4 bool) (netip.Addr, bool) {
	for _, p := range w.host.Node.Underlay {
		if p.Addr().Is4() == is4 {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// fib answers what rules ask the routing table.
func (w *way) fib(p sim.Packet, f nftables.Field) (uint32, error) {
	const unicast = 1 // RTN_UNICAST
	a := p.Src
	switch f {
	case nftables.FibDaddrType:
		a = p.Dst
	case nftables.FibSaddrType:
	default: // There is a way to everybody, by the default route.
		return unicast, nil
	}
	if ownAddress(w.host.Node, a) {
		return nftables.FibLocal.Uint(), nil
	}
	return unicast, nil
}

// leads reports whether the next hops of the kernel are those that the packet is to take, of
// several all. Where no route of ours decides, they are the host's own affair.
func (w *way) leads(got []rtnl.Hop) bool {
	if w.route == nil {
		return len(got) > 0 && !slices.ContainsFunc(got, func(h rtnl.Hop) bool { return !isDev(h.Dev, w.out) })
	}
	rest := slices.Clone(got)
	for _, want := range w.route.Hops {
		i := slices.IndexFunc(rest, func(h rtnl.Hop) bool {
			return h.Gateway == want.Gateway && isDev(h.Dev, cmp.Or(want.Dev, Underlay))
		})
		if i < 0 {
			return false
		}
		rest = slices.Delete(rest, i, i+1)
	}
	return len(rest) == 0
}

// isDev reports whether a link is the one that is wanted, or one of those to the underlay.
func isDev(dev, want string) bool {
	if want != Underlay {
		return dev == want
	}
	return dev != claims.VXLANDevice && dev != claims.OVSHostPort && !strings.HasPrefix(dev, claims.PortPrefix)
}

// step is what the node's routes do to the packet.
func (w *way) step() apply.Step {
	s := apply.Step{Stage: apply.StagePath, Hook: "route", Chain: "routes", Rule: -1, Comment: "the host's own", Text: "by the underlay", Effect: "to " + w.out}
	if w.out == Underlay {
		s.Effect = "to the underlay"
	}
	switch {
	case w.local:
		s.Text, s.Effect = w.dst.String()+" is the node's own", "to the node itself"
		return s
	case w.route == nil:
		return s
	case w.nowhere:
		s.Text, s.Effect = "unreachable "+w.route.Dst.String(), "drop"
	default:
		s.Text = w.route.Dst.String()
		for _, h := range w.route.Hops {
			if h.Gateway.IsValid() {
				s.Text += " via " + h.Gateway.String()
			}
			s.Text += " dev " + cmp.Or(h.Dev, Underlay)
		}
	}
	s.Comment = w.route.Ref.String()
	return s
}

// stepsOf makes one step of all that a rule did.
func stepsOf(table nftables.Table, trace sim.Trace) ([]apply.Step, map[string]bool) {
	steps := []apply.Step{}
	looks := map[string]bool{}
	for i, s := range trace {
		if s.Chain == "" && s.Effect == sim.Tracked {
			continue // Always a new flow.
		}
		effect := effectOf(s)
		if i > 0 && s.Rule != sim.NoRule && trace[i-1].Hook == s.Hook && trace[i-1].Chain == s.Chain && trace[i-1].Rule == s.Rule && len(steps) > 0 {
			if effect != "" {
				steps[len(steps)-1].Effect = effect
			}
			continue
		}
		step := apply.Step{Stage: stageOf(s), Hook: s.Hook.String(), Chain: s.Chain, Rule: s.Rule, Comment: s.Comment, Effect: effect, Text: s.Statement}
		if r, ok := ruleAt(table, s.Chain, s.Rule); ok {
			step.Text = r.String()
			for _, name := range r.Sets() {
				looks[name] = true
			}
		}
		steps = append(steps, step)
	}
	return steps, looks
}

// effectOf is what a statement did, for people; empty if it only matched or counted.
func effectOf(s sim.Step) string {
	switch s.Effect {
	case sim.Passed, sim.Failed, sim.Counted:
		return ""
	case sim.Decided:
		if s.Detail != "" {
			return s.Detail
		}
		return s.Statement
	}
	if s.Detail != "" {
		return s.Statement + ": " + s.Detail
	}
	return s.Statement
}

func ruleAt(table nftables.Table, chain string, i int) (nftables.Rule, bool) {
	for _, c := range table.Chains {
		if c.Name == chain && i >= 0 && i < len(c.Rules) {
			return c.Rules[i], true
		}
	}
	return nftables.Rule{}, false
}

// stageOf tells by the names that the tables give what a rule is about.
func stageOf(s sim.Step) string {
	begins := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s.Chain, p) })
	}
	switch {
	case s.Hook == nftables.HookPrerouting:
		return apply.StageSource
	case s.Chain == "" || s.Hook == nftables.HookPostrouting:
		return apply.StageNAT
	case begins("egress") || strings.Contains(s.Comment, "of the sender"):
		return apply.StageEgress
	case begins("ingress") || strings.Contains(s.Comment, "of the receiver"):
		return apply.StageIngress
	case begins("into-", "apart"):
		return apply.StageTenant
	case begins("vpc-", "from-vpc"):
		return apply.StageVPC
	}
	return apply.StageFlow
}

// looksOf are the sets that the rule of a step looks into.
func (h Host) looksOf(s apply.Step) []string {
	r, ok := ruleAt(h.Table, s.Chain, s.Rule)
	if !ok {
		return nil
	}
	return r.Sets()
}

// stageOfSet is the stage of the first rule that looked into a set.
func (h Host) stageOfSet(l *Leg, set string) string {
	for _, s := range l.Steps {
		if slices.Contains(h.looksOf(s), set) {
			return s.Stage
		}
	}
	return apply.StageFlow
}
