package decide

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/decide/policy"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// tenants knows the addresses of isolated tenants' pods, wherever they are. It is
// immutable.
type tenants struct {
	// blocks that hold such addresses, by name.
	blocks world.Table[*tenantBlock]
	sets   []intent.AddressSet // sorted; none is empty
}

// tenantBlock is what one block says.
type tenantBlock struct {
	block   *world.Block
	vpc     string
	members []member // sorted, each address once
}

// member is an address of an isolated tenant's pod.
type member struct {
	addr netip.Addr
	vni  packet.VNI
}

func (m member) compare(o member) int {
	return cmp.Or(m.addr.Compare(o.addr), cmp.Compare(m.vni, o.vni))
}

// tenantOf is a tenant of a VPC, and tenantChange what its set lost and got.
type (
	tenantOf     struct{ vpc, set string }
	tenantChange struct{ gone, come []netip.Addr }
)

// updateTenants reads the blocks that changed; all, if namespaces did. Where no VPC
// isolates, it reads nothing.
func (s *State) updateTenants(prev *State) {
	before := prev.tenants
	if before == nil {
		before = &tenants{}
	}
	s.tenants = before
	isolated := slices.ContainsFunc(s.tenancy.VPCs, func(v intent.VPC) bool { return len(v.Tenants) > 0 })
	old, now := &prev.world, &s.world
	anew := prev.tenants == nil || s.tenancy != prev.tenancy || s.routes != prev.routes
	if !isolated {
		if before.blocks.Len() > 0 {
			s.tenants = &tenants{}
			s.computed = append(s.computed, "tenants")
		}
		return
	}
	if !anew && old.Blocks == now.Blocks && !changed(old.NodeNetworks, now.NodeNetworks, sameBorrowed) {
		return
	}
	r := tenantReader{tenancy: s.tenancy, world: now, blocks: before.blocks, changes: map[tenantOf]*tenantChange{}}
	if anew || changed(old.NodeNetworks, now.NodeNetworks, sameBorrowed) {
		r.readAll(s.routes.InUse, s.tenancy != prev.tenancy)
	} else {
		for d := range world.Diff(old.Blocks, now.Blocks) {
			r.read(s.routes.InUse, d.Key.Name)
		}
	}
	s.computed = append(s.computed, "tenants")
	if len(r.changes) > 0 || r.blocks != before.blocks {
		s.tenants = &tenants{blocks: r.blocks, sets: r.sets(before.sets)}
	}
}

// sameSets reports whether two say the same without looking: sets are shared then.
func (t *tenants) sameSets(o *tenants) bool {
	return o != nil && len(t.sets) == len(o.sets) && (len(t.sets) == 0 || &t.sets[0] == &o.sets[0])
}

// sameBorrowed: who has a lent address is said by who has borrowed it.
func sameBorrowed(a, b *world.NodeNetwork) bool { return slices.Equal(a.Borrowed, b.Borrowed) }

// tenantReader makes the next tenants.
type tenantReader struct {
	tenancy *tenancy.Result
	world   *world.Snapshot
	blocks  world.Table[*tenantBlock]
	changes map[tenantOf]*tenantChange
}

// readAll reads all blocks; those that are the same and lend nothing again only if
// namespaces may have another tenant.
func (r *tenantReader) readAll(inUse []addressing.BlockInUse, again bool) {
	for key := range r.blocks.All() {
		if _, found := findBlock(inUse, key.Name); !found {
			r.replace(key.Name, nil)
		}
	}
	for _, in := range inUse {
		old, _ := r.blocks.Get(world.Key{Name: in.Name})
		block, _ := r.world.Blocks.Get(world.Key{Name: in.Name})
		if !again && old != nil && old.block == block && old.vpc == in.VPC && len(block.Lent) == 0 {
			continue
		}
		r.replace(in.Name, r.readBlock(block, in))
	}
}

func (r *tenantReader) read(inUse []addressing.BlockInUse, name string) {
	var now *tenantBlock
	if in, found := findBlock(inUse, name); found {
		block, _ := r.world.Blocks.Get(world.Key{Name: name})
		now = r.readBlock(block, in)
	}
	r.replace(name, now)
}

func findBlock(inUse []addressing.BlockInUse, name string) (addressing.BlockInUse, bool) {
	i, found := slices.BinarySearchFunc(inUse, name, func(in addressing.BlockInUse, name string) int { return cmp.Compare(in.Name, name) })
	if !found {
		return addressing.BlockInUse{}, false
	}
	return inUse[i], true
}

// readBlock finds the tenants of a block's addresses. A lent one is whose the borrower
// says, and one that is given to several tenants is nobody's.
func (r *tenantReader) readBlock(b *world.Block, in addressing.BlockInUse) *tenantBlock {
	if b == nil {
		return nil
	}
	out := &tenantBlock{block: b, vpc: in.VPC}
	if !r.tenancy.Isolates(in.VPC) {
		return out
	}
	var all []member
	lent := make(map[netip.Addr]bool, len(b.Lent))
	for _, l := range b.Lent {
		if lent[l.Addr] || l.Node == in.Node || !in.CIDR.Contains(l.Addr) {
			continue
		}
		lent[l.Addr] = true
		if n, known := r.world.NodeNetworks.Get(world.Key{Name: l.Node}); known {
			if i := slices.IndexFunc(n.Borrowed, func(a world.Allocation) bool { return a.Addr == l.Addr }); i >= 0 {
				all = r.appendMember(all, in.VPC, n.Borrowed[i])
			}
		}
	}
	for _, a := range b.Allocations {
		if in.CIDR.Contains(a.Addr) && !lent[a.Addr] {
			all = r.appendMember(all, in.VPC, a)
		}
	}
	slices.SortFunc(all, member.compare)
	all = slices.Compact(all)
	for i, m := range all {
		if (i == 0 || all[i-1].addr != m.addr) && (i+1 == len(all) || all[i+1].addr != m.addr) && m.vni != 0 {
			out.members = append(out.members, m)
		}
	}
	return out
}

// appendMember appends an address with its holder's tenant; 0 is none that is isolated.
func (r *tenantReader) appendMember(to []member, vpc string, a world.Allocation) []member {
	m := member{addr: a.Addr}
	if vni, err := r.tenancy.VNI(vpc, a.Owner.Namespace); err == nil && !r.isOwn(vpc, vni) {
		m.vni = vni
	}
	return append(to, m)
}

// isOwn reports whether a VNI is that of the VPC itself, which reaches every tenant.
func (r *tenantReader) isOwn(vpc string, vni packet.VNI) bool {
	i, found := slices.BinarySearchFunc(r.tenancy.VPCs, vpc, func(v intent.VPC, name string) int { return cmp.Compare(v.Name, name) })
	return found && r.tenancy.VPCs[i].VNI == vni
}

// replace notes what differs between two versions of a block.
func (r *tenantReader) replace(name string, now *tenantBlock) {
	key := world.Key{Name: name}
	old, had := r.blocks.Get(key)
	switch {
	case now != nil:
		r.blocks = r.blocks.With(key, now)
	case had:
		r.blocks = r.blocks.Without(key)
	}
	if had && now != nil && old.vpc == now.vpc && slices.Equal(old.members, now.members) {
		return
	}
	if had {
		for _, m := range old.members {
			c := r.change(old.vpc, m.vni)
			c.gone = append(c.gone, m.addr)
		}
	}
	if now != nil {
		for _, m := range now.members {
			c := r.change(now.vpc, m.vni)
			c.come = append(c.come, m.addr)
		}
	}
}

func (r *tenantReader) change(vpc string, vni packet.VNI) *tenantChange {
	of := tenantOf{vpc, intent.SetTenant(vni)}
	if r.changes[of] == nil {
		r.changes[of] = &tenantChange{}
	}
	return r.changes[of]
}

// sets changes the sets that something came into or left; the others are shared.
func (r *tenantReader) sets(old []intent.AddressSet) []intent.AddressSet {
	if len(r.changes) == 0 {
		return old
	}
	out := make([]intent.AddressSet, 0, len(old)+len(r.changes))
	for _, s := range old {
		of := tenantOf{s.VPC, s.Name}
		if c := r.changes[of]; c != nil {
			s.Prefixes = policy.Edit(s.Prefixes, c.gone, c.come)
			delete(r.changes, of)
		}
		if len(s.Prefixes) > 0 {
			out = append(out, s)
		}
	}
	for of, c := range r.changes {
		if list := policy.Edit(nil, c.gone, c.come); len(list) > 0 {
			out = append(out, intent.AddressSet{VPC: of.vpc, Name: of.set, Prefixes: list})
		}
	}
	slices.SortFunc(out, intent.AddressSet.Compare)
	return out
}
