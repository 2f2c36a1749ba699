package decide

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

var asValues = cmp.Options{
	cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// TestIncrementalEqualsFromScratch applies arbitrary changes one after the other:
// after each, the compile with the cache of the one before equals one without, the
// intent is valid, and nothing panics.
func TestIncrementalEqualsFromScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		compiler := New(Config{Node: "n1", MTU: rapid.SampledFrom([]int{0, 0, 1200, 1400}).Draw(t, "configured MTU")})
		var start *world.Snapshot
		if rapid.Bool().Draw(t, "from a cluster") {
			start = worldtest.Local(worldtest.DrawPolicies(t, worldtest.Draw(t)), "n1")
		}
		store := world.NewStore(start)
		var state *State
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			var changes []world.Change
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				changes = append(changes, worldtest.Wild(t))
			}
			snap := store.Apply(changes...)
			var got intent.Node
			var gotProblems []world.Problem
			got, state, gotProblems = compiler.Compile(state, snap)
			want, _, wantProblems := compiler.Compile(nil, snap)
			if diff := cmp.Diff(want, got, asValues); diff != "" {
				t.Fatalf("incremental intent differs from scratch (-want +got):\n%s", diff)
			}
			if !got.Equal(want) {
				t.Fatal("Equal disagrees with cmp.Diff")
			}
			if diff := cmp.Diff(wantProblems, gotProblems, asValues); diff != "" {
				t.Fatalf("incremental problems differ from scratch (-want +got):\n%s", diff)
			}
			if faults := intent.Validate(got); len(faults) > 0 {
				t.Fatalf("invalid intent: %v\n%s", faults, got)
			}
		}
	})
}

// TestOrderOfChangesDoesNotMatter builds one world in two orders.
func TestOrderOfChangesDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := map[string]world.Change{}
		for range rapid.IntRange(1, 60).Draw(t, "objects") {
			c := worldtest.Wild(t)
			last[string(c.Kind)+" "+c.Key.String()] = c
		}
		var changes []world.Change
		for _, c := range last {
			changes = append(changes, c)
		}
		compiler := New(Config{Node: "n1"})
		want, _, wantProblems := compiler.Compile(nil, world.NewStore(nil).Apply(changes...))
		r := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		store := world.NewStore(nil)
		var snap *world.Snapshot
		for _, c := range changes {
			snap = store.Apply(c)
		}
		got, _, gotProblems := compiler.Compile(nil, snap)
		if diff := cmp.Diff(want, got, asValues); diff != "" {
			t.Fatalf("the order of changes shows in the intent:\n%s", diff)
		}
		if diff := cmp.Diff(wantProblems, gotProblems, asValues); diff != "" {
			t.Fatalf("the order of changes shows in the problems:\n%s", diff)
		}
	})
}

// TestDrawnClustersAreValid compiles consistent clusters for every node.
func TestDrawnClustersAreValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snap := worldtest.DrawPolicies(t, worldtest.Draw(t))
		for n := range snap.NodeNetworks.Values() {
			got, _, _ := New(Config{Node: n.Name}).Compile(nil, worldtest.Local(snap, n.Name))
			if faults := intent.Validate(got); len(faults) > 0 {
				t.Fatalf("invalid intent: %v\n%s", faults, got)
			}
		}
	})
}

// TestUnchangedInputsComputeNothing counts the stages that each change costs.
func TestUnchangedInputsComputeNothing(t *testing.T) {
	snap := worldtest.Local(worldtest.Large(5, 10), "node0000")
	store := world.NewStore(snap)
	compiler := New(Config{Node: "node0000"})
	_, state, _ := compiler.Compile(nil, snap)
	if diff := cmp.Diff([]string{"tenancy", "underlay", "subnets", "routes", "tunnels", "ports", "policies"}, state.computed); diff != "" {
		t.Fatalf("from scratch (-want +got):\n%s", diff)
	}
	block := *get(snap.Blocks, "default.0a800040-26")
	block.Allocations = block.Allocations[1:]
	lending := *get(snap.Blocks, "default.0a800080-26")
	lending.Lent = []world.Loan{{Addr: netip.MustParseAddr("10.128.0.190"), Node: "node0000"}}
	network := *get(snap.NodeNetworks, "node0001")
	network.Wanted = []string{"default"}
	bigger := network
	bigger.MTU = 9000
	attachment := *first(snap.Attachments)
	attachment.ID = "another/eth0"
	for _, tt := range []struct {
		name   string
		change world.Change
		want   []string
	}{
		{"nothing", world.Change{}, nil},
		{"a pod", world.Change{Kind: world.KindPod, Key: world.Key{Namespace: "ns0000", Name: "web-00001"}}, nil},
		{"an allocation", world.Change{Kind: world.KindBlock, Key: world.Key{Name: block.Name}, Object: &block}, nil},
		{"a loan", world.Change{Kind: world.KindBlock, Key: world.Key{Name: lending.Name}, Object: &lending}, []string{"routes", "policies"}},
		{"what a node wants", world.Change{Kind: world.KindNodeNetwork, Key: world.Key{Name: "node0001"}, Object: &network}, nil},
		{"a node's MTU", world.Change{Kind: world.KindNodeNetwork, Key: world.Key{Name: "node0001"}, Object: &bigger}, []string{"underlay", "subnets", "routes", "tunnels", "ports", "policies"}},
		{"a node's labels", world.Change{Kind: world.KindNode, Key: world.Key{Name: "node0001"}, Object: &world.Node{Name: "node0001"}}, nil},
		{"an attachment", world.Change{Kind: world.KindAttachment, Key: world.Key{Name: attachment.ID}, Object: &attachment}, []string{"ports", "policies"}},
		{"a tunnel address", world.Change{Kind: world.KindTunnelAddress, Key: world.Key{Name: "x"}, Object: &world.TunnelAddress{Subnet: "default"}}, []string{"tunnels"}},
	} {
		next := store.Apply(tt.change)
		_, state, _ = compiler.Compile(state, next)
		if diff := cmp.Diff(tt.want, state.computed, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func get[T any](table world.Table[*T], name string) *T {
	v, ok := table.Get(world.Key{Name: name})
	if !ok {
		panic("the world lacks " + name)
	}
	return v
}

func first[T any](table world.Table[*T]) *T {
	for v := range table.Values() {
		return v
	}
	panic("the table is empty")
}
