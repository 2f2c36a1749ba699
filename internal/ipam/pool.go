package ipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// RestTime is how long a freed address rests at least: long enough for peers to
// forget who had it.
const RestTime = 30 * time.Second

// MaxPerBlock is how many addresses of one block can be in use, the bound of the
// IPBlock object's maps. A larger block counts as full beyond it.
const MaxPerBlock = 8192

// window is how many addresses from a block's start are given in turn. Fixed
// addresses may lie beyond it. It bounds the memory that freed addresses take.
const window = 1 << 16

// State of an own block.
type State uint8

// The states.
const (
	// Open blocks are allocated from.
	Open State = iota
	// Closing blocks are about to be given up and give nothing.
	Closing
	// Lost blocks belong to somebody else by now; their allocations are kept until
	// they are released, and they give nothing.
	Lost
)

// String is the state in one word.
func (s State) String() string {
	return [...]string{"open", "closing", "lost"}[min(s, Lost)]
}

// Freed is an address that was released and not given again.
type Freed struct {
	Addr netip.Addr
	At   time.Time
	// Dropped says that the data plane has forgotten it.
	Dropped bool
}

func (f Freed) ready(now time.Time) bool { return f.Dropped && !now.Before(f.At.Add(RestTime)) }

// Pool is the allocator's state of one node. It is not safe for concurrent use.
type Pool struct {
	node    string
	subnets map[string]*subnetState
	barred  map[netip.Addr]bool
}

type subnetState struct {
	Subnet
	known  bool
	barred map[netip.Addr]bool // the Pool's
	ranges []netipx.IPRange    // usable addresses, sorted
	blocks []*block            // sorted by CIDR
	// borrowed addresses belong to other nodes' blocks.
	borrowed map[netip.Addr]*borrowed
	// strays are addresses that a record holds although they are in no block of ours
	// and not borrowed, as far as we know.
	strays map[netip.Addr]world.Owner
	// homeless are freed addresses in no block of ours: should we get the block, they
	// go on resting.
	homeless map[netip.Addr]Freed
}

type borrowed struct {
	owner world.Owner // zero: not allocated
	used  bool        // it was allocated once: it is returned, not given again
	freed Freed
}

type block struct {
	cidr  netip.Prefix
	state State
	alloc map[netip.Addr]world.Owner
	lent  map[netip.Addr]string
	freed map[netip.Addr]freedEntry
	queue []queued // freed addresses in order; entries that freed contradicts are dead
	// cursor walks once around the window, first to last; left counts its steps. What
	// it has passed is found again by the queue.
	cursor, first, last netip.Addr
	left                int
	seq                 uint64
}

type freedEntry struct {
	Freed
	seq uint64
}

type queued struct {
	addr netip.Addr
	seq  uint64
}

// NewPool is the empty state of a node.
func NewPool(node string) *Pool {
	return &Pool{node: node, subnets: map[string]*subnetState{}, barred: map[netip.Addr]bool{}}
}

func (p *Pool) subnet(name string) *subnetState {
	s := p.subnets[name]
	if s == nil {
		s = &subnetState{
			Subnet: Subnet{Name: name}, barred: p.barred,
			borrowed: map[netip.Addr]*borrowed{}, strays: map[netip.Addr]world.Owner{}, homeless: map[netip.Addr]Freed{},
		}
		p.subnets[name] = s
	}
	return s
}

// SetSubnet makes a Subnet known or changes it. What is allocated stays so.
func (p *Pool) SetSubnet(s Subnet) {
	st := p.subnet(s.Name)
	st.Subnet, st.known = s, true
	ranges := s.usable().Ranges()
	if slices.Equal(ranges, st.ranges) {
		return
	}
	st.ranges = ranges
	for _, b := range st.blocks { // What was excluded and no longer is must be found again.
		b.left = b.span()
	}
}

// RemoveSubnet says that a Subnet is gone: nothing is allocated from it any more.
// Its blocks and allocations stay until they are released and given up.
func (p *Pool) RemoveSubnet(name string) {
	s := p.subnets[name]
	if s == nil {
		return
	}
	s.known, s.ranges = false, nil
	p.tidy(s)
}

// tidy forgets a Subnet that is gone and holds nothing.
func (p *Pool) tidy(s *subnetState) {
	if !s.known && len(s.blocks) == 0 && len(s.borrowed) == 0 && len(s.strays) == 0 {
		delete(p.subnets, s.Name)
	}
}

// Bar keeps an address from being given in any Subnet: something that cannot be read
// may hold it. Unbar ends that.
func (p *Pool) Bar(a netip.Addr) { p.barred[a] = true }

// Unbar ends Bar and reports whether the address was barred. It rests from now.
func (p *Pool) Unbar(a netip.Addr, now time.Time) bool {
	if !p.barred[a] {
		return false
	}
	delete(p.barred, a)
	for name := range p.subnets {
		p.Rest(name, a, now)
	}
	return true
}

// Subnets are those that are known, sorted by name.
func (p *Pool) Subnets() []Subnet {
	var out []Subnet
	for _, name := range slices.Sorted(maps.Keys(p.subnets)) {
		if s := p.subnets[name]; s.known {
			out = append(out, s.Subnet)
		}
	}
	return out
}

// AddBlock takes a block that this node owns, or has regained. b.Allocations are
// those that were published: an address among them that no record holds was freed
// moments ago and rests from now. b.Lent, b.Freed and b.Cursor continue where an
// earlier process was. A block that is known already only gains b.Lent and b.State.
// An *Error with ErrTaken for every address that is both lent and allocated is
// returned; the block is added all the same. ErrInvalid adds nothing.
func (p *Pool) AddBlock(b Block, now time.Time) []*Error {
	cidr := b.CIDR.Masked()
	s := p.subnet(b.Subnet)
	bad := func(why string) []*Error {
		p.tidy(s)
		return []*Error{{Err: ErrInvalid, Subnet: b.Subnet, Block: b.CIDR, Detail: why}}
	}
	if !usablePrefix(b.CIDR) || b.Node != p.node {
		return bad("block " + b.CIDR.String() + " of node " + b.Node + " is not a block of node " + p.node)
	}
	own := s.block(cidr)
	if own == nil {
		for _, o := range s.blocks {
			if o.cidr.Overlaps(cidr) {
				return bad("block " + cidr.String() + " overlaps the node's block " + o.cidr.String())
			}
		}
		own = newBlock(cidr)
		s.blocks = append(s.blocks, own)
		slices.SortFunc(s.blocks, func(a, b *block) int { return a.cidr.Compare(b.cidr) })
		for a, o := range s.strays {
			if cidr.Contains(a) {
				own.alloc[a] = o
				delete(s.strays, a)
			}
		}
		var homeless []Freed
		for a, f := range s.homeless {
			if cidr.Contains(a) {
				homeless = append(homeless, f)
				delete(s.homeless, a)
			}
		}
		own.resume(b, homeless, now)
	}
	own.state = b.State
	var conflicts []*Error
	for _, l := range b.Lent {
		if !cidr.Contains(l.Addr) {
			continue
		}
		if o, taken := own.alloc[l.Addr]; taken {
			conflicts = append(conflicts, &Error{Err: ErrTaken, Subnet: b.Subnet, Addr: l.Addr, Owner: o})
		}
		own.lent[l.Addr] = l.Node
		delete(own.freed, l.Addr)
	}
	return conflicts
}

func newBlock(cidr netip.Prefix) *block {
	last := netipx.PrefixLastIP(cidr)
	if n := number(last).sub(number(cidr.Addr())); n.hi > 0 || n.lo >= window {
		last = number(cidr.Addr()).add(u128{lo: window - 1}).addr(FamilyOf(last))
	}
	b := &block{
		cidr: cidr, cursor: cidr.Addr(), first: cidr.Addr(), last: last,
		alloc: map[netip.Addr]world.Owner{}, lent: map[netip.Addr]string{}, freed: map[netip.Addr]freedEntry{},
	}
	b.left = b.span()
	return b
}

// span is the number of addresses of the window.
func (b *block) span() int { return int(number(b.last).sub(number(b.first)).lo) + 1 }

// after is the address behind a in the window, which is a ring.
func (b *block) after(a netip.Addr) netip.Addr {
	if !a.Less(b.last) {
		return b.first
	}
	return a.Next()
}

// resume continues from the state of an earlier process.
func (b *block) resume(from Block, homeless []Freed, now time.Time) {
	if b.cidr.Contains(from.Cursor) && !b.last.Less(from.Cursor) {
		b.cursor = from.Cursor
	}
	freed := append(slices.Clone(from.Freed), homeless...)
	slices.SortStableFunc(freed, func(x, y Freed) int { return cmp.Or(x.At.Compare(y.At), x.Addr.Compare(y.Addr)) })
	for _, a := range from.Allocations {
		freed = append(freed, Freed{Addr: a.Addr, At: now})
	}
	for _, f := range freed {
		if _, held := b.alloc[f.Addr]; held || !b.cidr.Contains(f.Addr) {
			continue
		}
		if now.Before(f.At) { // The clock went backwards since.
			f.At = now
		}
		b.free(f)
	}
}

// SetState changes a block's state, and reports whether there is such a block.
func (p *Pool) SetState(subnet string, cidr netip.Prefix, state State) bool {
	if s := p.subnets[subnet]; s != nil {
		if b := s.block(cidr); b != nil {
			b.state = state
			return true
		}
	}
	return false
}

// Close prepares giving a block up. It reports whether the block is empty (nothing
// allocated, lent or resting) and was open; afterwards it gives nothing.
func (p *Pool) Close(subnet string, cidr netip.Prefix, now time.Time) bool {
	s := p.subnets[subnet]
	if s == nil {
		return false
	}
	b := s.block(cidr)
	if b == nil || b.state != Open || !b.empty(now) {
		return false
	}
	b.state = Closing
	return true
}

// RemoveBlock forgets a block. Allocations that it still has are kept as addresses
// without a block.
func (p *Pool) RemoveBlock(subnet string, cidr netip.Prefix) {
	s := p.subnets[subnet]
	if s == nil {
		return
	}
	i := slices.IndexFunc(s.blocks, func(b *block) bool { return b.cidr == cidr })
	if i < 0 {
		return
	}
	maps.Copy(s.strays, s.blocks[i].alloc)
	for a, f := range s.blocks[i].freed {
		s.homeless[a] = f.Freed
	}
	s.blocks = slices.Delete(s.blocks, i, i+1)
	p.tidy(s)
}

func (s *subnetState) block(cidr netip.Prefix) *block {
	for _, b := range s.blocks {
		if b.cidr == cidr {
			return b
		}
	}
	return nil
}

// blockOf is the own block that an address lies in.
func (s *subnetState) blockOf(a netip.Addr) *block {
	for _, b := range s.blocks {
		if b.cidr.Contains(a) {
			return b
		}
	}
	return nil
}

// usableAddr reports whether an address may be given at all.
func (s *subnetState) usableAddr(a netip.Addr) bool {
	if s.barred[a] {
		return false
	}
	i := firstReaching(s.ranges, a)
	return i < len(s.ranges) && s.ranges[i].Contains(a)
}

func (b *block) empty(now time.Time) bool {
	if len(b.alloc) > 0 || len(b.lent) > 0 {
		return false
	}
	for _, f := range b.freed {
		if !f.ready(now) {
			return false
		}
	}
	return true
}

func (b *block) busy(a netip.Addr) bool {
	if _, ok := b.alloc[a]; ok {
		return true
	}
	if _, ok := b.lent[a]; ok {
		return true
	}
	_, ok := b.freed[a]
	return ok
}

// free puts an address at the back of the queue.
func (b *block) free(f Freed) {
	b.seq++
	b.freed[f.Addr] = freedEntry{f, b.seq}
	b.queue = append(b.queue, queued{f.Addr, b.seq})
}

// peek is the next address that can be given; it does not give it.
func (b *block) peek(s *subnetState, now time.Time) (netip.Addr, bool) {
	if b.state != Open || len(b.alloc)+len(b.lent) >= MaxPerBlock {
		return netip.Addr{}, false
	}
	for ; b.left > 0; b.left-- {
		if !b.busy(b.cursor) && s.usableAddr(b.cursor) {
			return b.cursor, true
		}
		b.cursor = b.after(b.cursor)
	}
	for len(b.queue) > 0 && b.freed[b.queue[0].addr].seq != b.queue[0].seq {
		b.queue = b.queue[1:]
	}
	for _, q := range b.queue {
		if f := b.freed[q.addr]; f.seq == q.seq && f.ready(now) && s.usableAddr(q.addr) {
			return q.addr, true
		}
	}
	return netip.Addr{}, false
}
