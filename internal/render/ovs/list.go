package ovs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// listWriter writes the flows of a list: first one for each class of peers, and where
// its fate depends on protocol and port, then some for those.
type listWriter struct {
	*listed
	// old is what was made of the same list before; empty if there is nothing.
	old *listed
	// out is where what is allowed goes on.
	out, table uint8
	register   of.Subfield
	flows      writer
	// named are the texts of rules, by their place: many classes share them.
	named map[*int]string
}

// treated is a conduct and who meets it. The rules of the conduct are those of all of
// them.
type treated struct {
	conduct conduct
	key     string
	classes []*class
}

// saving is how many flows make it worth to name the strangers' classes one by one.
const saving = 16

func (w *listWriter) write(p *peers) {
	rest, groups := w.treat(p)
	// The flow for all that no other one names is that of strangers: peers in no set of the
	// list. Only where that saves many flows it is that of others.
	strangers := len(p.classes) - len(w.classes) + len(rest.classes)
	most := -1
	for i, g := range groups {
		if len(g.classes) > strangers+saving && (most < 0 || len(g.classes) > len(groups[most].classes)) {
			most = i
		}
	}
	w.numberConducts(rest, groups)
	if w.every = nil; most >= 0 {
		w.every = p.all
		w.strangers(rest, groups)
	}
	for i, g := range groups {
		if i == most {
			w.decide(g, g.conduct.rules(), when(is(w.register, uint64(w.number))), 1)
			continue
		}
		for _, c := range g.classes {
			w.class(g, c)
		}
	}
	if most < 0 {
		w.decide(rest, rest.conduct.rules(), when(is(w.register, uint64(w.number))), 1)
	}
	written := map[string]bool{} // rest may do what a group does
	for _, g := range append(groups, rest) {
		if !written[g.key] {
			written[g.key] = true
			w.ports(g)
		}
	}
}

// class writes the flow of a class, or takes that which there was.
func (w *listWriter) class(g treated, c *class) {
	f, was := w.fates[c], w.old.fates[c]
	if was.flow > 0 && was.decided == f.decided && w.old.numbers[g.key] == w.numbers[g.key] {
		w.flows = append(w.flows, w.old.flows[was.flow-1])
	} else {
		w.decide(g, f.rules, w.of(c.number), 2)
	}
	f.flow = int32(len(w.flows))
	w.fates[c] = f
}

func (w *listWriter) of(class uint32) of.Match {
	return when(is(w.register, uint64(w.number)), is(PeerClass, uint64(class)))
}

// strangers writes the flows of all classes that are in no group.
func (w *listWriter) strangers(rest treated, groups []treated) {
	grouped := map[*class]bool{}
	for _, g := range groups {
		for _, c := range g.classes {
			grouped[c] = true
		}
	}
	rules := rest.conduct.rules()
	w.decide(rest, rules, w.of(0), 2)
	for _, c := range w.every {
		if !grouped[c] {
			w.decide(rest, rules, w.of(c.number), 2)
		}
	}
}

// treat finds what the list does to peers in none of its sets, and to the classes.
// Those that it treats like strangers are rest's.
func (w *listWriter) treat(p *peers) (rest treated, groups []treated) {
	bySet := map[string][]int{}
	var always []int
	for i, r := range w.list.Rules {
		if len(r.Match.Sets) == 0 {
			always = append(always, i)
		}
		for _, s := range r.Match.Sets {
			bySet[s] = append(bySet[s], i)
		}
	}
	rest.conduct = conductOf(w.list.Rules, always)
	rest.key = rest.conduct.key()
	w.fates = make(map[*class]fate, len(w.classes))
	byRules, byKey := map[string]*decided{}, map[string]int{rest.key: -1}
	about := map[*class][]int{} // those that are not known yet
	for s, rules := range bySet {
		for _, c := range p.bySet[s] {
			if _, known := w.old.fates[c]; !known {
				about[c] = append(about[c], rules...)
			}
		}
	}
	grouped := map[*decided]bool{}
	var rules []int
	for _, c := range w.classes {
		d := w.old.fates[c].decided
		if d == nil {
			rules = append(append(rules[:0], always...), about[c]...)
			d = w.decided(rules, byRules)
		}
		w.fates[c] = fate{decided: d}
		n, known := byKey[d.key]
		switch {
		case !known:
			n = len(groups)
			byKey[d.key] = n
			groups = append(groups, treated{conduct: d.conduct.clone(), key: d.key})
		case n >= 0 && !grouped[d]:
			groups[n].conduct.addRules(d.conduct)
		}
		grouped[d] = true
		if n < 0 {
			rest.classes = append(rest.classes, c)
		} else {
			groups[n].classes = append(groups[n].classes, c)
		}
	}
	return rest, groups
}

// decided is what rules do, which it sorts. known are those that were asked for before.
func (w *listWriter) decided(rules []int, known map[string]*decided) *decided {
	slices.Sort(rules)
	rules = slices.Compact(rules)
	var id []byte
	for _, n := range rules {
		id = binary.AppendUvarint(id, uint64(n))
	}
	d := known[string(id)]
	if d == nil {
		conduct := conductOf(w.list.Rules, rules)
		d = &decided{conduct, conduct.key(), conduct.rules()}
		known[string(id)] = d
	}
	return d
}

// numberConducts numbers what cannot be told by the class alone.
func (w *listWriter) numberConducts(rest treated, groups []treated) {
	w.numbers = map[string]uint32{}
	var keys []string
	for _, g := range append(groups, rest) {
		if _, ok := g.conduct.uniform(); !ok {
			keys = append(keys, g.key)
		}
	}
	slices.Sort(keys)
	taken := map[uint32]bool{0: true}
	for _, k := range slices.Compact(keys) {
		w.numbers[k] = free(taken, k)
	}
}

// decide writes the flow of a class.
func (w *listWriter) decide(g treated, rules []int, match of.Match, priority int) {
	if allow, ok := g.conduct.uniform(); ok {
		w.fate(w.table, priority, allow, rules, match)
		return
	}
	w.flows.add(w.table, priority, "by protocol and port: "+w.origins(rules), match,
		load(Conduct, uint64(w.numbers[g.key])), to(w.table+1))
}

// fate writes a flow that allows or drops.
func (w *listWriter) fate(table uint8, priority int, allow bool, rules []int, match of.Match) {
	switch {
	case !allow:
		w.flows.add(table, priority, DeniedBy+w.origins(rules), match)
	case len(rules) == 0:
		w.flows.add(table, priority, "no policy says no: "+w.list.Ref().String(), match, to(w.out))
	default:
		w.flows.add(table, priority, AllowedBy+w.origins(rules), match, to(w.out))
	}
}

// ports writes the flows of a conduct that depends on protocol and port.
func (w *listWriter) ports(g treated) {
	number, ok := w.numbers[g.key]
	if !ok {
		return
	}
	others := g.conduct[onOthers][0]
	base := []of.Term{is(w.register, uint64(w.number)), is(Conduct, uint64(number))}
	w.fate(w.table+1, 1, others.allow, others.rules, when(base...))
	for p := range transports {
		spans := g.conduct[p]
		if len(spans) == 1 && spans[0].allow == others.allow {
			continue
		}
		// What most flows would be needed for is left to the one for the whole protocol.
		whole := others.allow
		if cost(spans, !whole) > cost(spans, whole)+1 {
			whole = !whole
		}
		for _, f := range families {
			if f.is4 && !w.has4 || !f.is4 && !w.has6 {
				continue
			}
			w.protocol(p, spans, whole, others.allow, append(base[:2:2], f.ip, of.Eq(of.IPProto, uint64(transports[p].proto))))
		}
	}
}

// protocol writes the flows of a protocol in one family. whole is the fate of ports that
// have no flow of their own.
//
// Behind connection tracking a packet is whole, but not in userspace: there its
// fragments go on, and none of them has ports for a flow to match. Whose fate depends
// on the port is dropped, else a rule that denies a port would not see it.
func (w *listWriter) protocol(p int, spans []span, whole, others bool, match []of.Term) {
	n := len(match)
	if whole != others {
		w.fate(w.table+1, 2, whole, rulesOf(spans, whole), when(match...))
	}
	if len(spans) > 1 {
		w.flows.add(w.table+1, 4, "fragment of a flow that is judged by its port: "+w.list.Ref().String(),
			when(append(match[:n:n], of.Masked(of.IPFrag, of.FragAny, of.FragAny))...))
	}
	for _, s := range spans {
		if s.allow == whole {
			continue
		}
		for _, m := range masks(s.first, s.last) {
			w.fate(w.table+1, 3, s.allow, s.rules, when(append(match[:n:n], of.Masked(transports[p].dport, m.Lo, m.Hi))...))
		}
	}
}

// cost is how many flows the spans of one fate need.
func cost(spans []span, allow bool) (n int) {
	for _, s := range spans {
		if s.allow == allow {
			n += len(masks(s.first, s.last))
		}
	}
	return n
}

func rulesOf(spans []span, allow bool) (out []int) {
	for _, s := range spans {
		if s.allow == allow {
			out = append(out, s.rules...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// origins names the rules of policies, as many as are of use.
func (w *listWriter) origins(rules []int) string {
	if len(rules) == 0 {
		return w.list.Ref().String()
	}
	text, known := w.named[&rules[0]]
	if !known {
		text = w.name(rules)
		w.named[&rules[0]] = text
	}
	return text
}

func (w *listWriter) name(rules []int) string {
	const most = 4
	var names []string
	for _, i := range rules {
		if n := originText(w.list.Rules[i].Origin); len(names) == 0 || names[len(names)-1] != n {
			names = append(names, n)
		}
	}
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// originText is "NetworkPolicy default/web rule 2".
func originText(o intent.RuleOrigin) string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	if o.Index < 0 {
		return o.Kind + " " + name + " isolates"
	}
	return fmt.Sprintf("%s %s rule %d", o.Kind, name, o.Index)
}
