package oracle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// The actions of v1beta1 ClusterNetworkPolicyRuleAction.
const (
	actionAccept = "Accept"
	actionDeny   = "Deny"
	actionPass   = "Pass"
)

// clusterTier: "Policies with lower priority values have higher precedence"; "a rule
// that appears at the top of the ingress rules would take the highest precedence"
// (v1beta1 ClusterNetworkPolicySpec). Among equal priorities, where "the
// implementation can apply any", the order is that of the names.
func (m *Model) clusterTier(tier string, c connection) ruling {
	for _, p := range m.clusterPolicies(tier) {
		selected := all(isSubject(p, c.subject), inTier(p, tier))
		if selected == no {
			continue
		}
		for i, r := range clusterRules(p, c.direction) {
			matches := all(selected, isRule(r, c))
			action, why := effect(r.Action, matches)
			if action == "" {
				continue
			}
			match := &PolicyMatch{Kind: world.KindClusterNetworkPolicy, Policy: world.Key{Name: p.Name}, Tier: tier, Rule: i, Name: r.Name, Action: action}
			return ruling{action, fmt.Sprintf("%s rule %d%s of %s: %s%s", c.direction, i, quoted(r.Name), p.Name, action, why), match}
		}
	}
	return ruling{}
}

func quoted(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", name)
}

// clusterPolicies of a tier, the first to ask first. A tier that the API does not know
// stands for the first one: nothing could allow before it what it may deny.
func (m *Model) clusterPolicies(tier string) []*world.ClusterNetworkPolicy {
	var list []*world.ClusterNetworkPolicy
	for p := range m.snap.ClusterNetworkPolicies.Values() {
		if inTier(p, tier) != no {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *world.ClusterNetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	return list
}

func inTier(p *world.ClusterNetworkPolicy, tier string) answer {
	switch p.Tier {
	case TierAdmin, TierBaseline:
		return is(p.Tier == tier)
	}
	return min(is(tier == TierAdmin), maybe)
}

// effect of a rule that matches, or may match. "fail closed" means for Accept "treat
// the rule as matching no traffic", for Deny and Pass "treat the rule as a 'Deny all'
// rule" (v1beta1 ClusterNetworkPolicyIngressPeer). An action that the API does not
// know is no Accept.
func effect(action string, matches answer) (does, why string) {
	switch {
	case matches == no, matches == maybe && action == actionAccept:
		return "", ""
	case matches == maybe && action == actionPass:
		return actionDeny, ", since whom the rule passes cannot be said"
	case matches == maybe:
		return actionDeny, ", since whom the rule spares cannot be said"
	case action == actionAccept, action == actionDeny, action == actionPass:
		return action, ""
	}
	return actionDeny, fmt.Sprintf(", since %q is no action", action)
}

// isSubject: "Exactly one field must be set. Note that host-networked pods are not
// included in subject selection" (v1beta1 ClusterNetworkPolicySubject). A subject
// that cannot be read may be any pod.
func isSubject(p *world.ClusterNetworkPolicy, pod party) answer {
	s := p.Subject
	if (s.Namespaces == nil) == (s.Pods == nil) {
		return min(is(pod.selectable()), maybe)
	}
	return all(is(pod.selectable()), podsOf(s.Namespaces, s.Pods, pod))
}

// podsOf reads the two ways to select pods: whole namespaces, or pods in namespaces.
func podsOf(namespaces *world.Selector, pods *world.NamespacedPods, p party) answer {
	if pods == nil {
		return p.inNamespaces(namespaces)
	}
	return all(p.inNamespaces(&pods.Namespaces), p.amongPods(&pods.Pods))
}

func clusterRules(p *world.ClusterNetworkPolicy, d direction) []world.ClusterRule {
	if d == ingress {
		return p.Ingress
	}
	return p.Egress
}

// isRule: "If any element matches the source of incoming traffic then the specified
// action is applied"; protocols that are unspecified "will not be used to match
// traffic". A rule of which a part cannot be read is unreadable as a whole: the API's
// text speaks of the rule, not of the peer, and of all traffic.
func isRule(r world.ClusterRule, c connection) answer {
	if len(ruleFaults(r, c.direction)) > 0 {
		return maybe
	}
	return all(
		anyOf(r.Peers, func(p world.ClusterPeer) answer { return isClusterPeer(p, c) }),
		max(is(len(r.Protocols) == 0), anyOf(r.Protocols, func(p world.ClusterProtocol) answer { return isProtocol(p, c) })),
	)
}

// isClusterPeer reads one peer, of which exactly one field is set.
func isClusterPeer(p world.ClusterPeer, c connection) answer {
	switch {
	case p.Nodes != nil:
		return c.isNode(p.Nodes)
	case len(p.Networks) > 0:
		// "cluster-internal traffic will be checked against the rule as well"; IP and
		// ICMP alike.
		return anyOf(p.Networks, func(text string) answer {
			cidr, ok := parseCIDR(text)
			return is(ok && cidr.Contains(c.peerAddr()))
		})
	}
	return podsOf(p.Namespaces, p.Pods, c.peer)
}

// isNode: "matching on the IPs present in the node.Status.Addresses field". What else
// is an address of the node itself, of its underlay or its tunnel, is it too: a Deny
// that a second address walks around denies nothing.
func (c connection) isNode(s *world.Selector) answer {
	out := no
	for n := range c.peer.m.snap.Nodes.Values() {
		own := c.peer.place == Place{Kind: Node, Node: n.Name}
		if own || slices.Contains(n.Addresses, c.peerAddr()) || slices.Contains(n.ExternalAddresses, c.peerAddr()) {
			out = max(out, choice(s, n.Labels, true))
		}
	}
	if _, known := c.peer.m.snap.Nodes.Get(world.Key{Name: c.peer.place.Node}); c.peer.place.Kind == Node && !known {
		out = max(out, choice(s, nil, false))
	}
	return out
}

// isProtocol reads one protocol, of which exactly one field is set.
func isProtocol(p world.ClusterProtocol, c connection) answer {
	if p.NamedPort != "" {
		// "selects a destination port on a pod based on the ContainerPort name", of
		// whatever protocol that has.
		switch c.packet.Protocol {
		case packet.TCP, packet.UDP, packet.SCTP:
			return c.destination().namesPort(p.NamedPort, c.packet.Protocol, c.packet.DstPort)
		}
		return no
	}
	for protocol, ports := range map[packet.Protocol]*world.ClusterPorts{packet.TCP: p.TCP, packet.UDP: p.UDP, packet.SCTP: p.SCTP} {
		if ports == nil || protocol != c.packet.Protocol {
			continue
		}
		if d := ports.Destination; d.Range != nil {
			return inPorts(d.Range.Start, d.Range.End, c.packet.DstPort)
		}
		return inPorts(ports.Destination.Number, ports.Destination.Number, c.packet.DstPort)
	}
	return no
}

// isNetwork: "cidr(self) == cidr(self).masked()" (v1beta1 CIDR).
func isNetwork(s string) bool {
	p, err := netip.ParsePrefix(s)
	return err == nil && !p.Addr().Is4In6() && p == p.Masked()
}
