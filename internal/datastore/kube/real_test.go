package kube_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/datastoretest"
	"github.com/fairlead-sdn/fairlead/internal/datastore/kube"
)

func TestContractReal(t *testing.T) {
	s := realServer(t)
	s.defineOurs(t)
	datastoretest.Run(t, func(t *testing.T) datastoretest.Harness {
		s.empty(t)
		leaks := []goleak.Option{goleak.IgnoreCurrent()}
		store := open(t, s.config())
		return datastoretest.Harness{Store: store, Compact: s.compact, Bookmarks: true, Finalizers: true, Leaks: leaks}
	})
}

// realStore is a store on a real API server that has our kinds and no objects of them.
func realStore(t *testing.T) (*server, *kube.Store) {
	t.Helper()
	s := realServer(t)
	s.defineOurs(t)
	s.empty(t)
	return s, open(t, s.config())
}

// A frozen server looks alive to TCP. Calls end, and so do watches, within ten seconds;
// when it thaws everything goes on without a gap.
func TestFrozenServerReal(t *testing.T) {
	s, store := realStore(t)
	made, err := store.Create(t.Context(), tenant("a", ""))
	if err != nil {
		t.Fatal(err)
	}
	w := mustWatch(t, store, datastore.KindNetNamespace, made.GetResourceVersion())
	last, err := store.Create(t.Context(), tenant("b", ""))
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := next(t, w); !ok || e.ResourceVersion != last.GetResourceVersion() {
		t.Fatalf("%+v, %v", e, w.Err())
	}
	datastoretest.Freeze(t, s.api.cmd.Process)
	thaw := func() { _ = s.api.cmd.Process.Signal(syscall.SIGCONT) }
	defer thaw()
	frozen := time.Now()
	answer := make(chan error, 1)
	go func() {
		_, err := store.Get(t.Context(), datastore.KindNetNamespace, datastore.Key{Name: "a"})
		answer <- err
	}()
	if err := ended(t, w); !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) {
		t.Errorf("watch: %v, want ServiceUnavailable or Timeout", err)
	}
	d := time.Since(frozen)
	t.Logf("noticed after %s", d)
	if d > 10*time.Second {
		t.Errorf("noticed after %s, want within 10s", d)
	}
	if err := <-answer; !apierrors.IsTimeout(err) && !apierrors.IsServiceUnavailable(err) {
		t.Errorf("get: %v, want Timeout or ServiceUnavailable", err)
	}
	if d := time.Since(frozen); d > kube.DefaultRequestTimeout+time.Second {
		t.Errorf("get took %s", d)
	}
	thaw()
	eventually(t, func() error {
		_, err := store.Create(t.Context(), tenant("c", ""))
		return err
	})
	w = mustWatch(t, store, datastore.KindNetNamespace, last.GetResourceVersion())
	if e, ok := next(t, w); !ok || e.Object == nil || e.Object.GetName() != "c" {
		t.Errorf("resumed: %+v, %v; want c", e, w.Err())
	}
}

// An API server that was killed and comes back is followed again: from the last position,
// or, if things have changed meanwhile, from a new list, for its history begins anew.
func TestRestartReal(t *testing.T) {
	s, store := realStore(t)
	made, err := store.Create(t.Context(), tenant("a", ""))
	if err != nil {
		t.Fatal(err)
	}
	w := mustWatch(t, store, datastore.KindNetNamespace, made.GetResourceVersion())
	s.api.kill()
	if err := ended(t, w); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("watch of a killed server: %v, want ServiceUnavailable", err)
	}
	if _, err := store.List(t.Context(), datastore.KindNetNamespace); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("list of a killed server: %v, want ServiceUnavailable", err)
	}
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	var from datastore.List
	eventually(t, func() error {
		from, err = store.List(t.Context(), datastore.KindNetNamespace)
		return err
	})
	if len(from.Items) != 1 {
		t.Errorf("%d objects, want the one", len(from.Items))
	}
	if _, err := store.Create(t.Context(), tenant("b", "")); err != nil {
		t.Fatal(err)
	}
	w, err = store.Watch(t.Context(), datastore.KindNetNamespace, made.GetResourceVersion())
	if err == nil {
		if e, ok := next(t, w); ok {
			if e.Object == nil || e.Object.GetName() != "b" {
				t.Errorf("resumed: %+v, want b", e)
			}
			w.Stop()
			return
		}
		err = w.Err()
	}
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("resumed: %v, want b or ResourceExpired", err)
	}
	w = mustWatch(t, store, datastore.KindNetNamespace, from.ResourceVersion)
	if e, ok := next(t, w); !ok || e.Object == nil || e.Object.GetName() != "b" {
		t.Errorf("after a new list: %+v, %v; want b", e, w.Err())
	}
}

// ClusterNetworkPolicies need not be installed, and count once they are.
func TestAbsentKindReal(t *testing.T) {
	s, store := realStore(t)
	err := s.raw(t).Delete().AbsPath(definitionsPath).Name("clusternetworkpolicies.policy.networking.k8s.io").Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	defer s.defineOurs(t)
	var l datastore.List
	eventually(t, func() (err error) {
		if l, err = store.List(t.Context(), datastore.KindClusterNetworkPolicy); err == nil && l.ResourceVersion != "1" {
			return fmt.Errorf("still served")
		}
		return err
	})
	if len(l.Items) != 0 {
		t.Errorf("a kind that is not installed has %d objects", len(l.Items))
	}
	w := mustWatch(t, store, datastore.KindClusterNetworkPolicy, l.ResourceVersion)
	_, err = store.Create(t.Context(), policy("a"))
	if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "apply its CustomResourceDefinition") {
		t.Errorf("create: %v, want ServiceUnavailable that says what to do", err)
	}
	s.define(t, policyDefinition(t))
	if err := ended(t, w); !apierrors.IsResourceExpired(err) {
		t.Fatalf("the kind was installed: %v, want ResourceExpired", err)
	}
	if l, err = store.List(t.Context(), datastore.KindClusterNetworkPolicy); err != nil || l.ResourceVersion == "1" {
		t.Fatalf("list: %q, %v", l.ResourceVersion, err)
	}
	w = mustWatch(t, store, datastore.KindClusterNetworkPolicy, l.ResourceVersion)
	eventually(t, func() error {
		_, err := store.Create(t.Context(), policy("a"))
		return err
	})
	if e, ok := next(t, w); !ok || e.Object == nil || e.Object.GetName() != "a" {
		t.Errorf("%+v, %v; want a", e, w.Err())
	}
}

func policy(name string) *policyv1beta1.ClusterNetworkPolicy {
	return &policyv1beta1.ClusterNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1beta1.ClusterNetworkPolicySpec{
			Tier: policyv1beta1.AdminTier, Priority: 5,
			Subject: policyv1beta1.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
		},
	}
}

// An account without rights is told so.
func TestForbiddenReal(t *testing.T) {
	s := realServer(t)
	c := s.config()
	c.Context = "nobody"
	store := open(t, c)
	_, err := store.List(t.Context(), datastore.KindPod)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "nobody") || strings.Contains(err.Error(), "nobody-token") {
		t.Errorf("list: %v, want Forbidden that names the account", err)
	}
	if _, err := store.Pages(t.Context(), datastore.KindPod, func(bool, []datastore.Object) {}); !apierrors.IsForbidden(err) {
		t.Errorf("pages: %v, want Forbidden", err)
	}
	if _, err := store.Watch(t.Context(), datastore.KindPod, "1"); !apierrors.IsForbidden(err) {
		t.Errorf("watch: %v, want Forbidden", err)
	}
}

// Some kinds of the API are created by an update; not through this Store.
func TestUpdateCreatesNothingReal(t *testing.T) {
	_, store := realStore(t)
	made, err := store.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(t.Context(), datastore.KindLease, datastore.KeyOf(made), datastore.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Update(t.Context(), made); !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		t.Errorf("update of a deleted Lease: %v, want NotFound or Conflict", err)
	}
	if _, err := store.Get(t.Context(), datastore.KindLease, datastore.KeyOf(made)); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want NotFound", err)
	}
}

// A streamed list has what a paged one has, and a watch goes on from it.
func TestStreamedListReal(t *testing.T) {
	_, store := realStore(t)
	for i := range 1100 {
		if _, err := store.Create(t.Context(), tenant(fmt.Sprintf("t%d", i), "")); err != nil {
			t.Fatal(err)
		}
	}
	want, err := store.List(t.Context(), datastore.KindNetNamespace)
	if err != nil {
		t.Fatal(err)
	}
	var got []datastore.Object
	pages := 0
	rv, err := store.Pages(t.Context(), datastore.KindNetNamespace, func(_ bool, objects []datastore.Object) {
		pages++
		got = append(got, objects...)
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b datastore.Object) int { return datastore.CompareKeys(datastore.KeyOf(a), datastore.KeyOf(b)) })
	if diff := cmp.Diff(want.Items, got); diff != "" || pages != 3 {
		t.Errorf("%d pages, want 3; streamed list (-paged +streamed):\n%s", pages, diff)
	}
	w := mustWatch(t, store, datastore.KindNetNamespace, rv)
	if _, err := store.Create(t.Context(), tenant("after", "")); err != nil {
		t.Fatal(err)
	}
	if e, ok := next(t, w); !ok || e.Object == nil || e.Object.GetName() != "after" {
		t.Errorf("%+v, %v; want after", e, w.Err())
	}
}

// What others have put on an object stays on it.
func TestForeignMetadataReal(t *testing.T) {
	_, store := realStore(t)
	in := tenant("a", "")
	in.Finalizers = []string{"example.com/wait"}
	made, err := store.Create(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	key := datastore.KeyOf(made)
	if err := store.Delete(t.Context(), datastore.KindNetNamespace, key, datastore.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	marked, err := store.Get(t.Context(), datastore.KindNetNamespace, key)
	if err != nil || marked.GetDeletionTimestamp() == nil {
		t.Fatalf("%v, %v; want an object that waits for its finalizer", marked, err)
	}
	marked.SetFinalizers(nil)
	if _, err := store.Update(t.Context(), marked); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), datastore.KindNetNamespace, key); !apierrors.IsNotFound(err) {
		t.Errorf("after the finalizer went: %v, want NotFound", err)
	}
}
