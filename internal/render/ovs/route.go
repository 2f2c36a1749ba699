package ovs

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// Priorities in TableRoute: the longest prefix wins; of the same length, what is
// really here wins over a route, and that over an address of another VPC.
const (
	routeStep   = 4
	routeOthers = 99
	routeRoute  = 100
	routeHere   = 101
)

func routePriority(kind int, p netip.Prefix) int { return kind + routeStep*p.Bits() }

// routes adds where the addresses of each VPC are.
func (r *renderer) routes() {
	var w writer
	taken := map[destination]intent.Ref{}
	peers := r.coverage().peers
	for _, route := range r.node.Routes {
		own, ok := r.vpcs[route.VPC]
		d := destination{route.VPC, route.Dst}
		switch {
		case !ok:
			r.problem(route.Ref(), "VPC %q is not among the VPCs", route.VPC)
			continue
		case !validPrefix(route.Dst):
			r.problem(route.Ref(), "destination: want a prefix without host bits")
			continue
		case taken[d] != intent.Ref{}:
			r.problem(route.Ref(), "the same destination is that of %s", taken[d])
			continue
		}
		taken[d] = route.Ref()
		actions, comment, err := r.nextHop(route, peers)
		if err != nil {
			r.problem(route.Ref(), "%v", err)
			continue
		}
		f := familyOf(route.Dst.Addr())
		w.add(TableRoute, routePriority(routeRoute, route.Dst), comment, when(is(VPC, uint64(own.vni)), f.ip, of.Prefix(f.dst, route.Dst)), actions...)
	}
	r.subnets(&w, taken)
	for _, t := range r.node.Tunnels {
		own, ok := r.vpcs[t.VPC]
		if !ok {
			r.problem(t.Ref(), "VPC %q is not among the VPCs", t.VPC)
			continue
		}
		if !validHost(t.Addr) {
			r.problem(t.Ref(), "want a unicast address")
			continue
		}
		f, p := familyOf(t.Addr), netip.PrefixFrom(t.Addr, t.Addr.BitLen())
		w.add(TableRoute, routePriority(routeHere, p), "the node itself: "+t.Ref().String(), when(is(VPC, uint64(own.vni)), f.ip, addr(f.dst, t.Addr)),
			load(Target, Node), to(TableWays))
		w.add(TableTrack, 20, "from the tunnel to the node itself: "+t.Ref().String(), when(is(Source, Tunnel), is(VPC, uint64(own.vni)), f.ip, addr(f.dst, t.Addr)),
			load(Judged, 1), to(TableRoute))
	}
	r.part("routes", w)
}

// nextHop is what happens to packets to a route's destination. Whatever does not go
// through the tunnel the host sends on, by the same routes as on the linux plane.
func (r *renderer) nextHop(route intent.Route, peers map[string]intent.Peer) (actions []of.Action, comment string, err error) {
	h := route.NextHop
	switch {
	case h.Local:
		return nil, "no pod has the address: " + route.Ref().String(), nil
	case !route.Encapsulate || h.Peer == "" && len(h.ECMP) == 0:
		return []of.Action{load(Target, Outside), to(TableWays)}, route.Ref().String() + " by the host", nil
	case len(h.ECMP) > 0:
		return nil, "", fmt.Errorf("a list of next hops cannot lead through the tunnel")
	case !overlay(r.node):
		return nil, "", fmt.Errorf("leads through the tunnel, but no Subnet is an overlay")
	}
	peer, known := peers[h.Peer]
	if !known {
		return nil, "", fmt.Errorf("peer %q is not among the peers", h.Peer)
	}
	near, ok := r.outer(peer)
	if !ok {
		return nil, "", fmt.Errorf("this node and peer %q have no underlay addresses of one family in common", h.Peer)
	}
	f := familyOf(peer.Outer)
	return []of.Action{
		load(Target, Tunnel), of.SetAddr(f.tunDst, peer.Outer), of.SetAddr(f.tunSrc, near), of.SetMAC(of.EthDst, peer.VTEPMAC), to(TableWays),
	}, route.Ref().String() + " at peer " + peer.Name, nil
}

// subnets adds what lies in a Subnet and has no route: nobody has such an address of
// an overlay. Others the routers may know. Addresses of another VPC are refused.
func (r *renderer) subnets(w *writer, taken map[destination]intent.Ref) {
	several := len(r.node.VPCs) > 1
	done := map[netip.Prefix]bool{}
	for _, s := range r.node.Subnets {
		own, ok := r.vpcs[s.VPC]
		if !ok {
			continue // said by hostSources
		}
		for _, c := range s.CIDRs {
			if !validPrefix(c) {
				continue // said by hostSources
			}
			f := familyOf(c.Addr())
			if several && !done[c] {
				done[c] = true
				w.add(TableRoute, routePriority(routeOthers, c), "another VPC: "+s.Ref().String(), when(f.ip, of.Prefix(f.dst, c)))
			}
			d := destination{s.VPC, c}
			if taken[d] != (intent.Ref{}) {
				continue
			}
			taken[d] = s.Ref()
			match := when(is(VPC, uint64(own.vni)), f.ip, of.Prefix(f.dst, c))
			if s.Overlay {
				w.add(TableRoute, routePriority(routeRoute, c), "nobody has the address: "+s.Ref().String(), match)
			} else {
				w.add(TableRoute, routePriority(routeRoute, c), s.Ref().String()+" by the host", match, load(Target, Outside), to(TableWays))
			}
		}
	}
	if r.gateway == 0 {
		r.problem(intent.Ref{Kind: "Node", Name: r.node.Name}, "the port %s has no number yet: neither the node nor the outside is reached", claims.OVSHostPort)
	}
	if r.tunnel == 0 && overlay(r.node) {
		r.problem(intent.Ref{Kind: "Node", Name: r.node.Name}, "the port %s has no number yet: no other node is reached through the tunnel", claims.OVSTunnelPort)
	}
}
