package world

import (
	"net/netip"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Selector is a label selector as written. A nil *Selector was absent; an empty
// one selects everything. Nothing is validated here.
type Selector struct {
	MatchLabels      map[string]string
	MatchExpressions []Requirement
}

// Requirement is one expression of a Selector.
type Requirement struct {
	Key      string
	Operator string
	Values   []string
}

// Node is a core/v1 Node.
type Node struct {
	Name   string
	UID    string
	Labels map[string]string
	// Addresses are those of type InternalIP.
	Addresses []netip.Addr
	// ExternalAddresses are those of type ExternalIP.
	ExternalAddresses []netip.Addr
}

// Namespace is a core/v1 Namespace.
type Namespace struct {
	Name   string
	UID    string
	Labels map[string]string
}

// ContainerPort is a port that a pod's container declares.
type ContainerPort struct {
	Name     string
	Protocol packet.Protocol
	Port     uint16
}

// Pod is a core/v1 Pod, cut down to what the network needs.
type Pod struct {
	Namespace   string
	Name        string
	UID         string
	Node        string
	Labels      map[string]string
	HostNetwork bool
	// Finished says that the pod has succeeded or failed: it sends nothing any more.
	Finished bool
	// Addresses are status.podIPs; usually the blocks know earlier.
	Addresses []netip.Addr
	Ports     []ContainerPort
	// WantSubnet and WantIP are the annotations fairlead.dev/subnet and
	// fairlead.dev/ip, as written.
	WantSubnet string
	WantIP     string
	// StaticUID is the annotation kubernetes.io/config.hash: the UID by which
	// the runtime names a static pod.
	StaticUID string
}

// VPC is a routing domain.
type VPC struct {
	Name       string
	UID        string
	Created    time.Time
	Namespaces *Selector
	// Tenant is true for isolation Tenant.
	Tenant bool
	// VNI of the VPC itself, zero until the controller has given one.
	VNI packet.VNI
}

// Transport of a Subnet.
type Transport uint8

// The transports.
const (
	Overlay Transport = iota
	Routed
	Underlay
)

// String is the word of the API.
func (t Transport) String() string {
	switch t {
	case Overlay:
		return "Overlay"
	case Routed:
		return "Routed"
	}
	return "Underlay"
}

// Encapsulation of a Subnet's packets.
type Encapsulation uint8

// The encapsulations.
const (
	VXLAN Encapsulation = iota
	CrossSubnet
	NoEncapsulation
)

// String is the word of the API.
func (e Encapsulation) String() string {
	switch e {
	case VXLAN:
		return "VXLAN"
	case CrossSubnet:
		return "CrossSubnet"
	}
	return "None"
}

// Subnet is a range of addresses of a VPC. CIDRs that did not parse are in
// BadCIDRs and have no other effect.
type Subnet struct {
	Name          string
	UID           string
	Created       time.Time
	VPC           string
	CIDRs         []netip.Prefix
	BadCIDRs      []string
	Transport     Transport
	Encapsulation Encapsulation
	BlockBits4    int
	BlockBits6    int
	Exclude       []netip.Prefix
	Gateway       []netip.Addr
	NATOutgoing   bool
	Namespaces    *Selector
}

// Owner says who holds an address: a pod, a node's tunnel ("node/NAME/tunnel"),
// or an attachment without a pod ("container/ID").
type Owner struct {
	Namespace string
	Name      string
	UID       string
}

// Allocation is one address of a block and who holds it.
type Allocation struct {
	Addr  netip.Addr
	Owner Owner
}

// Loan is one address of a block that another node uses.
type Loan struct {
	Addr netip.Addr
	Node string
}

// Block is an IPBlock. Allocations and Lent are sorted by address.
type Block struct {
	Name        string
	UID         string
	Subnet      string
	CIDR        netip.Prefix
	Node        string
	Allocations []Allocation
	Lent        []Loan
}

// NodeNetwork is what a node tells its peers.
type NodeNetwork struct {
	Name string
	// Addresses on the underlay with the prefix length of their segment, at most
	// one a family, IPv4 first.
	Addresses []netip.Prefix
	VTEPMAC   packet.MAC
	MTU       int
	Plane     string
	Wanted    []string
	Borrowed  []Allocation
}

// NetNamespace is the tenant of a namespace.
type NetNamespace struct {
	Name   string
	VNI    packet.VNI
	Global bool
}

// Attachment is one pod interface on this node, as its durable record says.
type Attachment struct {
	// ID is "CONTAINER/INTERFACE".
	ID          string
	ContainerID string
	// Interface is the name inside the pod; HostInterface that of the host's end.
	Interface     string
	HostInterface string
	// Netns is the path of the pod's network namespace in the node's view.
	Netns  string
	Pod    Owner
	VPC    string
	Subnet string
	// Addresses are at most one a family, IPv4 first.
	Addresses []netip.Addr
	MAC       packet.MAC
}

// TunnelAddress is an address of this node itself inside a Subnet.
type TunnelAddress struct {
	Subnet string
	Addr   netip.Addr
}
