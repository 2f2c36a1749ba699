package ovs

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// place is a prefix, and the sets that have it, by their index.
type place struct {
	prefix netip.Prefix
	sets   []int32
}

// fill makes all entries. Flows that prev has are taken from there.
func (p *peers) fill(prev *peers) {
	places := p.places()
	p.classes, p.count = map[string]*class{}, map[*class]int{}
	f := filler{peers: p, known: map[string]*class{}}
	f.chunk(wide, places[wide], nil)
	for n := range places[:wide] {
		f.chunk(n, places[n], f.around)
	}
	p.number()
	for n := range p.entries {
		p.render(n, prev)
	}
}

// places are the prefixes of all sets, by chunk, sorted.
func (p *peers) places() (out [chunks][]place) {
	n := 0
	for _, s := range p.sets {
		n += len(s.Prefixes)
	}
	index := make(map[netip.Prefix]int32, n/8)
	of := make([]int32, 0, n) // the place of each prefix of each set
	var all []place
	var size []int32
	for _, s := range p.sets {
		for _, x := range s.Prefixes {
			i, known := index[x]
			if !known {
				i = int32(len(all))
				index[x] = i
				all, size = append(all, place{prefix: x}), append(size, 0)
			}
			size[i]++
			of = append(of, i)
		}
	}
	room := make([]int32, n)
	for i, n := range size {
		all[i].sets, room = room[:0:n], room[n:]
	}
	for i, s := range p.sets {
		for range s.Prefixes {
			x := &all[of[0]]
			if n := len(x.sets); n == 0 || x.sets[n-1] != int32(i) {
				x.sets = append(x.sets, int32(i))
			}
			of = of[1:]
		}
	}
	for _, x := range all {
		if validPrefix(x.prefix) {
			n := chunkOf(x.prefix)
			out[n] = append(out[n], x)
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b place) int { return intent.ComparePrefix(a.prefix, b.prefix) })
	}
	return out
}

// filler finds the sets that prefixes lie in.
type filler struct {
	*peers
	known map[string]*class // by the indices of sets, which is faster than by names
	id    []byte
	// sets of the wide entries, in their order.
	wide [][]int32
}

// chunk makes the entries of a chunk. around finds the sets of the wide prefix around
// another.
func (f *filler) chunk(n int, places []place, around func(netip.Prefix) []int32) {
	var stack []place // those around, with the sets of those around them
	for _, x := range places {
		for len(stack) > 0 && !stack[len(stack)-1].prefix.Contains(x.prefix.Addr()) {
			stack = stack[:len(stack)-1]
		}
		exact := int32(len(x.sets))
		var more []int32
		switch {
		case len(stack) > 0:
			more = stack[len(stack)-1].sets
		case around != nil:
			more = around(x.prefix)
		}
		if len(more) > 0 {
			x.sets = append(x.sets[:exact:exact], more...)
			slices.Sort(x.sets)
			x.sets = slices.Compact(x.sets)
		}
		stack = append(stack, x)
		c := f.class(x.sets)
		if s := standOf(x.prefix); f.count[c] == 0 || s.compare(c.like) < 0 {
			c.like = s
		}
		f.count[c]++
		f.entries[n] = append(f.entries[n], entry{prefix: x.prefix, class: c, exact: exact})
		if n == wide {
			f.wide = append(f.wide, x.sets)
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
