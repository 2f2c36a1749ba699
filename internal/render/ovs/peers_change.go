package ovs

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// changed is a set that has other prefixes than before.
type changed struct {
	name     string
	old, now []netip.Prefix
}

// changes are the sets that differ, and the prefixes that have entered or left one of
// them; false if those are too many.
func (p *peers) changes(sets []intent.AddressSet) (list []changed, touched []netip.Prefix, ok bool) {
	old := p.sets
	for len(old)+len(sets) > 0 {
		c := changed{}
		switch {
		case len(sets) == 0 || len(old) > 0 && old[0].Name < sets[0].Name:
			c.name, c.old, old = old[0].Name, old[0].Prefixes, old[1:]
		case len(old) == 0 || sets[0].Name < old[0].Name:
			c.name, c.now, sets = sets[0].Name, sets[0].Prefixes, sets[1:]
		default:
			c.name, c.old, c.now = old[0].Name, old[0].Prefixes, sets[0].Prefixes
			old, sets = old[1:], sets[1:]
		}
		before := len(touched)
		if touched = appendDifference(touched, c.old, c.now); len(touched) > maxTouched {
			return nil, nil, false
		}
		if len(touched) > before {
			list = append(list, c)
		}
	}
	return list, touched, true
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

// change makes a table out of another.
type change struct {
	prev, next *peers
	sets       []changed
	// known are the classes that others become, by which of the sets hold the peer.
	known map[becoming]*class
	// left are the classes that entries had, came those that they have, with the first of
	// them; fresh are those that the other table lacks.
	left  map[*class]int
	came  map[*class]stand
	fresh []*class
	// dirty are the chunks that are not those of the other table.
	dirty [chunks]bool
}

type becoming struct {
	class *class
	held  uint64
}

// with makes a table with other sets, in which only the entries of prefixes that entered or
// left a set, and of those within them, may differ. It is nil if that cannot be said, and
// all must be new.
func (p *peers) with(sets []intent.AddressSet) *peers {
	list, touched, ok := p.changes(sets)
	if !ok || len(list) > 64 || p.displaced {
		return nil
	}
	next := *p
	next.sets = sets
	if len(touched) == 0 {
		return &next // names count even where nothing is in a set
	}
	affected := p.affected(touched)
	if affected == nil {
		return nil
	}
	next.classes, next.count = maps.Clone(p.classes), maps.Clone(p.count)
	c := change{prev: p, next: &next, sets: list, known: map[becoming]*class{}, left: map[*class]int{}, came: map[*class]stand{}}
	for x := range affected {
		n := chunkOf(x)
		c.own(n)
		c.entry(n, x)
	}
	if c.classes(affected); !c.numbers() {
		return nil
	}
	for n := range c.dirty {
		if c.dirty[n] {
			next.render(n, p)
		}
	}
	return &next
}

// own makes a chunk one that may be changed.
func (c *change) own(chunk int) {
	if !c.dirty[chunk] {
		c.dirty[chunk], c.next.entries[chunk] = true, slices.Clone(c.next.entries[chunk])
	}
}

// affected are the touched prefixes and those of entries within them; nil if they are too
// many.
func (p *peers) affected(touched []netip.Prefix) map[netip.Prefix]bool {
	out := make(map[netip.Prefix]bool, len(touched))
	for _, t := range touched {
		if !validPrefix(t) {
			continue
		}
		out[t] = true
		if t.IsSingleIP() {
			continue
		}
		first, last := chunkOf(t), chunkOf(t)
		if first == wide {
			first = 0
		}
		for n := first; n <= last; n++ {
			entries := p.entries[n]
			i, _ := slices.BinarySearchFunc(entries, entry{prefix: t}, compareEntries)
			for _, e := range entries[i:] {
				if !t.Contains(e.prefix.Addr()) {
					break
				}
				if out[e.prefix] = true; len(out) > maxTouched {
					return nil
				}
			}
		}
	}
	return out
}

// entry makes the entry of one prefix anew.
func (c *change) entry(chunk int, x netip.Prefix) {
	var e entry
	var base *class
	if i, there := slices.BinarySearchFunc(c.prev.entries[chunk], entry{prefix: x}, compareEntries); there {
		e = c.prev.entries[chunk][i]
		base = e.class
		c.left[base]++
	} else {
		base = c.prev.around(chunk, i, x)
	}
	held := uint64(0)
	for i, s := range c.sets {
		if _, exactly := holds(s.old, x); exactly {
			e.exact--
		}
		inside, exactly := holds(s.now, x)
		if exactly {
			e.exact++
		}
		if inside {
			held |= 1 << i
		}
	}
	entries := c.next.entries[chunk]
	i, there := slices.BinarySearchFunc(entries, entry{prefix: x}, compareEntries)
	switch {
	case e.exact > 0:
		e.prefix, e.class = x, c.becomes(base, held)
		first, known := c.came[e.class]
		if s := standOf(x); !known || s.compare(first) < 0 {
			c.came[e.class] = s
		}
		c.next.count[e.class]++
		if there {
			entries[i] = e
		} else {
			c.next.entries[chunk] = slices.Insert(entries, i, e)
		}
	case there:
		c.next.entries[chunk] = slices.Delete(entries, i, i+1)
	}
}

// around is the class of the longest entry that holds x, which has none of its own and
// would be at place i of its chunk; nil if there is none.
func (p *peers) around(chunk, i int, x netip.Prefix) *class {
	for i--; chunk != wide && i >= 0; i-- {
		if e := p.entries[chunk][i]; e.prefix.Contains(x.Addr()) && e.prefix.Bits() < x.Bits() {
			return e.class
		}
	}
	if i := p.wideAround(x); i >= 0 {
		return p.entries[wide][i].class
	}
	return nil
}

// becomes is the class of peers of another one, nil for those in no set, when some of the
// changed sets hold them, and the others do not.
func (c *change) becomes(base *class, held uint64) *class {
	key := becoming{base, held}
	if out := c.known[key]; out != nil {
		return out
	}
	var old []string
	if base != nil {
		old = base.sets
	}
	names := make([]string, 0, len(old)+len(c.sets))
	for i, s := range c.sets {
		for len(old) > 0 && old[0] < s.name {
			names, old = append(names, old[0]), old[1:]
		}
		if len(old) > 0 && old[0] == s.name {
			old = old[1:]
		}
		if held&(1<<i) != 0 {
			names = append(names, s.name)
		}
	}
	names = append(names, old...)
	joined := strings.Join(names, "\n")
	out := c.next.classes[joined]
	if out == nil {
		out = &class{key: joined, sets: names}
		c.next.classes[joined] = out
		c.fresh = append(c.fresh, out)
	}
	c.known[key] = out
	return out
}

// classes takes away those without an entry, and says what stands for those that have
// others than before.
func (c *change) classes(affected map[netip.Prefix]bool) {
	p := c.next
	orphans := map[*class]stand{} // what stood for them has left
	for old, n := range c.left {
		first, came := c.came[old]
		switch p.count[old] -= n; {
		case p.count[old] == 0:
			delete(p.count, old)
			delete(p.classes, old.key)
		case affected[old.like.prefix] && !(came && first.compare(old.like) <= 0):
			orphans[old] = stand{}
		}
	}
	c.find(orphans)
	for old, first := range c.came {
		if old.like.prefix.IsValid() && first.compare(old.like) < 0 {
			orphans[old] = first
		}
	}
	for _, f := range c.fresh {
		f.like = c.came[f]
	}
	c.replace(orphans)
}

// numbers numbers the classes that the other table lacks. It is false if a number would
// not be that of a table that is made anew.
func (c *change) numbers() bool {
	p := c.next
	p.all = make([]*class, 0, len(p.classes))
	for _, k := range p.classes {
		if k.number == 0 {
			k.number = k.like.hash
		}
		p.all = append(p.all, k)
	}
	slices.SortFunc(p.all, compareClasses)
	last := uint32(0)
	for _, k := range p.all {
		if k.number == last {
			return false
		}
		last = k.number
	}
	return true
}

// find finds what stands for classes.
func (c *change) find(orphans map[*class]stand) {
	if len(orphans) == 0 {
		return
	}
	for _, entries := range c.next.entries {
		for _, e := range entries {
			first, orphan := orphans[e.class]
			if !orphan {
				continue
			}
			if s := standOf(e.prefix); !first.prefix.IsValid() || s.compare(first) < 0 {
				orphans[e.class] = s
			}
		}
	}
}

// replace puts classes for which something else stands in the place of others.
func (c *change) replace(others map[*class]stand) {
	if len(others) == 0 {
		return
	}
	p := c.next
	with := make(map[*class]*class, len(others))
	for old, like := range others {
		next := &class{key: old.key, sets: old.sets, like: like}
		with[old], p.classes[old.key], p.count[next] = next, next, p.count[old]
		delete(p.count, old)
	}
	for n := range p.entries {
		if !slices.ContainsFunc(p.entries[n], func(e entry) bool { return with[e.class] != nil }) {
			continue
		}
		c.own(n)
		for i, e := range p.entries[n] {
			if next := with[e.class]; next != nil {
				p.entries[n][i].class = next
			}
		}
	}
}

// renewed is a table, and how its classes differ from those of the table before.
type renewed struct {
	*peers
	// after says that there is one before. Otherwise all are new.
	after bool
	// renumbered says that classes have come or gone.
	renumbered bool
	// altered are the numbers of classes that lie in other sets than before, and entered
	// those sets that they have come into or left.
	altered map[uint32]bool
	entered map[string]bool
	// moved are the sets in which other classes lie, by number.
	moved map[string]*exchange
}

// exchange is which numbers have come and gone, sorted.
type exchange struct{ gone, come []uint32 }

// renewal compares a table with the one before, if there is one, and completes it.
func renewal(prev, p *peers) *renewed {
	r := &renewed{peers: p}
	if prev == nil {
		p.bySet = map[string][]uint32{}
		for _, c := range p.all {
			for _, s := range c.sets {
				p.bySet[s] = append(p.bySet[s], c.number)
			}
		}
		return r
	}
	r.after, r.altered, r.entered, r.moved = true, map[uint32]bool{}, map[string]bool{}, map[string]*exchange{}
	for old, now := prev.all, p.all; len(old)+len(now) > 0; {
		switch {
		case len(now) == 0 || len(old) > 0 && old[0].number < now[0].number:
			r.renumbered = true
			r.differ(old[0].number, old[0].sets, nil)
			old = old[1:]
		case len(old) == 0 || now[0].number < old[0].number:
			r.renumbered = true
			r.differ(now[0].number, nil, now[0].sets)
			now = now[1:]
		default:
			if old[0] != now[0] && r.differ(old[0].number, old[0].sets, now[0].sets, r.entered) {
				r.altered[now[0].number] = true
			}
			old, now = old[1:], now[1:]
		}
	}
	p.bySet = prev.bySet
	if len(r.moved) > 0 {
		p.bySet = maps.Clone(prev.bySet)
	}
	for s, x := range r.moved {
		if p.bySet[s] = x.of(prev.bySet[s]); len(p.bySet[s]) == 0 {
			delete(p.bySet, s)
		}
	}
	return r
}

// differ notes the sets that only one of two classes of a number lies in, and reports
// whether there are any.
func (r *renewed) differ(number uint32, old, now []string, notes ...map[string]bool) (differs bool) {
	for len(old)+len(now) > 0 {
		if len(old) > 0 && len(now) > 0 && old[0] == now[0] {
			old, now = old[1:], now[1:]
			continue
		}
		goes := len(now) == 0 || len(old) > 0 && old[0] < now[0]
		from := &now
		if goes {
			from = &old
		}
		s := (*from)[0]
		*from = (*from)[1:]
		x := r.moved[s]
		if x == nil {
			x = &exchange{}
			r.moved[s] = x
		}
		if goes {
			x.gone = append(x.gone, number)
		} else {
			x.come = append(x.come, number)
		}
		for _, n := range notes {
			n[s] = true
		}
		differs = true
	}
	return differs
}

// of is a sorted list without what has gone, and with what has come.
func (x *exchange) of(list []uint32) []uint32 {
	out := make([]uint32, 0, len(list)+len(x.come)-len(x.gone))
	gone, come := x.gone, x.come
	for _, n := range list {
		for len(come) > 0 && come[0] < n {
			out, come = append(out, come[0]), come[1:]
		}
		if len(gone) > 0 && gone[0] == n {
			gone = gone[1:]
			continue
		}
		out = append(out, n)
	}
	return append(out, come...)
}

// as reports whether the classes that lie in some sets are those of the table before, by
// number.
func (r *renewed) as(sets []string) bool {
	return r.after && (len(r.moved) == 0 || !slices.ContainsFunc(sets, func(s string) bool { return r.moved[s] != nil }))
}

// hasEntered reports whether a class that has kept its number has come into one of the
// sets, or left it.
func (r *renewed) hasEntered(sets []string) bool {
	return len(r.entered) > 0 && slices.ContainsFunc(sets, func(s string) bool { return r.entered[s] })
}

// classesAfter are the same, if they were the old ones in the table before.
func (r *renewed) classesAfter(old []uint32, sets []string) []uint32 {
	var x exchange
	for _, s := range sets {
		if m := r.moved[s]; m != nil {
			x.gone, x.come = append(x.gone, m.gone...), append(x.come, m.come...)
		}
	}
	slices.Sort(x.gone)
	slices.Sort(x.come)
	x.gone = slices.DeleteFunc(slices.Compact(x.gone), func(n uint32) bool {
		return slices.ContainsFunc(sets, func(s string) bool { return sortedHas(r.bySet[s], n) })
	})
	x.come = slices.DeleteFunc(slices.Compact(x.come), func(n uint32) bool { return sortedHas(old, n) })
	if len(x.gone)+len(x.come) == 0 {
		return old
	}
	return x.of(old)
}

func sortedHas(list []uint32, n uint32) bool {
	_, there := slices.BinarySearch(list, n)
	return there
}
