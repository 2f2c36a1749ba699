package linux

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// routes collects the routes of a node.
type routes struct {
	node  intent.Node
	state *State
	peers map[string]intent.Peer
}

// renderRoutes turns ranges into routes.
//
// One route per overlay Subnet leads into the tunnel, however many nodes there
// are. A route of the intent that goes through the tunnel therefore needs a route
// of its own only if the next shorter prefix around it leads elsewhere: an address
// lent out of a block of this node, or of a block of a peer in the same segment.
func (s *State) renderRoutes(n intent.Node) {
	r := routes{node: n, state: s, peers: map[string]intent.Peer{}}
	for _, p := range n.Peers {
		r.peers[p.Name] = p
	}
	for _, p := range s.Ports {
		for _, rt := range PortRoutes(p) {
			r.add(rt.Ref, rt.Dst, rt.Metric, rt.Hops...)
		}
	}
	var around []cover
	for _, c := range r.covers() {
		for len(around) > 0 && !contains(around[len(around)-1].dst, c.dst) {
			around = around[:len(around)-1]
		}
		if !c.tunnel || len(around) == 0 || !around[len(around)-1].tunnel {
			r.cover(c)
		}
		around = append(around, c)
	}
	s.sortRoutes()
}

// PortRoutes are the node's routes to a pod on it, without a preferred source.
func PortRoutes(p Port) []Route {
	var out []Route
	for _, a := range p.Addresses {
		out = append(out, Route{Ref: p.Ref, Dst: netip.PrefixFrom(a, a.BitLen()), Metric: metric(a), Hops: []Hop{{Dev: p.HostName}}})
	}
	return out
}

// cover is a prefix that leads somewhere.
type cover struct {
	dst    netip.Prefix
	ref    intent.Ref
	tunnel bool
	// route is nil for the range of a Subnet.
	route *intent.Route
}

// covers lists routes and the ranges of Subnets that are overlays, so that each
// comes after those that contain it. Where a Subnet's range is wholly one route's,
// the route decides alone.
func (r *routes) covers() []cover {
	out := make([]cover, 0, len(r.node.Routes)+len(r.node.Subnets))
	for i, ir := range r.node.Routes {
		if !ir.Dst.IsValid() || ir.Dst != ir.Dst.Masked() {
			r.state.problem(ir.Ref(), "destination: want a prefix without host bits")
			continue
		}
		out = append(out, cover{dst: ir.Dst, ref: ir.Ref(), route: &r.node.Routes[i], tunnel: ir.NextHop.Peer != "" && ir.Encapsulate})
	}
	for _, sub := range r.node.Subnets {
		for _, c := range sub.CIDRs {
			if sub.Overlay && c.IsValid() {
				out = append(out, cover{dst: c, ref: sub.Ref(), tunnel: true})
			}
		}
	}
	slices.SortFunc(out, compareCovers)
	kept := out[:0]
	for _, c := range out {
		if len(kept) == 0 || kept[len(kept)-1].dst != c.dst {
			kept = append(kept, c)
		} else if c.route != nil {
			r.state.problem(c.ref, "the same destination is that of %s", kept[len(kept)-1].ref)
		}
	}
	return kept
}

// compareCovers has routes before Subnets with the same range: "Route" is less
// than "Subnet".
func compareCovers(a, b cover) int {
	if c := comparePrefixes(a.dst, b.dst); c != 0 {
		return c
	}
	return compareRefs(a.ref, b.ref)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// cover renders a route of the intent, or the one of a Subnet.
func (r *routes) cover(c cover) {
	if c.route == nil {
		r.add(c.ref, c.dst, metric(c.dst.Addr()), Hop{Dev: claims.VXLANDevice})
		return
	}
	ref, ir := c.ref, *c.route
	h := ir.NextHop
	if h.Local {
		r.add(ref, ir.Dst, MetricUnreachable)
		return
	}
	hops := h.ECMP
	if len(hops) == 0 {
		hops = []intent.NextHop{h}
	}
	var out []Hop
	for _, h := range hops {
		hop, ok, err := r.hop(ir, h)
		if err != nil {
			r.state.problem(ref, "%v", err)
			return
		}
		if ok {
			out = append(out, hop)
		}
	}
	if len(out) == 0 {
		return
	}
	slices.SortFunc(out, compareHops)
	r.add(ref, ir.Dst, metric(ir.Dst.Addr()), slices.Compact(out)...)
}

// hop renders one next hop. A peer that is reached without the tunnel and is not
// in this node's segment has none: routers know the way, as to anything else.
func (r *routes) hop(ir intent.Route, h intent.NextHop) (Hop, bool, error) {
	switch {
	case h.Peer != "" && ir.Encapsulate && len(ir.NextHop.ECMP) > 0:
		return Hop{}, false, fmt.Errorf("a list of next hops cannot lead through the tunnel")
	case h.Peer != "" && ir.Encapsulate:
		if r.state.Tunnel == nil {
			return Hop{}, false, fmt.Errorf("leads through the tunnel, but no Subnet is an overlay")
		}
		return Hop{Dev: claims.VXLANDevice}, true, nil
	case h.Peer != "":
		p, known := r.peers[h.Peer]
		if !known {
			return Hop{}, false, fmt.Errorf("peer %q is not among the peers", h.Peer)
		}
		own, ok := r.underlay(ir.Dst.Addr())
		i := slices.IndexFunc(p.Addrs, func(a netip.Addr) bool { return a.Is4() == ir.Dst.Addr().Is4() })
		if !ok || i < 0 {
			return Hop{}, false, fmt.Errorf("this node and peer %q have no underlay addresses of the destination's family in common", h.Peer)
		}
		return Hop{Near: own.Addr(), Gateway: p.Addrs[i]}, own.Contains(p.Addrs[i]), nil
	case h.Gateway.IsValid():
		own, ok := r.underlay(ir.Dst.Addr())
		if !ok || h.Gateway.Is4() != ir.Dst.Addr().Is4() {
			return Hop{}, false, fmt.Errorf("gateway %s: this node has no underlay address of the destination's family", h.Gateway)
		}
		return Hop{Near: own.Addr(), Gateway: h.Gateway}, true, nil
	case validLinkName(h.Device):
		return Hop{Dev: h.Device}, true, nil
	}
	return Hop{}, false, fmt.Errorf("next hop: want local, a peer, a device or a gateway")
}

// underlay is this node's own address of the family of a.
func (r *routes) underlay(a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(r.node.Underlay, func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return r.node.Underlay[i], true
}

func (r *routes) add(ref intent.Ref, dst netip.Prefix, metric uint32, hops ...Hop) {
	rt := Route{Ref: ref, Dst: dst, Metric: metric, Hops: hops}
	if len(hops) > 0 {
		rt.Src = r.source(dst)
	}
	r.state.Routes = append(r.state.Routes, rt)
}

// source is the node's own address towards the Subnet around dst, of its family.
func (r *routes) source(dst netip.Prefix) netip.Addr {
	for _, s := range r.node.Subnets {
		if slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return contains(c, dst) }) {
			return r.node.Source(s, dst.Addr().Is4())
		}
	}
	return netip.Addr{}
}

func metric(a netip.Addr) uint32 {
	if a.Is4() {
		return metric4
	}
	return metric6
}

func compareHops(a, b Hop) int {
	return cmp.Or(cmp.Compare(a.Dev, b.Dev), a.Near.Compare(b.Near), a.Gateway.Compare(b.Gateway))
}

// sortRoutes sorts, and drops all but the first of those with one key: a pod's
// route ("Port" is less than "Route") and a static one to the very same address.
func (s *State) sortRoutes() {
	byKey := func(a, b Route) int { return cmp.Or(comparePrefixes(a.Dst, b.Dst), cmp.Compare(a.Metric, b.Metric)) }
	slices.SortFunc(s.Routes, func(a, b Route) int {
		if c := byKey(a, b); c != 0 {
			return c
		}
		return compareRefs(a.Ref, b.Ref)
	})
	kept := s.Routes[:0]
	for _, r := range s.Routes {
		if len(kept) > 0 && byKey(kept[len(kept)-1], r) == 0 {
			s.problem(r.Ref, "%s is already that of %s", r.Dst, kept[len(kept)-1].Ref)
			continue
		}
		kept = append(kept, r)
	}
	s.Routes = kept
}
