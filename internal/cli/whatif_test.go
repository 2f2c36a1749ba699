package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// drawChange changes a world: mostly policies, now and then labels, and what every pair
// may depend on.
func drawChange(t *rapid.T, snap *world.Snapshot) *world.Snapshot {
	store := world.NewStore(snap)
	again := worldtest.DrawPolicies(t, snap)
	for d := range world.Diff(snap.NetworkPolicies, again.NetworkPolicies) {
		switch rapid.IntRange(0, 2).Draw(t, "what becomes of a policy") {
		case 0:
			store.Apply(world.Change{Kind: world.KindNetworkPolicy, Key: d.Key, Object: d.New})
		case 1:
			store.Apply(world.Change{Kind: world.KindNetworkPolicy, Key: d.Key})
		}
	}
	for d := range world.Diff(snap.ClusterNetworkPolicies, again.ClusterNetworkPolicies) {
		if rapid.Bool().Draw(t, "a cluster policy changes") {
			store.Apply(world.Change{Kind: world.KindClusterNetworkPolicy, Key: d.Key, Object: d.New})
		}
	}
	once := func(label string) bool { return rapid.IntRange(1, 10).Draw(t, label) == 1 }
	for p := range snap.Pods.Values() {
		if once("labels of a pod change") {
			next := *p
			next.Labels = map[string]string{"app": rapid.SampledFrom([]string{"web", "db", "x"}).Draw(t, "app")}
			store.Apply(world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &next})
		}
		if once("a pod is another") {
			next := *p
			next.UID = "another"
			store.Apply(world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &next})
		}
		if once("a pod goes") {
			store.Apply(world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}})
		}
	}
	for ns := range snap.Namespaces.Values() {
		if once("labels of a namespace change") {
			next := *ns
			next.Labels = map[string]string{"team": "a", "vpc": rapid.SampledFrom([]string{"", "blue"}).Draw(t, "vpc")}
			store.Apply(world.Change{Kind: world.KindNamespace, Key: world.Key{Name: ns.Name}, Object: &next})
		}
	}
	for v := range snap.VPCs.Values() {
		if once("a VPC changes") {
			next := *v
			next.Tenant = !v.Tenant
			store.Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: v.Name}, Object: &next})
		}
	}
	out, _ := store.Snapshot()
	return out
}

// outcome is one pair that changes.
type outcome struct {
	from, to, port, family string
	after                  string
}

func compareOutcomes(a, b outcome) int {
	return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.port, b.port), cmp.Compare(a.family, b.family))
}

// podGone: a pod of that name was there, and is not any more.
func podGone(before, after *world.Snapshot, name string) bool {
	key, _ := podKey(name)
	_, was := before.Pods.Get(key)
	_, is := after.Pods.Get(key)
	return was && !is
}

// The answer is that of the oracle asked about every pair, before and after, but that
// a pod that is deleted talks no more.
func TestWhatifIsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := worldtest.DrawPolicies(t, worldtest.Draw(t))
		after := drawChange(t, before)
		c := newComparison(before, after)
		var r whatifReport
		if err := c.run(t.Context(), &r); err != nil {
			t.Fatal(err)
		}
		var got, want []outcome
		for _, g := range r.Reach {
			for _, from := range g.From {
				for _, to := range g.To {
					for _, f := range g.Families {
						got = append(got, outcome{from, to, g.Port, f, g.After})
					}
				}
			}
		}
		models := []*oracle.Model{oracle.Read(before), oracle.Read(after)}
		for _, to := range c.hosts {
			for _, from := range c.hosts {
				for _, port := range to.ports {
					for family, name := range []string{"IPv4", "IPv6"} {
						src, dst := from.ends[family], to.ends[family]
						if from.name == to.name || !from.pod && !to.pod || !src.Addr.IsValid() || !dst.Addr.IsValid() {
							continue
						}
						p := probeOf(src, dst, port)
						b, a := models[0].Judge(nil, p).Allowed, models[1].Judge(nil, p).Allowed
						word := allowWord(a)
						if podGone(before, after, from.name) || podGone(before, after, to.name) {
							a, word = false, "gone"
						}
						if a != b {
							want = append(want, outcome{from.name, to.name, port.String(), name, word})
						}
					}
				}
			}
		}
		slices.SortFunc(got, compareOutcomes)
		slices.SortFunc(want, compareOutcomes)
		if d := gocmp.Diff(want, got, gocmp.AllowUnexported(outcome{})); d != "" {
			t.Fatalf("(-every pair +whatif)\n%s", d)
		}
		if r.Changed != len(want) {
			t.Fatalf("counted %d changes of %d", r.Changed, len(want))
		}
	})
}

// Every pod that has an address is an end of pairs.
func TestWhatifLeavesNobodyOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snap := worldtest.DrawPolicies(t, worldtest.Draw(t))
		c := newComparison(snap, snap)
		for _, e := range oracle.Read(snap).Ends() {
			p, ok := snap.Pods.Get(e.Place.Pod)
			if e.Place.Kind != oracle.Pod || !ok || p.Finished || p.HostNetwork {
				continue
			}
			if !slices.ContainsFunc(c.hosts, func(h host) bool { return h.name == e.Place.Pod.String() && len(h.ports) > 0 }) {
				t.Fatalf("%s is left out", e.Place.Pod)
			}
		}
	})
}

// large is a cluster of pods in namespaces of deployments, each with a policy.
func large(pods, perNamespace, perApp int) *world.Snapshot {
	changes := []world.Change{
		{Kind: world.KindVPC, Key: world.Key{Name: "default"}, Object: &world.VPC{Name: "default", VNI: 4096}},
		{Kind: world.KindSubnet, Key: world.Key{Name: "default"}, Object: &world.Subnet{Name: "default", VPC: "default", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}}},
	}
	blocks := map[int]*world.Block{}
	for i := range pods {
		ns, app := fmt.Sprintf("ns%d", i/perNamespace), fmt.Sprintf("app%d", i/perApp)
		node := fmt.Sprintf("n%d", i%10)
		p := &world.Pod{
			Namespace: ns, Name: fmt.Sprintf("p%d", i), Node: node, Labels: map[string]string{"app": app},
			Ports: []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: 8080}},
		}
		changes = append(changes, world.Change{Kind: world.KindPod, Key: world.Key{Namespace: ns, Name: p.Name}, Object: p})
		changes = append(changes, world.Change{Kind: world.KindNamespace, Key: world.Key{Name: ns}, Object: &world.Namespace{Name: ns, Labels: map[string]string{"name": ns}}})
		b := blocks[i%10]
		if b == nil {
			cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, byte(4 * (i % 10)), 0}), 22)
			b = &world.Block{Name: "b" + node, Subnet: "default", CIDR: cidr, Node: node}
			blocks[i%10] = b
			addr := netip.AddrFrom4([4]byte{172, 30, 0, byte(10 + i%10)})
			changes = append(changes,
				world.Change{Kind: world.KindNode, Key: world.Key{Name: node}, Object: &world.Node{Name: node, Addresses: []netip.Addr{addr}}},
				world.Change{Kind: world.KindNodeNetwork, Key: world.Key{Name: node}, Object: &world.NodeNetwork{Name: node, Addresses: []netip.Prefix{netip.PrefixFrom(addr, 24)}, MTU: 1500}},
				world.Change{Kind: world.KindBlock, Key: world.Key{Name: b.Name}, Object: b})
		}
		a := b.CIDR.Addr().As4()
		n := len(b.Allocations) + 1
		b.Allocations = append(b.Allocations, world.Allocation{Addr: netip.AddrFrom4([4]byte{a[0], a[1], a[2] + byte(n>>8), byte(n)}), Owner: world.Owner{Namespace: ns, Name: p.Name}})
		if i%perApp == 0 {
			changes = append(changes, world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: ns, Name: app}, Object: &world.NetworkPolicy{
				Namespace: ns, Name: app, Pods: world.Selector{MatchLabels: map[string]string{"app": app}}, Types: []string{"Ingress"},
				Ingress: []world.PolicyRule{{Peers: []world.PolicyPeer{{Namespaces: &world.Selector{MatchLabels: map[string]string{"name": ns}}}}}},
			}})
		}
	}
	return world.NewStore(nil).Apply(changes...)
}

// denyFrom is a policy about every pod.
func denyFrom(namespace string) world.Change {
	return world.Change{Kind: world.KindClusterNetworkPolicy, Key: world.Key{Name: "all"}, Object: &world.ClusterNetworkPolicy{
		Name: "all", Tier: "Admin", Subject: world.ClusterSubject{Namespaces: &world.Selector{}}, Ingress: []world.ClusterRule{{
			Action: "Deny", Peers: []world.ClusterPeer{{Namespaces: &world.Selector{MatchLabels: map[string]string{"name": namespace}}}},
		}},
	}}
}

func TestWhatifOfManyPods(t *testing.T) {
	before := large(300, 50, 5)
	for _, tt := range []struct {
		name           string
		change         world.Change
		pairs, changed int
	}{
		// The pods of ns3 to each other: all that a NetworkPolicy lets in from there.
		{"all pods", denyFrom("ns3"), 305 * 305, 50 * 49},
		{"one namespace", world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: "ns5", Name: "closed"}, Object: &world.NetworkPolicy{Namespace: "ns5", Name: "closed"}}, 50 * 600, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newComparison(before, world.NewStore(before).Apply(tt.change))
			var r whatifReport
			if err := c.run(t.Context(), &r); err != nil {
				t.Fatal(err)
			}
			if r.Limited != "" || r.Changed != tt.changed || r.Pairs > tt.pairs {
				t.Errorf("%d pairs, at most %d; %d changes, want %d; limited: %q", r.Pairs, tt.pairs, r.Changed, tt.changed, r.Limited)
			}
		})
	}
}

// A thousand pods, 200 policies, and a policy that is about all of them.
func BenchmarkWhatif(b *testing.B) {
	before := large(1000, 50, 5)
	after := world.NewStore(before).Apply(denyFrom("ns3"))
	for b.Loop() {
		var r whatifReport
		if err := newComparison(before, after).run(b.Context(), &r); err != nil || r.Limited != "" {
			b.Fatal(r.Limited, err)
		}
	}
}

// What does not fit is left out, and said.
func TestWhatifIsBounded(t *testing.T) {
	before := large(60, 20, 5)
	c := newComparison(before, world.NewStore(before).Apply(denyFrom("ns1")))
	c.budget = 20
	var r whatifReport
	if err := c.run(t.Context(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Limited == "" {
		t.Error("the limit is not said")
	}
}
