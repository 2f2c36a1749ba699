package intent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Validate returns everything that is wrong with an intent, each fault with its
// object; nil means that a plane may rely on what this package promises: lists are
// sorted and unique, unions have exactly one field, names refer to what exists in
// the same VPC, and nothing of one VPC holds addresses of another.
func Validate(n Node) []error {
	v := validator{vpcs: map[string]VPC{}, peers: map[string]Peer{}, sets: map[string]bool{}, lists: map[string]RuleList{}}
	v.node(n)
	v.vpcList(n.VPCs)
	v.subnetList(n.Subnets)
	v.peerList(n.Peers)
	v.routeList(n.Routes)
	v.tunnelList(n.Tunnels)
	v.setList(n.AddressSets)
	v.ruleLists(n.RuleLists)
	v.portList(n.Ports)
	v.natList(n.NATs)
	return v.faults
}

type validator struct {
	vpcs    map[string]VPC
	peers   map[string]Peer
	subnets []Subnet
	sets    map[string]bool
	lists   map[string]RuleList
	faults  []error
}

func (v *validator) fault(r Ref, format string, args ...any) {
	v.faults = append(v.faults, fmt.Errorf("%s: %w", r, fmt.Errorf(format, args...)))
}

func (v *validator) node(n Node) {
	ref := Ref{Kind: "Node", Name: n.Name}
	if n.Name == "" {
		v.fault(ref, "has no name")
	}
	if n.MTU < 68 || n.MTU > 65535 {
		v.fault(ref, "MTU %d is not between 68 and 65535", n.MTU)
	}
	var addrs []netip.Addr
	for _, p := range n.Underlay {
		addrs = append(addrs, p.Addr())
	}
	v.addresses(ref, "underlay", addrs, true)
}

// addresses checks a list of at most one address a family, IPv4 first.
func (v *validator) addresses(ref Ref, what string, addrs []netip.Addr, mayBeEmpty bool) {
	if len(addrs) == 0 && !mayBeEmpty {
		v.fault(ref, "has no %s address", what)
	}
	if len(addrs) > 2 || len(addrs) == 2 && !(addrs[0].Is4() && addrs[1].Is6()) {
		v.fault(ref, "%s addresses %s are not at most one a family, IPv4 first", what, list(addrs))
	}
	for _, a := range addrs {
		if !a.IsValid() || a.Is4In6() {
			v.fault(ref, "%s address %s is none", what, a)
		}
	}
}

// ordered checks that a list is strictly sorted.
func ordered[T Object[T]](v *validator, objects []T) {
	for i := 1; i < len(objects); i++ {
		if objects[i-1].Compare(objects[i]) >= 0 {
			v.fault(objects[i].Ref(), "stands after %s: the list is not sorted, or holds it twice", objects[i-1].Ref())
		}
	}
}

// prefixes checks a sorted list of disjoint canonical prefixes.
func (v *validator) prefixes(ref Ref, ps []netip.Prefix) {
	for i, p := range ps {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			v.fault(ref, "%s is no canonical prefix", p)
		}
		if i > 0 && (ComparePrefix(ps[i-1], p) >= 0 || ps[i-1].Overlaps(p)) {
			v.fault(ref, "%s and %s overlap or are out of order", ps[i-1], p)
		}
	}
}

func (v *validator) vpcList(vpcs []VPC) {
	ordered(v, vpcs)
	owner := map[packet.VNI]string{}
	claim := func(vpc VPC, vni packet.VNI) {
		if vni == 0 || vni > packet.MaxVNI {
			v.fault(vpc.Ref(), "VNI %d is not between 1 and %d", vni, packet.MaxVNI)
		}
		if first, taken := owner[vni]; taken {
			v.fault(vpc.Ref(), "VNI %d is that of VPC %s", vni, first)
		}
		owner[vni] = vpc.Name
	}
	for _, vpc := range vpcs {
		v.vpcs[vpc.Name] = vpc
		claim(vpc, vpc.VNI)
		for _, t := range vpc.Tenants {
			claim(vpc, t)
		}
		if !slices.IsSorted(vpc.Tenants) {
			v.fault(vpc.Ref(), "tenants %s are not sorted", numbers(vpc.Tenants))
		}
	}
}

func (v *validator) inVPC(ref Ref, vpc string) {
	if _, ok := v.vpcs[vpc]; !ok {
		v.fault(ref, "is in VPC %q, which the intent lacks", vpc)
	}
}

func (v *validator) subnetList(subnets []Subnet) {
	ordered(v, subnets)
	v.subnets = subnets
	for _, s := range subnets {
		v.inVPC(s.Ref(), s.VPC)
		if len(s.CIDRs) == 0 {
			v.fault(s.Ref(), "has no CIDR")
		}
		v.prefixes(s.Ref(), s.CIDRs)
	}
}

// within checks that a prefix lies in a Subnet of the VPC: so nothing of one VPC
// holds addresses of another.
func (v *validator) within(ref Ref, vpc string, p netip.Prefix) {
	for _, s := range v.subnets {
		if s.VPC != vpc {
			continue
		}
		for _, c := range s.CIDRs {
			if c.Bits() <= p.Bits() && c.Contains(p.Addr()) {
				return
			}
		}
	}
	v.fault(ref, "%s lies in no Subnet of VPC %s", p, vpc)
}

func (v *validator) peerList(peers []Peer) {
	ordered(v, peers)
	for _, p := range peers {
		v.peers[p.Name] = p
		v.addresses(p.Ref(), "underlay", p.Addrs, false)
		if p.VTEPMAC.IsZero() {
			v.fault(p.Ref(), "has no VTEP MAC address")
		}
		if p.Outer.IsValid() && !slices.Contains(p.Addrs, p.Outer) {
			v.fault(p.Ref(), "outer address %s is none of its own %s", p.Outer, list(p.Addrs))
		}
	}
}

func (v *validator) routeList(routes []Route) {
	ordered(v, routes)
	for _, r := range routes {
		v.inVPC(r.Ref(), r.VPC)
		if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() || r.Dst.Addr().Is4In6() {
			v.fault(r.Ref(), "the destination is no canonical prefix")
		} else if r.Origin == OriginBlock {
			v.within(r.Ref(), r.VPC, r.Dst)
		}
		if err := v.nextHop(r.NextHop, true); err != nil {
			v.fault(r.Ref(), "%w", err)
		}
		if r.Encapsulate && !v.peers[r.NextHop.Peer].Outer.IsValid() {
			v.fault(r.Ref(), "is encapsulated, and its next hop %s has no outer address", r.NextHop)
		}
	}
}

func (v *validator) nextHop(h NextHop, mayBeList bool) error {
	set := 0
	for _, is := range []bool{h.Local, h.Peer != "", h.Device != "", h.Gateway.IsValid(), len(h.ECMP) > 0} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("a next hop has exactly one field, this has %d", set)
	}
	if len(h.ECMP) > 0 && !mayBeList {
		return errors.New("a list of next hops holds a list")
	}
	if _, ok := v.peers[h.Peer]; h.Peer != "" && !ok {
		return fmt.Errorf("the next hop %s is no peer", h.Peer)
	}
	for _, e := range h.ECMP {
		if err := v.nextHop(e, false); err != nil {
			return err
		}
	}
	return nil
}

func (v *validator) tunnelList(tunnels []TunnelAddress) {
	ordered(v, tunnels)
	for _, t := range tunnels {
		v.subnetAddress(t.Ref(), t.VPC, t.Subnet, t.Addr)
	}
}

func (v *validator) subnetAddress(ref Ref, vpc, subnet string, a netip.Addr) {
	i, found := slices.BinarySearchFunc(v.subnets, Subnet{Name: subnet}, Subnet.Compare)
	switch {
	case !found:
		v.fault(ref, "Subnet %s is not in the intent", subnet)
	case v.subnets[i].VPC != vpc:
		v.fault(ref, "Subnet %s is in VPC %s, not in %s", subnet, v.subnets[i].VPC, vpc)
	case !slices.ContainsFunc(v.subnets[i].CIDRs, func(c netip.Prefix) bool { return c.Contains(a) }):
		v.fault(ref, "%s lies outside of Subnet %s", a, subnet)
	}
}

func (v *validator) portList(ports []Port) {
	ordered(v, ports)
	type place struct {
		vpc  string
		addr netip.Addr
	}
	holder := map[place]string{}
	link := map[string]string{}
	for _, p := range ports {
		v.inVPC(p.Ref(), p.VPC)
		if vpc := v.vpcs[p.VPC]; p.VNI == 0 || p.VNI != vpc.VNI && !slices.Contains(vpc.Tenants, p.VNI) {
			v.fault(p.Ref(), "VNI %d is none of VPC %s", p.VNI, p.VPC)
		}
		v.addresses(p.Ref(), "pod", p.Addresses, false)
		for _, a := range p.Addresses {
			if a.IsValid() {
				v.within(p.Ref(), p.VPC, netip.PrefixFrom(a, a.BitLen()))
			}
			if first, taken := holder[place{p.VPC, a}]; taken {
				v.fault(p.Ref(), "%s is the address of Port %s", a, first)
			}
			holder[place{p.VPC, a}] = p.ID
		}
		if p.MAC.IsZero() || p.HostInterface == "" {
			v.fault(p.Ref(), "has no MAC address or no host interface")
		}
		if first, taken := link[p.HostInterface]; taken {
			v.fault(p.Ref(), "the host interface %s is that of Port %s", p.HostInterface, first)
		}
		link[p.HostInterface] = p.ID
		v.listOf(p, Ingress, p.Ingress)
		v.listOf(p, Egress, p.Egress)
	}
}

func (v *validator) setList(sets []AddressSet) {
	ordered(v, sets)
	for _, s := range sets {
		v.sets[s.Ref().Name] = true
		v.inVPC(s.Ref(), s.VPC)
		v.prefixes(s.Ref(), s.Prefixes)
	}
}

func (v *validator) natList(nats []NAT) {
	ordered(v, nats)
	for _, n := range nats {
		v.inVPC(n.Ref(), n.VPC)
		if len(n.Sources) == 0 {
			v.fault(n.Ref(), "has no source")
		}
		v.prefixes(n.Ref(), n.Sources)
		v.covered(n.Ref(), n.VPC, n.Sources)
		if !v.sets[AddressSet{VPC: n.VPC, Name: n.Except}.Ref().Name] {
			v.fault(n.Ref(), "the set %s of VPC %s is not in the intent", n.Except, n.VPC)
		}
	}
}

// covered checks that the Subnets of the VPC, taken together, hold all of the
// prefixes.
func (v *validator) covered(ref Ref, vpc string, prefixes []netip.Prefix) {
	var rest netipx.IPSetBuilder
	for _, p := range prefixes {
		rest.AddPrefix(p)
	}
	for _, s := range v.subnets {
		if s.VPC == vpc {
			for _, c := range s.CIDRs {
				rest.RemovePrefix(c)
			}
		}
	}
	if set, err := rest.IPSet(); err == nil && len(set.Ranges()) > 0 {
		v.fault(ref, "%s lies in no Subnet of VPC %s", set.Ranges()[0], vpc)
	}
}
