package cli

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// unpack reads an archive as tar and gzip would.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, "fairlead-diag/")
		if !ok || strings.Contains(name, "..") || h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".json") && !json.Valid(raw) {
			t.Errorf("%s is no JSON: %s", name, raw)
		}
		out[name] = string(raw)
	}
}

const somePolicies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: demo, annotations: {a: canary}}
spec: {podSelector: {matchLabels: {app: web}}}
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: guard}
spec: {tier: Admin, priority: 10, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
`

const oursAndTheirs = `
apiVersion: v1
kind: Event
metadata: {namespace: demo, name: ours}
involvedObject: {kind: Pod, namespace: demo, name: web}
reason: NoTenant
message: no tenant
source: {component: fairlead-controller}
count: 3
---
apiVersion: v1
kind: Event
metadata: {namespace: demo, name: theirs}
involvedObject: {kind: Pod, namespace: demo, name: web}
reason: Pulled
message: canary
source: {component: kubelet}
`

func TestDiag(t *testing.T) {
	c := wellAndSick(t)
	c.loadFile("cluster.yaml")
	c.load(oursAndTheirs)
	c.load(somePolicies)
	c.serve("node-4", map[string]admin.Handler{
		"GET /v1/status": says(admin.Status{Node: "node-4"}), "GET /v1/tables": says(admin.Tables{Node: "node-4", Text: "table inet fairlead {\n}\n"}),
	})
	file := filepath.Join(c.dir, "bundle.tar.gz")
	r := c.run("diag", "-o", file)
	if r.code != 0 || !strings.HasPrefix(r.out, "DIR/bundle.tar.gz: ") || !strings.HasSuffix(r.out, " bytes, 3 nodes\n") {
		t.Fatalf("%+v", r)
	}
	if !strings.Contains(r.err, "not in the bundle: node node-2: GET /v1/journal: this agent does not know the request") {
		t.Errorf("what is missing is not named: %s", r.err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, want 600 (%v)", info.Mode(), err)
	}
	got := unpack(t, file)
	for name, want := range map[string]string{
		"index.json": `"version": "v1.2.3"`, "status.json": `"nodes"`, "events.json": `"NoTenant"`,
		"objects/Subnet.json": `"cidrs"`, "objects/VPC.json": `"name"`, "objects/IPBlock.json": `"name"`, "objects/NodeNetwork.json": `"name"`, "objects/NetNamespace.json": `"name"`,
		"objects/NetworkPolicy.json": `"namespace": "demo"`, "objects/ClusterNetworkPolicy.json": `"priority": 10`,
		"nodes/node-1/status.json": `"revision": 42`, "nodes/node-1/audit.json": `"differences"`, "nodes/node-1/journal.json": "asked since",
		"nodes/node-1/config.json": `"node-1"`, "nodes/node-2/peers.json": "[]", "nodes/node-4/tables.txt": "table inet fairlead {\n}\n",
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s holds %q, want %q in it", name, got[name], want)
		}
	}
	for name, text := range got {
		if strings.Contains(text, "probe") || strings.Contains(text, "canary") {
			t.Errorf("%s holds the specification of a pod, or an Event of others: %s", name, text)
		}
	}
	if !strings.Contains(got["index.json"], "node node-2: GET /v1/journal") || !strings.Contains(got["index.json"], `"node-4"`) {
		t.Errorf("the index is %s", got["index.json"])
	}

	// A dead agent is named once.
	c.sockets["node-3"] = filepath.Join(c.dir, "nobody.sock")
	if r := c.run("diag", "-o", filepath.Join(c.dir, "second.tar.gz")); r.code != 0 || strings.Count(r.err, "node node-3") != 1 {
		t.Errorf("with a dead agent: %+v", r)
	}
	delete(c.sockets, "node-3")

	// Nothing is overwritten.
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.run("diag", "-o", file); r.code != exitFailed || !strings.Contains(r.err, "exists, and is not overwritten: choose another name") {
		t.Errorf("a second time: %+v", r)
	}
	if again, err := os.ReadFile(file); err != nil || string(again) != string(before) {
		t.Errorf("the file was changed (%v)", err)
	}
	// Standard output holds the archive and nothing else.
	r = c.run("diag", "-o", "-")
	piped := c.write("piped.tar.gz", r.out)
	if r.code != 0 || !strings.Contains(unpack(t, piped)["index.json"], `"node-4"`) || !strings.Contains(r.err, " bytes, 3 nodes") {
		t.Errorf("to standard output: exit %d: %s", r.code, r.err)
	}
	if _, err := os.Stat("-"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file of the name - (%v)", err)
	}
	if r := c.run("diag"); r.code != exitUsage {
		t.Errorf("without a file: %+v", r)
	}
}

func TestDiagOfLittle(t *testing.T) {
	empty := newCluster(t)
	empty.open = nothing
	file := filepath.Join(empty.dir, "bundle.tar.gz")
	if r := empty.run("diag", "-o", file); r.code != exitFailed || !strings.Contains(r.err, "there is no lab") || !strings.Contains(r.err, "there are no agents") {
		t.Errorf("neither datastore nor agents: %+v", r)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failure leaves a file behind (%v)", err)
	}
	// One of them is enough.
	c := wellAndSick(t)
	c.open = nothing
	if r := c.run("diag", "-o", file); r.code != 0 || !strings.Contains(r.err, "not in the bundle: there is no lab") || unpack(t, file)["nodes/node-1/status.json"] == "" {
		t.Errorf("agents only: %+v", r)
	}
	// More nodes than are asked at once are in order.
	many := newCluster(t)
	for _, n := range strings.Fields("a b c d e f g h i j") {
		many.serve(n, map[string]admin.Handler{"GET /v1/status": says(admin.Status{Node: n})})
	}
	file = filepath.Join(many.dir, "many.tar.gz")
	if r := many.run("diag", "-o", file); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	var index diagIndex
	if err := json.Unmarshal([]byte(unpack(t, file)["index.json"]), &index); err != nil || strings.Join(index.Nodes, " ") != "a b c d e f g h i j" {
		t.Errorf("%v, %v", index.Nodes, err)
	}
}
