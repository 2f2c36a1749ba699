package policy

import (
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// readNetworkPolicy reads a NetworkPolicy. Its rules only allow, so what cannot be
// read of them is left out; the pods that it selects, or may select, are isolated
// whatever its rules say.
func readNetworkPolicy(p *world.NetworkPolicy) *parsed {
	r := &reader{kind: world.KindNetworkPolicy, key: world.Key{Namespace: p.Namespace, Name: p.Name}}
	out := &parsed{
		kind: r.kind, key: r.key, tier: intent.TierNetworkPolicy,
		subject: subject{namespace: p.Namespace, pods: r.selector(&p.Pods, "spec.podSelector", "every pod of the namespace is isolated, and the policy allows nothing")},
		affects: r.affects(p),
	}
	out.rules = map[intent.Direction][]rule{
		intent.Ingress: r.networkRules(p, p.Ingress, "spec.ingress", ".from"),
		intent.Egress:  r.networkRules(p, p.Egress, "spec.egress", ".to"),
	}
	out.finish(r)
	return out
}

// finish takes the problems over, and notes which port names the subject must have.
func (p *parsed) finish(r *reader) {
	p.problems = r.problems
	q, readable := p.subject.query()
	if !readable {
		return
	}
	for _, rule := range p.rules[intent.Ingress] {
		for _, n := range rule.named {
			p.named = append(p.named, portName{field: rule.field, named: n, query: q})
		}
	}
}

// affects: policies without types are about ingress, and about egress if they have
// egress rules (networking/v1 NetworkPolicySpec.policyTypes). A type that is not
// known may be either.
func (r *reader) affects(p *world.NetworkPolicy) map[intent.Direction]selector.Answer {
	if len(p.Types) == 0 {
		return map[intent.Direction]selector.Answer{intent.Ingress: selector.Yes, intent.Egress: selector.Is(len(p.Egress) > 0)}
	}
	a := map[intent.Direction]selector.Answer{}
	for i, t := range p.Types {
		switch t {
		case "Ingress":
			a[intent.Ingress] = selector.Yes
		case "Egress":
			a[intent.Egress] = selector.Yes
		default:
			r.problem(at("spec.policyTypes", i), "UnknownPolicyType", "%.80q is neither Ingress nor Egress: the pods are isolated in both directions, and a direction that is not named otherwise has no rules", t)
			a[intent.Ingress] = max(a[intent.Ingress], selector.Maybe)
			a[intent.Egress] = max(a[intent.Egress], selector.Maybe)
		}
	}
	return a
}

func (r *reader) networkRules(p *world.NetworkPolicy, rules []world.PolicyRule, list, peers string) []rule {
	var out []rule
	for i, w := range rules {
		field := at(list, i)
		n := rule{
			origin: intent.RuleOrigin{Kind: string(r.kind), Namespace: p.Namespace, Name: p.Name, Index: i},
			action: intent.Accept, field: field, anyPeer: len(w.Peers) == 0, anyPort: len(w.Ports) == 0,
		}
		for j, peer := range w.Peers {
			if g, ok := r.networkPeer(p.Namespace, peer, at(field+peers, j)); ok {
				n.peers = append(n.peers, g)
			}
		}
		for j, port := range w.Ports {
			r.networkPort(&n, port, at(field+".ports", j))
		}
		n.ports = mergePorts(n.ports)
		out = append(out, n)
	}
	return out
}

const nobody = "the peer matches nobody"

// networkPeer reads one peer; false if it matches nobody.
func (r *reader) networkPeer(namespace string, p world.PolicyPeer, field string) (group, bool) {
	switch {
	case p.Range != nil && (p.Pods != nil || p.Namespaces != nil):
		r.problem(field, "InvalidPeer", "ipBlock goes with no selector: "+nobody)
		return group{}, false
	case p.Range != nil:
		return r.ipBlock(*p.Range, field+".ipBlock")
	case p.Pods == nil && p.Namespaces == nil:
		r.problem(field, "InvalidPeer", "has no field that is known here: "+nobody)
		return group{}, false
	}
	q := selector.Query{Pods: selector.Everything()}
	broken := false
	if p.Pods != nil {
		s := r.selector(p.Pods, field+".podSelector", nobody)
		q.Pods, broken = s.matcher, s.broken
	}
	if p.Namespaces != nil {
		s := r.selector(p.Namespaces, field+".namespaceSelector", nobody)
		q.Namespaces, broken = s.matcher, broken || s.broken
	} else {
		q.Namespace = namespace
	}
	return podGroup(q), !broken
}

func (r *reader) ipBlock(b world.PolicyRange, field string) (group, bool) {
	cidr, ok := readCIDR(b.CIDR)
	if !ok {
		r.problem(field+".cidr", "InvalidCIDR", "%.80q is no CIDR: %s", b.CIDR, nobody)
		return group{}, false
	}
	var excepts []netip.Prefix
	for i, text := range b.Except {
		e, readable := readCIDR(text)
		if !readable {
			r.problem(at(field+".except", i), "InvalidCIDR", "%.80q is no CIDR: %s", text, nobody)
			ok = false
			continue
		}
		excepts = append(excepts, e)
	}
	if !ok {
		return group{}, false
	}
	return addressGroup(minus([]netip.Prefix{cidr}, excepts)), true
}

// networkPort adds one port to a rule, or notes why it matches none.
func (r *reader) networkPort(n *rule, p world.PolicyPort, field string) {
	const none = "the port matches nothing"
	protocol := packet.TCP // The API's default.
	if p.Protocol != nil {
		known, ok := readTransport(*p.Protocol)
		if !ok {
			r.problem(field+".protocol", "InvalidProtocol", "%.80q is none of TCP, UDP and SCTP: %s", *p.Protocol, none)
			return
		}
		protocol = known
	}
	switch {
	case p.Port == nil && p.EndPort != nil:
		r.problem(field+".endPort", "InvalidPort", "endPort needs a port: %s", none)
	case p.Port == nil:
		n.ports = append(n.ports, protocolPorts{protocol: protocol})
	case p.Port.By == world.ByName && p.EndPort != nil:
		r.problem(field+".endPort", "InvalidPort", "endPort goes with no named port: %s", none)
	case p.Port.By == world.ByName && p.Port.Name == "":
		r.problem(field+".port", "InvalidPort", "is neither a number nor a name: %s", none)
	case p.Port.By == world.ByName:
		n.named = append(n.named, named{name: p.Port.Name, protocol: protocol})
	default:
		last := p.Port.Number
		if p.EndPort != nil {
			last = *p.EndPort
		}
		ports, ok := readRange(p.Port.Number, last)
		if !ok {
			r.problem(field+".port", "InvalidPort", "%d to %d are no ports: %s", p.Port.Number, last, none)
			return
		}
		n.ports = append(n.ports, protocolPorts{protocol: protocol, ranges: []intent.PortRange{ports}})
	}
}
