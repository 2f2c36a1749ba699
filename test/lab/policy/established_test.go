package policy

import (
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// talkers is a VPC with two tenants, pods of both on two nodes.
var talkers = `
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: talk}
spec: {isolation: Tenant, namespaces: {matchLabels: {vpc: talk}}}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: talk}
spec: {vpc: talk, cidrs: [10.90.0.0/16, "fd00:90::/48"]}
` + namespace("talk-a", "vpc: talk, side: a") + namespace("talk-b", "vpc: talk, side: b") +
	pod("talk-a", "a1", "node-1", "app: a1", "80/TCP", "80/UDP") + pod("talk-a", "a2", "node-2", "app: a2", "80/TCP", "80/UDP") +
	pod("talk-b", "b1", "node-1", "app: b1", "80/TCP", "80/UDP") + pod("talk-b", "b2", "node-2", "app: b2", "80/TCP", "80/UDP")

// deny is a way to forbid what runs.
type deny struct {
	name  string
	deny  func(*cluster)
	allow func(*cluster)
	// cut is how many of the conversations end, of 48.
	cut int
	// moved is the namespace that has another VNI on the wire afterwards. Its nodes do
	// not learn of that in the same moment: what its pods say to each other from node to
	// node meanwhile is lost, as a packet with a wrong VNI is.
	moved string
}

func (d *deny) mayLose(x *conversation) bool {
	return d.moved != "" && x.from.key.Namespace == d.moved && x.to.key.Namespace == d.moved && x.from.node != x.to.node
}

func byPolicy(kind datastore.Kind, name, manifest string) (forbid, permit func(*cluster)) {
	return func(c *cluster) { c.Apply(manifest) }, func(c *cluster) { c.Delete(kind, name) }
}

func denies() []deny {
	out := []deny{
		{name: "ingress", cut: 16}, // from a1 and a2 to b1 and b2, two protocols and families
		{name: "egress", cut: 8},   // from a1 to b1 and b2
		{name: "ClusterNetworkPolicy", cut: 16},
		{name: "tenant", cut: 32, moved: "talk-b"}, // from any of the one to any of the other
	}
	out[0].deny, out[0].allow = byPolicy(datastore.KindNetworkPolicy, "talk-b/own", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: own, namespace: talk-b}
spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}
`)
	out[1].deny, out[1].allow = byPolicy(datastore.KindNetworkPolicy, "talk-a/own", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: own, namespace: talk-a}
spec: {podSelector: {matchLabels: {app: a1}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}
`)
	out[2].deny, out[2].allow = byPolicy(datastore.KindClusterNetworkPolicy, "talk", `
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: talk}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {matchLabels: {side: b}}}
  ingress: [{name: no-a, action: Deny, from: [{namespaces: {matchLabels: {side: a}}}]}]
`)
	out[3].deny = func(c *cluster) { c.cli("tenant", "isolate", "talk-b") }
	out[3].allow = func(c *cluster) { c.cli("tenant", "join", "talk-a", "talk-b") }
	return out
}

// P2: what runs follows policy, both ways, while both ends go on talking.
func TestScenarioP2(t *testing.T) {
	c := newCluster(t)
	members := c.scene(talkers)
	labtest.Eventually(t, labtest.Patience, func() error {
		_, err := labtest.TryGet[datastore.Object](c.Lab, datastore.KindNetNamespace, "talk-b")
		return err
	})
	c.cli("tenant", "join", "talk-a", "talk-b")
	c.agree(members, labtest.Patience)
	all := converse(t, questionsOf(members))
	limit := labtest.Limit(t, enforced)
	for _, d := range denies() {
		t.Run(d.name, func(t *testing.T) {
			c := c.with(t)
			untouched := make([]uint64, len(all))
			for i, x := range all {
				untouched[i] = x.lost()
			}
			began := time.Now()
			d.deny(c)
			last, cut := c.follows(all, began, limit)
			if cut != d.cut {
				t.Errorf("%d conversations are not allowed, want %d of %d: the test tests something else", cut, d.cut, len(all))
			}
			c.flows(all, time.Now(), limit)
			for i, yes := range c.wanted(all) {
				n := all[i].lost() - untouched[i]
				if yes && n > 0 && !d.mayLose(all[i]) {
					t.Errorf("%s has lost %d packets, which nobody forbids", all[i], n)
				}
			}
			began = time.Now()
			d.allow(c)
			// TCP sends again when its timer says so, seconds after a silence.
			back := c.flows(all, began, labtest.Patience)
			t.Logf("%d of %d cut, the last packet %s after the change; all heard again %s after it was taken back",
				cut, len(all), last.Round(time.Millisecond), back.Round(time.Millisecond))
		})
	}
}
