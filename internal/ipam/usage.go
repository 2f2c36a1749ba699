package ipam

import (
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// WarnPercent is from which share of a Subnet's addresses in use people are warned.
const WarnPercent = 80

// Usage counts the addresses of one family, of a whole Subnet or of what one node
// has of it. Counts are at most MaxCount.
type Usage struct {
	Subnet string `json:"subnet"`
	Family Family `json:"family"`
	Blocks int    `json:"blocks"`
	// Capacity is what pods can have: usable addresses without the tunnels'.
	Capacity uint64 `json:"capacity"`
	// Used by pods. Tunnels are the nodes' own addresses.
	Used    uint64 `json:"used"`
	Tunnels uint64 `json:"tunnels"`
	// Lent away, and borrowed from others (both zero for a whole Subnet: there a loan
	// counts as used or free).
	Lent     uint64 `json:"lent"`
	Borrowed uint64 `json:"borrowed"`
	// Resting was freed a moment ago. Free can be given now.
	Resting uint64 `json:"resting"`
	Free    uint64 `json:"free"`
	// Percent of Capacity that is used, rounded down, at most 100.
	Percent int `json:"percent"`
	// Warning: Percent has reached WarnPercent.
	Warning bool `json:"warning"`
}

// Full is the error of a Subnet that has nothing left.
func (u Usage) Full() *Error {
	return &Error{Err: ErrSubnetFull, Subnet: u.Subnet, Family: u.Family, Used: u.Used, Capacity: u.Capacity}
}

func (u *Usage) finish(usable uint64) {
	u.Capacity = usable - min(u.Tunnels, usable)
	busy := plus(plus(u.Used, u.Lent), u.Resting)
	u.Free = u.Capacity - min(busy, u.Capacity)
	if u.Capacity > 0 {
		hi, lo := bits.Mul64(min(u.Used, u.Capacity), 100)
		percent, _ := bits.Div64(hi, lo, u.Capacity)
		u.Percent = int(percent)
	}
	u.Warning = u.Percent >= WarnPercent
}

func (u *Usage) add(o world.Owner) {
	if IsTunnel(o) {
		u.Tunnels++
	} else {
		u.Used++
	}
}

// IsTunnel reports whether an owner is a node's tunnel.
func IsTunnel(o world.Owner) bool {
	return o.Namespace == "" && strings.HasPrefix(o.Name, "node/") && strings.HasSuffix(o.Name, "/tunnel")
}

// Usage of a family of a Subnet on this node: its own blocks and its loans. An
// allocated address that was excluded later is not counted.
func (p *Pool) Usage(subnet string, f Family, now time.Time) Usage {
	u := Usage{Subnet: subnet, Family: f}
	s := p.subnets[subnet]
	if s == nil {
		return u
	}
	usable := uint64(0)
	for _, b := range s.blocks {
		if FamilyOf(b.cidr.Addr()) != f {
			continue
		}
		u.Blocks++
		if b.state != Lost {
			usable = plus(usable, min(countIn(s.ranges, b.cidr), MaxPerBlock))
		}
		s.countBlock(&u, b, now)
	}
	for a, br := range s.borrowed {
		if FamilyOf(a) != f {
			continue
		}
		u.Borrowed++
		usable = plus(usable, 1)
		switch {
		case br.owner != (world.Owner{}):
			u.add(br.owner)
		case br.used:
			u.Resting++
		}
	}
	u.finish(usable)
	return u
}

func (s *subnetState) countBlock(u *Usage, b *block, now time.Time) {
	for a, o := range b.alloc {
		if s.usableAddr(a) {
			u.add(o)
		}
	}
	for a := range b.lent {
		if s.usableAddr(a) {
			u.Lent++
		}
	}
	for a, fr := range b.freed {
		if s.usableAddr(a) && !fr.ready(now) && b.state != Lost {
			u.Resting++
		}
	}
}

// SubnetUsage counts a family of a whole Subnet from the blocks that are known, of
// this Subnet or others, and from what nodes have borrowed. Resting is unknown there.
func SubnetUsage(s Subnet, f Family, blocks []*world.Block, networks []*world.NodeNetwork) Usage {
	u := Usage{Subnet: s.Name, Family: f}
	ranges := s.usable().Ranges()
	st := &subnetState{Subnet: s, ranges: ranges}
	lent := map[netip.Addr]bool{}
	for _, b := range blocks {
		if b.Subnet != s.Name || !b.CIDR.IsValid() || FamilyOf(b.CIDR.Addr()) != f {
			continue
		}
		u.Blocks++
		for _, a := range b.Allocations {
			if st.usableAddr(a.Addr) {
				u.add(a.Owner)
			}
		}
		for _, l := range b.Lent {
			lent[l.Addr] = true
		}
	}
	for _, n := range networks {
		for _, a := range n.Borrowed {
			if lent[a.Addr] && st.usableAddr(a.Addr) && !IsUnused(a.Owner) {
				u.add(a.Owner)
			}
		}
	}
	u.finish(countFamily(ranges, f))
	return u
}

// Lenders are the nodes that own a block of a Subnet with an address to spare, as far
// as the blocks say, sorted.
func Lenders(s Subnet, f Family, blocks []*world.Block) []string {
	ranges := s.usable().Ranges()
	var out []string
	for _, b := range blocks {
		if b.Subnet != s.Name || !b.CIDR.IsValid() || FamilyOf(b.CIDR.Addr()) != f {
			continue
		}
		usable := min(countIn(ranges, b.CIDR.Masked()), MaxPerBlock)
		if uint64(len(b.Allocations)+len(b.Lent)) < usable {
			out = append(out, b.Node)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// UnusedOwner stands for the owner of an address that a node has borrowed and not
// given to anybody yet, or not returned yet.
func UnusedOwner(node string) world.Owner { return world.Owner{Name: "node/" + node + "/borrowed"} }

// IsUnused reports whether an owner is an UnusedOwner.
func IsUnused(o world.Owner) bool {
	return o.Namespace == "" && strings.HasPrefix(o.Name, "node/") && strings.HasSuffix(o.Name, "/borrowed")
}

// Blocks returns the node's own blocks with all their state, sorted by Subnet and CIDR.
func (p *Pool) Blocks() []Block { return p.tell(p.export) }

// Outline is Blocks without the allocations and the freed addresses, which most of the work
// of telling is about.
func (p *Pool) Outline() []Block { return p.tell(p.outline) }

func (p *Pool) tell(one func(subnet string, b *block) Block) (out []Block) {
	for _, name := range slices.Sorted(maps.Keys(p.subnets)) {
		for _, b := range p.subnets[name].blocks {
			out = append(out, one(name, b))
		}
	}
	return out
}

// Block returns one own block with all its state.
func (p *Pool) Block(subnet string, cidr netip.Prefix) (Block, bool) {
	if s := p.subnets[subnet]; s != nil {
		if b := s.block(cidr); b != nil {
			return p.export(subnet, b), true
		}
	}
	return Block{}, false
}

// BlockOf is the own block that an address lies in.
func (p *Pool) BlockOf(subnet string, a netip.Addr) (netip.Prefix, bool) {
	if s := p.subnets[subnet]; s != nil {
		if b := s.blockOf(a); b != nil {
			return b.cidr, true
		}
	}
	return netip.Prefix{}, false
}

func (p *Pool) outline(subnet string, b *block) Block {
	out := Block{Subnet: subnet, CIDR: b.cidr, Node: p.node, State: b.state, Cursor: b.cursor}
	for _, a := range sortedAddrs(b.lent) {
		out.Lent = append(out.Lent, world.Loan{Addr: a, Node: b.lent[a]})
	}
	return out
}

func (p *Pool) export(subnet string, b *block) Block {
	out := p.outline(subnet, b)
	for _, a := range sortedAddrs(b.alloc) {
		out.Allocations = append(out.Allocations, world.Allocation{Addr: a, Owner: b.alloc[a]})
	}
	for _, q := range b.queue {
		if f, ok := b.freed[q.addr]; ok && f.seq == q.seq {
			out.Freed = append(out.Freed, f.Freed)
		}
	}
	return out
}

// BorrowedAddr is an address that this node holds outside its own blocks.
type BorrowedAddr struct {
	Subnet string
	Addr   netip.Addr
	// Owner is zero if nobody holds it.
	Owner world.Owner
	// Used: somebody held it once, so that it is only kept until it has rested.
	Used bool
	// Stray: a record holds it although it is neither borrowed, as far as this node
	// knows, nor in one of its blocks.
	Stray bool
}

// Borrowed lists what this node holds outside its own blocks, by Subnet and address.
func (p *Pool) Borrowed() []BorrowedAddr {
	var out []BorrowedAddr
	for _, name := range slices.Sorted(maps.Keys(p.subnets)) {
		s := p.subnets[name]
		for a, br := range s.borrowed {
			out = append(out, BorrowedAddr{Subnet: name, Addr: a, Owner: br.owner, Used: br.used})
		}
		for a, o := range s.strays {
			out = append(out, BorrowedAddr{Subnet: name, Addr: a, Owner: o, Used: true, Stray: true})
		}
	}
	slices.SortFunc(out, func(x, y BorrowedAddr) int {
		if x.Subnet != y.Subnet {
			return strings.Compare(x.Subnet, y.Subnet)
		}
		return x.Addr.Compare(y.Addr)
	})
	return out
}

// HolderOf is who holds an address on this node.
func (p *Pool) HolderOf(subnet string, a netip.Addr) (world.Owner, bool) {
	if s := p.subnets[subnet]; s != nil {
		return s.holder(a)
	}
	return world.Owner{}, false
}
