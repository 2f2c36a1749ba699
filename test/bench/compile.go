package main

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	"github.com/fairlead-sdn/fairlead/internal/render/nft"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// Targets of decide and render.
const (
	compileScratch = 100e-3
	compileChange  = 5e-3
)

const benchNode = "node0001"

// render makes the rules of every driver.
func render(n intent.Node) {
	linux.RenderState(n)
	linux.RenderWire(n)
	nft.Render(n, nft.Options{})
}

// benchCompile measures the pure part of a pass: from a snapshot to rules. A change
// includes what the world itself takes to hold it.
func benchCompile(ctx context.Context, e *environment) ([]figure, error) {
	snap := worldtest.Local(worldtest.Large(manyNodes, podsPerNode), benchNode)
	compiler := decide.New(decide.Config{Node: benchNode})
	n, state, _ := compiler.Compile(nil, snap)
	if len(n.Ports) != podsPerNode || len(n.Peers) != manyNodes-1 {
		return nil, errors.New("the large world did not compile to its ports and peers")
	}
	var scratch, decided samples
	for range e.rounds(50) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		start := time.Now()
		n, _, _ := compiler.Compile(nil, snap)
		decided.add(time.Since(start))
		render(n)
		scratch.add(time.Since(start))
	}
	figures := []figure{
		{name: "from scratch", ours: scratch, target: target{limit: compileScratch}},
		{name: "from scratch, decide alone", ours: decided},
	}
	store := world.NewStore(snap)
	for _, c := range []struct {
		name    string
		changes func(on bool) []world.Change
		target  target
	}{
		{"a pod elsewhere comes or goes", elsewhere(snap), target{limit: compileChange}},
		{"a pod here comes or goes", here(snap), target{limit: compileChange}},
		{"a node comes or goes", peer(snap), target{}},
	} {
		var took samples
		for i := range e.rounds(200) {
			changes := c.changes(i%2 == 1)
			start := time.Now()
			next := store.Apply(changes...)
			n, state, _ = compiler.Compile(state, next)
			render(n)
			took.add(time.Since(start))
		}
		figures = append(figures, figure{name: c.name, ours: took, target: c.target})
	}
	return figures, nil
}

// Targets of decide and render with many policies.
const (
	policiesScratch = 300e-3
	policiesChange  = 5e-3
)

// policiesNode is the node of that world that has 100 pods.
const policiesNode = "node0050"

// benchPolicyScale measures decide and render for a node with 100 of 10,000 pods, with
// 1,000 policies and 300 namespaces, on each plane.
func benchPolicyScale(ctx context.Context, e *environment) ([]figure, error) {
	snap := worldtest.Local(worldtest.LargePolicies(), policiesNode)
	compiler := decide.New(decide.Config{Node: policiesNode})
	n, _, _ := compiler.Compile(nil, snap)
	if len(n.Ports) != 100 || len(n.RuleLists) == 0 {
		return nil, errors.New("the world with policies did not compile to its ports and lists")
	}
	numbers := ovs.Numbers{claims.OVSHostPort: ovs.HostPortNumber, claims.OVSTunnelPort: ovs.TunnelPortNumber}
	for i, p := range n.Ports {
		numbers[p.HostInterface] = of.Port(10 + i)
	}
	var figures []figure
	for _, plane := range []struct {
		name string
		// remembering makes a renderer that takes from its last result what has not changed.
		remembering func() func(intent.Node)
	}{
		{"linux", func() func(intent.Node) {
			var last *nft.State
			return func(n intent.Node) { _, last = nft.RenderAfter(last, n, nft.Options{}) }
		}},
		{"ovs", func() func(intent.Node) {
			var last *ovs.Pipeline
			return func(n intent.Node) {
				next := ovs.RenderAfter(last, n, numbers, ovs.Options{})
				next.Since(last)
				last = next
			}
		}},
	} {
		more, err := scale(ctx, e, snap, compiler, plane.remembering)
		for i := range more {
			more[i].name = plane.name + ", " + more[i].name
		}
		figures = append(figures, more...)
		if err != nil {
			return figures, err
		}
	}
	return figures, nil
}

func scale(ctx context.Context, e *environment, snap *world.Snapshot, compiler *decide.Compiler, remembering func() func(intent.Node)) ([]figure, error) {
	var scratch, memory samples
	for range e.rounds(20) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		before := heap()
		start := time.Now()
		n, state, _ := compiler.Compile(nil, snap)
		render := remembering()
		render(n)
		scratch.add(time.Since(start))
		memory = append(memory, heap()-before)
		runtime.KeepAlive(state)
		runtime.KeepAlive(render)
	}
	figures := []figure{
		{name: "from scratch", ours: scratch, target: target{limit: policiesScratch}},
		{name: "memory of intent, state and rules", unit: octets, ours: memory},
	}
	for _, c := range []struct {
		name   string
		change func(on bool) world.Change
	}{
		{"a pod is labelled otherwise", relabelled(snap)},
		{"a policy comes or goes", onePolicy(snap)},
	} {
		var took samples
		store, render := world.NewStore(snap), remembering()
		n, state, _ := compiler.Compile(nil, snap)
		render(n)
		for i := range e.rounds(200) {
			start := time.Now()
			n, state, _ = compiler.Compile(state, store.Apply(c.change(i%2 == 0)))
			render(n)
			took.add(time.Since(start))
		}
		figures = append(figures, figure{name: c.name, ours: took, target: target{limit: policiesChange}})
	}
	return figures, nil
}

// heap is how much is in use.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// relabelled gives a pod other labels, which many policies select, and its own again.
func relabelled(s *world.Snapshot) func(bool) world.Change {
	pods := slices.Collect(s.Pods.Values())
	pod := pods[len(pods)/2]
	return func(other bool) world.Change {
		p := *pod
		if other {
			p.Labels = map[string]string{"app": "app3", "name": p.Name}
		}
		return world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}
	}
}

// onePolicy adds a policy of all pods of a namespace that has one here, and removes it.
func onePolicy(s *world.Snapshot) func(bool) world.Change {
	p := worldtest.LargePolicy(999)
	p.Pods = world.Selector{}
	for a := range s.Attachments.Values() {
		p.Namespace = a.Pod.Namespace
		break
	}
	return func(there bool) world.Change {
		c := world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}}
		if there {
			c.Object = p
		}
		return c
	}
}

// elsewhere removes a pod of another node, from the pods and its blocks, and puts it
// back.
func elsewhere(s *world.Snapshot) func(bool) []world.Change {
	var pod *world.Pod
	for p := range s.Pods.Values() {
		if p.Node != benchNode {
			pod = p
		}
	}
	key := world.Key{Namespace: pod.Namespace, Name: pod.Name}
	return func(on bool) []world.Change {
		out := []world.Change{{Kind: world.KindPod, Key: key}}
		if on {
			out[0].Object = pod
		}
		for k, b := range s.Blocks.All() {
			if b.Node != pod.Node {
				continue
			}
			if !on {
				less := *b
				less.Allocations = slices.DeleteFunc(slices.Clone(b.Allocations), func(a world.Allocation) bool { return a.Owner.UID == pod.UID })
				b = &less
			}
			out = append(out, world.Change{Kind: world.KindBlock, Key: k, Object: b})
		}
		return out
	}
}

func here(s *world.Snapshot) func(bool) []world.Change {
	return func(on bool) []world.Change {
		for k, a := range s.Attachments.All() {
			if on {
				return []world.Change{{Kind: world.KindAttachment, Key: k, Object: a}}
			}
			return []world.Change{{Kind: world.KindAttachment, Key: k}}
		}
		return nil
	}
}

// peer removes a node with its blocks, and puts it back.
func peer(s *world.Snapshot) func(bool) []world.Change {
	const name = "node0900"
	key := world.Key{Name: name}
	n, _ := s.Nodes.Get(key)
	network, _ := s.NodeNetworks.Get(key)
	return func(on bool) []world.Change {
		out := []world.Change{{Kind: world.KindNode, Key: key}, {Kind: world.KindNodeNetwork, Key: key}}
		if on {
			out[0].Object, out[1].Object = n, network
		}
		for k, b := range s.Blocks.All() {
			if b.Node != name {
				continue
			}
			change := world.Change{Kind: world.KindBlock, Key: k}
			if on {
				change.Object = b
			}
			out = append(out, change)
		}
		return out
	}
}
