package intent

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Node is the complete desired state of one node's network.
type Node struct {
	Name string
	// MTU of pods and of the tunnel device, in bytes: one for the cluster.
	MTU int
	// Underlay holds this node's own addresses on the underlay with the prefix
	// length of their segment, at most one a family, IPv4 first.
	Underlay []netip.Prefix
	// VTEPMAC is the hardware address of this node's tunnel device.
	VTEPMAC packet.MAC

	VPCs        []VPC           // sorted by name
	Subnets     []Subnet        // sorted by name
	Peers       []Peer          // sorted by name
	Routes      []Route         // sorted by VPC, destination
	Tunnels     []TunnelAddress // sorted by VPC, address
	Ports       []Port          // sorted by ID
	NATs        []NAT           // sorted by VPC, name
	AddressSets []AddressSet    // sorted by VPC, name
	RuleLists   []RuleList      // sorted by ID
}

// VPC is a routing domain that this node takes part in.
type VPC struct {
	Name string
	// VNI of the VPC itself: what a node sends on its own behalf bears it, and it
	// identifies the VPC inside a plane. Unique, never zero.
	VNI packet.VNI
	// Tenants are all other VNIs that belong to the VPC, sorted. A packet from the
	// wire is in this VPC if it bears VNI or one of these.
	Tenants []packet.VNI
}

// Subnet is a range of pod addresses of a VPC.
type Subnet struct {
	VPC  string
	Name string
	// CIDRs, sorted.
	CIDRs []netip.Prefix
	// Overlay says that the Subnet has routes that may lead into the tunnel.
	Overlay bool
}

// Peer is another node.
type Peer struct {
	Name string
	// Addrs on the underlay, at most one a family, IPv4 first.
	Addrs   []netip.Addr
	VTEPMAC packet.MAC
	// Outer is the address that tunnel packets to and from the peer bear: of the
	// first family that both nodes have. Invalid if they share none.
	Outer netip.Addr
}

// Origin says where a route comes from.
type Origin uint8

// The origins.
const (
	// OriginBlock is a block of a node, or an address lent to it.
	OriginBlock Origin = iota
	// OriginStatic is a static route of a VPC.
	OriginStatic
	// OriginBGP was learned from a BGP peer.
	OriginBGP
)

// NextHop is a union: exactly one field is set.
type NextHop struct {
	// Local says that the destination is on this node: what has no Port there is
	// unreachable.
	Local bool
	// Peer is the name of another node.
	Peer string
	// Device is the name of a link in the node's namespace.
	Device string
	// Gateway is a router on the underlay.
	Gateway netip.Addr
	// ECMP are several next hops of equal cost, none of which is a list itself.
	ECMP []NextHop
}

// Route says where the addresses of a prefix of a VPC are. The longest prefix
// wins, so an address lent out of a block overrides the block.
type Route struct {
	VPC     string
	Dst     netip.Prefix
	NextHop NextHop
	Origin  Origin
	// Encapsulate says that packets to a Peer go through the tunnel; otherwise they
	// go as they are. It says nothing about packets from there: how a packet goes is
	// decided by its destination's Subnet. So a packet through the tunnel may bear any
	// address whose longest route leads to the peer that sent it, encapsulated or not,
	// and one that arrives as it is, any of the AddressSet "direct" of its VPC.
	Encapsulate bool
}

// TunnelAddress is this node's own address in a Subnet: the source of what the
// node itself sends to pods.
type TunnelAddress struct {
	VPC    string
	Subnet string
	Addr   netip.Addr
}

// Port is one attachment of a pod on this node.
type Port struct {
	// ID is "CONTAINER/INTERFACE".
	ID  string
	VPC string
	// VNI of the pod's tenant.
	VNI packet.VNI
	// Pod is "namespace/name", for people.
	Pod string
	// Netns is the path of the pod's network namespace, Interface the link's name
	// in it, HostInterface the name of the host's end.
	Netns         string
	Interface     string
	HostInterface string
	MAC           packet.MAC
	// Addresses are at most one a family, IPv4 first.
	Addresses []netip.Addr
	// Ingress and Egress are the IDs of the RuleLists that are asked about what the
	// pod receives and sends. Empty: every flow is allowed.
	Ingress string
	Egress  string
}

// NAT masquerades packets that pods send with the node's own address: those
// whose source lies in Sources and whose destination is outside of the set
// Except. Packets to the node itself are never touched.
type NAT struct {
	VPC  string
	Name string
	// Sources, sorted, disjoint.
	Sources []netip.Prefix
	// Except names an AddressSet of the same VPC.
	Except string
}

// Names of the AddressSets that every plane may rely on.
const (
	// SetSubnets holds all CIDRs of a VPC's Subnets. It exists for each VPC that
	// has a Subnet.
	SetSubnets = "subnets"
	// SetDirect holds the pod addresses of a VPC whose packets may arrive by the
	// underlay as they are: those of peers in the same segment, of whatever Subnet,
	// if some Subnet of the VPC is without encapsulation there. It exists where there
	// are any.
	SetDirect = "direct"
)

const tenantPrefix = "tenant-"

// SetTenant names the AddressSet of an isolated tenant: the addresses that its pods have
// anywhere, as far as blocks tell. It exists where there are any. What has none of these
// addresses is not isolated: a global tenant, a node, the outside.
func SetTenant(vni packet.VNI) string { return tenantPrefix + strconv.FormatUint(uint64(vni), 10) }

// Tenant is the VNI of which the set is SetTenant, if it is.
func (s AddressSet) Tenant() (packet.VNI, bool) {
	digits, is := strings.CutPrefix(s.Name, tenantPrefix)
	n, err := strconv.ParseUint(digits, 10, 32)
	if !is || err != nil || SetTenant(packet.VNI(n)) != s.Name {
		return 0, false
	}
	return packet.VNI(n), true
}

// AddressSet is a named set of addresses of one VPC.
type AddressSet struct {
	VPC  string
	Name string
	// Prefixes, sorted, disjoint, merged.
	Prefixes []netip.Prefix
}

// Ref names an object of an intent: a "Port" by ID, a "Route" by "VPC DST", a
// "Subnet" by name, and so on.
type Ref struct {
	Kind string
	Name string
}

// PortRef is the Ref of a port.
func PortRef(id string) Ref { return Ref{Kind: "Port", Name: id} }

// String is "Port abc/eth0".
func (r Ref) String() string { return r.Kind + " " + r.Name }

// Source is the address that the node itself uses towards a Subnet, of one family:
// its own there, or, for a Subnet behind the tunnel, another of the same VPC, which
// peers take from the tunnel just as well. The zero Addr: none.
func (n Node) Source(s Subnet, is4 bool) netip.Addr {
	var other netip.Addr
	for _, t := range n.Tunnels {
		if t.VPC != s.VPC || t.Addr.Is4() != is4 {
			continue
		}
		if t.Subnet == s.Name {
			return t.Addr
		}
		if s.Overlay && !other.IsValid() {
			other = t.Addr
		}
	}
	return other
}
