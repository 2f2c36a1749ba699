package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

func TestGetTables(t *testing.T) {
	c := newCluster(t)
	c.loadFile("cluster.yaml")
	var lines []string
	for _, kind := range datastore.Kinds() {
		r, err := datastore.Lookup(kind)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, "get "+r.Plural, "get "+r.Plural+" -o wide")
	}
	c.transcript("get", append(lines,
		"get po -n shop", "get pod web", "get pod shop/web", "get pod web -n shop", "get pods -n nobody",
		"get nodes node-1", "events", "events -n shop",
		"get pod/web", "get pod/shop/web", "get pod/web -n shop", "get node/node-1", "get netpol,cnp", "get ns,nodes", "get ns,nodes -n shop",
		"get pods,nodes web", "get pod/web another", "get pod/", "get /web", "get pods,", "get po,pods -n shop", "get ns/shop,vpc", "get vpc,ns/shop", "get pod web,other",
	)...)
}

func TestGetMachineFormats(t *testing.T) {
	c := newCluster(t)
	c.loadFile("cluster.yaml")
	c.transcript("get-formats",
		"get netns -o json", "get netns -o yaml", "get netns shop -o json", "get subnet lab -o yaml", "get pods -n nobody -o json")
	// Every kind is valid JSON and YAML, and says what it is.
	for _, kind := range datastore.Kinds() {
		var list struct {
			Kind  string `json:"kind"`
			Items []struct {
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
			} `json:"items"`
		}
		for format, decode := range map[string]func(string) error{
			"json": func(s string) error { return json.Unmarshal([]byte(s), &list) },
			"yaml": func(s string) error { return yaml.Unmarshal([]byte(s), &list) },
		} {
			r := c.run("get", string(kind), "-o", format)
			if err := decode(r.out); err != nil || r.code != 0 || r.err != "" {
				t.Fatalf("%s as %s: %v, exit %d, %s", kind, format, err, r.code, r.err)
			}
			if list.Kind != "List" {
				t.Errorf("%s as %s is a %q, want a List", kind, format, list.Kind)
			}
			for _, i := range list.Items {
				if i.Kind != string(kind) || i.APIVersion == "" {
					t.Errorf("%s as %s: an item is %q of %q", kind, format, i.Kind, i.APIVersion)
				}
			}
		}
	}
}

// What get prints can be applied: to the same datastore, and to an empty one.
func TestGetThenApply(t *testing.T) {
	c := newCluster(t)
	c.loadFile("cluster.yaml")
	for _, kind := range []string{"namespaces", "pods", "deployments", "vpcs", "subnets", "netns", "ipblocks", "nodes", "services"} {
		for _, format := range []string{"json", "yaml"} {
			printed := c.run("get", kind, "-o", format).out
			r := c.runWith(printed, "apply", "-f", "-")
			if r.code != 0 {
				t.Errorf("%s as %s: exit %d\n%s", kind, format, r.code, r.err)
			}
			for line := range strings.Lines(r.out) {
				if !strings.HasSuffix(line, " unchanged\n") {
					t.Errorf("%s as %s: %s", kind, format, line)
				}
			}
			if r := newCluster(t).runWith(printed, "apply", "-f", "-"); r.code != 0 || !strings.Contains(r.out, " created\n") {
				t.Errorf("%s as %s, to an empty datastore: exit %d\n%s%s", kind, format, r.code, r.out, r.err)
			}
		}
	}
}

const twoDocuments = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {containers: [{name: c, image: probe}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
`

func TestApply(t *testing.T) {
	c := newCluster(t)
	c.write("a.yaml", twoDocuments)
	c.write("dir/b.yml", "apiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: s}\nspec: {cidrs: [10.0.0.0/16]}\n")
	c.write("dir/c.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"plain"},"spec":{"containers":[{"name":"c"}]}}`)
	c.write("dir/ignored.txt", "not YAML: [")
	c.write("empty/x.txt", "")
	c.write("nothing.yaml", "# only a comment\n")
	c.write("unknown.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: ok}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {contaners: []}\n")
	c.write("bad.yaml", "apiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: t}\nspec: {cidrs: [10.1.0.1/16], transport: Pigeon}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: good}\n")
	c.write("changed.yaml", strings.Replace(twoDocuments, "{name: shop}", "{name: shop, labels: {team: web}}", 1))
	c.write("policy.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny}\nspec: {podSelector: {}}\n")
	c.transcript("apply",
		"apply -f DIR/a.yaml", "apply -f DIR/a.yaml", "apply -f DIR/changed.yaml -f DIR/dir", "get pods",
		"apply -f DIR/unknown.yaml", "get ns", "apply -f DIR/bad.yaml --dry-run", "get ns", "apply -f DIR/bad.yaml", "get ns",
		"apply -f DIR/a.yaml --dry-run", "apply -f DIR/dir -n other", "apply -f DIR/policy.yaml",
		"apply", "apply -f DIR/missing.yaml", "apply -f DIR/empty", "apply -f DIR/nothing.yaml", "apply -f - -f DIR/a.yaml",
	)
	if r := c.runWith(twoDocuments, "apply", "-f", "-"); r.code != 0 || !strings.Contains(r.out, "namespace/shop changed\npod/shop/web unchanged\n") {
		t.Errorf("standard input: %+v", r)
	}
}

// A pod that is bound meanwhile stays where it is, and a manifest that was read from a
// datastore works in another state of it.
func TestApplyAgain(t *testing.T) {
	c := newCluster(t)
	if r := c.runWith(twoDocuments, "apply", "-f", "-"); r.code != 0 {
		t.Fatal(r.err)
	}
	o, err := c.store.Get(t.Context(), datastore.KindPod, datastore.Key{Namespace: "shop", Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	o.(*corev1.Pod).Spec.NodeName = "node-1"
	if _, err := c.store.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if r := c.runWith(twoDocuments, "apply", "-f", "-"); r.out != "namespace/shop unchanged\npod/shop/web unchanged\n" || r.code != 0 {
		t.Errorf("a bound pod: %+v", r)
	}
	printed := c.run("get", "pod", "shop/web", "-o", "yaml").out
	if r := c.run("delete", "pod", "shop/web"); r.out != "pod/shop/web deleted\n" {
		t.Errorf("delete: %+v", r)
	}
	if r := c.runWith(printed, "apply", "-f", "-"); r.out != "pod/shop/web created\n" || r.code != 0 {
		t.Errorf("a printed pod: %+v", r)
	}
}

func TestDelete(t *testing.T) {
	c := newCluster(t)
	c.loadFile("cluster.yaml")
	c.load("apiVersion: fairlead.dev/v1alpha1\nkind: VPC\nmetadata: {name: spare}\n---\napiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: spare}\nspec: {vpc: spare, cidrs: [10.77.0.0/16]}\n")
	c.write("a.yaml", twoDocuments)
	c.transcript("delete",
		"delete pod web", "delete pod shop/web bank/nobody bank/teller", "delete -f DIR/a.yaml", "delete -f DIR/a.yaml --ignore-not-found",
		"delete netns bank", "delete deployment web -n shop", "delete pod", "delete", "delete pod x -f DIR/a.yaml", "delete unicorn x", "delete pod a/b/c",
		"delete subnet default", "delete ipblock default.0a800000-26", "delete vpc spare", "delete subnet default --force", "delete subnet spare", "delete vpc/spare",
		"delete namespace default", "delete namespace kube-system --force", "delete vpc default", "delete vpc default --force", "delete vpc",
	)
}

// A namespace that is given twice must be the same: one of them would be ignored in silence.
func TestNamespacesThatContradictAreWrongUsage(t *testing.T) {
	c := newCluster(t)
	c.loadFile("cluster.yaml")
	c.write("a.yaml", twoDocuments) // a pod in shop
	path := filepath.Join(c.dir, "a.yaml")
	for _, args := range [][]string{
		{"apply", "-f", path, "-n", "bank"},
		{"apply", "-f", path, "-n", "bank", "--dry-run"},
		{"delete", "-f", path, "-n", "bank"},
		{"policy", "whatif", "-f", path, "-n", "bank"},
		{"get", "pod", "shop/web", "-n", "bank"},
		{"get", "pod/shop/web", "-n", "bank"},
		{"delete", "pod", "shop/web", "-n", "bank"},
		{"capture", "shop/web", "-n", "bank", "-o", "-"},
		{"get", "subnet", "default", "-n", "bank"},
		{"delete", "subnet", "default", "-n", "bank"},
	} {
		if r := c.run(args...); r.code != exitUsage || !strings.Contains(r.err, "leave out") || r.out != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	for _, args := range [][]string{{"apply", "-f", path, "-n", "shop"}, {"get", "pod", "shop/web", "-n", "shop"}, {"delete", "-f", path, "-n", "shop", "--ignore-not-found"}} {
		if r := c.run(args...); r.code != 0 {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// What needs the datastore fails, and prints nothing on the way.
func TestDatastoreAway(t *testing.T) {
	c := newCluster(t)
	c.open = func() (datastore.Store, error) { return failing{}, nil }
	for _, args := range [][]string{
		{"apply", "-f", "-"},
		{"get", "pods"},
		{"get", "pods", "-o", "json"},
		{"status"},
		{"ipam", "check"},
		{"ipam", "show"},
		{"tenant", "join", "a", "b"},
		{"tenant", "isolate", "a"},
		{"ipam", "release", "10.0.0.1"},
	} {
		r := c.runWith(twoDocuments, args...)
		if r.code != exitFailed || !strings.Contains(r.err, "etcd is away") || r.out != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
