package policy

import (
	"cmp"
	"encoding/binary"
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
	four []uint32
	six  []number6
}

type number6 struct{ high, low uint64 }

func (g *gathered) add(a netip.Addr) {
	if a.Is4() {
		raw := a.As4()
		g.four = append(g.four, binary.BigEndian.Uint32(raw[:]))
		return
	}
	raw := a.As16()
	g.six = append(g.six, number6{binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])})
}

func (g *gathered) reset() { g.four, g.six = g.four[:0], g.six[:0] }

// sorted returns the addresses sorted, without doubles.
func (g *gathered) sorted() []netip.Addr {
	if len(g.four)+len(g.six) == 0 {
		return nil
	}
	slices.Sort(g.four)
	slices.SortFunc(g.six, func(a, b number6) int { return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low)) })
	out := make([]netip.Addr, 0, len(g.four)+len(g.six))
	for _, n := range slices.Compact(g.four) {
		var raw [4]byte
		binary.BigEndian.PutUint32(raw[:], n)
		out = append(out, netip.AddrFrom4(raw))
	}
	for _, n := range slices.Compact(g.six) {
		var raw [16]byte
		binary.BigEndian.PutUint64(raw[:8], n.high)
		binary.BigEndian.PutUint64(raw[8:], n.low)
		out = append(out, netip.AddrFrom16(raw))
	}
	return out
}

// prefixesOf returns the canonical list of addresses, which are sorted and distinct.
func prefixesOf(addrs []netip.Addr) []netip.Prefix {
	if len(addrs) == 0 {
		return nil
	}
	w := make(writer, 0, len(addrs))
	for _, a := range addrs {
		w.push(netip.PrefixFrom(a, a.BitLen()))
	}
	return w
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
			low, high := without(p, a)
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

// without returns what is left of a prefix below and above one of its addresses.
func without(p netip.Prefix, a netip.Addr) (low, high []netip.Prefix) {
	for bits := p.Bits() + 1; bits <= a.BitLen(); bits++ {
		mine := netip.PrefixFrom(a, bits).Masked()
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

// minus returns the canonical list of what is in the one list and not in the other.
func minus(all, except []netip.Prefix) []netip.Prefix {
	b := builder(all)
	for _, p := range except {
		b.RemovePrefix(p)
	}
	return finish(b)
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
