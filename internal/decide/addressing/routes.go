package addressing

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Routes says where every block and lent address is.
type Routes struct {
	List        []intent.Route      // sorted by VPC, destination
	AddressSets []intent.AddressSet // intent.SetDirect of each VPC that has any, sorted by VPC
	// InUse are the blocks that count, sorted by name. They are disjoint.
	InUse    []BlockInUse
	Problems []world.Problem
}

// BlockInUse is a block of a Subnet in use.
type BlockInUse struct {
	Name, VPC, Node string
	CIDR            netip.Prefix
}

// SameRouting reports whether two versions of a block lead to the same routes:
// allocations come and go all the time and change none.
func SameRouting(a, b *world.Block) bool {
	return a.Name == b.Name && a.Subnet == b.Subnet && a.CIDR == b.CIDR && a.Node == b.Node && slices.Equal(a.Lent, b.Lent)
}

// router collects routes. What is missing is counted, so that the number of
// Problems is bounded by nodes and Subnets, not by blocks.
type router struct {
	u      *Underlay
	s      *Subnets
	taken  *bart.Table[string] // prefix → block
	routes []intent.Route
	inUse  []BlockInUse

	unknown    map[string][]string // node → blocks
	unroutable map[string][]string // Subnet → nodes in other segments
	problems   []world.Problem
}

// DecideRoutes reads the blocks.
func DecideRoutes(u *Underlay, s *Subnets, blocks world.Table[*world.Block]) *Routes {
	r := &router{
		u: u, s: s, taken: new(bart.Table[string]), routes: make([]intent.Route, 0, blocks.Len()),
		unknown: map[string][]string{}, unroutable: map[string][]string{},
	}
	for b := range blocks.Values() { // In the order of names: of two that overlap the first wins.
		if sn, ok := r.accept(b); ok {
			r.inUse = append(r.inUse, BlockInUse{Name: b.Name, VPC: sn.VPC, Node: b.Node, CIDR: b.CIDR})
			r.route(b, sn)
		}
	}
	slices.SortFunc(r.routes, intent.Route.Compare)
	r.report()
	return &Routes{List: r.routes, AddressSets: r.directSets(), InUse: r.inUse, Problems: r.problems}
}

// accept checks a block against its Subnet and the blocks before it.
func (r *router) accept(b *world.Block) (*Subnet, bool) {
	sn, ok := r.s.Get(b.Subnet)
	if !ok {
		if !r.s.known[b.Subnet] {
			r.problem(b.Name, "spec.subnet", "UnknownSubnet", fmt.Sprintf("there is no Subnet %s: the block is not in use", b.Subnet))
		}
		return nil, false
	}
	if !usable(b.CIDR) || b.CIDR != b.CIDR.Masked() || !covers(sn.CIDRs, b.CIDR) {
		r.problem(b.Name, "spec.cidr", "OutsideSubnet", fmt.Sprintf("%s is no slice of Subnet %s: the block is not in use", b.CIDR, b.Subnet))
		return nil, false
	}
	if r.taken.OverlapsPrefix(b.CIDR) {
		r.problem(b.Name, "spec.cidr", "Overlap", fmt.Sprintf("%s overlaps the block %s: not in use", b.CIDR, r.holder(b.CIDR)))
		return nil, false
	}
	r.taken.Insert(b.CIDR, b.Name)
	return sn, true
}

// holder names an accepted block that overlaps a prefix.
func (r *router) holder(p netip.Prefix) string {
	for _, name := range r.taken.Supernets(p) {
		return name
	}
	for _, name := range r.taken.Subnets(p) {
		return name
	}
	return "of another node"
}

// route adds the routes of a block and of what was lent out of it.
func (r *router) route(b *world.Block, sn *Subnet) {
	lent := make(map[netip.Addr]string, len(b.Lent))
	for _, l := range b.Lent {
		if !b.CIDR.Contains(l.Addr) {
			r.problem(b.Name, "spec.lent", "OutsideBlock", fmt.Sprintf("%s lies outside of %s: not lent", l.Addr, b.CIDR))
			continue
		}
		if _, twice := lent[l.Addr]; l.Node != b.Node && !twice {
			lent[l.Addr] = l.Node
		}
	}
	leads := false
	if !b.CIDR.IsSingleIP() || len(lent) == 0 { // Otherwise the loan is the whole block.
		leads = r.add(b, sn, b.CIDR, b.Node)
	}
	for addr, node := range lent {
		if !r.add(b, sn, hostPrefix(addr), node) && leads && b.Node != r.u.Self {
			// No way to the borrower, and none through the owner: what is Local and
			// has no Port is unreachable.
			r.routes = append(r.routes, intent.Route{VPC: sn.VPC, Dst: hostPrefix(addr), NextHop: intent.NextHop{Local: true}})
		}
	}
}

// add adds the route to dst on a node, or notes why there is none.
func (r *router) add(b *world.Block, sn *Subnet, dst netip.Prefix, node string) bool {
	route := intent.Route{VPC: sn.VPC, Dst: dst, Origin: intent.OriginBlock}
	if node == r.u.Self {
		route.NextHop.Local = true
		r.routes = append(r.routes, route)
		return true
	}
	p, known := r.u.paths[node]
	if !known {
		r.unknown[node] = append(r.unknown[node], b.Name)
		return false
	}
	route.NextHop.Peer = node
	switch {
	case sn.Direct && p.direct(dst.Addr()):
	case sn.Transport == world.Routed:
		r.unroutable[sn.Name] = append(r.unroutable[sn.Name], node)
		return false
	case p.outer.IsValid():
		route.Encapsulate = true
	default: // No family in common: the Underlay has a Problem that says so.
		return false
	}
	r.routes = append(r.routes, route)
	return true
}

// report turns what was counted into Problems.
func (r *router) report() {
	for node, blocks := range r.unknown {
		r.problems = append(r.problems, world.Problem{
			Kind: world.KindNode, Key: world.Key{Name: node}, Reason: "NoNodeNetwork",
			Message: "has blocks or borrowed addresses, and no usable underlay address of it is known (does fairlead-agent run there?): no route to " + enumerate(slices.Compact(blocks)),
		})
	}
	for subnet, nodes := range r.unroutable {
		distinct := map[string]bool{}
		for _, n := range nodes {
			distinct[n] = true
		}
		r.problems = append(r.problems, world.Problem{
			Kind: world.KindSubnet, Key: world.Key{Name: subnet}, Field: "spec.transport", Reason: "NoDirectRoute",
			Message: fmt.Sprintf("transport Routed needs nodes in one segment, and from node %s these are in others: %s; use Overlay with CrossSubnet", r.u.Self, enumerate(slices.Sorted(maps.Keys(distinct)))),
		})
	}
	slices.SortFunc(r.problems, world.Problem.Compare)
}

// directSets computes, per VPC, the addresses whose longest route leads to a peer
// that sends some packets to this node as they are. Routes go in from the shortest
// prefix to the longest, those of one length together: they are disjoint.
func (r *router) directSets() []intent.AddressSet {
	isDirect := func(route intent.Route) bool {
		p, ok := r.u.paths[route.NextHop.Peer]
		return ok && p.direct(route.Dst.Addr()) && r.s.direct[vpcFamily{route.VPC, route.Dst.Addr().BitLen()}]
	}
	routes := r.routes
	var sets []intent.AddressSet
	for len(routes) > 0 {
		vpc := routes[0].VPC
		n := slices.IndexFunc(routes, func(r intent.Route) bool { return r.VPC != vpc })
		if n < 0 {
			n = len(routes)
		}
		if slices.ContainsFunc(routes[:n], isDirect) {
			byLength := slices.Clone(routes[:n])
			slices.SortStableFunc(byLength, func(a, b intent.Route) int {
				return cmp.Or(cmp.Compare(a.Dst.Bits(), b.Dst.Bits()), compareBool(isDirect(b), isDirect(a)))
			})
			var b netipx.IPSetBuilder
			for _, r := range byLength {
				if isDirect(r) {
					b.AddPrefix(r.Dst)
				} else {
					b.RemovePrefix(r.Dst)
				}
			}
			sets = append(sets, intent.AddressSet{VPC: vpc, Name: intent.SetDirect, Prefixes: prefixesOf(&b)})
		}
		routes = routes[n:]
	}
	return sets
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (r *router) problem(block, field, reason, message string) {
	r.problems = append(r.problems, world.Problem{Kind: world.KindBlock, Key: world.Key{Name: block}, Field: field, Reason: reason, Message: message})
}
