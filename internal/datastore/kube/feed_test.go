package kube_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// follow runs a feed of every kind; stop ends it.
func follow(t testing.TB, s datastore.Store) (f *feed.Feed, w *world.Store, stop func()) {
	t.Helper()
	w = world.NewStore(nil)
	f, err := feed.New(feed.Config{Store: s, World: w, Logger: discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	return f, w, sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// reached waits until the world is as a test wants it.
func reached(t testing.TB, w *world.Store, what string, is func(*world.Snapshot) bool) {
	t.Helper()
	timeout := time.After(60 * time.Second)
	for {
		snap, changed := w.Snapshot()
		if is(snap) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func allSynced(s *world.Snapshot) bool {
	for _, k := range world.DatastoreKinds() {
		if !s.Synced[k] {
			return false
		}
	}
	return true
}

// Scenario F7 on the Kubernetes API: away for a while, then back. The world is as it was
// meanwhile, follows within 5 s, and no kind is listed more often than the new server asks.
func TestOutageReal(t *testing.T) {
	s := realServer(t)
	s.defineOurs(t)
	s.empty(t)
	c := s.config()
	c.Lean = true
	store := open(t, c)
	f, w, stop := follow(t, store)
	defer stop()
	if _, err := store.Create(t.Context(), tenant("before", "")); err != nil {
		t.Fatal(err)
	}
	reached(t, w, "all kinds synced", func(snap *world.Snapshot) bool {
		_, ok := snap.NetNamespaces.Get(world.Key{Name: "before"})
		return ok && allSynced(snap)
	})
	s.api.kill()
	gone := time.After(8 * time.Second) // longer than any back-off grows
	for away := true; away; {
		status, changed := f.Status()
		away = false
		for _, k := range status {
			away = away || k.Phase == feed.Watching
		}
		select {
		case <-changed:
		case <-gone:
			t.Fatalf("a kind still counts as followed: %+v", status)
		}
	}
	<-gone
	if snap, _ := w.Snapshot(); snap.NetNamespaces.Len() != 1 || !allSynced(snap) {
		t.Error("the world has changed while the server was away")
	}
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	writer := open(t, s.config())
	eventually(t, func() error {
		_, err := writer.Create(t.Context(), tenant("after", ""))
		return err
	})
	reached(t, w, "the new object is there", func(snap *world.Snapshot) bool {
		_, ok := snap.NetNamespaces.Get(world.Key{Name: "after"})
		return ok
	})
	d := time.Since(back)
	t.Logf("converged %s after the server was ready", d)
	if d > 5*time.Second {
		t.Errorf("converged after %s, want within 5s", d)
	}
	status, _ := f.Status()
	for _, k := range status {
		if k.Lists > 2 {
			t.Errorf("%s was listed %d times, want 1 and at most 1 more", k.Kind, k.Lists)
		}
	}
}

// largePod is as large as pods of a real cluster are: 5 kB as JSON.
func largePod(i int) *corev1.Pod {
	env := make([]corev1.EnvVar, 40)
	for j := range env {
		env[j] = corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", j), Value: fmt.Sprintf("a value of usual length, for pod %d", i)}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "web", Name: fmt.Sprintf("pod-%05d", i), Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%50), "pod": fmt.Sprint(i)},
			Annotations: map[string]string{"note": "something that somebody has written about this pod"},
		},
		Spec: corev1.PodSpec{
			NodeName:   fmt.Sprintf("node-%d", i%100),
			Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1", Env: env, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}},
		},
	}
}

// fill writes n pods, and the namespace that they need.
func fill(t testing.TB, s datastore.Store, n int) {
	t.Helper()
	_, err := s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: largePod(0).Namespace}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	const writers = 16
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := i; j < n; j += writers {
				if _, err := s.Create(t.Context(), largePod(j)); err != nil {
					t.Errorf("pod %d: %v", j, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// heap is what is live, in bytes.
func heap() uint64 {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// followHeap follows all pods and returns the live heap that this costs, and the most that
// it took on the way.
func followHeap(t *testing.T, s datastore.Store, pods int) (kept, peak uint64) {
	t.Helper()
	before := heap()
	var most uint64
	done := make(chan struct{})
	var sampler sync.WaitGroup
	sampler.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	_, w, stop := follow(t, s)
	reached(t, w, "all pods are there", func(snap *world.Snapshot) bool { return allSynced(snap) && snap.Pods.Len() == pods })
	close(done)
	sampler.Wait()
	after := heap()
	stop()
	runtime.KeepAlive(w)
	return after - min(before, after), most - min(before, most)
}

// 10,000 pods cost no more than on the other datastore, where whole objects are not kept
// either.
func TestMemoryReal(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 10,000 pods to each datastore")
	}
	const pods = 10_000
	s := realServer(t)
	s.defineOurs(t)
	s.empty(t)
	c := s.config()
	c.Lean = true
	ours := open(t, c)
	fill(t, ours, pods)
	other, err := etcd.New(etcd.Config{Endpoints: []string{s.etcdURL()}, Prefix: "/fairlead-test"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	fill(t, other, pods)
	defer s.empty(t)
	kept, peak := followHeap(t, ours, pods)
	keptEtcd, peakEtcd := followHeap(t, other, pods)
	t.Logf("%d pods: kube keeps %.1f MiB, peak %.1f MiB; etcd keeps %.1f MiB, peak %.1f MiB",
		pods, mib(kept), mib(peak), mib(keptEtcd), mib(peakEtcd))
	if kept > keptEtcd+keptEtcd/2+4<<20 {
		t.Errorf("keeps %.1f MiB, and %.1f MiB on etcd", mib(kept), mib(keptEtcd))
	}
	if peak > 96<<20 {
		t.Errorf("took %.1f MiB on the way, which does not fit an agent", mib(peak))
	}
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }
