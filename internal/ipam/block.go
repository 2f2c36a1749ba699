package ipam

import (
	"hash/fnv"
	"net/netip"

	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Block is a slice of a Subnet that one node owns, as its IPBlock object or the
// node's own state says.
type Block struct {
	Subnet string
	CIDR   netip.Prefix
	Node   string
	// Allocations and Lent are what the IPBlock says, sorted by address.
	Allocations []world.Allocation
	Lent        []world.Loan
	State       State
	// Freed addresses, in the order of the queue.
	Freed []Freed
	// Cursor is where the search for addresses that were not given yet goes on.
	Cursor netip.Addr
}

// maxBlocks bounds the blocks of one CIDR that are ever looked at: of a larger CIDR
// the first 2³² are used.
const maxBlocks = 1 << 32

// NextBlock is the block that a node should claim next: the first free one, counted
// from a place that depends on the node's name, so that nodes which claim at the
// same time rarely want the same. Blocks that overlap a taken prefix, and those
// in which every address is excluded, are left out. It reports false if there is none.
// The CIDRs of the Subnet are used up in their order.
func NextBlock(s Subnet, taken []netip.Prefix, node string, f Family) (netip.Prefix, bool) {
	var b netipx.IPSetBuilder
	for _, p := range taken {
		if usablePrefix(p) {
			b.AddPrefix(p.Masked())
		}
	}
	set, err := b.IPSet()
	if err != nil { // Only for invalid prefixes, which were left out.
		return netip.Prefix{}, false
	}
	usable, busy := s.usable().Ranges(), set.Ranges()
	for _, c := range s.CIDRs {
		if !usablePrefix(c) || FamilyOf(c.Addr()) != f {
			continue
		}
		g := newGrid(c.Masked(), s.blockBits(c))
		start := spread(node, s.Name, c) % g.blocks
		if p, ok := g.free(start, g.blocks, usable, busy); ok {
			return p, true
		}
		if p, ok := g.free(0, start, usable, busy); ok {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// spread hashes a node's name into a place of a CIDR.
func spread(node, subnet string, cidr netip.Prefix) uint64 {
	h := fnv.New64a()
	for _, part := range []string{node, subnet, cidr.String()} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	// FNV's low bits of names that differ in their last letter are close together.
	v := h.Sum64()
	v ^= v >> 32
	v *= 0xd6e8feb86659fd93
	return v ^ v>>32
}

// grid numbers the blocks of a CIDR.
type grid struct {
	cidr   netip.Prefix
	bits   int
	blocks uint64
}

func newGrid(cidr netip.Prefix, bits int) grid {
	blocks := uint64(maxBlocks)
	if d := bits - cidr.Bits(); d < 32 {
		blocks = 1 << d
	}
	return grid{cidr, bits, blocks}
}

func (g grid) shift() uint { return uint(g.cidr.Addr().BitLen() - g.bits) }

func (g grid) block(i uint64) netip.Prefix {
	n := number(g.cidr.Addr()).add(u128{lo: i}.shl(g.shift()))
	return netip.PrefixFrom(n.addr(FamilyOf(g.cidr.Addr())), g.bits)
}

// index is the number of the block that an address lies in; beyond the CIDR's end,
// and for blocks that are never looked at, it is the number of blocks.
func (g grid) index(a netip.Addr) uint64 {
	if !g.cidr.Contains(a) {
		return g.blocks
	}
	n := number(a).sub(number(g.cidr.Addr())).shr(g.shift())
	if n.hi > 0 {
		return g.blocks
	}
	return min(n.lo, g.blocks)
}

// free finds the first claimable block from index i up to, not including, end. Every
// step passes over one whole range of taken or unusable addresses.
func (g grid) free(i, end uint64, usable, busy []netipx.IPRange) (netip.Prefix, bool) {
	for i < end {
		p := g.block(i)
		r := netipx.RangeOfPrefix(p)
		if b := firstReaching(busy, r.From()); b < len(busy) && !r.To().Less(busy[b].From()) {
			i = max(i, g.index(busy[b].To())) + 1
			continue
		}
		u := firstReaching(usable, r.From())
		switch {
		case u == len(usable):
			return netip.Prefix{}, false
		case !r.To().Less(usable[u].From()):
			return p, true
		default:
			i = max(i+1, g.index(usable[u].From()))
		}
	}
	return netip.Prefix{}, false
}
