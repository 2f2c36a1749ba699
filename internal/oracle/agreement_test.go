package oracle

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// TestReadsTheWorldAsDecideDoes compares two independent readings of arbitrary
// worlds, good and bad: who is in which VPC, which VNI names whom, which Subnets
// and which nodes are in use.
func TestReadsTheWorldAsDecideDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store := world.NewStore(nil)
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			store.Apply(worldtest.Wild(t))
		}
		snap, _ := store.Snapshot()
		m := Read(snap)
		tenants := tenancy.Decide(snap.Namespaces, snap.VPCs, snap.NetNamespaces)
		exists := func(name string) bool {
			_, ok := snap.Nodes.Get(world.Key{Name: name})
			return ok
		}
		underlay := addressing.DecideUnderlay("nobody", exists, snap.NodeNetworks)
		subnets := addressing.DecideSubnets(tenants, underlay.Segments, snap.Subnets)

		for ns := range snap.Namespaces.Values() {
			if want, _ := tenants.VPCOf(ns.Name); m.home[ns.Name] != want {
				t.Fatalf("namespace %s: the oracle says VPC %s, decide %s", ns.Name, m.home[ns.Name], want)
			}
			for _, v := range m.vpcs {
				want, err := tenants.VNI(v.Name, ns.Name)
				if got := m.vniOf(v, ns.Name); got != want {
					t.Fatalf("namespace %s in VPC %s: the oracle says VNI %d, decide %d (%v)", ns.Name, v.Name, got, want, err)
				}
			}
		}
		usable := map[string]packet.VNI{}
		for _, v := range tenants.VPCs {
			usable[v.Name] = v.VNI
		}
		got := map[string]packet.VNI{}
		for _, v := range m.vpcs {
			got[v.Name] = v.VNI
		}
		if diff := cmp.Diff(usable, got); diff != "" {
			t.Fatalf("usable VPCs (-decide +oracle):\n%s", diff)
		}
		var wantSubnets, gotSubnets []string
		for _, s := range subnets.List {
			wantSubnets = append(wantSubnets, s.Name)
		}
		for _, s := range m.subnets {
			gotSubnets = append(gotSubnets, s.Name)
		}
		slices.Sort(gotSubnets)
		if diff := cmp.Diff(wantSubnets, gotSubnets, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("Subnets in use (-decide +oracle):\n%s", diff)
		}
		wantNodes, gotNodes := map[string][]netip.Addr{}, map[string][]netip.Addr{}
		for _, p := range underlay.Peers {
			wantNodes[p.Name] = p.Addrs
		}
		for node, own := range m.underlay {
			for _, p := range own {
				gotNodes[node] = append(gotNodes[node], p.Addr())
			}
			slices.SortFunc(gotNodes[node], netip.Addr.Compare)
		}
		if diff := cmp.Diff(wantNodes, gotNodes, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("nodes (-decide +oracle):\n%s", diff)
		}
	})
}

// vniOf is what packets of a namespace's pods bear in a VPC; zero is no network.
func (m *Model) vniOf(v *world.VPC, namespace string) packet.VNI {
	s := &world.Subnet{VPC: v.Name}
	h := holding{subnet: s, place: Place{Kind: Pod, Pod: world.Key{Namespace: namespace}}}
	t := m.tenants[namespace]
	switch {
	case m.unconnected(h) != "":
		return 0
	case !v.Tenant || t.global:
		return v.VNI
	}
	return t.vni
}

// TestSelectsAsSelectorDoes compares the two evaluations of label selectors.
func TestSelectsAsSelectorDoes(t *testing.T) {
	text := rapid.SampledFrom([]string{"", "a", "b", "x/a", "x.y/b", "A_b", "-", "a b", "x/", "/a", "X/a", "a\n", "aé"})
	rapid.Check(t, func(t *rapid.T) {
		var s *world.Selector
		if rapid.IntRange(0, 9).Draw(t, "present") > 0 {
			s = &world.Selector{MatchLabels: rapid.MapOfN(text, text, 0, 2).Draw(t, "matchLabels")}
			for range rapid.IntRange(0, 2).Draw(t, "requirements") {
				s.MatchExpressions = append(s.MatchExpressions, world.Requirement{
					Key:      text.Draw(t, "key"),
					Operator: rapid.SampledFrom([]string{"In", "NotIn", "Exists", "DoesNotExist", "exists", ""}).Draw(t, "operator"),
					Values:   rapid.SliceOfN(text, 0, 2).Draw(t, "values"),
				})
			}
		}
		labels := rapid.MapOfN(text, text, 0, 3).Draw(t, "labels")
		m, err := selector.Parse(s)
		if got, want := selects(s, labels), m.Matches(labels); got != want {
			t.Fatalf("the oracle says %v, package selector %v (%v)", got, want, err)
		}
	})
}

// TestJudgeIsTotal asks about arbitrary packets in arbitrary worlds.
func TestJudgeIsTotal(t *testing.T) {
	addrs := []netip.Addr{{}}
	for _, s := range []string{"10.128.0.1", "10.128.0.2", "10.128.0.17", "fd10::1", "172.30.0.1", "::ffff:10.128.0.1", "fe80::1%eth0", "127.0.0.1", "203.0.113.1"} {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	rapid.Check(t, func(t *rapid.T) {
		store := world.NewStore(nil)
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			store.Apply(worldtest.Wild(t))
		}
		snap, _ := store.Snapshot()
		m := Read(snap)
		flows := &Flows{Adopting: rapid.Bool().Draw(t, "adopting")}
		for range rapid.IntRange(1, 10).Draw(t, "packets") {
			p := Probe{
				From: Place{
					Kind: PlaceKind(rapid.IntRange(0, 3).Draw(t, "kind")), Node: rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"),
					Pod: world.Key{Namespace: "ns1", Name: rapid.SampledFrom([]string{"p1", "p2"}).Draw(t, "pod")},
				},
				Packet: packet.Packet{
					Src: rapid.SampledFrom(addrs).Draw(t, "src"), Dst: rapid.SampledFrom(addrs).Draw(t, "dst"),
					Protocol: rapid.SampledFrom([]packet.Protocol{packet.TCP, packet.UDP, packet.ICMP}).Draw(t, "protocol"),
				},
			}
			if rapid.IntRange(0, 4).Draw(t, "embedded") == 0 {
				p.Embedded = &packet.Packet{Src: rapid.SampledFrom(addrs).Draw(t, "quoted src")}
			}
			v := m.Judge(flows, p)
			if len(v.Stages) == 0 || len(v.Outcomes) == 0 || v.Allowed && v.Outcomes[0].Dropped {
				t.Fatalf("no verdict on %v: %+v", p, v)
			}
			flows.Begin(p, v.Outcomes[len(v.Outcomes)-1])
		}
	})
}
