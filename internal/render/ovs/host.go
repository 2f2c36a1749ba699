package ovs

import (
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// Host is what the kernel of the node must hold beside Open vSwitch and the filter
// table.
type Host struct {
	Gateway Gateway
	// Ports are the links of pods. Their host's ends are ports of the bridge: no route
	// leads to them.
	Ports []linux.Port
	// Routes of the node: to the pods of all Subnets by the gateway's link, to peers
	// without the tunnel as on the linux plane.
	Routes   []linux.Route
	Sysctls  []linux.Sysctl
	Problems []linux.Problem
}

// Gateway is the host's own interface in the bridge.
type Gateway struct {
	Name string
	MAC  packet.MAC
	// MTU in bytes, that of pods: the host cuts what is larger, or refuses it with an
	// ICMP error, before the bridge gets it.
	MTU int
	// Addresses of this node in its Subnets, without a prefix route, sorted.
	Addresses []linux.TunnelAddress
	// Neighbours are permanent: nobody answers for pods on this link.
	Neighbours []Neighbour
	// Sysctls that must hold before the link is up.
	Sysctls []linux.Sysctl
}

// Neighbour is a permanent entry of the neighbour table.
type Neighbour struct {
	Addr netip.Addr
	MAC  packet.MAC
}

// RenderHost computes what the host needs. Links and sysctls are those of the linux
// plane. So are the routes, but for the next hop to pods: all of them are behind the
// gateway, those on this node too.
func RenderHost(n intent.Node) Host {
	n = sorted(n)
	s := linux.RenderState(n)
	h := Host{Ports: s.Ports, Sysctls: s.Sysctls, Problems: s.Problems}
	h.Gateway = Gateway{Name: claims.OVSHostPort, MAC: n.VTEPMAC, MTU: n.MTU}
	for _, gw := range []netip.Addr{claims.Gateway4, claims.Gateway6} {
		h.Gateway.Neighbours = append(h.Gateway.Neighbours, Neighbour{gw, claims.GatewayMAC})
	}
	if s.Tunnel != nil {
		h.Gateway.Addresses = s.Tunnel.Addresses
	}
	h.Gateway.Sysctls = linux.Tunnel{Name: claims.OVSHostPort, Addresses: h.Gateway.Addresses}.Sysctls()
	taken := map[netip.Prefix]bool{}
	for _, r := range s.Routes {
		switch {
		case r.Ref.Kind == intent.PortRef("").Kind:
			continue
		case len(r.Hops) == 0:
			// On the linux plane the addresses of this node's blocks that no pod has are
			// unreachable. Here the bridge knows.
			r.Src = source(n, r.Dst)
			r.Hops = []linux.Hop{gatewayHop(r.Dst)}
			r.Metric = metric(r.Dst)
		default:
			r.Hops = slices.Clone(r.Hops)
			for i, hop := range r.Hops {
				if hop.Dev == claims.VXLANDevice {
					r.Hops[i] = gatewayHop(r.Dst)
				}
			}
		}
		if !taken[r.Dst] {
			taken[r.Dst] = true
			h.Routes = append(h.Routes, r)
		}
	}
	return h
}

func gatewayHop(dst netip.Prefix) linux.Hop {
	gw := claims.Gateway6
	if dst.Addr().Is4() {
		gw = claims.Gateway4
	}
	return linux.Hop{Dev: claims.OVSHostPort, Gateway: gw}
}

// metric is that of the linux plane's routes: IPv6 knows no metric 0.
func metric(dst netip.Prefix) uint32 {
	if dst.Addr().Is4() {
		return 0
	}
	return 1024
}

// source is the address by which the bridge knows the node towards the pods here around
// dst.
func source(n intent.Node, dst netip.Prefix) netip.Addr {
	for _, s := range n.Subnets {
		if slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return c.Bits() <= dst.Bits() && c.Contains(dst.Addr()) }) {
			a := knownBy(n, s, dst.Addr().Is4())
			if !a.IsValid() {
				a, _ = underlay(n, dst.Addr().Is4())
			}
			return a
		}
	}
	return netip.Addr{}
}
