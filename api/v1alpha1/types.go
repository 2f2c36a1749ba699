package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Isolation says which namespaces of a VPC may reach each other.
// +kubebuilder:validation:Enum=None;Tenant
type Isolation string

const (
	// IsolationNone lets every namespace of the VPC reach every other.
	IsolationNone Isolation = "None"
	// IsolationTenant cuts tenants (NetNamespaces with different VNIs) apart.
	IsolationTenant Isolation = "Tenant"
)

// Annotations that Fairlead reads from Pods.
const (
	// AnnotationIP asks for fixed addresses: one IPv4, one IPv6, or both with a comma.
	AnnotationIP = "fairlead.dev/ip"
	// AnnotationSubnet names the Subnet that the pod's addresses come from.
	AnnotationSubnet = "fairlead.dev/subnet"
)

// AnnotationRecall on an IPBlock lists lent addresses, with commas, that whoever
// speaks for the block's owner is about to take back: a borrower must not begin to
// use them.
const AnnotationRecall = "fairlead.dev/recall"

// Condition types of our objects.
const (
	// ConditionReady: the object is valid and in use everywhere it should be.
	ConditionReady = "Ready"
	// ConditionRealised: every node has done what the object asks; the message says
	// which have not, and why.
	ConditionRealised = "Realised"
	// ConditionWarnings: something about the object is wrong, but does not stop it.
	ConditionWarnings = "Warnings"
	// ConditionNearlyFull: 80 % or more of a Subnet's addresses of one family are used.
	ConditionNearlyFull = "NearlyFull"
)

// VPCSpec describes a routing domain.
type VPCSpec struct {
	// Namespaces selects the namespaces that live in this VPC. A namespace is in
	// exactly one: the oldest VPC that selects it, else "default". Absent selects
	// nothing; empty selects every namespace.
	// +optional
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	// Isolation is None (all namespaces reach each other) or Tenant.
	// +kubebuilder:default=None
	// +optional
	Isolation Isolation `json:"isolation,omitempty"`
}

// VPCStatus is what the controller found.
type VPCStatus struct {
	// VNI is the VPC's own identifier on the wire, given out by the controller.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16777215
	// +optional
	VNI int32 `json:"vni,omitempty"`
	// ObservedGeneration is the generation that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VPC is a routing domain: addresses are unique inside one VPC.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=fairlead
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="metadata.name must be a DNS label of at most 63 characters"
// +kubebuilder:printcolumn:name="Isolation",type=string,JSONPath=`.spec.isolation`
// +kubebuilder:printcolumn:name="VNI",type=integer,JSONPath=`.status.vni`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VPC struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              VPCSpec `json:"spec"`
	// +optional
	Status VPCStatus `json:"status,omitempty"`
}

// VPCList is a list of VPCs.
// +kubebuilder:object:root=true
type VPCList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VPC `json:"items"`
}

// Transport says how pod packets of a Subnet cross the network between nodes.
// +kubebuilder:validation:Enum=Overlay;Routed;Underlay
type Transport string

// The transports.
const (
	// TransportOverlay carries packets in VXLAN, always or across L2 segments only.
	TransportOverlay Transport = "Overlay"
	// TransportRouted sends packets as they are, by routes through the peers.
	TransportRouted Transport = "Routed"
	// TransportUnderlay puts pods on a network of the data centre.
	TransportUnderlay Transport = "Underlay"
)

// Encapsulation says when packets of a Subnet are encapsulated.
// +kubebuilder:validation:Enum=VXLAN;CrossSubnet;None
type Encapsulation string

// The encapsulations.
const (
	// EncapsulationVXLAN encapsulates everything that goes to another node.
	EncapsulationVXLAN Encapsulation = "VXLAN"
	// EncapsulationCrossSubnet encapsulates only what goes to a node in another
	// L2 segment.
	EncapsulationCrossSubnet Encapsulation = "CrossSubnet"
	// EncapsulationNone never encapsulates.
	EncapsulationNone Encapsulation = "None"
)

// BlockSize holds the prefix lengths of a Subnet's blocks, in bits.
type BlockSize struct {
	// V4 is the prefix length of IPv4 blocks.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=32
	// +kubebuilder:default=26
	// +optional
	V4 int32 `json:"v4,omitempty"`
	// V6 is the prefix length of IPv6 blocks.
	// +kubebuilder:validation:Minimum=64
	// +kubebuilder:validation:Maximum=128
	// +kubebuilder:default=122
	// +optional
	V6 int32 `json:"v6,omitempty"`
}

// SubnetSpec describes a range of pod addresses.
// +kubebuilder:validation:XValidation:rule="!self.cidrs.all(c, isCIDR(c)) || self.cidrs.all(a, self.cidrs.exists_one(b, cidr(a).containsCIDR(b) || cidr(b).containsCIDR(a)))",message="cidrs must not overlap one another",fieldPath=".cidrs"
// +kubebuilder:validation:XValidation:rule="self.cidrs.all(c, !isCIDR(c) || cidr(c).ip().family() != 4 || cidr(c).prefixLength() <= self.blockSize.v4)",message="blockSize.v4 is larger than an IPv4 CIDR of the Subnet: use a prefix length at least as long as the CIDR's",fieldPath=".blockSize"
// +kubebuilder:validation:XValidation:rule="self.cidrs.all(c, !isCIDR(c) || cidr(c).ip().family() != 6 || cidr(c).prefixLength() <= self.blockSize.v6)",message="blockSize.v6 is larger than an IPv6 CIDR of the Subnet: use a prefix length at least as long as the CIDR's",fieldPath=".blockSize"
// +kubebuilder:validation:XValidation:rule="!has(self.encapsulation) || (self.transport == 'Overlay') == (self.encapsulation != 'None')",message="encapsulation must be VXLAN or CrossSubnet with transport Overlay and None with Routed and Underlay",fieldPath=".encapsulation"
// +kubebuilder:validation:XValidation:rule="!has(self.exclude) || !self.cidrs.all(c, isCIDR(c)) || self.exclude.all(e, self.cidrs.exists(c, isIP(e) ? cidr(c).containsIP(e) : isCIDR(e) && cidr(c).containsCIDR(e)))",message="every exclude must lie inside one of the cidrs",fieldPath=".exclude"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || size(self.gateway) == 0 || self.transport == 'Underlay'",message="gateway is for transport Underlay only",fieldPath=".gateway"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !self.cidrs.all(c, isCIDR(c)) || self.gateway.all(g, isIP(g) && self.cidrs.exists(c, cidr(c).containsIP(g)))",message="every gateway must lie inside one of the cidrs",fieldPath=".gateway"
type SubnetSpec struct {
	// VPC that the Subnet belongs to. Immutable.
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="vpc is immutable: make a new Subnet"
	// +optional
	VPC string `json:"vpc,omitempty"`
	// CIDRs of IPv4, IPv6 or both. More may be added; none may be changed or removed.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self) && string(cidr(self).masked()) == self",message="must be a CIDR in canonical form without host bits, such as 10.128.0.0/14 or fd00:10::/64"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || !['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/3', '::/80', 'fe80::/10', 'ff00::/8'].exists(r, cidr(r).containsCIDR(self) || cidr(self).containsCIDR(r))",message="must not touch the unspecified, loopback, IPv4-mapped, link-local, multicast and reserved ranges"
	// +kubebuilder:validation:XValidation:rule="oldSelf.all(c, c in self)",message="existing cidrs may not be changed or removed: add new ones, or make a new Subnet"
	CIDRs []string `json:"cidrs"`
	// Transport is Overlay, Routed or Underlay. Immutable.
	// +kubebuilder:default=Overlay
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="transport is immutable: make a new Subnet"
	// +optional
	Transport Transport `json:"transport,omitempty"`
	// Encapsulation is VXLAN or CrossSubnet with transport Overlay, None with the
	// others. Absent means VXLAN with Overlay and None with the others.
	// +optional
	Encapsulation Encapsulation `json:"encapsulation,omitempty"`
	// BlockSize of the blocks that nodes claim. Immutable.
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="blockSize is immutable: make a new Subnet"
	// +optional
	BlockSize BlockSize `json:"blockSize,omitempty"`
	// Exclude lists addresses and CIDRs that are never given to anybody.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) ? string(ip(self)) == self : isCIDR(self) && string(cidr(self).masked()) == self",message="must be an address or a CIDR in canonical form"
	// +optional
	Exclude []string `json:"exclude,omitempty"`
	// Gateway is the router of an Underlay Subnet, one address a family; with
	// other transports the pods' gateway is constant and this must be empty.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=39
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) && string(ip(self)) == self",message="must be an address in canonical form"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || !self.all(g, isIP(g)) || ip(self[0]).family() != ip(self[1]).family()",message="at most one gateway a family"
	// +optional
	Gateway []string `json:"gateway,omitempty"`
	// NATOutgoing masquerades what leaves the VPC's Subnets with the node's
	// address. Default true.
	// +kubebuilder:default=true
	// +optional
	NATOutgoing *bool `json:"natOutgoing,omitempty"`
	// Namespaces selects those of the VPC's namespaces whose pods get addresses
	// from here. Absent or empty selects all of them.
	// +optional
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
}

// SubnetStatus is what the controller found.
type SubnetStatus struct {
	// ObservedGeneration is the generation that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Blocks is the number of IPBlocks that nodes own.
	// +optional
	Blocks int32 `json:"blocks,omitempty"`
	// Capacity is the number of addresses that can be given to pods and tunnels,
	// capped at the largest int64.
	// +optional
	Capacity int64 `json:"capacity,omitempty"`
	// Allocated is the number of addresses that are given.
	// +optional
	Allocated int64 `json:"allocated,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Subnet is a range of addresses of a VPC, with its transport.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=sn,categories=fairlead
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="metadata.name must be a DNS label of at most 63 characters"
// +kubebuilder:printcolumn:name="VPC",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="CIDRs",type=string,JSONPath=`.spec.cidrs`
// +kubebuilder:printcolumn:name="Transport",type=string,JSONPath=`.spec.transport`
// +kubebuilder:printcolumn:name="Encap",type=string,JSONPath=`.spec.encapsulation`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Subnet struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SubnetSpec `json:"spec"`
	// +optional
	Status SubnetStatus `json:"status,omitempty"`
}

// SubnetList is a list of Subnets.
// +kubebuilder:object:root=true
type SubnetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Subnet `json:"items"`
}

// AddressOwner says who holds an address: a pod, or a node's tunnel.
type AddressOwner struct {
	// Namespace, Name and UID of the pod; empty for a tunnel address and for an
	// attachment without a pod (Name is then "container/ID").
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name of the pod, or "node/NAME/tunnel".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Name string `json:"name"`
	// UID of the pod.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// IPBlockSpec is a slice of a Subnet that one node hands out from.
type IPBlockSpec struct {
	// Subnet that the block was cut from. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="subnet is immutable"
	Subnet string `json:"subnet"`
	// CIDR of the block. Immutable.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && string(cidr(self).masked()) == self",message="must be a CIDR in canonical form without host bits"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || !['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/3', '::/80', 'fe80::/10', 'ff00::/8'].exists(r, cidr(r).containsCIDR(self) || cidr(self).containsCIDR(r))",message="must not touch the unspecified, loopback, IPv4-mapped, link-local, multicast and reserved ranges"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cidr is immutable"
	CIDR string `json:"cidr"`
	// Node that owns the block. Only its agent allocates from it. Immutable: a
	// block changes hands by being deleted and claimed again.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="node is immutable"
	Node string `json:"node"`
	// Allocations maps address to owner, published by the owning node's agent.
	// +kubebuilder:validation:MaxProperties=8192
	// +optional
	Allocations map[string]AddressOwner `json:"allocations,omitempty"`
	// Lent maps address to the node that borrowed it because the Subnet has no
	// block left. A lent address is not allocated by the owner.
	// +kubebuilder:validation:MaxProperties=8192
	// +optional
	Lent map[string]string `json:"lent,omitempty"`
}

// IPBlock is named SUBNET.HEXADDRESS-BITS (see BlockName).
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ipb,categories=fairlead
// +kubebuilder:validation:XValidation:rule="self.metadata.name.startsWith(self.spec.subnet + '.') && self.metadata.name.endsWith('-' + self.spec.cidr.substring(self.spec.cidr.indexOf('/') + 1))",message="metadata.name must be SUBNET.HEXADDRESS-BITS of spec.subnet and spec.cidr"
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPBlock struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              IPBlockSpec `json:"spec"`
}

// IPBlockList is a list of IPBlocks.
// +kubebuilder:object:root=true
type IPBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPBlock `json:"items"`
}

// Plane names a data plane.
// +kubebuilder:validation:Enum=linux;ovs
type Plane string

// The data planes.
const (
	PlaneLinux Plane = "linux"
	PlaneOVS   Plane = "ovs"
)

// NodeNetworkSpec is what a node tells its peers about itself. The node's agent
// writes it.
type NodeNetworkSpec struct {
	// Addresses of the node on the underlay as CIDRs ("172.30.0.11/24"), at most
	// one a family: the outer addresses of its tunnel. Two nodes whose CIDRs
	// contain each other's address share an L2 segment.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="must be an address with its prefix length, such as 172.30.0.11/24"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || !self.all(a, isCIDR(a)) || cidr(self[0]).ip().family() != cidr(self[1]).ip().family()",message="at most one address a family"
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// VTEPMAC is the hardware address of the node's tunnel device, in lower case.
	// +kubebuilder:validation:Pattern=`^([0-9a-f][02468ace](:[0-9a-f]{2}){5})?$`
	// +kubebuilder:validation:MaxLength=17
	// +optional
	VTEPMAC string `json:"vtepMAC,omitempty"`
	// MTU of the node's underlay interface, in bytes.
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65535
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// Plane that the node runs.
	// +optional
	Plane Plane `json:"plane,omitempty"`
}

// ObjectProblem is something wrong with one object, as one node sees it.
type ObjectProblem struct {
	// Kind, Namespace and Name of the object.
	Kind string `json:"kind"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Field is the path inside the object, where it is known.
	// +optional
	Field   string `json:"field,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// NodeNetworkStatus is how the node's network is.
type NodeNetworkStatus struct {
	// PodMTU is the MTU that the node gives to pods, in bytes.
	// +optional
	PodMTU int32 `json:"podMTU,omitempty"`
	// Wanted lists Subnets that the node needs an address from and that have no
	// block left: owners with room lend single addresses.
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Wanted []string `json:"wanted,omitempty"`
	// Borrowed maps an address that another node lent to its owner here.
	// +kubebuilder:validation:MaxProperties=8192
	// +optional
	Borrowed map[string]AddressOwner `json:"borrowed,omitempty"`
	// Problems, at most 50, sorted; ProblemCount counts all.
	// +kubebuilder:validation:MaxItems=50
	// +optional
	Problems []ObjectProblem `json:"problems,omitempty"`
	// ProblemCount is the number of problems, listed or not.
	// +optional
	ProblemCount int32 `json:"problemCount,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeNetwork carries the name of its Node.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nn,categories=fairlead
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Plane",type=string,JSONPath=`.spec.plane`
// +kubebuilder:printcolumn:name="Pod MTU",type=integer,JSONPath=`.status.podMTU`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Problems",type=integer,JSONPath=`.status.problemCount`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeNetwork struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec NodeNetworkSpec `json:"spec,omitempty"`
	// +optional
	Status NodeNetworkStatus `json:"status,omitempty"`
}

// NodeNetworkList is a list of NodeNetworks.
// +kubebuilder:object:root=true
type NodeNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeNetwork `json:"items"`
}

// NetNamespaceSpec gives a namespace its tenant.
type NetNamespaceSpec struct {
	// VNI of the tenant. Namespaces with the same VNI are one tenant.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777215
	VNI int32 `json:"vni"`
	// Global tenants reach and are reached by every tenant of the VPC.
	// +optional
	Global bool `json:"global,omitempty"`
}

// NetNamespace carries the name of its Namespace.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=netns,categories=fairlead
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="metadata.name must be the name of a Namespace: a DNS label of at most 63 characters"
// +kubebuilder:printcolumn:name="VNI",type=integer,JSONPath=`.spec.vni`
// +kubebuilder:printcolumn:name="Global",type=boolean,JSONPath=`.spec.global`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NetNamespace struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              NetNamespaceSpec `json:"spec"`
}

// NetNamespaceList is a list of NetNamespaces.
// +kubebuilder:object:root=true
type NetNamespaceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NetNamespace `json:"items"`
}
