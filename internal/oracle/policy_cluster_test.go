package oracle

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// cnp makes a ClusterNetworkPolicy whose subject is the namespace web.
func cnp(name, tier string, priority int32, ingress, egress []world.ClusterRule) *world.ClusterNetworkPolicy {
	return &world.ClusterNetworkPolicy{
		Name: name, Tier: tier, Priority: priority, Subject: world.ClusterSubject{Namespaces: label("name", "web")}, Ingress: ingress, Egress: egress,
	}
}

func does(action string, peer world.ClusterPeer, protocols ...world.ClusterProtocol) world.ClusterRule {
	return world.ClusterRule{Action: action, Peers: []world.ClusterPeer{peer}, Protocols: protocols}
}

func tcp(port int32) world.ClusterProtocol {
	return world.ClusterProtocol{TCP: &world.ClusterPorts{Destination: &world.ClusterPort{Number: port}}}
}

// TestClusterNetworkPolicyRules are the rules that the conformance tests leave out,
// and what cannot be read (P5).
func TestClusterNetworkPolicyRules(t *testing.T) {
	type rules = []world.ClusterRule
	anyone := world.ClusterPeer{Namespaces: &everything}
	dev := world.ClusterPeer{Namespaces: label("name", "dev")}
	net := func(list ...string) world.ClusterPeer { return world.ClusterPeer{Networks: list} }
	isolated := in(everything, []string{"Ingress", "Egress"}, nil, nil)
	open := in(everything, []string{"Ingress", "Egress"}, []world.PolicyRule{{}}, []world.PolicyRule{{}})
	admin := func(ingress, egress rules) *world.ClusterNetworkPolicy { return cnp("p", "Admin", 5, ingress, egress) }
	for _, c := range []policyCase{
		{"Accept goes before NetworkPolicy", []any{isolated, admin(rules{does("Accept", dev)}, nil)}, []string{"dev/a web/b:80/TCP", "dev/a web/b:0/ICMP"}, []string{"prod/a web/b:80/TCP"}},
		{"Deny goes before NetworkPolicy", []any{open, admin(rules{does("Deny", dev)}, nil)}, []string{"prod/a web/b:80/TCP"}, []string{"dev/a web/b:80/TCP", "dev/a web/b:0/ICMP"}},
		{"Pass leaves it to NetworkPolicy", []any{isolated, admin(rules{does("Pass", dev), does("Accept", anyone)}, nil)}, []string{"prod/a web/b:80/TCP"}, []string{"dev/a web/b:80/TCP"}},
		{"Pass leaves it to Baseline", []any{admin(rules{does("Pass", dev), does("Accept", anyone)}, nil), cnp("b", "Baseline", 0, rules{does("Deny", anyone)}, nil)}, []string{"prod/a web/b:80/TCP"}, []string{"dev/a web/b:80/TCP"}},
		{"Pass in Baseline leaves it to the default", []any{cnp("b", "Baseline", 0, rules{does("Pass", dev), does("Deny", anyone)}, nil)}, []string{"dev/a web/b:80/TCP"}, []string{"prod/a web/b:80/TCP"}},
		{"NetworkPolicy goes before Baseline", []any{open, cnp("b", "Baseline", 0, rules{does("Deny", anyone)}, rules{does("Deny", anyone)})}, []string{"dev/a web/b:80/TCP", "web/b dev/a:80/TCP"}, nil},
		{"Accept on egress does not speak for the other end", []any{admin(nil, rules{does("Accept", anyone)}), with(*isolated, func(p *world.NetworkPolicy) { p.Namespace = "dev" })}, []string{"web/a prod/a:80/TCP"}, []string{"web/a dev/a:80/TCP"}},
		{"the lower priority first", []any{cnp("a", "Admin", 9, rules{does("Accept", anyone)}, nil), cnp("b", "Admin", 1, rules{does("Deny", dev)}, nil)}, []string{"prod/a web/b:80/TCP"}, []string{"dev/a web/b:80/TCP"}},
		{"a Pass skips all policies of the tier", []any{cnp("a", "Admin", 1, rules{does("Pass", dev)}, nil), cnp("b", "Admin", 9, rules{does("Deny", anyone)}, nil)}, []string{"dev/a web/b:80/TCP"}, []string{"prod/a web/b:80/TCP"}},
		{"equal priorities go by name", []any{cnp("b", "Admin", 5, rules{does("Accept", anyone)}, nil), cnp("a", "Admin", 5, rules{does("Deny", dev)}, nil)}, []string{"prod/a web/b:80/TCP"}, []string{"dev/a web/b:80/TCP"}},
		{"no rules of a direction do nothing", []any{admin(nil, rules{})}, []string{"dev/a web/b:80/TCP", "web/b dev/a:80/TCP"}, nil},
		{"subject by pods", []any{with(*admin(rules{does("Deny", anyone)}, nil), func(p *world.ClusterNetworkPolicy) {
			p.Subject = world.ClusterSubject{Pods: &world.NamespacedPods{Pods: *label("app", "a")}}
		})}, []string{"dev/a web/b:80/TCP"}, []string{"dev/b web/a:80/TCP", "dev/b prod/a:80/TCP"}},
		{"nodes by every address of theirs", []any{admin(nil, rules{does("Deny", world.ClusterPeer{Nodes: label("name", "n1")})})}, []string{"web/a n2:22/TCP", "web/a dev/a:80/TCP", "web/a 198.51.100.12:22/TCP"}, []string{"web/a n1:22/TCP", "web/a n1/tunnel:22/TCP", "web/b n1:22/TCP", "web/a 198.51.100.11:22/TCP", "web/b web/host:80/TCP"}},
		{"networks are pods too", []any{admin(nil, rules{does("Deny", net("203.0.113.0/24", "10.128.1.12/32"))})}, []string{"web/b dev/b:80/TCP"}, []string{"web/b 203.0.113.1:80/TCP", "web/b dev/a:80/TCP", "web/b 203.0.113.1:0/ICMP"}},
		{"a pod in the host's network is no peer, and no subject", []any{with(*admin(rules{does("Deny", anyone)}, rules{does("Deny", anyone)}), func(p *world.ClusterNetworkPolicy) { p.Subject.Namespaces = &everything })}, []string{"web/host dev/a:80/TCP", "web/host dev/b:80/TCP", "203.0.113.1 dev/a:80/TCP"}, []string{"web/a dev/b:80/TCP"}},
		{"the own node is allowed by origin", []any{admin(rules{does("Deny", world.ClusterPeer{})}, nil)}, []string{"n1 web/a:80/TCP"}, []string{"n2 web/a:80/TCP"}},
		{"a named port is of any protocol", []any{admin(rules{does("Deny", anyone, world.ClusterProtocol{NamedPort: "http"})}, nil)}, []string{"dev/a web/b:8080/TCP", "dev/a web/b:80/SCTP", "dev/a web/b:0/ICMP"}, []string{"dev/a web/b:80/TCP", "dev/a web/b:81/SCTP"}},
		{"a named port that nobody has", []any{isolated, admin(rules{does("Accept", anyone, world.ClusterProtocol{NamedPort: "grpc"})}, nil)}, nil, []string{"dev/a web/b:80/TCP"}},
		{"protocols are alternatives", []any{admin(rules{does("Deny", anyone, tcp(1), tcp(80), world.ClusterProtocol{UDP: &world.ClusterPorts{Destination: &world.ClusterPort{Range: &world.PortRange{Start: 50, End: 60}}}})}, nil)}, []string{"dev/a web/b:8080/TCP", "dev/a web/b:61/UDP", "dev/a web/b:0/ICMP"}, []string{"dev/a web/b:80/TCP", "dev/a web/b:60/UDP"}},

		// What cannot be read: the rule matches nothing if it accepts, else it denies all.
		{"P5: an unknown peer of Accept", []any{isolated, admin(rules{{Action: "Accept", Peers: []world.ClusterPeer{anyone, {}}}}, nil)}, nil, []string{"dev/a web/b:80/TCP"}},
		{"P5: an unknown peer of Deny", []any{admin(rules{does("Deny", world.ClusterPeer{}, tcp(1))}, nil)}, []string{"web/b dev/a:80/TCP", "dev/a prod/a:80/TCP"}, []string{"dev/a web/b:80/TCP", "203.0.113.1 web/b:0/ICMP"}},
		{"P5: an unknown peer of Pass", []any{open, admin(rules{does("Pass", world.ClusterPeer{})}, nil)}, nil, []string{"dev/a web/b:80/TCP"}},
		{"P5: … after a rule that accepts", []any{admin(rules{does("Accept", dev), does("Pass", world.ClusterPeer{})}, nil)}, []string{"dev/a web/b:80/TCP"}, []string{"prod/a web/b:80/TCP"}},
		{"P5: two fields", []any{isolated, admin(rules{does("Accept", world.ClusterPeer{Namespaces: &everything, Pods: &world.NamespacedPods{}})}, nil)}, nil, []string{"dev/a web/b:80/TCP"}},
		{"P5: no peer", []any{admin(rules{{Action: "Deny"}}, nil)}, nil, []string{"dev/a web/b:80/TCP"}},
		{"P5: domain names of Accept", []any{isolated, admin(nil, rules{does("Accept", world.ClusterPeer{DomainNames: []string{"*.example.com"}})})}, nil, []string{"web/a 203.0.113.1:80/TCP"}},
		{"P5: domain names of Deny", []any{admin(nil, rules{does("Deny", world.ClusterPeer{DomainNames: []string{"*.example.com"}})})}, nil, []string{"web/a dev/a:80/TCP"}},
		{"P5: a selector of Deny", []any{admin(rules{does("Deny", world.ClusterPeer{Namespaces: &nonsense})}, nil)}, nil, []string{"dev/a web/b:80/TCP"}},
		{"P5: a network of Deny", []any{admin(nil, rules{does("Deny", net("203.0.113.0/24", "10.0.0.1/8"))})}, nil, []string{"web/a dev/b:80/TCP"}},
		{"P5: a protocol of Accept", []any{isolated, admin(rules{does("Accept", anyone, tcp(80), world.ClusterProtocol{})}, nil)}, nil, []string{"dev/a web/b:80/TCP"}},
		{"P5: a protocol without ports", []any{isolated, admin(rules{does("Accept", anyone, world.ClusterProtocol{TCP: &world.ClusterPorts{}})}, nil)}, nil, []string{"dev/a web/b:80/TCP"}},
		{"P5: an action", []any{admin(rules{does("Allow", dev)}, nil)}, []string{"prod/a web/b:80/TCP"}, []string{"dev/a web/b:80/TCP"}},
		{"P5: a tier", []any{open, cnp("p", "Application", 5, rules{does("Accept", dev), does("Pass", dev)}, nil)}, []string{"prod/a web/b:80/TCP"}, []string{"dev/a web/b:80/TCP"}},
		{"P5: a subject", []any{with(*admin(rules{does("Accept", anyone), does("Deny", dev)}, nil), func(p *world.ClusterNetworkPolicy) { p.Subject = world.ClusterSubject{} })}, []string{"web/a prod/a:80/TCP"}, []string{"dev/a prod/b:80/TCP"}},
	} {
		for i, p := range c.policies { // Some are values.
			switch v := p.(type) {
			case world.NetworkPolicy:
				c.policies[i] = &v
			case world.ClusterNetworkPolicy:
				c.policies[i] = &v
			}
		}
		c.run(t)
	}
}

// TestAcceptCrossesNothing: an Accept of either kind never crosses a tenant.
func TestAcceptCrossesNothing(t *testing.T) {
	store := world.NewStore(policyWorld(
		cnp("p", "Admin", 0, []world.ClusterRule{does("Accept", world.ClusterPeer{Namespaces: &everything})}, []world.ClusterRule{does("Accept", world.ClusterPeer{Namespaces: &everything})}),
	))
	store.Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: "default"}, Object: &world.VPC{Name: "default", VNI: 1, Tenant: true}})
	for i, ns := range []string{"web", "prod", "dev"} {
		store.Apply(world.Change{Kind: world.KindNetNamespace, Key: world.Key{Name: ns}, Object: &world.NetNamespace{Name: ns, VNI: packet.VNI(10 + i)}})
	}
	snap, _ := store.Snapshot()
	m := Read(snap)
	if v := send(t, m, nil, "web/a web/b:80/TCP"); !v.Allowed {
		t.Errorf("inside the tenant: %v", v.Stages)
	}
	v := send(t, m, nil, "web/a dev/b:80/TCP")
	if last := v.Stages[len(v.Stages)-1]; v.Allowed || last.Name != "tenant" {
		t.Errorf("to another tenant: %v", v.Stages)
	}
}

// TestFlowsFollowPolicies: answers and errors of an allowed flow pass whatever the
// policies say about their own direction; once the flow is denied all of it is cut.
func TestFlowsFollowPolicies(t *testing.T) {
	oneWay := []any{
		in(*label("app", "a"), []string{"Ingress", "Egress"}, nil, []world.PolicyRule{{}}),
		in(*label("app", "b"), []string{"Egress"}, nil, nil),
	}
	oneWay[1].(*world.NetworkPolicy).Name = "q"
	before := Read(policyWorld(oneWay...))
	there := send(t, before, nil, "web/a web/b:80/TCP")
	if !there.Allowed {
		t.Fatalf("the flow does not begin: %v", there.Stages)
	}
	if back := send(t, before, nil, "web/b web/a:80/TCP"); back.Allowed {
		t.Fatal("the other direction is no question")
	}
	src, from := endOf(t, before, "web/a")
	dst, to := endOf(t, before, "web/b")
	sent := packet.Packet{Src: src, Dst: dst, Protocol: packet.TCP, SrcPort: 49152, DstPort: 80, SYN: true}
	flows := &Flows{}
	flows.Begin(Probe{From: from, Packet: sent}, there.Outcomes[0])
	later := sent
	later.SYN = false
	unreachable := packet.Packet{Src: dst, Dst: src, Protocol: packet.ICMP}
	all := map[string]Probe{
		"a further segment": {From: from, Packet: later},
		"an answer":         {From: to, Packet: sent.Reverse()},
		"an ICMP error":     {From: to, Packet: unreachable, Embedded: &later},
	}
	after := Read(policyWorld(append(oneWay, cnp("p", "Admin", 0, []world.ClusterRule{does("Deny", world.ClusterPeer{Namespaces: &everything})}, nil))...))
	for name, p := range all {
		if v := before.Judge(flows, p); !v.Allowed {
			t.Errorf("%s is cut: %v", name, v.Stages)
		}
		if v := after.Judge(flows, p); v.Allowed || !v.Outcomes[0].Dropped || len(v.Outcomes) != 1 {
			t.Errorf("%s is not cut once the flow is denied: %v", name, v.Stages)
		}
	}
}

func TestPolicyProblems(t *testing.T) {
	bad := in(nonsense, []string{"Both"}, []world.PolicyRule{{
		Peers: []world.PolicyPeer{{}, {Range: &world.PolicyRange{CIDR: "::/0", Except: []string{"x"}}}},
		Ports: []world.PolicyPort{number(80), number(0), {Protocol: ptr("ICMP")}},
	}}, []world.PolicyRule{{Peers: []world.PolicyPeer{{Namespaces: &nonsense}}}})
	m := Read(policyWorld(bad,
		cnp("a", "Admin", 5, []world.ClusterRule{does("Allow", world.ClusterPeer{})}, []world.ClusterRule{{Action: "Deny"}}),
		cnp("b", "Admin", 5, nil, []world.ClusterRule{does("Accept", world.ClusterPeer{DomainNames: []string{"example.com"}}, tcp(70000))}),
		cnp("c", "Baseline", 5, nil, nil),
		&world.ClusterNetworkPolicy{Name: "d", Tier: "X"},
	))
	var got []string
	for _, p := range m.PolicyProblems() {
		if p.Message == "" {
			t.Errorf("%+v says nothing", p)
		}
		got = append(got, p.Key.String()+" "+p.Field+" "+p.Reason)
	}
	want := []string{
		"a spec.egress[0].to InvalidPeer",
		"a spec.ingress[0].action UnknownAction",
		"a spec.ingress[0].from[0] InvalidPeer",
		"b spec.egress[0].protocols[0].tcp.destinationPort.number InvalidPort",
		"b spec.egress[0].to[0].domainNames DomainNamesUnsupported",
		"b spec.priority EqualPriority",
		"d spec.subject InvalidSubject",
		"d spec.tier UnknownTier",
		"web/p spec.egress[0].to[0].namespaceSelector InvalidSelector",
		"web/p spec.ingress[0].from[0] InvalidPeer",
		"web/p spec.ingress[0].from[1].ipBlock.except[0] InvalidCIDR",
		"web/p spec.ingress[0].ports[1].port InvalidPort",
		"web/p spec.ingress[0].ports[2].protocol InvalidProtocol",
		"web/p spec.podSelector InvalidSelector",
		"web/p spec.policyTypes[0] UnknownPolicyType",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// TestUnreadableNeverAllowsMore makes one thing in one policy of a random world
// unreadable (P5): whatever was denied stays denied, and the problem is reported.
func TestUnreadableNeverAllowsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snap := worldtest.DrawPolicies(t, worldtest.Draw(t))
		worse, key, ok := spoil(t, snap)
		if !ok {
			t.Skip("no policy")
		}
		before, after := Read(snap), Read(worse)
		if !slices.ContainsFunc(after.PolicyProblems(), func(p world.Problem) bool { return p.Key == key }) {
			t.Fatalf("no problem with %s is reported", key)
		}
		var ends []Place
		var addrs []netip.Addr
		for a, holders := range before.owners {
			ends, addrs = append(ends, holders[0].place), append(addrs, a)
		}
		for _, place := range ends {
			for a, holders := range before.owners {
				if holders[0].place != place {
					continue
				}
				for _, dst := range append(addrs, netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")) {
					for _, proto := range []packet.Protocol{packet.TCP, packet.UDP} {
						p := Probe{From: place, Packet: packet.Packet{Src: a, Dst: dst, Protocol: proto, SrcPort: 40000, DstPort: 80, SYN: proto == packet.TCP}}
						was, now := before.Judge(nil, p), after.Judge(nil, p)
						if !was.Allowed && now.Allowed {
							t.Fatalf("%v was denied: %v\nand is allowed: %v", p.Packet, was.Stages, now.Stages)
						}
					}
				}
			}
		}
	})
}

// spoil returns a world in which something of one policy cannot be read.
func spoil(t *rapid.T, snap *world.Snapshot) (*world.Snapshot, world.Key, bool) {
	var keys []world.Key
	for k := range snap.NetworkPolicies.All() {
		keys = append(keys, k)
	}
	for k := range snap.ClusterNetworkPolicies.All() {
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, world.Key{}, false
	}
	key := rapid.SampledFrom(keys).Draw(t, "policy to spoil")
	if p, is := snap.NetworkPolicies.Get(key); is {
		q := *p
		spoilNetworkPolicy(t, &q)
		return world.NewStore(snap).Apply(world.Change{Kind: world.KindNetworkPolicy, Key: key, Object: &q}), key, true
	}
	p, _ := snap.ClusterNetworkPolicies.Get(key)
	q := *p
	spoilClusterPolicy(t, &q)
	return world.NewStore(snap).Apply(world.Change{Kind: world.KindClusterNetworkPolicy, Key: key, Object: &q}), key, true
}

func spoilNetworkPolicy(t *rapid.T, p *world.NetworkPolicy) {
	p.Ingress = slices.Clone(p.Ingress)
	i := slices.IndexFunc(p.Ingress, func(r world.PolicyRule) bool { return len(r.Peers) > 0 })
	switch what := rapid.IntRange(0, 3).Draw(t, "what to spoil"); {
	case what == 0 && i >= 0:
		p.Ingress[i].Peers = slices.Clone(p.Ingress[i].Peers)
		p.Ingress[i].Peers[0] = world.PolicyPeer{}
	case what == 1 && i >= 0:
		p.Ingress[i].Ports = []world.PolicyPort{number(-1)}
	case what == 2 && len(p.Types) > 0:
		p.Types = append([]string{"Nonsense"}, p.Types[1:]...)
	default:
		p.Pods = nonsense
	}
}

func spoilClusterPolicy(t *rapid.T, p *world.ClusterNetworkPolicy) {
	rules := &p.Ingress
	if rapid.Bool().Draw(t, "spoil egress") {
		rules = &p.Egress
	}
	*rules = slices.Clone(*rules)
	switch what := rapid.IntRange(0, 4).Draw(t, "what to spoil"); {
	case what == 0:
		p.Subject = world.ClusterSubject{}
	case what == 1 && p.Tier == TierAdmin:
		p.Tier = "Nonsense"
	case what == 2 && len(*rules) > 0:
		(*rules)[0].Protocols = append(slices.Clone((*rules)[0].Protocols), world.ClusterProtocol{})
	case what == 3 && len(*rules) > 0:
		(*rules)[0].Action = "Nonsense"
	case len(*rules) > 0:
		(*rules)[0].Peers = append(slices.Clone((*rules)[0].Peers), world.ClusterPeer{})
	default:
		p.Subject = world.ClusterSubject{Namespaces: &nonsense}
	}
}
