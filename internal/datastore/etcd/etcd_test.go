package etcd_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/datastoretest"
	"github.com/fairlead-sdn/fairlead/internal/datastore/etcd"
	"github.com/fairlead-sdn/fairlead/lab/etcdserver"
)

// socketDir is short: a unix socket's path has 108 bytes at most.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func startEmbedded(t testing.TB, c etcdserver.Config) *etcdserver.Server {
	t.Helper()
	if c.Dir == "" {
		c.Dir = socketDir(t)
	}
	s, err := etcdserver.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	t.Cleanup(func() { once.Do(s.Close) })
	return s
}

func rawClient(t testing.TB, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func open(t testing.TB, c etcd.Config) *etcd.Store {
	t.Helper()
	s, err := etcd.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func compact(t *testing.T, endpoint string) {
	t.Helper()
	c := rawClient(t, endpoint)
	got, err := c.Get(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), got.Header.Revision); err != nil {
		t.Fatal(err)
	}
}

// contract runs the suite, each test under a prefix of its own.
func contract(t *testing.T, endpoint string, bookmarks, leaks bool) {
	var n atomic.Int32
	datastoretest.Run(t, func(t *testing.T) datastoretest.Harness {
		var options []goleak.Option
		if leaks {
			options = []goleak.Option{goleak.IgnoreCurrent()}
		}
		s := open(t, etcd.Config{
			Endpoints: []string{endpoint}, Prefix: fmt.Sprintf("/test%d", n.Add(1)), ProgressInterval: 100 * time.Millisecond,
		})
		for _, name := range datastoretest.Namespaces() {
			if _, err := s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
				t.Fatal(err)
			}
		}
		return datastoretest.Harness{
			Store:     s,
			Compact:   func(t *testing.T) { compact(t, endpoint) },
			Bookmarks: bookmarks, Leaks: options,
		}
	})
}

func TestContractEmbedded(t *testing.T) {
	contract(t, startEmbedded(t, etcdserver.Config{}).Endpoint(), true, false)
}

func tenant(name string) *v1alpha1.NetNamespace {
	return &v1alpha1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NetNamespaceSpec{VNI: 5}}
}

func mustCreate(t testing.TB, s datastore.Store, name string) string {
	t.Helper()
	o, err := s.Create(t.Context(), tenant(name))
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return o.GetResourceVersion()
}

func mustWatch(t testing.TB, s datastore.Store, rv string) datastore.Watcher {
	t.Helper()
	w, err := s.Watch(t.Context(), datastore.KindNetNamespace, rv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// nextEvent is the next event, bookmarks passed over; ok is false when the watch
// has ended.
func nextEvent(t testing.TB, w datastore.Watcher) (datastore.Event, bool) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case e, ok := <-w.Events():
			if !ok || e.Type != datastore.Bookmark {
				return e, ok
			}
		case <-timeout:
			t.Fatal("neither an event nor an end within 20 s")
		}
	}
}

func TestCorruptValues(t *testing.T) {
	endpoint := startEmbedded(t, etcdserver.Config{}).Endpoint()
	raw := rawClient(t, endpoint)
	var mu sync.Mutex
	corrupt := map[string]string{}
	s := open(t, etcd.Config{Endpoints: []string{endpoint}, OnCorrupt: func(key string, err error) {
		mu.Lock()
		defer mu.Unlock()
		corrupt[key] = err.Error()
	}})
	rv := mustCreate(t, s, "good")
	w := mustWatch(t, s, rv)
	for key, value := range map[string]string{
		"json":      `{"apiVersion"`,
		"foreign":   `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"foreign"}}`,
		"name":      `{"apiVersion":"fairlead.dev/v1alpha1","kind":"NetNamespace","metadata":{"name":"other"}}`,
		"type":      `{"apiVersion":"fairlead.dev/v1alpha1","kind":"NetNamespace","metadata":{"name":"type"},"spec":{"vni":"five"}}`,
		"empty":     ``,
		"deep/path": `{}`,
	} {
		if _, err := raw.Put(t.Context(), "/fairlead/netnamespaces/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	mustCreate(t, s, "later")
	list, err := s.List(t.Context(), datastore.KindNetNamespace)
	if err != nil || len(list.Items) != 2 {
		t.Errorf("List: %d items, %v; want the two good ones", len(list.Items), err)
	}
	mu.Lock()
	reported := maps.Clone(corrupt) // the watch may report at any time, too
	mu.Unlock()
	if len(reported) != 6 {
		t.Errorf("reported %v, want six keys", reported)
	}
	if e, _ := nextEvent(t, w); e.Type != datastore.Added || e.Object.GetName() != "later" {
		t.Errorf("event %+v, want the good object", e)
	}
	key := datastore.Key{Name: "json"}
	if _, err := s.Get(t.Context(), datastore.KindNetNamespace, key); !apierrors.IsInternalError(err) {
		t.Errorf("get a corrupt value: %v, want InternalError", err)
	}
	if err := s.Delete(t.Context(), datastore.KindNetNamespace, key, datastore.Preconditions{}); err != nil {
		t.Errorf("delete a corrupt value: %v", err)
	}
	// An object that stops being readable is gone for those who watch.
	if _, err := raw.Put(t.Context(), "/fairlead/netnamespaces/good", "?"); err != nil {
		t.Fatal(err)
	}
	if e, _ := nextEvent(t, w); e.Type != datastore.Deleted || e.Object.GetName() != "good" {
		t.Errorf("event %+v, want the loss of the object", e)
	}
}

// A policy that cannot be read is one all the same: without it more would be allowed than
// somebody meant.
func TestUnreadablePoliciesStandForThemselves(t *testing.T) {
	endpoint := startEmbedded(t, etcdserver.Config{}).Endpoint()
	raw := rawClient(t, endpoint)
	s := open(t, etcd.Config{Endpoints: []string{endpoint}})
	list, err := s.List(t.Context(), datastore.KindNetworkPolicy)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(t.Context(), datastore.KindNetworkPolicy, list.ResourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	const path = "/fairlead/networkpolicies/shop/web"
	put := func(value string) {
		t.Helper()
		if _, err := raw.Put(t.Context(), path, value); err != nil {
			t.Fatal(err)
		}
	}
	put("torn")
	put(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"web","namespace":"shop"},"spec":{"podSelector":{}}}`)
	put(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"web","namespace":"shop"},"spec":{"podSelector":{},"ingress":"all"}}`)
	for i, want := range []struct {
		typ        datastore.EventType
		unreadable bool
	}{{datastore.Added, true}, {datastore.Modified, false}, {datastore.Modified, true}} {
		e, _ := nextEvent(t, w)
		if e.Type != want.typ || datastore.KeyOf(e.Object) != (datastore.Key{Namespace: "shop", Name: "web"}) || (datastore.Unreadable(e.Object) != "") != want.unreadable || e.Object.GetResourceVersion() != e.ResourceVersion {
			t.Errorf("event %d: %s of %+v, want %+v", i, e.Type, e.Object, want)
		}
	}
	if list, err = s.List(t.Context(), datastore.KindNetworkPolicy); err != nil || len(list.Items) != 1 || datastore.Unreadable(list.Items[0]) == "" {
		t.Fatalf("listed %v, %v", list.Items, err)
	}
	// What stands for it is not written in its place.
	if _, err := s.Update(t.Context(), list.Items[0]); !apierrors.IsInternalError(err) {
		t.Errorf("update: %v, want InternalError", err)
	}
	if _, err := raw.Delete(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if e, _ := nextEvent(t, w); e.Type != datastore.Deleted {
		t.Errorf("event %+v, want the deletion", e)
	}
}

// Nothing is made in a namespace that does not exist, but in those that every cluster has.
func TestNamespaceMustExist(t *testing.T) {
	s := open(t, etcd.Config{Endpoints: []string{startEmbedded(t, etcdserver.Config{}).Endpoint()}})
	policy := func(namespace string) datastore.Object {
		p := &networkingv1.NetworkPolicy{}
		p.Namespace, p.Name = namespace, "p"
		return p
	}
	_, err := s.Create(t.Context(), policy("shop"))
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details.Kind != "namespaces" || status.Status().Details.Name != "shop" {
		t.Errorf("without its namespace: %v", err)
	}
	for _, name := range []string{"default", "kube-system"} {
		if _, err := s.Create(t.Context(), policy(name)); err != nil {
			t.Errorf("in %s: %v", name, err)
		}
	}
	shop := &corev1.Namespace{}
	shop.Name = "shop"
	if _, err := s.Create(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), policy("shop")); err != nil {
		t.Errorf("with its namespace: %v", err)
	}
	if _, err := s.Create(t.Context(), policy("shop")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("again: %v, want AlreadyExists", err)
	}
}

// A long list is read in pages, all at one revision.
func TestListOfManyPages(t *testing.T) {
	endpoint := startEmbedded(t, etcdserver.Config{}).Endpoint()
	s := open(t, etcd.Config{Endpoints: []string{endpoint}})
	const n = 1234
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < n; i += 8 {
				if _, err := s.Create(t.Context(), tenant(fmt.Sprintf("n%d", i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	list, err := s.List(t.Context(), datastore.KindNetNamespace)
	if err != nil || len(list.Items) != n {
		t.Fatalf("%d items, %v; want %d", len(list.Items), err, n)
	}
	seen := map[string]bool{}
	for _, o := range list.Items {
		seen[o.GetName()] = true
	}
	if len(seen) != n {
		t.Errorf("%d different items, want %d", len(seen), n)
	}
}

func TestTooLargeIsClear(t *testing.T) {
	s := open(t, etcd.Config{Endpoints: []string{startEmbedded(t, etcdserver.Config{}).Endpoint()}})
	b := &v1alpha1.IPBlock{ObjectMeta: metav1.ObjectMeta{Name: "x.0a000000-16"}, Spec: v1alpha1.IPBlockSpec{
		Subnet: "x", CIDR: "10.0.0.0/16", Node: "n1", Allocations: map[string]v1alpha1.AddressOwner{},
	}}
	long := make([]byte, 500)
	for i := range long {
		long[i] = 'a'
	}
	for i := range 8000 {
		b.Spec.Allocations[fmt.Sprintf("10.0.%d.%d", i/256, i%256)] = v1alpha1.AddressOwner{Name: string(long)}
	}
	if _, err := s.Create(t.Context(), b); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("create 4 MB: %v, want RequestEntityTooLarge", err)
	}
}

// The cluster loses its data: readers must list anew.
func TestResetEndsWatches(t *testing.T) {
	dir := socketDir(t)
	server, err := etcdserver.Start(t.Context(), etcdserver.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, etcd.Config{Endpoints: []string{server.Endpoint()}})
	for i := range 20 {
		mustCreate(t, s, fmt.Sprintf("n%d", i))
	}
	w := mustWatch(t, s, mustCreate(t, s, "last"))
	server.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	startEmbedded(t, etcdserver.Config{Dir: dir})
	for {
		if _, ok := nextEvent(t, w); !ok {
			break
		}
	}
	if !apierrors.IsResourceExpired(w.Err()) {
		t.Errorf("the watch ended with %v, want ResourceExpired", w.Err())
	}
}

func TestBadConfig(t *testing.T) {
	dir := t.TempDir()
	garbage := dir + "/garbage"
	if err := os.WriteFile(garbage, []byte("not PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	const secure = "https://127.0.0.1:2379"
	for name, c := range map[string]etcd.Config{
		"no endpoint":     {},
		"no scheme":       {Endpoints: []string{"127.0.0.1:2379"}},
		"mixed":           {Endpoints: []string{secure, "http://127.0.0.1:2379"}},
		"cert over http":  {Endpoints: []string{"http://127.0.0.1:2379"}, CA: garbage},
		"cert alone":      {Endpoints: []string{secure}, Cert: garbage},
		"missing ca":      {Endpoints: []string{secure}, CA: dir + "/missing"},
		"garbage ca":      {Endpoints: []string{secure}, CA: garbage},
		"garbage cert":    {Endpoints: []string{secure}, Cert: garbage, Key: garbage},
		"relative prefix": {Endpoints: []string{secure}, Prefix: "fairlead"},
	} {
		if s, err := etcd.New(c); err == nil {
			t.Errorf("%s: accepted", name)
			_ = s.Close()
		}
	}
}

// Nobody listens: each call says so, in time, and New does not wait.
func TestUnreachable(t *testing.T) {
	s := open(t, etcd.Config{Endpoints: []string{"unix://" + t.TempDir() + "/nobody.sock"}})
	begin := time.Now()
	_, err := s.List(t.Context(), datastore.KindPod)
	if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) {
		t.Errorf("List: %v, want ServiceUnavailable or Timeout", err)
	}
	if d := time.Since(begin); d > etcd.DefaultRequestTimeout+2*time.Second {
		t.Errorf("List took %s", d)
	}
	isPlain(t, err)
	t.Logf("List ended after %s: %v", time.Since(begin).Round(time.Millisecond), err)
}

// isPlain wants an error in words for people.
func isPlain(t *testing.T, err error) {
	t.Helper()
	for _, words := range []string{"rpc error", "desc =", "transport:", "code ="} {
		if err != nil && strings.Contains(err.Error(), words) {
			t.Errorf("the error has the words of gRPC: %v", err)
		}
	}
}

// Keys that are no object's are found, and deleted; objects and what is elsewhere are not.
func TestStrays(t *testing.T) {
	endpoint := startEmbedded(t, etcdserver.Config{}).Endpoint()
	raw := rawClient(t, endpoint)
	s := open(t, etcd.Config{Endpoints: []string{endpoint}})
	mustCreate(t, s, "good")
	for _, key := range []string{
		"/fairlead/netnamespaces/deep/path", "/fairlead/pods/alone", "/fairlead/nothing/x", "/fairlead/\x01", "/fairlead/netnamespaces/torn",
		"/fairlead2/pods/alone", "/fairlead",
	} {
		if _, err := raw.Put(t.Context(), key, "?"); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"/fairlead/\x01", "/fairlead/netnamespaces/deep/path", "/fairlead/nothing/x", "/fairlead/pods/alone"}
	got, err := s.Strays(t.Context())
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("strays: %v (-want +got):\n%s", err, d)
	}
	for _, key := range []string{"/fairlead/netnamespaces/torn", "/fairlead/netnamespaces/good", "/fairlead2/pods/alone", "/fairlead", ""} {
		if err := s.DeleteStray(t.Context(), key); !apierrors.IsBadRequest(err) {
			t.Errorf("delete %q: %v, want BadRequest", key, err)
		}
	}
	for _, key := range want {
		if err := s.DeleteStray(t.Context(), key); err != nil {
			t.Errorf("delete %q: %v", key, err)
		}
		if err := s.DeleteStray(t.Context(), key); !apierrors.IsNotFound(err) {
			t.Errorf("delete %q again: %v, want NotFound", key, err)
		}
	}
	if got, err := s.Strays(t.Context()); len(got) > 0 || err != nil {
		t.Errorf("left: %q, %v", got, err)
	}
}

func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := open(b, etcd.Config{Endpoints: []string{startEmbedded(b, etcdserver.Config{}).Endpoint()}})
			var n atomic.Int64
			b.SetParallelism(writers)
			b.ResetTimer()
			if writers == 1 {
				for b.Loop() {
					mustCreate(b, s, fmt.Sprintf("n%d", n.Add(1)))
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, err := s.Create(b.Context(), tenant(fmt.Sprintf("n%d", n.Add(1)))); err != nil {
							b.Error(err)
						}
					}
				})
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}

// BenchmarkWatchLatency measures from the call of Create to the event; Create
// alone is the baseline.
func BenchmarkWatchLatency(b *testing.B) {
	s := open(b, etcd.Config{Endpoints: []string{startEmbedded(b, etcdserver.Config{}).Endpoint()}})
	w := mustWatch(b, s, mustCreate(b, s, "first"))
	i := 0
	for b.Loop() {
		i++
		mustCreate(b, s, fmt.Sprintf("n%d", i))
		nextEvent(b, w)
	}
}

// A member that takes connections and says nothing costs bookmarks, no events.
func TestWatchDoesNotWaitForAFrozenMember(t *testing.T) {
	live := startEmbedded(t, etcdserver.Config{})
	frozen := socketDir(t) + "/frozen.sock"
	l, err := net.Listen("unix", frozen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := open(t, etcd.Config{Endpoints: []string{live.Endpoint(), "unix://" + frozen}, DialTimeout: 5 * time.Minute})
	first := mustCreate(t, s, "first")
	w, err := s.Watch(t.Context(), datastore.KindNetNamespace, first)
	if err != nil {
		t.Fatal(err)
	}
	mustCreate(t, s, "second")
	select {
	case e := <-w.Events():
		if e.Object == nil || e.Object.GetName() != "second" {
			t.Errorf("the first event is %+v, want the second object", e)
		}
	case <-time.After(20 * time.Second):
		t.Error("no event within 20 s")
	}
	ended := make(chan struct{})
	go func() { w.Stop(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the watch did not end within 20 s")
	}
}
