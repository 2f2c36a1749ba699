package ovs

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

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
	key  string
	sets []string
	// like stands for the class, which has its number from there and not from the sets: it
	// keeps it when sets come and go that hold all of it or nothing.
	like stand
	// number is unique in the table.
	number uint32
}

// stand is a prefix that may stand for a class.
type stand struct {
	prefix netip.Prefix
	hash   uint32
}

// standOf is FNV-1a, mixed so that neighbours have nothing in common.
func standOf(p netip.Prefix) stand {
	h := uint32(2166136261)
	for _, b := range p.Addr().As16() {
		h = (h ^ uint32(b)) * 16777619
	}
	h = (h ^ uint32(p.Bits())) * 16777619
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return stand{p, h ^ h>>16}
}

// compare orders those of a class: the first stands for it. That is one of the widest, for
// ranges come and go less than pods do, and of those the one with the lowest hash: of
// n addresses that come and go in whatever order, it is every n-th that gives the class
// another number.
func (s stand) compare(o stand) int {
	free := func(p netip.Prefix) int { return p.Addr().BitLen() - p.Bits() }
	if c := cmp.Or(cmp.Compare(free(o.prefix), free(s.prefix)), cmp.Compare(s.hash, o.hash)); c != 0 {
		return c
	}
	return intent.ComparePrefix(s.prefix, o.prefix)
}

// entry gives the addresses of a prefix to a class, but for those of a longer one.
type entry struct {
	prefix netip.Prefix
	class  *class
	// exact is how many sets have the prefix itself, not only one around it.
	exact int32
	// flow is the place of its flow among those of the chunk, counted from 1; 0: it needs none.
	flow int32
}

// Entries are kept in chunks: for a change of one address only one is made anew. What
// lies within one group of addresses, of these lengths, is in one chunk; shorter
// prefixes are in a chunk of their own.
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
	count   map[*class]int
	// displaced says that a class has another number than the hash of what stands for it.
	displaced bool
	// all are all classes, by number.
	all []*class
	// bySet are the numbers of the classes that lie in a set, sorted.
	bySet map[string][]uint32
}

// maxTouched is how many entries are changed one by one; if more differ, all are made
// anew.
const maxTouched = 4096

// newPeers makes a table, from prev if it has one, and says how its classes differ from
// those that prev has.
func newPeers(prev *peers, key peersKey, v vpc, sets []intent.AddressSet) *renewed {
	if prev != nil && prev.vpc != v {
		prev = nil
	}
	var p *peers
	if prev != nil {
		p = prev.with(sets)
	}
	if p == nil {
		p = &peers{key: key, vpc: v, sets: sets}
		p.fill(prev)
	}
	return renewal(prev, p)
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

// number gives each class a number that follows from what stands for it, and is the same
// whatever other classes there are.
func (p *peers) number() {
	p.all = slices.SortedFunc(maps.Values(p.classes), func(a, b *class) int {
		return cmp.Or(cmp.Compare(a.like.hash, b.like.hash), a.like.compare(b.like))
	})
	taken := map[uint32]bool{0: true}
	p.displaced = false
	for _, c := range p.all {
		c.number = vacant(taken, c.like.hash)
		p.displaced = p.displaced || c.number != c.like.hash
	}
	slices.SortFunc(p.all, compareClasses)
}

func compareClasses(a, b *class) int { return cmp.Compare(a.number, b.number) }

// classesOf are the numbers of the classes that lie in some of the sets, sorted.
func (p *peers) classesOf(sets []string) []uint32 {
	var out []uint32
	for _, s := range sets {
		out = append(out, p.bySet[s]...)
	}
	if len(sets) > 1 {
		slices.Sort(out)
		out = slices.Compact(out)
	}
	return out
}

// free takes the number of a name, or the next one that is free.
func free(taken map[uint32]bool, name string) uint32 { return vacant(taken, hashOf(name)) }

// vacant takes a number, or the next one that is free.
func vacant(taken map[uint32]bool, n uint32) uint32 {
	for taken[n] {
		n++
	}
	taken[n] = true
	return n
}

// hashOf is FNV-1a, without a copy of the name.
func hashOf(name string) uint32 {
	n := uint32(2166136261)
	for i := range len(name) {
		n = (n ^ uint32(name[i])) * 16777619
	}
	return n
}

// render makes the flows of a chunk: of its entries, those that say something that a
// shorter one does not say already, and that longer ones do not cover. What prev has
// already is taken from there.
func (p *peers) render(chunk int, prev *peers) {
	entries := p.entries[chunk]
	covered := make([]bool, len(entries))
	if chunk != wide {
		markCovered(entries, covered)
	}
	w := peersWriter{peers: p, room: len(entries), made: map[*class]*onwards{}}
	var stack []entry // those around, but for covered ones
	var old []entry
	if prev != nil {
		old, w.old = prev.entries[chunk], prev.flows[chunk]
	}
	for i, e := range entries {
		entries[i].flow = 0
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
		for len(old) > 0 && compareEntries(old[0], e) < 0 {
			old = old[1:]
		}
		if len(old) > 0 && old[0].flow > 0 && old[0].prefix == e.prefix && old[0].class.alike(e.class) {
			w.take(int(old[0].flow - 1))
		} else {
			w.entry(e)
		}
		entries[i].flow = int32(w.n)
	}
	p.flows[chunk] = w.end()
}

// alike reports whether two classes of one table have the same flows.
func (c *class) alike(o *class) bool { return c == o || c.number == o.number && c.like == o.like }

// peersWriter writes the flows of a chunk: n of them, which are the first of old as long
// as flows is nil.
type peersWriter struct {
	*peers
	n     int
	flows writer
	old   []of.Flow
	room  int
	made  map[*class]*onwards
}

// differ says that something else than the next of the old flows comes.
func (w *peersWriter) differ() {
	if w.flows == nil {
		w.flows = append(make(writer, 0, w.room), w.old[:w.n]...)
	}
}

// take takes an old flow, by its place.
func (w *peersWriter) take(at int) {
	if w.flows != nil || at != w.n {
		w.differ()
		w.flows = append(w.flows, w.old[at])
	}
	w.n++
}

func (w *peersWriter) end() []of.Flow {
	if w.flows == nil && w.n == len(w.old) {
		return w.old
	}
	w.differ()
	return w.flows
}

// onwards is what all flows of a class share.
type onwards struct {
	actions []of.Action
	comment string
}

func (w *peersWriter) entry(e entry) {
	table, ahead, f := TableEgressPeer, TableEgress, familyOf(e.prefix.Addr())
	peer := f.dst
	if w.key.direction == intent.Ingress {
		table, ahead, peer = TableIngressPeer, TableIngress, f.src
	}
	m := w.made[e.class]
	if m == nil {
		m = &onwards{[]of.Action{load(PeerClass, uint64(e.class.number)), to(ahead)}, "in the same AddressSets as " + e.class.like.prefix.String()}
		w.made[e.class] = m
	}
	match := of.Match{is(VPC, uint64(w.vpc.vni)), f.ip, of.Prefix(peer, e.prefix)}
	if e.prefix.Bits() == 0 {
		match = match[:2]
	}
	w.differ()
	w.flows.add(table, 10+e.prefix.Bits(), m.comment, match, m.actions...)
	w.n++
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
