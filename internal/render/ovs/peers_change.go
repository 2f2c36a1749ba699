package ovs

import (
	"cmp"
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
	// entered are the classes that the other table lacks.
	entered []*class
}

type becoming struct {
	class *class
	held  uint64
}

// with makes a table with other sets, in which only the entries of prefixes that entered or
// left a set, and of those within them, may differ. It is nil if that cannot be said, and
// all must be new.
func (p *peers) with(sets []intent.AddressSet) *renewed {
	list, touched, ok := p.changes(sets)
	if !ok || len(list) > 64 {
		return nil
	}
	next := *p
	next.sets = sets
	if len(touched) == 0 {
		return &renewed{peers: &next, after: true} // names count even where nothing is in a set
	}
	affected := p.affected(touched)
	if affected == nil {
		return nil
	}
	next.classes, next.count = maps.Clone(p.classes), maps.Clone(p.count)
	c := change{prev: p, next: &next, sets: list, known: map[becoming]*class{}}
	var dirty [chunks]bool
	var left []*class
	for x := range affected {
		n := chunkOf(x)
		if !dirty[n] {
			dirty[n], next.entries[n] = true, slices.Clone(next.entries[n])
		}
		if old := c.entry(n, x); old != nil {
			left = append(left, old)
		}
	}
	moved, ok := c.classes(left)
	if !ok {
		return nil
	}
	for n := range dirty {
		if dirty[n] {
			next.render(n, p)
		}
	}
	return &renewed{peers: &next, after: true, moved: moved}
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

// entry makes the entry of one prefix anew, and returns the class that it had.
func (c *change) entry(chunk int, x netip.Prefix) (left *class) {
	var e entry
	var base *class
	if i, there := slices.BinarySearchFunc(c.prev.entries[chunk], entry{prefix: x}, compareEntries); there {
		e = c.prev.entries[chunk][i]
		left, base = e.class, e.class
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
		c.next.count[e.class]++
		if there {
			entries[i] = e
		} else {
			c.next.entries[chunk] = slices.Insert(entries, i, e)
		}
	case there:
		c.next.entries[chunk] = slices.Delete(entries, i, i+1)
	}
	return left
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
	var names []string
	if base != nil {
		names = slices.DeleteFunc(slices.Clone(base.sets), func(name string) bool {
			_, differs := slices.BinarySearchFunc(c.sets, name, func(s changed, name string) int { return cmp.Compare(s.name, name) })
			return differs
		})
	}
	for i, s := range c.sets {
		if held&(1<<i) != 0 {
			names = append(names, s.name)
		}
	}
	slices.Sort(names)
	joined := strings.Join(names, "\n")
	out := c.next.classes[joined]
	if out == nil {
		out = &class{key: joined, sets: names}
		c.next.classes[joined] = out
		c.entered = append(c.entered, out)
	}
	c.known[key] = out
	return out
}

// classes takes away those without an entry, of which one of left has gone, and numbers
// those that have entered. It returns the sets whose classes are others than before, and
// false if a number would not be that of a table that is made anew.
func (c *change) classes(left []*class) (moved map[string]bool, ok bool) {
	p := c.next
	var gone []*class
	for _, old := range left {
		if p.count[old]--; p.count[old] == 0 {
			delete(p.count, old)
			delete(p.classes, old.key)
			gone = append(gone, old)
		}
	}
	if len(gone)+len(c.entered) == 0 {
		return nil, true
	}
	if p.displaced {
		return nil, false
	}
	p.numbers = maps.Clone(p.numbers)
	moved = map[string]bool{}
	slices.SortFunc(gone, compareClasses)
	for _, old := range gone {
		delete(p.numbers, old.number)
		for _, s := range old.sets {
			moved[s] = true
		}
	}
	slices.SortFunc(c.entered, compareClasses)
	fresh := map[string][]*class{}
	for _, e := range c.entered {
		if e.number = hashOf(e.key); p.numbers[e.number] {
			return nil, false
		}
		p.numbers[e.number] = true
		for _, s := range e.sets {
			moved[s], fresh[s] = true, append(fresh[s], e)
		}
	}
	p.all = exchanged(p.all, gone, c.entered)
	if p.dead += len(gone); p.dead > len(p.all) {
		p.index()
		return moved, true
	}
	p.bySet = maps.Clone(p.bySet)
	for s, list := range fresh {
		p.bySet[s] = append(slices.Clip(p.bySet[s]), list...)
	}
	return moved, true
}

func compareClasses(a, b *class) int { return cmp.Compare(a.key, b.key) }

// exchanged is a list, by key, without some of its classes and with others, both by key too.
func exchanged(list, without, with []*class) []*class {
	out := make([]*class, 0, len(list)+len(with)-len(without))
	for len(without)+len(with) > 0 {
		goes := len(with) == 0 || len(without) > 0 && without[0].key < with[0].key
		next := &with
		if goes {
			next = &without
		}
		i, _ := slices.BinarySearchFunc(list, (*next)[0], compareClasses)
		out, list = append(out, list[:i]...), list[i:]
		if goes {
			list = list[1:]
		} else {
			out = append(out, (*next)[0])
		}
		*next = (*next)[1:]
	}
	return append(out, list...)
}
