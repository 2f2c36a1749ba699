package oracle_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// What policies say of a packet alone is what they say on its way.
func TestPoliciesAreThoseOfTheWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := oracle.Read(worldtest.DrawPolicies(t, worldtest.Draw(t)))
		ends := m.Ends()
		if len(ends) == 0 {
			return
		}
		for range 20 {
			from, to := rapid.SampledFrom(ends).Draw(t, "from"), rapid.SampledFrom(ends).Draw(t, "to")
			p := oracle.Probe{From: from.Place, Packet: packet.Packet{
				Src: from.Addr, Dst: to.Addr, Protocol: packet.TCP, SrcPort: 40000, DstPort: 80, SYN: true,
			}}
			both := m.Policies(p)
			for _, s := range m.Judge(nil, p).Stages {
				said := map[string][]oracle.Stage{"egress": both.Egress, "ingress": both.Ingress}[s.Name]
				if s.Name == "egress" || s.Name == "ingress" {
					found := false
					for _, x := range said {
						found = found || x.Why == s.Why && x.Pass == s.Pass
					}
					if !found {
						t.Fatalf("%v: the way has %v, the policies alone say %v", p.Packet, s, said)
					}
				}
			}
		}
	})
}

func TestSelected(t *testing.T) {
	pod := func(name, app string, more func(*world.Pod)) world.Change {
		p := &world.Pod{Namespace: "a", Name: name, Labels: map[string]string{"app": app}}
		if more != nil {
			more(p)
		}
		return world.Change{Kind: world.KindPod, Key: world.Key{Namespace: "a", Name: name}, Object: p}
	}
	snap := world.NewStore(nil).Apply(
		pod("p1", "x", nil), pod("p2", "y", nil), pod("host", "x", func(p *world.Pod) { p.HostNetwork = true }), pod("done", "x", func(p *world.Pod) { p.Finished = true }),
		world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: "a", Name: "n"}, Object: &world.NetworkPolicy{Namespace: "a", Name: "n", Pods: world.Selector{MatchLabels: map[string]string{"app": "x"}}}},
		world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: "b", Name: "n"}, Object: &world.NetworkPolicy{Namespace: "b", Name: "n"}},
	)
	m := oracle.Read(snap)
	if got := m.Selected(world.KindNetworkPolicy, world.Key{Namespace: "a", Name: "n"}); len(got) != 1 || got[0].Name != "p1" {
		t.Errorf("selected %v, want p1", got)
	}
	for _, key := range []world.Key{{Namespace: "b", Name: "n"}, {Namespace: "a", Name: "none"}} {
		if got := m.Selected(world.KindNetworkPolicy, key); len(got) != 0 {
			t.Errorf("%s selects %v", key, got)
		}
	}
}
