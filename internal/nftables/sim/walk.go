package sim

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Host is what lies around a table in a machine. Node is one.
type Host interface {
	// Track is conntrack: it fills in p.CT. It is called at prerouting and output, for
	// packets that no rule has untracked.
	Track(p *Packet)
	// Translate is the NAT engine: it rewrites a tracked packet at a hook. chosen is
	// what a rule has chosen for the flow, nil if none did or the packet is not the
	// first. An error drops the packet, and is the reason.
	Translate(p *Packet, at nftables.Hook, chosen *Translation) error
	// Fib answers FibDaddrType, FibSaddrType, FibSaddrIIF and FibSaddr.
	Fib(p Packet, f nftables.Field) (uint32, error)
}

// Translation is a NAT statement's choice.
type Translation struct {
	Kind nftables.NATKind
	// Addr to translate to; of a masquerade it is not valid: the host takes that of
	// the interface that the packet leaves by.
	Addr netip.Addr
	// Port is kept, if it is free, where this is zero.
	Port uint16
	// Ports to choose one of; the zero Value is all.
	Ports nftables.Value
	Flags nftables.NATFlags
}

// Masquerade reports whether the host chooses the address.
func (t Translation) Masquerade() bool { return !t.Addr.IsValid() }

// Result is what a hook did with a packet.
type Result struct {
	// Dropped: it goes no further. Why says so in a few words: the comment of the rule,
	// or the chain of which it is the policy.
	Dropped bool
	Why     string
	// Rejected: it was dropped by this statement, and its sender is told.
	Rejected *nftables.Reject
	// Packet as it leaves the hook.
	Packet Packet
	// Chosen is what a NAT statement chose for the flow, if one did.
	Chosen *Translation
	// Trace of what happened, if it was asked for.
	Trace Trace
}

// Priorities in the kernel (netfilter_ipv4.h).
const (
	priorityConntrack = -200
	priorityDstNAT    = -100
	prioritySrcNAT    = 100
)

// Limits that end a walk which a valid table cannot need.
const (
	maxJumps   = 16    // NFT_JUMP_STACK_SIZE
	maxEntered = 10000 // chains entered at one hook
)

// Hook walks a packet through the base chains of a hook. host may be nil: then p.CT is
// what conntrack says, translations are reported and applied but for masquerades,
// and there is no routing table.
//
// An error says what of the table is wrong; the kernel would have refused it.
func (r *Ruleset) Hook(h nftables.Hook, p Packet, host Host, trace bool) (Result, error) {
	if h > nftables.HookPostrouting {
		return Result{}, fmt.Errorf("there is no hook %d", h)
	}
	if err := p.check(); err != nil {
		return Result{}, fmt.Errorf("walk a packet through %s: %w", h, err)
	}
	if host == nil {
		host = alone{}
	}
	w := &walk{rules: r, host: host, hook: h, p: p, trace: trace}
	w.run()
	if w.err != nil {
		return Result{}, fmt.Errorf("walk %s through %s: %w", p, h, w.err)
	}
	w.result.Packet = w.p
	return w.result, nil
}

// walk is one packet at one hook.
type walk struct {
	rules *Ruleset
	host  Host
	hook  nftables.Hook
	trace bool

	p Packet
	// early: conntrack has not seen the packet yet.
	early bool
	// untracked by a rule before conntrack.
	untracked bool
	entered   int
	result    Result
	err       error

	// current base chain, and the chain and rule that run now.
	current, chain *nftables.Chain
	rule           int
}

func (w *walk) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// ct is what rules see of conntrack here.
func (w *walk) ct() CT {
	switch {
	case w.early && w.untracked:
		return CT{State: nftables.CTUntracked}
	case w.early:
		return CT{}
	}
	return w.p.CT
}

// run walks all base chains, with conntrack and NAT in their places.
func (w *walk) run() {
	natAt := int32(prioritySrcNAT)
	if w.hook == nftables.HookPrerouting || w.hook == nftables.HookOutput {
		natAt = priorityDstNAT
		w.early = true
	}
	natDone := w.hook == nftables.HookForward
	for _, c := range w.rules.filter[w.hook] {
		if w.early && c.Base.Priority >= priorityConntrack {
			w.conntrack()
		}
		if !natDone && c.Base.Priority > natAt {
			natDone = true
			w.nat()
		}
		if w.over() {
			return
		}
		w.base(c)
		if w.over() {
			return
		}
	}
	if w.early {
		w.conntrack()
	}
	if !natDone {
		w.nat()
	}
}

func (w *walk) over() bool { return w.err != nil || w.result.Dropped }

// conntrack runs where the kernel's does.
func (w *walk) conntrack() {
	w.early = false
	if w.untracked {
		w.p.CT = CT{State: nftables.CTUntracked}
	} else {
		w.host.Track(&w.p)
	}
	if w.trace {
		w.note(Step{Rule: NoRule, Statement: "conntrack", Effect: Tracked, Detail: w.p.CT.String()})
	}
}

// nat runs the chains of type nat, for the first packet of a flow, and the NAT
// engine, for all (nf_nat_inet_fn).
func (w *walk) nat() {
	if !w.p.CT.tracked() {
		return
	}
	// ICMP errors are translated as their flow is, whatever rules say.
	if w.p.CT.First && !(w.p.CT.State == nftables.CTRelated && w.p.isError()) {
		for _, c := range w.rules.nat[w.hook] {
			w.base(c)
			if w.over() {
				return
			}
			if w.result.Chosen != nil {
				break
			}
		}
	}
	before := w.p
	if err := w.host.Translate(&w.p, w.hook, w.result.Chosen); err != nil {
		w.result.Dropped, w.result.Why = true, "NAT: "+err.Error()
		if w.trace {
			w.note(Step{Rule: NoRule, Statement: "NAT", Effect: Decided, Detail: "drop: " + err.Error()})
		}
		return
	}
	if w.trace && before.Tuple() != w.p.Tuple() {
		w.note(Step{Rule: NoRule, Statement: "NAT", Effect: Translated, Detail: w.p.Tuple().String()})
	}
}

// verdict is what a rule or chain says; zero is nothing.
type verdict struct {
	kind  nftables.VerdictKind
	chain string
}

// base runs a base chain and its policy (nft_do_chain).
func (w *walk) base(c *nftables.Chain) {
	w.current = c
	switch w.through(c) {
	case nftables.Accept:
		return
	case nftables.Drop:
		w.result.Dropped = true
		return
	}
	if w.err != nil {
		return
	}
	w.chain, w.rule = c, NoRule
	if w.trace {
		w.note(Step{Chain: c.Name, Rule: NoRule, Statement: "policy " + c.Base.Policy.String(), Effect: Decided})
	}
	if c.Base.Policy == nftables.PolicyDrop {
		w.result.Dropped, w.result.Why = true, "policy of chain "+c.Name
	}
}

// through runs a chain with all that it leads to, and returns Accept, Drop, or zero
// where nothing was decided.
func (w *walk) through(c *nftables.Chain) nftables.VerdictKind {
	type place struct {
		chain *nftables.Chain
		next  int
	}
	var stack []place
	next := 0
	for {
		var v verdict
		for ; next < len(c.Rules) && v.kind == 0; next++ {
			w.chain, w.rule = c, next
			v = w.evaluate(c.Rules[next])
			if w.err != nil {
				return 0
			}
		}
		switch v.kind {
		case nftables.Accept, nftables.Drop:
			return v.kind
		case nftables.Jump, nftables.Goto:
			if v.kind == nftables.Jump {
				stack = append(stack, place{c, next})
			}
			if c = w.enter(v, len(stack)); c == nil {
				return 0
			}
			next = 0
		default: // The end of the chain, or a return.
			if len(stack) == 0 {
				return 0
			}
			c, next = stack[len(stack)-1].chain, stack[len(stack)-1].next
			stack = stack[:len(stack)-1]
		}
	}
}

// enter finds the chain that a verdict leads to.
func (w *walk) enter(v verdict, depth int) *nftables.Chain {
	c, ok := w.rules.chains[v.chain]
	w.entered++
	switch {
	case !ok:
		w.fail("rule %d of chain %s: %s: there is no chain %q", w.rule, w.chain.Name, v.kind, v.chain)
	case c.Base != nil:
		w.fail("rule %d of chain %s: %s %s: a base chain cannot be jumped to", w.rule, w.chain.Name, v.kind, v.chain)
	case depth > maxJumps:
		w.fail("rule %d of chain %s: jumps are more than %d deep", w.rule, w.chain.Name, maxJumps)
	case w.entered > maxEntered:
		w.fail("rule %d of chain %s: the chains lead in a circle", w.rule, w.chain.Name)
	default:
		return c
	}
	return nil
}

// note adds a step to the trace.
func (w *walk) note(s Step) {
	s.Hook = w.hook
	w.result.Trace = append(w.result.Trace, s)
}

// alone is the Host of a walk that has none.
type alone struct{}

// Track implements Host: the packet has said it all.
func (alone) Track(*Packet) {}

// Translate implements Host.
func (alone) Translate(p *Packet, _ nftables.Hook, chosen *Translation) error {
	if chosen == nil || chosen.Masquerade() {
		return nil
	}
	if chosen.Kind == nftables.SNAT {
		p.Src = chosen.Addr
		if chosen.Port != 0 {
			p.SrcPort = chosen.Port
		}
		return nil
	}
	p.Dst = chosen.Addr
	if chosen.Port != 0 {
		p.DstPort = chosen.Port
	}
	return nil
}

// errNoFib is why a walk without a Host cannot ask the routing table.
var errNoFib = errors.New("the rule asks the routing table, and there is none")

// Fib implements Host.
func (alone) Fib(Packet, nftables.Field) (uint32, error) { return 0, errNoFib }
