package lint

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

func ptr[T any](v T) *T { return &v }

func byName(name string) *world.PortRef { return &world.PortRef{By: world.ByName, Name: name} }

func TestRules(t *testing.T) {
	all := world.ClusterPeer{Namespaces: &world.Selector{}}
	some := world.ClusterPeer{Pods: &world.NamespacedPods{Pods: world.Selector{MatchLabels: map[string]string{"a": "b"}}}}
	network := world.ClusterPeer{Networks: []string{"10.0.0.0/8"}}
	rule := func(action string, peers ...world.ClusterPeer) world.ClusterRule {
		return world.ClusterRule{Action: action, Peers: peers}
	}
	except := func(cidr string, list ...string) world.PolicyRule {
		return world.PolicyRule{Peers: []world.PolicyPeer{{Range: &world.PolicyRange{CIDR: cidr, Except: list}}}}
	}
	for _, tt := range []struct {
		name    string
		network *world.NetworkPolicy
		cluster *world.ClusterNetworkPolicy
		want    []string
	}{
		{"nothing", &world.NetworkPolicy{}, nil, nil},
		{"types", &world.NetworkPolicy{Types: []string{"Egress"}, Ingress: make([]world.PolicyRule, 1)}, nil, []string{"spec.ingress RulesWithoutType"}},
		{"unknown types", &world.NetworkPolicy{Types: []string{"X"}, Ingress: make([]world.PolicyRule, 1)}, nil, nil},
		{"no types", &world.NetworkPolicy{Egress: make([]world.PolicyRule, 1)}, nil, nil},
		{"except", &world.NetworkPolicy{Ingress: []world.PolicyRule{
			except("10.0.0.0/24", "10.0.0.0/25"), except("10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25"), except("fd00::/64", "fd00::/64"), except("x", "x"),
		}}, nil, []string{"spec.ingress[1].from[0].ipBlock.except EmptyRange", "spec.ingress[2].from[0].ipBlock.except EmptyRange"}},
		{
			"shadowed", nil, &world.ClusterNetworkPolicy{Ingress: []world.ClusterRule{rule("Deny", some), rule("Pass", all), rule("Accept", some), rule("Accept", all, some)}},
			[]string{"spec.ingress[2] RuleNeverReached", "spec.ingress[3] RuleNeverReached"},
		},
		{"not shadowed", nil, &world.ClusterNetworkPolicy{Egress: []world.ClusterRule{rule("Pass", all), rule("Deny", network)}}, nil},
		{"by a port", nil, &world.ClusterNetworkPolicy{Egress: []world.ClusterRule{
			{Action: "Deny", Peers: []world.ClusterPeer{all}, Protocols: []world.ClusterProtocol{{NamedPort: "x"}}}, rule("Deny", some),
		}}, nil},
		{"by no action", nil, &world.ClusterNetworkPolicy{Egress: []world.ClusterRule{rule("deny", all), rule("Deny", some)}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := world.NewStore(nil)
			if tt.network != nil {
				tt.network.Namespace, tt.network.Name = "ns", "p"
				s.Apply(world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: "ns", Name: "p"}, Object: tt.network})
			}
			if tt.cluster != nil {
				tt.cluster.Name, tt.cluster.Tier = "p", "Admin"
				tt.cluster.Subject.Namespaces = &world.Selector{}
				s.Apply(world.Change{Kind: world.KindClusterNetworkPolicy, Key: world.Key{Name: "p"}, Object: tt.cluster})
			}
			snap, _ := s.Snapshot()
			var got []string
			for _, p := range Rules(snap) {
				got = append(got, p.Field+" "+p.Reason)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestPorts(t *testing.T) {
	pod := func(name string, ports ...world.ContainerPort) world.Change {
		p := &world.Pod{Namespace: "ns", Name: name, Labels: map[string]string{"app": name}, Ports: ports}
		return world.Change{Kind: world.KindPod, Key: world.Key{Namespace: "ns", Name: name}, Object: p}
	}
	key := world.Key{Namespace: "ns", Name: "p"}
	policy := &world.NetworkPolicy{
		Namespace: "ns", Name: "p", Pods: world.Selector{MatchLabels: map[string]string{"app": "web"}},
		Ingress: []world.PolicyRule{{Ports: []world.PolicyPort{{Port: byName("http")}, {Port: byName("dns")}, {Protocol: ptr("UDP"), Port: byName("dns")}, {Port: byName("db")}}}},
		Egress:  []world.PolicyRule{{Ports: []world.PolicyPort{{Port: byName("db")}, {Port: byName("none")}, {Protocol: ptr("x"), Port: byName("none")}}}},
	}
	snap := world.NewStore(nil).Apply(
		pod("web", world.ContainerPort{Name: "http", Protocol: packet.TCP, Port: 80}, world.ContainerPort{Name: "dns", Protocol: packet.UDP, Port: 53}),
		pod("db", world.ContainerPort{Name: "db", Protocol: packet.TCP, Port: 5432}),
		world.Change{Kind: world.KindNetworkPolicy, Key: key, Object: policy},
	)
	var got []string
	for _, p := range Ports(oracle.Read(snap), snap, world.KindNetworkPolicy, key) {
		got = append(got, p.Field+" "+p.Reason)
	}
	want := []string{"spec.ingress[0].ports[1] UnresolvedPort", "spec.ingress[0].ports[3] UnresolvedPort", "spec.egress[0].ports[1] UnresolvedPort"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	empty := world.NewStore(nil).Apply(world.Change{Kind: world.KindNetworkPolicy, Key: key, Object: policy})
	if got := Ports(oracle.Read(empty), empty, world.KindNetworkPolicy, key); len(got) > 0 {
		t.Errorf("before there are pods: %v", got)
	}
}

// A rule that is said never to match is one without which every packet fares the same.
func TestRulesNeverMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snap := worldtest.DrawPolicies(t, worldtest.Draw(t))
		store := world.NewStore(snap)
		for _, p := range Rules(snap) {
			if p.Reason == "RuleNeverReached" {
				c, _ := snap.ClusterNetworkPolicies.Get(p.Key)
				store.Apply(world.Change{Kind: p.Kind, Key: p.Key, Object: without(c)})
			}
		}
		after, _ := store.Snapshot()
		a, b := oracle.Read(snap), oracle.Read(after)
		ends := a.Ends()
		for _, from := range ends {
			for _, to := range ends {
				if strange(from) || strange(to) {
					continue
				}
				p := oracle.Probe{From: from.Place, Packet: packet.Packet{Src: from.Addr, Dst: to.Addr, Protocol: packet.TCP, SrcPort: 40000, DstPort: 80, SYN: true}}
				if x, y := a.Judge(nil, p), b.Judge(nil, p); x.Allowed != y.Allowed {
					t.Fatalf("%s: %t with all rules (%s), %t without those that never match (%s)", p.Packet, x.Allowed, x.Why(), y.Allowed, y.Why())
				}
			}
		}
	})
}

// strange is a pod that the world does not know (yet): an Accept says nothing of it, and
// the rules behind one count.
func strange(e oracle.End) bool { return e.Place.Kind == oracle.Pod && !e.Known }

// without drops the rules of a policy that are said never to match.
func without(c *world.ClusterNetworkPolicy) *world.ClusterNetworkPolicy {
	out := *c
	keep := func(rules []world.ClusterRule) []world.ClusterRule {
		final := len(rules)
		var kept []world.ClusterRule
		for i, r := range rules {
			if i > final && amongPods(r) {
				continue
			}
			if i < final && matchesEveryPod(r) {
				final = i
			}
			kept = append(kept, r)
		}
		return kept
	}
	out.Ingress, out.Egress = keep(c.Ingress), keep(c.Egress)
	return &out
}
