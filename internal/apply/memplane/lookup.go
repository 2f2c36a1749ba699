package memplane

import (
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// has reports whether an address is the node's own on the underlay.
func (p *Plane) has(a netip.Addr) bool {
	return slices.ContainsFunc(p.actual.Underlay, func(u netip.Prefix) bool { return u.Addr() == a })
}

func (p *Plane) hasTunnel(a netip.Addr) bool {
	return slices.ContainsFunc(p.actual.Tunnels, func(t intent.TunnelAddress) bool { return t.Addr == a })
}

// underlay returns the node's own address of the family of a.
func (p *Plane) underlay(a netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(p.actual.Underlay, func(u netip.Prefix) bool { return u.Addr().BitLen() == a.BitLen() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return p.actual.Underlay[i].Addr(), true
}

// subnet returns the Subnet that holds an address.
func (p *Plane) subnet(a netip.Addr) (intent.Subnet, bool) {
	for _, s := range p.actual.Subnets {
		if slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return c.Contains(a) }) {
			return s, true
		}
	}
	return intent.Subnet{}, false
}

// lookup returns the route of the longest prefix.
func (p *Plane) lookup(vpc string, a netip.Addr) (intent.Route, bool) {
	var best intent.Route
	found := false
	for _, r := range p.actual.Routes {
		if r.VPC == vpc && r.Dst.Contains(a) && (!found || r.Dst.Bits() > best.Dst.Bits()) {
			best, found = r, true
		}
	}
	return best, found
}

func (p *Plane) inSet(vpc, name string, a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(p.actual.AddressSets, intent.AddressSet{VPC: vpc, Name: name}, intent.AddressSet.Compare)
	return found && slices.ContainsFunc(p.actual.AddressSets[i].Prefixes, func(c netip.Prefix) bool { return c.Contains(a) })
}

func (p *Plane) peer(name string) (intent.Peer, bool) {
	i, found := slices.BinarySearchFunc(p.actual.Peers, intent.Peer{Name: name}, intent.Peer.Compare)
	if !found {
		return intent.Peer{}, false
	}
	return p.actual.Peers[i], true
}

// port returns a port by its ID.
func (p *Plane) port(id string) (intent.Port, bool) {
	i, found := slices.BinarySearchFunc(p.actual.Ports, intent.Port{ID: id}, intent.Port.Compare)
	if !found {
		return intent.Port{}, false
	}
	return p.actual.Ports[i], true
}

// ownVNI is the VNI of a VPC itself.
func (p *Plane) ownVNI(vpc string) packet.VNI {
	i, found := slices.BinarySearchFunc(p.actual.VPCs, intent.VPC{Name: vpc}, intent.VPC.Compare)
	if !found {
		return 0
	}
	return p.actual.VPCs[i].VNI
}
