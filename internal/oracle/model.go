package oracle

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Model is the meaning of a world. It is immutable; its cost is that of reading
// the whole world once.
type Model struct {
	snap     *world.Snapshot
	vpcs     []*world.VPC              // those that have a VNI of their own, the oldest first
	home     map[string]string         // namespace → VPC
	tenants  map[string]tenant         // namespace → tenant
	subnets  []*world.Subnet           // in use, the oldest first
	underlay map[string][]netip.Prefix // node → its addresses on the underlay
	owners   map[netip.Addr][]holding  // address of a Subnet → who holds it
}

// tenant is the VNI of a namespace in a VPC that isolates.
type tenant struct {
	vni    packet.VNI
	global bool
}

// holding is one address of a Subnet in somebody's hands.
type holding struct {
	place  Place
	subnet *world.Subnet
	// pod is nil for tunnel addresses, containers without a pod, and pods that the
	// world does not know (any more).
	pod *world.Pod
}

// Read makes the Model of a world. Node-local tables are not looked at.
func Read(snap *world.Snapshot) *Model {
	m := &Model{snap: snap, home: map[string]string{}, tenants: map[string]tenant{}, underlay: map[string][]netip.Prefix{}, owners: map[netip.Addr][]holding{}}
	m.readUnderlay()
	m.readVPCs()
	m.readNamespaces()
	m.readSubnets()
	m.readHoldings()
	return m
}

// readUnderlay: a node is known by its NodeNetwork, whether or not its Node still
// exists. At most one address a family counts, the first. An address that two nodes
// claim is that of the one whose Node exists, else of the first by name.
func (m *Model) readUnderlay() {
	claimed := map[netip.Addr]bool{}
	for _, living := range []bool{true, false} {
		for n := range m.snap.NodeNetworks.Values() {
			if _, exists := m.snap.Nodes.Get(world.Key{Name: n.Name}); exists != living {
				continue
			}
			var mine []netip.Prefix
			families := map[int]bool{}
			for _, p := range n.Addresses {
				if !isUnicast(p.Addr()) || p.Bits() <= 0 || families[p.Addr().BitLen()] || claimed[p.Addr()] {
					continue
				}
				families[p.Addr().BitLen()] = true
				claimed[p.Addr()] = true
				mine = append(mine, p)
			}
			if len(mine) > 0 {
				m.underlay[n.Name] = mine
			}
		}
	}
}

// isUnicast: an address that some one machine can have on a network of several. From 240
// on IPv4 has none (RFC 1112, section 4), and the broadcast address.
func isUnicast(a netip.Addr) bool {
	return a.IsValid() && !(a.Is4() && a.As4()[0] >= 240) && !a.Is4In6() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// readVPCs: a VPC counts once it has a VNI that no older one has.
func (m *Model) readVPCs() {
	for _, v := range oldestFirst(m.snap.VPCs, func(v *world.VPC) (time.Time, string) { return v.Created, v.Name }) {
		sameVNI := func(o *world.VPC) bool { return o.VNI == v.VNI }
		if v.VNI >= 1 && v.VNI <= packet.MaxVNI && !slices.ContainsFunc(m.vpcs, sameVNI) {
			m.vpcs = append(m.vpcs, v)
		}
	}
}

func oldestFirst[T any](table world.Table[*T], age func(*T) (time.Time, string)) []*T {
	return slices.SortedFunc(table.Values(), func(a, b *T) int {
		at, an := age(a)
		bt, bn := age(b)
		return cmp.Or(at.Compare(bt), cmp.Compare(an, bn))
	})
}

func (m *Model) vpc(name string) *world.VPC {
	i := slices.IndexFunc(m.vpcs, func(v *world.VPC) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return m.vpcs[i]
}

// readNamespaces: a namespace is in the oldest VPC that selects it, else in
// "default"; that VPC need not have a VNI yet. In a VPC that isolates, the VNI
// of its NetNamespace is its tenant, unless it is a VPC's own, or of an older VPC.
func (m *Model) readNamespaces() {
	byAge := oldestFirst(m.snap.VPCs, func(v *world.VPC) (time.Time, string) { return v.Created, v.Name })
	for ns := range m.snap.Namespaces.Values() {
		m.home[ns.Name] = packet.DefaultVPC
		for _, v := range byAge {
			if selects(v.Namespaces, ns.Labels) {
				m.home[ns.Name] = v.Name
				break
			}
		}
	}
	owner := map[packet.VNI]string{}
	for _, v := range m.vpcs {
		owner[v.VNI] = "the VPC " + v.Name + " itself"
	}
	for _, v := range m.vpcs {
		if !v.Tenant {
			continue
		}
		for ns := range m.snap.Namespaces.Values() {
			n, has := m.snap.NetNamespaces.Get(world.Key{Name: ns.Name})
			if m.home[ns.Name] != v.Name || !has || n.VNI < 1 || n.VNI > packet.MaxVNI {
				continue
			}
			if o := owner[n.VNI]; o == "" || o == v.Name {
				owner[n.VNI] = v.Name
				m.tenants[ns.Name] = tenant{vni: n.VNI, global: n.Global}
			}
		}
	}
}

// readSubnets: in use is what lies in a VPC with a VNI, has a transport that exists,
// and overlaps neither the nodes' network nor an older Subnet in use. Plain
// routes carry no tenant, so a VPC that isolates has no Routed Subnets.
func (m *Model) readSubnets() {
	for _, s := range oldestFirst(m.snap.Subnets, func(s *world.Subnet) (time.Time, string) { return s.Created, s.Name }) {
		v := m.vpc(s.VPC)
		overlay := s.Transport == world.Overlay && (s.Encapsulation == world.VXLAN || s.Encapsulation == world.CrossSubnet)
		routed := s.Transport == world.Routed && v != nil && !v.Tenant
		if v == nil || !overlay && !routed || len(cidrs(s)) == 0 || m.overlapsSomething(s) {
			continue
		}
		m.subnets = append(m.subnets, s)
	}
}

// cidrs of a Subnet that are CIDRs at all.
func cidrs(s *world.Subnet) []netip.Prefix {
	var list []netip.Prefix
	for _, c := range s.CIDRs {
		if c.IsValid() && !c.Addr().Is4In6() {
			list = append(list, c.Masked())
		}
	}
	return list
}

func (m *Model) overlapsSomething(s *world.Subnet) bool {
	for _, c := range cidrs(s) {
		for n := range m.snap.NodeNetworks.Values() {
			for _, p := range n.Addresses { // Claimed by two nodes or not: the segment is there.
				if isUnicast(p.Addr()) && p.Bits() > 0 && p.Overlaps(c) {
					return true
				}
			}
		}
		for _, older := range m.subnets {
			if slices.ContainsFunc(cidrs(older), c.Overlaps) {
				return true
			}
		}
	}
	return false
}

// subnetOf returns the Subnet in use that holds an address.
func (m *Model) subnetOf(a netip.Addr) *world.Subnet {
	for _, s := range m.subnets {
		for _, c := range cidrs(s) {
			if c.Contains(a) {
				return s
			}
		}
	}
	return nil
}

// readHoldings: blocks say who holds an address. Of blocks that overlap the
// first by name counts. A lent address is held by whom the borrower says; the block's
// own allocations do not count for it.
func (m *Model) readHoldings() {
	var counted []*world.Block
	for b := range m.snap.Blocks.Values() {
		i := slices.IndexFunc(m.subnets, func(s *world.Subnet) bool { return s.Name == b.Subnet })
		if i < 0 || !b.CIDR.IsValid() || b.CIDR != b.CIDR.Masked() || !insideOne(cidrs(m.subnets[i]), b.CIDR) || slices.ContainsFunc(counted, func(o *world.Block) bool { return o.CIDR.Overlaps(b.CIDR) }) {
			continue
		}
		counted = append(counted, b)
		lent := map[netip.Addr]string{}
		for _, l := range b.Lent {
			if _, twice := lent[l.Addr]; !twice && b.CIDR.Contains(l.Addr) && l.Node != b.Node {
				lent[l.Addr] = l.Node
			}
		}
		for _, a := range b.Allocations {
			if b.CIDR.Contains(a.Addr) && lent[a.Addr] == "" {
				m.hold(a, b.Node, m.subnets[i])
			}
		}
		for addr, node := range lent {
			if n, known := m.snap.NodeNetworks.Get(world.Key{Name: node}); known {
				for _, a := range n.Borrowed {
					if a.Addr == addr {
						m.hold(a, node, m.subnets[i])
						break
					}
				}
			}
		}
	}
	m.readStatuses(counted)
}

// readStatuses: where no block says who has an address, in use or not, a pod's own
// status does, if the address is of a block of its node.
func (m *Model) readStatuses(counted []*world.Block) {
	said := map[netip.Addr]bool{}
	for b := range m.snap.Blocks.Values() {
		for _, a := range b.Allocations {
			said[a.Addr] = true
		}
	}
	for p := range m.snap.Pods.Values() {
		if p.HostNetwork || p.Finished {
			continue
		}
		for _, a := range p.Addresses {
			if said[a] {
				continue
			}
			for _, b := range counted {
				lent := slices.ContainsFunc(b.Lent, func(l world.Loan) bool { return l.Addr == a })
				if b.Node == p.Node && b.CIDR.Contains(a) && !lent {
					m.hold(world.Allocation{Addr: a, Owner: world.Owner{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}, p.Node, m.subnetOf(a))
				}
			}
		}
	}
}

func insideOne(cidrs []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(p.Addr()) && c.Bits() <= p.Bits() })
}

func (m *Model) hold(a world.Allocation, node string, s *world.Subnet) {
	h := holding{subnet: s, place: Place{Kind: Pod, Node: node, Pod: world.Key{Namespace: a.Owner.Namespace, Name: a.Owner.Name}}}
	if a.Owner.Namespace == "" && strings.HasPrefix(a.Owner.Name, "node/") {
		h.place = Place{Kind: Node, Node: node}
	} else if p, ok := m.snap.Pods.Get(h.place.Pod); ok && (a.Owner.UID == "" || p.UID == a.Owner.UID || p.StaticUID == a.Owner.UID) {
		h.pod = p
	}
	m.owners[a.Addr] = append(m.owners[a.Addr], h)
}
