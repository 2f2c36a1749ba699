package ovs

import (
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// The benchmarks are of a node with 100 of 10,000 pods, and of 1,000 policies.

// cpu is the time that the process has used: the machine may be busy with other things.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func reportCPU(b *testing.B, start time.Duration) {
	b.Helper()
	b.ReportMetric(float64(cpu(b)-start)/1e6/float64(b.N), "cpu-ms/op")
}

func BenchmarkRender(b *testing.B) {
	n, _, _ := decide.New(decide.Config{Node: "node0050"}).Compile(nil, worldtest.Local(worldtest.LargePolicies(), "node0050"))
	numbers := numbersOf(n)
	var p *Pipeline
	b.ReportAllocs()
	start := cpu(b)
	for b.Loop() {
		p = Render(n, numbers, Options{})
	}
	reportCPU(b, start)
	b.ReportMetric(float64(len(p.Flows())), "flows")
	b.ReportMetric(float64(len(n.RuleLists)), "lists")
}

func BenchmarkDecideAndRender(b *testing.B) {
	snap := worldtest.Local(worldtest.LargePolicies(), "node0050")
	compiler := decide.New(decide.Config{Node: "node0050"})
	start := cpu(b)
	for b.Loop() {
		n, _, _ := compiler.Compile(nil, snap)
		Render(n, numbersOf(n), Options{})
	}
	reportCPU(b, start)
}

// renderAfter measures what a change costs once the intent is there, and how many flows
// it changes. flip returns the changes of a round; odd ones undo the even ones.
func renderAfter(b *testing.B, flip func(snap *world.Snapshot, odd bool) world.Change) {
	snap := worldtest.Local(worldtest.LargePolicies(), "node0050")
	compiler := decide.New(decide.Config{Node: "node0050"})
	store := world.NewStore(snap)
	first, state, _ := compiler.Compile(nil, snap)
	second, _, _ := compiler.Compile(state, store.Apply(flip(snap, false)))
	numbers := numbersOf(first)
	intents := [2]intent.Node{second, first}
	p := Render(first, numbers, Options{})
	flows := 0
	b.ReportAllocs()
	start := cpu(b)
	for i := 0; b.Loop(); i++ {
		next := RenderAfter(p, intents[i%2], numbers, Options{})
		before, after := next.Since(p)
		flows += len(before) + len(after)
		p = next
	}
	reportCPU(b, start)
	b.ReportMetric(float64(flows)/float64(b.N), "flows/op")
}

func BenchmarkRenderOneChangedPod(b *testing.B) { renderAfter(b, otherLabels) }

func BenchmarkRenderOnePolicy(b *testing.B) { renderAfter(b, onePolicy) }

// otherLabels gives a pod other labels, or its own again.
func otherLabels(snap *world.Snapshot, odd bool) world.Change {
	for _, pod := range snap.Pods.All() {
		p := *pod
		if !odd {
			p.Labels = map[string]string{"app": "app3", "name": p.Name}
		}
		return world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}
	}
	return world.Change{}
}

// onePolicy adds a policy of all pods of a namespace, or removes it.
func onePolicy(snap *world.Snapshot, odd bool) world.Change {
	p := worldtest.LargePolicy(999)
	for _, a := range snap.Attachments.All() {
		p.Namespace, p.Pods = a.Pod.Namespace, world.Selector{}
		break
	}
	c := world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}}
	if !odd {
		c.Object = p
	}
	return c
}

// A pod or a policy changes few of the 29,000 flows, whether the pipeline is made from the
// one before or by an agent that has been started since.
func TestFewFlowsChange(t *testing.T) {
	snap := worldtest.Local(worldtest.LargePolicies(), "node0050")
	compiler := decide.New(decide.Config{Node: "node0050"})
	first, state, _ := compiler.Compile(nil, snap)
	numbers := numbersOf(first)
	p := Render(first, numbers, Options{})
	installed := map[of.Key]of.Flow{}
	for _, f := range p.Flows() {
		installed[f.Key()] = f
	}
	for name, flip := range map[string]func(*world.Snapshot, bool) world.Change{"a pod": otherLabels, "a policy": onePolicy} {
		second, _, _ := compiler.Compile(state, world.NewStore(snap).Apply(flip(snap, false)))
		before, after := RenderAfter(p, second, numbers, Options{}).Since(p)
		if n := len(before) + len(after); n == 0 || n > 300 {
			t.Errorf("%s: %d flows are made anew", name, n)
		}
		same, flows := 0, Render(second, numbers, Options{}).Flows()
		for _, f := range flows {
			if installed[f.Key()].Equal(f) {
				same++
			}
		}
		if n := len(flows) - same; n == 0 || n > 150 {
			t.Errorf("%s: %d of %d flows are others than before", name, n, len(flows))
		}
	}
}
