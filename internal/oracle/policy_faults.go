package oracle

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// fault is why a part of a policy cannot be read.
type fault struct{ field, reason, message string }

// under prefixes the fields of faults.
func under(field string, faults []fault) []fault {
	out := make([]fault, len(faults))
	for i, f := range faults {
		out[i] = fault{field + f.field, f.reason, f.message}
	}
	return out
}

func at(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

// PolicyProblems says what is wrong with the policies of the world: what cannot be
// read and so never allows anything, and equal priorities, whose order nobody wrote.
// Sorted.
func (m *Model) PolicyProblems() []world.Problem {
	var out []world.Problem
	note := func(kind world.Kind, key world.Key, faults []fault) {
		for _, f := range faults {
			out = append(out, world.Problem{Kind: kind, Key: key, Field: f.field, Reason: f.reason, Message: f.message})
		}
	}
	for p := range m.snap.NetworkPolicies.Values() {
		note(world.KindNetworkPolicy, world.Key{Namespace: p.Namespace, Name: p.Name}, networkPolicyFaults(p))
	}
	first := map[string]string{}
	for p := range m.snap.ClusterNetworkPolicies.Values() { // By name.
		note(world.KindClusterNetworkPolicy, world.Key{Name: p.Name}, clusterPolicyFaults(p))
		rank := fmt.Sprintf("%s %d", p.Tier, p.Priority)
		if before, taken := first[rank]; taken {
			note(world.KindClusterNetworkPolicy, world.Key{Name: p.Name}, []fault{{
				"spec.priority", "EqualPriority", fmt.Sprintf("%s has priority %d in tier %s too: the order is that of the names", before, p.Priority, p.Tier),
			}})
		} else {
			first[rank] = p.Name
		}
	}
	slices.SortFunc(out, world.Problem.Compare)
	return out
}

func networkPolicyFaults(p *world.NetworkPolicy) []fault {
	out := under("spec.podSelector", selectorFaults(&p.Pods, "every pod of the namespace is isolated, and no rule of the policy allows anything"))
	for i, t := range p.Types {
		if isUnknownType(t) {
			out = append(out, fault{at("spec.policyTypes", i), "UnknownPolicyType", fmt.Sprintf("%q is neither Ingress nor Egress: it is taken for both, and allows nothing", t)})
		}
	}
	for list, rules := range map[string][]world.PolicyRule{"spec.ingress": p.Ingress, "spec.egress": p.Egress} {
		peers := map[string]string{"spec.ingress": ".from", "spec.egress": ".to"}[list]
		for i, r := range rules {
			for j, peer := range r.Peers {
				out = append(out, under(at(at(list, i)+peers, j), peerFaults(peer))...)
			}
			for j, port := range r.Ports {
				out = append(out, under(at(at(list, i)+".ports", j), portFaults(port))...)
			}
		}
	}
	return out
}

func peerFaults(p world.PolicyPeer) []fault {
	const nobody = "it matches nobody"
	switch {
	case p.Range == nil && p.Pods == nil && p.Namespaces == nil:
		return []fault{{"", "InvalidPeer", "a peer without any field known here: " + nobody}}
	case p.Range != nil && (p.Pods != nil || p.Namespaces != nil):
		return []fault{{"", "InvalidPeer", "ipBlock goes with no selector: " + nobody}}
	case p.Range == nil:
		return append(under(".podSelector", selectorFaults(p.Pods, nobody)), under(".namespaceSelector", selectorFaults(p.Namespaces, nobody))...)
	}
	if _, ok := parseCIDR(p.Range.CIDR); !ok {
		return []fault{{".ipBlock.cidr", "InvalidCIDR", fmt.Sprintf("%.80q is no CIDR: %s", p.Range.CIDR, nobody)}}
	}
	var out []fault
	for i, text := range p.Range.Except {
		if _, ok := parseCIDR(text); !ok {
			out = append(out, fault{at(".ipBlock.except", i), "InvalidCIDR", fmt.Sprintf("%.80q is no CIDR: %s", text, nobody)})
		}
	}
	return out
}

func portFaults(p world.PolicyPort) []fault {
	invalid := func(field, format string, args ...any) []fault {
		return []fault{{field, "InvalidPort", fmt.Sprintf(format, args...) + ": it matches no port"}}
	}
	if p.Protocol != nil {
		if _, ok := transport(*p.Protocol); !ok {
			return []fault{{".protocol", "InvalidProtocol", fmt.Sprintf("%.80q is none of TCP, UDP and SCTP: it matches no port", *p.Protocol)}}
		}
	}
	switch {
	case p.Port == nil && p.EndPort != nil:
		return invalid(".endPort", "endPort without port")
	case p.Port == nil:
		return nil
	case p.Port.By == world.ByName && p.EndPort != nil:
		return invalid(".endPort", "endPort with a named port")
	case p.Port.By == world.ByName && p.Port.Name == "":
		return invalid(".port", "a port without number or name")
	case p.Port.By == world.ByName:
		return nil
	}
	last := p.Port.Number
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if inPorts(p.Port.Number, last, 1) == maybe {
		return invalid(".port", "%d to %d are no ports", p.Port.Number, last)
	}
	return nil
}

func selectorFaults(s *world.Selector, means string) []fault {
	if s == nil || wellFormed(s) {
		return nil
	}
	return []fault{{"", "InvalidSelector", "no label selector that the API would take: " + means}}
}

func clusterPolicyFaults(p *world.ClusterNetworkPolicy) []fault {
	const means = "its Accept rules match nothing, all others deny"
	var out []fault
	if p.Tier != TierAdmin && p.Tier != TierBaseline {
		out = append(out, fault{"spec.tier", "UnknownTier", fmt.Sprintf("%.80q is neither Admin nor Baseline: it is taken for Admin, %s", p.Tier, means)})
	}
	if (p.Subject.Namespaces == nil) == (p.Subject.Pods == nil) {
		out = append(out, fault{"spec.subject", "InvalidSubject", "exactly one field must be set: every pod is its subject, and " + means})
	}
	out = append(out, under("spec.subject.namespaces", selectorFaults(p.Subject.Namespaces, means))...)
	out = append(out, under("spec.subject.pods", namespacedFaults(p.Subject.Pods, means))...)
	for i, r := range p.Ingress {
		out = append(out, under(at("spec.ingress", i), append(actionFaults(r), ruleFaults(r, ingress)...))...)
	}
	for i, r := range p.Egress {
		out = append(out, under(at("spec.egress", i), append(actionFaults(r), ruleFaults(r, egress)...))...)
	}
	return out
}

func namespacedFaults(p *world.NamespacedPods, means string) []fault {
	if p == nil {
		return nil
	}
	return append(under(".namespaceSelector", selectorFaults(&p.Namespaces, means)), under(".podSelector", selectorFaults(&p.Pods, means))...)
}

func actionFaults(r world.ClusterRule) []fault {
	switch r.Action {
	case actionAccept, actionDeny, actionPass:
		return nil
	}
	return []fault{{".action", "UnknownAction", fmt.Sprintf("%.80q is none of Accept, Deny and Pass: it denies", r.Action)}}
}

// ruleFaults say why a rule is unreadable: peers and protocols of which exactly one
// field must be set and known here. domainNames are not known here: they are
// experimental, and need DNS.
func ruleFaults(r world.ClusterRule, d direction) []fault {
	const means = "an Accept rule matches nothing then, any other denies all"
	list := map[direction]string{ingress: ".from", egress: ".to"}[d]
	var out []fault
	if len(r.Peers) == 0 {
		out = append(out, fault{list, "InvalidPeer", "at least one peer is needed: " + means})
	}
	for i, p := range r.Peers {
		out = append(out, under(at(list, i), clusterPeerFaults(p, d, means))...)
	}
	for i, p := range r.Protocols {
		out = append(out, under(at(".protocols", i), protocolFaults(p, means))...)
	}
	return out
}

func clusterPeerFaults(p world.ClusterPeer, d direction, means string) []fault {
	set := count(p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, len(p.Networks) > 0, len(p.DomainNames) > 0)
	switch {
	case set != 1:
		return []fault{{"", "InvalidPeer", fmt.Sprintf("exactly one field known here must be set, %d are: %s", set, means)}}
	case len(p.DomainNames) > 0:
		return []fault{{".domainNames", "DomainNamesUnsupported", "domain names are not supported: " + means}}
	case d == ingress && p.Namespaces == nil && p.Pods == nil:
		return []fault{{"", "InvalidPeer", "peers of ingress rules are namespaces or pods: " + means}}
	}
	out := append(under(".namespaces", selectorFaults(p.Namespaces, means)), under(".pods", namespacedFaults(p.Pods, means))...)
	out = append(out, under(".nodes", selectorFaults(p.Nodes, means))...)
	for i, text := range p.Networks {
		if !isNetwork(text) {
			out = append(out, fault{at(".networks", i), "InvalidCIDR", fmt.Sprintf("%.80q is no CIDR without host bits: %s", text, means)})
		}
	}
	return out
}

func protocolFaults(p world.ClusterProtocol, means string) []fault {
	if n := count(p.TCP != nil, p.UDP != nil, p.SCTP != nil, p.NamedPort != ""); n != 1 {
		return []fault{{"", "InvalidProtocol", fmt.Sprintf("exactly one field known here must be set, %d are: %s", n, means)}}
	}
	for _, t := range []struct {
		field string
		ports *world.ClusterPorts
	}{{".tcp", p.TCP}, {".udp", p.UDP}, {".sctp", p.SCTP}} {
		if t.ports == nil {
			continue
		}
		field, d := t.field+".destinationPort", t.ports.Destination
		switch {
		case d == nil, (d.Number != 0) == (d.Range != nil):
			return []fault{{field, "InvalidPort", "either number or range must be set: " + means}}
		case d.Range == nil && inPorts(d.Number, d.Number, 1) == maybe:
			return []fault{{field + ".number", "InvalidPort", fmt.Sprintf("%d is no port: %s", d.Number, means)}}
		case d.Range != nil && (inPorts(d.Range.Start, d.Range.End, 1) == maybe || d.Range.Start == d.Range.End):
			return []fault{{field + ".range", "InvalidPort", fmt.Sprintf("%d to %d is no range of ports: %s", d.Range.Start, d.Range.End, means)}}
		}
	}
	return nil
}

func count(set ...bool) int {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	return n
}
