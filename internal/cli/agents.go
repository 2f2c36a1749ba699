package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

const (
	// askTimeout is how long an agent is waited for. One that works answers in milliseconds,
	// with the start of a command in its pod and a plane that waits for Open vSwitch in two
	// seconds; one that is frozen must not hold a person for longer.
	askTimeout = 3 * time.Second
	// longTimeout is that for questions whose answer takes time on a large node, asked of an
	// agent that has just answered a short one.
	longTimeout = 30 * time.Second
	// askAtOnce bounds how many agents are asked at the same time.
	askAtOnce = 32
)

// agentOf is the agent of a node.
type agentOf struct {
	node   string
	client door
}

// answer is what the agent of one node said.
type answer[T any] struct {
	node  string
	value T
}

// ask asks every named agent for a path; the answers come in the order of the agents.
// One that does not answer is an error at the end; the others are shown.
func ask[T any](ctx context.Context, a *app, names []string, path string) ([]answer[T], error) {
	agents, err := a.agents(ctx, names)
	if err != nil {
		return nil, err
	}
	answers, errs := make([]answer[T], len(agents)), make([]error, len(agents))
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for i, n := range agents {
		g.Go(func() error {
			defer n.client.Close()
			answers[i].node = n.node
			errs[i] = n.get(ctx, path, &answers[i].value)
			return nil
		})
	}
	// The errors are in errs, each with its node.
	_ = g.Wait()
	out := []answer[T]{}
	for i, x := range answers {
		if errs[i] == nil {
			out = append(out, x)
		}
	}
	return out, errors.Join(errs...)
}

// silentError says that an agent did not answer in time.
type silentError struct {
	node string
	in   time.Duration
}

func (e silentError) Error() string { return fmt.Sprintf("node %s did not answer in %s", e.node, e.in) }

// get asks for a path. Whether the agent answers at all is found out by a short question.
func (n agentOf) get(ctx context.Context, path string, into any) error {
	if !takesLong(path) {
		return n.getIn(ctx, askTimeout, path, into)
	}
	if err := n.getIn(ctx, askTimeout, "/v1/status", &admin.Status{}); errors.As(err, &silentError{}) {
		return err
	}
	return n.getIn(ctx, longTimeout, path, into)
}

// takesLong tells questions for which a node reads all that it holds.
func takesLong(path string) bool { return path == "/v1/audit" || path == "/v1/flows" }

func (n agentOf) getIn(ctx context.Context, limit time.Duration, path string, into any) error {
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := n.client.Get(short, path, into)
	switch {
	case err == nil:
		return nil
	case short.Err() != nil && ctx.Err() == nil:
		return silentError{n.node, limit}
	}
	return fmt.Errorf("node %s: %w", n.node, err)
}

func values[T any](answers []answer[T]) []T {
	out := []T{}
	for _, x := range answers {
		out = append(out, x.value)
	}
	return out
}

// nodePeers is how one node sees the others.
type nodePeers struct {
	Node  string       `json:"node"`
	Peers []admin.Peer `json:"peers"`
}

// getPeers shows how nodes, or the one that is named, reach the others, or the one
// that is named.
func (a *app) getPeers(ctx context.Context, node, peer string, format *outputFormat) error {
	var names []string
	if node != "" {
		names = []string{node}
	}
	answers, failed := ask[[]admin.Peer](ctx, a, names, "/v1/peers")
	if len(answers) == 0 && failed != nil {
		return failed
	}
	if known := nodesOf(answers); peer != "" && !slices.Contains(known, peer) {
		return errors.Join(noNode(peer, known), failed)
	}
	all := []nodePeers{}
	for _, x := range answers {
		peers := slices.DeleteFunc(x.value, func(p admin.Peer) bool { return peer != "" && p.Name != peer })
		all = append(all, nodePeers{Node: x.node, Peers: peers})
	}
	return errors.Join(a.print(format, all, func(bool) table { return drawPeers(all) }), failed)
}

// nodesOf are the nodes that answered, and those that they know.
func nodesOf(answers []answer[[]admin.Peer]) []string {
	var out []string
	for _, x := range answers {
		out = append(out, x.node)
		for _, p := range x.value {
			out = append(out, p.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func drawPeers(all []nodePeers) table {
	t := table{header: []string{"NODE", "PEER", "VPC", "PATH", "PREFIXES"}}
	for _, n := range all {
		for _, p := range n.Peers {
			for _, path := range p.Paths {
				var prefixes []string
				for _, x := range path.Prefixes {
					prefixes = append(prefixes, x.String())
				}
				t.add(n.Node, p.Name, path.VPC, path.Via, strings.Join(prefixes, ","))
			}
			if len(p.Paths) == 0 {
				t.add(n.Node, p.Name, "-", "no block yet", "-")
			}
		}
	}
	return t
}

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status [NODE…]", Short: "Show what the agents say: revisions, health, features, drops",
		Long:              "Show what the agents say; of nodes that are named, in detail.",
		ValidArgsFunction: a.completeNodes,
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		answers, failed := ask[admin.Status](cmd.Context(), a, args, "/v1/status")
		if len(answers) == 0 && failed != nil {
			return failed
		}
		all := values(answers)
		err := a.print(format, all, func(wide bool) table { return a.drawNodes(all, wide) })
		for _, s := range all {
			if err == nil && format.forPeople() && len(args) > 0 {
				err = a.explainNode(s)
			}
		}
		return errors.Join(err, failed)
	}
	return group("node", "Nodes, as their agents see them", cmd)
}

func (a *app) drawNodes(all []admin.Status, wide bool) table {
	t := table{header: []string{"NODE", "READY", "REVISION", "PORTS", "PEERS", "ROUTES", "POD-MTU", "MEMORY", "HEALTH"}}
	if wide {
		t.header = append(t.header, "PLANE", "VERSION", "UP")
	}
	for _, s := range all {
		ready := "yes"
		if s.NotReady != "" {
			ready = "no: " + s.NotReady
		}
		var worst []string
		for _, h := range slices.SortedStableFunc(slices.Values(s.Health), func(x, y health.State) int { return cause(y) - cause(x) }) {
			if h.Level != "ok" {
				worst = append(worst, h.Component+" "+string(h.Level)+": "+h.Message)
			}
		}
		row := []string{
			s.Node, ready, fmt.Sprintf("%d/%d", s.AppliedRevision, s.Revision), fmt.Sprint(s.Counts["ports"]), fmt.Sprint(s.Counts["peers"]),
			fmt.Sprint(s.Counts["routes"]), fmt.Sprint(s.PodMTU), fmt.Sprintf("%d MiB", s.Memory>>20), cmp.Or(strings.Join(worst, "; "), "ok"),
		}
		if wide {
			row = append(row, s.Plane, s.Version, a.age(s.Started))
		}
		t.add(row...)
	}
	return t
}

// explainNode prints what a table has no room for.
func (a *app) explainNode(s admin.Status) error {
	lines := []string{"", s.Node}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, f := range s.Features {
		add("  uses      %s", f)
	}
	for _, h := range s.Health {
		add("  health    %-12s %s since %s %s", h.Component, h.Level, a.local(h.Since).Format(time.RFC3339), h.Message)
	}
	for _, f := range s.Feed {
		if f.Phase != "Watching" {
			add("  feed      %s is %s since %s: %s", f.Kind, strings.ToLower(f.Phase), a.local(f.Since).Format(time.RFC3339), cmp.Or(f.LastError, "no answer yet"))
		}
		if f.Suspicious != "" {
			add("  feed      the list of %s objects is not trusted: %s", f.Kind, f.Suspicious)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(s.Drops)) {
		if n := s.Drops[reason]; n > 0 {
			add("  dropped   %s: %s", count(int(min(n, math.MaxInt)), "packet", "packets"), reason)
		}
	}
	for _, p := range s.Problems {
		add("  problem   %s %s: %s: %s", p.Kind, p.Object, p.Reason, p.Message)
	}
	for _, f := range s.Failed {
		add("  failed    %s", f)
	}
	for _, l := range lines {
		if err := a.say("%s", strings.TrimRight(l, " ")); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) completeNodes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeNames(cmd.Context(), datastore.KindNode)
}
