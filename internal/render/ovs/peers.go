package ovs

import (
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
	// numbers are those of the classes. displaced says that one has another than its name's.
	numbers   map[uint32]bool
	displaced bool
	// all are all classes, by key.
	all []*class
	// bySet are the classes that lie in a set, in no order, and dead ones that have gone.
	bySet map[string][]*class
	dead  int
}

// maxTouched is how many entries are changed one by one; if more differ, all are made
// anew.
const maxTouched = 4096

// renewed is a table, and how its classes differ from those of the table before.
type renewed struct {
	*peers
	// after says that they are those of the table before, but for classes that lie in one of
	// the sets moved. Otherwise all are new.
	after bool
	moved map[string]bool
}

// as reports whether the classes that lie in some sets are those of the table before.
func (r *renewed) as(sets []string) bool {
	return r.after && (len(r.moved) == 0 || !slices.ContainsFunc(sets, func(s string) bool { return r.moved[s] }))
}

// newPeers makes a table, from prev if it has one.
func newPeers(prev *peers, key peersKey, v vpc, sets []intent.AddressSet) *renewed {
	if prev != nil && prev.vpc == v {
		if r := prev.with(sets); r != nil {
			return r
		}
	}
	p := &peers{key: key, vpc: v, sets: sets}
	p.fill()
	return &renewed{peers: p}
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
	p.numbers, p.displaced = map[uint32]bool{0: true}, false
	for _, c := range p.all {
		c.number = free(p.numbers, c.key)
		p.displaced = p.displaced || c.number != hashOf(c.key)
	}
}

// free takes the number of a name, or the next one that is free.
func free(taken map[uint32]bool, name string) uint32 {
	n := hashOf(name)
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

func (p *peers) index() {
	p.bySet, p.all, p.dead = map[string][]*class{}, make([]*class, 0, len(p.classes)), 0
	for _, key := range slices.Sorted(maps.Keys(p.classes)) {
		c := p.classes[key]
		p.all = append(p.all, c)
		for _, s := range c.sets {
			p.bySet[s] = append(p.bySet[s], c)
		}
	}
}

// render makes the flows of a chunk: of its entries, those that say something that a
// shorter one does not say already, and that longer ones do not cover. What prev has
// already is taken from there.
func (p *peers) render(chunk int, prev *peers) {
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
	w := make(writer, 0, len(entries))
	var stack []entry // those around, but for covered ones
	var old []entry
	if prev != nil {
		old = prev.entries[chunk]
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
		entries[i].flow = int32(len(w) + 1)
		for len(old) > 0 && compareEntries(old[0], e) < 0 {
			old = old[1:]
		}
		if len(old) > 0 && old[0].flow > 0 && old[0].prefix == e.prefix && old[0].class == e.class {
			w = append(w, prev.flows[chunk][old[0].flow-1])
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
