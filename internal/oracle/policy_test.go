package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// policyWorld: nodes n1 and n2; the namespaces web, prod and dev, each labelled with
// its own name; in each the pods a (app=a) on n1 and b (app=b, role=x) on n2, which
// listen on http (80/TCP), 8080/TCP, dns (53/UDP) and 80/SCTP; node ports alike.
func policyWorld(policies ...any) *world.Snapshot {
	var changes []world.Change
	set := func(kind world.Kind, key world.Key, object any) {
		changes = append(changes, world.Change{Kind: kind, Key: key, Object: object})
	}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	set(world.KindVPC, world.Key{Name: "default"}, &world.VPC{Name: "default", VNI: 1})
	set(world.KindSubnet, world.Key{Name: "s"}, &world.Subnet{Name: "s", VPC: "default", NATOutgoing: true, CIDRs: []netip.Prefix{prefix("10.128.0.0/16")}})
	blocks := map[string]*world.Block{}
	for i, name := range []string{"n1", "n2"} {
		set(world.KindNode, world.Key{Name: name}, &world.Node{
			Name: name, Labels: map[string]string{"name": name}, Addresses: []netip.Addr{addr(fmt.Sprintf("172.30.0.1%d", i+1))},
			ExternalAddresses: []netip.Addr{addr(fmt.Sprintf("198.51.100.1%d", i+1))},
		})
		set(world.KindNodeNetwork, world.Key{Name: name}, &world.NodeNetwork{Name: name, Addresses: []netip.Prefix{prefix(fmt.Sprintf("172.30.0.1%d/24", i+1))}})
		blocks[name] = &world.Block{Name: name, Subnet: "s", Node: name, CIDR: prefix(fmt.Sprintf("10.128.%d.0/24", i+1)), Allocations: []world.Allocation{
			{Addr: addr(fmt.Sprintf("10.128.%d.1", i+1)), Owner: world.Owner{Name: "node/" + name + "/tunnel"}},
			{Addr: addr(fmt.Sprintf("10.128.%d.99", i+1)), Owner: world.Owner{Namespace: "web", Name: "unknown", UID: "unknown"}},
		}}
	}
	ports := []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: 80}, {Protocol: packet.TCP, Port: 8080}, {Name: "dns", Protocol: packet.UDP, Port: 53}, {Name: "http", Protocol: packet.SCTP, Port: 81}}
	for i, ns := range []string{"web", "prod", "dev"} {
		set(world.KindNamespace, world.Key{Name: ns}, &world.Namespace{Name: ns, Labels: map[string]string{"name": ns}})
		for j, p := range []world.Pod{{Name: "a", Node: "n1", Labels: map[string]string{"app": "a"}}, {Name: "b", Node: "n2", Labels: map[string]string{"app": "b", "role": "x"}}} {
			p.Namespace, p.UID, p.Ports = ns, ns+p.Name, ports
			blocks[p.Node].Allocations = append(blocks[p.Node].Allocations, world.Allocation{
				Addr: addr(fmt.Sprintf("10.128.%d.%d", j+1, 10+i)), Owner: world.Owner{Namespace: ns, Name: p.Name, UID: p.UID},
			})
			set(world.KindPod, world.Key{Namespace: ns, Name: p.Name}, &p)
		}
	}
	set(world.KindPod, world.Key{Namespace: "web", Name: "host"}, &world.Pod{Namespace: "web", Name: "host", Node: "n1", HostNetwork: true, Labels: map[string]string{"app": "a"}, Ports: ports})
	for name, b := range blocks {
		set(world.KindBlock, world.Key{Name: name}, b)
	}
	for _, p := range policies {
		switch p := p.(type) {
		case *world.NetworkPolicy:
			set(world.KindNetworkPolicy, world.Key{Namespace: p.Namespace, Name: p.Name}, p)
		case *world.ClusterNetworkPolicy:
			set(world.KindClusterNetworkPolicy, world.Key{Name: p.Name}, p)
		}
	}
	return world.NewStore(nil).Apply(changes...)
}

// send judges "FROM TO:PORT/PROTO", where an end is "web/a", "n1", "n1/tunnel",
// "web/unknown@n1", or an address outside.
func send(t *testing.T, m *Model, flows *Flows, text string) Verdict {
	t.Helper()
	from, to, _ := strings.Cut(text, " ")
	to, proto, _ := strings.Cut(to, "/TCP")
	protocol := packet.TCP
	for _, p := range []packet.Protocol{packet.UDP, packet.SCTP, packet.ICMP} {
		if before, ok := strings.CutSuffix(to, "/"+p.String()); ok {
			to, protocol = before, p
		}
	}
	host, port, _ := strings.Cut(to, ":")
	var n uint16
	if _, err := fmt.Sscan(port, &n); err != nil || proto != "" {
		t.Fatalf("%q is no packet: %v", text, err)
	}
	src, place := endOf(t, m, from)
	dst, _ := endOf(t, m, host)
	p := packet.Packet{Src: src, Dst: dst, Protocol: protocol, SrcPort: 49152, DstPort: n, SYN: protocol == packet.TCP}
	if protocol == packet.ICMP {
		p.SrcPort = 0
	}
	return m.Judge(flows, Probe{From: place, Packet: p})
}

func endOf(t *testing.T, m *Model, name string) (netip.Addr, Place) {
	t.Helper()
	if a, err := netip.ParseAddr(name); err == nil {
		return a, Place{Kind: Outside, Node: "n1"}
	}
	name, node, at := strings.Cut(name, "@")
	if at {
		return netip.MustParseAddr(map[string]string{"n1": "10.128.1.99", "n2": "10.128.2.99"}[node]), Place{Kind: Pod, Node: node, Pod: world.Key{Namespace: "web", Name: "unknown"}}
	}
	switch name {
	case "n1", "n2":
		return m.underlay[name][0].Addr(), Place{Kind: Node, Node: name}
	case "n1/tunnel":
		return netip.MustParseAddr("10.128.1.1"), Place{Kind: Node, Node: "n1"}
	}
	ns, pod, _ := strings.Cut(name, "/")
	a, place, ok := m.addressOf(world.Key{Namespace: ns, Name: pod}, IPv4)
	if !ok {
		t.Fatalf("nobody is called %q", name)
	}
	return a, place
}

// Words for the tables.
var (
	everything = world.Selector{}
	nonsense   = world.Selector{MatchExpressions: []world.Requirement{{Key: "app", Operator: "in", Values: []string{"a"}}}}
)

func label(key, value string) *world.Selector {
	return &world.Selector{MatchLabels: map[string]string{key: value}}
}

func rule(peers []world.PolicyPeer, ports ...world.PolicyPort) world.PolicyRule {
	return world.PolicyRule{Peers: peers, Ports: ports}
}

func peers(p ...world.PolicyPeer) []world.PolicyPeer { return p }

func number(n int32) world.PolicyPort { return world.PolicyPort{Port: &world.PortRef{Number: n}} }
func named(s string) world.PolicyPort {
	return world.PolicyPort{Port: &world.PortRef{By: world.ByName, Name: s}}
}

func with[T any](v T, change func(*T)) T { change(&v); return v }

func ptr[T any](v T) *T { return &v }

// in makes a NetworkPolicy "p" of the namespace web.
func in(pods world.Selector, types []string, ingress, egress []world.PolicyRule) *world.NetworkPolicy {
	return &world.NetworkPolicy{Namespace: "web", Name: "p", Pods: pods, Types: types, Ingress: ingress, Egress: egress}
}

type policyCase struct {
	name     string
	policies []any
	allowed  []string
	denied   []string
}

func (c policyCase) run(t *testing.T) {
	t.Run(c.name, func(t *testing.T) {
		m := Read(policyWorld(c.policies...))
		for _, p := range append(slices.Clone(c.allowed), c.denied...) {
			v := send(t, m, nil, p)
			if want := slices.Contains(c.allowed, p); v.Allowed != want {
				t.Errorf("%s: allowed %v, want %v: %v", p, v.Allowed, want, v.Stages)
			}
			if last := v.Stages[len(v.Stages)-1]; !v.Allowed && last.Name != "egress" && last.Name != "ingress" {
				t.Errorf("%s is cut by %s", p, last)
			}
		}
	})
}

// TestRecipes are the published recipes of Kubernetes NetworkPolicy
// (github.com/ahmetb/kubernetes-network-policy-recipes), by their numbers.
func TestRecipes(t *testing.T) {
	app, ingressOnly, egressOnly := *label("app", "a"), []string{"Ingress"}, []string{"Egress"}
	open := []string{"dev/a web/b:80/TCP", "web/b prod/a:80/TCP", "web/b 203.0.113.1:80/TCP"}
	inside := world.PolicyPeer{Range: &world.PolicyRange{CIDR: "10.128.0.0/16"}}
	dns := world.PolicyPort{Protocol: ptr("UDP"), Port: &world.PortRef{Number: 53}}
	for _, c := range []policyCase{
		{"00 no policy", nil, append([]string{"web/b web/a:80/TCP", "203.0.113.1 web/a:80/TCP"}, open...), nil},
		{"01 deny all traffic to an application", []any{in(app, ingressOnly, []world.PolicyRule{}, nil)}, append([]string{"web/a dev/a:80/TCP", "web/host web/a:80/TCP"}, open...), []string{"web/b web/a:80/TCP", "dev/a web/a:80/TCP", "203.0.113.1 web/a:80/TCP", "n2 web/a:80/TCP", "web/b web/a:0/ICMP"}},
		{"02 limit traffic to an application", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Pods: label("app", "b")}))}, nil)}, append([]string{"web/b web/a:80/TCP", "web/b web/a:0/ICMP"}, open...), []string{"dev/b web/a:80/TCP"}},
		{"02a allow all traffic to an application", []any{in(app, ingressOnly, nil, nil), with(*in(app, nil, []world.PolicyRule{{}}, nil), func(p *world.NetworkPolicy) { p.Name = "q" })}, append([]string{"dev/b web/a:80/TCP", "203.0.113.1 web/a:80/TCP"}, open...), nil},
		{"03 deny all non-whitelisted traffic to a namespace", []any{in(everything, ingressOnly, nil, nil)}, []string{"web/a dev/a:80/TCP"}, []string{"web/b web/a:80/TCP", "dev/a web/b:80/TCP"}},
		{"04 deny traffic from other namespaces", []any{in(everything, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Pods: &everything}))}, nil)}, []string{"web/b web/a:80/TCP"}, []string{"dev/b web/a:80/TCP", "203.0.113.1 web/a:80/TCP"}},
		{"05 allow traffic from all namespaces", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Namespaces: &everything}))}, nil)}, []string{"web/b web/a:80/TCP", "dev/b web/a:80/TCP"}, []string{"203.0.113.1 web/a:80/TCP"}},
		{"06 allow traffic from a namespace", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Namespaces: label("name", "prod")}))}, nil)}, []string{"prod/b web/a:80/TCP"}, []string{"dev/b web/a:80/TCP", "web/b web/a:80/TCP"}},
		{"07 allow traffic from some pods in another namespace", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Namespaces: label("name", "prod"), Pods: label("role", "x")}))}, nil)}, []string{"prod/b web/a:80/TCP"}, []string{"prod/a web/a:80/TCP", "dev/b web/a:80/TCP", "web/b web/a:80/TCP"}},
		{"07a the two as two peers", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Namespaces: label("name", "prod")}, world.PolicyPeer{Pods: label("role", "x")}))}, nil)}, []string{"prod/b web/a:80/TCP", "prod/a web/a:80/TCP", "web/b web/a:80/TCP"}, []string{"dev/b web/a:80/TCP"}},
		{"08 allow external traffic", []any{in(everything, ingressOnly, nil, nil), with(*in(app, nil, []world.PolicyRule{rule([]world.PolicyPeer{})}, nil), func(p *world.NetworkPolicy) { p.Name = "q" })}, []string{"203.0.113.1 web/a:80/TCP"}, []string{"203.0.113.1 web/b:80/TCP"}},
		{"09 allow traffic only to a port of an application", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Pods: label("app", "b")}), number(8080))}, nil)}, []string{"web/b web/a:8080/TCP"}, []string{"web/b web/a:80/TCP", "web/b web/a:8080/UDP", "web/b web/a:8080/SCTP", "web/b web/a:0/ICMP"}},
		{"10 allow traffic with multiple selectors", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Pods: label("app", "c")}, world.PolicyPeer{Pods: label("role", "x")}))}, nil)}, []string{"web/b web/a:80/TCP"}, []string{"dev/b web/a:80/TCP"}},
		{"11 deny egress traffic from an application", []any{in(app, egressOnly, nil, []world.PolicyRule{})}, []string{"dev/b web/a:80/TCP", "web/b web/a:80/TCP"}, []string{"web/a web/b:80/TCP", "web/a 203.0.113.1:80/TCP", "web/a n1:22/TCP", "web/a n2:22/TCP", "web/a web/b:53/UDP"}},
		{"11a … but DNS", []any{in(app, egressOnly, nil, []world.PolicyRule{rule(nil, dns, with(dns, func(p *world.PolicyPort) { p.Protocol = ptr("TCP") }))})}, []string{"web/a dev/b:53/UDP", "web/a 203.0.113.1:53/TCP"}, []string{"web/a web/b:80/TCP"}},
		{"12 deny all non-whitelisted egress traffic of a namespace", []any{in(everything, egressOnly, nil, nil)}, []string{"dev/a web/a:80/TCP"}, []string{"web/a web/b:80/TCP", "web/b 203.0.113.1:80/TCP"}},
		{"14 deny external egress traffic", []any{in(app, egressOnly, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Namespaces: &everything}))})}, []string{"web/a dev/b:80/TCP"}, []string{"web/a 203.0.113.1:80/TCP", "web/a n1:22/TCP"}},
		{"14a the same by addresses", []any{in(app, egressOnly, nil, []world.PolicyRule{rule(peers(inside))})}, []string{"web/a dev/b:80/TCP"}, []string{"web/a 203.0.113.1:80/TCP"}},
	} {
		for i, p := range c.policies { // Some are values.
			if v, ok := p.(world.NetworkPolicy); ok {
				c.policies[i] = &v
			}
		}
		c.run(t)
	}
}

// TestNetworkPolicyRules are the rules that the recipes leave out.
func TestNetworkPolicyRules(t *testing.T) {
	app := *label("app", "a")
	to := func(ports ...world.PolicyPort) *world.NetworkPolicy {
		return in(app, nil, []world.PolicyRule{rule(nil, ports...)}, nil)
	}
	block := func(cidr string, except ...string) *world.NetworkPolicy {
		return in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Range: &world.PolicyRange{CIDR: cidr, Except: except}}))}, nil)
	}
	from := func(p world.PolicyPeer) *world.NetworkPolicy {
		return in(app, nil, []world.PolicyRule{rule(peers(p))}, nil)
	}
	for _, c := range []policyCase{
		{"types: none written, ingress and egress rules", []any{in(app, nil, nil, []world.PolicyRule{rule(nil, number(80))})}, []string{"web/a dev/a:80/TCP"}, []string{"web/b web/a:80/TCP", "web/a dev/a:81/TCP"}},
		{"types: none written, an empty list of egress rules", []any{in(app, []string{}, nil, []world.PolicyRule{})}, []string{"web/a dev/a:80/TCP"}, []string{"web/b web/a:80/TCP"}},
		{"types: Egress, ingress rules do nothing", []any{in(app, []string{"Egress"}, []world.PolicyRule{}, nil)}, []string{"web/b web/a:80/TCP"}, []string{"web/a dev/a:80/TCP"}},
		{"types: Ingress, egress rules do nothing", []any{in(app, []string{"Ingress"}, nil, []world.PolicyRule{{}})}, []string{"web/a dev/a:80/TCP"}, []string{"web/b web/a:80/TCP"}},
		{"both ends are judged", []any{in(everything, []string{"Ingress", "Egress"}, nil, []world.PolicyRule{{}})}, []string{"web/a dev/a:80/TCP"}, []string{"web/a web/b:80/TCP"}},
		{"a port range", []any{to(with(number(80), func(p *world.PolicyPort) { p.EndPort = ptr[int32](82) }))}, []string{"web/b web/a:80/TCP", "web/b web/a:82/TCP"}, []string{"web/b web/a:79/TCP", "web/b web/a:83/TCP", "web/b web/a:81/SCTP"}},
		{"a range of one", []any{to(with(number(80), func(p *world.PolicyPort) { p.EndPort = ptr[int32](80) }))}, []string{"web/b web/a:80/TCP"}, []string{"web/b web/a:81/TCP"}},
		{"a named port is one of TCP by default", []any{to(named("http"))}, []string{"web/b web/a:80/TCP"}, []string{"web/b web/a:81/TCP", "web/b web/a:81/SCTP"}},
		{"a named port of SCTP", []any{to(with(named("http"), func(p *world.PolicyPort) { p.Protocol = ptr("SCTP") }))}, []string{"web/b web/a:81/SCTP"}, []string{"web/b web/a:80/TCP", "web/b web/a:80/SCTP"}},
		{"a named port that nobody has", []any{to(named("grpc"))}, nil, []string{"web/b web/a:80/TCP", "web/b web/a:8080/TCP"}},
		{"a named port on egress is the peer's", []any{in(app, []string{"Egress"}, nil, []world.PolicyRule{rule(nil, named("http"))})}, []string{"web/a dev/b:80/TCP"}, []string{"web/a dev/b:8080/TCP", "web/a 203.0.113.1:80/TCP", "web/a n2:80/TCP"}},
		{"all ports of a protocol", []any{to(world.PolicyPort{Protocol: ptr("UDP")})}, []string{"web/b web/a:1/UDP"}, []string{"web/b web/a:53/TCP"}},
		{"ipBlock of pods", []any{block("10.128.1.0/24")}, []string{"dev/a web/a:80/TCP"}, []string{"dev/b web/a:80/TCP", "203.0.113.1 web/a:80/TCP"}},
		{"ipBlock with except", []any{block("0.0.0.0/0", "10.128.2.0/24", "203.0.113.1/32")}, []string{"dev/a web/a:80/TCP", "203.0.113.2 web/a:80/TCP"}, []string{"dev/b web/a:80/TCP", "203.0.113.1 web/a:80/TCP", "n2 web/a:80/TCP"}}, // n2 comes with its tunnel address.
		{"ipBlock with host bits", []any{block("10.128.1.77/24")}, []string{"dev/a web/a:80/TCP"}, []string{"dev/b web/a:80/TCP"}},
		{"an ipBlock excepted by one peer is allowed by another", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Range: &world.PolicyRange{CIDR: "10.128.0.0/16", Except: []string{"10.128.2.0/24"}}}, world.PolicyPeer{Range: &world.PolicyRange{CIDR: "10.128.2.12/32"}}))}, nil)}, []string{"dev/b web/a:80/TCP"}, []string{"prod/b web/a:80/TCP"}},
		{"the own node is allowed by origin", []any{in(app, nil, nil, nil)}, []string{"n1 web/a:80/TCP", "n1/tunnel web/a:80/TCP", "web/host web/a:80/TCP"}, []string{"n2 web/a:80/TCP"}},
		{"a pod in the host's network is selected by nothing", []any{in(everything, []string{"Ingress", "Egress"}, nil, nil)}, []string{"dev/a web/host:80/TCP", "web/host dev/a:80/TCP"}, nil},
		{"a pod in the host's network is no peer", []any{in(*label("app", "b"), nil, []world.PolicyRule{rule(peers(world.PolicyPeer{Namespaces: &everything, Pods: &everything}))}, nil)}, []string{"web/a web/b:80/TCP"}, []string{"web/host web/b:80/TCP"}},
		{"a pod reaches itself", []any{in(everything, []string{"Ingress", "Egress"}, nil, nil)}, []string{"web/a web/a:80/TCP"}, nil},
		{"to the own node by its tunnel address", []any{in(app, []string{"Egress"}, nil, nil)}, nil, []string{"web/a n1/tunnel:22/TCP"}},

		// What cannot be read (P5).
		{"P5: podSelector", []any{in(nonsense, nil, []world.PolicyRule{{}}, nil)}, []string{"web/a dev/a:80/TCP", "dev/a dev/b:80/TCP"}, []string{"dev/a web/a:80/TCP", "dev/a web/b:80/TCP"}},
		{"P5: policyTypes", []any{in(app, []string{"Both"}, []world.PolicyRule{{}}, []world.PolicyRule{{}})}, []string{"dev/a web/b:80/TCP"}, []string{"dev/a web/a:80/TCP", "web/a dev/a:80/TCP"}},
		{"P5: a peer without fields", []any{from(world.PolicyPeer{})}, nil, []string{"dev/a web/a:80/TCP", "203.0.113.1 web/a:80/TCP"}},
		{"P5: a peer with all fields", []any{from(world.PolicyPeer{Pods: &everything, Range: &world.PolicyRange{CIDR: "0.0.0.0/0"}})}, nil, []string{"web/b web/a:80/TCP"}},
		{"P5: a peer's selector", []any{from(world.PolicyPeer{Pods: &nonsense})}, nil, []string{"web/b web/a:80/TCP"}},
		{"P5: another peer is as before", []any{in(app, nil, []world.PolicyRule{rule(peers(world.PolicyPeer{}, world.PolicyPeer{Pods: label("app", "b")}))}, nil)}, []string{"web/b web/a:80/TCP"}, []string{"dev/b web/a:80/TCP"}},
		{"P5: CIDR", []any{block("10.128.0.0/33")}, nil, []string{"dev/a web/a:80/TCP"}},
		{"P5: CIDR of IPv4 in IPv6", []any{block("::ffff:10.128.0.0/104")}, nil, []string{"dev/a web/a:80/TCP"}},
		{"P5: except", []any{block("0.0.0.0/0", "10.128.2")}, nil, []string{"dev/a web/a:80/TCP"}},
		{"P5: protocol", []any{to(with(number(80), func(p *world.PolicyPort) { p.Protocol = ptr("tcp") }))}, nil, []string{"dev/a web/a:80/TCP"}},
		{"P5: port 0", []any{to(number(0))}, nil, []string{"dev/a web/a:80/TCP", "dev/a web/a:0/TCP"}},
		{"P5: endPort below port", []any{to(with(number(80), func(p *world.PolicyPort) { p.EndPort = ptr[int32](79) }))}, nil, []string{"dev/a web/a:80/TCP"}},
		{"P5: endPort with a name", []any{to(with(named("http"), func(p *world.PolicyPort) { p.EndPort = ptr[int32](90) }))}, nil, []string{"dev/a web/a:80/TCP"}},
		{"P5: endPort alone", []any{to(world.PolicyPort{EndPort: ptr[int32](90)})}, nil, []string{"dev/a web/a:80/TCP"}},
		{"P5: a pod that the world does not know is not allowed by labels", []any{from(world.PolicyPeer{Pods: &world.Selector{MatchExpressions: []world.Requirement{{Key: "bad", Operator: "DoesNotExist"}}}})}, []string{"web/b web/a:80/TCP"}, []string{"web/unknown@n2 web/a:80/TCP"}},
		{"P5: … but by its namespace", []any{from(world.PolicyPeer{Namespaces: label("name", "web")})}, []string{"web/unknown@n2 web/a:80/TCP"}, []string{"dev/a web/a:80/TCP"}},
		{"P5: a pod that the world does not know may be any policy's", []any{in(app, nil, []world.PolicyRule{{}}, nil)}, []string{"dev/a web/a:80/TCP"}, []string{"dev/a web/unknown@n2:80/TCP"}},
	} {
		c.run(t)
	}
}

// TestStagesNamePolicies checks what "policy why" prints.
func TestStagesNamePolicies(t *testing.T) {
	m := Read(policyWorld(
		&world.ClusterNetworkPolicy{Name: "first", Tier: "Admin", Subject: world.ClusterSubject{Namespaces: &everything}, Ingress: []world.ClusterRule{
			{Action: "Deny", Peers: []world.ClusterPeer{{Namespaces: label("name", "dev")}}},
			{Name: "over to you", Action: "Pass", Peers: []world.ClusterPeer{{Namespaces: &everything}}},
		}},
		in(*label("app", "a"), nil, []world.PolicyRule{rule(nil, number(1)), rule(nil, number(80))}, nil),
	))
	for text, want := range map[string][]PolicyMatch{
		"prod/b web/a:80/TCP": {
			{Kind: world.KindClusterNetworkPolicy, Policy: world.Key{Name: "first"}, Tier: TierAdmin, Rule: 1, Name: "over to you", Action: "Pass"},
			{Kind: world.KindNetworkPolicy, Policy: world.Key{Namespace: "web", Name: "p"}, Tier: TierNetworkPolicy, Rule: 1, Action: "Accept"},
		},
		"prod/b web/a:81/TCP": {
			{Kind: world.KindClusterNetworkPolicy, Policy: world.Key{Name: "first"}, Tier: TierAdmin, Rule: 1, Name: "over to you", Action: "Pass"},
			{Kind: world.KindNetworkPolicy, Policy: world.Key{Namespace: "web", Name: "p"}, Tier: TierNetworkPolicy, Rule: -1, Action: "Deny"},
		},
		"dev/b web/a:80/TCP": {{Kind: world.KindClusterNetworkPolicy, Policy: world.Key{Name: "first"}, Tier: TierAdmin, Rule: 0, Action: "Deny"}},
	} {
		var got []PolicyMatch
		for _, s := range send(t, m, nil, text).Stages {
			if s.Match != nil {
				got = append(got, *s.Match)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}
