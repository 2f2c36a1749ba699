package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

// A pod's life on a node whose agent is restarted meanwhile.
func TestAgentEndToEnd(t *testing.T) {
	s := cluster(t)
	n := newNode(t, s)
	end := n.boot()

	got := n.add("c1", "web")
	if len(got) != 2 || !strings.HasPrefix(got[0], "10.128.") || !strings.HasPrefix(got[1], "fd00:10::") {
		t.Errorf("ADD gives %q", got)
	}
	i := n.plane.Intent()
	if !hasPort(i, "c1") || i.Ports[0].VNI != 4096 || i.Ports[0].Pod != "shop/web" {
		t.Errorf("when ADD returns, the plane has the ports %+v", i.Ports)
	}
	n.plane.until(t, "the route to the peer's block", func(i intent.Node) bool {
		return slices.ContainsFunc(i.Routes, func(r intent.Route) bool {
			return r.Dst == netip.MustParsePrefix("10.128.255.0/26") && r.NextHop.Peer == "n2"
		})
	})
	awaitNodeNetwork(t, s, func(nn *v1alpha1.NodeNetwork) bool {
		return len(nn.Spec.Addresses) == 1 && nn.Spec.Addresses[0] == "172.30.0.11/24" && nn.Status.PodMTU > 0 &&
			len(nn.Status.Conditions) == 1 && nn.Status.Conditions[0].Reason == "Ready"
	})

	// The same ADD again gives the same answer.
	code, result := n.cni(cniapi.Add, "c1", "web", conf)
	if code != 0 || !slices.Equal(addressesOf(t, result), got) {
		t.Errorf("the same ADD: code %d, %v", code, result)
	}
	if code, _ := n.cni(cniapi.Status, "", "", conf); code != 0 {
		t.Errorf("STATUS: code %d", code)
	}
	check := strings.TrimSuffix(conf, "}") + `,"prevResult":` + marshal(t, result) + "}"
	if code, out := n.cni(cniapi.Check, "c1", "web", check); code != 0 {
		t.Errorf("CHECK: %v", out)
	}

	// A restart is no event for the kernel.
	end()
	if !hasPort(n.plane.Intent(), "c1") {
		t.Fatal("the end of an agent removed a port")
	}
	end = n.boot()
	if again := n.add("c1", "web"); !slices.Equal(again, got) {
		t.Errorf("the same ADD after a restart gives %q, want %q", again, got)
	}
	if other := n.add("c2", "db"); slices.Contains(other, got[0]) {
		t.Errorf("another pod gets %q", other)
	}
	if code, out := n.cni(cniapi.Check, "c1", "web", check); code != 0 {
		t.Errorf("CHECK after a restart: %v", out)
	}
	if code, out := n.cni(cniapi.Del, "c1", "web", conf); code != 0 {
		t.Errorf("DEL: %v", out)
	}
	n.plane.until(t, "the port is gone", func(i intent.Node) bool { return !hasPort(i, "c1") && hasPort(i, "c2") })
	if code, _ := n.cni(cniapi.Check, "c1", "web", check); code != int(cniapi.CodeUnknownContainer) {
		t.Errorf("CHECK after DEL: code %d", code)
	}
	end()
	if _, err := os.Stat(filepath.Join(n.dir, "run", "cni.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind (%v)", err)
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// away is a datastore that cannot be reached.
type away struct{ datastore.Store }

var errAway = errors.New("no route to the datastore")

func (away) Get(context.Context, datastore.Kind, datastore.Key) (datastore.Object, error) {
	return nil, errAway
}

func (away) List(context.Context, datastore.Kind) (datastore.List, error) {
	return datastore.List{}, errAway
}

func (away) Create(context.Context, datastore.Object) (datastore.Object, error) { return nil, errAway }

func (away) Update(context.Context, datastore.Object) (datastore.Object, error) { return nil, errAway }

func (away) UpdateStatus(context.Context, datastore.Object) (datastore.Object, error) {
	return nil, errAway
}

func (away) Watch(context.Context, datastore.Kind, string) (datastore.Watcher, error) {
	return nil, errAway
}

// From its checkpoint an agent serves what it knew, without a datastore, and after a
// reboot that emptied the kernel.
func TestRebootWithoutDatastore(t *testing.T) {
	n := newNode(t, cluster(t))
	end := n.boot()
	n.add("c1", "web")
	// The checkpoint is of a world that is whole, and the node's own blocks are on disk.
	n.plane.until(t, "the peer", func(i intent.Node) bool { return len(i.Peers) == 1 })
	n.awaitStatus(func(s admin.Status) bool { return !s.AddOnly && s.AppliedRevision > 0 })
	for deadline := time.Now().Add(patience); ; {
		raw, err := os.ReadFile(filepath.Join(n.dir, "state", "addresses.json"))
		if strings.Contains(string(raw), "10.128.") && strings.Contains(string(raw), "fd00:10:") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in time: the node's blocks are not on disk: %s (%v)", raw, err)
		}
	}
	end()

	n.plane, n.store = newPlane("n1"), away{}
	n.boot()
	n.plane.until(t, "what the checkpoint knows", func(i intent.Node) bool { return hasPort(i, "c1") && len(i.Peers) == 1 })
	n.add("c2", "db")
	if code, out := n.cni(cniapi.Status, "", "", conf); code != 0 {
		t.Errorf("STATUS without a datastore: %v", out)
	}
	// What went meanwhile is there still; after a while the node is ready with that.
	n.awaitStatus(func(s admin.Status) bool {
		return s.AddOnly && s.NotReady == "" && slices.ContainsFunc(s.Feed, func(f admin.Feed) bool { return strings.Contains(f.LastError, errAway.Error()) })
	})
	if after := time.Since(n.agent.passedAt); after < catchUpTime {
		t.Errorf("ready %s after the first pass, without having heard from the datastore; want %s at least", after, catchUpTime)
	}
}

// An agent is ready when it has removed what went while it was away.
func TestReadyWhenCaughtUp(t *testing.T) {
	n := newNode(t, cluster(t))
	end := n.boot()
	n.awaitStatus(func(s admin.Status) bool { return !s.AddOnly && s.AppliedRevision > 0 })
	end() // saves its world
	n.boot()
	n.awaitStatus(func(s admin.Status) bool {
		if s.NotReady == "" && s.AddOnly {
			t.Fatal("ready, and what is gone is not removed")
		}
		return s.NotReady == ""
	})
}

// Without a checkpoint and without a datastore nothing is served, and says so.
func TestFirstBootWithoutDatastore(t *testing.T) {
	n := newNode(t, away{})
	n.boot()
	if code, out := n.cni(cniapi.Status, "", "", conf); code != int(cniapi.CodeUnavailable) {
		t.Errorf("STATUS: %v", out)
	}
	n.awaitStatus(func(s admin.Status) bool { return s.NotReady != "" })
}

// awaitStatus asks until the agent's status is as it should be.
func (n *node) awaitStatus(ok func(admin.Status) bool) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		var s admin.Status
		if err := n.client.Get(n.t.Context(), "/v1/status", &s); err != nil {
			n.t.Fatal(err)
		}
		if ok(s) {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("not in time; the status is %+v", s)
		}
	}
}

// What the admin socket answers, and the names of its fields: scripts rely on them.
func TestHandlers(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	n.add("c1", "web")
	n.plane.until(t, "the peer's route", func(i intent.Node) bool {
		return slices.ContainsFunc(i.Routes, func(r intent.Route) bool { return r.NextHop.Peer == "n2" })
	})
	n.awaitStatus(func(s admin.Status) bool {
		return s.Revision == s.AppliedRevision && s.Counts["ports"] == 1 && s.Counts["peers"] == 1
	})
	for _, tt := range []struct {
		path   string
		fields []string // of the object, or of the list's first
	}{
		{"/v1/status", []string{
			"addOnly", "appliedRevision", "counts", "drops", "features", "feed", "health", "memory", "node", "plane", "podMTU",
			"position", "problems", "revision", "started", "synced", "underlay", "version",
		}},
		{"/v1/audit", []string{"differences", "foreign", "node"}},
		{"/v1/peers", []string{"addresses", "name", "paths", "vtepMAC"}},
		{"/v1/attachments", []string{"addresses", "hostInterface", "id", "interface", "mac", "namespace", "netns", "pod", "subnet", "vpc"}},
		{"/v1/journal", []string{"note", "time"}},
		{"/v1/config", []string{"apiVersion", "datastore", "kind", "log", "metrics", "node", "plane", "resync", "runDir", "stateDir", "underlay"}},
	} {
		var v any
		if err := n.client.Get(t.Context(), tt.path, &v); err != nil {
			t.Errorf("%s: %v", tt.path, err)
			continue
		}
		if list, ok := v.([]any); ok && len(list) > 0 {
			v = list[0]
		}
		object, _ := v.(map[string]any)
		if d := cmp.Diff(tt.fields, slices.Sorted(maps.Keys(object))); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.path, d)
		}
	}
	var peers []admin.Peer
	if err := n.client.Get(t.Context(), "/v1/peers", &peers); err != nil {
		t.Fatal(err)
	}
	want := []admin.Peer{{
		Name: "n2", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.12")}, VTEPMAC: "06:00:00:00:00:02",
		Paths: []admin.Path{{VPC: "default", Via: "VXLAN to 172.30.0.12", Prefixes: prefixes("10.128.255.0/26")}},
	}}
	if d := cmp.Diff(want, peers, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("peers (-want +got):\n%s", d)
	}
	for _, path := range []string{"/v1/ipam", "/v1/intent"} {
		var v any
		if err := n.client.Get(t.Context(), path, &v); err != nil || v == nil {
			t.Errorf("%s: %v, %v", path, v, err)
		}
	}
	if err := n.client.Get(t.Context(), "/v1/journal?since=yesterday", new(any)); err == nil || !strings.Contains(err.Error(), `"yesterday" is not a time such as`) {
		t.Errorf("a bad time: %v", err)
	}
	var none []any
	if err := n.client.Get(t.Context(), "/v1/journal?since=2999-01-01T00:00:00Z", &none); err != nil || none == nil {
		t.Errorf("a journal without entries is %v, want an empty list (%v)", none, err)
	}
}

// What somebody else changes is seen, repaired, and told.
func TestForeignChange(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	n.add("c1", "web")
	ref := n.plane.Intent().Ports[0].Ref()
	if !n.plane.Damage(ref) {
		t.Fatal("there was nothing to damage")
	}
	n.plane.until(t, "the port is back", func(i intent.Node) bool { return hasPort(i, "c1") })
	for deadline := time.Now().Add(patience); ; {
		var audit admin.Audit
		if err := n.client.Get(t.Context(), "/v1/audit", &audit); err != nil {
			t.Fatal(err)
		}
		if len(audit.Differences) == 0 && len(audit.Foreign) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("audit: %+v", audit)
		}
	}
}

// A link that goes with its pod's namespace behind DEL is nobody's change; that of a pod that
// is there is.
func TestLinkGoneBehindDEL(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	n.add("c1", "web")
	link := n.plane.Intent().Ports[0].HostInterface
	for _, l := range []string{claims.PortName("c0", "eth0"), link} {
		n.agent.changed(apply.Foreign{Time: time.Now(), Subsystem: "link", What: l, Port: l})
	}
	if got := n.agent.foreign.list(time.Now()); len(got) != 1 || got[0].What != link {
		t.Errorf("told of %+v, want %s alone", got, link)
	}
}

// A plane that cannot count or apply does not hide the rest of the status.
func TestStatusOfASickPlane(t *testing.T) {
	n := newNode(t, cluster(t))
	n.plane.drops = errors.New("nftables is gone")
	n.boot()
	n.awaitStatus(func(s admin.Status) bool { return slices.Contains(s.Failed, "read drop counters: nftables is gone") })
	n.plane.Fail(intent.Port{ID: "c1/eth0"}.Ref(), errors.New("no such device"))
	for deadline := time.Now().Add(patience); ; {
		code, out := n.cni(cniapi.Add, "c1", "web", conf)
		if strings.Contains(fmt.Sprint(out["msg"], out["details"]), "no such device") {
			break
		}
		if code == 0 || time.Now().After(deadline) {
			t.Fatalf("ADD: code %d, %v", code, out)
		}
	}
}

// Two agents on one node do not fight.
func TestSecondAgentIsRefused(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	n.awaitStatus(func(s admin.Status) bool { return s.NotReady == "" })
	second, err := New(n.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another fairlead-agent") {
		t.Errorf("got %v", err)
	}
	if code, _ := n.cni(cniapi.Status, "", "", conf); code != 0 {
		t.Errorf("the first agent answers STATUS with code %d", code)
	}
}

// What takes packets from ours is told as long as it is there, by the agent and to the datastore.
func TestShadowsAreToldWhileTheyLast(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	message := "route 10.128.3.0/24 dev nic, which is not Fairlead's, takes packets from 10.128.0.0/14 dev fl.vxlan: remove it, or keep Fairlead's addresses out of it"
	for _, there := range []bool{true, false} {
		n.plane.mu.Lock()
		n.plane.shadows = nil
		if there {
			n.plane.shadows = []apply.Difference{{Subsystem: "route", Object: "10.128.3.0/24 dev nic", Problem: "shadowing", Want: "10.128.0.0/14 dev fl.vxlan"}}
		}
		n.plane.mu.Unlock()
		n.awaitStatus(func(s admin.Status) bool {
			return there == slices.ContainsFunc(s.Problems, func(p admin.Problem) bool { return p.Reason == "Shadowed" && p.Message == message })
		})
		for deadline := time.Now().Add(patience); ; {
			nn, err := asNodeNetwork(n.store.Get(t.Context(), kindNodeNetwork, datastore.Key{Name: "n1"}))
			if err == nil && there == slices.ContainsFunc(nn.Status.Problems, func(p v1alpha1.ObjectProblem) bool {
				return p.Kind == "Node" && p.Name == "n1" && p.Reason == "Shadowed" && p.Message == message
			}) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("shadowed is %v, and the datastore holds %+v (%v)", there, nn, err)
			}
		}
	}
}

// A disk that cannot be written is told before anybody needs it, is no reason to take the node
// out of service, and is told no more once it can be written.
func TestDiskThatCannotBeWritten(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	dir := filepath.Join(n.dir, "state")
	n.awaitStatus(func(s admin.Status) bool { return level(s, "disk") == health.OK })
	// Nothing can be written where somebody else's directory is, which is not empty from the first.
	made, inTheWay := filepath.Join(n.dir, "made"), filepath.Join(dir, trial)
	if err := os.MkdirAll(filepath.Join(made, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for try := 0; ; try++ { // The agent's own file may be there just then.
		err := os.Rename(made, inTheWay)
		if err == nil {
			break
		}
		if try == 1000 {
			t.Fatal(err)
		}
	}
	n.awaitStatus(func(s admin.Status) bool { return level(s, "disk") == health.Degraded })
	if code, out := n.cni(cniapi.Status, "", "", conf); code != 0 {
		t.Errorf("STATUS: code %d, %v", code, out)
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}
	n.awaitStatus(func(s admin.Status) bool { return level(s, "disk") == health.OK })
}

func level(s admin.Status, component string) health.Level {
	i := slices.IndexFunc(s.Health, func(h health.State) bool { return h.Component == component })
	if i < 0 {
		return ""
	}
	return s.Health[i].Level
}

// What reads alike, such as routes that differ in their metric, is one problem.
func TestShadowsThatReadAlikeAreOne(t *testing.T) {
	a := &Agent{Config: Config{Agent: config.Agent{Node: "n1"}}}
	route := apply.Difference{Subsystem: "route", Object: "blackhole 10.0.0.0/26", Problem: "shadowing", Want: "10.0.0.0/14 dev fl.vxlan"}
	other := route
	other.Object = "blackhole 10.0.1.0/26"
	found := append(slices.Repeat([]apply.Difference{route}, maxProblems+10), other)
	if got := a.shadows(found); len(got) != 2 || got[0].Message == got[1].Message {
		t.Errorf("%d problems: %+v", len(got), got)
	}
}
