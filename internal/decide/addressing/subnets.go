package addressing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Subnet is one that is in use.
type Subnet struct {
	intent.Subnet
	Transport world.Transport
	// Direct says that its packets go as they are to peers in the same segment.
	Direct bool
}

// vpcFamily is the IPv4 or the IPv6 side of a VPC, by the bits of an address.
type vpcFamily struct {
	vpc  string
	bits int
}

// Subnets are all that are in use.
type Subnets struct {
	List        []intent.Subnet     // sorted by name
	NATs        []intent.NAT        // sorted by VPC, name
	AddressSets []intent.AddressSet // intent.SetSubnets of each VPC, sorted by VPC
	// Overlay says that some Subnet may use the tunnel, IPv6 that some has an IPv6
	// CIDR.
	Overlay, IPv6 bool
	Problems      []world.Problem

	inUse map[string]*Subnet
	// direct holds the sides of VPCs that have a CIDR of a Direct Subnet.
	direct map[vpcFamily]bool
	// known holds the names of all Subnets of the world, in use or not.
	known map[string]bool
}

// Get returns a Subnet that is in use.
func (s *Subnets) Get(name string) (*Subnet, bool) {
	sn, ok := s.inUse[name]
	return sn, ok
}

// DecideSubnets finds which Subnets are in use.
func DecideSubnets(t *tenancy.Result, segments []netip.Prefix, subnets world.Table[*world.Subnet]) *Subnets {
	s := &Subnets{inUse: map[string]*Subnet{}, direct: map[vpcFamily]bool{}, known: map[string]bool{}}
	byAge := slices.SortedFunc(subnets.Values(), func(a, b *world.Subnet) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	taken := new(bart.Lite)
	var homeless []string
	for _, w := range byAge {
		s.known[w.Name] = true
		cidrs := s.readCIDRs(w)
		switch t.Standing(w.VPC) {
		case tenancy.Unusable: // The VPC has a Problem that says so.
			continue
		case tenancy.Unknown:
			if w.VPC == packet.DefaultVPC {
				homeless = append(homeless, w.Name)
				continue
			}
			s.problem(w.Name, "spec.vpc", "UnknownVPC", fmt.Sprintf("there is no VPC %s: create it, or make a new Subnet in another", w.VPC))
			continue
		}
		if len(cidrs) > 0 && s.transportExists(w, t.Isolates(w.VPC)) && s.fits(w, cidrs, segments, taken, byAge) {
			s.use(w, cidrs, t.Isolates(w.VPC))
			for _, c := range cidrs {
				taken.Insert(c)
			}
		}
	}
	if len(homeless) > 0 {
		s.Problems = append(s.Problems, world.Problem{
			Kind: world.KindVPC, Key: world.Key{Name: packet.DefaultVPC}, Reason: "VPCMissing",
			Message: "does not exist: the controller creates it; until then these Subnets are not in use: " + enumerate(homeless),
		})
	}
	s.finish()
	return s
}

// readCIDRs returns the usable CIDRs, masked, sorted, none inside another.
func (s *Subnets) readCIDRs(w *world.Subnet) []netip.Prefix {
	for _, bad := range w.BadCIDRs {
		s.problem(w.Name, "spec.cidrs", "InvalidCIDR", fmt.Sprintf("%.80q is no CIDR: ignored", bad))
	}
	var cidrs []netip.Prefix
	for _, c := range w.CIDRs {
		if !usable(c) {
			s.problem(w.Name, "spec.cidrs", "InvalidCIDR", fmt.Sprintf("%s is no IPv4 or IPv6 CIDR: ignored", c))
			continue
		}
		cidrs = append(cidrs, c.Masked())
	}
	slices.SortFunc(cidrs, intent.ComparePrefix) // A prefix sorts before what it holds.
	var apart []netip.Prefix
	for _, c := range cidrs {
		if !covers(apart, c) {
			apart = append(apart, c)
		}
	}
	if len(apart) == 0 {
		s.problem(w.Name, "spec.cidrs", "NoCIDR", "has no usable CIDR: not in use")
	}
	return apart
}

// transportExists reports whether there is a way to carry a Subnet's packets. A
// plain route carries no VNI, so that the receiving node could not tell tenants
// apart.
func (s *Subnets) transportExists(w *world.Subnet, isolates bool) bool {
	switch {
	case w.Transport != world.Overlay && w.Transport != world.Routed:
		s.problem(w.Name, "spec.transport", "TransportUnavailable", fmt.Sprintf("transport %s cannot be had yet: the Subnet is not in use; make a new one with Overlay or Routed", w.Transport))
		return false
	case w.Transport == world.Routed && isolates:
		s.problem(w.Name, "spec.transport", "TransportUnavailable", fmt.Sprintf("transport Routed carries no tenant, and VPC %s isolates tenants: the Subnet is not in use; make a new one with Overlay", w.VPC))
		return false
	case w.Transport == world.Overlay && w.Encapsulation != world.VXLAN && w.Encapsulation != world.CrossSubnet:
		s.problem(w.Name, "spec.encapsulation", "InvalidEncapsulation", fmt.Sprintf("transport Overlay has encapsulation VXLAN or CrossSubnet, not %s: the Subnet is not in use", w.Encapsulation))
		return false
	}
	return true
}

// fits reports whether a Subnet's addresses are nobody else's.
func (s *Subnets) fits(w *world.Subnet, cidrs, segments []netip.Prefix, taken *bart.Lite, byAge []*world.Subnet) bool {
	for _, c := range cidrs {
		if i := slices.IndexFunc(segments, c.Overlaps); i >= 0 {
			s.problem(w.Name, "spec.cidrs", "OverlapsNodeNetwork", fmt.Sprintf("%s overlaps the nodes' own network %s: the Subnet is not in use; make a new one elsewhere", c, segments[i]))
			return false
		}
		if taken.OverlapsPrefix(c) {
			s.problem(w.Name, "spec.cidrs", "Overlap", fmt.Sprintf("%s overlaps %s: the younger Subnet is not in use; make a new one elsewhere", c, s.holder(c, byAge)))
			return false
		}
	}
	return true
}

// holder names the oldest Subnet in use that overlaps a CIDR.
func (s *Subnets) holder(c netip.Prefix, byAge []*world.Subnet) string {
	for _, w := range byAge {
		if sn, ok := s.inUse[w.Name]; ok {
			if i := slices.IndexFunc(sn.CIDRs, c.Overlaps); i >= 0 {
				return fmt.Sprintf("%s of Subnet %s in VPC %s", sn.CIDRs[i], sn.Name, sn.VPC)
			}
		}
	}
	return "another Subnet"
}

func (s *Subnets) use(w *world.Subnet, cidrs []netip.Prefix, isolates bool) {
	sn := &Subnet{
		Subnet:    intent.Subnet{VPC: w.VPC, Name: w.Name, CIDRs: cidrs, Overlay: w.Transport == world.Overlay},
		Transport: w.Transport,
		Direct:    !isolates && (w.Transport == world.Routed || w.Encapsulation == world.CrossSubnet),
	}
	for _, c := range cidrs {
		if sn.Direct {
			s.direct[vpcFamily{w.VPC, c.Addr().BitLen()}] = true
		}
	}
	s.inUse[w.Name] = sn
	s.List = append(s.List, sn.Subnet)
	s.Overlay = s.Overlay || sn.Overlay
	s.IPv6 = s.IPv6 || slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().Is6() })
	if w.NATOutgoing {
		s.NATs = append(s.NATs, intent.NAT{VPC: w.VPC, Name: w.Name, Sources: merged(cidrs), Except: intent.SetSubnets})
	}
}

func (s *Subnets) finish() {
	slices.SortFunc(s.List, intent.Subnet.Compare)
	slices.SortFunc(s.NATs, intent.NAT.Compare)
	slices.SortFunc(s.Problems, world.Problem.Compare)
	byVPC := map[string][]netip.Prefix{}
	for _, sn := range s.List {
		byVPC[sn.VPC] = append(byVPC[sn.VPC], sn.CIDRs...)
	}
	for vpc, cidrs := range byVPC {
		s.AddressSets = append(s.AddressSets, intent.AddressSet{VPC: vpc, Name: intent.SetSubnets, Prefixes: merged(cidrs)})
	}
	slices.SortFunc(s.AddressSets, intent.AddressSet.Compare)
}

// Tunnels returns this node's own addresses that lie in Subnets in use, sorted by
// VPC and address.
func (s *Subnets) Tunnels(tunnels world.Table[*world.TunnelAddress]) ([]intent.TunnelAddress, []world.Problem) {
	var list []intent.TunnelAddress
	var problems []world.Problem
	for key, w := range tunnels.All() {
		sn, ok := s.inUse[w.Subnet]
		if !ok { // The Subnet's own Problem says why.
			continue
		}
		if !contains(sn.CIDRs, w.Addr) {
			problems = append(problems, world.Problem{
				Kind: world.KindTunnelAddress, Key: key, Reason: "OutsideSubnet",
				Message: fmt.Sprintf("%s lies outside of Subnet %s: not used", w.Addr, w.Subnet),
			})
			continue
		}
		list = append(list, intent.TunnelAddress{VPC: sn.VPC, Subnet: sn.Name, Addr: w.Addr})
	}
	slices.SortFunc(list, func(a, b intent.TunnelAddress) int {
		return cmp.Or(cmp.Compare(a.VPC, b.VPC), a.Addr.Compare(b.Addr), cmp.Compare(a.Subnet, b.Subnet))
	})
	return slices.Compact(list), problems
}

func (s *Subnets) problem(name, field, reason, message string) {
	s.Problems = append(s.Problems, world.Problem{Kind: world.KindSubnet, Key: world.Key{Name: name}, Field: field, Reason: reason, Message: message})
}
