package feed

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// annotationStaticUID is the UID by which a runtime names a static pod.
const annotationStaticUID = "kubernetes.io/config.hash"

// Convert makes the world's value of an object. An object of a type that the world
// does not know, or with a name that no datastore accepts, gives nil and a Problem.
func Convert(kind world.Kind, o datastore.Object) (any, []world.Problem) {
	c := converter{kind: kind, key: keyOf(o)}
	if name := o.GetName(); name != c.key.Name {
		c.problem("metadata.name", "InvalidName", fmt.Sprintf("%.80q is not a name that Kubernetes allows: the policy counts, as %s", name, c.key.Name))
	}
	if !validName(c.key) {
		// Somebody wrote past all checks. Names become those of rules and sets, and one
		// that the kernel refuses would keep everything else from it.
		c.problem("metadata.name", "InvalidName", "the name is not one that Kubernetes allows: ignored")
		return nil, c.problems
	}
	value := c.value(o)
	if value == nil {
		c.problem("", "UnknownType", fmt.Sprintf("the datastore returned a %T for a %s", o, kind))
	}
	return value, c.problems
}

func (c *converter) value(o datastore.Object) any {
	switch o := o.(type) {
	case *corev1.Node:
		return c.node(o)
	case *corev1.Namespace:
		return &world.Namespace{Name: o.Name, UID: string(o.UID), Labels: internMap(o.Labels)}
	case *corev1.Pod:
		return c.pod(o)
	case *v1alpha1.VPC:
		return c.vpc(o)
	case *v1alpha1.Subnet:
		return c.subnet(o)
	case *v1alpha1.IPBlock:
		return c.block(o)
	case *v1alpha1.NodeNetwork:
		return c.nodeNetwork(o)
	case *v1alpha1.NetNamespace:
		return &world.NetNamespace{Name: o.Name, VNI: c.vni("spec.vni", o.Spec.VNI), Global: o.Spec.Global}
	case *networkingv1.NetworkPolicy:
		c.unreadable(o, "the pods that it selects are isolated, all of the namespace unless podSelector can be read, and it allows nothing")
		p := networkPolicy(o)
		p.Name = c.key.Name
		return p
	case *policyv1beta1.ClusterNetworkPolicy:
		c.unreadable(o, "everything to and from its subject is denied, and nothing if that cannot be read")
		p := clusterNetworkPolicy(o)
		p.Name = c.key.Name
		return p
	}
	return nil
}

// unreadable tells of an object that only stands for one.
func (c *converter) unreadable(o datastore.Object, means string) {
	if why := datastore.Unreadable(o); why != "" {
		c.problem("", "Unreadable", fmt.Sprintf("%s: %s: delete it and create it anew", why, means))
	}
}

func validName(k world.Key) bool {
	return len(apivalidation.NameIsDNSSubdomain(k.Name, false)) == 0 &&
		(k.Namespace == "" || len(apivalidation.NameIsDNSLabel(k.Namespace, false)) == 0)
}

// keyOf is the key of an object in the world. A policy under a name that cannot be must
// not be left out, for more would be allowed without it: it gets one that can.
func keyOf(o datastore.Object) world.Key {
	k := world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
	switch o.(type) {
	case *networkingv1.NetworkPolicy, *policyv1beta1.ClusterNetworkPolicy:
		if !validName(world.Key{Name: k.Name}) {
			const hashed = 8 // bytes
			sum := sha256.Sum256([]byte(k.Name))
			k.Name = "invalid-name-" + hex.EncodeToString(sum[:hashed])
		}
	}
	return k
}

// converter gathers the problems of one object.
type converter struct {
	kind     world.Kind
	key      world.Key
	problems []world.Problem
}

func (c *converter) problem(field, reason, message string) {
	c.problems = append(c.problems, world.Problem{Kind: c.kind, Key: c.key, Field: field, Reason: reason, Message: message})
}

// invalid reports a field's value, cut to what a person wants to read.
func (c *converter) invalid(field, reason, value, want string) {
	if len(value) > 80 {
		value = strings.ToValidUTF8(value[:80], "") + "…"
	}
	c.problem(field, reason, fmt.Sprintf("%q is not %s: ignored", value, want))
}

func (c *converter) addr(field, s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		c.invalid(field, "InvalidAddress", s, "an IPv4 or IPv6 address")
		return netip.Addr{}, false
	}
	return a, true
}

// prefix reads a CIDR, with or without host bits.
func (c *converter) prefix(field, s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		c.invalid(field, "InvalidCIDR", s, "a CIDR")
		return netip.Prefix{}, false
	}
	return p, true
}

func (c *converter) vni(field string, v int32) packet.VNI {
	if v < 0 || packet.VNI(v) > packet.MaxVNI {
		c.invalid(field, "InvalidVNI", strconv.Itoa(int(v)), "a VNI of 24 bits")
		return 0
	}
	return packet.VNI(v)
}

func (c *converter) node(o *corev1.Node) *world.Node {
	n := &world.Node{Name: o.Name, UID: string(o.UID), Labels: internMap(o.Labels)}
	for i, a := range o.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		addr, ok := c.addr(index("status.addresses", i), a.Address)
		switch {
		case !ok:
		case a.Type == corev1.NodeInternalIP:
			n.Addresses = append(n.Addresses, addr)
		default:
			n.ExternalAddresses = append(n.ExternalAddresses, addr)
		}
	}
	return n
}

func (c *converter) pod(o *corev1.Pod) *world.Pod {
	p := &world.Pod{
		Namespace: intern(o.Namespace), Name: o.Name, UID: string(o.UID), Node: intern(o.Spec.NodeName),
		Labels: internMap(o.Labels), HostNetwork: o.Spec.HostNetwork,
		Finished:   o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed,
		WantSubnet: o.Annotations[v1alpha1.AnnotationSubnet], WantIP: o.Annotations[v1alpha1.AnnotationIP],
		StaticUID: o.Annotations[annotationStaticUID],
	}
	for i, ip := range o.Status.PodIPs {
		if a, ok := c.addr(index("status.podIPs", i), ip.IP); ok {
			p.Addresses = append(p.Addresses, a)
		}
	}
	if len(o.Status.PodIPs) == 0 && o.Status.PodIP != "" {
		if a, ok := c.addr("status.podIP", o.Status.PodIP); ok {
			p.Addresses = []netip.Addr{a}
		}
	}
	for i, ct := range o.Spec.InitContainers { // Sidecars serve for as long as the pod lives.
		if ct.RestartPolicy != nil && *ct.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			c.ports(p, index("spec.initContainers", i), ct.Ports)
		}
	}
	for i, ct := range o.Spec.Containers {
		c.ports(p, index("spec.containers", i), ct.Ports)
	}
	return p
}

func (c *converter) ports(p *world.Pod, field string, ports []corev1.ContainerPort) {
	for i, port := range ports {
		at := index(field+".ports", i)
		protocol := packet.TCP // The API's default.
		if port.Protocol != "" {
			parsed, err := packet.ParseProtocol(string(port.Protocol))
			if err != nil {
				c.invalid(at+".protocol", "InvalidProtocol", string(port.Protocol), "TCP, UDP or SCTP")
				continue
			}
			protocol = parsed
		}
		if port.ContainerPort < 1 || port.ContainerPort > 65535 {
			c.invalid(at+".containerPort", "InvalidPort", strconv.Itoa(int(port.ContainerPort)), "a port")
			continue
		}
		p.Ports = append(p.Ports, world.ContainerPort{Name: intern(port.Name), Protocol: protocol, Port: uint16(port.ContainerPort)})
	}
}

func (c *converter) vpc(o *v1alpha1.VPC) *world.VPC {
	return &world.VPC{
		Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.UTC(), Namespaces: selector(o.Spec.Namespaces),
		Tenant: o.Spec.Isolation == v1alpha1.IsolationTenant, VNI: c.vni("status.vni", o.Status.VNI),
	}
}

func (c *converter) subnet(o *v1alpha1.Subnet) *world.Subnet {
	s := &world.Subnet{
		Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.UTC(), VPC: o.Spec.VPC,
		BlockBits4:  c.blockBits("spec.blockSize.v4", o.Spec.BlockSize.V4, 26, 32),
		BlockBits6:  c.blockBits("spec.blockSize.v6", o.Spec.BlockSize.V6, 122, 128),
		NATOutgoing: o.Spec.NATOutgoing == nil || *o.Spec.NATOutgoing,
		Namespaces:  selector(o.Spec.Namespaces),
	}
	if s.VPC == "" {
		s.VPC = packet.DefaultVPC
	}
	for i, text := range o.Spec.CIDRs {
		if i == v1alpha1.MaxCIDRs {
			c.problem("spec.cidrs", "TooManyCIDRs", fmt.Sprintf("%d CIDRs: the first %d are used", len(o.Spec.CIDRs), v1alpha1.MaxCIDRs))
			break
		}
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() { // The world keeps it, and decide reports it.
			s.BadCIDRs = append(s.BadCIDRs, text)
			continue
		}
		if err := v1alpha1.CheckUsable(p.Masked()); err != nil {
			c.invalid(index("spec.cidrs", i), "InvalidCIDR", text, "a CIDR that pods can have: "+err.Error())
			continue
		}
		s.CIDRs = append(s.CIDRs, p.Masked())
	}
	switch o.Spec.Transport {
	case v1alpha1.TransportOverlay, "":
		s.Transport = world.Overlay
	case v1alpha1.TransportRouted:
		s.Transport = world.Routed
	case v1alpha1.TransportUnderlay:
		s.Transport = world.Underlay
	default: // The one that is used nowhere yet, so that nothing wrong is done.
		c.invalid("spec.transport", "InvalidTransport", string(o.Spec.Transport), "Overlay, Routed or Underlay")
		s.Transport = world.Underlay
	}
	s.Encapsulation = c.encapsulation(o.Spec.Encapsulation, s.Transport)
	for i, text := range o.Spec.Exclude {
		if p, ok := c.exclude(index("spec.exclude", i), text); ok {
			s.Exclude = append(s.Exclude, p)
		}
	}
	for i, text := range o.Spec.Gateway {
		if a, ok := c.addr(index("spec.gateway", i), text); ok {
			s.Gateway = append(s.Gateway, a)
		}
	}
	return s
}

func (c *converter) blockBits(field string, v int32, def, limit int) int {
	if v == 0 {
		return def
	}
	if v < 0 || int(v) > limit {
		c.invalid(field, "InvalidBlockSize", strconv.Itoa(int(v)), "a prefix length")
		return def
	}
	return int(v)
}

func (c *converter) encapsulation(e v1alpha1.Encapsulation, t world.Transport) world.Encapsulation {
	switch e {
	case v1alpha1.EncapsulationVXLAN:
		return world.VXLAN
	case v1alpha1.EncapsulationCrossSubnet:
		return world.CrossSubnet
	case v1alpha1.EncapsulationNone:
		return world.NoEncapsulation
	case "":
	default:
		c.invalid("spec.encapsulation", "InvalidEncapsulation", string(e), "VXLAN, CrossSubnet or None")
	}
	if t == world.Overlay {
		return world.VXLAN
	}
	return world.NoEncapsulation
}

// exclude reads an address or a CIDR.
func (c *converter) exclude(field, s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		c.invalid(field, "InvalidExclude", s, "an address or a CIDR")
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}

func (c *converter) block(o *v1alpha1.IPBlock) *world.Block {
	b := &world.Block{Name: o.Name, UID: string(o.UID), Subnet: intern(o.Spec.Subnet), Node: intern(o.Spec.Node)}
	if p, ok := c.prefix("spec.cidr", o.Spec.CIDR); ok {
		b.CIDR = p.Masked()
	}
	b.Allocations = c.allocations("spec.allocations", o.Spec.Allocations)
	for _, text := range slices.Sorted(maps.Keys(o.Spec.Lent)) {
		if a, ok := c.addr("spec.lent", text); ok {
			b.Lent = append(b.Lent, world.Loan{Addr: a, Node: intern(o.Spec.Lent[text])})
		}
	}
	slices.SortFunc(b.Lent, func(x, y world.Loan) int { return x.Addr.Compare(y.Addr) })
	b.Lent = slices.CompactFunc(b.Lent, func(x, y world.Loan) bool { return x.Addr == y.Addr })
	return b
}

func (c *converter) allocations(field string, m map[string]v1alpha1.AddressOwner) []world.Allocation {
	var out []world.Allocation
	for _, text := range slices.Sorted(maps.Keys(m)) {
		a, ok := c.addr(field, text)
		if !ok {
			continue
		}
		o := m[text]
		out = append(out, world.Allocation{Addr: a, Owner: world.Owner{Namespace: intern(o.Namespace), Name: o.Name, UID: string(o.UID)}})
	}
	slices.SortStableFunc(out, func(x, y world.Allocation) int { return x.Addr.Compare(y.Addr) })
	// Two spellings of one IPv6 address: the first in the order of the texts holds.
	return slices.CompactFunc(out, func(x, y world.Allocation) bool { return x.Addr == y.Addr })
}

func (c *converter) nodeNetwork(o *v1alpha1.NodeNetwork) *world.NodeNetwork {
	n := &world.NodeNetwork{
		Name: o.Name, MTU: int(o.Spec.MTU), Plane: string(o.Spec.Plane), Wanted: o.Status.Wanted,
		Borrowed: c.allocations("status.borrowed", o.Status.Borrowed),
	}
	for i, text := range o.Spec.Addresses {
		if p, ok := c.prefix(index("spec.addresses", i), text); ok {
			n.Addresses = append(n.Addresses, p)
		}
	}
	slices.SortStableFunc(n.Addresses, func(x, y netip.Prefix) int { return x.Addr().BitLen() - y.Addr().BitLen() })
	if len(n.Addresses) > 1 { // At most one a family.
		n.Addresses = slices.CompactFunc(n.Addresses, func(x, y netip.Prefix) bool {
			same := x.Addr().Is4() == y.Addr().Is4()
			if same {
				c.problem("spec.addresses", "TooManyAddresses", fmt.Sprintf("%s is a second address of its family: ignored", y))
			}
			return same
		})
	}
	if o.Spec.VTEPMAC != "" {
		mac, err := packet.ParseMAC(o.Spec.VTEPMAC)
		if err != nil {
			c.invalid("spec.vtepMAC", "InvalidMAC", o.Spec.VTEPMAC, "a hardware address")
		}
		n.VTEPMAC = mac
	}
	if n.MTU < 0 {
		c.invalid("spec.mtu", "InvalidMTU", strconv.Itoa(n.MTU), "an MTU")
		n.MTU = 0
	}
	return n
}

// selector copies a label selector as written.
func selector(s *metav1.LabelSelector) *world.Selector {
	if s == nil {
		return nil
	}
	return &world.Selector{
		MatchLabels: s.MatchLabels,
		MatchExpressions: each(s.MatchExpressions, func(e metav1.LabelSelectorRequirement) world.Requirement {
			return world.Requirement{Key: e.Key, Operator: string(e.Operator), Values: e.Values}
		}),
	}
}

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// intern makes equal strings share memory: fifty thousand pods name the same few
// nodes, namespaces and labels.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}

func internMap(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[intern(k)] = intern(v)
	}
	return out
}
