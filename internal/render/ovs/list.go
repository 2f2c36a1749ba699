package ovs

import (
	"cmp"
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
	// old is what was made of the same list before, or nil.
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
	// classes are their places among those of the list, while it is written.
	classes []int
}

// more reports whether more classes meet one conduct than another, or as many and it comes
// first.
func (t treated) more(o treated) bool {
	return cmp.Or(cmp.Compare(len(o.classes), len(t.classes)), cmp.Compare(t.key, o.key)) < 0
}

// saving is how many flows make it worth to name the strangers' classes one by one.
const saving = 16

func (w *listWriter) write(p *renewed) {
	if w.old == nil {
		w.old = &listed{}
	}
	w.treat(p)
	w.flows = make(writer, 0, len(w.old.flows)+1)
	// The flow for all that no other one names is that of strangers: peers in no set of the
	// list. Only where that saves many flows it is that of others.
	strangers := len(p.all) - len(w.classes) + len(w.rest.classes)
	w.most = -1
	for i, g := range w.groups {
		if len(g.classes) > strangers+saving && (w.most < 0 || g.more(w.groups[w.most])) {
			w.most = i
		}
	}
	alike := w.old.flows != nil && slices.Equal(w.decisions, w.old.decisions)
	if w.numbers = w.old.numbers; !alike {
		w.numberConducts()
	}
	if w.most >= 0 {
		w.nameStrangers(p.peers, strangers)
	}
	for i, g := range w.groups {
		for _, at := range g.classes {
			if i == w.most {
				w.fates[at].flow = 0
			} else {
				w.class(g, at)
			}
		}
	}
	w.tail = len(w.flows)
	if alike && w.most == w.old.most {
		w.flows = append(w.flows, w.old.flows[w.old.tail:]...)
	} else {
		w.others()
	}
	w.listed.flows = w.flows
	if slices.EqualFunc(w.flows, w.old.flows, sameMatch) {
		w.listed.flows = w.old.flows
	}
	for i := range w.groups {
		w.groups[i].classes = nil
	}
	w.rest.classes = nil
}

// sameMatch tells a flow that was taken: it shares the memory.
func sameMatch(a, b of.Flow) bool { return &a.Match[0] == &b.Match[0] }

// others writes the flows that are not about one class.
func (w *listWriter) others() {
	others := w.rest
	if w.most >= 0 {
		w.decide(w.rest, w.rest.conduct.rules(), w.of(0), 2)
		others = w.groups[w.most]
	}
	w.decide(others, others.conduct.rules(), when(is(w.register, uint64(w.number))), 1)
	written := map[string]bool{} // rest may do what a group does
	for _, g := range append(w.groups[:len(w.groups):len(w.groups)], w.rest) {
		if !written[g.key] {
			written[g.key] = true
			w.ports(g)
		}
	}
}

// class writes the flow of a class, by its place, or takes that which there was.
func (w *listWriter) class(g treated, at int) {
	f := &w.fates[at]
	if f.flow > 0 && w.old.numbers[g.key] == w.numbers[g.key] {
		w.flows = append(w.flows, w.old.flows[f.flow-1])
	} else {
		w.decide(g, f.rules, w.of(w.classes[at]), 2)
	}
	f.flow = int32(len(w.flows))
}

func (w *listWriter) of(class uint32) of.Match {
	return when(is(w.register, uint64(w.number)), is(PeerClass, uint64(class)))
}

// nameStrangers writes the flows of all classes that are not treated unlike strangers, so
// many.
func (w *listWriter) nameStrangers(p *peers, count int) {
	w.strangers = make([]stranger, 0, count)
	rules, old := w.rest.conduct.rules(), w.old.strangers
	if w.old.numbers[w.rest.key] != w.numbers[w.rest.key] {
		old = nil
	}
	listed, like := w.classes, w.rest.classes
	for _, c := range p.all {
		if len(listed) > 0 && listed[0] == c.number {
			at := len(w.classes) - len(listed)
			if listed = listed[1:]; len(like) == 0 || like[0] != at {
				continue
			}
			like = like[1:]
		}
		for len(old) > 0 && old[0].class < c.number {
			old = old[1:]
		}
		if len(old) > 0 && old[0].class == c.number {
			w.flows = append(w.flows, w.old.flows[old[0].flow-1])
		} else {
			w.decide(w.rest, rules, w.of(c.number), 2)
		}
		w.strangers = append(w.strangers, stranger{c.number, int32(len(w.flows))})
	}
}

// treat finds what the list does to peers in none of its sets, and to the classes.
// Those that it treats like strangers are rest's.
func (w *listWriter) treat(p *renewed) {
	w.decideAll(p)
	w.sortDecisions()
	byKey, group := map[string]int{w.rest.key: -1}, make(map[*decided]int, len(w.decisions))
	for _, d := range w.decisions {
		n, known := byKey[d.key]
		switch {
		case !known:
			byKey[d.key], n = len(w.groups), len(w.groups)
			w.groups = append(w.groups, treated{conduct: d.conduct.clone(), key: d.key})
		case n >= 0:
			w.groups[n].conduct.addRules(d.conduct)
		}
		group[d] = n
	}
	for at, f := range w.fates {
		if n := group[f.decided]; n < 0 {
			w.rest.classes, w.fates[at].flow = append(w.rest.classes, at), 0
		} else {
			w.groups[n].classes = append(w.groups[n].classes, at)
		}
	}
}

// sortDecisions finds the decisions of all fates: first those that there were before.
func (w *listWriter) sortDecisions() {
	found := make(map[*decided]bool, len(w.old.decisions))
	for _, f := range w.fates {
		found[f.decided] = false
	}
	w.decisions = make([]*decided, 0, len(found))
	add := func(d *decided) {
		if listed, used := found[d]; used && !listed {
			found[d] = true
			w.decisions = append(w.decisions, d)
		}
	}
	for _, d := range w.old.decisions {
		add(d)
	}
	if len(w.decisions) < len(found) {
		for _, f := range w.fates {
			add(f.decided)
		}
	}
}

// decideAll finds the classes that the list knows, and the fate of each: that which it had
// before, or what the rules say that are about it, and those that are about everybody.
func (w *listWriter) decideAll(p *renewed) {
	if w.old.flows != nil {
		w.classes, w.rest = p.classesAfter(w.old.classes, w.used), treated{conduct: w.old.rest.conduct, key: w.old.rest.key}
	} else {
		w.classes = p.classesOf(w.used)
	}
	unknown := w.keepFates(p)
	if len(unknown) == 0 && w.old.flows != nil {
		return
	}
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
	if w.old.flows == nil {
		w.rest.conduct = conductOf(w.list.Rules, always)
		w.rest.key = w.rest.conduct.key()
	}
	about := make([][]int, len(unknown))
	for s, rules := range bySet {
		for _, n := range p.bySet[s] {
			if i, there := slices.BinarySearchFunc(unknown, n, func(at int, n uint32) int { return cmp.Compare(w.classes[at], n) }); there {
				about[i] = append(about[i], rules...)
			}
		}
	}
	byRules := make(map[string]*decided, len(w.old.decisions))
	for _, d := range w.old.decisions {
		byRules[d.id] = d
	}
	for i, at := range unknown {
		w.fates[at].decided = w.decided(append(about[i], always...), byRules)
	}
}

// keepFates takes the fates that classes had before, and returns the places of the others.
func (w *listWriter) keepFates(p *renewed) (unknown []int) {
	w.fates = make([]fate, len(w.classes))
	entered, old := p.hasEntered(w.used), w.old.classes
	for at, n := range w.classes {
		for len(old) > 0 && old[0] < n {
			old = old[1:]
		}
		if len(old) > 0 && old[0] == n && !(entered && p.altered[n]) {
			w.fates[at] = w.old.fates[len(w.old.classes)-len(old)]
		} else {
			unknown = append(unknown, at)
		}
	}
	return unknown
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
		d = &decided{string(id), conduct, conduct.key(), conduct.rules()}
		known[d.id] = d
	}
	return d
}

// numberConducts numbers what cannot be told by the class alone.
func (w *listWriter) numberConducts() {
	w.numbers = map[string]uint32{}
	var keys []string
	for _, g := range append(w.groups[:len(w.groups):len(w.groups)], w.rest) {
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
	w.fate(w.table+2, 1, others.allow, others.rules, when(base...))
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
		w.protocol(p, spans, whole, others.allow, base)
	}
}

// protocol writes the flows of a protocol. whole is the fate of ports that have no flow of
// their own.
func (w *listWriter) protocol(p int, spans []span, whole, others bool, base []of.Term) {
	match := append(base[:len(base):len(base)], is(Protocol, uint64(transports[p].proto)))
	n := len(match)
	if whole != others {
		w.fate(w.table+2, 2, whole, rulesOf(spans, whole), when(match...))
	}
	for _, s := range spans {
		if s.allow == whole {
			continue
		}
		for _, m := range masks(s.first, s.last) {
			w.fate(w.table+2, 3, s.allow, s.rules, when(append(match[:n:n], of.Masked(Port.Field, m.Lo, m.Hi))...))
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
