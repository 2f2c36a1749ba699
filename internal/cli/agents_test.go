package cli

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// says is a handler that gives one answer.
func says(v any) admin.Handler {
	return func(context.Context, url.Values) (any, error) { return v, nil }
}

func refuses(text string) admin.Handler {
	return func(context.Context, url.Values) (any, error) { return nil, errors.New(text) }
}

// wellAndSick has one agent with nothing to tell and one with everything.
func wellAndSick(t *testing.T) *cluster {
	c := newCluster(t)
	c.serve("node-1", map[string]admin.Handler{
		"GET /v1/status": says(admin.Status{
			Node: "node-1", Version: "v1", Plane: "linux", Started: now.Add(-time.Hour), Revision: 42, AppliedRevision: 42,
			PodMTU: 1450, Memory: 40 << 20, Counts: map[string]int{"ports": 2, "peers": 1, "routes": 3},
			Health: []health.State{{Component: "plane", Level: health.OK, Since: now.Add(-time.Hour)}},
			Drops:  map[string]uint64{"spoofed": 0},
		}),
		"GET /v1/audit": says(admin.Audit{Node: "node-1", Differences: []apply.Difference{}, Foreign: []apply.Foreign{}}),
		"GET /v1/peers": says([]admin.Peer{{Name: "node-2", VTEPMAC: "06:00:00:00:00:02", Paths: []admin.Path{
			{VPC: "default", Via: "VXLAN to 172.30.0.12", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.128.0.64/26"), netip.MustParsePrefix("fd00:10::40/122")}},
		}}, {Name: "node-3"}}),
		"GET /v1/journal": func(_ context.Context, q url.Values) (any, error) {
			return []journal.Entry{
				{Time: now.Add(-time.Minute), Note: "asked since " + q.Get("since")},
				{
					Time: now, Revision: 7, Objects: []string{"port c/eth0 added"}, Changes: []string{"add link flp1"}, Failed: []string{"route x: no"},
					Foreign: []apply.Foreign{{What: "link flp1 deleted", Process: "ip (12)"}, {What: "table flushed"}},
				},
			}, nil
		},
		"GET /v1/config": says(map[string]string{"node": "node-1"}),
	})
	c.serve("node-2", map[string]admin.Handler{
		"GET /v1/status": says(admin.Status{
			Node: "node-2", Version: "v1", Plane: "linux", Started: now.Add(-time.Minute), Revision: 42, AppliedRevision: 40, PodMTU: 1450,
			NotReady: "no first sync", Features: []string{"tcx for the tunnel programs"}, Failed: []string{"route x: file exists"},
			Health: []health.State{{Component: "datastore", Level: health.Degraded, Message: "lost: no answer", Since: now.Add(-time.Second)}},
			Feed: []admin.Feed{
				{Kind: "Pod", Phase: "Disconnected", Since: now.Add(-time.Minute), LastError: "no answer"},
				{Kind: "Node", Phase: "Watching", LastError: "long ago"},
				{Kind: "VPC", Phase: "Watching", Suspicious: "3 of 4 are missing"},
			},
			Problems: []admin.Problem{{Kind: "Pod", Object: "shop/web", Reason: "NoTenant", Message: "no tenant"}},
			Drops:    map[string]uint64{"wire in-vni": 3, "spoofed": 0, "a reason": 1},
		}),
		"GET /v1/audit": says(admin.Audit{
			Node: "node-2", Differences: []apply.Difference{
				{Subsystem: "route", Object: "10.0.1.0/26 dev fl.vxlan", Problem: "missing"},
				{Subsystem: "link", Object: "flp1", Problem: "differs", Want: "mtu 1450", Got: "mtu 1500"},
				{Subsystem: "route", Object: "10.0.2.0/26", Problem: "unexpected"},
				{Subsystem: "route", Object: "10.0.2.0/26", Problem: "unexpected"},
			},
			Foreign: []apply.Foreign{{Time: now, Subsystem: "route", What: "route deleted", Process: "ip (12)"}, {Time: now, What: "link set"}},
		}),
		"GET /v1/peers": says([]admin.Peer{}),
	})
	return c
}

func TestAgents(t *testing.T) {
	c := wellAndSick(t)
	c.transcript("agents",
		"node status", "node status -o wide", "node status node-1", "node status node-2 -o wide", "node status node-9", "node status -o json", "node",
		"audit", "audit node-1", "audit node-2 -o json", "audit -o yaml",
		"journal node-1", "journal node-1 --since 10m -o json", "journal", "journal node-1 node-2", "journal node-2", "journal node-1 --since soon", "journal node-1 --since -5m",
		"get peers", "get peers --node node-1", "get peers node-3 -o json", "get peer nobody", "get peers -n shop", "get pods --node node-1",
	)
}

// An agent that does not answer is named, and the others are shown.
func TestDeadAgent(t *testing.T) {
	c := wellAndSick(t)
	c.sockets["node-3"] = filepath.Join(c.dir, "nobody.sock")
	c.transcript("agents-dead", "node status", "audit", "audit node-3", "get peers", "node status node-3", "journal node-3")
	c.serve("node-3", map[string]admin.Handler{"GET /v1/audit": refuses("the plane is closed")})
	if r := c.run("audit", "node-3"); r.code != exitFailed || r.err != "fairlead: node node-3: the plane is closed\n" || r.out != "" {
		t.Errorf("an agent that refuses: %+v", r)
	}
}

// With --etcd the agent of this host says which node it is.
func TestLocalAgent(t *testing.T) {
	c := wellAndSick(t)
	for _, tt := range []struct {
		names []string
		want  string // of the error
	}{
		{nil, ""},
		{[]string{"node-1"}, ""},
		{[]string{"node-2"}, "this is node-1: run the command on node-2"},
		{[]string{"node-1", "node-2"}, "name one node, or none"},
	} {
		got, err := localAgent(t.Context(), c.sockets["node-1"], tt.names)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.names, err, tt.want)
		}
		for _, a := range got {
			if a.node != "node-1" {
				t.Errorf("%v: the agent is %s", tt.names, a.node)
			}
			a.client.Close()
		}
	}
	if _, err := localAgent(t.Context(), filepath.Join(c.dir, "nobody.sock"), nil); err == nil || !strings.Contains(err.Error(), "run the command on the node") {
		t.Errorf("no agent: %v", err)
	}
}
