package intent

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// ComparePrefix orders prefixes by address, then length: a prefix comes before
// what it contains.
func ComparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// Compare orders VPCs by name.
func (v VPC) Compare(o VPC) int { return cmp.Compare(v.Name, o.Name) }

// Compare orders Subnets by name.
func (s Subnet) Compare(o Subnet) int { return cmp.Compare(s.Name, o.Name) }

// Compare orders Peers by name.
func (p Peer) Compare(o Peer) int { return cmp.Compare(p.Name, o.Name) }

// Compare orders Routes by VPC and destination.
func (r Route) Compare(o Route) int {
	return cmp.Or(cmp.Compare(r.VPC, o.VPC), ComparePrefix(r.Dst, o.Dst))
}

// Compare orders TunnelAddresses by VPC and address.
func (t TunnelAddress) Compare(o TunnelAddress) int {
	return cmp.Or(cmp.Compare(t.VPC, o.VPC), t.Addr.Compare(o.Addr))
}

// Compare orders Ports by ID.
func (p Port) Compare(o Port) int { return cmp.Compare(p.ID, o.ID) }

// Compare orders NATs by VPC and name.
func (n NAT) Compare(o NAT) int {
	return cmp.Or(cmp.Compare(n.VPC, o.VPC), cmp.Compare(n.Name, o.Name))
}

// Compare orders AddressSets by VPC and name.
func (s AddressSet) Compare(o AddressSet) int {
	return cmp.Or(cmp.Compare(s.VPC, o.VPC), cmp.Compare(s.Name, o.Name))
}

// Compare orders RuleLists by ID.
func (l RuleList) Compare(o RuleList) int { return cmp.Compare(l.ID, o.ID) }

// Ref names the VPC.
func (v VPC) Ref() Ref { return Ref{Kind: "VPC", Name: v.Name} }

// Ref names the Subnet.
func (s Subnet) Ref() Ref { return Ref{Kind: "Subnet", Name: s.Name} }

// Ref names the Peer.
func (p Peer) Ref() Ref { return Ref{Kind: "Peer", Name: p.Name} }

// Ref names the Route, "VPC DST".
func (r Route) Ref() Ref { return Ref{Kind: "Route", Name: r.VPC + " " + r.Dst.String()} }

// Ref names the TunnelAddress, "VPC ADDRESS".
func (t TunnelAddress) Ref() Ref {
	return Ref{Kind: "TunnelAddress", Name: t.VPC + " " + t.Addr.String()}
}

// Ref names the Port by its ID.
func (p Port) Ref() Ref { return PortRef(p.ID) }

// Ref names the NAT, "VPC NAME".
func (n NAT) Ref() Ref { return Ref{Kind: "NAT", Name: n.VPC + " " + n.Name} }

// Ref names the AddressSet, "VPC NAME".
func (s AddressSet) Ref() Ref { return Ref{Kind: "AddressSet", Name: s.VPC + " " + s.Name} }

// Ref names the RuleList by its ID.
func (l RuleList) Ref() Ref { return Ref{Kind: "RuleList", Name: l.ID} }

// Equal reports whether two next hops are the same.
func (h NextHop) Equal(o NextHop) bool {
	return h.Local == o.Local && h.Peer == o.Peer && h.Device == o.Device && h.Gateway == o.Gateway &&
		slices.EqualFunc(h.ECMP, o.ECMP, NextHop.Equal)
}

// Equal reports whether two say the same.
func (v VPC) Equal(o VPC) bool {
	return v.Name == o.Name && v.VNI == o.VNI && slices.Equal(v.Tenants, o.Tenants)
}

// Equal reports whether two say the same.
func (s Subnet) Equal(o Subnet) bool {
	return s.Name == o.Name && s.VPC == o.VPC && s.Overlay == o.Overlay && slices.Equal(s.CIDRs, o.CIDRs)
}

// Equal reports whether two say the same.
func (p Peer) Equal(o Peer) bool {
	return p.Name == o.Name && p.VTEPMAC == o.VTEPMAC && p.Outer == o.Outer && slices.Equal(p.Addrs, o.Addrs)
}

// Equal reports whether two say the same.
func (r Route) Equal(o Route) bool {
	return r.VPC == o.VPC && r.Dst == o.Dst && r.Origin == o.Origin && r.Encapsulate == o.Encapsulate && r.NextHop.Equal(o.NextHop)
}

// Equal reports whether two say the same.
func (t TunnelAddress) Equal(o TunnelAddress) bool { return t == o }

// Equal reports whether two say the same.
func (p Port) Equal(o Port) bool {
	return slices.Equal(p.Addresses, o.Addresses) && p.ID == o.ID && p.VPC == o.VPC && p.VNI == o.VNI && p.Pod == o.Pod &&
		p.Netns == o.Netns && p.Interface == o.Interface && p.HostInterface == o.HostInterface && p.MAC == o.MAC &&
		p.Ingress == o.Ingress && p.Egress == o.Egress
}

// Equal reports whether two say the same.
func (n NAT) Equal(o NAT) bool {
	return n.VPC == o.VPC && n.Name == o.Name && n.Except == o.Except && slices.Equal(n.Sources, o.Sources)
}

// Equal reports whether two say the same.
func (s AddressSet) Equal(o AddressSet) bool {
	return s.VPC == o.VPC && s.Name == o.Name && same(s.Prefixes, o.Prefixes, func(a, b netip.Prefix) bool { return a == b })
}

// Equal reports whether two say the same.
func (l RuleList) Equal(o RuleList) bool {
	return l.ID == o.ID && l.VPC == o.VPC && l.Direction == o.Direction && same(l.Rules, o.Rules, Rule.Equal)
}

// Equal reports whether two say the same.
func (r Rule) Equal(o Rule) bool {
	return r.Tier == o.Tier && r.Action == o.Action && r.Origin == o.Origin && r.Match.Protocol == o.Match.Protocol &&
		slices.Equal(r.Match.Sets, o.Match.Sets) && slices.Equal(r.Match.Ports, o.Match.Ports)
}

// Equal reports whether two intents say the same; nil and empty lists do.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.MTU == o.MTU && n.VTEPMAC == o.VTEPMAC && slices.Equal(n.Underlay, o.Underlay) &&
		same(n.VPCs, o.VPCs, VPC.Equal) && same(n.Subnets, o.Subnets, Subnet.Equal) &&
		same(n.Peers, o.Peers, Peer.Equal) && same(n.Routes, o.Routes, Route.Equal) &&
		same(n.Tunnels, o.Tunnels, TunnelAddress.Equal) && same(n.Ports, o.Ports, Port.Equal) &&
		same(n.NATs, o.NATs, NAT.Equal) && same(n.AddressSets, o.AddressSets, AddressSet.Equal) &&
		same(n.RuleLists, o.RuleLists, RuleList.Equal)
}

// same compares two lists; lists that share their memory are the same, which is
// the usual case between two compiles.
func same[T any](a, b []T, equal func(a, b T) bool) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, equal))
}

// Change is one object that differs between two intents.
type Change struct {
	// Op is "added", "removed" or "changed".
	Op  string `json:"op"`
	Ref Ref    `json:"ref"`
	// Detail says for people what the object is, or what of it changed.
	Detail string `json:"detail,omitempty"`
}

// String is "added Route default 10.0.1.0/26: via n2, encapsulated".
func (c Change) String() string {
	s := c.Op + " " + c.Ref.String()
	if c.Detail != "" {
		s += ": " + c.Detail
	}
	return s
}

// Diff lists the objects that differ, kind by kind in the order of Node's fields,
// each kind in its own order. It costs little where two intents share their lists.
func Diff(old, new Node) []Change {
	d := diffNode(old, new)
	d = diffList(d, old.VPCs, new.VPCs, VPC.Equal)
	d = diffList(d, old.Subnets, new.Subnets, Subnet.Equal)
	d = diffList(d, old.Peers, new.Peers, Peer.Equal)
	d = diffList(d, old.Routes, new.Routes, Route.Equal)
	d = diffList(d, old.Tunnels, new.Tunnels, TunnelAddress.Equal)
	d = diffList(d, old.Ports, new.Ports, Port.Equal)
	d = diffList(d, old.NATs, new.NATs, NAT.Equal)
	d = diffList(d, old.AddressSets, new.AddressSets, AddressSet.Equal)
	return diffList(d, old.RuleLists, new.RuleLists, RuleList.Equal)
}

func diffNode(old, new Node) []Change {
	if old.Name == new.Name && old.MTU == new.MTU && old.VTEPMAC == new.VTEPMAC && slices.Equal(old.Underlay, new.Underlay) {
		return nil
	}
	ref := Ref{Kind: "Node", Name: new.Name}
	if reflect.ValueOf(old).IsZero() {
		return []Change{{Op: "added", Ref: ref, Detail: new.describe()}}
	}
	return []Change{{Op: "changed", Ref: ref, Detail: old.describe() + " → " + new.describe()}}
}

// Object is what every kind of object of an intent can do.
type Object[T any] interface {
	// Compare orders the objects of a list; zero is the same object, whatever it says.
	Compare(T) int
	// Equal reports whether two objects say the same.
	Equal(T) bool
	// Ref names the object.
	Ref() Ref
	// String says for people what the object is.
	String() string
}

// diffList merges two sorted lists.
func diffList[T Object[T]](d []Change, old, new []T, equal func(a, b T) bool) []Change {
	if len(old) == len(new) && (len(old) == 0 || &old[0] == &new[0]) {
		return d
	}
	for len(old) > 0 || len(new) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(new) == 0:
			order = -1
		default:
			order = old[0].Compare(new[0])
		}
		switch {
		case order < 0:
			d = append(d, Change{Op: "removed", Ref: old[0].Ref(), Detail: old[0].String()})
			old = old[1:]
		case order > 0:
			d = append(d, Change{Op: "added", Ref: new[0].Ref(), Detail: new[0].String()})
			new = new[1:]
		default:
			if !equal(old[0], new[0]) {
				d = append(d, Change{Op: "changed", Ref: new[0].Ref(), Detail: fmt.Sprintf("%s → %s", old[0].String(), new[0].String())})
			}
			old, new = old[1:], new[1:]
		}
	}
	return d
}
