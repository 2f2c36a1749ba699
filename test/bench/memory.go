package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
	"github.com/fairlead-sdn/fairlead/lab"
)

// Size of the large world.
const (
	manyNodes   = 1000
	podsPerNode = 50
)

// Targets of resident memory, in bytes.
const (
	memoryLarge = 150 << 20
	memoryLab   = 40 << 20
)

func benchMemory(ctx context.Context, e *environment) ([]figure, error) {
	l, err := e.lab(ctx)
	if err != nil {
		return nil, err
	}
	s, err := l.Status(ctx)
	if err != nil {
		return nil, err
	}
	var now, peak samples
	for _, n := range s.Nodes {
		rss, most, err := resident(n.State.Agent.Pid)
		if err != nil {
			return nil, err
		}
		now, peak = append(now, rss), append(peak, most)
	}
	figures := []figure{
		{name: "three-node lab", unit: octets, ours: now, target: target{limit: memoryLab}},
		{name: "three-node lab, most that ever was", unit: octets, ours: peak},
	}
	large, err := largeMemory(ctx, e)
	return append(figures, large...), err
}

// largeMemory fills the datastore of a lab of one node with a large cluster and
// looks at that node's agent: as it followed the cluster growing, and after a start
// that reads everything at once.
func largeMemory(ctx context.Context, e *environment) (_ []figure, err error) {
	l, err := lab.Up(ctx, lab.Options{
		Name: labName("large"), Nodes: 1, Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd10::/64")},
		Agent: e.program("fairlead-agent"), Controller: e.program("fairlead-controller"), CNI: e.program("fairlead-cni"),
	}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	own := map[string]string{}
	for i := range podsPerNode {
		own[fmt.Sprintf("pod-%d", i)] = "node-1"
	}
	if _, err := e.pods(ctx, l, own); err != nil {
		return nil, err
	}
	// What it would do to the cluster is not what is measured.
	if err := l.Fault(ctx, lab.Fault{Kind: "controller-stop"}); err != nil {
		return nil, err
	}
	nodes := e.rounds(manyNodes)
	if err := fill(ctx, l.Datastore(), worldtest.Large(nodes, podsPerNode)); err != nil {
		return nil, err
	}
	pods := uint64(nodes * podsPerNode)
	grown, grownPeak, err := settledMemory(ctx, l, func(s admin.Status) bool {
		return slices.ContainsFunc(s.Feed, func(f admin.Feed) bool { return f.Kind == "Pod" && f.Events >= pods })
	})
	if err != nil {
		return nil, err
	}
	if err := l.Fault(ctx, lab.Fault{Kind: "agent-restart", Node: "node-1"}); err != nil {
		return nil, err
	}
	started, startedPeak, err := settledMemory(ctx, l, func(s admin.Status) bool {
		return !s.AddOnly && s.AppliedRevision > 0 && s.Counts["peers"] >= nodes
	})
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%d nodes, %d pods, ", nodes, nodes*podsPerNode)
	return []figure{
		{name: name + "after they came one by one", unit: octets, ours: grown, target: target{limit: memoryLarge}},
		{name: name + "that, most that ever was", unit: octets, ours: grownPeak},
		{name: name + "after a restart", unit: octets, ours: started, target: target{limit: memoryLarge}},
		{name: name + "that, most that ever was", unit: octets, ours: startedPeak},
	}, nil
}

// settledMemory waits until the agent of node-1 says that it has everything, and then
// looks at its memory for a while.
func settledMemory(ctx context.Context, l *lab.Lab, all func(admin.Status) bool) (now, peak samples, err error) {
	client := admin.NewClient(l.AdminSocket("node-1"))
	defer client.Close()
	wait, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = poll(wait, 200*time.Millisecond, func() (bool, error) {
		var s admin.Status
		if err := client.Get(wait, "/v1/status", &s); err != nil {
			return false, nil // it is starting
		}
		return all(s), nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("wait for the agent to follow: %w", err)
	}
	s, err := l.Status(ctx)
	if err != nil {
		return nil, nil, err
	}
	left := 20
	err = poll(ctx, 500*time.Millisecond, func() (bool, error) {
		rss, most, err := resident(s.Nodes[0].State.Agent.Pid)
		now, peak = append(now, rss), append(peak, most)
		left--
		return left == 0, err
	})
	return now, peak, err
}
