package addressing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// The bounds of an MTU, in bytes.
const (
	// minMTU is the least that IPv4 hosts must take (RFC 791, section 3.1).
	minMTU = 576
	// minMTU6 is the least that IPv6 works with (RFC 8200, section 5).
	minMTU6 = 1280
	// unknownMTU is used while no node has told its own: 1500 less the overhead of
	// VXLAN over IPv4.
	unknownMTU = 1450
	// maxMTU is the longest an IP packet can be.
	maxMTU = 65535
)

// Underlay is the nodes' own network, as one node sees it.
type Underlay struct {
	Self string
	// Addresses of this node, at most one a family, IPv4 first; empty while its
	// NodeNetwork is not known.
	Addresses []netip.Prefix
	VTEPMAC   packet.MAC
	Peers     []intent.Peer // sorted by name
	// Segments are all nodes' prefixes, masked, sorted, without doubles.
	Segments []netip.Prefix
	Problems []world.Problem

	paths map[string]*path // by peer
	// mtu is the smallest of all nodes, zero if none is known; outer6 says that
	// some tunnel packets have IPv6 outside.
	mtu    int
	outer6 bool
}

// path is how this node may reach a peer.
type path struct {
	outer            netip.Addr
	direct4, direct6 bool
}

func (p *path) direct(dst netip.Addr) bool {
	if dst.Is4() {
		return p.direct4
	}
	return p.direct6
}

// DecideUnderlay reads the NodeNetworks. exists says whether there is a Node of a
// name: where two NodeNetworks claim one address, that of a living node wins, then
// the first by name; this node's own claim always wins here.
func DecideUnderlay(self string, exists func(string) bool, nodeNetworks world.Table[*world.NodeNetwork]) *Underlay {
	u := &Underlay{Self: self, VTEPMAC: packet.VTEPMAC(self), paths: make(map[string]*path, nodeNetworks.Len())}
	addresses := u.readNodes(exists, nodeNetworks)
	own, known := nodeNetworks.Get(world.Key{Name: self})
	if known {
		u.Addresses = addresses[self]
		if !own.VTEPMAC.IsZero() {
			u.VTEPMAC = own.VTEPMAC
		}
	}
	if len(u.Addresses) == 0 {
		u.problem(self, "spec.addresses", "NoUnderlayAddress", "this node has told no address on the underlay: it reaches no other node until its agent has written one")
	}
	for n := range nodeNetworks.Values() {
		if n.Name != self && len(addresses[n.Name]) > 0 {
			u.addPeer(n, addresses[n.Name])
		}
	}
	slices.SortFunc(u.Peers, intent.Peer.Compare)
	slices.SortFunc(u.Segments, intent.ComparePrefix)
	u.Segments = slices.Compact(u.Segments)
	slices.SortFunc(u.Problems, world.Problem.Compare)
	return u
}

// readNodes returns the addresses of every node that are fit for use and its own.
func (u *Underlay) readNodes(exists func(string) bool, nodeNetworks world.Table[*world.NodeNetwork]) map[string][]netip.Prefix {
	type claim struct {
		*world.NodeNetwork
		rank int
	}
	claimants := make([]claim, 0, nodeNetworks.Len())
	for n := range nodeNetworks.Values() {
		c := claim{NodeNetwork: n, rank: 2}
		if n.Name == u.Self {
			c.rank = 0
		} else if exists(n.Name) {
			c.rank = 1
		}
		claimants = append(claimants, c)
	}
	slices.SortStableFunc(claimants, func(a, b claim) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Name, b.Name)) })
	owner := make(map[netip.Addr]string, 2*len(claimants))
	addresses := make(map[string][]netip.Prefix, len(claimants))
	for _, c := range claimants {
		u.readMTU(c.NodeNetwork)
		var fit []netip.Prefix
		for _, p := range c.Addresses {
			fault := checkNodeAddress(p)
			if fault == "" {
				u.Segments = append(u.Segments, p.Masked())
				fault = checkFamily(p, fit)
			}
			if fault != "" {
				u.problem(c.Name, "spec.addresses", "InvalidAddress", fmt.Sprintf("%s %s: not used", p, fault))
				continue
			}
			if first, taken := owner[p.Addr()]; taken {
				u.problem(c.Name, "spec.addresses", "DuplicateAddress", fmt.Sprintf("%s is the address of node %s: not used", p.Addr(), first))
				continue
			}
			owner[p.Addr()] = c.Name
			fit = append(fit, p)
		}
		slices.SortFunc(fit, func(a, b netip.Prefix) int { return cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()) })
		addresses[c.Name] = fit
		if len(fit) > 0 && fit[0].Addr().Is6() {
			u.outer6 = true
		}
	}
	return addresses
}

// checkNodeAddress says what is wrong with an underlay address.
func checkNodeAddress(p netip.Prefix) string {
	switch a := p.Addr(); {
	case !p.IsValid() || p.Bits() == 0:
		return "is no address with the prefix length of its segment"
	case a.Is4In6() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast():
		return "is no address by which a peer could reach the node"
	}
	return ""
}

// checkFamily holds a node to one address a family.
func checkFamily(p netip.Prefix, before []netip.Prefix) string {
	if slices.ContainsFunc(before, func(b netip.Prefix) bool { return b.Addr().BitLen() == p.Addr().BitLen() }) {
		return "is a second address of its family"
	}
	return ""
}

func (u *Underlay) readMTU(n *world.NodeNetwork) {
	switch {
	case n.MTU == 0:
	case n.MTU < minMTU || n.MTU > maxMTU:
		u.problem(n.Name, "spec.mtu", "InvalidMTU", fmt.Sprintf("%d is not between %d and %d: ignored", n.MTU, minMTU, maxMTU))
	case u.mtu == 0 || n.MTU < u.mtu:
		u.mtu = n.MTU
	}
}

func (u *Underlay) addPeer(n *world.NodeNetwork, addresses []netip.Prefix) {
	peer := intent.Peer{Name: n.Name, VTEPMAC: n.VTEPMAC}
	if peer.VTEPMAC.IsZero() {
		peer.VTEPMAC = packet.VTEPMAC(n.Name)
	}
	p := &path{}
	for _, theirs := range addresses {
		peer.Addrs = append(peer.Addrs, theirs.Addr())
		for _, ours := range u.Addresses {
			if ours.Addr().BitLen() != theirs.Addr().BitLen() {
				continue
			}
			if !peer.Outer.IsValid() {
				peer.Outer = theirs.Addr()
			}
			direct := ours.Contains(theirs.Addr()) && theirs.Contains(ours.Addr())
			if theirs.Addr().Is4() {
				p.direct4 = direct
			} else {
				p.direct6 = direct
			}
		}
	}
	if !peer.Outer.IsValid() && len(u.Addresses) > 0 {
		u.problem(n.Name, "spec.addresses", "NoCommonFamily", fmt.Sprintf("node %s and %s have no address family in common on the underlay: no tunnel between them", n.Name, u.Self))
	}
	p.outer = peer.Outer
	u.paths[n.Name] = p
	u.Peers = append(u.Peers, peer)
}

// MTU returns that of pods, in bytes: as configured, or, where that is zero, the
// smallest underlay MTU of all nodes, less the tunnel's overhead if any Subnet may
// use it. overlay and ipv6 say that there is such a Subnet.
func (u *Underlay) MTU(configured int, overlay, ipv6 bool) (int, []world.Problem) {
	fits := unknownMTU
	if u.mtu != 0 {
		fits = u.mtu - u.overhead(overlay)
	}
	mtu := fits
	var problems []world.Problem
	report := func(reason, message string) {
		problems = append(problems, world.Problem{Kind: world.KindNodeNetwork, Key: world.Key{Name: u.Self}, Reason: reason, Message: message})
	}
	if configured > 0 {
		mtu = configured
		if u.mtu != 0 && mtu > fits {
			report("MTUTooLarge", fmt.Sprintf("the configured pod MTU %d is more than the %d that the smallest underlay MTU %d leaves: large packets will be lost", mtu, fits, u.mtu))
		}
	}
	if ipv6 && mtu < minMTU6 {
		report("MTUTooSmall", fmt.Sprintf("the pod MTU would be %d, and IPv6 needs %d, which is used: raise the underlay's MTU", mtu, minMTU6))
		mtu = minMTU6
	}
	return mtu, problems
}

func (u *Underlay) overhead(overlay bool) int {
	switch {
	case !overlay:
		return 0
	case u.outer6:
		return claims.VXLANOverhead6
	}
	return claims.VXLANOverhead4
}

func (u *Underlay) problem(node, field, reason, message string) {
	u.Problems = append(u.Problems, world.Problem{Kind: world.KindNodeNetwork, Key: world.Key{Name: node}, Field: field, Reason: reason, Message: message})
}
