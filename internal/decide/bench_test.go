package decide

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

func BenchmarkCompileFromScratch(b *testing.B) {
	snap := worldtest.Local(worldtest.Large(1000, 50), "node0500")
	compiler := New(Config{Node: "node0500"})
	b.ReportAllocs()
	for b.Loop() {
		compiler.Compile(nil, snap)
	}
}

func BenchmarkCompileOneChangedPod(b *testing.B) {
	snap := worldtest.Local(worldtest.Large(1000, 50), "node0500")
	compiler := New(Config{Node: "node0500"})
	store := world.NewStore(snap)
	_, state, _ := compiler.Compile(nil, snap)
	// What one new pod elsewhere costs: its Pod and its block. Odd rounds undo it.
	pod := world.Change{Kind: world.KindPod, Key: world.Key{Namespace: "ns0000", Name: "web-00007"}}
	before, _ := snap.Pods.Get(pod.Key)
	blockKey := world.Key{Name: "default.0a800040-26"}
	old, _ := snap.Blocks.Get(blockKey)
	smaller := *old
	smaller.Allocations = smaller.Allocations[:len(smaller.Allocations)-1]
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		block := world.Change{Kind: world.KindBlock, Key: blockKey, Object: old}
		pod.Object = before
		if i%2 == 0 {
			block.Object, pod.Object = &smaller, nil
		}
		_, state, _ = compiler.Compile(state, store.Apply(pod, block))
	}
}

func BenchmarkCompileOneAttachment(b *testing.B) {
	snap := worldtest.Local(worldtest.Large(1000, 50), "node0500")
	compiler := New(Config{Node: "node0500"})
	store := world.NewStore(snap)
	_, state, _ := compiler.Compile(nil, snap)
	a := first(snap.Attachments)
	for i := 0; b.Loop(); i++ {
		c := world.Change{Kind: world.KindAttachment, Key: world.Key{Name: a.ID}}
		if i%2 == 1 {
			c.Object = a
		}
		_, state, _ = compiler.Compile(state, store.Apply(c))
	}
}

func BenchmarkCompileOneLoan(b *testing.B) {
	snap := worldtest.Local(worldtest.Large(1000, 50), "node0500")
	compiler := New(Config{Node: "node0500"})
	store := world.NewStore(snap)
	_, state, _ := compiler.Compile(nil, snap)
	key := world.Key{Name: "default.0a800040-26"}
	old, _ := snap.Blocks.Get(key)
	for i := 0; b.Loop(); i++ {
		block := *old
		block.Lent = []world.Loan{{Addr: netip.MustParseAddr("10.128.0.126"), Node: fmt.Sprintf("node%04d", i%1000)}}
		_, state, _ = compiler.Compile(state, store.Apply(world.Change{Kind: world.KindBlock, Key: key, Object: &block}))
	}
}

// The benchmarks of policies are of a node with 100 of 10,000 pods, and of 1,000
// policies.
func BenchmarkCompilePoliciesFromScratch(b *testing.B) {
	snap := worldtest.Local(worldtest.LargePolicies(), "node0050")
	compiler := New(Config{Node: "node0050"})
	var n intent.Node
	b.ReportAllocs()
	for b.Loop() {
		n, _, _ = compiler.Compile(nil, snap)
	}
	b.ReportMetric(float64(len(n.RuleLists)), "lists")
	b.ReportMetric(float64(len(n.AddressSets)), "sets")
}

// compileOneChange measures what one change costs, until it is known what of the
// intent it changes. flip returns the changes of a round, odd ones undo the even ones.
func compileOneChange(b *testing.B, flip func(snap *world.Snapshot, odd bool) world.Change) {
	snap := worldtest.Local(worldtest.LargePolicies(), "node0050")
	compiler := New(Config{Node: "node0050"})
	store := world.NewStore(snap)
	old, state, _ := compiler.Compile(nil, snap)
	found := 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var n intent.Node
		n, state, _ = compiler.Compile(state, store.Apply(flip(snap, i%2 == 1)))
		found += len(intent.Diff(old, n))
		old = n
	}
	b.ReportMetric(float64(found)/float64(b.N), "changes/op")
}

func BenchmarkCompilePoliciesOneChangedPod(b *testing.B) {
	compileOneChange(b, func(snap *world.Snapshot, odd bool) world.Change {
		p := *first(snap.Pods)
		if !odd {
			p.Labels = map[string]string{"app": "app3", "name": p.Name}
		}
		return world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}
	})
}

func BenchmarkCompilePoliciesOnePolicy(b *testing.B) {
	compileOneChange(b, func(snap *world.Snapshot, odd bool) world.Change {
		p := worldtest.LargePolicy(999)
		p.Namespace, p.Pods = first(snap.Attachments).Pod.Namespace, world.Selector{}
		c := world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}}
		if !odd {
			c.Object = p
		}
		return c
	})
}
