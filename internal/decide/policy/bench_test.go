package policy

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

func BenchmarkFromScratch(b *testing.B) {
	snap := worldtest.Local(worldtest.LargePolicies(), "node0050")
	in := new(stages).input("node0050", snap)
	var s *State
	b.ReportAllocs()
	start := cpu()
	for b.Loop() {
		s = Decide(nil, in)
	}
	b.ReportMetric(float64(cpu()-start)/1e6/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(len(s.RuleLists)), "lists")
	b.ReportMetric(float64(len(s.AddressSets)), "sets")
	// What the State keeps, beyond the world.
	s = nil
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s = Decide(nil, in)
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/1e6, "MB")
	runtime.KeepAlive(s)
	runtime.KeepAlive(in)
}

// cpu is the CPU time of the process so far, its garbage collector included: a busy
// machine does not change it much.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// oneChange measures what one change costs: flip returns the changes of a round, odd
// ones undo the even ones.
func oneChange(b *testing.B, flip func(snap *world.Snapshot, odd bool) []world.Change) {
	snap := worldtest.Local(worldtest.LargePolicies(), "node0050")
	var kept stages
	store := world.NewStore(snap)
	s := Decide(nil, kept.input("node0050", snap))
	b.ReportAllocs()
	var spent time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		in := kept.input("node0050", store.Apply(flip(snap, i%2 == 1)...))
		start := cpu()
		b.StartTimer()
		s = Decide(s, in)
		spent += cpu() - start
	}
	b.ReportMetric(float64(spent)/1e6/float64(b.N), "cpu-ms/op")
}

// somePod is a pod of another node.
func somePod(snap *world.Snapshot) *world.Pod {
	for p := range snap.Pods.Values() {
		if p.Node == "node0007" {
			return p
		}
	}
	panic("no pod on node0007")
}

func BenchmarkOneNewPod(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		p := somePod(snap)
		changes := []world.Change{{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}}}
		if odd {
			changes[0].Object = p
		}
		for block := range snap.Blocks.Values() {
			if block.Node != p.Node {
				continue
			}
			now := *block
			if !odd {
				now.Allocations = slices.DeleteFunc(slices.Clone(block.Allocations), func(a world.Allocation) bool { return a.Owner.UID == p.UID })
			}
			changes = append(changes, world.Change{Kind: world.KindBlock, Key: world.Key{Name: block.Name}, Object: &now})
		}
		return changes
	})
}

func BenchmarkOnePodRelabelled(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		p := *somePod(snap)
		if !odd {
			p.Labels = map[string]string{"app": "app3", "name": p.Name}
		}
		return []world.Change{{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}}
	})
}

func BenchmarkOneNetworkPolicy(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		var local *world.Attachment
		for a := range snap.Attachments.Values() {
			local = a
		}
		p := worldtest.LargePolicy(999)
		p.Namespace, p.Pods = local.Pod.Namespace, world.Selector{}
		c := world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: p}
		if odd {
			c.Object = nil
		}
		return []world.Change{c}
	})
}

func BenchmarkOneClusterNetworkPolicy(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		key := world.Key{Name: "cnp00"}
		old, _ := snap.ClusterNetworkPolicies.Get(key)
		p := *old
		if !odd {
			p.Subject.Namespaces = &world.Selector{}
		}
		return []world.Change{{Kind: world.KindClusterNetworkPolicy, Key: key, Object: &p}}
	})
}

func BenchmarkOneNamespaceRelabelled(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		key := world.Key{Name: "ns0007"}
		old, _ := snap.Namespaces.Get(key)
		ns := *old
		if !odd {
			ns.Labels = map[string]string{"team": "t3"}
		}
		return []world.Change{{Kind: world.KindNamespace, Key: key, Object: &ns}}
	})
}
