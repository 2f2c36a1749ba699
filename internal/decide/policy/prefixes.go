package policy

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Lists of prefixes are canonical here: the smallest sorted list that holds exactly
// some addresses. There is one for every set of addresses.

// writer appends to a canonical list.
type writer []netip.Prefix

// push appends a prefix that is after the last, and reports whether it made one with
// it.
func (w *writer) push(p netip.Prefix) bool {
	merged := false
	for list := *w; len(list) > 0; list = *w {
		last := list[len(list)-1]
		if last.Bits() != p.Bits() || last.Bits() == 0 || last.Addr().BitLen() != p.Addr().BitLen() {
			break
		}
		both := netip.PrefixFrom(last.Addr(), last.Bits()-1)
		if !both.Contains(p.Addr()) || both.Masked().Addr() != last.Addr() {
			break
		}
		*w, p, merged = list[:len(list)-1], both, true
	}
	*w = append(*w, p)
	return merged
}

// pushAll appends a canonical list: once its first does not merge, no other does.
func (w *writer) pushAll(list []netip.Prefix) {
	for i, p := range list {
		if !w.push(p) {
			*w = append(*w, list[i+1:]...)
			return
		}
	}
}

// gathered are addresses in any order, as numbers: those are sorted faster, and hold
// no pointers.
type gathered struct {
	four  []uint64
	six   map[uint64][]uint64 // the lower half by the higher one
	spare []uint64
	out   []netip.Prefix
}

func (g *gathered) add(a netip.Addr) {
	if a.Is4() {
		raw := a.As4()
		g.four = append(g.four, uint64(binary.BigEndian.Uint32(raw[:])))
		return
	}
	raw := a.As16()
	high := binary.BigEndian.Uint64(raw[:8])
	if g.six == nil {
		g.six = map[uint64][]uint64{}
	}
	g.six[high] = append(g.six[high], binary.BigEndian.Uint64(raw[8:]))
}

func (g *gathered) reset() {
	g.four = g.four[:0]
	for high, list := range g.six {
		g.six[high] = list[:0]
	}
}

// runs yields the addresses as runs without a gap, sorted.
func (g *gathered) runs(yield func(first, last netip.Addr)) {
	g.runsOf(&g.four, func(n uint64) netip.Addr {
		var raw [4]byte
		binary.BigEndian.PutUint32(raw[:], uint32(n))
		return netip.AddrFrom4(raw)
	}, yield)
	for _, high := range slices.Sorted(maps.Keys(g.six)) {
		list := g.six[high]
		g.runsOf(&list, func(n uint64) netip.Addr {
			var raw [16]byte
			binary.BigEndian.PutUint64(raw[:8], high)
			binary.BigEndian.PutUint64(raw[8:], n)
			return netip.AddrFrom16(raw)
		}, yield)
		g.six[high] = list
	}
}

func (g *gathered) runsOf(list *[]uint64, addr func(uint64) netip.Addr, yield func(first, last netip.Addr)) {
	*list, g.spare = sortNumbers(*list, g.spare)
	numbers := *list
	for i := 0; i < len(numbers); {
		j := i + 1
		for j < len(numbers) && numbers[j]-numbers[j-1] <= 1 {
			j++
		}
		yield(addr(numbers[i]), addr(numbers[j-1]))
		i = j
	}
}

// sortNumbers sorts by one byte after the other, and skips those that all numbers have
// in common, as addresses of one Subnet do. It returns both pieces of memory.
func sortNumbers(list, spare []uint64) (sorted, rest []uint64) {
	const few = 128
	if len(list) < few {
		slices.Sort(list)
		return list, spare
	}
	spare = slices.Grow(spare[:0], len(list))[:len(list)]
	every, some := ^uint64(0), uint64(0)
	for _, n := range list {
		every &= n
		some |= n
	}
	for shift := 0; shift < 64; shift += 8 {
		if byte((every^some)>>shift) == 0 {
			continue
		}
		var at [256]int
		for _, n := range list {
			at[byte(n>>shift)]++
		}
		before := 0
		for i, n := range at {
			at[i], before = before, before+n
		}
		for _, n := range list {
			digit := byte(n >> shift)
			spare[at[digit]] = n
			at[digit]++
		}
		list, spare = spare, list
	}
	return list, spare
}

// prefixes returns the canonical list of the addresses.
func (g *gathered) prefixes() []netip.Prefix {
	g.out = g.out[:0]
	g.runs(func(first, last netip.Addr) { g.out = netipx.IPRangeFrom(first, last).AppendPrefixes(g.out) })
	if len(g.out) == 0 {
		return nil
	}
	return slices.Clone(g.out)
}

// addrs returns the addresses, sorted and without doubles.
func (g *gathered) addrs() []netip.Addr {
	var list []netip.Addr
	g.runs(func(first, last netip.Addr) {
		for a := first; ; a = a.Next() {
			list = append(list, a)
			if a == last {
				return
			}
		}
	})
	return list
}

// Edit returns a canonical list, which is the smallest sorted one of its addresses,
// without some addresses and with others; what is in both stays. The cost is that of
// copying, not of making the list anew.
func Edit(list []netip.Prefix, gone, come []netip.Addr) []netip.Prefix {
	if len(gone)+len(come) == 0 {
		return list
	}
	come = slices.SortedFunc(slices.Values(come), netip.Addr.Compare)
	all := slices.Concat(gone, come)
	slices.SortFunc(all, netip.Addr.Compare)
	w := make(writer, 0, len(list)+len(come)+8)
	var head []netip.Prefix // what is left of a prefix that was split, before list
	for _, a := range slices.Compact(all) {
		i := before(head, a)
		w.pushAll(head[:i])
		if head = head[i:]; len(head) == 0 {
			i = before(list, a)
			w.pushAll(list[:i])
			list = list[i:]
		}
		next := &head
		if len(head) == 0 {
			next = &list
		}
		inside := len(*next) > 0 && (*next)[0].Contains(a)
		_, stays := slices.BinarySearchFunc(come, a, netip.Addr.Compare)
		switch {
		case stays && !inside:
			w.push(netip.PrefixFrom(a, a.BitLen()))
		case !stays && inside:
			p := (*next)[0]
			*next = (*next)[1:]
			low, high := without(p, netip.PrefixFrom(a, a.BitLen()))
			for _, p := range low {
				w.push(p)
			}
			head = append(high, head...)
		}
	}
	w.pushAll(head)
	w.pushAll(list)
	return w
}

// before counts the prefixes that end before an address.
func before(list []netip.Prefix, a netip.Addr) int {
	i, found := slices.BinarySearchFunc(list, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	if !found && i > 0 && list[i-1].Contains(a) {
		i--
	}
	return i
}

// without returns what is left of a prefix below and above a longer one in it.
func without(p, e netip.Prefix) (low, high []netip.Prefix) {
	for bits := p.Bits() + 1; bits <= e.Bits(); bits++ {
		mine := netip.PrefixFrom(e.Addr(), bits).Masked()
		other := netip.PrefixFrom(sibling(mine), bits)
		if other.Addr().Less(mine.Addr()) {
			low = append(low, other)
		} else {
			high = append(high, other)
		}
	}
	slices.Reverse(high)
	return low, high
}

// sibling is the other half of what a prefix is half of.
func sibling(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	raw[(p.Bits()-1)/8] ^= 0x80 >> ((p.Bits() - 1) % 8)
	a, _ := netip.AddrFromSlice(raw)
	return a
}

// minus returns the canonical list of what is in one such list and not in the other.
func minus(all, except []netip.Prefix) []netip.Prefix {
	for _, e := range except {
		var left []netip.Prefix
		for _, p := range all {
			switch {
			case !p.Overlaps(e):
				left = append(left, p)
			case p.Bits() < e.Bits():
				low, high := without(p, e)
				left = append(append(left, low...), high...)
			}
		}
		all = left
	}
	return all
}

// both returns the canonical list of what is in both lists.
func both(x, y []netip.Prefix) []netip.Prefix {
	in := builder(y)
	set, err := in.IPSet()
	if err != nil {
		return nil
	}
	b := builder(x)
	b.Intersect(set)
	return finish(b)
}

func builder(list []netip.Prefix) *netipx.IPSetBuilder {
	b := &netipx.IPSetBuilder{}
	for _, p := range list {
		b.AddPrefix(p)
	}
	return b
}

// finish never fails: only valid prefixes are put into builders here.
func finish(b *netipx.IPSetBuilder) []netip.Prefix {
	set, err := b.IPSet()
	if err != nil {
		return nil
	}
	return set.Prefixes()
}
