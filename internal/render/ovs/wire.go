package ovs

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// wire adds what is held against the wire contract, and what depends on nodes and VPCs.
func (r *renderer) wire() {
	var w writer
	r.nodes(&w)
	r.part("nodes", w)
	w = nil
	for _, v := range r.node.VPCs {
		r.vpc(&w, v)
	}
	r.hostSources(&w)
	r.part("vpcs", w)
	w = nil
	r.tunnelSources(&w)
	r.part("sources", w)
}

// nodes keeps VXLAN of pods from all nodes: it could pass for a peer's.
func (r *renderer) nodes(w *writer) {
	seen := map[netip.Addr]bool{}
	add := func(a netip.Addr, of intent.Ref) {
		if !seen[a] && validHost(a) {
			seen[a] = true
			f := familyOf(a)
			w.add(TableVXLAN, 10, "VXLAN from a pod: "+of.String(), when(f.ip, addr(f.dst, a)))
		}
	}
	for _, p := range r.node.Underlay {
		add(p.Addr(), intent.Ref{Kind: "Node", Name: r.node.Name})
	}
	for _, p := range r.node.Peers {
		for _, a := range p.Addrs {
			add(a, p.Ref())
		}
	}
	for _, t := range r.node.Tunnels {
		add(t.Addr, t.Ref())
	}
}

func addr(f of.Field, a netip.Addr) of.Term { return of.Addr(f, a) }

// vpc adds the VNIs of a VPC and whom its isolated tenants hear: the same tenant,
// global tenants and nodes, and what bears no tenant: the outside.
func (r *renderer) vpc(w *writer, v intent.VPC) {
	own := r.vpcs[v.Name]
	for _, vni := range append([]packet.VNI{v.VNI}, v.Tenants...) {
		w.add(TableTunnelVNI, 10, v.Ref().String(), when(of.Eq(of.TunID, uint64(vni))),
			load(SourceTenant, uint64(vni)), load(VPC, uint64(own.vni)), load(Zone, uint64(own.zone)), to(TableTunnelSource))
	}
	for _, tenant := range v.Tenants {
		for _, from := range []struct {
			vni packet.VNI
			who string
		}{{tenant, "the same tenant"}, {v.VNI, "global tenants and nodes"}, {0, "the outside"}} {
			w.add(TableTenants, 20, fmt.Sprintf("%s: %s to tenant %d", v.Ref(), from.who, tenant),
				when(is(TargetTenant, uint64(tenant)), is(SourceTenant, uint64(from.vni))), to(TableEgressPeer))
		}
	}
}

// hostSources tells by the source what the node itself sends, and by the destination
// in which VPC.
func (r *renderer) hostSources(w *writer) {
	seen := map[netip.Addr]bool{}
	for _, t := range r.node.Tunnels {
		if f := familyOf(t.Addr); !seen[t.Addr] && validHost(t.Addr) {
			seen[t.Addr] = true
			w.add(TableHostSource, 30, "the node itself: "+t.Ref().String(), when(f.ip, addr(f.src, t.Addr)), load(Source, Node), to(TableHostVPC))
		}
	}
	direct := map[netip.Prefix]bool{}
	for _, s := range r.node.AddressSets {
		for _, p := range s.Prefixes {
			if f := familyOf(p.Addr()); s.Name == intent.SetDirect && !direct[p] && validPrefix(p) {
				direct[p] = true
				w.add(TableHostSource, 25, "from a peer without the tunnel: "+s.Ref().String(), when(f.ip, of.Prefix(f.src, p)), load(Source, Outside), to(TableHostVPC))
			}
		}
	}
	done := map[netip.Prefix]bool{}
	for _, s := range r.node.Subnets {
		own, ok := r.vpcs[s.VPC]
		if !ok {
			r.problem(s.Ref(), "VPC %q is not among the VPCs", s.VPC)
			continue
		}
		for _, c := range s.CIDRs {
			if !validPrefix(c) {
				r.problem(s.Ref(), "range %s: want a prefix without host bits", c)
				continue
			}
			if done[c] {
				continue // its VPC would be anybody's guess; intent.Validate refuses it
			}
			done[c] = true
			f, dst := familyOf(c.Addr()), []of.Action{load(VPC, uint64(own.vni)), load(Zone, uint64(own.zone))}
			w.add(TableHostSource, 20, "pod address from the host: "+s.Ref().String(), when(f.ip, of.Prefix(f.src, c)))
			w.add(TableHostVPC, 20, "from the node: "+s.Ref().String(), when(is(Source, Node), f.ip, of.Prefix(f.dst, c)),
				append(dst[:2:2], load(SourceTenant, uint64(own.vni)), to(TableTrack))...)
			w.add(TableHostVPC, 10, s.Ref().String(), when(f.ip, of.Prefix(f.dst, c)), append(dst[:2:2], to(TableTrack))...)
			if u, ok := underlay(r.node, f.is4); ok && !knownBy(r.node, s, f.is4).IsValid() {
				w.add(TableHostVPC, 15, "the node itself, by its underlay address: "+s.Ref().String(), when(f.ip, addr(f.src, u), of.Prefix(f.dst, c)),
					append(dst[:2:2], load(SourceTenant, uint64(own.vni)), load(Source, Node), to(TableTrack))...)
			}
		}
	}
}

// knownBy is the node's own address by which the bridge knows the node towards a Subnet:
// that in the Subnet, or another one in its VPC. Without any, which is possible without
// an overlay, it is the node's underlay address.
func knownBy(n intent.Node, s intent.Subnet, is4 bool) netip.Addr {
	if a := n.Source(s, is4); a.IsValid() {
		return a
	}
	for _, t := range n.Tunnels {
		if t.VPC == s.VPC && validHost(t.Addr) && t.Addr.Is4() == is4 {
			return t.Addr
		}
	}
	return netip.Addr{}
}

// underlay is the node's underlay address of a family.
func underlay(n intent.Node, is4 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(n.Underlay, func(u netip.Prefix) bool { return validHost(u.Addr()) && u.Addr().Is4() == is4 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return n.Underlay[i].Addr(), true
}

// destination identifies a route.
type destination struct {
	vpc string
	dst netip.Prefix
}

// tunnelSources holds inner sources against the routes: the longest one must lead to
// the node that the packet came from. So a route within one of a peer's that leads
// elsewhere refuses what bears its addresses.
func (r *renderer) tunnelSources(w *writer) {
	c := r.coverage()
	seen := map[destination]bool{}
	for _, route := range r.node.Routes {
		own, known := r.vpcs[route.VPC]
		d := destination{route.VPC, route.Dst}
		if !known || !validPrefix(route.Dst) || seen[d] {
			continue // said by routes
		}
		seen[d] = true
		f := familyOf(route.Dst.Addr())
		match := []of.Term{is(VPC, uint64(own.vni)), f.ip, of.Prefix(f.src, route.Dst)}
		priority := 10 + 2*route.Dst.Bits()
		if p, ok := c.peers[route.NextHop.Peer]; ok && validHost(p.Outer) {
			w.add(TableTunnelSource, priority+1, route.Ref().String(),
				when(append(match, addr(familyOf(p.Outer).tunSrc, p.Outer))...), to(TableTrack))
		}
		if c.within(d) {
			w.add(TableTunnelSource, priority, WireBadSource+": "+route.Ref().String(), when(match...))
		}
	}
}

// coverage finds routes around routes.
type coverage struct {
	peers  map[string]intent.Peer
	routes map[destination]bool
	// lengths of prefixes that routes have, by family, ascending.
	lengths [2][]int
}

func (r *renderer) coverage() coverage {
	c := coverage{peers: make(map[string]intent.Peer, len(r.node.Peers)), routes: make(map[destination]bool, len(r.node.Routes))}
	for _, p := range r.node.Peers {
		c.peers[p.Name] = p
	}
	for _, route := range r.node.Routes {
		if route.NextHop.Peer == "" || !validPrefix(route.Dst) {
			continue
		}
		c.routes[destination{route.VPC, route.Dst}] = true
		l := &c.lengths[familyIndex(route.Dst.Addr())]
		if i, found := slices.BinarySearch(*l, route.Dst.Bits()); !found {
			*l = slices.Insert(*l, i, route.Dst.Bits())
		}
	}
	return c
}

// within reports whether a destination lies within another that a peer has.
func (c coverage) within(d destination) bool {
	for _, bits := range c.lengths[familyIndex(d.dst.Addr())] {
		if bits >= d.dst.Bits() {
			break
		}
		around, _ := d.dst.Addr().Prefix(bits)
		if c.routes[destination{d.vpc, around}] {
			return true
		}
	}
	return false
}

func validPrefix(p netip.Prefix) bool { return p.IsValid() && p == p.Masked() && !p.Addr().Is4In6() }

// outer is this node's own address that tunnel packets to a peer bear.
func (r *renderer) outer(p intent.Peer) (netip.Addr, bool) {
	if !validHost(p.Outer) {
		return netip.Addr{}, false
	}
	return underlay(r.node, p.Outer.Is4())
}

// overlay reports whether anything goes through the tunnel.
func overlay(n intent.Node) bool {
	return len(n.Tunnels) > 0 || slices.ContainsFunc(n.Subnets, func(s intent.Subnet) bool { return s.Overlay })
}

// TunnelOptions are those of the one tunnel port: flows say where a packet goes, with
// which source and VNI.
func tunnelOptions() map[string]string {
	return map[string]string{
		"remote_ip": "flow", "local_ip": "flow", "key": "flow", "dst_port": fmt.Sprint(claims.VXLANPort),
	}
}
