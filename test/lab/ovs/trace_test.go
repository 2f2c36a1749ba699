package ovs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// tenants are two of one VPC, with a pod each.
const tenants = `
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: rooms}
spec:
  isolation: Tenant
  namespaces: {matchLabels: {network: rooms}}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: rooms}
spec: {vpc: rooms, cidrs: [10.99.0.0/16]}
---
apiVersion: v1
kind: Namespace
metadata: {name: red, labels: {network: rooms}}
---
apiVersion: v1
kind: Namespace
metadata: {name: blue, labels: {network: rooms}}
`

const onlyNear = `
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-near, namespace: default}
spec:
  podSelector: {matchLabels: {app: closed}}
  ingress: [{from: [{podSelector: {matchLabels: {app: near}}}], ports: [{port: 80}]}]
`

// said is what "fairlead" printed, and its exit code.
type said struct {
	out  string
	code int
	took time.Duration
}

// fairlead runs the command line on the lab.
func (c *cluster) fairlead(args ...string) said {
	c.t.Helper()
	bin, err := labtest.Bin()
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "fairlead"), append([]string{"--lab", c.Name(), "--lab-root", filepath.Dir(c.Directory())}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("fairlead %q: %v: %s", args, err, errs.String())
	}
	return said{out.String() + errs.String(), cmd.ProcessState.ExitCode(), time.Since(start)}
}

// traceReport is what the tests read of "fairlead trace -o json".
type traceReport struct {
	Allowed bool `json:"allowed"`
	Flows   []struct {
		Nodes []struct {
			Node        string `json:"node"`
			Explanation *struct {
				Plane string `json:"plane"`
				Rules *struct {
					Verdict string `json:"verdict"`
					Live    string `json:"live"`
					Steps   []struct {
						Stage string `json:"stage"`
						Live  string `json:"live"`
						Rule  int    `json:"rule"`
					} `json:"steps"`
				} `json:"rules"`
			} `json:"explanation"`
		} `json:"nodes"`
		Disagreements []string `json:"disagreements"`
	} `json:"flows"`
}

// TestTrace follows packets on clusters of each plane and of both: oracle, rules and
// nodes agree, until somebody tampers with a node.
func TestTrace(t *testing.T) {
	for _, planes := range []string{"linux", "ovs", "ovs,linux,linux"} {
		t.Run(planes, func(t *testing.T) {
			c := up(t, planes)
			c.Apply(tenants)
			in := func(namespace, manifest string) string {
				return strings.ReplaceAll(manifest, "namespace: default", "namespace: "+namespace)
			}
			c.Apply(pod("near", "node-1") + pod("closed", "node-1") + pod("far", "node-2") + pod("third", "node-3") +
				in("red", pod("r", "node-1")) + in("blue", pod("b", "node-2")) + in("red", pod("r2", "node-2")) + onlyNear)
			c.WaitPods()
			c.agrees()
			c.traces()
			c.tampered(planes)
			c.frozen()
		})
	}
}

// traces follows packets of every kind.
func (c *cluster) traces() {
	c.t.Helper()
	for _, tt := range []struct {
		from, to string
		allowed  bool
		nodes    int
	}{
		{"near", "closed:80", true, 1},
		{"near", "closed:81", false, 1},
		{"near", "far:80/UDP", true, 2},
		{"far", "near:80", true, 2},
		{"third", "far:icmp", true, 2},
		{"far", "closed:80", false, 2},
		{"red/r", "blue/b:80", false, 2},
		{"blue/b", "red/r:80", false, 2},
		{"red/r", "red/r2:80", true, 2},
		{"red/r", "far:80", false, 2},
		{"node/node-1", "near:80", true, 1},
		{"node/node-1", "far:80", true, 2},
		{"node/node-2", "near:80", true, 2},
		{"node/node-2", "closed:80", false, 2},
		{"near", "8.8.8.8:53/UDP", true, 1},
		{"far", "8.8.8.8:443", true, 1},
		{"near", "[2001:db8::1]:443", true, 1},
		{"near", "node/node-1:22", true, 1},
		{"far", "node/node-1:22", true, 2},
		{"203.0.113.9", "far:80", true, 1},
		{"203.0.113.9", "closed:80", false, 1},
		{"near", "255.255.255.255:67/UDP", false, 1},
		{"far", "224.0.0.251:5353/UDP", false, 1},
		{"far", "[ff02::fb]:5353/UDP", false, 1},
		{"near", "169.254.169.254:80", false, 1},
		{"far", "169.254.169.254:80", false, 1},
	} {
		got := c.fairlead("trace", tt.from, tt.to, "-o", "json")
		var r traceReport
		if err := json.Unmarshal([]byte(got.out), &r); err != nil || got.code != 0 || r.Allowed != tt.allowed || len(r.Flows) == 0 {
			c.t.Errorf("%s → %s: exit %d, allowed %t, %v, %v; want allowed %t", tt.from, tt.to, got.code, r.Allowed, err, r.Flows, tt.allowed)
			continue
		}
		for _, f := range r.Flows {
			if len(f.Nodes) != tt.nodes {
				c.t.Errorf("%s → %s: %d nodes were asked, want %d", tt.from, tt.to, len(f.Nodes), tt.nodes)
			}
			for _, n := range f.Nodes {
				if n.Explanation == nil || n.Explanation.Rules == nil || len(n.Explanation.Rules.Steps) == 0 {
					c.t.Errorf("%s → %s: nothing of node %s", tt.from, tt.to, n.Node)
					continue
				}
				for _, s := range n.Explanation.Rules.Steps {
					if s.Stage == "" || s.Live == "" && s.Rule >= 0 {
						c.t.Errorf("%s → %s on %s (%s): a step without stage or evidence: %+v", tt.from, tt.to, n.Node, n.Explanation.Plane, s)
					}
				}
			}
		}
	}
}

// tampered gives a node something of somebody else that takes packets away: every source
// of truth but the node says that they pass.
func (c *cluster) tampered(planes string) {
	c.t.Helper()
	far := c.place("far").addr
	var want string
	var undo []string
	if strings.HasPrefix(planes, "ovs") { // node-1's
		c.MustExec("node-1", "ovs-ofctl", "-O", "OpenFlow15", "add-flow", "fairlead", "cookie=0x77,table=30,priority=60000,ip,nw_dst="+far.String()+",actions=drop")
		want = "path: ofproto/trace meets flow priority=60000,ip,nw_dst=" + far.String() + " of table route in place of flow "
		undo = []string{"ovs-ofctl", "-O", "OpenFlow15", "del-flows", "fairlead", "cookie=0x77/-1"}
	} else {
		c.MustExec("node-1", "ip", "route", "add", "blackhole", far.String())
		want = "path: the kernel's route to " + far.String() + " is "
		undo = []string{"ip", "route", "del", "blackhole", far.String()}
	}
	got := c.fairlead("trace", "near", "far:80")
	if got.code != 3 || !strings.Contains(got.out, "DISAGREEMENT  node node-1: "+want) || !strings.Contains(got.out, "The sources DISAGREE") {
		c.t.Errorf("exit %d, want %q:\n%s", got.code, want, got.out)
	}
	c.MustExec("node-1", undo...)
	if got := c.fairlead("trace", "near", "far:80"); got.code != 0 {
		c.t.Errorf("undone: exit %d:\n%s", got.code, got.out)
	}
}

// frozen: an agent that does not answer costs its evidence and a few seconds.
func (c *cluster) frozen() {
	c.t.Helper()
	c.Fault(spec.AgentFreeze, "node-2")
	defer c.Fault(spec.AgentContinue, "node-2")
	got := c.fairlead("trace", "near", "far:80")
	if got.code != 1 || !strings.Contains(got.out, "did not answer in 3s") || got.took > 10*time.Second {
		c.t.Errorf("exit %d after %s:\n%s", got.code, got.took, got.out)
	}
	for _, command := range [][]string{{"node", "status"}, {"audit"}, {"policy", "why", "far", "near:80"}} {
		if got := c.fairlead(command...); got.code != 1 || !strings.Contains(got.out, "node-2 did not answer in 3s") || got.took > 10*time.Second {
			c.t.Errorf("%q: exit %d after %s:\n%s", command, got.code, got.took, got.out)
		}
	}
}

// TestCapture captures a pod's packets on a node with Open vSwitch: those to another pod of
// the node, which no NIC sees, both ways.
func TestCapture(t *testing.T) {
	c := up(t, "ovs,linux,linux")
	c.Apply(pod("a", "node-1") + pod("b", "node-1") + pod("far", "node-2"))
	c.WaitPods()
	a := c.place("a")
	file := filepath.Join(t.TempDir(), "a.pcap")
	done := make(chan said, 1)
	go func() {
		done <- c.fairlead("capture", "default/a", "udp", "port", "80", "-o", file, "--packets", "200", "--for", "40s")
	}()
	for _, other := range []string{"b", "far"} {
		c.traffic(a, c.place(other)).more(100)
	}
	got := <-done
	if got.code != 0 || !strings.Contains(got.out, "200 packets") {
		t.Fatalf("exit %d: %s", got.code, got.out)
	}
	sent, received := 0, 0
	for _, line := range strings.Split(tcpdump(t, file), "\n") {
		switch {
		case strings.Contains(line, a.addr.String()+".") && strings.Contains(line, "> "+a.addr.String()+"."):
			received++
		case strings.Contains(line, a.addr.String()+"."):
			sent++
		}
	}
	if sent < 50 || received < 50 {
		t.Errorf("%d packets of the pod and %d for it, want both", sent, received)
	}
}

func tcpdump(t *testing.T, file string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "tcpdump", "-nr", file).Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("tcpdump is not installed")
	}
	if err != nil {
		t.Fatal(fmt.Errorf("read the capture: %w", err))
	}
	return string(out)
}
