package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// linuxWalk is the way of a packet of shop/web through a node of the linux plane.
func linuxWalk() *apply.Walk {
	return &apply.Walk{Verdict: "accept", Steps: []apply.Step{
		{Stage: "source", Hook: "ingress", Chain: "program port_in", Rule: -1, Comment: "the pod's own address", Effect: "pass as VNI 4096", Live: "the program is there, its map holds the port"},
		{Stage: "source", Hook: "prerouting", Chain: "prerouting", Rule: 0, Comment: "checked by our programs", Text: "meta mark & 0x04000000 == 0x04000000 accept", Effect: "accept", Handle: 39, Live: "handle 39"},
		{Stage: "path", Hook: "route", Chain: "routes", Rule: -1, Text: "10.128.0.0/14 dev fl.vxlan", Comment: "Subnet default", Effect: "to fl.vxlan", Live: "10.128.0.0/14 dev fl.vxlan"},
		{Stage: "flow", Hook: "forward", Chain: "judge", Rule: 2, Text: "ct mark set ct mark | 0x10000000", Effect: "ct mark set", Handle: 64, Live: "handle 64; @egress-of-port as wanted"},
		{Stage: "path", Hook: "tunnel", Chain: "program wire_out", Rule: -1, Comment: "10.128.0.64/26 is at 172.30.0.12, 06:01:02:03:04:05", Effect: "tunnel to 172.30.0.12, VNI 4096", Live: "the maps hold it"},
	}}
}

// ovsWalk is its way through the node of bank/teller.
func ovsWalk(allowed bool) *apply.Walk {
	const pod = "Port 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff/eth0 of bank/teller"
	w := &apply.Walk{Verdict: "accept", Live: "accept", Steps: []apply.Step{
		{Stage: "source", Hook: "bridge", Chain: "classify", Rule: 2, Comment: "from the tunnel", Text: "priority=20,in_port=2", Effect: "goto tunnel-vni", Live: "met, 12 packets"},
		{Stage: "vpc", Hook: "bridge", Chain: "tunnel-vni", Comment: "VPC default", Text: "priority=10,tun_id=0x1000", Effect: "goto track", Live: "met, 12 packets"},
		{Stage: "flow", Hook: "bridge", Chain: "flows", Rule: 14, Comment: "new flow", Text: "priority=0", Effect: "goto route", Live: "met, 7 packets"},
		{Stage: "path", Hook: "bridge", Chain: "route", Rule: 7, Comment: pod, Text: "priority=229,ip,nw_dst=10.128.0.66", Effect: "goto tenants", Live: "met, 7 packets"},
		{Stage: "ingress", Hook: "bridge", Chain: "ingress-ports", Rule: 2, Comment: "allowed by NetworkPolicy bank/tellers rule 0", Text: "priority=3,tcp,reg7=0x1,tp_dst=80", Effect: "goto deliver", Live: "met, 7 packets"},
		{Stage: "delivery", Hook: "bridge", Chain: "deliver", Rule: 2, Comment: pod, Text: "priority=10,reg5=0x3", Effect: "output to flpaaaaaaaaaaaa", Live: "met, 7 packets"},
	}}
	if !allowed {
		w.Verdict, w.Live, w.Steps = "drop", "drop", w.Steps[:5]
		w.Steps[4] = apply.Step{Stage: "ingress", Hook: "bridge", Chain: "ingress", Rule: 1, Comment: "denied by NetworkPolicy bank/tellers isolates", Text: "priority=1,reg7=0x1", Effect: "drop", Live: "met, 3 packets"}
	}
	return w
}

// tracedCluster is policyCluster with a node of each plane; change may damage the second.
func tracedCluster(t *testing.T, change func(*apply.Walk)) *cluster {
	return policyCluster(t, map[string]func(*admin.Explanation){
		"n1": func(x *admin.Explanation) { x.Plane, x.Rules, x.NoRules = "linux", linuxWalk(), "" },
		"n2": func(x *admin.Explanation) {
			x.Plane, x.Rules, x.NoRules = "ovs", ovsWalk(x.Ingress == nil || x.Ingress.Allowed), ""
			if change != nil {
				change(x.Rules)
			}
		},
	})
}

func TestTrace(t *testing.T) {
	c := tracedCluster(t, nil)
	c.transcript(
		"trace",
		"trace shop/web bank/teller:http",
		"trace shop/web bank/teller:80/TCP -o wide",
		"trace shop/cart bank/teller:80",
		"trace shop/web bank/teller:80 -o json",
		"trace shop/web 255.255.255.255:80/UDP",
		"trace shop/web svc/shop/web:8000",
		"trace web",
	)
}

// The objects of policy why are those of trace.
func TestTraceIsPolicyWhy(t *testing.T) {
	c := tracedCluster(t, nil)
	args := []string{"shop/web", "bank/teller:80", "-o", "json"}
	trace, why := c.run(append([]string{"trace"}, args...)...), c.run(append([]string{"policy", "why"}, args...)...)
	if trace != why || trace.code != 0 {
		t.Errorf("trace %+v\nwhy %+v", trace, why)
	}
}

// What a node does not hold, or does in another way, is told with stage and object.
func TestTraceDisagrees(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*apply.Walk)
		want   string
	}{
		"a flow is gone": {func(w *apply.Walk) {
			w.Steps[5].Live = "NOT MET, MISSING"
			w.Miss("delivery", "flow priority=10,reg5=0x3 of table deliver is not in the switch")
		}, "DISAGREEMENT  node n2: delivery: flow priority=10,reg5=0x3 of table deliver is not in the switch"},
		"the rules drop": {func(w *apply.Walk) { *w = *ovsWalk(false) }, "node n2: ingress: the oracle expects the rules to accept the packet, and they drop it: table ingress: denied by"},
	} {
		t.Run(name, func(t *testing.T) {
			r := tracedCluster(t, tt.change).run("trace", "shop/web", "bank/teller:80")
			if r.code != exitDisagree || !strings.Contains(r.out, tt.want) || !strings.Contains(r.out, "The sources DISAGREE") {
				t.Errorf("exit %d, want %q in\n%s%s", r.code, tt.want, r.out, r.err)
			}
		})
	}
}

// An end that agrees does not hide the disagreement of another pair of addresses.
func TestTraceCountsDisagreements(t *testing.T) {
	var out bytes.Buffer
	a, format := &app{out: &out, err: &out}, outputFormat("table")
	r := &whyReport{Flows: []whyFlow{{Disagreements: []string{"node n1: path: x"}}, {}}}
	if err := a.printWhy(&format, r, func(f whyFlow, _ bool) error { return a.sayAgreement(f) }); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "no node was asked.\n\nOf 2 pairs of addresses, 1 DISAGREES.\n") {
		t.Error(out.String())
	}
}

// silent is an agent that takes questions and does not answer.
type silent struct{ closedDoor }

func (silent) Get(ctx context.Context, _ string, _ any) error {
	<-ctx.Done()
	return ctx.Err()
}

// A frozen agent costs its evidence and a few seconds, once, however much is asked.
func TestTraceDoesNotWaitForAFrozenAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		w := witnesses{app: &app{agents: func(_ context.Context, names []string) ([]agentOf, error) {
			asked.Add(1)
			return []agentOf{{node: names[0], client: silent{}}}, nil
		}}}
		defer w.close()
		flows := make([]whyFlow, 40)
		for i := range flows {
			flows[i] = whyFlow{From: whyPlace{Kind: "pod", Node: "n1"}, To: whyPlace{Kind: "pod", Node: "n2"}}
		}
		start := time.Now()
		for range 3 {
			w.askAll(t.Context(), flows)
		}
		if d := time.Since(start); d > 2*askTimeout {
			t.Errorf("it took %s", d)
		}
		for _, n := range flows[39].Nodes {
			if want := "node " + n.Node + " did not answer in 3s"; n.Error != want {
				t.Errorf("%q, want %q", n.Error, want)
			}
		}
		if n := asked.Load(); n != 2 {
			t.Errorf("agents were looked for %d times, want once a node", n)
		}
	})
}

// Questions that take long are only asked of agents that answer.
func TestLongQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := agentOf{node: "n1", client: silent{}}.get(t.Context(), "/v1/audit", &admin.Audit{})
		if d := time.Since(start); d != askTimeout || err == nil || err.Error() != "node n1 did not answer in 3s" {
			t.Errorf("after %s: %v", d, err)
		}
	})
}

// With an agent that is away the rest is shown.
func TestTraceWithoutAnAgent(t *testing.T) {
	c := tracedCluster(t, nil)
	c.sockets["n2"] = c.dir + "/nobody.sock"
	r := c.run("trace", "shop/web", "bank/teller:80")
	if r.code != exitFailed || !strings.Contains(r.out, "no evidence: ") || !strings.Contains(r.out, "program wire_out") || !strings.Contains(r.out, "; the rest agrees.") {
		t.Errorf("exit %d:\n%s%s", r.code, r.out, r.err)
	}
}

// The questions go to both ends at once, with the VNI that the objects say.
func TestTraceTellsTheVNI(t *testing.T) {
	c := policyCluster(t, map[string]func(*admin.Explanation){"n1": func(x *admin.Explanation) { x.VNI = 77 }})
	r := c.run("trace", "shop/web", "bank/teller:80", "-o", "json")
	var got whyReport
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatal(err)
	}
	want := "node n1: tenant: the objects give the packet VNI 4096, the node VNI 77"
	if d := got.Flows[0].Disagreements; r.code != exitDisagree || len(d) != 1 || d[0] != want {
		t.Errorf("exit %d, %q, want %q", r.code, d, want)
	}
}

func TestWrap(t *testing.T) {
	if got := strings.Join(wrap("a bc  def longerthanthat x", 6), "|"); got != "a bc|def|longerthanthat|x" {
		t.Errorf("%q", got)
	}
	if got := brief("Port 00112233445566778899aabbccddeeff/eth0 of a/b"); got != "Port 001122334455/eth0 of a/b" {
		t.Errorf("%q", got)
	}
}
