package datastore

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

const manifest = `
# a comment only
---
apiVersion: v1
kind: Namespace
metadata: {name: web}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: a, namespace: web}
  spec: {containers: [{name: c, ports: [{containerPort: 80}]}]}
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicyList
  items:
  - metadata: {name: p, namespace: web}
    spec: {podSelector: {}, ingress: []}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: old}
spec: {tier: Admin, priority: 5, subject: {namespaces: {}}}
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: new}
spec: {tier: Admin, priority: 5, subject: {namespaces: {}}}
`

func names(objects []Object) []string {
	var out []string
	for _, o := range objects {
		out = append(out, o.GetObjectKind().GroupVersionKind().String()+" "+KeyOf(o).String())
	}
	return out
}

func TestDecodeManifest(t *testing.T) {
	objects, err := DecodeManifest(strings.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/v1, Kind=Namespace web",
		"/v1, Kind=Pod web/a",
		"networking.k8s.io/v1, Kind=NetworkPolicy web/p",
		"policy.networking.k8s.io/v1beta1, Kind=ClusterNetworkPolicy old",
		"policy.networking.k8s.io/v1beta1, Kind=ClusterNetworkPolicy new",
	}
	if diff := cmp.Diff(want, names(objects)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if _, ok := objects[3].(*policyv1beta1.ClusterNetworkPolicy); !ok {
		t.Errorf("v1alpha2 became a %T", objects[3])
	}
	if p := objects[2].(*networkingv1.NetworkPolicy); p.Spec.Ingress == nil || p.Spec.PolicyTypes != nil {
		t.Errorf("the policy is not as written: %+v", p.Spec)
	}
}

func TestDecodeManifestJSON(t *testing.T) {
	objects, err := DecodeManifest(strings.NewReader("\n" + `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}` + "\n" +
		"{\t\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}"))
	if err != nil {
		t.Fatal(err)
	}
	DefaultNamespace(objects, "team")
	if diff := cmp.Diff([]string{"/v1, Kind=Node n1", "/v1, Kind=Pod team/a"}, names(objects)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n"
	for _, in := range []string{node + "...\n# the end\n", node + "...\n---\n", strings.ReplaceAll("---\n"+node+"...\n", "\n", "\r\n"), "\ufeff" + node} {
		if objects, err := DecodeManifest(strings.NewReader(in)); err != nil || len(objects) != 1 {
			t.Errorf("%q: %v, %v; want one object", in, names(objects), err)
		}
	}
	if objects, err := DecodeManifest(strings.NewReader("")); err != nil || len(objects) != 0 {
		t.Errorf("an empty manifest: %v, %v", objects, err)
	}
}

func TestDecodeManifestRefuses(t *testing.T) {
	const sn = "apiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: s}\n"
	for name, test := range map[string]struct {
		in   string
		want []string
	}{
		"unknown field": {
			"---\n" + sn + "spec: {cidrs: [10.0.0.0/16], gatewy: [10.0.0.1]}",
			[]string{"document 1", "Subnet s", `unknown field "spec.gatewy"`},
		},
		"case of a field":      {sn + "spec: {CIDRs: [10.0.0.0/16]}", []string{`unknown field "spec.CIDRs"`}},
		"second document":      {sn + "spec: {cidrs: []}\n---\n" + sn + "spec: {x: 1}", []string{"document 2", "spec.x"}},
		"duplicate field":      {sn + "spec:\n  cidrs: [10.0.0.0/16]\n  cidrs: [10.1.0.0/16]", []string{"document 1", "Subnet s", `"cidrs"`, "already"}},
		"duplicate JSON field": {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{"unschedulable":true,"unschedulable":false}}`, []string{"Node a", "duplicate field", "spec.unschedulable"}},
		"wrong type":           {sn + "spec: {cidrs: 10.0.0.0/16}", []string{"Subnet s", "cidrs", "string"}},
		"unknown kind":         {"apiVersion: v1\nkind: Unicorn\nmetadata: {name: u}", []string{"Unicorn u", "not one that Fairlead knows", "Subnet"}},
		"wrong version":        {"apiVersion: v1beta1\nkind: Pod\nmetadata: {name: p, namespace: web}", []string{"Pod web/p", "use v1"}},
		"no kind":              {"apiVersion: v1\nmetadata: {name: p}", []string{"document 1", "kind is missing"}},
		"no apiVersion":        {"kind: Pod\nmetadata: {name: p}", []string{"Pod p", "apiVersion is missing"}},
		"no object":            {"- 1\n- 2", []string{"document 1: not an object with apiVersion and kind, but array"}},
		"a word":               {"hello", []string{"document 1: not an object with apiVersion and kind, but string"}},
		"no name of a kind":    {"apiVersion: v1\nkind: {x: 1}", []string{"document 1: not an object: kind is object"}},
		"no YAML":              {"a: b: c", []string{"document 1", "not YAML"}},
		"after an end":         {"kind: Pod\n...\nkind: Pod", []string{"document 1: another document begins"}},
		"carriage returns":     {"kind: Pod\r---\rkind: Pod", []string{"document 1", "another document begins"}},
		"line separators":      {"kind: Pod\n---\nkind: Pod\u2028---\u2028kind: Pod", []string{"document 2: another document begins"}},
		"UTF-16":               {"\xff\xfea\x00:\x00", []string{"document 1: it is in UTF-16"}},
		"cut JSON":             {`{"apiVersion":"v1"`, []string{"document 1", "not JSON"}},
		"inside a list":        {"apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(sn+"spec: {x: 1}", "\n", "\n  "), []string{"items[0]", "Subnet s", "spec.x"}},
		"lists without end":    {strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 9) + strings.Repeat("]}", 9), []string{"nested"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := DecodeManifest(strings.NewReader(test.in))
			if err == nil {
				t.Fatalf("accepted: %v", names(objects))
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not mention %q", err, want)
				}
			}
		})
	}
	two, err := DecodeManifest(strings.NewReader(sn + "spec: {x: 1}\n---\n" + sn + "spec: {y: 1}"))
	if err == nil || !strings.Contains(err.Error(), "document 1") || !strings.Contains(err.Error(), "document 2") {
		t.Errorf("two bad documents: %v, %v; want both named", two, err)
	}
}

// What is read can be stored and read again, and no input ends in a panic: not in
// the decoder, and not in defaults and validation after it.
func FuzzDecodeManifest(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"ports":[{}]}]}}`))
	f.Add([]byte("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: IPv6\nendpoints: [{addresses: ['::1%eth0']}]\nports: [{}]"))
	f.Add([]byte("apiVersion: fairlead.dev/v1alpha1\nkind: Subnet\nmetadata: {name: a}\nspec: {cidrs: ['::ffff:1.2.3.4/128', '1.2.3.4/0'], exclude: ['x'], gateway: ['::']}"))
	f.Add([]byte("apiVersion: fairlead.dev/v1alpha1\nkind: IPBlock\nmetadata: {name: a.0a-1}\nspec: {cidr: 1.2.3.4/33, allocations: {x: {}}, lent: {x: ''}}"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, in []byte) {
		objects, err := DecodeManifest(bytes.NewReader(in))
		if err != nil {
			return
		}
		for _, o := range objects {
			admitted, err := new(Admission).Create(o, nil)
			if err != nil {
				continue
			}
			raw, err := Encode(admitted)
			if err != nil {
				t.Fatalf("encode: %v", err)
			}
			kind, _ := KindOf(o)
			again, err := Decode(kind, KeyOf(admitted), raw, "7")
			if err != nil {
				t.Fatalf("decode what was encoded: %v", err)
			}
			again.SetResourceVersion("7")
			if _, changed, err := new(Admission).Update(again.DeepCopyObject().(Object), again, nil); err != nil || changed {
				t.Fatalf("an update without a change: changed %v, %v", changed, err)
			}
		}
	})
}
