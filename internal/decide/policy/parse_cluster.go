package policy

import (
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

const (
	// closed is what the API asks of an implementation that does not know a part of a
	// rule (v1beta1 ClusterNetworkPolicyIngressPeer, "fail closed").
	closed = "an Accept rule matches nothing then, any other denies everything"
	// closedAll is the same for what concerns all of a policy's rules.
	closedAll = "its Accept rules match nothing, its other rules deny"
)

// readClusterNetworkPolicy reads a ClusterNetworkPolicy.
func readClusterNetworkPolicy(p *world.ClusterNetworkPolicy) *parsed {
	r := &reader{kind: world.KindClusterNetworkPolicy, key: world.Key{Name: p.Name}}
	out := &parsed{kind: r.kind, key: r.key, priority: p.Priority, subject: r.clusterSubject(p.Subject)}
	inTier := selector.Yes
	switch p.Tier {
	case "Admin":
		out.tier = intent.TierAdmin
	case "Baseline":
		out.tier = intent.TierBaseline
	default: // The first tier: nothing before it allows what the policy may deny.
		out.tier, inTier = intent.TierAdmin, selector.Maybe
		r.problem("spec.tier", "UnknownTier", "%.80q is neither Admin nor Baseline: it is asked with Admin, and %s", p.Tier, closedAll)
	}
	out.affects = map[intent.Direction]selector.Answer{intent.Ingress: inTier, intent.Egress: inTier}
	out.rules = map[intent.Direction][]rule{
		intent.Ingress: r.clusterRules(p.Ingress, intent.Ingress, "spec.ingress", ".from"),
		intent.Egress:  r.clusterRules(p.Egress, intent.Egress, "spec.egress", ".to"),
	}
	out.finish(r)
	return out
}

func (r *reader) clusterSubject(w world.ClusterSubject) subject {
	s := subject{broken: (w.Namespaces == nil) == (w.Pods == nil), pods: part{matcher: selector.Everything()}}
	if s.broken {
		r.problem("spec.subject", "InvalidSubject", "exactly one field must be set: every pod is the policy's subject, and %s", closedAll)
	}
	if w.Namespaces != nil {
		s.namespaces = r.selector(w.Namespaces, "spec.subject.namespaces", closedAll)
	}
	if w.Pods != nil {
		namespaces := r.selector(&w.Pods.Namespaces, "spec.subject.pods.namespaceSelector", closedAll)
		pods := r.selector(&w.Pods.Pods, "spec.subject.pods.podSelector", closedAll)
		if !s.broken {
			s.namespaces, s.pods = namespaces, pods
		}
	}
	return s
}

func (r *reader) clusterRules(rules []world.ClusterRule, d intent.Direction, list, peers string) []rule {
	var out []rule
	for i, w := range rules {
		field := at(list, i)
		n := rule{origin: intent.RuleOrigin{Kind: string(r.kind), Name: r.key.Name, Index: i, RuleName: w.Name}, field: field, anyPort: len(w.Protocols) == 0}
		switch w.Action {
		case "Accept":
			n.action = intent.Accept
		case "Pass":
			n.action = intent.Pass
		case "Deny":
			n.action = intent.Deny
		default:
			n.action = intent.Deny
			r.problem(field+".action", "UnknownAction", "%.80q is none of Accept, Deny and Pass: the rule denies", w.Action)
		}
		before := len(r.problems)
		if len(w.Peers) == 0 {
			r.problem(field+peers, "InvalidPeer", "at least one peer must be there: %s", closed)
		}
		for j, p := range w.Peers {
			n.peers = append(n.peers, r.clusterPeer(p, d, at(field+peers, j)))
		}
		for j, p := range w.Protocols {
			r.clusterProtocol(&n, p, at(field+".protocols", j))
		}
		n.unreadable = len(r.problems) > before
		n.ports = mergePorts(n.ports)
		out = append(out, n)
	}
	return out
}

func (r *reader) clusterPeer(p world.ClusterPeer, d intent.Direction, field string) group {
	set := 0
	for _, is := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, len(p.Networks) > 0, len(p.DomainNames) > 0} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		r.problem(field, "InvalidPeer", "exactly one field that is known here must be set, and %d are: %s", set, closed)
	case len(p.DomainNames) > 0:
		r.problem(field+".domainNames", "DomainNamesUnsupported", "peers by domain name cannot be had yet: %s", closed)
	case d == intent.Ingress && (p.Nodes != nil || len(p.Networks) > 0):
		r.problem(field, "InvalidPeer", "peers of ingress rules are namespaces or pods: %s", closed)
	case p.Namespaces != nil:
		s := r.selector(p.Namespaces, field+".namespaces", closed)
		return podGroup(selector.Query{Namespaces: s.matcher, Pods: selector.Everything()})
	case p.Pods != nil:
		namespaces := r.selector(&p.Pods.Namespaces, field+".pods.namespaceSelector", closed)
		pods := r.selector(&p.Pods.Pods, field+".pods.podSelector", closed)
		return podGroup(selector.Query{Namespaces: namespaces.matcher, Pods: pods.matcher})
	case p.Nodes != nil:
		return nodeGroup(r.selector(p.Nodes, field+".nodes", closed).matcher)
	default:
		return r.networks(p.Networks, field+".networks")
	}
	return group{}
}

// networks reads CIDRs, of which the API wants the canonical form.
func (r *reader) networks(texts []string, field string) group {
	var list []netip.Prefix
	for i, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() || p != p.Masked() {
			r.problem(at(field, i), "InvalidCIDR", "%.80q is no CIDR without host bits: %s", text, closed)
			continue
		}
		list = append(list, p)
	}
	return addressGroup(finish(builder(list)))
}

// clusterProtocol adds one protocol to a rule, or notes what is wrong with it.
func (r *reader) clusterProtocol(n *rule, p world.ClusterProtocol, field string) {
	type transport struct {
		protocol packet.Protocol
		field    string
		ports    *world.ClusterPorts
	}
	var set []transport
	for _, t := range []transport{{packet.TCP, ".tcp", p.TCP}, {packet.UDP, ".udp", p.UDP}, {packet.SCTP, ".sctp", p.SCTP}} {
		if t.ports != nil {
			set = append(set, t)
		}
	}
	fields := len(set)
	if p.NamedPort != "" {
		fields++
	}
	if fields != 1 {
		r.problem(field, "InvalidProtocol", "exactly one field that is known here must be set, and %d are: %s", fields, closed)
		return
	}
	if p.NamedPort != "" {
		n.named = append(n.named, named{name: p.NamedPort})
		return
	}
	t := set[0]
	field += t.field + ".destinationPort"
	d := t.ports.Destination
	if d == nil || (d.Number != 0) == (d.Range != nil) {
		r.problem(field, "InvalidPort", "either number or range must be set: %s", closed)
		return
	}
	if d.Range == nil {
		d = &world.ClusterPort{Range: &world.PortRange{Start: d.Number, End: d.Number}}
		field += ".number"
	} else {
		field += ".range"
	}
	ports, ok := readRange(d.Range.Start, d.Range.End)
	if !ok || t.ports.Destination.Range != nil && ports.First == ports.Last {
		r.problem(field, "InvalidPort", "%d to %d are no ports: %s", d.Range.Start, d.Range.End, closed)
		return
	}
	n.ports = append(n.ports, protocolPorts{protocol: t.protocol, ranges: []intent.PortRange{ports}})
}
