package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/lab/cluster"
	"github.com/fairlead-sdn/fairlead/lab/machine"
)

// machines runs every pod at once.
type machines struct {
	wake func()
	mu   sync.Mutex
	pods map[string][]*corev1.Pod
	off  []string
}

func (m *machines) Addresses(node string) []netip.Addr {
	if !strings.HasPrefix(node, "node-") {
		return nil
	}
	return []netip.Addr{netip.MustParseAddr("172.30.0.1" + strings.TrimPrefix(node, "node-"))}
}

func (m *machines) State(node string) *machine.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.off, node) {
		return nil
	}
	s := &machine.State{Ready: true}
	for i, p := range m.pods[node] {
		s.Pods = append(s.Pods, machine.PodState{
			Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Phase: corev1.PodRunning, Ready: true,
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})},
		})
	}
	return s
}

func (m *machines) SetPods(node string, pods []*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := !slices.EqualFunc(m.pods[node], pods, func(a, b *corev1.Pod) bool { return a.UID == b.UID })
	m.pods[node] = pods
	if changed {
		m.wake()
	}
}

func (m *machines) PowerOff(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.off = append(m.off, node)
}

type fixture struct {
	t        *testing.T
	store    datastore.Store
	machines *machines
}

// run starts a Cluster of two nodes in a bubble of synthetic time.
func run(t *testing.T, f func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{})
		m := &machines{pods: map[string][]*corev1.Pod{}}
		c := cluster.New(store, m, slog.New(slog.DiscardHandler))
		m.wake = c.Wake
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		fx := &fixture{t: t, store: store, machines: m}
		fx.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}})
		for i := range 2 {
			fx.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i+1)}})
		}
		f(fx)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if p := c.Problems(); len(p) > 0 {
			t.Errorf("problems: %v", p)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (f *fixture) create(o datastore.Object) datastore.Object {
	f.t.Helper()
	got, err := f.store.Create(f.t.Context(), o)
	if err != nil {
		f.t.Fatal(err)
	}
	return got
}

func (f *fixture) change(kind datastore.Kind, key datastore.Key, change func(datastore.Object)) {
	f.t.Helper()
	o, err := f.store.Get(f.t.Context(), kind, key)
	if err != nil {
		f.t.Fatal(err)
	}
	change(o)
	if _, err := f.store.Update(f.t.Context(), o); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) remove(kind datastore.Kind, key datastore.Key) {
	f.t.Helper()
	if err := f.store.Delete(f.t.Context(), kind, key, datastore.Preconditions{}); err != nil {
		f.t.Fatal(err)
	}
}

// settle lets the cluster work for a while of synthetic time.
func settle() {
	time.Sleep(5 * time.Second) // synthetic: testing/synctest
	synctest.Wait()
}

// pods lists "name node phase" of all pods, hashes of templates cut out.
func (f *fixture) list() []string {
	f.t.Helper()
	settle()
	l, err := f.store.List(f.t.Context(), datastore.KindPod)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, o := range l.Items {
		p := o.(*corev1.Pod)
		name := p.Name
		if hash := p.Labels[cluster.LabelTemplate]; hash != "" {
			name = strings.Replace(name, hash, "HASH", 1)
		}
		out = append(out, fmt.Sprintf("%s %s %s", name, p.Spec.NodeName, p.Status.Phase))
	}
	return out
}

func (f *fixture) want(what string, want ...string) {
	f.t.Helper()
	if d := cmp.Diff(want, f.list()); d != "" {
		f.t.Errorf("%s: pods (-want +got):\n%s", what, d)
	}
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "probe"}}},
	}
}

func deployment(n int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "probe"}}},
			},
		},
	}
}

func TestPodsAreBoundAndRun(t *testing.T) {
	run(t, func(f *fixture) {
		f.create(pod("a", ""))
		f.create(pod("b", ""))
		settle()
		f.create(pod("c", "node-2"))
		f.create(pod("d", "node-9"))
		f.want("four pods", "a node-1 Running", "b node-2 Running", "c node-2 Running", "d node-9 Pending")
		f.create(pod("e", ""))
		f.remove(datastore.KindPod, datastore.Key{Namespace: "demo", Name: "c"})
		f.want("one more, one less", "a node-1 Running", "b node-2 Running", "d node-9 Pending", "e node-1 Running")
	})
}

func TestSchedulerObeysNodes(t *testing.T) {
	run(t, func(f *fixture) {
		f.change(datastore.KindNode, datastore.Key{Name: "node-1"}, func(o datastore.Object) { o.(*corev1.Node).Spec.Unschedulable = true })
		f.change(datastore.KindNode, datastore.Key{Name: "node-2"}, func(o datastore.Object) { o.SetLabels(map[string]string{"disk": "fast"}) })
		settle()
		f.create(pod("a", ""))
		picky := pod("b", "")
		picky.Spec.NodeSelector = map[string]string{"disk": "slow"}
		f.create(picky)
		f.want("a cordoned node", "a node-2 Running", "b  Pending")
	})
}

func TestDeployment(t *testing.T) {
	run(t, func(f *fixture) {
		f.create(deployment(3))
		f.want("three replicas", "web-HASH-0 node-1 Running", "web-HASH-1 node-2 Running", "web-HASH-2 node-1 Running")
		key := datastore.Key{Namespace: "demo", Name: "web"}
		o, err := f.store.Get(t.Context(), datastore.KindDeployment, key)
		if err != nil {
			t.Fatal(err)
		}
		if s := o.(*appsv1.Deployment).Status; s.ReadyReplicas != 3 || s.UpdatedReplicas != 3 || s.UnavailableReplicas != 0 {
			t.Errorf("status %+v, want 3 ready", s)
		}
		f.change(datastore.KindDeployment, key, func(o datastore.Object) { *o.(*appsv1.Deployment).Spec.Replicas = 1 })
		f.want("scaled down", "web-HASH-0 node-1 Running")
		before := f.uid("web-", 0)
		f.change(datastore.KindDeployment, key, func(o datastore.Object) {
			o.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image = "other"
		})
		f.want("another template", "web-HASH-0 node-1 Running")
		if after := f.uid("web-", 0); after == before {
			t.Error("another template left the pod as it was")
		}
		f.remove(datastore.KindDeployment, key)
		f.want("deleted")
	})
}

func (f *fixture) uid(prefix string, i int) string {
	f.t.Helper()
	l, err := f.store.List(f.t.Context(), datastore.KindPod)
	if err != nil || len(l.Items) <= i || !strings.HasPrefix(l.Items[i].GetName(), prefix) {
		f.t.Fatalf("no pod %s %d: %v", prefix, i, err)
	}
	return string(l.Items[i].GetUID())
}

func TestCascades(t *testing.T) {
	run(t, func(f *fixture) {
		f.create(deployment(2))
		f.create(pod("a", "node-2"))
		f.want("before", "a node-2 Running", "web-HASH-0 node-1 Running", "web-HASH-1 node-1 Running")
		f.remove(datastore.KindNode, datastore.Key{Name: "node-2"})
		f.want("without a node", "web-HASH-0 node-1 Running", "web-HASH-1 node-1 Running")
		if d := cmp.Diff([]string{"node-2"}, f.machines.off); d != "" {
			t.Errorf("powered off (-want +got):\n%s", d)
		}
		f.remove(datastore.KindNamespace, datastore.Key{Name: "demo"})
		f.want("without the namespace")
		l, err := f.store.List(t.Context(), datastore.KindDeployment)
		if err != nil || len(l.Items) != 0 {
			t.Errorf("deployments left: %v, error %v", l.Items, err)
		}
	})
}

// What a namespace holds may be heard of before the namespace.
func TestNothingIsDeletedForANamespaceNotSeenYet(t *testing.T) {
	run(t, func(f *fixture) {
		d := deployment(1)
		d.Namespace = "late"
		f.create(d)
		f.want("no namespace yet", "web-HASH-0 node-1 Running")
		f.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late"}})
		f.want("with its namespace", "web-HASH-0 node-1 Running")
		f.remove(datastore.KindNamespace, datastore.Key{Name: "late"})
		f.want("namespace deleted")
	})
}

func TestPlanIsStable(t *testing.T) {
	run(t, func(f *fixture) {
		f.create(deployment(5))
		settle()
		pods, err := f.store.List(t.Context(), datastore.KindPod)
		if err != nil {
			t.Fatal(err)
		}
		settle()
		again, err := f.store.List(t.Context(), datastore.KindPod)
		if err != nil {
			t.Fatal(err)
		}
		if pods.ResourceVersion != again.ResourceVersion {
			t.Errorf("written to without need: %s, then %s", pods.ResourceVersion, again.ResourceVersion)
		}
	})
}
