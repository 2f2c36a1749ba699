package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// small is a world of two VPCs on two nodes. Node n1 has pod web/a (label app=a) at
// .2 and web/a2, the same, at .3; n2 has web/b at .18, db/c at .19 and, in VPC blue,
// red/d at 10.129.0.2.
func small() *world.Store {
	addr, cidr := netip.MustParseAddr, netip.MustParsePrefix
	store := world.NewStore(nil)
	set := func(kind world.Kind, key world.Key, o any) {
		store.Apply(world.Change{Kind: kind, Key: key, Object: o})
	}
	set(world.KindVPC, world.Key{Name: "default"}, &world.VPC{Name: "default", VNI: 1})
	set(world.KindVPC, world.Key{Name: "blue"}, &world.VPC{Name: "blue", VNI: 2, Namespaces: &world.Selector{MatchLabels: map[string]string{"vpc": "blue"}}})
	for name, labels := range map[string]map[string]string{"web": {"team": "x"}, "db": {"team": "y"}, "red": {"team": "x", "vpc": "blue"}} {
		set(world.KindNamespace, world.Key{Name: name}, &world.Namespace{Name: name, Labels: labels})
	}
	set(world.KindSubnet, world.Key{Name: "s"}, &world.Subnet{Name: "s", VPC: "default", CIDRs: []netip.Prefix{cidr("10.128.0.0/24")}})
	set(world.KindSubnet, world.Key{Name: "blue"}, &world.Subnet{Name: "blue", VPC: "blue", CIDRs: []netip.Prefix{cidr("10.129.0.0/24")}})
	for i, node := range []string{"n1", "n2"} {
		set(world.KindNode, world.Key{Name: node}, &world.Node{Name: node, Labels: map[string]string{"zone": node}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, 0, byte(11 + i)})}})
		set(world.KindNodeNetwork, world.Key{Name: node}, &world.NodeNetwork{Name: node, Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 30, 0, byte(11 + i)}), 24)}})
	}
	holder := func(a, namespace, name string) world.Allocation {
		return world.Allocation{Addr: addr(a), Owner: world.Owner{Namespace: namespace, Name: name, UID: name}}
	}
	for _, b := range []*world.Block{
		{Name: "s1", Subnet: "s", CIDR: cidr("10.128.0.0/28"), Node: "n1", Allocations: []world.Allocation{holder("10.128.0.2", "web", "a"), holder("10.128.0.3", "web", "a2")}},
		{Name: "s2", Subnet: "s", CIDR: cidr("10.128.0.16/28"), Node: "n2", Allocations: []world.Allocation{
			{Addr: addr("10.128.0.17"), Owner: world.Owner{Name: "node/n2/tunnel"}}, holder("10.128.0.18", "web", "b"), holder("10.128.0.19", "db", "c"),
		}},
		{Name: "b1", Subnet: "blue", CIDR: cidr("10.129.0.0/28"), Node: "n2", Allocations: []world.Allocation{holder("10.129.0.2", "red", "d")}},
	} {
		set(world.KindBlock, world.Key{Name: b.Name}, b)
	}
	for _, p := range []*world.Pod{
		{Namespace: "web", Name: "a", Node: "n1", Labels: map[string]string{"app": "a"}, Ports: []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: 8080}}},
		{Namespace: "web", Name: "a2", Node: "n1", Labels: map[string]string{"app": "a"}, Ports: []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: 8080}}},
		{Namespace: "web", Name: "b", Node: "n2", Labels: map[string]string{"app": "b"}, Ports: []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: 80}}},
		{Namespace: "db", Name: "c", Node: "n2", Labels: map[string]string{"app": "b"}, Ports: []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: 81}}},
		{Namespace: "red", Name: "d", Node: "n2", Labels: map[string]string{"app": "b"}},
		{Namespace: "web", Name: "host", Node: "n2", Labels: map[string]string{"app": "b"}, HostNetwork: true, Addresses: []netip.Addr{addr("172.30.0.12")}},
	} {
		p.UID = p.Name
		set(world.KindPod, world.Key{Namespace: p.Namespace, Name: p.Name}, p)
	}
	for i, name := range []string{"a", "a2"} {
		set(world.KindAttachment, world.Key{Name: name}, &world.Attachment{ID: name, Subnet: "s", Pod: world.Owner{Namespace: "web", Name: name, UID: name}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 128, 0, byte(2 + i)})}})
	}
	return store
}

func byApp(app string) *world.Selector {
	return &world.Selector{MatchLabels: map[string]string{"app": app}}
}

func networkPolicy(change func(*world.NetworkPolicy)) world.Change {
	p := &world.NetworkPolicy{Namespace: "web", Name: "p"}
	change(p)
	return world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: p}
}

func clusterPolicy(name string, change func(*world.ClusterNetworkPolicy)) world.Change {
	p := &world.ClusterNetworkPolicy{Name: name, Tier: "Admin", Subject: world.ClusterSubject{Namespaces: &world.Selector{}}}
	change(p)
	return world.Change{Kind: world.KindClusterNetworkPolicy, Key: world.Key{Name: name}, Object: p}
}

// forget removes an object.
func forget(kind world.Kind, namespace, name string) world.Change {
	return world.Change{Kind: kind, Key: world.Key{Namespace: namespace, Name: name}}
}

// show is the list of web/a in a direction and the content of its sets.
func show(s *State, d intent.Direction) string {
	id := s.Ports["a"].Ingress
	if d == intent.Egress {
		id = s.Ports["a"].Egress
	}
	var b strings.Builder
	for _, l := range s.RuleLists {
		if l.ID != id {
			continue
		}
		for _, r := range l.Rules {
			peers := ""
			for _, name := range r.Match.Sets {
				for _, set := range s.AddressSets {
					if set.VPC == l.VPC && set.Name == name {
						peers += " " + set.String()
					}
				}
			}
			m := r.Match
			m.Sets = nil
			fmt.Fprintf(&b, "%s %s%s, %s (%d)\n", r.Tier, r.Action, peers, m, r.Origin.Index)
		}
	}
	return strings.TrimSpace(b.String())
}

func TestMeaning(t *testing.T) {
	egress := intent.Egress
	from := func(peers ...world.PolicyPeer) func(*world.NetworkPolicy) {
		return func(p *world.NetworkPolicy) { p.Ingress = []world.PolicyRule{{Peers: peers}} }
	}
	named := []world.PolicyPort{{Port: &world.PortRef{By: world.ByName, Name: "http"}}}
	to := func(peers ...world.PolicyPeer) func(*world.NetworkPolicy) {
		return func(p *world.NetworkPolicy) {
			p.Types, p.Egress = []string{"Egress"}, []world.PolicyRule{{Peers: peers, Ports: named}}
		}
	}
	everyone := &world.Selector{}
	broken := &world.Selector{MatchExpressions: []world.Requirement{{Key: "app", Operator: "Is"}}}
	const isolated = "NetworkPolicy Deny, everything (-1)"
	for _, tt := range []struct {
		name    string
		changes []world.Change
		dir     intent.Direction
		want    string
		problem string
	}{
		{"no policy", nil, 0, "", ""},
		{"isolation", []world.Change{networkPolicy(func(*world.NetworkPolicy) {})}, 0, isolated, ""},
		{"egress is another matter", []world.Change{networkPolicy(func(*world.NetworkPolicy) {})}, egress, "", ""},
		{"own namespace", []world.Change{networkPolicy(from(world.PolicyPeer{Pods: byApp("b")}))}, 0, "NetworkPolicy Accept 10.128.0.18/32, everything (0)\n" + isolated, ""},
		{"both selectors, not of another VPC", []world.Change{networkPolicy(from(world.PolicyPeer{Pods: byApp("b"), Namespaces: everyone}))}, 0, "NetworkPolicy Accept 10.128.0.18/31, everything (0)\n" + isolated, ""},
		{"an allocation without a pod allows nobody", []world.Change{networkPolicy(from(world.PolicyPeer{Pods: byApp("b")})), forget(world.KindPod, "web", "b")}, 0, "NetworkPolicy Accept none, everything (0)\n" + isolated, ""},
		{"whoever is in the namespace", []world.Change{networkPolicy(from(world.PolicyPeer{Pods: everyone})), forget(world.KindPod, "web", "b")}, 0, "NetworkPolicy Accept 10.128.0.2/31 10.128.0.18/32, everything (0)\n" + isolated, ""},
		{"except", []world.Change{networkPolicy(from(world.PolicyPeer{Range: &world.PolicyRange{CIDR: "10.0.0.0/30", Except: []string{"10.0.0.1/32"}}}))}, 0, "NetworkPolicy Accept 10.0.0.0/32 10.0.0.2/31, everything (0)\n" + isolated, ""},
		{"except that cannot be read", []world.Change{networkPolicy(from(world.PolicyPeer{Range: &world.PolicyRange{CIDR: "10.0.0.0/8", Except: []string{"x"}}}))}, 0, isolated, "spec.ingress[0].from[0].ipBlock.except[0] InvalidCIDR"},
		{"selector that cannot be read", []world.Change{networkPolicy(from(world.PolicyPeer{Pods: broken}))}, 0, isolated, "spec.ingress[0].from[0].podSelector InvalidSelector"},
		{"empty peer", []world.Change{networkPolicy(from(world.PolicyPeer{}))}, 0, isolated, "spec.ingress[0].from[0] InvalidPeer"},
		{"subject that cannot be read", []world.Change{networkPolicy(func(p *world.NetworkPolicy) { p.Pods, p.Ingress = *broken, []world.PolicyRule{{}} })}, 0, isolated, "spec.podSelector InvalidSelector"},
		{"the pod itself is not known", []world.Change{networkPolicy(func(p *world.NetworkPolicy) { p.Pods, p.Ingress = *byApp("z"), []world.PolicyRule{{}} }), forget(world.KindPod, "web", "a")}, 0, isolated, ""},
		{"named port", []world.Change{networkPolicy(func(p *world.NetworkPolicy) { p.Ingress = []world.PolicyRule{{Ports: named}} })}, 0, "NetworkPolicy Accept, TCP 8080 (0)\n" + isolated, ""},
		{"named ports of peers", []world.Change{networkPolicy(to(world.PolicyPeer{Namespaces: everyone}))}, egress, "NetworkPolicy Accept 10.128.0.18/32, TCP 80 (0)\nNetworkPolicy Accept 10.128.0.19/32, TCP 81 (0)\nNetworkPolicy Accept 10.128.0.2/31, TCP 8080 (0)\n" + isolated, ""},
		{"named ports of a range", []world.Change{networkPolicy(to(world.PolicyPeer{Range: &world.PolicyRange{CIDR: "10.128.0.19/32"}}))}, egress, "NetworkPolicy Accept none, TCP 80 (0)\nNetworkPolicy Accept 10.128.0.19/32, TCP 81 (0)\nNetworkPolicy Accept none, TCP 8080 (0)\n" + isolated, ""},
		{"named port that nobody has", []world.Change{networkPolicy(func(p *world.NetworkPolicy) {
			p.Ingress = []world.PolicyRule{{Ports: []world.PolicyPort{{Port: &world.PortRef{By: world.ByName, Name: "metrics"}}}}}
		})}, 0, isolated, "spec.ingress[0] UnresolvedPort"},
		{"named port that no peer has", []world.Change{networkPolicy(to(world.PolicyPeer{Pods: byApp("z")}))}, egress, isolated, "spec.egress[0] UnresolvedPort"},
		{"unknown tenants of a Deny", []world.Change{clusterPolicy("c", func(p *world.ClusterNetworkPolicy) {
			p.Ingress = []world.ClusterRule{{Action: "Deny", Peers: []world.ClusterPeer{{Pods: &world.NamespacedPods{Pods: *byApp("b")}}}}}
		}), forget(world.KindPod, "db", "c")}, 0, "Admin Deny 10.128.0.18/31, everything (0)", ""},
		{"a Pass denies whom it does not know", []world.Change{clusterPolicy("c", func(p *world.ClusterNetworkPolicy) {
			p.Ingress = []world.ClusterRule{{Action: "Pass", Peers: []world.ClusterPeer{{Pods: &world.NamespacedPods{Pods: *byApp("b")}}}}}
		}), forget(world.KindPod, "db", "c")}, 0, "Admin Pass 10.128.0.18/32, everything (0)\nAdmin Deny 10.128.0.18/31, everything (0)", ""},
		{"Accept with a peer that is not known", []world.Change{clusterPolicy("c", func(p *world.ClusterNetworkPolicy) {
			p.Egress = []world.ClusterRule{{Action: "Accept", Peers: []world.ClusterPeer{{DomainNames: []string{"example.com"}}}}}
		})}, egress, "", "spec.egress[0].to[0].domainNames DomainNamesUnsupported"},
		{"Pass with a peer that is not known", []world.Change{clusterPolicy("c", func(p *world.ClusterNetworkPolicy) {
			p.Egress = []world.ClusterRule{{Action: "Pass", Peers: []world.ClusterPeer{{DomainNames: []string{"example.com"}}, {Namespaces: everyone}}}}
		})}, egress, "Admin Deny, everything (0)", "spec.egress[0].to[0].domainNames DomainNamesUnsupported"},
		{"nodes with all that is theirs", []world.Change{clusterPolicy("c", func(p *world.ClusterNetworkPolicy) {
			p.Egress = []world.ClusterRule{{Action: "Deny", Peers: []world.ClusterPeer{{Nodes: &world.Selector{MatchLabels: map[string]string{"zone": "n2"}}}}}}
		})}, egress, "Admin Deny 10.128.0.17/32 172.30.0.12/32, everything (0)", ""},
		{"baseline is not asked about isolated pods", []world.Change{networkPolicy(func(*world.NetworkPolicy) {}), clusterPolicy("c", func(p *world.ClusterNetworkPolicy) {
			p.Tier, p.Ingress = "Baseline", []world.ClusterRule{{Action: "Accept", Peers: []world.ClusterPeer{{Namespaces: everyone}}}}
		})}, 0, isolated, ""},
		{"equal priorities", []world.Change{clusterPolicy("c", func(*world.ClusterNetworkPolicy) {}), clusterPolicy("d", func(*world.ClusterNetworkPolicy) {})}, 0, "", "spec.priority EqualPriority"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			snap := small().Apply(tt.changes...)
			s := Decide(nil, new(stages).input("n1", snap))
			if got := show(s, tt.dir); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			got := ""
			for _, p := range s.Problems {
				got += p.Field + " " + p.Reason
			}
			if got != tt.problem {
				t.Errorf("problems %q, want %q", got, tt.problem)
			}
		})
	}
}

// TestSharing: ports that no policy tells apart share their list, and the members of
// a set do not change it.
func TestSharing(t *testing.T) {
	store := small()
	var kept stages
	allow := networkPolicy(func(p *world.NetworkPolicy) {
		p.Ingress = []world.PolicyRule{{Peers: []world.PolicyPeer{{Pods: byApp("b"), Namespaces: &world.Selector{}}}}}
	})
	s := Decide(nil, kept.input("n1", store.Apply(allow)))
	if s.Ports["a"] != s.Ports["a2"] || len(s.RuleLists) != 1 {
		t.Fatalf("ports %+v, %d lists", s.Ports, len(s.RuleLists))
	}
	relabelled := world.Pod{Namespace: "db", Name: "c", UID: "c", Node: "n2"}
	next := Decide(s, kept.input("n1", store.Apply(world.Change{Kind: world.KindPod, Key: world.Key{Namespace: "db", Name: "c"}, Object: &relabelled})))
	if next.Ports["a"] != s.Ports["a"] {
		t.Error("a change of a peer's labels changed the list")
	}
	if got := next.AddressSets[0].String(); got != "10.128.0.18/32" {
		t.Errorf("the set holds %s", got)
	}
}

// TestStatusFallback: a pod's status counts where no block says whose an address is.
func TestStatusFallback(t *testing.T) {
	store := small()
	pod := func(name, node, addr string) world.Change {
		p := &world.Pod{Namespace: "web", Name: name, UID: name, Node: node, Labels: map[string]string{"app": "n"}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
		return world.Change{Kind: world.KindPod, Key: world.Key{Namespace: "web", Name: name}, Object: p}
	}
	snap := store.Apply(
		networkPolicy(func(p *world.NetworkPolicy) {
			p.Ingress = []world.PolicyRule{{Peers: []world.PolicyPeer{{Pods: byApp("n")}}}}
		}),
		pod("fresh", "n2", "10.128.0.20"),
		pod("liar", "n2", "10.128.0.19"),                                 // that of db/c
		pod("elsewhere", "n1", "10.128.0.21"),                            // of a block of n2
		pod("nowhere", "n2", "10.128.0.200"),                             // of no block
		pod("one", "n2", "10.128.0.22"), pod("two", "n2", "10.128.0.22"), // of two: of nobody
	)
	s := Decide(nil, new(stages).input("n1", snap))
	if got := s.AddressSets[0].String(); got != "10.128.0.20/32" {
		t.Errorf("the set holds %s, want 10.128.0.20/32", got)
	}
}

// TestStrayAllocation: what a block says that is not in use keeps a pod's status from
// counting, as long as the block is there.
func TestStrayAllocation(t *testing.T) {
	store := small()
	stray := world.Block{Name: "stray", Subnet: "nobody", CIDR: netip.MustParsePrefix("10.128.0.20/32"), Node: "n2", Allocations: []world.Allocation{{Addr: netip.MustParseAddr("10.128.0.20")}}}
	key := world.Key{Name: stray.Name}
	fresh := &world.Pod{Namespace: "web", Name: "fresh", UID: "fresh", Node: "n2", Labels: map[string]string{"app": "n"}, Addresses: []netip.Addr{netip.MustParseAddr("10.128.0.20")}}
	store.Apply(
		networkPolicy(func(p *world.NetworkPolicy) {
			p.Ingress = []world.PolicyRule{{Peers: []world.PolicyPeer{{Pods: byApp("n")}}}}
		}),
		world.Change{Kind: world.KindPod, Key: world.Key{Namespace: "web", Name: "fresh"}, Object: fresh},
	)
	var kept stages
	var s *State
	for i, want := range []string{"none", "10.128.0.20/32", "none"} {
		c := world.Change{Kind: world.KindBlock, Key: key}
		if want == "none" {
			again := stray
			c.Object = &again
		}
		s = Decide(s, kept.input("n1", store.Apply(c)))
		if got := s.AddressSets[0].String(); got != want {
			t.Errorf("round %d: the set holds %s, want %s", i, got, want)
		}
	}
}
