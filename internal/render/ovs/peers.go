package ovs

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// peersKey names a table of peers: those that lists of one VPC and direction tell
// apart.
type peersKey struct {
	vpc       string
	direction intent.Direction
}

// class is the peers that lie in exactly certain sets. To a list they are all the
// same.
type class struct {
	// key joins the names of the sets, which are sorted.
	key    string
	sets   []string
	number uint32
}

// entry gives the addresses of a prefix to a class, but for those of a longer one.
type entry struct {
	prefix netip.Prefix
	class  *class
}

// Entries are kept in chunks: for a change of one address only one is made anew. What
// lies within one group of addresses, of these lengths, is in one chunk; shorter
// prefixes are in a chunk of their own, and if one of those changes, all is new.
const (
	group4, group6 = 24, 120
	chunks         = 65
	wide           = chunks - 1
)

// peers is a table of peers. It is never changed once it is made.
type peers struct {
	key  peersKey
	vpc  vpc
	sets []intent.AddressSet // sorted by name
	// entries, each chunk sorted, and their flows.
	entries [chunks][]entry
	flows   [chunks][]of.Flow
	// classes by key, and how many entries they have.
	classes map[string]*class
	count   map[string]int
	// bySet are the classes that lie in a set. sameClasses says that classes are those of the
	// table that this one was made from.
	bySet       map[string][]*class
	sameClasses bool
	// all are all classes, by key.
	all []*class
}

// maxTouched is how many entries are changed one by one; if more differ, all are made
// anew.
const maxTouched = 256

// newPeers makes a table, from prev if it has one.
func newPeers(prev *peers, key peersKey, v vpc, sets []intent.AddressSet) *peers {
	if prev != nil && prev.vpc == v {
		if touched, ok := prev.touched(sets); ok {
			if len(touched) == 0 && sameNames(prev.sets, sets) {
				// Names count even where nothing is in a set.
				again := *prev
				again.sets, again.sameClasses = sets, true
				return &again
			}
			if p := prev.after(sets, touched); p != nil {
				return p
			}
		}
	}
	p := &peers{key: key, vpc: v, sets: sets}
	p.fill()
	return p
}

func sameNames(a, b []intent.AddressSet) bool {
	return slices.EqualFunc(a, b, func(a, b intent.AddressSet) bool { return a.Name == b.Name })
}

// wideAround is the longest wide prefix that holds x, by its place, or -1.
func (p *peers) wideAround(x netip.Prefix) int {
	entries := p.entries[wide]
	i, _ := slices.BinarySearchFunc(entries, x, func(e entry, x netip.Prefix) int { return intent.ComparePrefix(e.prefix, x) })
	// Sorted prefixes around x come before it; what lies between them is small.
	for i--; i >= 0; i-- {
		if e := entries[i].prefix; e.Addr().Is4() != x.Addr().Is4() {
			return -1
		} else if e.Contains(x.Addr()) {
			return i
		}
	}
	return -1
}

func compareEntries(a, b entry) int { return intent.ComparePrefix(a.prefix, b.prefix) }

// chunkOf scatters groups of addresses over the chunks.
func chunkOf(p netip.Prefix) int {
	group := group6
	if p.Addr().Is4() {
		group = group4
	}
	if p.Bits() < group {
		return wide
	}
	around, _ := p.Addr().Prefix(group)
	h := uint32(2166136261)
	for _, b := range around.Addr().As16() {
		h = (h ^ uint32(b)) * 16777619
	}
	return int((h ^ h>>16) % wide)
}

// number gives each class a number that follows from its name, so that it is the same
// whatever other classes there are.
func (p *peers) number() {
	taken := map[uint32]bool{0: true}
	for _, key := range slices.Sorted(maps.Keys(p.classes)) {
		p.classes[key].number = free(taken, key)
	}
}

// free takes the number of a name, or the next one that is free.
func free(taken map[uint32]bool, name string) uint32 {
	n := uint32(2166136261) // FNV-1a, without a copy of the name
	for i := range len(name) {
		n = (n ^ uint32(name[i])) * 16777619
	}
	for taken[n] {
		n++
	}
	taken[n] = true
	return n
}

func (p *peers) index() {
	p.bySet, p.all = map[string][]*class{}, make([]*class, 0, len(p.classes))
	for _, key := range slices.Sorted(maps.Keys(p.classes)) {
		c := p.classes[key]
		p.all = append(p.all, c)
		for _, s := range c.sets {
			p.bySet[s] = append(p.bySet[s], c)
		}
	}
}

// render makes the flows of a chunk: of its entries, those that say something that a
// shorter one does not say already, and that longer ones do not cover.
func (p *peers) render(chunk int) {
	table, ahead := TableEgressPeer, TableEgress
	if p.key.direction == intent.Ingress {
		table, ahead = TableIngressPeer, TableIngress
	}
	entries := p.entries[chunk]
	covered := make([]bool, len(entries))
	if chunk != wide {
		markCovered(entries, covered)
	}
	inVPC, onwards := is(VPC, uint64(p.vpc.vni)), to(ahead)
	actions := map[*class][]of.Action{}
	var w writer
	var stack []entry // those around, but for covered ones
	for i, e := range entries {
		for len(stack) > 0 && !stack[len(stack)-1].prefix.Contains(e.prefix.Addr()) {
			stack = stack[:len(stack)-1]
		}
		if covered[i] {
			continue
		}
		before := p.said(stack, chunk, e.prefix)
		if stack = append(stack, e); before == e.class {
			continue
		}
		if actions[e.class] == nil {
			actions[e.class] = []of.Action{load(PeerClass, uint64(e.class.number)), onwards}
		}
		f := familyOf(e.prefix.Addr())
		peer := f.dst
		if p.key.direction == intent.Ingress {
			peer = f.src
		}
		match := of.Match{inVPC, f.ip, of.Prefix(peer, e.prefix)}
		if e.prefix.Bits() == 0 {
			match = match[:2]
		}
		w.add(table, 10+e.prefix.Bits(), e.class.text(), match, actions[e.class]...)
	}
	p.flows[chunk] = w
}

// said is the class that a prefix has by the flows of shorter ones.
func (p *peers) said(stack []entry, chunk int, x netip.Prefix) *class {
	if len(stack) > 0 {
		return stack[len(stack)-1].class
	}
	if chunk == wide {
		return nil
	}
	if i := p.wideAround(x); i >= 0 {
		return p.entries[wide][i].class
	}
	return nil
}

// markCovered marks entries all of whose addresses have longer ones. Prefixes of a
// chunk are so long that their addresses can be counted.
func markCovered(entries []entry, covered []bool) {
	type open struct {
		entry int
		left  int
	}
	var stack []open
	for i, e := range entries {
		for len(stack) > 0 && !entries[stack[len(stack)-1].entry].prefix.Contains(e.prefix.Addr()) {
			stack = stack[:len(stack)-1]
		}
		size := 1 << (e.prefix.Addr().BitLen() - e.prefix.Bits())
		if n := len(stack) - 1; n >= 0 {
			stack[n].left -= size
			covered[stack[n].entry] = stack[n].left == 0
		}
		stack = append(stack, open{i, size})
	}
}

// text names the sets of a class, as many as are of use.
func (c *class) text() string {
	const most = 4
	if len(c.sets) <= most {
		return "in AddressSets " + strings.Join(c.sets, ", ")
	}
	return fmt.Sprintf("in AddressSets %s and %d more", strings.Join(c.sets[:most], ", "), len(c.sets)-most)
}

// touched are the prefixes that have entered or left a set, and false if there are too
// many.
func (p *peers) touched(sets []intent.AddressSet) (out []netip.Prefix, ok bool) {
	old := p.sets
	for len(old)+len(sets) > 0 && len(out) <= maxTouched {
		c := 0
		switch {
		case len(old) == 0:
			c = 1
		case len(sets) == 0:
			c = -1
		default:
			c = cmp.Compare(old[0].Name, sets[0].Name)
		}
		switch {
		case c < 0:
			out, old = append(out, old[0].Prefixes...), old[1:]
		case c > 0:
			out, sets = append(out, sets[0].Prefixes...), sets[1:]
		default:
			out = appendDifference(out, old[0].Prefixes, sets[0].Prefixes)
			old, sets = old[1:], sets[1:]
		}
	}
	return out, len(out) <= maxTouched
}

// appendDifference appends what only one of two sorted lists has.
func appendDifference(out, a, b []netip.Prefix) []netip.Prefix {
	if len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) {
		return out
	}
	for len(a) > 0 && len(b) > 0 {
		switch c := intent.ComparePrefix(a[0], b[0]); {
		case c < 0:
			out, a = append(out, a[0]), a[1:]
		case c > 0:
			out, b = append(out, b[0]), b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// after makes a table out of p, in which only the entries of the touched prefixes, and
// of those within them, may differ. It is nil if a wide one or a number changes: then
// all is new.
func (p *peers) after(sets []intent.AddressSet, touched []netip.Prefix) *peers {
	next := &peers{
		key: p.key, vpc: p.vpc, sets: sets, entries: p.entries, flows: p.flows,
		classes: p.classes, count: maps.Clone(p.count), bySet: p.bySet, all: p.all, sameClasses: true,
	}
	affected := map[netip.Prefix]bool{}
	for _, t := range touched {
		if !validPrefix(t) {
			continue
		}
		n := chunkOf(t)
		if n == wide {
			return nil // entries of all chunks may lie within
		}
		affected[t] = true
		for _, e := range p.entries[n] {
			if !t.IsSingleIP() && e.prefix.Bits() > t.Bits() && t.Contains(e.prefix.Addr()) {
				affected[e.prefix] = true
			}
		}
	}
	var dirty [chunks]bool
	for x := range affected {
		n := chunkOf(x)
		if !dirty[n] {
			dirty[n], next.entries[n] = true, slices.Clone(next.entries[n])
		}
		next.set(n, x)
	}
	if !next.sameClasses && !next.renumber(p) {
		return nil
	}
	for n := range dirty {
		if dirty[n] {
			next.render(n)
		}
	}
	return next
}

// set makes the entry of one prefix anew.
func (p *peers) set(chunk int, x netip.Prefix) {
	var names []string
	there := false
	for _, s := range p.sets {
		if inside, exactly := holds(s.Prefixes, x); inside {
			names = append(names, s.Name)
			there = there || exactly
		}
	}
	entries := p.entries[chunk]
	i, found := slices.BinarySearchFunc(entries, entry{prefix: x}, compareEntries)
	var old *class
	if found {
		old = entries[i].class
	}
	switch {
	case there && found:
		entries[i].class = p.enter(names)
	case there:
		p.entries[chunk] = slices.Insert(entries, i, entry{x, p.enter(names)})
	case found:
		p.entries[chunk] = slices.Delete(entries, i, i+1)
	}
	if old != nil {
		p.leave(old)
	}
}

// holds reports whether sorted, disjoint prefixes hold all of x, and whether x is one
// of them.
func holds(prefixes []netip.Prefix, x netip.Prefix) (inside, exactly bool) {
	i, found := slices.BinarySearchFunc(prefixes, x.Addr(), func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	if !found {
		i--
	}
	if i < 0 || prefixes[i].Bits() > x.Bits() || !prefixes[i].Contains(x.Addr()) {
		return false, false
	}
	return true, prefixes[i] == x
}

// own makes p's classes its own before the first change.
func (p *peers) own() {
	if p.sameClasses {
		p.classes, p.sameClasses = maps.Clone(p.classes), false
	}
}

func (p *peers) leave(c *class) {
	if p.count[c.key]--; p.count[c.key] == 0 {
		p.own()
		delete(p.count, c.key)
		delete(p.classes, c.key)
	}
}

func (p *peers) enter(names []string) *class {
	key := strings.Join(names, "\n")
	c := p.classes[key]
	if c == nil {
		p.own()
		c = &class{key: key, sets: names}
		p.classes[key] = c
	}
	p.count[key]++
	return c
}

// renumber numbers the classes of a changed table, and reports whether those that were
// there before keep their numbers.
func (p *peers) renumber(prev *peers) bool {
	taken := map[uint32]bool{0: true}
	for _, key := range slices.Sorted(maps.Keys(p.classes)) {
		n := free(taken, key)
		if old, there := prev.classes[key]; there && old.number != n {
			return false
		} else if there && p.classes[key] != old {
			return false // it left and came again: entries of either hold the same number
		}
		if _, there := prev.classes[key]; !there {
			p.classes[key].number = n
		}
	}
	p.index()
	return true
}
