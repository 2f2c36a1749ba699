package ovs

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/ovshost"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// away is the longest that traffic may be away when Open vSwitch fails.
const away = 2 * time.Second

// TestMixedLab is a cluster of two nodes with Open vSwitch and one without: pods reach each
// other under the same policies, and traffic outlives what can happen to agent and switch.
func TestMixedLab(t *testing.T) {
	c := up(t, "ovs,linux,ovs")
	c.Apply(file(t, "examples", "demo.yaml"))
	c.Apply(pod("a", "node-1") + pod("b", "node-2") + pod("c", "node-3") + pod("near", "node-1"))
	c.WaitPods()
	c.agrees()
	t.Run("policy", func(t *testing.T) {
		c := c.with(t)
		const policy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-near, namespace: default}
spec:
  podSelector: {matchLabels: {app: a}}
  ingress: [{from: [{podSelector: {matchLabels: {app: near}}}]}]
`
		cut := c.traffic(c.place("c"), c.place("a"))
		kept := c.traffic(c.place("near"), c.place("a"))
		cut.more(100)
		kept.more(100)
		c.Apply(policy)
		labtest.Eventually(t, away, func() error {
			if cut.longest() < 200*time.Millisecond {
				return fmt.Errorf("what the policy denies goes on")
			}
			return nil
		})
		c.agrees()
		c.Delete(datastore.KindNetworkPolicy, "default/only-near")
		cut.more(100)
		kept.more(100)
		c.agrees()
	})
	from, to := c.place("a"), c.place("c")
	t.Run("agent restart", func(t *testing.T) {
		c := c.with(t)
		tr := c.traffic(from, to)
		tr.more(200)
		c.Fault(spec.AgentRestart, "node-1")
		c.clean("node-1")
		tr.more(200)
		if lost := tr.lost(); lost > 0 {
			t.Errorf("%d of %d datagrams lost", lost, tr.sent.Load())
		}
	})
	for _, fault := range []struct {
		name string
		away time.Duration
		do   func(c *cluster)
	}{
		// Without its database ovs-vswitchd forwards nothing in userspace. It asks for it
		// after one second, and, should that have been too early, after two.
		{"ovsdb-server killed", away + time.Second, func(c *cluster) { c.Fault(spec.DatabaseRestart, "node-1") }},
		{"ovs-vswitchd killed", away, func(c *cluster) { c.Fault(spec.SwitchRestart, "node-1") }},
		{"flows deleted", away, func(c *cluster) {
			c.MustExec("node-1", "ovs-ofctl", "-O", "OpenFlow15", "del-flows", "fairlead")
		}},
		{"flows of the bridge around the NIC deleted", away, func(c *cluster) {
			c.MustExec("node-1", "ovs-ofctl", "-O", "OpenFlow15", "del-flows", "fairlead-phy")
		}},
		{"port taken out", away, func(c *cluster) {
			c.MustExec("node-1", "ovs-vsctl", "del-port", c.portOf("a"))
		}},
		{"address of the host's port deleted", away, func(c *cluster) {
			c.MustExec("node-1", "ip", "addr", "flush", "dev", "fairlead-gw")
		}},
		// Soon after another failure ovs-vswitchd would wait longer: this comes last.
		{"database wiped", away, func(c *cluster) { c.Fault(spec.DatabaseWipe, "node-1") }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			c := c.with(t)
			tr := c.traffic(from, to)
			tr.more(200)
			tr.longest()
			fault.do(c)
			tr.more(300)
			gap := tr.longest()
			c.clean("node-1")
			t.Logf("traffic was away for %s, %d of %d datagrams lost", gap.Round(time.Millisecond), tr.lost(), tr.sent.Load())
			if limit := labtest.Limit(t, fault.away); gap > limit {
				t.Errorf("traffic was away for %s, want at most %s", gap, limit)
			}
		})
	}
	c.agrees()
}

// portOf is the node's end of a pod's link, on node-1.
func (c *cluster) portOf(name string) string {
	c.t.Helper()
	out := c.MustExec("node-1", "ovs-vsctl", "--bare", "--columns=name", "find", "port", "external_ids:pod=default/"+name)
	return strings.TrimSpace(out)
}

// clean waits until nothing on a node differs from what is desired.
func (c *cluster) clean(node string) {
	c.t.Helper()
	labtest.Eventually(c.t, 10*time.Second, func() error {
		a, err := labtest.TryAdminGet[admin.Audit](c.Lab, node, "/v1/audit")
		switch {
		case err != nil:
			return err
		case len(a.Differences) > 0:
			return fmt.Errorf("%s: %d differences, the first: %+v", node, len(a.Differences), a.Differences[0])
		}
		return nil
	})
}

// TestFamilies: pods and nodes may be of one family or of both, and pods of one go over
// nodes of the other.
func TestFamilies(t *testing.T) {
	if err := ovshost.Installed(); err != nil {
		t.Skip(err)
	}
	both := []netip.Prefix{pods4, pods6}
	for _, tc := range []struct {
		name            string
		subnets, ground []netip.Prefix
	}{
		{"IPv6 only", []netip.Prefix{pods6}, []netip.Prefix{nodes6}},
		{"both over IPv6", both, []netip.Prefix{nodes6}},
		{"both over IPv4", both, []netip.Prefix{nodes4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &cluster{labtest.Up(t, lab.Options{Nodes: 2, Plane: "ovs", Subnets: tc.subnets, Underlay: tc.ground}), t}
			c.Apply(pod("a", "node-1") + pod("b", "node-1") + pod("c", "node-2"))
			c.WaitPods()
			c.agrees()
		})
	}
}

// TestExamplesLong: on both planes every example is enforced as the oracle says.
func TestExamplesLong(t *testing.T) {
	labtest.Long(t)
	for _, planes := range []string{"ovs", "ovs,linux"} {
		t.Run(planes, func(t *testing.T) {
			c := up(t, planes)
			root, err := labtest.Repository()
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"demo.yaml", "dual-stack.yaml", "vpc.yaml"} {
				c.Apply(file(t, "examples", name))
			}
			c.WaitPods()
			c.agrees()
			c.Apply(file(t, "examples", "policy", "world.yaml"))
			c.WaitPods()
			policies, err := filepath.Glob(filepath.Join(root, "examples", "policy", "[0-9]*.yaml"))
			if err != nil || len(policies) == 0 {
				t.Fatalf("%v, %d policies", err, len(policies))
			}
			slices.Sort(policies)
			for _, path := range policies {
				t.Run(filepath.Base(path), func(t *testing.T) {
					c := c.with(t)
					text := file(t, "examples", "policy", filepath.Base(path))
					c.Apply(text)
					c.agrees()
					c.remove(text)
				})
			}
		})
	}
}

// remove deletes the objects of a manifest.
func (c *cluster) remove(manifest string) {
	c.t.Helper()
	objects, err := datastore.DecodeManifest(strings.NewReader(manifest))
	if err != nil {
		c.t.Fatal(err)
	}
	datastore.DefaultNamespace(objects, "default")
	for _, o := range objects {
		kind, err := datastore.KindOf(o)
		if err != nil {
			c.t.Fatal(err)
		}
		name := o.GetName()
		if o.GetNamespace() != "" {
			name = o.GetNamespace() + "/" + name
		}
		c.Delete(kind, name)
	}
}
