package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/run/reconcile"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// handlers answer the CLI (docs/cli.md).
func (a *Agent) handlers() map[string]admin.Handler {
	return map[string]admin.Handler{
		"GET /v1/status":      a.serveStatus,
		"GET /v1/audit":       a.serveAudit,
		"GET /v1/peers":       a.servePeers,
		"GET /v1/attachments": a.serveAttachments,
		"GET /v1/ipam":        func(context.Context, url.Values) (any, error) { return a.addresses.Usage(), nil },
		"GET /v1/intent":      func(context.Context, url.Values) (any, error) { return a.loop.Last().Intent, nil },
		"GET /v1/config":      func(context.Context, url.Values) (any, error) { return a.Config.Agent, nil },
		"GET /v1/journal":     a.serveJournal,
		"GET /v1/explain":     a.serveExplain,
		"GET /v1/flows":       a.serveFlows,
		"GET /v1/tables":      a.serveTables,
	}
}

func (a *Agent) serveStatus(ctx context.Context, _ url.Values) (any, error) {
	notReady := a.ready() // before the pass that it is about
	snap, _ := a.world.Snapshot()
	last := a.loop.Last()
	s := admin.Status{
		Node: a.Node, Version: a.Version, Plane: a.Config.Agent.Plane, Started: a.started,
		Revision: snap.Revision, Position: snap.Position, PodMTU: last.Intent.MTU, AddOnly: last.AddOnly,
		Underlay: a.underlay.get().addresses, Health: a.health.States(), Synced: []string{}, Problems: []admin.Problem{},
		Counts: map[string]int{
			"vpcs": len(last.Intent.VPCs), "subnets": len(last.Intent.Subnets), "peers": len(last.Intent.Peers),
			"routes": len(last.Intent.Routes), "ports": len(last.Intent.Ports),
		},
		Features: a.Plane.Features(), Memory: residentMemory(),
	}
	if notReady != nil {
		s.NotReady = notReady.Error()
	}
	if last.Snapshot != nil {
		s.AppliedRevision = last.Snapshot.Revision
	}
	for _, k := range world.DatastoreKinds() {
		if snap.Synced[k] {
			s.Synced = append(s.Synced, string(k))
		}
	}
	kinds, _ := a.feed.Status()
	for _, k := range kinds {
		s.Feed = append(s.Feed, admin.Feed{
			Kind: string(k.Kind), Phase: string(k.Phase), Since: k.Since, Suspicious: k.Suspicious,
			LastError: k.LastError, Lists: k.Lists, Events: k.Events,
		})
	}
	for _, p := range a.problems() {
		s.Problems = append(s.Problems, admin.ProblemOf(p))
	}
	for _, f := range last.Report.Failed {
		s.Failed = append(s.Failed, f.Error())
	}
	// A plane that is dead is what the rest of the answer explains.
	var err error
	if s.Drops, err = a.Plane.Drops(ctx); err != nil {
		s.Failed = append(s.Failed, "read drop counters: "+err.Error())
	}
	return s, nil
}

// residentMemory is the process's RSS in bytes, zero where /proc does not tell.
func residentMemory() uint64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

// serveAudit looks between two passes: what one is about to change is no difference.
func (a *Agent) serveAudit(ctx context.Context, _ url.Values) (any, error) {
	out := admin.Audit{Node: a.Node, Differences: []apply.Difference{}, Foreign: a.foreign.list(time.Now())}
	err := a.loop.Between(ctx, func(last reconcile.Outcome) error {
		if last.Snapshot == nil {
			return errors.New("nothing has been applied yet: there is nothing to compare with")
		}
		found, err := a.Plane.Audit(ctx, last.Intent)
		out.Differences = append(out.Differences, found...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("audit node %s: %w", a.Node, err)
	}
	return out, nil
}

func (a *Agent) servePeers(context.Context, url.Values) (any, error) {
	n := a.loop.Last().Intent
	out := []admin.Peer{}
	for _, p := range n.Peers {
		peer := admin.Peer{Name: p.Name, Addresses: p.Addrs, VTEPMAC: p.VTEPMAC.String(), Paths: paths(n, p)}
		out = append(out, peer)
	}
	return out, nil
}

// paths groups the routes to a peer by VPC and way.
func paths(n intent.Node, p intent.Peer) []admin.Path {
	type way struct{ vpc, via string }
	found := map[way][]netip.Prefix{}
	for _, r := range n.Routes {
		if r.NextHop.Peer != p.Name {
			continue
		}
		via := "VXLAN to " + p.Outer.String()
		if !r.Encapsulate {
			via = "route via " + gatewayFor(p, r.Dst).String()
		}
		found[way{r.VPC, via}] = append(found[way{r.VPC, via}], r.Dst)
	}
	out := []admin.Path{}
	for w, prefixes := range found {
		out = append(out, admin.Path{VPC: w.vpc, Via: w.via, Prefixes: prefixes})
	}
	slices.SortFunc(out, func(a, b admin.Path) int { return cmp.Or(cmp.Compare(a.VPC, b.VPC), cmp.Compare(a.Via, b.Via)) })
	return out
}

func gatewayFor(p intent.Peer, dst netip.Prefix) netip.Addr {
	for _, a := range p.Addrs {
		if a.Is4() == dst.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (a *Agent) serveAttachments(context.Context, url.Values) (any, error) {
	out := []admin.Attachment{}
	for _, x := range a.attachments.List() {
		out = append(out, admin.Attachment{
			ID: x.ID, Namespace: x.Pod.Namespace, Pod: x.Pod.Name, Addresses: x.Addresses, Subnet: x.Subnet, VPC: x.VPC,
			HostInterface: x.HostInterface, Interface: x.Interface, Netns: x.Netns, MAC: x.MAC.String(),
		})
	}
	return out, nil
}

func (a *Agent) serveJournal(_ context.Context, q url.Values) (any, error) {
	var since time.Time
	if s := q.Get("since"); s != "" {
		var err error
		if since, err = time.Parse(time.RFC3339, s); err != nil {
			return nil, fmt.Errorf("since: %q is not a time such as 2026-01-02T15:04:05Z", s)
		}
	}
	entries, err := a.journal.Entries(since)
	if entries == nil {
		entries = []journal.Entry{}
	}
	return entries, err
}
