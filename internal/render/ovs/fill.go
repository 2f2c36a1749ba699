package ovs

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// member says that a prefix is one of a set's.
type member struct {
	prefix netip.Prefix
	set    int32
}

// fill makes all entries.
func (p *peers) fill() {
	var members [chunks][]member
	for i, s := range p.sets {
		for _, x := range s.Prefixes {
			if validPrefix(x) {
				n := chunkOf(x)
				members[n] = append(members[n], member{x, int32(i)})
			}
		}
	}
	p.classes, p.count = map[string]*class{}, map[string]int{}
	f := filler{peers: p, known: map[string]*class{}}
	f.chunk(wide, members[wide], nil)
	for n := range members[:wide] {
		f.chunk(n, members[n], f.around)
	}
	p.number()
	p.index()
	for n := range p.entries {
		p.render(n)
	}
}

// filler finds the sets that prefixes lie in.
type filler struct {
	*peers
	known map[string]*class // by the indices of sets, which is faster than by names
	id    []byte
	// sets of the wide entries, in their order.
	wide [][]int32
}

// nested is a prefix around those that follow, and the sets that it lies in.
type nested struct {
	prefix netip.Prefix
	sets   []int32
}

// chunk makes the entries of a chunk. around finds the sets of the wide prefix around
// another.
func (f *filler) chunk(n int, members []member, around func(netip.Prefix) []int32) {
	slices.SortFunc(members, func(a, b member) int { return intent.ComparePrefix(a.prefix, b.prefix) })
	var stack []nested
	for len(members) > 0 {
		x := members[0].prefix
		for len(stack) > 0 && !stack[len(stack)-1].prefix.Contains(x.Addr()) {
			stack = stack[:len(stack)-1]
		}
		var sets []int32
		switch {
		case len(stack) > 0:
			sets = slices.Clone(stack[len(stack)-1].sets)
		case around != nil:
			sets = slices.Clone(around(x))
		}
		for len(members) > 0 && members[0].prefix == x {
			sets, members = append(sets, members[0].set), members[1:]
		}
		slices.Sort(sets)
		sets = slices.Compact(sets)
		stack = append(stack, nested{x, sets})
		c := f.class(sets)
		f.count[c.key]++
		f.entries[n] = append(f.entries[n], entry{x, c})
		if n == wide {
			f.wide = append(f.wide, sets)
		}
	}
}

// class is that of peers in exactly the given sets.
func (f *filler) class(sets []int32) *class {
	f.id = f.id[:0]
	for _, i := range sets {
		f.id = binary.BigEndian.AppendUint32(f.id, uint32(i))
	}
	c := f.known[string(f.id)]
	if c == nil {
		names := make([]string, len(sets))
		for n, i := range sets {
			names[n] = f.sets[i].Name
		}
		c = &class{key: strings.Join(names, "\n"), sets: names}
		f.known[string(f.id)], f.classes[c.key] = c, c
	}
	return c
}

func (f *filler) around(x netip.Prefix) []int32 {
	if i := f.wideAround(x); i >= 0 {
		return f.wide[i]
	}
	return nil
}
