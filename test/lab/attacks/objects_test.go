package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/spec"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// hostileCIDRs are lists of CIDRs that no Subnet may have; the default Subnet has
// 10.128.0.0/14.
func hostileCIDRs() map[string][]string {
	many := make([]string, 20000)
	for i := range many {
		many[i] = fmt.Sprintf("11.%d.%d.0/24", i>>8&255, i&255)
	}
	return map[string][]string{
		"negative": {"10.9.0.0/-1"}, "too-long": {"10.9.0.0/33"}, "garbage": {"banana"}, "shell": {"$(touch /tmp/" + canaryFile + ")/24"},
		"empty": {}, "empty-text": {""}, "hostbits": {"10.9.0.1/16"}, "everything": {"0.0.0.0/0"}, "everything6": {"::/0"}, "loopback": {"127.0.0.0/8"},
		"multicast": {"224.0.0.0/8"}, "linklocal": {"169.254.0.0/16"}, "linklocal6": {"fe80::/64"}, "mapped": {"::ffff:10.9.0.0/112"}, "itself": {"10.9.0.0/16", "10.9.1.0/24"},
		"big-text": {strings.Repeat("1", 1<<20)}, "many": many, "default": {"10.128.0.0/14"}, "inside-default": {"10.129.0.0/16"}, "around-default": {"10.0.0.0/8"},
		"underlay": {"172.30.0.0/24"},
	}
}

// TestScenarioS9Objects: objects that somebody may write are refused, and objects that
// somebody wrote past all checks do no harm.
func TestScenarioS9Objects(t *testing.T) {
	l := labtest.Up(t, lab.Options{Nodes: 2})
	l.Apply(arenaNamespaceAndPods("before"))
	l.WaitPods()
	pids := daemons(l)

	t.Run("refused", func(t *testing.T) { refuseObjects(t, l.With(t)) })
	t.Run("raw", func(t *testing.T) { writeRaw(t, l.With(t)) })
	sameProcesses(t, pids, daemons(l))
	// Who starts now reads all of it at once.
	l.Fault(spec.ControllerRestart, "")
	l.Fault(spec.AgentRestart, "node-1")
	l.WaitReady("node-1")
	pids = daemons(l)

	// Other objects still reconcile: a namespace, pods, a VPC and its Subnet.
	l.Apply(arenaNamespaceAndPods("after"))
	l.Apply(`
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: after}
spec: {namespaces: {matchLabels: {vpc: after}}}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: after}
spec: {vpc: after, cidrs: [10.97.0.0/16]}
---
apiVersion: v1
kind: Namespace
metadata: {name: after-vpc, labels: {vpc: after}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: after-vpc, annotations: {fairlead.dev/subnet: after}} # a node may hear of the Pod before the VPC
spec: {nodeName: node-1, containers: [{name: c}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: after-vpc, annotations: {fairlead.dev/subnet: after}}
spec: {nodeName: node-2, containers: [{name: c}]}
`)
	for _, name := range []string{"before/a", "before/b", "after/a", "after/b", "after-vpc/a", "after-vpc/b"} {
		waitPod(t, l, name)
	}
	for _, pair := range [][2]string{{"before/a", "before/b"}, {"after/a", "after/b"}, {"after/b", "before/a"}, {"after-vpc/a", "after-vpc/b"}} {
		to := l.Pod(pair[1]).Status.PodIP
		labtest.Eventually(t, labtest.Patience, func() error {
			if out := l.Exec(pair[0], "ping", "-c1", "-W1", to); out.Exit != 0 {
				return fmt.Errorf("%s does not reach %s at %q: %s\nit has: %s", pair[0], pair[1], to, out, l.Exec(pair[0], "sh", "-c", "ip addr; ip route show table all; ip neigh"))
			}
			return nil
		})
	}
	for _, node := range []string{"node-1", "node-2"} {
		s := labtest.AdminGet[admin.Status](l, node, "/v1/status")
		if len(s.Failed) != 0 {
			t.Errorf("%s: objects failed: %v", node, s.Failed)
		}
		if len(s.Problems) == 0 {
			t.Errorf("%s reports no problem, after all that", node)
		}
		for _, p := range s.Problems {
			if len(p.Message) > 4096 {
				t.Errorf("%s: a problem of %s with %d bytes of text", node, p.Object, len(p.Message))
			}
		}
	}
	sameProcesses(t, pids, daemons(l))
	if found := canaries(t); len(found) != 0 {
		t.Errorf("somebody ran a shell: %v", found)
	}
}

func arenaNamespaceAndPods(namespace string) string {
	return strings.ReplaceAll(`
apiVersion: v1
kind: Namespace
metadata: {name: NS}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: NS}
spec: {nodeName: node-1, containers: [{name: c}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: NS}
spec: {nodeName: node-2, containers: [{name: c}]}
`, "NS", namespace)
}

func waitPod(t *testing.T, l *labtest.Lab, name string) {
	t.Helper()
	labtest.Eventually(t, labtest.Patience, func() error {
		p, err := labtest.TryGet[*corev1.Pod](l, datastore.KindPod, name)
		if err == nil && p.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("pod %s is %s: %s", name, p.Status.Phase, p.Status.Message)
		}
		return err
	})
}

// daemons are the processes of Fairlead, with their pids.
func daemons(l *labtest.Lab) map[string]int {
	s := l.Status()
	out := map[string]int{"controller": s.Controller.Pid}
	for _, n := range s.Nodes {
		out[n.Name] = n.State.Agent.Pid
	}
	return out
}

func sameProcesses(t *testing.T, before, after map[string]int) {
	t.Helper()
	for name, pid := range after {
		if pid == 0 || pid != before[name] {
			t.Errorf("%s was process %d and is %d", name, before[name], pid)
		}
	}
}

// refuseObjects writes through the datastore, as the command line does.
func refuseObjects(t *testing.T, l *labtest.Lab) {
	refused, conditions := 0, 0
	create := func(o datastore.Object) error {
		ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
		defer cancel()
		_, err := l.Store.Create(ctx, o)
		if err != nil {
			refused++
			if len(err.Error()) > 16<<10 {
				t.Errorf("a refusal of %d bytes: %.200s…", len(err.Error()), err)
			}
		}
		return err
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	for name, cidrs := range hostileCIDRs() {
		o := &v1alpha1.Subnet{ObjectMeta: meta("h-" + name), Spec: v1alpha1.SubnetSpec{VPC: "default", CIDRs: cidrs}}
		if create(o) == nil {
			// An overlap with another object is for the controller to say.
			labtest.Eventually(t, labtest.Patience, func() error {
				got := labtest.Get[*v1alpha1.Subnet](l, datastore.KindSubnet, "h-"+name)
				for _, c := range got.Status.Conditions {
					if c.Status == metav1.ConditionFalse && c.ObservedGeneration == got.Generation {
						return nil
					}
				}
				return fmt.Errorf("Subnet h-%s was accepted without a condition: %v", name, got.Status.Conditions)
			})
			conditions++
		}
	}
	for i, s := range hostile() {
		for _, o := range []datastore.Object{
			&v1alpha1.VPC{ObjectMeta: meta(s)},
			&v1alpha1.Subnet{ObjectMeta: meta(s), Spec: v1alpha1.SubnetSpec{VPC: "default", CIDRs: []string{"10.9.0.0/16"}}},
			&corev1.Namespace{ObjectMeta: meta(s)},
			&v1alpha1.NetNamespace{ObjectMeta: meta(s), Spec: v1alpha1.NetNamespaceSpec{VNI: 77}},
		} {
			if plainID.MatchString(s) && len(s) < 64 {
				continue // a good name
			}
			if err := create(o); err == nil {
				t.Errorf("%T with the name %.60q was accepted", o, s)
			}
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("annotated-%d", i), Namespace: "before", Annotations: map[string]string{"fairlead.dev/ip": s, "fairlead.dev/subnet": s}},
			Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "c"}}},
		}
		// Refused, or accepted and never attached with what it asks for.
		_ = create(pod)
	}
	big := strings.Repeat("A", 1<<20)
	for _, o := range []datastore.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "big", Annotations: map[string]string{"x": big}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "big", Namespace: "before", Annotations: map[string]string{"fairlead.dev/ip": big}}},
		&v1alpha1.NetNamespace{ObjectMeta: meta("before"), Spec: v1alpha1.NetNamespaceSpec{VNI: -1}},
		&v1alpha1.NetNamespace{ObjectMeta: meta("before"), Spec: v1alpha1.NetNamespaceSpec{VNI: 1 << 24}},
		&v1alpha1.Subnet{ObjectMeta: meta("blocks"), Spec: v1alpha1.SubnetSpec{VPC: "default", CIDRs: []string{"10.9.0.0/16"}, BlockSize: v1alpha1.BlockSize{V4: -7, V6: 999}}},
	} {
		if err := create(o); err == nil {
			t.Errorf("%T %s was accepted", o, o.GetName())
		}
	}
	t.Logf("%d writes refused, %d accepted with a condition", refused, conditions)
}

// writeRaw writes into etcd what the datastore would never let pass.
func writeRaw(t *testing.T, l *labtest.Lab) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{l.Datastore()}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	written := 0
	put := func(kind datastore.Kind, key string, value []byte) {
		t.Helper()
		r, err := datastore.Lookup(kind)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
		defer cancel()
		if _, err := client.Put(ctx, etcd.DefaultPrefix+"/"+r.Plural+"/"+key, string(value)); err != nil {
			t.Logf("etcd itself refuses %s %.60q: %v", kind, key, err)
			return
		}
		written++
	}
	// object is one whose name need not be good; body is its spec and status.
	object := func(kind datastore.Kind, namespace, name string, body map[string]any) {
		t.Helper()
		r, err := datastore.Lookup(kind)
		if err != nil {
			t.Fatal(err)
		}
		o := map[string]any{"apiVersion": r.GroupVersionKind().GroupVersion().String(), "kind": string(kind)}
		meta := map[string]any{"name": name, "uid": "uid-" + name, "creationTimestamp": "2099-01-01T00:00:00Z"}
		key := name
		if namespace != "" {
			meta["namespace"], key = namespace, namespace+"/"+name
		}
		for k, v := range body {
			if k == "metadata" {
				for k, v := range v.(map[string]any) {
					meta[k] = v
				}
				continue
			}
			o[k] = v
		}
		o["metadata"] = meta
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		put(kind, key, raw)
	}
	all := datastore.Kinds()
	for _, kind := range all {
		// A policy that cannot be read isolates its namespace: not that of the pods that are
		// probed.
		namespace := "before"
		if kind == datastore.KindNetworkPolicy {
			namespace = "raw-policies"
		}
		for i, junk := range []string{
			"", "null", "[]", "{}", "\x00\xff", "{", strings.Repeat("[", 100000), strings.Repeat(`{"metadata":`, 30000), `{"metadata":{"name":7}}`,
			`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"junk"}}`, strings.Repeat("x", 1<<20),
		} {
			put(kind, fmt.Sprintf("junk-%d", i), []byte(junk))
			put(kind, fmt.Sprintf("%s/junk-%d", namespace, i), []byte(junk))
		}
		put(kind, "../../x", []byte("{}"))
		put(kind, "", []byte("{}"))
		put(kind, "a/b/c/d", []byte("{}"))
	}
	for name, cidrs := range hostileCIDRs() {
		object(datastore.KindSubnet, "", "raw-"+name, map[string]any{"spec": map[string]any{
			"vpc": "default", "cidrs": cidrs, "transport": "Overlay", "encapsulation": "VXLAN", "blockSize": map[string]any{"v4": -5, "v6": 500}, "natOutgoing": true,
		}})
		if len(cidrs) == 1 {
			object(datastore.KindIPBlock, "", "raw-"+name, map[string]any{"spec": map[string]any{
				"subnet": "default", "cidr": cidrs[0], "node": "node-1", "allocations": map[string]any{"x": map[string]any{"name": "y"}, "10.128.0.1": nil}, "lent": map[string]any{"banana": "node-2", "10.128.0.2": "../x"},
			}})
			// Not of the pods that are probed: a policy whose selector nobody can read may
			// select any pod of its namespace, and isolates them all.
			object(datastore.KindNetworkPolicy, "raw-policies", "raw-"+name, map[string]any{"spec": map[string]any{
				"podSelector": map[string]any{"matchLabels": map[string]any{"a b;c": "$(x)"}},
				"ingress":     []any{map[string]any{"from": []any{map[string]any{"ipBlock": map[string]any{"cidr": cidrs[0], "except": cidrs}}}, "ports": []any{map[string]any{"port": -1, "endPort": 99999}, map[string]any{"port": "`x`", "protocol": "BANANA"}}}},
			}})
		}
	}
	for i, s := range hostile() {
		name := fmt.Sprintf("raw-%d", i)
		good := map[string]any{"spec": map[string]any{"vpc": s, "cidrs": []string{fmt.Sprintf("10.5.%d.0/24", i)}, "transport": s, "encapsulation": s}}
		object(datastore.KindSubnet, "", name, good)
		named := func(kind datastore.Kind, body map[string]any) {
			if !plainID.MatchString(s) || len(s) > 63 { // else it would be an ordinary object
				object(kind, "", s, body)
			}
		}
		named(datastore.KindSubnet, map[string]any{"spec": map[string]any{"vpc": "default", "cidrs": []string{fmt.Sprintf("10.6.%d.0/24", i)}, "transport": "Overlay", "encapsulation": "VXLAN", "natOutgoing": true}})
		named(datastore.KindVPC, map[string]any{"spec": map[string]any{"isolation": "Tenant", "namespaces": map[string]any{"matchLabels": map[string]any{"raw": "x"}}}, "status": map[string]any{"vni": 5000 + i}})
		object(datastore.KindVPC, "", name, map[string]any{"spec": map[string]any{"isolation": s, "namespaces": map[string]any{"matchExpressions": []any{map[string]any{"key": s, "operator": s, "values": []string{s}}}}}, "status": map[string]any{"vni": -i}})
		named(datastore.KindNamespace, map[string]any{"metadata": map[string]any{"labels": map[string]any{"raw": "x", s: s}}})
		named(datastore.KindNetNamespace, map[string]any{"spec": map[string]any{"vni": 1 << 25}})
		named(datastore.KindNode, map[string]any{"status": map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "address": s}}}})
		object(datastore.KindNode, "", name, map[string]any{"metadata": map[string]any{"labels": map[string]any{s: s}}, "status": map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "address": "172.30.0.11"}}}})
		object(datastore.KindNodeNetwork, "", name, map[string]any{"spec": map[string]any{"addresses": []string{s, "172.30.0.12/24", "127.0.0.1/8", "224.0.0.1/4"}, "vtepMAC": s, "mtu": -1, "plane": s}})
		object(datastore.KindPod, "before", name, map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{"fairlead.dev/ip": s, "fairlead.dev/subnet": s}, "labels": map[string]any{s: s}},
			"spec":     map[string]any{"nodeName": "nowhere", "containers": []any{map[string]any{"name": s, "ports": []any{map[string]any{"containerPort": -5, "name": s}}}}},
			"status":   map[string]any{"podIP": s, "podIPs": []any{map[string]any{"ip": s}}},
		})
		// Its action cannot be read, so that it denies all to whom it may be about. That, too,
		// cannot be read, but for the namespace: as with the policies above, not that of
		// the pods that are probed.
		subject := map[string]any{"pods": map[string]any{
			"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "raw-policies"}},
			"podSelector":       map[string]any{"matchLabels": map[string]any{s: s}},
		}}
		object(datastore.KindClusterNetworkPolicy, "", name, map[string]any{"spec": map[string]any{"tier": s, "priority": -i, "subject": subject, "ingress": []any{map[string]any{"action": s}}}})
		object(datastore.KindService, "before", name, map[string]any{"spec": map[string]any{"clusterIP": s, "clusterIPs": []string{s}, "ports": []any{map[string]any{"port": -1, "name": s}}}})
	}
	object(datastore.KindNodeNetwork, "", "raw-mtu", map[string]any{"spec": map[string]any{"addresses": []string{"172.30.0.77/24"}, "vtepMAC": "06:00:00:00:00:01", "mtu": 1 << 30}})
	object(datastore.KindNetNamespace, "", "before", map[string]any{"spec": map[string]any{"vni": -1}})
	t.Logf("%d values written", written)
	// Everybody has read past all of it.
	marker := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "marker"}}
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	if _, err := l.Store.Create(ctx, marker); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"node-1", "node-2"} {
		labtest.Eventually(t, labtest.Patience, func() error {
			s, err := labtest.TryAdminGet[admin.Status](l, node, "/v1/status")
			if err != nil {
				return err
			}
			if s.NotReady != "" {
				return fmt.Errorf("%s is not ready: %s", node, s.NotReady)
			}
			if s.AppliedRevision != s.Revision {
				return fmt.Errorf("%s has applied %d of %d: %v", node, s.AppliedRevision, s.Revision, s.Failed)
			}
			return nil
		})
	}
}
