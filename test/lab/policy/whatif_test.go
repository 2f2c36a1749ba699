package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// askers are a client and servers on its own node and on another. Nothing is probed over
// UDP, of which the kernel would remember flows for a while.
var askers = namespace("asked", "") +
	pod("asked", "client", "node-1", "app: client") +
	pod("asked", "near", "node-1", "app: server", "80/TCP") +
	pod("asked", "far", "node-2", "app: server", "80/TCP")

const (
	onlyTCP = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-tcp, namespace: asked}
spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 1, endPort: 65535}]}]}
`
	fromClient = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-client, namespace: asked}
spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}
`
)

// "fairlead policy whatif" names the flows of the nodes' kernels that a change would
// break, all of them and no others, exits with 1 then, and changes nothing. "policy why"
// then says of the same flows what the rules in the kernel say, and which counted them.
func TestWhatifAndWhyOfRunningFlows(t *testing.T) {
	c := newCluster(t)
	members := c.scene(askers)
	c.agree(members, labtest.Patience)
	var questions []question
	for _, q := range questionsOf(members) {
		if q.from.key.Name == "client" {
			udp := q
			udp.port.Protocol = "UDP"
			questions = append(questions, q, udp)
		}
	}
	all := converse(t, questions)
	file := func(manifest string) string {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(manifest), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if exit, broken := c.whatif(file(fromClient)); exit != 0 || len(broken) > 0 {
		t.Errorf("a policy that breaks nothing: exit %d, %v", exit, broken)
	}
	var want []string
	for _, x := range all {
		if x.port.Protocol == "UDP" {
			want = append(want, flowText(x.target, x.port))
		}
	}
	slices.Sort(want)
	exit, broken := c.whatif(file(onlyTCP))
	if d := cmp.Diff(want, broken); d != "" || exit != 1 || len(want) == 0 {
		t.Errorf("exit %d, want 1; flows that would break (-want +got):\n%s", exit, d)
	}
	if _, err := labtest.TryGet[datastore.Object](c.Lab, datastore.KindNetworkPolicy, "asked/only-tcp"); err == nil {
		t.Error("whatif has applied the policy")
	}
	began := time.Now()
	c.Apply(onlyTCP)
	defer c.Delete(datastore.KindNetworkPolicy, "asked/only-tcp")
	c.follows(all, began, labtest.Limit(t, enforced))
	var refused []question // what "policy why" is asked about below
	for _, q := range questions {
		if q.port.Protocol == "UDP" {
			q.port.Number = 80
			refused = append(refused, q)
		}
	}
	c.agreeOn(refused, labtest.Patience)
	for _, to := range []string{"asked/near", "asked/far"} {
		c.why(to, "TCP", true)
		c.why(to, "UDP", false)
	}
}

func flowText(to netip.Addr, port probe.Port) string {
	return fmt.Sprintf("%s %s", netip.AddrPortFrom(to, port.Number), port.Protocol)
}

// whatif returns the exit code, and the flows that would break.
func (c *cluster) whatif(path string) (exit int, flows []string) {
	c.t.Helper()
	out, exit := c.tryCLI("policy", "whatif", "-f", path, "-o", "json")
	var report struct {
		Flows []struct {
			From, Protocol string
			Dst            netip.Addr
			DstPort        uint16
		}
		Unknown []string
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Unknown) > 0 {
		c.t.Fatalf("whatif: %v: %s", err, out)
	}
	for _, f := range report.Flows {
		if f.From != "asked/client" {
			c.t.Errorf("a flow of %s would break", f.From)
		}
		flows = append(flows, flowText(f.Dst, probe.Port{Protocol: f.Protocol, Number: f.DstPort}))
	}
	slices.Sort(flows)
	return exit, flows
}

// why asks about a server, and looks for evidence of the kernel for what it says.
func (c *cluster) why(to, protocol string, allowed bool) {
	c.t.Helper()
	out, exit := c.tryCLI("policy", "why", "asked/client", to+":80/"+protocol, "-o", "json")
	var report struct {
		Allowed bool
		Flows   []struct {
			Packet        packet.Packet
			Ingress       []struct{ Policy *struct{ Name string } }
			Nodes         []struct{ Explanation *struct{ Rules *apply.Walk } }
			Disagreements []string
			Missing       []struct{ Node string }
		}
	}
	if err := json.Unmarshal(out, &report); err != nil || exit != 0 || len(report.Flows) != 2 {
		c.t.Fatalf("why: exit %d, %v: %s", exit, err, out)
	}
	if report.Allowed != allowed {
		c.t.Errorf("%s/%s: allowed is %t, want %t", to, protocol, report.Allowed, allowed)
	}
	for _, f := range report.Flows {
		var names []string
		for _, s := range f.Ingress {
			if s.Policy != nil {
				names = append(names, s.Policy.Name)
			}
		}
		if !slices.Contains(names, "asked/only-tcp") || len(f.Disagreements) > 0 || len(f.Missing) > 0 {
			c.t.Errorf("%s: by %v; disagreements %v, no evidence of %v", f.Packet, names, f.Disagreements, f.Missing)
		}
		counted := false
		for _, n := range f.Nodes {
			if n.Explanation == nil || n.Explanation.Rules == nil || len(n.Explanation.Rules.Steps) == 0 {
				c.t.Errorf("%s: a node shows no rules: %s", f.Packet, out)
				continue
			}
			counted = counted || slices.ContainsFunc(n.Explanation.Rules.Steps, func(s apply.Step) bool { return s.Packets != nil && *s.Packets > 0 })
		}
		if !allowed && !counted {
			c.t.Errorf("%s: no counter of the kernel tells of it: %s", f.Packet, out)
		}
	}
}

// tryCLI runs the command line tool, and returns its standard output and exit code.
func (c *cluster) tryCLI(args ...string) (stdout []byte, exit int) {
	c.t.Helper()
	out, err := c.command(args...).Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && failed.Exited() {
		return out, failed.ExitCode()
	}
	if err != nil {
		c.t.Fatalf("fairlead %v: %v", args, err)
	}
	return out, 0
}
