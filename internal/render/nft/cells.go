package nft

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// The protocols that a tier can treat apart, and all others.
const (
	onTCP = iota
	onUDP
	onSCTP
	onOthers
	protocols
)

// protocolOf is the place of a protocol in a conduct.
func protocolOf(p packet.Protocol) int {
	switch p {
	case packet.TCP:
		return onTCP
	case packet.UDP:
		return onUDP
	case packet.SCTP:
		return onSCTP
	}
	return onOthers
}

// maxPort is the last port.
const maxPort = 0xffff

// span is a range of destination ports that have one fate: Accept, Deny or Pass.
type span struct {
	first, last uint16
	is          intent.Action
}

// conduct is what a tier does to the packets of one peer, by protocol. Spans are
// sorted and cover every port; neighbours differ. Pass is also what no rule matches.
type conduct [protocols][]span

// uniform is the fate of every packet of the protocol, if they share one.
func uniform(s []span) (intent.Action, bool) { return s[0].is, len(s) == 1 }

// uniform is the fate of every packet, if they share one.
func (c conduct) uniform() (intent.Action, bool) {
	for _, s := range c {
		if len(s) > 1 || s[0].is != c[onOthers][0].is {
			return 0, false
		}
	}
	return c[onOthers][0].is, true
}

// key identifies a conduct.
func (c conduct) key() string {
	var b []byte
	for _, s := range c {
		b = binary.AppendUvarint(b, uint64(len(s)))
		for _, x := range s {
			b = append(b, byte(x.is))
			b = binary.BigEndian.AppendUint16(b, x.last)
		}
	}
	return string(b)
}

// paint gives what is free of a range of ports to an action. s is sorted and
// disjoint; the first to come keeps its ports.
func paint(s []span, r intent.PortRange, is intent.Action) []span {
	i, _ := slices.BinarySearchFunc(s, r.First, func(x span, first uint16) int { return int(x.last) - int(first) })
	if i == len(s) || s[i].first > r.Last {
		return slices.Insert(s, i, span{r.First, r.Last, is})
	}
	var fresh []span
	next, end := int(r.First), i
	for ; end < len(s) && s[end].first <= r.Last; end++ {
		if next < int(s[end].first) {
			fresh = append(fresh, span{uint16(next), s[end].first - 1, is})
		}
		fresh = append(fresh, s[end])
		next = int(s[end].last) + 1
	}
	if next <= int(r.Last) {
		fresh = append(fresh, span{uint16(next), r.Last, is})
	}
	return slices.Replace(s, i, end, fresh...)
}

var anyPort = intent.PortRange{Last: maxPort}

// conductOf is what rules, the first of which that matches decides, do to a peer
// that the sets of all of them hold.
func conductOf(rules []*intent.Rule) (c conduct) {
	for _, r := range rules {
		ports := r.Match.Ports
		if len(ports) == 0 {
			ports = []intent.PortRange{anyPort}
		}
		for p := range c {
			if r.Match.Protocol != 0 && (p == onOthers || p != protocolOf(r.Match.Protocol)) {
				continue
			}
			for _, x := range ports {
				c[p] = paint(c[p], x, r.Action)
			}
		}
		if r.Match.Protocol == 0 {
			break // nothing is left for later ones
		}
	}
	for p := range c {
		c[p] = joined(paint(c[p], anyPort, intent.Pass))
	}
	return c
}

// joined makes one span of neighbours with the same fate.
func joined(s []span) []span {
	out := s[:1]
	for _, x := range s[1:] {
		if last := &out[len(out)-1]; last.is == x.is {
			last.last = x.last
		} else {
			out = append(out, x)
		}
	}
	return out
}

// class is a conduct and the peers that meet it, by family.
type class struct {
	conduct conduct
	peers   [2][]piece // sorted, disjoint, not adjoining
	// rules are those that are about some of the peers, sorted.
	rules []int
	// whole is the AddressSet that holds the very same peers, nil if none does.
	whole *wholeSet
}

// piece is a range of addresses, both ends included.
type piece struct{ from, to point }

func (p piece) value(is4 bool) nft.Value {
	return nft.AddrRange(netipx.IPRangeFrom(p.from.addr(is4), p.to.addr(is4)))
}

// classify finds the peers that a tier treats alike. rest is what it does to all
// that lie in no set of its rules; the classes differ from it and from each other, and
// have no peer in common. They come in the order of their lowest peers. in is the
// prefixes of a set.
func classify(rules []intent.Rule, in func(set string) []netip.Prefix) (classes []class, rest conduct) {
	t := tier{rules: rules, bySet: map[string]int{}, known: map[string]int{}, byKey: map[string]int{}}
	for i, r := range rules {
		if len(r.Match.Sets) == 0 {
			t.always = append(t.always, i)
		}
		for _, s := range r.Match.Sets {
			n, ok := t.bySet[s]
			if !ok {
				n = len(t.sets)
				t.bySet[s] = n
				t.sets, t.of = append(t.sets, in(s)), append(t.of, nil)
			}
			t.of[n] = append(t.of[n], i)
		}
	}
	rest = t.conduct(t.always)
	t.byKey[rest.key()] = -1
	for f := range families {
		t.sweep(f)
	}
	for i := range t.classes {
		slices.Sort(t.classes[i].rules)
		t.classes[i].rules = slices.Compact(t.classes[i].rules)
	}
	return t.classes, rest
}

// tier is the work of classify.
type tier struct {
	rules  []intent.Rule
	always []int            // rules for every peer
	bySet  map[string]int   // set to its number
	sets   [][]netip.Prefix // by number
	of     [][]int          // the rules that a set is part of, by its number
	// known is the class of the peers that lie in exactly certain sets, a bit map;
	// byKey that of a conduct. -1 is the rest.
	known, byKey map[string]int
	classes      []class
}

func (t *tier) conduct(rules []int) conduct {
	list := make([]*intent.Rule, len(rules))
	for i, r := range rules {
		list[i] = &t.rules[r]
	}
	return conductOf(list)
}

// point is an address as a number; IPv4 as it is mapped into IPv6.
type point struct{ hi, lo uint64 }

func pointOf(a netip.Addr) point {
	b := a.As16()
	return point{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (p point) compare(o point) int { return cmp.Or(cmp.Compare(p.hi, o.hi), cmp.Compare(p.lo, o.lo)) }

func (p point) next() point {
	if p.lo++; p.lo == 0 {
		p.hi++
	}
	return p
}

func (p point) prev() point {
	if p.lo--; p.lo == math.MaxUint64 {
		p.hi--
	}
	return p
}

func (p point) addr(is4 bool) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], p.hi)
	binary.BigEndian.PutUint64(b[8:], p.lo)
	if is4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

// end is the last address of a prefix.
func end(p netip.Prefix) point {
	e := pointOf(p.Masked().Addr())
	if host := p.Addr().BitLen() - p.Bits(); host > 64 {
		e.lo, e.hi = math.MaxUint64, e.hi|(1<<(host-64)-1)
	} else {
		e.lo |= 1<<host - 1
	}
	return e
}

// lastOf is the last address of each family.
var lastOf = [...]point{{0, 0xffff_ffff_ffff}, {math.MaxUint64, math.MaxUint64}}

// edge is where an address range of a set begins, or the first address behind it.
type edge struct {
	at    point
	set   int32
	delta int32
}

func byPoint(a, b edge) int { return a.at.compare(b.at) }

// appendEdges appends those of one set in one family, sorted.
func appendEdges(edges []edge, prefixes []netip.Prefix, f int, set int32) []edge {
	start := len(edges)
	for _, p := range prefixes {
		if !p.IsValid() || p.Addr().Is4() != families[f].is4 {
			continue
		}
		edges = append(edges, edge{pointOf(p.Masked().Addr()), set, 1})
		if e := end(p); e != lastOf[f] {
			edges = append(edges, edge{e.next(), set, -1})
		}
	}
	if own := edges[start:]; !slices.IsSortedFunc(own, byPoint) { // a set that is not sorted
		slices.SortFunc(own, byPoint)
	}
	return edges
}

// edges are those of all sets in one family, sorted: each set's are, so that they need
// only be merged, two runs into one, until one is left.
func (t *tier) edges(f int) []edge {
	n := 0
	for _, prefixes := range t.sets {
		for _, p := range prefixes {
			if p.Addr().Is4() == families[f].is4 {
				n += 2
			}
		}
	}
	all, room := make([]edge, 0, n), make([]edge, 0, n)
	runs := []int{0} // where they begin, and the end of the last one
	for i, prefixes := range t.sets {
		all = appendEdges(all, prefixes, f, int32(i))
		runs = append(runs, len(all))
	}
	for len(runs) > 2 {
		merged, kept := room[:0], []int{0}
		for i := 0; i+1 < len(runs); i += 2 {
			second := all[runs[i+1]:runs[min(i+2, len(runs)-1)]]
			merged = appendMerged(merged, all[runs[i]:runs[i+1]], second)
			kept = append(kept, len(merged))
		}
		all, room, runs = merged, all, kept
	}
	return all
}

// appendMerged appends two sorted runs as one.
func appendMerged(out, a, b []edge) []edge {
	for len(a) > 0 && len(b) > 0 {
		if byPoint(a[0], b[0]) <= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// sweep cuts the addresses of a family at every edge and gives each piece to its class.
func (t *tier) sweep(f int) {
	edges := t.edges(f)
	inside := make([]int32, len(t.sets))
	bits := make([]byte, (len(t.sets)+7)/8)
	for len(edges) > 0 {
		from := edges[0].at
		n := 0
		for ; n < len(edges) && edges[n].at == from; n++ {
			e := edges[n]
			if inside[e.set] += e.delta; inside[e.set] > 0 {
				bits[e.set/8] |= 1 << (e.set % 8)
			} else {
				bits[e.set/8] &^= 1 << (e.set % 8)
			}
		}
		edges = edges[n:]
		to := lastOf[f]
		if len(edges) > 0 {
			to = edges[0].at.prev()
		}
		if c := t.classOf(bits); c >= 0 {
			t.classes[c].add(f, piece{from, to})
		}
	}
}

func (c *class) add(f int, p piece) {
	if n := len(c.peers[f]); n > 0 && c.peers[f][n-1].to.next() == p.from {
		c.peers[f][n-1].to = p.to
		return
	}
	c.peers[f] = append(c.peers[f], p)
}

// classOf is the class of peers that lie in the sets of a bit map.
func (t *tier) classOf(bits []byte) int {
	if c, ok := t.known[string(bits)]; ok {
		return c
	}
	rules := slices.Clone(t.always)
	for n, of := range t.of {
		if bits[n/8]>>(n%8)&1 != 0 {
			rules = append(rules, of...)
		}
	}
	slices.Sort(rules)
	rules = slices.Compact(rules)
	c := t.conduct(rules)
	key := c.key()
	n, ok := t.byKey[key]
	if !ok {
		n = len(t.classes)
		t.classes = append(t.classes, class{conduct: c})
		t.byKey[key] = n
	}
	if n >= 0 {
		t.classes[n].rules = append(t.classes[n].rules, rules...)
	}
	t.known[string(bits)] = n
	return n
}
