package datastoretest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// patience bounds every wait of the suite. It is long so that a busy machine
// fails no test; a broken implementation waits for it once.
const patience = 20 * time.Second

// Harness is one empty datastore under test.
type Harness struct {
	Store datastore.Store
	// Compact forgets the history up to now, so that older resourceVersions are
	// expired.
	Compact func(t *testing.T)
	// Bookmarks: a quiet watch is sent bookmarks within the suite's patience. An
	// implementation whose server cannot says false.
	Bookmarks bool
	// Leaks are the options under which no goroutine may be left after Close, such as
	// goleak.IgnoreCurrent from before the Store was made; nil where a server runs
	// in the same process.
	Leaks []goleak.Option
	// Finalizers: the server keeps and honours them. Others refuse them.
	Finalizers bool
}

// Namespaces are those that the suite's objects are in. A server that wants them to
// exist gets them before it begins.
func Namespaces() []string { return []string{"web", "other", "a", "a-b", "a0"} }

// Run runs the suite. newHarness is called for each test and registers its own
// cleanup.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, h Harness)
	}{
		{"CreateGetListDelete", testCRUD},
		{"CreateStamps", testCreateStamps},
		{"CreateRefuses", testCreateRefuses},
		{"ObjectsBelongToTheCaller", testOwnership},
		{"UpdateComparesAndSwaps", testUpdate},
		{"UpdateRefuses", testUpdateRefuses},
		{"UpdateWithoutChangeWritesNothing", testNoChange},
		{"StatusIsSeparate", testStatus},
		{"GenerationCountsSpecs", testGeneration},
		{"DeletePreconditions", testDeletePreconditions},
		{"AdmissionAgainstOthers", testAdmissionAgainstOthers},
		{"EveryKind", testEveryKind},
		{"BadKeysAndKinds", testBadKeys},
		{"ListIsSorted", testListSorted},
		{"CreateRaceHasOneWinner", testCreateRace},
		{"UpdateRaceLosesNothing", testUpdateRace},
		{"WatchDeliversEverythingOnce", testWatchEverything},
		{"WatchResumesFromEveryEvent", testWatchResumes},
		{"WatchKindsApart", testWatchKindsApart},
		{"DeletedCarriesTheLastState", testDeletedState},
		{"SlowWatcherBlocksNobody", testSlowWatcher},
		{"HistoryExpires", testExpiry},
		{"BookmarksAdvance", testBookmarks},
		{"WatchEnds", testWatchEnds},
		{"ContextEndsCalls", testContext},
		{"CloseEndsEverything", testClose},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newHarness(t)) })
	}
}

// The objects that the tests write.

func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "example.com/main:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}},
		}}},
	}
}

func netns(name string, vni int32) *v1alpha1.NetNamespace {
	return &v1alpha1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NetNamespaceSpec{VNI: vni}}
}

func subnet(name string, cidrs ...string) *v1alpha1.Subnet {
	return &v1alpha1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.SubnetSpec{CIDRs: cidrs}}
}

// Short forms that fail the test.

func create[P datastore.Object](t *testing.T, s datastore.Store, o P) P {
	t.Helper()
	out, err := s.Create(t.Context(), o)
	if err != nil {
		t.Fatalf("create %T %s: %v", o, datastore.KeyOf(o), err)
	}
	return out.(P)
}

func update[P datastore.Object](t *testing.T, s datastore.Store, o P) P {
	t.Helper()
	out, err := s.Update(t.Context(), o)
	if err != nil {
		t.Fatalf("update %T %s: %v", o, datastore.KeyOf(o), err)
	}
	return out.(P)
}

func get[P datastore.Object](t *testing.T, s datastore.Store, o P) P {
	t.Helper()
	kind, err := datastore.KindOf(o)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Get(t.Context(), kind, datastore.KeyOf(o))
	if err != nil {
		t.Fatalf("get %s %s: %v", kind, datastore.KeyOf(o), err)
	}
	return out.(P)
}

func remove(t *testing.T, s datastore.Store, o datastore.Object) {
	t.Helper()
	kind, err := datastore.KindOf(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), kind, datastore.KeyOf(o), datastore.Preconditions{}); err != nil {
		t.Fatalf("delete %s %s: %v", kind, datastore.KeyOf(o), err)
	}
}

func list(t *testing.T, s datastore.Store, kind datastore.Kind) datastore.List {
	t.Helper()
	out, err := s.List(t.Context(), kind)
	if err != nil {
		t.Fatalf("list %s: %v", kind, err)
	}
	return out
}

func watch(t *testing.T, s datastore.Store, kind datastore.Kind, rv string) datastore.Watcher {
	t.Helper()
	w, err := s.Watch(t.Context(), kind, rv)
	if err != nil {
		t.Fatalf("watch %s from %s: %v", kind, rv, err)
	}
	t.Cleanup(w.Stop)
	return w
}

// next is the next event, bookmarks passed over.
func next(t *testing.T, w datastore.Watcher) datastore.Event {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e, ok := <-w.Events():
			if !ok {
				t.Fatalf("the watch ended: %v", w.Err())
			}
			if e.Type != datastore.Bookmark {
				return e
			}
		case <-timeout:
			t.Fatalf("no event within %s", patience)
		}
	}
}

// ended waits for the watch to end and returns its error; events before the end
// are passed over.
func ended(t *testing.T, w datastore.Watcher) error {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case _, ok := <-w.Events():
			if !ok {
				return w.Err()
			}
		case <-timeout:
			t.Fatalf("the watch did not end within %s", patience)
		}
	}
}

// must checks an error's kind.
func must(t *testing.T, what string, err error, is func(error) bool, name string) {
	t.Helper()
	if !is(err) {
		t.Errorf("%s: got error %v, want %s", what, err, name)
	}
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func describe(e datastore.Event) string {
	if e.Object == nil {
		return fmt.Sprintf("%s@%s", e.Type, e.ResourceVersion)
	}
	return fmt.Sprintf("%s %s@%s", e.Type, datastore.KeyOf(e.Object), e.ResourceVersion)
}
