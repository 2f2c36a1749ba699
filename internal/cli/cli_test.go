package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
)

func nothing() (datastore.Store, error) { return nil, errors.New("there is no lab") }

// A mistake of the caller is exit code 2, and nothing is asked of anybody.
func TestUsage(t *testing.T) {
	c := newCluster(t)
	c.open = func() (datastore.Store, error) {
		t.Error("the datastore was opened")
		return nothing()
	}
	c.transcript("usage",
		"gett", "frobnicate", "get", "get unicorns", "get pods a b", "get pods -o xml", "get pods --nonsense", "get pods -o", "status x",
		"status -o xml", "audit -o xml", "lab check -o xml", "ipam", "ipam frob", "node", "lab", "config", "config check", "diag x", "version x",
		"events x", "lab up --encap ipsec", "lab up --subnet 10.0.0.0", "lab up --underlay foo", "lab up --nodes 0", "lab up --segments 0", "lab up --mtu 0", "lab up --wait 0s",
		"lab up --log-level loud", "lab up --underlay 10.128.0.0/16", "lab up --subnet fe80::/64", "lab up --nodes many", "lab fault frob", "lab fault agent-kill",
		"lab fault datastore-kill node-1", "lab exec pod", "lab shell", "--etcd http://127.0.0.1:1 lab status", "completion klingon x",
		"lab up --nodes 99999999999999999999", "lab up --no-nat=maybe", "lab up --wait 5", "lab up --subnet a,\"b", "lab up --subnet=", "lab up --underlay=", "lab up --plane=", "lab down --lab=",
		"get pods -z", "get pods -xyz", "get pods --name-space shop", "get pods -n", "---foo", "help nosuch", "help lab nosuch", "completion bash x",
		"get pods -A -n shop", "capture a --packets -3 -o -", "journal n1 --since", "tenant join shop", "policy why shop/web", "delete pod", "delete --key=",
	)
}

func TestFailuresAreNoUsageErrors(t *testing.T) {
	c := newCluster(t)
	c.open = nothing
	for _, args := range [][]string{{"get", "pods"}, {"status"}, {"audit"}, {"node", "status"}, {"get", "peers"}, {"tenant", "isolate", "a"}, {"ipam", "release", "10.0.0.1"}} {
		if r := c.run(args...); r.code != exitFailed || !strings.HasPrefix(r.err, "fairlead: there ") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	var out bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, err: &out}
	a.openStore, a.agents = a.targetStore, a.targetAgents
	for _, args := range [][]string{{"get", "pods"}, {"audit"}, {"lab", "status"}, {"lab", "down"}} {
		out.Reset()
		if code := a.run(t.Context(), append(args, "--lab-root", c.dir)); code != exitFailed || !strings.Contains(out.String(), "there is no such lab") {
			t.Errorf("%v without a lab: exit %d: %s", args, code, out.String())
		}
	}
}

func TestInterruptedIsSaid(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	a := &app{in: strings.NewReader(""), out: &out, err: &out}
	a.agents = func(ctx context.Context, _ []string) ([]agentOf, error) {
		cancel()
		return nil, ctx.Err()
	}
	if code := a.run(ctx, []string{"audit"}); code != exitFailed || out.String() != "fairlead: interrupted\n" {
		t.Errorf("exit %d: %s", code, out.String())
	}
}

func TestVersionHelpAndCompletion(t *testing.T) {
	c := newCluster(t)
	c.loadFile("cluster.yaml")
	if r := c.run("version"); r.out != "v1.2.3\n" || r.code != 0 {
		t.Errorf("version: %+v", r)
	}
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"get", "--help"}, {"completion", "bash"}} {
		if r := c.run(args...); r.code != 0 || r.out == "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"get", ""}, "peers"},
		{[]string{"get", "pods", ""}, "shop/web"},
		{[]string{"get", "peers", ""}, "node-2"},
		{[]string{"delete", "pods", "bank/teller", ""}, "shop/web"},
		{[]string{"audit", ""}, "node-1"},
		{[]string{"tenant", "join", ""}, "bank"},
		{[]string{"get", "pods", "-o", ""}, "yaml"},
		{[]string{"lab", "fault", ""}, "agent-kill"},
		{[]string{"lab", "up", "--plane", ""}, "ovs"},
		{[]string{"lab", "up", "--encap", ""}, "crosssubnet"},
		{[]string{"journal", ""}, "node-2"},
		{[]string{"lab", "shell", ""}, "node/node-1"},
	} {
		r := c.run(append([]string{"__complete"}, tt.args...)...)
		if !strings.Contains("\n"+r.out, "\n"+tt.want+"\n") {
			t.Errorf("complete %q: %q is missing in\n%s", tt.args, tt.want, r.out)
		}
	}
	c.open = nothing
	if r := c.run("__complete", "get", "pods", ""); !strings.Contains(r.out, ":1\n") {
		t.Errorf("completion without a datastore: %+v", r)
	}
}

func TestConfigCheck(t *testing.T) {
	c := newCluster(t)
	c.write("agent.yaml", "apiVersion: fairlead.dev/config/v1alpha1\nkind: AgentConfig\nnode: n1\ndatastore: {etcd: {endpoints: [https://10.0.0.1:2379]}}\n")
	c.write("controller.yaml", "apiVersion: fairlead.dev/config/v1alpha1\nkind: ControllerConfig\nidentity: c1\ndatastore: {etcd: {endpoints: [https://10.0.0.1:2379]}}\n")
	c.write("bad.yaml", "apiVersion: fairlead.dev/config/v1alpha1\nkind: AgentConfig\nnode: n1\nmtu: 1\nplane: dpdk\ndatastore: {etcd: {endpoints: [\"x\"]}}\n")
	c.transcript("config", "config check DIR/agent.yaml", "config check DIR/agent.yaml DIR/bad.yaml DIR/controller.yaml", "config check DIR/missing.yaml")
}

// evil is what an object's message may hold: colours, a title, a clear screen, and
// text that is written backwards.
const evil = "\x1b[31mred\x1b]0;title\x07 \u009b2J\u202eback\x7f\rline\nnext\tcell"

// Nothing that objects or agents say drives a terminal.
func TestNothingDrivesTheTerminal(t *testing.T) {
	c := newCluster(t)
	quoted := fmt.Sprintf("%+q", evil)
	c.load("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {conditions: [{type: Ready, status: \"False\", message: " + quoted + "}]}\n---\n" +
		"apiVersion: v1\nkind: Event\nmetadata: {name: e, namespace: ns}\nmessage: " + quoted + "\nreason: " + quoted + "\ninvolvedObject: {kind: Pod, name: " + quoted + "}\n---\n" +
		"apiVersion: fairlead.dev/v1alpha1\nkind: NodeNetwork\nmetadata: {name: n1}\nstatus: {problems: [{kind: Pod, name: " + quoted + ", reason: " + quoted + ", message: " + quoted + "}]}\n---\n" +
		"apiVersion: fairlead.dev/v1alpha1\nkind: IPBlock\nmetadata: {name: s.0a000100-26}\nspec: {subnet: s, cidr: 10.0.1.0/26, node: n1, allocations: {10.0.1.2: {name: " + quoted + "}}}\n")
	c.serve("n1", map[string]admin.Handler{
		"GET /v1/status": says(admin.Status{
			Node: evil, NotReady: evil, Features: []string{evil}, Failed: []string{evil}, Drops: map[string]uint64{evil: 1}, Version: evil,
			Health: []health.State{{Component: evil, Level: "failed", Message: evil}}, Feed: []admin.Feed{{Kind: evil, Phase: evil, LastError: evil}},
			Problems: []admin.Problem{{Kind: evil, Object: evil, Reason: evil, Message: evil}},
		}),
		"GET /v1/audit": says(admin.Audit{
			Node: evil, Differences: []apply.Difference{{Subsystem: evil, Object: evil, Problem: evil}}, Foreign: []apply.Foreign{{What: evil, Process: evil}},
		}),
		"GET /v1/peers":   says([]admin.Peer{{Name: evil, Paths: []admin.Path{{VPC: evil, Via: evil, Prefixes: []netip.Prefix{{}}}}}}),
		"GET /v1/journal": says([]journal.Entry{{Note: evil, Objects: []string{evil}}}),
	})
	c.write("evil.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: "+quoted+"}\nspec: {containers: [{name: "+quoted+"}]}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: x, annotations: {"+quoted+": y}}\n")
	c.write("field.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: "+quoted+"}\n"+quoted+": 1\n")
	c.write("config.yaml", "apiVersion: fairlead.dev/config/v1alpha1\nkind: AgentConfig\nnode: "+quoted+"\n")
	for _, line := range []string{
		"get nodes", "get events", "get events -o wide", "events", "status", "ipam show", "ipam check", "get nn -o wide",
		"node status", "node status -o wide", "node status n1", "audit", "journal n1", "get peers",
		"get nodes -o json", "get events -o yaml", "status -o json", "status -o yaml", "audit -o json", "node status -o yaml", "journal n1 -o json",
		"apply -f DIR/evil.yaml", "apply -f DIR/evil.yaml --dry-run", "apply -f DIR/field.yaml", "config check DIR/config.yaml",
		"get EVIL", "get pod EVIL", "delete pod EVIL", "EVIL", "ipam release EVIL", "get pods --EVIL", "tenant isolate EVIL", "audit EVIL", "lab fault EVIL",
	} {
		args := strings.Fields(strings.ReplaceAll(line, "DIR", c.dir))
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "EVIL", evil)
		}
		r := c.run(args...)
		for stream, text := range map[string]string{"output": r.out, "error": r.err} {
			for _, char := range text {
				if char != '\n' && (unicode.IsControl(char) || unicode.Is(unicode.Bidi_Control, char)) && !(stream == "error" && char == '\t') {
					t.Errorf("%s: %q reaches the terminal: %q", line, char, text)
					break
				}
			}
		}
		if r.out+r.err == "" {
			t.Errorf("%s says nothing", line)
		}
	}
}

func TestCheckOutput(t *testing.T) {
	yes, no := true, false
	finding := func(from, to string, expected, got bool, why string) lab.Finding {
		return lab.Finding{From: from, To: to, Proto: "TCP", Port: 80, Expected: expected, Got: got, Why: why}
	}
	wrong := finding("bank/b", "shop/a", false, true, "tenant: VNI 2 may not reach VNI 1; \x1b[31mit answered")
	results := []lab.Finding{finding("shop/a", "bank/b", false, false, ""), finding("shop/a", "shop/c", true, true, ""), finding("shop/c", "shop/a", true, true, ""), wrong}
	good := &lab.CheckResult{Probes: 3, Agree: 3, Disagree: []lab.Finding{}, Results: results[:3], Extra: []lab.Observation{}, Unready: []lab.Unready{}, Seconds: 0.25}
	bad := &lab.CheckResult{
		Probes: 4, Agree: 3, Disagree: []lab.Finding{wrong}, Results: results, Seconds: 1.5,
		Unready: []lab.Unready{{Kind: "Pod", Name: "shop/d", Reason: "on n1: CrashLoopBackOff: exit code 1"}},
		Extra: []lab.Observation{
			{From: "node/n1", To: "shop/a", Proto: "UDP", Port: 53, Expected: &yes, Got: false, Target: netip.MustParseAddr("10.128.0.2"), Why: "no answer"},
			{From: "shop/a", To: "outside", Proto: "TCP", Port: 80, Expected: &no, Got: false, Target: netip.MustParseAddr("203.0.113.10")},
			{From: "shop/c", To: "outside", Proto: "TCP", Port: 80, Got: true, Target: netip.MustParseAddr("203.0.113.10"), Seen: netip.MustParseAddr("172.30.0.11")},
		},
	}
	var b strings.Builder
	for _, tt := range []struct {
		name   string
		result *lab.CheckResult
		format outputFormat
		all    bool
	}{
		{"all is well", good, "table", false},
		{"all is well, every pair", good, "table", true},
		{"something disagrees", bad, "table", false},
		{"something disagrees, every pair", bad, "wide", true},
		{"for programs, all is well", &lab.CheckResult{Disagree: []lab.Finding{}, Extra: []lab.Observation{}, Unready: []lab.Unready{}}, "json", false},
		{"for programs", bad, "json", true},
	} {
		var out bytes.Buffer
		a := &app{out: &out, err: &out}
		if err := a.printCheck(&tt.format, tt.result, tt.all); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "== %s\n%s\n", tt.name, out.String())
	}
	golden(t, "check.txt", b.String())
}

// /dev/null is a character device, as terminals are.
func TestDevNullIsNoTerminal(t *testing.T) {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if isTerminal(f) {
		t.Error("it is taken for one")
	}
}

func TestFlagsThatContradictAreWrongUsage(t *testing.T) {
	c := newCluster(t)
	for _, args := range [][]string{{"get", "pods", "-A", "-n", "a"}, {"events", "-A", "-n", "a"}} {
		if r := c.run(args...); r.code != exitUsage || !strings.Contains(r.err, "-A (--all-namespaces) and -n (--namespace) contradict each other: give one") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// full is a disk, or a pipe, that takes nothing any more.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, unix.ENOSPC }

// A command whose output got lost has failed, whoever wrote it, and says so once.
func TestLostOutputIsAFailure(t *testing.T) {
	c := wellAndSick(t)
	c.loadFile("cluster.yaml")
	for _, line := range []string{
		"--help", "help get", "completion bash", "version", "get pods", "get pods -o json", "get pods,vpcs", "status", "status -o yaml", "audit", "node status node-1", "journal node-1",
		"ipam show", "ipam check", "get peers", "diag -o -", "apply -f DIR/a.yaml --dry-run",
	} {
		c.write("a.yaml", twoDocuments)
		var errs bytes.Buffer
		a := &app{in: strings.NewReader(""), out: full{}, err: clean{&errs}, now: func() time.Time { return now }, openStore: c.open, agents: c.agents}
		code := a.run(t.Context(), strings.Fields(strings.ReplaceAll(line, "DIR", c.dir)))
		if n := strings.Count(errs.String(), "no space left on device"); code != exitFailed || n != 1 {
			t.Errorf("%s: exit %d, told %d times: %s", line, code, n, errs.String())
		}
	}
}

// A mistake of a page's length is not repeated.
func TestLongWordsAreCut(t *testing.T) {
	c := newCluster(t)
	long := strings.Repeat("ü", 3000)
	for _, args := range [][]string{
		{"get", long},
		{"get", "pod", long},
		{"delete", "pod", long},
		{"trace", long, long},
		{"policy", "why", "a/b", long + ":80"},
		{"lab", "fault", long},
		{"tenant", "isolate", long},
		{"apply", "-f", long},
		{"ipam", "release", long},
		{long},
		{"get", "pods", "--" + long},
		{"audit", long},
		{"--lab", long, "lab", "up"},
		{"lab", "up", "--subnet", long},
		{"lab", "up", "--encap", long},
	} {
		if r := c.run(args...); r.code == 0 || len(r.err) > 700 || r.err == "" || !utf8.ValidString(r.err) {
			t.Errorf("%.20q: exit %d, %d bytes: %.300s", args, r.code, len(r.err), r.err)
		}
	}
	if got, want := cutWords("a "+strings.Repeat("x", longestWord)+"\tb\n"), "a "+strings.Repeat("x", longestWord)+"\tb\n"; got != want {
		t.Errorf("a word that may be so long became %q", got)
	}
}
