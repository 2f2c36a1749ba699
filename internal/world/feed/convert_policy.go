package feed

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Policies are copied as written, whatever is in them: what cannot be read means
// something (an unreadable peer of a Deny is no absent one), and so the readers
// judge it, and report it.

func networkPolicy(o *networkingv1.NetworkPolicy) *world.NetworkPolicy {
	return &world.NetworkPolicy{
		Namespace: intern(o.Namespace), Name: o.Name, UID: string(o.UID), Pods: *selector(&o.Spec.PodSelector),
		Types: each(o.Spec.PolicyTypes, func(t networkingv1.PolicyType) string { return string(t) }),
		Ingress: each(o.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) world.PolicyRule {
			return world.PolicyRule{Peers: each(r.From, policyPeer), Ports: each(r.Ports, policyPort)}
		}),
		Egress: each(o.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) world.PolicyRule {
			return world.PolicyRule{Peers: each(r.To, policyPeer), Ports: each(r.Ports, policyPort)}
		}),
	}
}

func policyPeer(p networkingv1.NetworkPolicyPeer) world.PolicyPeer {
	out := world.PolicyPeer{Pods: selector(p.PodSelector), Namespaces: selector(p.NamespaceSelector)}
	if p.IPBlock != nil {
		out.Range = &world.PolicyRange{CIDR: p.IPBlock.CIDR, Except: p.IPBlock.Except}
	}
	return out
}

func policyPort(p networkingv1.NetworkPolicyPort) world.PolicyPort {
	out := world.PolicyPort{EndPort: p.EndPort}
	if p.Protocol != nil {
		protocol := string(*p.Protocol)
		out.Protocol = &protocol
	}
	if p.Port != nil {
		out.Port = &world.PortRef{By: world.ByNumber, Number: p.Port.IntVal}
		if p.Port.Type != intstr.Int {
			out.Port = &world.PortRef{By: world.ByName, Name: p.Port.StrVal}
		}
	}
	return out
}

func clusterNetworkPolicy(o *policyv1beta1.ClusterNetworkPolicy) *world.ClusterNetworkPolicy {
	return &world.ClusterNetworkPolicy{
		Name: o.Name, UID: string(o.UID), Tier: string(o.Spec.Tier), Priority: o.Spec.Priority,
		Subject: world.ClusterSubject{Namespaces: selector(o.Spec.Subject.Namespaces), Pods: namespacedPods(o.Spec.Subject.Pods)},
		Ingress: each(o.Spec.Ingress, func(r policyv1beta1.ClusterNetworkPolicyIngressRule) world.ClusterRule {
			return world.ClusterRule{
				Name: r.Name, Action: string(r.Action), Protocols: each(r.Protocols, clusterProtocol),
				Peers: each(r.From, func(p policyv1beta1.ClusterNetworkPolicyIngressPeer) world.ClusterPeer {
					return world.ClusterPeer{Namespaces: selector(p.Namespaces), Pods: namespacedPods(p.Pods)}
				}),
			}
		}),
		Egress: each(o.Spec.Egress, func(r policyv1beta1.ClusterNetworkPolicyEgressRule) world.ClusterRule {
			return world.ClusterRule{
				Name: r.Name, Action: string(r.Action), Protocols: each(r.Protocols, clusterProtocol),
				Peers: each(r.To, clusterEgressPeer),
			}
		}),
	}
}

func clusterEgressPeer(p policyv1beta1.ClusterNetworkPolicyEgressPeer) world.ClusterPeer {
	return world.ClusterPeer{
		Namespaces: selector(p.Namespaces), Pods: namespacedPods(p.Pods), Nodes: selector(p.Nodes),
		Networks:    each(p.Networks, func(c policyv1beta1.CIDR) string { return string(c) }),
		DomainNames: each(p.DomainNames, func(d policyv1beta1.DomainName) string { return string(d) }),
	}
}

func namespacedPods(p *policyv1beta1.NamespacedPod) *world.NamespacedPods {
	if p == nil {
		return nil
	}
	return &world.NamespacedPods{Namespaces: *selector(&p.NamespaceSelector), Pods: *selector(&p.PodSelector)}
}

func clusterProtocol(p policyv1beta1.ClusterNetworkPolicyProtocol) world.ClusterProtocol {
	out := world.ClusterProtocol{NamedPort: p.DestinationNamedPort}
	if p.TCP != nil {
		out.TCP = &world.ClusterPorts{Destination: clusterPort(p.TCP.DestinationPort)}
	}
	if p.UDP != nil {
		out.UDP = &world.ClusterPorts{Destination: clusterPort(p.UDP.DestinationPort)}
	}
	if p.SCTP != nil {
		out.SCTP = &world.ClusterPorts{Destination: clusterPort(p.SCTP.DestinationPort)}
	}
	return out
}

func clusterPort(p *policyv1beta1.Port) *world.ClusterPort {
	if p == nil {
		return nil
	}
	out := &world.ClusterPort{Number: p.Number}
	if p.Range != nil {
		out.Range = &world.PortRange{Start: p.Range.Start, End: p.Range.End}
	}
	return out
}

// each converts the elements of a list; nil stays nil.
func each[A, B any](list []A, f func(A) B) []B {
	if list == nil {
		return nil
	}
	out := make([]B, len(list))
	for i, a := range list {
		out[i] = f(a)
	}
	return out
}
