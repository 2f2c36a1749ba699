package datastoretest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// churn lets several writers create, change and delete the same few objects in a
// random order, with other kinds in between.
func churn(t *testing.T, s datastore.Store, writers, rounds int) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range writers {
		random := rand.New(rand.NewPCG(uint64(w), 7))
		wg.Go(func() {
			for range rounds {
				if err := step(t.Context(), s, random); err != nil && !expected(err) {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func step(ctx context.Context, s datastore.Store, random *rand.Rand) error {
	name := fmt.Sprintf("n%d", random.IntN(5))
	switch random.IntN(5) {
	case 0:
		_, err := s.Create(ctx, netns(name, 1))
		return err
	case 1:
		return s.Delete(ctx, datastore.KindNetNamespace, datastore.Key{Name: name}, datastore.Preconditions{})
	case 2:
		_, err := s.Create(ctx, pod("web", fmt.Sprintf("p%d", random.IntN(1_000_000))))
		return err
	default:
		o, err := s.Get(ctx, datastore.KindNetNamespace, datastore.Key{Name: name})
		if err != nil {
			return err
		}
		o.(*v1alpha1.NetNamespace).Spec.VNI = random.Int32N(1<<24-1) + 1
		_, err = s.Update(ctx, o)
		return err
	}
}

func expected(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
}

// state is what a consumer of events knows.
type state map[datastore.Key]datastore.Object

func (s state) apply(e datastore.Event) {
	switch e.Type {
	case datastore.Deleted:
		delete(s, datastore.KeyOf(e.Object))
	case datastore.Added, datastore.Modified:
		s[datastore.KeyOf(e.Object)] = e.Object
	}
}

func stateOf(l datastore.List) state {
	s := state{}
	for _, o := range l.Items {
		s[datastore.KeyOf(o)] = o
	}
	return s
}

// until reads events up to the one that deletes the marker.
func until(t *testing.T, w datastore.Watcher, marker string) []datastore.Event {
	t.Helper()
	var out []datastore.Event
	for {
		e := next(t, w)
		out = append(out, e)
		if e.Type == datastore.Deleted && e.Object.GetName() == marker {
			return out
		}
	}
}

func writeMarker(t *testing.T, s datastore.Store, name string) {
	t.Helper()
	remove(t, s, create(t, s, netns(name, 1)))
}

func version(t *testing.T, rv string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		t.Fatalf("resourceVersion %q: %v", rv, err)
	}
	return n
}

func testWatchEverything(t *testing.T, h Harness) {
	churn(t, h.Store, 2, 20)
	begin := list(t, h.Store, datastore.KindNetNamespace)
	w := watch(t, h.Store, datastore.KindNetNamespace, begin.ResourceVersion)

	churned := make(chan struct{})
	go func() {
		defer close(churned)
		churn(t, h.Store, 6, 60)
	}()
	// A second consumer that lists in the middle of it must get to the same end.
	middle := list(t, h.Store, datastore.KindNetNamespace)
	w2 := watch(t, h.Store, datastore.KindNetNamespace, middle.ResourceVersion)
	<-churned
	end := list(t, h.Store, datastore.KindNetNamespace)
	writeMarker(t, h.Store, "marker")

	for _, consumer := range []struct {
		from datastore.List
		w    datastore.Watcher
	}{{begin, w}, {middle, w2}} {
		got := stateOf(consumer.from)
		last := version(t, consumer.from.ResourceVersion)
		for _, e := range until(t, consumer.w, "marker") {
			if v := version(t, e.ResourceVersion); v <= last {
				t.Errorf("%s comes after resourceVersion %d", describe(e), last)
			} else {
				last = v
			}
			if e.Object.GetResourceVersion() != e.ResourceVersion {
				t.Errorf("%s carries an object of version %s", describe(e), e.Object.GetResourceVersion())
			}
			_, known := got[datastore.KeyOf(e.Object)]
			if wantKnown := e.Type != datastore.Added; known != wantKnown {
				t.Errorf("%s: known before: %v, want %v", describe(e), known, wantKnown)
			}
			got.apply(e)
		}
		if diff := cmp.Diff(stateOf(end), got); diff != "" {
			t.Errorf("list plus events differ from the end (-want +got):\n%s", diff)
		}
	}
}

func testWatchResumes(t *testing.T, h Harness) {
	begin := list(t, h.Store, datastore.KindNetNamespace)
	churn(t, h.Store, 3, 15)
	writeMarker(t, h.Store, "marker")
	all := until(t, watch(t, h.Store, datastore.KindNetNamespace, begin.ResourceVersion), "marker")
	for i, e := range all[:len(all)-1] {
		w := watch(t, h.Store, datastore.KindNetNamespace, e.ResourceVersion)
		if diff := cmp.Diff(all[i+1:], until(t, w, "marker")); diff != "" {
			t.Fatalf("resumed after %s (-want +got):\n%s", describe(e), diff)
		}
		w.Stop()
	}
}

func testWatchKindsApart(t *testing.T, h Harness) {
	from := list(t, h.Store, datastore.KindNetNamespace).ResourceVersion
	w := watch(t, h.Store, datastore.KindNetNamespace, from)
	create(t, h.Store, pod("web", "a"))
	create(t, h.Store, subnet("web", "10.1.0.0/16"))
	create(t, h.Store, netns("web", 5))
	if e := next(t, w); e.Type != datastore.Added || e.Object.GetName() != "web" {
		t.Errorf("got %s, want the NetNamespace", describe(e))
	} else if kind, _ := datastore.KindOf(e.Object); kind != datastore.KindNetNamespace {
		t.Errorf("got a %s", kind)
	}
}

func testDeletedState(t *testing.T, h Harness) {
	// No pod: an API server marks those as deleted before it removes them.
	o := create(t, h.Store, subnet("pods", "10.128.0.0/14"))
	o.Labels = map[string]string{"app": "web"}
	o = update(t, h.Store, o)
	w := watch(t, h.Store, datastore.KindSubnet, o.ResourceVersion)
	remove(t, h.Store, o)
	e := next(t, w)
	if e.Type != datastore.Deleted {
		t.Fatalf("got %s, want the deletion", describe(e))
	}
	want := o.DeepCopy()
	want.ResourceVersion = e.ResourceVersion
	if diff := cmp.Diff(datastore.Object(want), e.Object); diff != "" {
		t.Errorf("last state (-want +got):\n%s", diff)
	}
	if version(t, e.ResourceVersion) <= version(t, o.ResourceVersion) {
		t.Errorf("the deletion's resourceVersion %s is not after %s", e.ResourceVersion, o.ResourceVersion)
	}
}

func testSlowWatcher(t *testing.T, h Harness) {
	const n = 1500
	from := list(t, h.Store, datastore.KindNetNamespace).ResourceVersion
	w := watch(t, h.Store, datastore.KindNetNamespace, from)
	// Nobody reads while this writes: if a reader could hold it up, it would hang.
	for i := range n {
		create(t, h.Store, netns(fmt.Sprintf("n%d", i), 5))
	}
	for i := range n {
		if e := next(t, w); e.Object.GetName() != fmt.Sprintf("n%d", i) {
			t.Fatalf("event %d is %s", i, describe(e))
		}
	}
}

func testExpiry(t *testing.T, h Harness) {
	old := list(t, h.Store, datastore.KindNetNamespace).ResourceVersion
	churn(t, h.Store, 1, 30)
	create(t, h.Store, netns("last", 5))
	h.Compact(t)
	must(t, "watch from a forgotten version", refusal(t, h.Store, old), apierrors.IsResourceExpired, "ResourceExpired")

	now := list(t, h.Store, datastore.KindNetNamespace)
	fresh := watch(t, h.Store, datastore.KindNetNamespace, now.ResourceVersion)
	create(t, h.Store, netns("after", 5))
	if e := next(t, fresh); e.Object.GetName() != "after" {
		t.Errorf("after a new list: %s, want the new object", describe(e))
	}
	future := strconv.FormatUint(version(t, now.ResourceVersion)+1_000_000, 10)
	must(t, "watch from a version to come", refusal(t, h.Store, future), apierrors.IsResourceExpired, "ResourceExpired")
}

// refusal is how a watch from a version ends. A server that has just been started may ask
// for patience first.
func refusal(t *testing.T, s datastore.Store, from string) error {
	t.Helper()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(patience); ; <-again.C {
		w, err := s.Watch(t.Context(), datastore.KindNetNamespace, from)
		if err == nil {
			err = ended(t, w)
			w.Stop()
		}
		busy := apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err)
		if !busy || time.Now().After(deadline) {
			return err
		}
	}
}

func testBookmarks(t *testing.T, h Harness) {
	if !h.Bookmarks {
		t.Skip("the server answers progress requests wrongly, so none are sent")
	}
	from := list(t, h.Store, datastore.KindNetNamespace).ResourceVersion
	w := watch(t, h.Store, datastore.KindNetNamespace, from)
	target := version(t, create(t, h.Store, pod("web", "a")).ResourceVersion)
	for timeout := time.After(patience); ; {
		select {
		case e, ok := <-w.Events():
			if !ok {
				t.Fatalf("the watch ended: %v", w.Err())
			}
			if e.Type != datastore.Bookmark || e.Object != nil {
				t.Fatalf("got %s, want a bookmark", describe(e))
			}
			if version(t, e.ResourceVersion) >= target {
				// A watch may resume from there, and has missed nothing.
				resumed := watch(t, h.Store, datastore.KindNetNamespace, e.ResourceVersion)
				create(t, h.Store, netns("web", 5))
				if got := next(t, resumed); got.Object.GetName() != "web" {
					t.Errorf("resumed from a bookmark: %s", describe(got))
				}
				return
			}
		case <-timeout:
			t.Fatalf("no bookmark of %d or later within %s", target, patience)
		}
	}
}

func testWatchEnds(t *testing.T, h Harness) {
	from := list(t, h.Store, datastore.KindNetNamespace).ResourceVersion
	for range 3 { // unread events must not keep a watch from ending
		create(t, h.Store, netns(fmt.Sprintf("n%d", rand.Int64()), 5))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	byContext, err := h.Store.Watch(ctx, datastore.KindNetNamespace, from)
	if err != nil {
		t.Fatal(err)
	}
	byStop := watch(t, h.Store, datastore.KindNetNamespace, from)
	survivor := watch(t, h.Store, datastore.KindNetNamespace, from)
	cancel()
	if err := ended(t, byContext); err != nil {
		t.Errorf("Err after its context ended: %v, want nil", err)
	}
	byContext.Stop()
	byStop.Stop()
	byStop.Stop() // twice is once
	if _, ok := <-byStop.Events(); ok {
		t.Error("an event after Stop returned")
	}
	if err := byStop.Err(); err != nil {
		t.Errorf("Err after Stop: %v, want nil", err)
	}
	next(t, survivor)
}

func testContext(t *testing.T, h Harness) {
	made := create(t, h.Store, netns("web", 5))
	key := datastore.KeyOf(made)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := map[string]func() error{
		"Get":          func() error { _, err := h.Store.Get(ctx, datastore.KindNetNamespace, key); return err },
		"List":         func() error { _, err := h.Store.List(ctx, datastore.KindNetNamespace); return err },
		"Create":       func() error { _, err := h.Store.Create(ctx, netns("other", 6)); return err },
		"Update":       func() error { _, err := h.Store.Update(ctx, made); return err },
		"UpdateStatus": func() error { _, err := h.Store.UpdateStatus(ctx, pod("web", "a")); return err },
		"Delete": func() error {
			return h.Store.Delete(ctx, datastore.KindNetNamespace, key, datastore.Preconditions{})
		},
		"Watch": func() error {
			_, err := h.Store.Watch(ctx, datastore.KindNetNamespace, made.ResourceVersion)
			return err
		},
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		must(t, name+" under an ended context", calls[name](), isContext, "the context's error")
	}
	get(t, h.Store, made) // and nothing was deleted
}

func testClose(t *testing.T, h Harness) {
	from := list(t, h.Store, datastore.KindNetNamespace).ResourceVersion
	idle := watch(t, h.Store, datastore.KindNetNamespace, from)
	unread := watch(t, h.Store, datastore.KindNetNamespace, from)
	create(t, h.Store, netns("web", 5))
	if err := h.Store.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for name, w := range map[string]datastore.Watcher{"idle": idle, "unread": unread} {
		must(t, "the "+name+" watch after Close", ended(t, w), apierrors.IsServiceUnavailable, "ServiceUnavailable")
	}
	_, err := h.Store.List(t.Context(), datastore.KindNetNamespace)
	must(t, "List after Close", err, apierrors.IsServiceUnavailable, "ServiceUnavailable")
	_, err = h.Store.Watch(t.Context(), datastore.KindNetNamespace, from)
	must(t, "Watch after Close", err, apierrors.IsServiceUnavailable, "ServiceUnavailable")
	if err := h.Store.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	if h.Leaks != nil {
		goleak.VerifyNone(t, h.Leaks...)
	}
}
