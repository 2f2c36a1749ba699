package oracle

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// unconnected says why a holder has an address and yet no network, or nothing: in
// a VPC that isolates, a pod needs a tenant there.
func (m *Model) unconnected(h holding) string {
	v := m.vpc(h.subnet.VPC)
	if h.place.Kind != Pod || !v.Tenant {
		return ""
	}
	ns := h.place.Pod.Namespace
	if ns == "" {
		return fmt.Sprintf("VPC %s isolates tenants, and without a pod there is none", v.Name)
	}
	if home := m.home[ns]; home != v.Name {
		return fmt.Sprintf("VPC %s isolates tenants, and the namespace %s is not in it", v.Name, ns)
	}
	if _, has := m.tenants[ns]; !has {
		return fmt.Sprintf("VPC %s isolates tenants, and the namespace %s has no VNI of its own", v.Name, ns)
	}
	return ""
}

// plain: packets to a Subnet go as they are within a segment, unless its VPC isolates
// tenants: a plain packet names none.
func (m *Model) plain(s *world.Subnet) bool {
	return (s.Transport == world.Routed || s.Encapsulation == world.CrossSubnet) && !m.vpc(s.VPC).Tenant
}

func (m *Model) hasUnderlay(node string, a netip.Addr) bool {
	return slices.ContainsFunc(m.underlay[node], func(p netip.Prefix) bool { return p.Addr() == a })
}

// hasFamily reports whether a node has an underlay address of the family of a.
func (m *Model) hasFamily(node string, a netip.Addr) bool {
	return slices.ContainsFunc(m.underlay[node], func(p netip.Prefix) bool { return p.Addr().BitLen() == a.BitLen() })
}

// nodeOf returns the node that has an underlay address.
func (m *Model) nodeOf(a netip.Addr) string {
	for node := range m.underlay {
		if m.hasUnderlay(node, a) {
			return node
		}
	}
	return ""
}

// sameSegment: both nodes' prefixes of the destination's family contain the
// other's address.
func (m *Model) sameSegment(a, b string, dst netip.Addr) bool {
	for _, p := range m.underlay[a] {
		for _, q := range m.underlay[b] {
			if p.Addr().BitLen() == dst.BitLen() && p.Contains(q.Addr()) && q.Contains(p.Addr()) {
				return true
			}
		}
	}
	return false
}

func (m *Model) commonFamily(a, b string) bool {
	for _, p := range m.underlay[a] {
		for _, q := range m.underlay[b] {
			if p.Addr().BitLen() == q.Addr().BitLen() {
				return true
			}
		}
	}
	return false
}

// addressOf returns an address of a pod and where the pod is. In the host's network
// it is the node's, otherwise what a block or its status says.
func (m *Model) addressOf(pod world.Key, family Family) (netip.Addr, Place, bool) {
	p, ok := m.snap.Pods.Get(pod)
	if !ok {
		return netip.Addr{}, Place{}, false
	}
	if p.HostNetwork {
		for _, own := range m.underlay[p.Node] {
			if own.Addr().BitLen() == family.bits() {
				return own.Addr(), Place{Kind: Node, Node: p.Node}, true
			}
		}
		return netip.Addr{}, Place{}, false
	}
	var found []netip.Addr
	for a, holders := range m.owners {
		if a.BitLen() == family.bits() && slices.ContainsFunc(holders, func(h holding) bool { return h.pod == p }) {
			found = append(found, a)
		}
	}
	if len(found) == 0 {
		return netip.Addr{}, Place{}, false
	}
	a := slices.MinFunc(found, netip.Addr.Compare)
	i := slices.IndexFunc(m.owners[a], func(h holding) bool { return h.pod == p })
	return a, m.owners[a][i].place, true
}
