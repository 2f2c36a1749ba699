package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// guarded are two pods on node-1, which only the friend reaches, and both on node-2.
var guarded = namespace("guarded", "") +
	pod("guarded", "server", "node-1", "app: server", "80/TCP", "80/UDP") +
	pod("guarded", "beside", "node-1", "app: beside", "80/TCP", "80/UDP") +
	pod("guarded", "friend", "node-2", "app: friend", "80/TCP", "80/UDP") +
	pod("guarded", "stranger", "node-2", "app: stranger", "80/TCP", "80/UDP")

const guard = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guard, namespace: guarded}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
`

// ruleChains are what a node has of lists of policies, and of others that stay: chains and
// sets of its rule table, or the flows of the tables that ask lists.
func ruleChains(c *cluster, node string) []string {
	c.t.Helper()
	var out []string
	if c.OVS() {
		for line := range strings.Lines(c.MustExec(node, "ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", claims.OVSBridge)) {
			var table uint8
			_, flow, _ := strings.Cut(line, "table=") // behind the cookie
			if _, err := fmt.Sscanf(flow, "%d,", &table); err == nil && table >= ovs.TableEgressPeer && table <= ovs.TableIngressPorts {
				out = append(out, strings.TrimSpace(flow))
			}
		}
		slices.Sort(out)
		return out
	}
	for line := range strings.Lines(c.MustExec(node, "nft", "list", "table", "inet", "fairlead")) {
		words := strings.Fields(line)
		if len(words) == 3 && words[2] == "{" {
			out = append(out, words[0]+" "+words[1])
		}
	}
	return out
}

// P4: a policy that was deleted while the agent was away.
func TestScenarioP4(t *testing.T) {
	c := newCluster(t)
	members := c.scene(guarded)
	c.agree(members, labtest.Patience)
	before := ruleChains(c, "node-1")
	c.Apply(guard)
	limit := labtest.Limit(t, enforced)
	c.agree(members, limit)
	with := ruleChains(c, "node-1")
	if slices.Equal(before, with) {
		t.Fatal("the policy has no rules: the test tests nothing")
	}
	questions := table(members)
	want := expected(t, c.model(), questions)
	c.Fault("agent-kill", "node-1")
	c.Delete(datastore.KindNetworkPolicy, "guarded/guard")
	// Without an agent the last known rules stay.
	labtest.Eventually(t, limit, func() error { return differences(questions, want, ask(t.Context(), questions)) })
	began := time.Now()
	c.Fault("agent-start", "node-1")
	// Each look at the rules is followed by one at the agent: once it is ready, the rules
	// must have been right before, or are now.
	var gone, ready time.Duration
	labtest.Eventually(t, labtest.Patience, func() error {
		if gone == 0 && slices.Equal(ruleChains(c, "node-1"), before) {
			gone = time.Since(began)
		}
		s, err := labtest.TryAdminGet[admin.Status](c.Lab, "node-1", "/v1/status")
		if err != nil {
			return err
		}
		if s.NotReady != "" {
			return errors.New(s.NotReady)
		}
		ready = time.Since(began)
		return nil
	})
	if gone == 0 {
		if d := cmp.Diff(before, ruleChains(c, "node-1")); d != "" {
			t.Errorf("the agent is ready, and the rules of a policy that is gone are there (-want +got):\n%s", d)
		}
		gone = time.Since(began)
	}
	if most := labtest.Limit(t, 5*time.Second); gone > most {
		t.Errorf("the rules were gone %s after the agent's start, want %s at most", gone, most)
	}
	c.agree(members, limit)
	t.Logf("the rules are gone %s after the agent's start, ready after %s", gone.Round(time.Millisecond), ready.Round(time.Millisecond))
}

// F9: a node that boots without the datastore enforces the policies that it knew.
func TestScenarioF9Policies(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 2, Subnets: dual})
	c := &cluster{Lab: l, t: t}
	members := c.scene(guarded)
	c.Apply(guard)
	c.agree(members, labtest.Patience)
	c.Fault("agent-restart", "node-1") // one that ends in order saves its world
	c.WaitReady("node-1")
	c.Fault("datastore-kill", "")
	c.Fault("node-reboot", "node-1")
	friend, stranger := members["guarded/friend"], members["guarded/stranger"]
	// All the time until the friend gets through, the stranger tries too.
	tried := 0
	took := labtest.Eventually(t, labtest.Patience, func() error {
		to, err := c.addressesNow("guarded/server")
		if err != nil {
			return err
		}
		var questions []question
		for _, from := range []*member{stranger, friend} {
			for _, a := range to {
				for _, protocol := range []string{"TCP", "UDP"} {
					questions = append(questions, question{from, members["guarded/server"], probe.Port{Protocol: protocol, Number: 80}, a})
				}
			}
		}
		tried++
		got := ask(t.Context(), questions)
		if i := slices.Index(got[:len(got)/2], true); i >= 0 {
			t.Errorf("%s: answered", questions[i])
		}
		if i := slices.Index(got[len(got)/2:], false); i >= 0 {
			return fmt.Errorf("%s: no answer", questions[len(got)/2+i])
		}
		return nil
	})
	// What the server itself sends is not allowed anywhere.
	c.cutOff("guarded/server", friend, members["guarded/beside"])
	t.Logf("allowed packets pass again %s after the boot, forbidden ones were tried %d times", took.Round(time.Millisecond), tried)
	c.Fault("datastore-start", "")
	// What the datastore says of the pods is of before the boot, until the node has told it.
	labtest.Eventually(t, labtest.Patience, func() error {
		questions := table(c.members())
		return differences(questions, expected(t, c.model(), questions), ask(t.Context(), questions))
	})
}

// addressesNow asks the nodes, not the datastore.
func (c *cluster) addressesNow(name string) ([]netip.Addr, error) {
	for _, n := range c.Status().Nodes {
		for _, p := range n.State.Pods {
			if p.Namespace+"/"+p.Name == name && len(p.IPs) == 2 {
				return p.IPs, nil
			}
		}
	}
	return nil, fmt.Errorf("pod %s does not run", name)
}

// cutOff wants that a pod, as it runs now, gets no answer from others.
func (c *cluster) cutOff(name string, others ...*member) {
	c.t.Helper()
	for _, n := range c.Status().Nodes {
		for _, p := range n.State.Pods {
			if p.Namespace+"/"+p.Name != name {
				continue
			}
			ns, err := netspace.Open(fmt.Sprintf("/proc/%d/root/run/netns/%s", n.Pid, p.Netns))
			if err != nil {
				c.t.Fatal(err)
			}
			defer ns.Close()
			var questions []probe.Question
			for _, to := range others {
				addrs, err := c.addressesNow(to.key.String())
				if err != nil {
					c.t.Fatal(err)
				}
				for _, a := range addrs {
					questions = append(questions, probe.Question{Protocol: "UDP", To: netip.AddrPortFrom(a, 80), Timeout: answerTime})
				}
			}
			for i, a := range probe.Ask(context.WithoutCancel(c.t.Context()), ns, questions, probe.NewSlots(probe.AtOnce)) {
				if a.Connected {
					c.t.Errorf("%s gets an answer from %s", name, questions[i].To)
				}
			}
			return
		}
	}
	c.t.Fatalf("pod %s does not run", name)
}
