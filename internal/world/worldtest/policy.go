package worldtest

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// DrawPolicies adds policies of both kinds to a world, mostly such as the API takes,
// with labels, namespaces, addresses and ports of the worlds that Draw returns, and now
// and then what a user may get wrong.
func DrawPolicies(t *rapid.T, snap *world.Snapshot) *world.Snapshot {
	p := policies{t: t, bad: 12}
	var changes []world.Change
	for i := range rapid.IntRange(0, 5).Draw(t, "network policies") {
		np := p.network(fmt.Sprintf("np%d", i+1))
		changes = append(changes, world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: np.Namespace, Name: np.Name}, Object: np})
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "cluster network policies") {
		cnp := p.cluster(fmt.Sprintf("cnp%d", i+1))
		changes = append(changes, world.Change{Kind: world.KindClusterNetworkPolicy, Key: world.Key{Name: cnp.Name}, Object: cnp})
	}
	return world.NewStore(snap).Apply(changes...)
}

// policies draws policies; one choice in bad is one that the API would refuse.
type policies struct {
	t   *rapid.T
	bad int
}

func (p policies) wrong(label string) bool {
	return rapid.IntRange(1, p.bad).Draw(p.t, "bad "+label) == 1
}
func (p policies) maybe(label string) bool { return rapid.Bool().Draw(p.t, label) }

func pick[T any](p policies, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(p.t, label)
}

// some draws a list: now and then nil, now and then empty.
func some[T any](p policies, label string, most int, element func() T) []T {
	n := rapid.IntRange(-1, most).Draw(p.t, label)
	if n < 0 {
		return nil
	}
	list := make([]T, 0, n)
	for range n {
		list = append(list, element())
	}
	return list
}

func (p policies) selector(key string, values ...string) *world.Selector {
	if p.wrong("selector") {
		return &world.Selector{MatchExpressions: []world.Requirement{{Key: pick(p, "bad key", key, "x/", ""), Operator: pick(p, "bad operator", "in", "In", "")}}}
	}
	value := pick(p, "label value", values...)
	switch pick(p, "selector", "all", "label", "label", "In", "NotIn", "Exists", "DoesNotExist") {
	case "label":
		return &world.Selector{MatchLabels: map[string]string{key: value}}
	case "In":
		return &world.Selector{MatchExpressions: []world.Requirement{{Key: key, Operator: "In", Values: []string{value, values[0]}}}}
	case "NotIn":
		return &world.Selector{MatchExpressions: []world.Requirement{{Key: key, Operator: "NotIn", Values: []string{value}}}}
	case "Exists":
		return &world.Selector{MatchExpressions: []world.Requirement{{Key: key, Operator: "Exists"}}}
	case "DoesNotExist":
		return &world.Selector{MatchExpressions: []world.Requirement{{Key: key, Operator: "DoesNotExist"}}}
	}
	return &world.Selector{}
}

func (p policies) pods() *world.Selector { return p.selector("app", "a", "b", "c") }
func (p policies) namespaces() *world.Selector {
	return p.selector("kubernetes.io/metadata.name", "ns1", "ns2", "ns3", "ns4")
}

func (p policies) namespacedPods() *world.NamespacedPods {
	return &world.NamespacedPods{Namespaces: *p.namespaces(), Pods: *p.pods()}
}

// cidr of the addresses that Draw gives to pods and nodes, and of elsewhere.
func (p policies) cidr() string {
	if p.wrong("CIDR") {
		return pick(p, "bad CIDR", "", "10.0.0.0", "10.128.0.0/33", "010.0.0.0/8", "::ffff:10.128.0.0/104", "10.128.0.1/24")
	}
	return pick(p, "CIDR", "0.0.0.0/0", "::/0", "10.128.0.0/14", "10.128.0.0/24", "10.128.1.0/24", "10.128.0.0/28", "10.128.0.16/28", "10.128.0.2/32",
		"fd10::/16", "fd10::/64", "fd10:0:0:1::/64", "172.30.0.0/16", "172.30.1.10/32", "fd30::/16", "203.0.113.0/24", "2001:db8::/32")
}

func (p policies) port() int32 {
	if p.wrong("port") {
		return pick[int32](p, "bad port", -1, 0, 65536)
	}
	return pick[int32](p, "port", 80, 53, 79, 81, 1, 65535)
}

func (p policies) network(name string) *world.NetworkPolicy {
	np := &world.NetworkPolicy{Namespace: pick(p, "namespace", "ns1", "ns2", "ns3"), Name: name, Pods: *p.pods()}
	np.Types = some(p, "types", 2, func() string {
		if p.wrong("type") {
			return pick(p, "bad type", "", "ingress", "Both")
		}
		return pick(p, "type", "Ingress", "Egress")
	})
	np.Ingress = some(p, "ingress", 2, p.rule)
	np.Egress = some(p, "egress", 2, p.rule)
	return np
}

func (p policies) rule() world.PolicyRule {
	return world.PolicyRule{Peers: some(p, "peers", 2, p.peer), Ports: some(p, "ports", 2, p.policyPort)}
}

func (p policies) peer() world.PolicyPeer {
	var out world.PolicyPeer
	kind := pick(p, "peer", "pods", "namespaces", "both", "range")
	if p.wrong("peer") {
		kind = pick(p, "bad peer", "none", "everything")
	}
	if kind == "pods" || kind == "both" || kind == "everything" {
		out.Pods = p.pods()
	}
	if kind == "namespaces" || kind == "both" {
		out.Namespaces = p.namespaces()
	}
	if kind == "range" || kind == "everything" {
		out.Range = &world.PolicyRange{CIDR: p.cidr(), Except: some(p, "except", 2, p.cidr)}
	}
	return out
}

func (p policies) policyPort() world.PolicyPort {
	var out world.PolicyPort
	if p.maybe("has a protocol") {
		protocol := pick(p, "protocol", "TCP", "UDP", "SCTP")
		if p.wrong("protocol") {
			protocol = pick(p, "bad protocol", "", "tcp", "ICMP")
		}
		out.Protocol = &protocol
	}
	switch pick(p, "port by", "none", "number", "number", "range", "name") {
	case "number":
		out.Port = &world.PortRef{Number: p.port()}
	case "range":
		out.Port = &world.PortRef{Number: p.port()}
		last := p.port()
		out.EndPort = &last
	case "name":
		out.Port = &world.PortRef{By: world.ByName, Name: p.portName()}
	}
	if p.wrong("endPort") {
		last := p.port()
		out.EndPort = &last
	}
	return out
}

func (p policies) portName() string { return pick(p, "port name", "http", "dns", "nothing", "") }

func (p policies) cluster(name string) *world.ClusterNetworkPolicy {
	cnp := &world.ClusterNetworkPolicy{Name: name, Tier: pick(p, "tier", "Admin", "Admin", "Baseline"), Priority: pick[int32](p, "priority", 0, 5, 5, 1000)}
	if p.wrong("tier") {
		cnp.Tier = pick(p, "bad tier", "", "admin", "NetworkPolicy")
	}
	byPods, neither := p.maybe("subject by pods"), p.wrong("subject")
	if byPods && !neither {
		cnp.Subject.Pods = p.namespacedPods()
	} else if !neither {
		cnp.Subject.Namespaces = p.namespaces()
	}
	cnp.Ingress = some(p, "ingress", 3, func() world.ClusterRule { return p.clusterRule(false) })
	cnp.Egress = some(p, "egress", 3, func() world.ClusterRule { return p.clusterRule(true) })
	return cnp
}

func (p policies) clusterRule(egress bool) world.ClusterRule {
	r := world.ClusterRule{Name: pick(p, "rule name", "", "r"), Action: pick(p, "action", "Accept", "Deny", "Pass")}
	if p.wrong("action") {
		r.Action = pick(p, "bad action", "", "Allow")
	}
	n := rapid.IntRange(1, 2).Draw(p.t, "peers")
	if p.wrong("no peers") {
		n = 0
	}
	for range n {
		r.Peers = append(r.Peers, p.clusterPeer(egress))
	}
	r.Protocols = some(p, "protocols", 2, p.protocol)
	return r
}

func (p policies) clusterPeer(egress bool) world.ClusterPeer {
	var out world.ClusterPeer
	kinds := []string{"namespaces", "pods"}
	if egress {
		kinds = append(kinds, "nodes", "networks")
	}
	if p.wrong("peer") {
		kinds = []string{"none", "domain"}
	}
	switch pick(p, "peer", kinds...) {
	case "namespaces":
		out.Namespaces = p.namespaces()
	case "pods":
		out.Pods = p.namespacedPods()
	case "nodes":
		out.Nodes = p.selector("zone", "a", "b")
	case "networks":
		out.Networks = []string{p.cidr(), p.cidr()}
	case "domain":
		out.DomainNames = []string{"*.example.com"}
	}
	return out
}

func (p policies) protocol() world.ClusterProtocol {
	if p.wrong("protocol") {
		return world.ClusterProtocol{}
	}
	if rapid.IntRange(1, 4).Draw(p.t, "named port") == 1 {
		return world.ClusterProtocol{NamedPort: p.portName()}
	}
	ports := &world.ClusterPorts{Destination: &world.ClusterPort{Number: p.port()}}
	if p.maybe("range") {
		ports.Destination = &world.ClusterPort{Range: &world.PortRange{Start: p.port(), End: p.port()}}
	}
	switch pick(p, "transport", "TCP", "UDP", "SCTP") {
	case "TCP":
		return world.ClusterProtocol{TCP: ports}
	case "UDP":
		return world.ClusterProtocol{UDP: ports}
	}
	return world.ClusterProtocol{SCTP: ports}
}
