package ovs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// Comments of the flows that decide about new flows begin so, and name the policies.
const (
	// AllowedBy begins the comment of a flow that lets through what a policy allows.
	AllowedBy = "allowed by "
	// DeniedBy begins the comment of a flow that drops what one denies.
	DeniedBy = "denied by "
)

// listed is a rendered RuleList and all that it was made of.
type listed struct {
	list   intent.RuleList
	number uint32
	// used are the names of its sets, sorted.
	used []string
	// has4 and has6 say which families the ports of the list have.
	has4, has6 bool
	// classes are those that have an address in a set of the list, by key; every is all of
	// the table, if the list names those too that it treats like strangers.
	classes []*class
	every   []*class
	flows   []of.Flow
}

// listNumbers gives every list a number that follows from its ID.
func (r *renderer) listNumbers() map[string]uint32 {
	out, taken := make(map[string]uint32, len(r.node.RuleLists)), map[uint32]bool{0: true, missingList: true}
	for _, l := range r.node.RuleLists {
		if _, twice := out[l.ID]; !twice {
			out[l.ID] = free(taken, l.ID)
		}
	}
	return out
}

// listNumber is that of a port's list, 0 for a port without one. One that the intent
// lacks has the reserved number, which no flow knows: it allows nothing.
func (r *renderer) listNumber(id string) uint32 {
	if id == "" {
		return 0
	}
	if l, ok := r.next.lists[id]; ok {
		return l.number
	}
	return missingList
}

// missingList is a number that no list gets.
const missingList = 0xffff_ffff

// policies adds the tables of peers and the lists.
func (r *renderer) policies() {
	families := r.listFamilies()
	numbers := r.listNumbers()
	uses := map[peersKey]map[string]bool{}
	for _, l := range r.node.RuleLists {
		if _, known := r.vpcs[l.VPC]; !known {
			r.problem(l.Ref(), "VPC %q is not among the VPCs", l.VPC)
			continue
		}
		if r.next.lists[l.ID] != nil {
			r.problem(l.Ref(), "the list is there twice")
			continue
		}
		next := &listed{list: l, number: numbers[l.ID], has4: families[l.ID][0], has6: families[l.ID][1]}
		if old := r.prev.lists[l.ID]; old != nil && (&old.list == &l || old.list.Equal(l)) {
			next.used = old.used
		} else {
			next.used = setsOf(l)
		}
		r.next.lists[l.ID] = next
		key := peersKey{l.VPC, l.Direction}
		if uses[key] == nil {
			uses[key] = map[string]bool{}
		}
		for _, s := range next.used {
			uses[key][s] = true
		}
	}
	for key, used := range uses {
		r.next.peers[key] = newPeers(r.prev.peers[key], key, r.vpcs[key.vpc], r.addressSets(key.vpc, used))
	}
	for key, p := range r.next.peers {
		for n, flows := range p.flows {
			r.part(fmt.Sprintf("peers %s %s %02d", key.vpc, key.direction, n), flows)
		}
	}
	for id, l := range r.next.lists {
		key := peersKey{l.list.VPC, l.list.Direction}
		l.render(r.prev.lists[id], r.next.peers[key], r.prev.peers[key])
		r.part("list "+id, l.flows)
	}
}

// listFamilies are the families of the ports that have a list, by its ID.
func (r *renderer) listFamilies() map[string][2]bool {
	out := map[string][2]bool{}
	for _, p := range r.node.Ports {
		for _, a := range p.Addresses {
			for _, id := range []string{p.Ingress, p.Egress} {
				f := out[id]
				f[familyIndex(a)] = true
				out[id] = f
			}
		}
	}
	return out
}

func setsOf(l intent.RuleList) []string {
	names := map[string]bool{}
	for _, r := range l.Rules {
		for _, s := range r.Match.Sets {
			names[s] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// addressSets are the used ones of a VPC, sorted by name.
func (r *renderer) addressSets(vpc string, used map[string]bool) []intent.AddressSet {
	first, _ := slices.BinarySearchFunc(r.node.AddressSets, vpc, func(s intent.AddressSet, vpc string) int { return cmp.Compare(s.VPC, vpc) })
	out := make([]intent.AddressSet, 0, len(used))
	for _, s := range r.node.AddressSets[first:] {
		if s.VPC != vpc {
			break
		}
		if used[s.Name] && (len(out) == 0 || out[len(out)-1].Name != s.Name) {
			out = append(out, s)
		}
	}
	return out
}

// render makes the flows, or takes those of old if nothing differs that they depend on.
func (l *listed) render(old *listed, p, before *peers) {
	same := old != nil && old.number == l.number && old.has4 == l.has4 && old.has6 == l.has6 && old.list.Equal(l.list)
	if same && before != nil && p.sameClasses {
		l.classes, l.every, l.flows = old.classes, old.every, old.flows
		return
	}
	l.classes = p.classesOf(l.used)
	if same && slices.Equal(old.classes, l.classes) {
		l.every = old.every
		if l.every == nil || slices.Equal(l.every, p.all) {
			l.flows = old.flows
			return
		}
	}
	w := listWriter{listed: l, out: TableIngressPeer, table: TableEgress, register: EgressList}
	if l.list.Direction == intent.Ingress {
		w.out, w.table, w.register = TableCommit, TableIngress, IngressList
	}
	w.write(p)
	l.flows = w.flows
}

// classesOf are those that have an address in some of the sets, by key.
func (p *peers) classesOf(sets []string) (out []*class) {
	in := map[*class]bool{}
	for _, s := range sets {
		for _, c := range p.bySet[s] {
			in[c] = true
		}
	}
	for _, c := range p.all {
		if in[c] {
			out = append(out, c)
		}
	}
	return out
}

// listWriter writes the flows of a list: first one for each class of peers, and where
// its fate depends on protocol and port, then some for those.
type listWriter struct {
	*listed
	// out is where what is allowed goes on.
	out, table uint8
	register   of.Subfield
	flows      writer
	numbers    map[string]uint32 // of conducts, by key
}

// treated is a conduct and who meets it. The rules of the conduct are those of all of
// them.
type treated struct {
	conduct conduct
	key     string
	classes []*class
	// rules are those that decide about each class.
	rules [][]int
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
		for n, c := range g.classes {
			w.decide(g, g.rules[n], w.of(c.number), 2)
		}
	}
	if most < 0 {
		w.decide(rest, rest.conduct.rules(), when(is(w.register, uint64(w.number))), 1)
	}
	for _, g := range append(groups, rest) {
		w.ports(g)
	}
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
	w.decide(rest, rest.conduct.rules(), w.of(0), 2)
	for _, c := range w.every {
		if !grouped[c] {
			w.decide(rest, rest.conduct.rules(), w.of(c.number), 2)
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
	about := make(map[*class][]int, len(w.classes))
	for s, rules := range bySet {
		for _, c := range p.bySet[s] {
			about[c] = append(about[c], rules...)
		}
	}
	byRules, byKey := map[string]*decided{}, map[string]int{rest.key: -1}
	var rules []int
	var id []byte
	for _, c := range w.classes {
		rules = append(append(rules[:0], always...), about[c]...)
		slices.Sort(rules)
		rules = slices.Compact(rules)
		id = id[:0]
		for _, n := range rules {
			id = binary.AppendUvarint(id, uint64(n))
		}
		d := byRules[string(id)]
		if d == nil {
			conduct := conductOf(w.list.Rules, rules)
			key := conduct.key()
			n, known := byKey[key]
			if !known {
				n = len(groups)
				groups = append(groups, treated{conduct: conduct, key: key})
				byKey[key] = n
			} else if n >= 0 {
				groups[n].conduct.addRules(conduct)
			}
			d = &decided{n, conduct.rules()}
			byRules[string(id)] = d
		}
		if d.group < 0 {
			rest.classes = append(rest.classes, c)
		} else {
			g := &groups[d.group]
			g.classes, g.rules = append(g.classes, c), append(g.rules, d.rules)
		}
	}
	return rest, groups
}

// decided is the group of peers whom certain rules are about, and those that decide.
type decided struct {
	group int
	rules []int
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
	delete(w.numbers, g.key) // rest may do what a group does
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
	if len(names) == 0 {
		return w.list.Ref().String()
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
