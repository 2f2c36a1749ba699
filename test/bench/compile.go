package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	"github.com/fairlead-sdn/fairlead/internal/render/nft"
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
