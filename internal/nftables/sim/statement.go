package sim

import (
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// outcome of a statement.
type outcome struct {
	effect Effect
	detail string
	// verdict ends the rule if it is not zero.
	verdict verdict
}

// evaluate runs the statements of a rule.
func (w *walk) evaluate(r nftables.Rule) verdict {
	for _, s := range r.Statements {
		o := w.statement(s)
		if w.err != nil {
			return verdict{}
		}
		if w.trace {
			w.note(Step{Chain: w.chain.Name, Rule: w.rule, Comment: r.Comment, Statement: fmt.Sprint(s), Effect: o.effect, Detail: o.detail})
		}
		if o.effect == Failed {
			return verdict{}
		}
		if o.verdict.kind == 0 {
			continue
		}
		if o.verdict.kind == nftables.Drop {
			w.result.Why = r.Comment
			if r.Comment == "" {
				w.result.Why = fmt.Sprintf("rule %d of chain %s", w.rule, w.chain.Name)
			}
		}
		return o.verdict
	}
	return verdict{}
}

func (w *walk) statement(s nftables.Statement) outcome {
	switch s := s.(type) {
	case nftables.Match:
		return w.match(s)
	case nftables.Lookup:
		return w.lookup(s)
	case nftables.VMap:
		return w.vmap(s)
	case nftables.Mangle:
		return w.mangle(s)
	case nftables.Counter:
		return outcome{effect: Counted}
	case nftables.Verdict:
		return w.verdict(s)
	case nftables.Reject:
		return w.reject(s)
	case nftables.Masquerade:
		return w.choose(Translation{Kind: nftables.SNAT, Ports: s.Ports, Flags: s.Flags})
	case nftables.NAT:
		return w.natStatement(s)
	case nftables.Notrack:
		return w.notrack()
	case nftables.Log:
		return outcome{effect: Logged}
	}
	w.fail("rule %d of chain %s: statement %T is not known", w.rule, w.chain.Name, s)
	return outcome{}
}

func held(is bool, detail string) outcome {
	if is {
		return outcome{effect: Passed, detail: detail}
	}
	return outcome{effect: Failed, detail: detail}
}

func (w *walk) match(m nftables.Match) outcome {
	v, ok := w.read(m.Field)
	if !ok {
		return held(false, "the packet has none")
	}
	v = masked(v, m.Mask)
	is := m.Value.Contains(v)
	return held(is == (m.Op == nftables.Eq), w.say(v))
}

// say is the text of a value for the trace.
func (w *walk) say(values ...nftables.Value) string {
	if !w.trace {
		return ""
	}
	text := ""
	for i, v := range values {
		if i > 0 {
			text += " . "
		}
		text += v.String()
	}
	return "it is " + text
}

// find looks a key up. ok is false where the packet lacks a field of the key.
func (w *walk) find(key []nftables.Selector, name string) (e *nftables.Element, detail string, ok bool) {
	s, exists := w.rules.sets[name]
	if !exists {
		w.fail("rule %d of chain %s: there is no set or map %q", w.rule, w.chain.Name, name)
		return nil, "", false
	}
	if len(key) != len(s.Key) || len(key) == 0 {
		w.fail("rule %d of chain %s: a key of %d fields is looked up in %s, which has %d", w.rule, w.chain.Name, len(key), name, len(s.Key))
		return nil, "", false
	}
	var room [4]nftables.Value
	values := room[:0]
	for i, k := range key {
		if k.Field.Type() != s.Key[i] {
			w.fail("rule %d of chain %s: %s is of type %s, and %s holds %s", w.rule, w.chain.Name, k.Field, k.Field.Type(), name, s.Key[i])
			return nil, "", false
		}
		v, has := w.read(k.Field)
		if !has {
			return nil, "the packet has none", false
		}
		values = append(values, masked(v, k.Mask))
	}
	return s.find(values), w.say(values...), true
}

func (w *walk) lookup(l nftables.Lookup) outcome {
	e, detail, ok := w.find(l.Key, l.Set)
	return held(ok && (e != nil) == (l.Op == nftables.Eq), detail)
}

// vmap applies the verdict of an element. Without one the rule ends, as with any map
// (nft_lookup_eval).
func (w *walk) vmap(m nftables.VMap) outcome {
	e, detail, ok := w.find(m.Key, m.Map)
	if !ok || e == nil {
		return held(false, detail)
	}
	o := w.verdict(e.Verdict)
	if w.trace {
		o.detail = detail + ": " + e.Verdict.String()
	}
	return o
}

func (w *walk) verdict(v nftables.Verdict) outcome {
	switch v.Kind {
	case nftables.Accept, nftables.Drop, nftables.Return, nftables.Jump, nftables.Goto:
		return outcome{effect: Decided, verdict: verdict{v.Kind, v.Chain}}
	case nftables.Continue:
		return outcome{effect: Passed}
	}
	w.fail("rule %d of chain %s: %d is no verdict", w.rule, w.chain.Name, v.Kind)
	return outcome{}
}

func (w *walk) reject(r nftables.Reject) outcome {
	// A reset is sent for TCP only; the packet is dropped all the same.
	w.result.Rejected = &r
	return outcome{effect: Decided, verdict: verdict{kind: nftables.Drop}}
}

// natStatement chooses, if the statement is for the packet's family: for the other one
// it does nothing (nft_nat_inet_eval).
func (w *walk) natStatement(n nftables.NAT) outcome {
	if n.Kind != nftables.SNAT && n.Kind != nftables.DNAT || !n.Addr.IsValid() {
		w.fail("rule %d of chain %s: %v translates to nothing", w.rule, w.chain.Name, n)
		return outcome{}
	}
	if n.Addr.Is4() != w.p.Src.Is4() {
		return outcome{effect: Passed, detail: "the packet is of the other family"}
	}
	return w.choose(Translation{Kind: n.Kind, Addr: n.Addr, Port: n.Port, Flags: n.Flags})
}

func (w *walk) choose(t Translation) outcome {
	if w.current.Base.Type != nftables.TypeNAT {
		w.fail("rule %d of chain %s: translates, and its base chain is not of type nat", w.rule, w.chain.Name)
		return outcome{}
	}
	w.result.Chosen = &t
	return outcome{effect: Translated, verdict: verdict{kind: nftables.Accept}}
}

// notrack keeps conntrack from the packet, if it has not seen it yet
// (nft_notrack_eval).
func (w *walk) notrack() outcome {
	switch {
	case w.early:
		w.untracked = true
	case !w.p.CT.tracked():
		w.p.CT = CT{State: nftables.CTUntracked}
	default:
		return outcome{effect: Passed, detail: "conntrack has seen the packet"}
	}
	return outcome{effect: Changed, detail: "untracked"}
}

func (w *walk) mangle(m nftables.Mangle) outcome {
	value, o := w.mangled(m)
	if o.effect == Failed || w.err != nil {
		return o
	}
	return w.set(m.Field, value)
}

// mangled computes the value that is set.
func (w *walk) mangled(m nftables.Mangle) (uint32, outcome) {
	switch {
	case m.Map != "":
		e, detail, ok := w.find(m.From, m.Map)
		if !ok || e == nil {
			return 0, held(false, detail)
		}
		if len(e.Data) != 1 {
			w.fail("rule %d of chain %s: %s holds no marks", w.rule, w.chain.Name, m.Map)
			return 0, outcome{}
		}
		return e.Data[0].Uint(), outcome{}
	case len(m.From) > 0:
		v, ok := w.read(m.From[0].Field)
		if !ok {
			return 0, held(false, "the packet has none")
		}
		return masked(v, m.From[0].Mask).Uint(), outcome{}
	case m.Mask != 0 && m.Mask != ^uint32(0):
		// The other bits are kept, so there must be some.
		old, ok := w.read(m.Field)
		if !ok {
			return 0, held(false, "the packet has none")
		}
		return old.Uint()&^m.Mask | m.Value&m.Mask, outcome{}
	}
	return m.Value, outcome{}
}

// set writes a mark or zone. Without a conntrack entry a mark of one is not written,
// and the rule goes on (nft_ct_set_eval); a zone is chosen before conntrack only.
func (w *walk) set(f nftables.Field, value uint32) outcome {
	detail := ""
	if w.trace {
		detail = fmt.Sprintf("%s is 0x%08x", f, value)
	}
	switch f {
	case nftables.MetaMark:
		w.p.Mark = value
	case nftables.CTMark:
		if w.early || !w.p.CT.tracked() {
			return outcome{effect: Passed, detail: "the packet has no entry"}
		}
		w.p.CT.Mark = value
	case nftables.CTZone:
		if !w.early {
			return outcome{effect: Passed, detail: "conntrack has seen the packet"}
		}
		w.p.CT.Zone = uint16(value)
	default:
		w.fail("rule %d of chain %s: %s cannot be set", w.rule, w.chain.Name, f)
	}
	return outcome{effect: Changed, detail: detail}
}

// String is the state in nft's words, with the direction and the mark.
func (c CT) String() string {
	if !c.tracked() {
		if c.State == nftables.CTUntracked {
			return "untracked"
		}
		return "invalid"
	}
	state := nftables.Number(nftables.CTState, c.State).String()
	direction := "original"
	if c.Reply {
		direction = "reply"
	}
	return fmt.Sprintf("%s, %s, mark 0x%08x, flow %s", state, direction, c.Mark, c.Original)
}
