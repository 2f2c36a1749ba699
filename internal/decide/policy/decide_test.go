package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

var asValues = cmp.Options{
	cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(State{}),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// stages are what comes before policies, taken over where nothing changed, as the
// Compiler does.
type stages struct {
	world    *world.Snapshot
	tenancy  *tenancy.Result
	underlay *addressing.Underlay
	subnets  *addressing.Subnets
	routes   *addressing.Routes
}

func (s *stages) input(node string, now *world.Snapshot) Input {
	was := s.world
	s.world = now
	fresh := was == nil
	if fresh {
		was = &world.Snapshot{}
	}
	if fresh || was.Namespaces != now.Namespaces || was.VPCs != now.VPCs || was.NetNamespaces != now.NetNamespaces {
		s.tenancy, fresh = tenancy.Decide(now.Namespaces, now.VPCs, now.NetNamespaces), true
	}
	if fresh || was.Nodes != now.Nodes || was.NodeNetworks != now.NodeNetworks || was.Subnets != now.Subnets {
		exists := func(name string) bool {
			_, ok := now.Nodes.Get(world.Key{Name: name})
			return ok
		}
		s.underlay = addressing.DecideUnderlay(node, exists, now.NodeNetworks)
		s.subnets = addressing.DecideSubnets(s.tenancy, s.underlay.Segments, now.Subnets)
		fresh = true
	}
	same := !fresh
	for d := range world.Diff(was.Blocks, now.Blocks) {
		same = same && d.HadOld && d.HasNew && addressing.SameRouting(d.Old, d.New)
	}
	if !same {
		s.routes = addressing.DecideRoutes(s.underlay, s.subnets, now.Blocks)
	}
	in := Input{World: now, Underlay: s.underlay, Routes: s.routes}
	for a := range now.Attachments.Values() {
		if sn, ok := s.subnets.Get(a.Subnet); ok && len(a.Addresses) > 0 {
			in.Endpoints = append(in.Endpoints, Endpoint{Port: a.ID, VPC: sn.VPC, Pod: a.Pod})
		}
	}
	return in
}

// node makes an intent of what Validate needs to check lists and sets.
func (s *stages) node(name string, st *State) intent.Node {
	return intent.Node{Name: name, MTU: 1450, VPCs: s.tenancy.VPCs, AddressSets: st.AddressSets, RuleLists: st.RuleLists}
}

// TestIncrementalEqualsFromScratch applies arbitrary changes to a drawn world: after
// each, what is decided with the State before equals what is without.
func TestIncrementalEqualsFromScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := worldtest.DrawPolicies(t, worldtest.Draw(t))
		if rapid.Bool().Draw(t, "from nothing") {
			start = &world.Snapshot{}
		}
		store := world.NewStore(worldtest.Local(start, "n1"))
		var kept stages
		var state, earlier *State
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			var changes []world.Change
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				changes = append(changes, drawChange(t, store))
			}
			snap := store.Apply(changes...)
			in := kept.input("n1", snap)
			got := Decide(state, in)
			want := Decide(nil, new(stages).input("n1", snap))
			if diff := cmp.Diff(want, got, asValues); diff != "" {
				t.Fatalf("incremental differs from scratch (-want +got):\n%s", diff)
			}
			if earlier != nil { // A State may be used twice.
				if diff := cmp.Diff(want, Decide(earlier, in), asValues); diff != "" {
					t.Fatalf("with an earlier State (-want +got):\n%s", diff)
				}
			}
			if faults := intent.Validate(kept.node("n1", got)); len(faults) > 0 {
				t.Fatalf("invalid: %v", faults)
			}
			earlier, state = state, got
		}
	})
}

// drawChange draws an arbitrary change, or one that the policies of drawn worlds see.
func drawChange(t *rapid.T, store *world.Store) world.Change {
	snap, _ := store.Snapshot()
	app := func() map[string]string {
		return map[string]string{"app": rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "app")}
	}
	switch rapid.SampledFrom([]string{"wild", "pod", "pod", "namespace", "block", "node"}).Draw(t, "change") {
	case "pod":
		if snap.Pods.Len() == 0 {
			break
		}
		p := *rapid.SampledFrom(slices.Collect(snap.Pods.Values())).Draw(t, "pod")
		c := world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}
		switch rapid.IntRange(0, 4).Draw(t, "what of the pod") {
		case 0:
			p.Labels = app()
		case 1:
			p.UID = "again"
		case 2:
			p.Ports = []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: uint16(rapid.IntRange(0, 3).Draw(t, "port"))}}
		case 3:
			p.HostNetwork, p.Finished = false, false
			p.Node, p.Addresses = rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node"), []netip.Addr{netip.AddrFrom4([4]byte{10, 128, 0, byte(rapid.IntRange(0, 31).Draw(t, "address"))})}
		default:
			c.Object = nil
		}
		return c
	case "namespace":
		name := rapid.SampledFrom([]string{"ns1", "ns2", "ns3", "ns4"}).Draw(t, "namespace")
		label := rapid.SampledFrom([]string{"ns1", "ns2", "ns3", "ns4"}).Draw(t, "label")
		return world.Change{Kind: world.KindNamespace, Key: world.Key{Name: name}, Object: &world.Namespace{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": label}}}
	case "block":
		if snap.Blocks.Len() == 0 {
			break
		}
		b := *rapid.SampledFrom(slices.Collect(snap.Blocks.Values())).Draw(t, "block")
		if rapid.IntRange(0, 3).Draw(t, "another node's") == 0 {
			b.Node = rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node")
		} else if b.Allocations = slices.Clone(b.Allocations); len(b.Allocations) > 0 {
			i := rapid.IntRange(0, len(b.Allocations)-1).Draw(t, "allocation")
			if rapid.Bool().Draw(t, "another's") {
				b.Allocations[i].Owner = world.Owner{Namespace: "ns1", Name: "p1"}
			} else {
				b.Allocations = slices.Delete(b.Allocations, i, i+1)
			}
		}
		return world.Change{Kind: world.KindBlock, Key: world.Key{Name: b.Name}, Object: &b}
	case "node":
		name := rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node")
		return world.Change{Kind: world.KindNode, Key: world.Key{Name: name}, Object: &world.Node{Name: name, Labels: map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")}}}
	}
	return worldtest.Wild(t)
}

// TestUnrelatedChangesComputeNothing counts what each change costs.
func TestUnrelatedChangesComputeNothing(t *testing.T) {
	snap := worldtest.Local(worldtest.Large(8, 50), "node0000")
	app := func(app string) *world.Selector {
		return &world.Selector{MatchLabels: map[string]string{"tier": app}}
	}
	allow := func(namespace, name string, peer *world.Selector) world.Change {
		p := &world.NetworkPolicy{Namespace: namespace, Name: name, Ingress: []world.PolicyRule{{Peers: []world.PolicyPeer{{Pods: peer, Namespaces: &world.Selector{}}}}}}
		return world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: namespace, Name: name}, Object: p}
	}
	store := world.NewStore(snap)
	// The node's pods are of ns0000.
	snap = store.Apply(allow("ns0000", "a", app("t1")), allow("ns0000", "b", app("t2")), allow("ns0001", "c", app("t3")))
	var kept stages
	s := Decide(nil, kept.input("node0000", snap))
	if want := (work{parsed: 3, pods: 400, classes: 7, compiled: 7}); s.work != want {
		t.Errorf("from scratch: %+v, want %+v", s.work, want)
	}
	far, _ := snap.Pods.Get(world.Key{Namespace: "ns0003", Name: "web-00301"})
	relabelled := func(tier string) world.Change {
		p := *far
		p.Labels = map[string]string{"tier": tier}
		return world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}
	}
	annotated := *far
	annotated.WantIP = "10.0.0.1"
	for _, tt := range []struct {
		name   string
		change world.Change
		want   work
	}{
		{"nothing", world.Change{}, work{}},
		{"an annotation", world.Change{Kind: world.KindPod, Key: world.Key{Namespace: far.Namespace, Name: far.Name}, Object: &annotated}, work{}},
		{"a label that nobody asks for", relabelled("t9"), work{pods: 1}},
		{"a label that one asks for", relabelled("t1"), work{pods: 1, collections: 1}},
		{"from one to another", relabelled("t2"), work{pods: 1, collections: 2}},
		{"a namespace that everybody is to be in", world.Change{Kind: world.KindNamespace, Key: world.Key{Name: "ns0003"}, Object: &world.Namespace{Name: "ns0003", Labels: map[string]string{"x": "y"}}}, work{}},
		{"a policy of another namespace", allow("ns0002", "d", app("t4")), work{parsed: 1}},
		{"a policy of ours", allow("ns0000", "e", app("t5")), work{parsed: 1, classes: 7, compiled: 7}},
		{"a node", world.Change{Kind: world.KindNode, Key: world.Key{Name: "node0003"}}, work{}},
	} {
		s = Decide(s, kept.input("node0000", store.Apply(tt.change)))
		if s.work != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, s.work, tt.want)
		}
	}
}
