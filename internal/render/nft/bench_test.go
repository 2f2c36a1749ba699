package nft

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// benchPolicy is the number of a policy that selects a pod of benchNode.
const (
	benchNode   = "node0050"
	benchPolicy = 3
)

// BenchmarkPolicies renders the node of 100 pods of a cluster of 10,000 pods and 1,000
// policies: from scratch, and after one pod elsewhere or one policy has changed.
func BenchmarkPolicies(b *testing.B) {
	snap := worldtest.Local(worldtest.LargePolicies(), benchNode)
	compiler := decide.New(decide.Config{Node: benchNode})
	n, state, _ := compiler.Compile(nil, snap)
	b.Run("scratch", func(b *testing.B) {
		b.ReportAllocs()
		start := cpu(b)
		for b.Loop() {
			Render(n, Options{})
		}
		b.ReportMetric(float64(cpu(b)-start)/1e6/float64(b.N), "cpu-ms/op")
		table := Render(n, Options{})
		elements := 0
		for _, s := range table.Sets {
			elements += len(s.Elements)
		}
		b.ReportMetric(float64(len(n.RuleLists)), "lists")
		b.ReportMetric(float64(len(table.Sets)), "sets")
		b.ReportMetric(float64(len(table.Chains)), "chains")
		b.ReportMetric(float64(elements), "elements")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		table = Render(n, Options{})
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/1e6, "MB")
		runtime.KeepAlive(table)
	})
	store := world.NewStore(snap)
	pods := slices.Collect(snap.Pods.Values())
	for _, bench := range []struct {
		name   string
		change func(odd bool) world.Change
	}{
		{"pod", func(odd bool) world.Change {
			p := pods[len(pods)/2]
			c := world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}}
			if odd {
				c.Object = p
			}
			return c
		}},
		{"policy", func(odd bool) world.Change {
			p := worldtest.LargePolicy(benchPolicy)
			c := world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}}
			if odd {
				c.Object = p
			}
			return c
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var nodes [2]intent.Node
			for i := range nodes {
				nodes[i], state, _ = compiler.Compile(state, store.Apply(bench.change(i == 1)))
			}
			_, s := RenderAfter(nil, nodes[1], Options{})
			b.ReportAllocs()
			start := cpu(b)
			for i := 0; b.Loop(); i++ {
				_, s = RenderAfter(s, nodes[i%2], Options{})
			}
			b.ReportMetric(float64(cpu(b)-start)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
}

// cpu is the CPU time of the process so far: a busy machine does not change it much.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
