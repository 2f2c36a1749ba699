package cli

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

func TestStatus(t *testing.T) {
	c := newCluster(t)
	c.transcript("status-empty", "status", "ipam show", "ipam check", "status -o json")
	c.loadFile("cluster.yaml")
	c.transcript("status", "status", "status -o wide", "status -o json", "status -o yaml")
}

const problems = `
apiVersion: v1
kind: Node
metadata: {name: %}
---
apiVersion: fairlead.dev/v1alpha1
kind: NodeNetwork
metadata: {name: %}
status:
  problemCount: 1
  problems: [{kind: Pod, namespace: shop, name: web, reason: NoTenant, message: the namespace has no tenant}]
  conditions: [{type: Ready, status: "True", reason: Ready, message: well, lastTransitionTime: "2026-03-01T10:00:00Z"}]
`

// The same problem on many nodes is one line.
func TestStatusGathersProblems(t *testing.T) {
	c := newCluster(t)
	for _, n := range []string{"n1", "n2", "n3", "n4", "n5"} {
		c.load(strings.ReplaceAll(problems, "%", n))
	}
	c.load("apiVersion: v1\nkind: Node\nmetadata: {name: n6}\n---" + strings.Replace(strings.ReplaceAll(problems, "%", "n7"), "problemCount: 1", "problemCount: 71", 1))
	c.transcript("status-problems", "status")
}

// An agent whose credentials have expired cannot tell the datastore: it is asked.
func TestStatusAsksAgents(t *testing.T) {
	c := newCluster(t)
	c.load(strings.ReplaceAll(wellNode, "%", "n1") + "---" + strings.ReplaceAll(wellNode, "%", "n2"))
	c.serve("n1", map[string]admin.Handler{"/v1/status": func(context.Context, url.Values) (any, error) {
		return admin.Status{Node: "n1", Health: []health.State{
			{Component: "plane", Level: health.OK}, {Component: "datastore", Level: health.Degraded, Message: "the credentials are not accepted"},
		}}, nil
	}})
	c.serve("n2", map[string]admin.Handler{"/v1/status": says(admin.Status{Node: "n2", Health: []health.State{
		{Component: "addresses", Level: health.Degraded, Message: "no space left on device"}, {Component: "disk", Level: health.Degraded, Message: "free space"},
	}})})
	r := c.run("status")
	out := strings.Join(strings.Fields(r.out), " ")
	// What others fail of is named before them.
	if !strings.Contains(out, "n1 True (Degraded) datastore: the credentials are not accepted") || !strings.Contains(out, "n2 True (Degraded) disk: free space") {
		t.Errorf("%+v", r)
	}
	if r := c.run("node", "status", "n2"); !strings.Contains(r.out, "disk degraded: free space; addresses degraded: no space left on device") {
		t.Errorf("%+v", r)
	}
}

// An agent that is frozen says nothing, neither here nor to the datastore.
func TestStatusTellsOfFrozenAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &app{agents: func(context.Context, []string) ([]agentOf, error) {
			return []agentOf{{"n1", closedDoor{errors.New("refused")}}, {"n2", silent{}}, {"n3", silent{}}, {"n9", silent{}}}, nil
		}}
		st := clusterStatus{Nodes: []nodeSummary{{Name: "n1", Ready: "True", Message: "well"}, {Name: "n2", Ready: "True", Message: "well"}, {Name: "n3", Ready: "False (x)", Message: "down"}}}
		answers, frozen := a.askHealth(t.Context())
		st.told(answers)
		st.heardNothing(frozen)
		want := []nodeSummary{
			{Name: "n1", Ready: "True", Message: "well"},
			{Name: "n2", Ready: "Unknown (NoAnswer)", Message: "the agent did not answer in 3s; what it wrote last: well"},
			{Name: "n3", Ready: "False (x)", Message: "down"},
		}
		if diff := cmp.Diff(want, st.Nodes); diff != "" {
			t.Error(diff)
		}
	})
}

// A value that cannot be decoded is a problem of its own, or of a policy that nodes know.
func TestStatusTellsOfUnreadableValues(t *testing.T) {
	torn := clusterProblem{Object: "NetworkPolicy shop/web", Reason: "Unreadable", Message: "decode NetworkPolicy shop/web: torn: it isolates", Nodes: []string{"n1"}}
	st := clusterStatus{Problems: []clusterProblem{torn}}
	st.unread("/fairlead/networkpolicies/shop/web", errors.New("decode NetworkPolicy shop/web: torn"))
	st.unread("/fairlead/subnets/s", errors.New("decode Subnet s: torn"))
	want := []clusterProblem{
		{Object: "/fairlead/subnets/s", Reason: "Unreadable", Message: "decode Subnet s: torn: it counts as if it did not exist: delete the object"}, torn,
	}
	if diff := cmp.Diff(want, st.Problems); diff != "" || st.well() {
		t.Error(diff)
	}
}

// Pods with the addresses of Services reach neither.
func TestStatusFindsServiceRange(t *testing.T) {
	c := newCluster(t)
	c.load("apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, namespace: default}\nspec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 443}]}\n---\n" +
		"apiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: wide}\nspec: {cidrs: [10.96.0.0/12]}\n---\napiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: well}\nspec: {cidrs: [10.0.0.0/16]}\n")
	r := c.run("status")
	if r.code != 1 || strings.Count(r.out, "PROBLEM") != 1 || !strings.Contains(r.out, "PROBLEM  Subnet wide: ServiceRange: 10.96.0.0/12 holds the address 10.96.0.1 of Service default/kubernetes") {
		t.Errorf("%+v", r)
	}
}

const wellNode = `
apiVersion: v1
kind: Node
metadata: {name: %}
---
apiVersion: fairlead.dev/v1alpha1
kind: NodeNetwork
metadata: {name: %}
status:
  conditions: [{type: Ready, status: "True", reason: Ready, message: all components are well, lastTransitionTime: "2026-03-01T10:00:00Z"}]
`

func TestStatusExitCode(t *testing.T) {
	well := strings.Split(problems, "status:\n")[0] + "status:\n  conditions: [{type: Ready, status: \"True\", reason: Ready, message: well, lastTransitionTime: \"2026-03-01T10:00:00Z\"}]\n"
	for _, tt := range []struct {
		name, manifest string
		code           int
	}{
		{"nothing", "", 0},
		{"a node that is well", strings.ReplaceAll(well, "%", "n1"), 0},
		{"a node that failed", strings.Replace(strings.ReplaceAll(well, "%", "n1"), `"True"`, `"False"`, 1), 1},
		{"a node without agent", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n", 1},
		{"a Subnet that nobody judged", "apiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: s}\nspec: {cidrs: [10.0.0.0/16]}\n", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t)
			c.load(tt.manifest)
			for _, format := range []string{"table", "json"} {
				if r := c.run("status", "-o", format); r.code != tt.code || r.err != "" {
					t.Errorf("-o %s: exit %d, want %d: %s", format, r.code, tt.code, r.err)
				}
			}
		})
	}
}

func TestIPAMShowAndCheck(t *testing.T) {
	c := newCluster(t)
	c.loadFile("cluster.yaml")
	c.transcript("ipam", "ipam show", "ipam show -o wide", "ipam show -o json", "ipam check", "ipam check -o json")
}

// block is an IPBlock of 10.0.N.0/26.
func block(n, node, spec string) string {
	return "---\napiVersion: fairlead.dev/v1alpha1\nkind: IPBlock\nmetadata: {name: s.0a000" + n + "00-26}\nspec:\n  subnet: s\n  cidr: 10.0." + n + ".0/26\n  node: " + node + "\n" + spec
}

const node1 = "---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n"

func pod(name, more string) string {
	return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: ns, annotations: {kubernetes.io/config.hash: abc}}\nspec: {nodeName: n1, containers: [{name: c}]}\n" + more
}

func TestIPAMCheckFindings(t *testing.T) {
	for _, tt := range []struct {
		name, manifest string
		want           []finding
	}{
		{"well", node1 + block("1", "n1", "  allocations: {10.0.1.1: {name: node/n1/tunnel}, 10.0.1.2: {namespace: ns, name: a, uid: uid-3}}\n") +
			pod("a", "status: {phase: Running, podIPs: [{ip: 10.0.1.2}]}\n"), []finding{}},
		{"static pod", node1 + block("1", "n1", "  allocations: {10.0.1.2: {namespace: ns, name: a, uid: abc}}\n") + pod("a", ""), []finding{}},
		{"without pod", node1 + block("1", "n1", "  allocations: {10.0.1.2: {name: container/x}, 10.0.1.3: {name: record/flx}}\n"), []finding{}},
		{"leak", node1 + block("1", "n1", "  allocations: {10.0.1.2: {namespace: ns, name: gone}}\n"), []finding{
			{"10.0.1.2", "held for pod ns/gone, which does not exist (node n1)"},
		}},
		{"leak of an earlier pod", node1 + block("1", "n1", "  allocations: {10.0.1.2: {namespace: ns, name: a, uid: old}}\n") + pod("a", ""), []finding{
			{"10.0.1.2", "held for an earlier pod ns/a (node n1)"},
		}},
		{"leak of a node", block("1", "n1", "  allocations: {10.0.1.1: {name: node/n1/tunnel}}\n  lent: {10.0.1.9: n7}\n"), []finding{
			{"10.0.1.1", "held for node n1, which does not exist"},
			{"10.0.1.9", "held for node n7, which does not exist"},
		}},
		{"stranger", node1 + pod("a", "status: {phase: Running, podIPs: [{ip: 10.0.1.2}, {ip: \"fd00:0::0002\"}]}\n"), []finding{
			{"10.0.1.2", "pod ns/a has it, no block says so"},
			{"fd00::2", "pod ns/a has it, no block says so"},
		}},
		{"stranger in another's place", node1 + block("1", "n1", "  allocations: {10.0.1.2: {namespace: ns, name: b}}\n") +
			pod("a", "status: {phase: Running, podIPs: [{ip: 10.0.1.2}]}\n") + pod("b", ""), []finding{
			{"10.0.1.2", "pod ns/a has it, block s.0a000100-26 gives it to ns/b"},
		}},
		{"pod that has ended", node1 + pod("a", "status: {phase: Succeeded, podIPs: [{ip: 10.0.1.2}]}\n"), []finding{}},
		{"pod of the host", node1 + strings.Replace(pod("a", "status: {phase: Running, podIPs: [{ip: 172.30.0.11}]}\n"), "nodeName", "hostNetwork: true, nodeName", 1), []finding{}},
		{"loan", strings.ReplaceAll(node1, "n1", "n2") + node1 + block("1", "n1", "  lent: {10.0.1.9: n2, 10.0.1.10: n2, 10.0.1.11: n2}\n") + pod("a", "status: {phase: Running, podIPs: [{ip: 10.0.1.9}]}\n") +
			"---\napiVersion: fairlead.dev/v1alpha1\nkind: NodeNetwork\nmetadata: {name: n2}\nstatus: {borrowed: {10.0.1.9: {namespace: ns, name: a}, 10.0.1.10: {name: node/n2/borrowed}}}\n", []finding{}},
		{"loan that nobody gave", node1 +
			"---\napiVersion: fairlead.dev/v1alpha1\nkind: NodeNetwork\nmetadata: {name: n1}\nstatus: {borrowed: {10.0.1.9: {namespace: ns, name: a}}}\n", []finding{
			{"10.0.1.9", "node n1 has borrowed it for ns/a, no block lends it to that node"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t)
			c.load(tt.manifest)
			r := c.run("ipam", "check", "-o", "json")
			var got []finding
			if err := json.Unmarshal([]byte(r.out), &got); err != nil {
				t.Fatalf("%v: %+v", err, r)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if want := min(len(tt.want), 1); r.code != want {
				t.Errorf("exit %d, want %d", r.code, want)
			}
		})
	}
}

// The datastore refuses blocks that overlap in one Subnet, not a Subnet that was made
// twice under two names.
func TestIPAMCheckFindsDoubles(t *testing.T) {
	holder := func(block, node, owner string) address {
		return address{Address: "10.0.1.2", Subnet: "s", Block: block, Node: node, Owner: owner}
	}
	lent := holder("s2", "n2", unconfirmed)
	lent.LentBy = "n1"
	for _, second := range []address{holder("s2", "n2", "container/y"), lent} {
		for _, order := range [][]address{{holder("s1", "n1", "container/x"), second}, {second, holder("s1", "n1", "container/x")}} {
			got := checkIPAM(ipamReport{Addresses: order}, nil, nil, nil)
			if len(got) == 0 || !strings.HasPrefix(got[0].Problem, "held ") || !strings.Contains(got[0].Problem+got[len(got)-1].Problem, "held twice") {
				t.Errorf("%v: %v", order, got)
			}
		}
	}
}

func TestIPAMRelease(t *testing.T) {
	c := newCluster(t)
	c.load(node1 + block("1", "n1", "  allocations: {10.0.1.2: {namespace: ns, name: a}, 10.0.1.3: {namespace: ns, name: gone}}\n") +
		block("2", "n2", "  allocations: {10.0.2.2: {namespace: ns, name: gone}, 10.0.2.3: {namespace: ns, name: a}}\n  lent: {10.0.2.9: n1}\n") + pod("a", ""))
	c.transcript("ipam-release",
		"ipam release 10.0.1.2", "ipam release 10.0.1.3", "ipam release 10.0.2.3", "ipam release 10.0.2.9", "ipam release 10.0.9.9",
		"ipam release ::ffff:10.0.2.2", "ipam release 10.0.2.2", "ipam release nonsense", "ipam release fe80::1%eth0", "ipam release", "ipam show",
	)
}

const tenants = `
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: default}
spec: {isolation: Tenant}
status: {vni: 1}
---
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: other}
spec: {isolation: Tenant, namespaces: {matchLabels: {vpc: other}}}
status: {vni: 2}
---
apiVersion: v1
kind: Namespace
metadata: {name: a}
---
apiVersion: v1
kind: Namespace
metadata: {name: b}
---
apiVersion: v1
kind: Namespace
metadata: {name: c, labels: {vpc: other}}
---
apiVersion: fairlead.dev/v1alpha1
kind: NetNamespace
metadata: {name: a}
spec: {vni: 100}
---
apiVersion: fairlead.dev/v1alpha1
kind: NetNamespace
metadata: {name: b}
spec: {vni: 200}
---
apiVersion: fairlead.dev/v1alpha1
kind: NetNamespace
metadata: {name: c}
spec: {vni: 300}
`

func TestTenants(t *testing.T) {
	c := newCluster(t)
	c.load(tenants)
	c.transcript("tenant",
		"tenant isolate a", "tenant join a b", "get netns", "tenant global a", "tenant join a c", "tenant join a b nobody", "get netns",
		"tenant join a", "tenant isolate", "tenant global nobody", "tenant", "tenant leave a",
	)
	// b gets a VNI that is nobody's, and is no longer global.
	if r := c.run("tenant", "global", "b"); r.code != 0 {
		t.Fatal(r.err)
	}
	if r := c.run("tenant", "isolate", "b"); r.code != 0 || !strings.HasPrefix(r.out, "namespace b: VNI ") || !strings.HasSuffix(r.out, ", global false\n") {
		t.Fatalf("isolate: %+v", r)
	}
	var b struct {
		Spec struct {
			VNI int `json:"vni"`
		} `json:"spec"`
	}
	if err := json.Unmarshal([]byte(c.run("get", "netns", "b", "-o", "json").out), &b); err != nil {
		t.Fatal(err)
	}
	for _, taken := range []int{0, 1, 2, 100, 300} {
		if b.Spec.VNI == taken {
			t.Errorf("b is alone and has VNI %d, which is another's", taken)
		}
	}
}

// withStrays is a store with keys that are no object's.
type withStrays struct {
	datastore.Store
	keys map[string]bool
}

func (s withStrays) Close() error { return nil }

func (s withStrays) Strays(context.Context) ([]string, error) {
	return slices.Sorted(maps.Keys(s.keys)), nil
}

func (s withStrays) DeleteStray(_ context.Context, key string) error {
	if !s.keys[key] {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "key"}, key)
	}
	delete(s.keys, key)
	return nil
}

// A key of etcd that is no object's is a problem with the command that ends it, whatever bytes it has.
func TestStraysAreToldAndDeleted(t *testing.T) {
	c := newCluster(t)
	keys := map[string]bool{"/fairlead/pods/alone": true, "/fairlead/\x1b\xff'": true}
	c.open = func() (datastore.Store, error) { return withStrays{c.store, keys}, nil }
	r := c.run("status")
	for _, want := range []string{
		`PROBLEM  /fairlead/pods/alone: Stray: `, `fairlead delete --key '/fairlead/pods/alone'`,
		`PROBLEM  "/fairlead/\x1b\xff\u0027": Stray: `, `fairlead delete --key '"/fairlead/\x1b\xff\u0027"'`,
	} {
		if r.code != exitFailed || !strings.Contains(r.out, want) {
			t.Errorf("status lacks %s: %+v", want, r)
		}
	}
	if r := c.run("delete", "--key", "/fairlead/pods/alone", "--key", `"/fairlead/\x1b\xff\u0027"`); r.code != 0 || len(keys) != 0 {
		t.Errorf("delete: %+v, left %v", r, keys)
	}
	if r := c.run("delete", "--key", "/fairlead/pods/alone"); r.code != exitFailed || !strings.Contains(r.err, "1 key was not deleted") && !strings.Contains(r.err, "1 of 1 key was not deleted") {
		t.Errorf("delete what is gone: %+v", r)
	}
	if r := c.run("delete", "--key", "/fairlead/pods/alone", "--ignore-not-found"); r.code != 0 {
		t.Errorf("delete what may be gone: %+v", r)
	}
	if r := c.run("delete", "pod", "x", "--key", "k"); r.code != exitUsage {
		t.Errorf("both: %+v", r)
	}
	c.open = func() (datastore.Store, error) { return kept{c.store}, nil }
	if r := c.run("delete", "--key", "k"); r.code != exitUsage {
		t.Errorf("without an etcd: %+v", r)
	}
}
