package world

// NetworkPolicy is a networking.k8s.io/v1 NetworkPolicy as written: no default is
// filled in, no selector, CIDR, port or protocol is read, and a nil list was absent
// where an empty one was written.
type NetworkPolicy struct {
	Namespace string
	Name      string
	UID       string
	// Pods is spec.podSelector, which the API does not tell from an empty one when
	// it is absent.
	Pods Selector
	// Types are spec.policyTypes.
	Types   []string
	Ingress []PolicyRule
	Egress  []PolicyRule
}

// PolicyRule is one rule of a NetworkPolicy, of either direction. Peers are "from"
// of an ingress rule, "to" of an egress rule.
type PolicyRule struct {
	Peers []PolicyPeer
	Ports []PolicyPort
}

// PolicyPeer is a peer of a PolicyRule. Which combinations of fields mean something
// is for the reader to say.
type PolicyPeer struct {
	Pods       *Selector
	Namespaces *Selector
	Range      *PolicyRange
}

// PolicyRange is an ipBlock: a CIDR without some others.
type PolicyRange struct {
	CIDR   string
	Except []string
}

// PolicyPort is a port of a PolicyRule.
type PolicyPort struct {
	Protocol *string
	Port     *PortRef
	EndPort  *int32
}

// PortRef is a port as a person may write it: a number, or the name of a
// container's port. By says which of the two fields counts.
type PortRef struct {
	By     PortRefKind
	Number int32
	Name   string
}

// PortRefKind says how a PortRef was written.
type PortRefKind uint8

// The ways to write a port.
const (
	ByNumber PortRefKind = iota
	ByName
)

// ClusterNetworkPolicy is a policy.networking.k8s.io/v1beta1 ClusterNetworkPolicy
// as written, like NetworkPolicy.
type ClusterNetworkPolicy struct {
	Name     string
	UID      string
	Tier     string
	Priority int32
	Subject  ClusterSubject
	Ingress  []ClusterRule
	Egress   []ClusterRule
}

// NamespacedPods selects pods by their namespace and their own labels. The API does
// not tell an absent selector from an empty one here.
type NamespacedPods struct {
	Namespaces Selector
	Pods       Selector
}

// ClusterSubject says which pods a ClusterNetworkPolicy is about.
type ClusterSubject struct {
	Namespaces *Selector
	Pods       *NamespacedPods
}

// ClusterRule is one rule of a ClusterNetworkPolicy, of either direction.
type ClusterRule struct {
	Name   string
	Action string
	// Peers are "from" of an ingress rule, "to" of an egress rule.
	Peers     []ClusterPeer
	Protocols []ClusterProtocol
}

// ClusterPeer is a peer of a ClusterRule. Those of ingress rules have Namespaces or
// Pods only.
type ClusterPeer struct {
	Namespaces  *Selector
	Pods        *NamespacedPods
	Nodes       *Selector
	Networks    []string
	DomainNames []string
}

// ClusterProtocol is a protocol of a ClusterRule. NamedPort is
// destinationNamedPort, and empty if absent.
type ClusterProtocol struct {
	TCP       *ClusterPorts
	UDP       *ClusterPorts
	SCTP      *ClusterPorts
	NamedPort string
}

// ClusterPorts are the attributes of one transport protocol.
type ClusterPorts struct {
	Destination *ClusterPort
}

// ClusterPort is a port, or a range of ports. Number is zero if absent.
type ClusterPort struct {
	Number int32
	Range  *PortRange
}

// PortRange is a range of ports, both ends included.
type PortRange struct {
	Start int32
	End   int32
}
