package feed_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a memory datastore whose connection can be cut and whose lists can lie.
type store struct {
	*memory.Store
	mu    sync.Mutex
	up    context.Context
	cut   context.CancelFunc
	down  bool
	lie   func(datastore.List) datastore.List
	lists map[datastore.Kind]int
}

func newStore(t *testing.T, history int) *store {
	s := &store{Store: memory.New(memory.Config{History: history}), lists: map[datastore.Kind]int{}}
	s.up, s.cut = context.WithCancel(context.Background())
	t.Cleanup(func() {
		s.cut()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *store) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if down {
		s.cut()
	} else {
		s.up, s.cut = context.WithCancel(context.Background())
	}
	s.down = down
}

func (s *store) List(ctx context.Context, kind datastore.Kind) (datastore.List, error) {
	s.mu.Lock()
	s.lists[kind]++
	down, lie := s.down, s.lie
	s.mu.Unlock()
	if down {
		return datastore.List{}, apierrors.NewServiceUnavailable("away")
	}
	l, err := s.Store.List(ctx, kind)
	if err == nil && lie != nil {
		l = lie(l)
	}
	return l, err
}

type watcher struct {
	datastore.Watcher
	up context.Context
}

func (w watcher) Err() error {
	if w.up.Err() != nil {
		return apierrors.NewServiceUnavailable("the connection was cut")
	}
	return w.Watcher.Err()
}

func (s *store) Watch(ctx context.Context, kind datastore.Kind, rv string) (datastore.Watcher, error) {
	s.mu.Lock()
	up, down := s.up, s.down
	s.mu.Unlock()
	if down {
		return nil, apierrors.NewServiceUnavailable("away")
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(up, cancel)
	w, err := s.Store.Watch(ctx, kind, rv)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	return watcher{w, up}, nil
}

func (s *store) listsOf(kind datastore.Kind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists[kind]
}

func node(name, ip string) *corev1.Node {
	n := &corev1.Node{}
	n.Name = name
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: name}}
	return n
}

func create(t *testing.T, s datastore.Store, o datastore.Object) datastore.Object {
	t.Helper()
	out, err := s.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// nodes puts n Nodes into the datastore.
func nodes(t *testing.T, s datastore.Store, n int) {
	t.Helper()
	for i := range n {
		create(t, s, node(fmt.Sprintf("n%02d", i), "192.0.2.1"))
	}
}

func start(t *testing.T, s datastore.Store, w *world.Store, kinds ...world.Kind) *feed.Feed {
	t.Helper()
	f, err := feed.New(feed.Config{Store: s, World: w, Kinds: kinds, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return f
}

func current(w *world.Store) *world.Snapshot {
	synctest.Wait()
	s, _ := w.Snapshot()
	return s
}

func TestListThenWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newStore(t, 0), world.NewStore(nil)
		nodes(t, s, 2)
		f := start(t, s, w)
		snap := current(w)
		if !snap.AllSynced() || snap.Nodes.Len() != 2 {
			t.Fatalf("synced %v with %d nodes", snap.Synced, snap.Nodes.Len())
		}
		created := create(t, s, node("n99", "192.0.2.99"))
		snap = current(w)
		got, _ := snap.Nodes.Get(world.Key{Name: "n99"})
		if got == nil || got.UID != string(created.GetUID()) || snap.Position[world.KindNode] != created.GetResourceVersion() {
			t.Errorf("got %+v at %v", got, snap.Position)
		}
		if err := s.Delete(t.Context(), datastore.KindNode, datastore.KeyOf(created), datastore.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		if n := current(w).Nodes.Len(); n != 2 {
			t.Errorf("%d nodes after a delete, want 2", n)
		}
		status, _ := f.Status()
		for _, k := range status {
			if k.Phase != feed.Watching || k.Lists != 1 {
				t.Errorf("status %+v", k)
			}
		}
	})
}

func TestBookmarksMoveThePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newStore(t, 0), world.NewStore(nil)
		start(t, s, w, world.KindVPC)
		before := current(w)
		nodes(t, s, 3)
		time.Sleep(time.Minute)
		after := current(w)
		if after.Position[world.KindVPC] == before.Position[world.KindVPC] {
			t.Errorf("the position of a quiet kind stays at %s", before.Position[world.KindVPC])
		}
		if after.Revision != before.Revision {
			t.Error("a bookmark made a new revision")
		}
	})
}

func TestResumeWithoutList(t *testing.T) { // F7
	synctest.Test(t, func(t *testing.T) {
		s, w := newStore(t, 0), world.NewStore(nil)
		nodes(t, s, 4)
		f := start(t, s, w, world.KindNode)
		s.set(true)
		time.Sleep(10 * time.Minute)
		if n := current(w).Nodes.Len(); n != 4 {
			t.Errorf("%d nodes while the datastore is away, want 4", n)
		}
		status, _ := f.Status()
		if status[0].Phase != feed.Disconnected || status[0].LastError == "" || time.Since(status[0].Since) < 9*time.Minute {
			t.Errorf("status %+v", status[0])
		}
		create(t, s, node("late", "192.0.2.7"))
		s.set(false)
		time.Sleep(2 * time.Second)
		if n := current(w).Nodes.Len(); n != 5 {
			t.Errorf("%d nodes 2 s after the return, want 5", n)
		}
		if n := s.listsOf(datastore.KindNode); n != 1 {
			t.Errorf("%d lists, want the first alone", n)
		}
		if status, _ := f.Status(); status[0].Phase != feed.Watching {
			t.Errorf("status %+v", status[0])
		}
	})
}

func TestExpiredListsAgain(t *testing.T) { // F7
	synctest.Test(t, func(t *testing.T) {
		s, w := newStore(t, 3), world.NewStore(nil)
		nodes(t, s, 2)
		start(t, s, w, world.KindNode)
		s.set(true)
		time.Sleep(time.Second)
		for i := range 10 {
			create(t, s, node(fmt.Sprintf("x%d", i), "192.0.2.7"))
		}
		s.set(false)
		time.Sleep(5 * time.Second)
		if n := current(w).Nodes.Len(); n != 12 {
			t.Errorf("%d nodes, want 12", n)
		}
		if n := s.listsOf(datastore.KindNode); n != 2 {
			t.Errorf("%d lists, want 2", n)
		}
	})
}

// known is a world that holds n Nodes of an earlier life.
func known(n int) *world.Store {
	w := world.NewStore(nil)
	for i := range n {
		name := fmt.Sprintf("n%02d", i)
		w.Apply(world.Change{Kind: world.KindNode, Key: world.Key{Name: name}, Object: &world.Node{Name: name}})
	}
	return w
}

func TestSuspiciousList(t *testing.T) { // F10
	for _, tt := range []struct {
		name          string
		known, listed int
		suspicious    bool
	}{
		{"nothing", 10, 0, true},
		{"a fifth", 20, 16, false},
		{"over a fifth", 20, 15, true},
		{"two of two", 2, 0, false},
		{"three of three", 3, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := newStore(t, 0), known(tt.known)
				nodes(t, s, tt.listed)
				f := start(t, s, w, world.KindNode)
				snap := current(w)
				status, _ := f.Status()
				if got := status[0].Suspicious != ""; got != tt.suspicious {
					t.Errorf("suspicious %v, want %v", got, tt.suspicious)
				}
				if tt.suspicious && (snap.Nodes.Len() != tt.known || snap.Synced[world.KindNode]) {
					t.Errorf("after a suspicious list: %d nodes, synced %v", snap.Nodes.Len(), snap.Synced)
				}
				time.Sleep(3 * time.Second)
				snap = current(w)
				status, _ = f.Status()
				if snap.Nodes.Len() != tt.listed || !snap.Synced[world.KindNode] || status[0].Suspicious != "" {
					t.Errorf("after the second list: %d nodes, synced %v, %q", snap.Nodes.Len(), snap.Synced, status[0].Suspicious)
				}
			})
		})
	}
}

func TestSuspiciousListWasWrong(t *testing.T) { // F10
	synctest.Test(t, func(t *testing.T) {
		s, w := newStore(t, 0), known(10)
		nodes(t, s, 10)
		lies := 0
		s.lie = func(l datastore.List) datastore.List {
			if lies++; lies == 1 {
				l.Items = l.Items[:2]
			}
			return l
		}
		start(t, s, w, world.KindNode)
		removed := false
		for range 30 {
			removed = removed || current(w).Nodes.Len() != 10
			time.Sleep(100 * time.Millisecond)
		}
		if removed || !current(w).Synced[world.KindNode] {
			t.Errorf("removed %v, synced %v", removed, current(w).Synced)
		}
	})
}

func TestSuspiciousListsThatDiffer(t *testing.T) { // Each lacks something else: only what both lack goes.
	synctest.Test(t, func(t *testing.T) {
		s, w := newStore(t, 0), known(12)
		nodes(t, s, 12)
		lies := 0
		s.lie = func(l datastore.List) datastore.List {
			switch lies++; lies {
			case 1:
				l.Items = l.Items[6:]
			case 2:
				l.Items = l.Items[:6]
			}
			return l
		}
		start(t, s, w, world.KindNode)
		time.Sleep(5 * time.Second)
		if n := current(w).Nodes.Len(); n != 12 {
			t.Errorf("%d nodes, want all 12", n)
		}
	})
}

func TestProblemsFollowTheirObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newStore(t, 0), world.NewStore(nil)
		bad := create(t, s, node("bad", ""))
		bad.(*corev1.Node).Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "not an address"}}
		bad, err := s.UpdateStatus(t.Context(), bad)
		if err != nil {
			t.Fatal(err)
		}
		f := start(t, s, w, world.KindNode)
		got := f.Problems()
		if len(got) != 1 || got[0].Field != "status.addresses[0]" || got[0].Key.Name != "bad" {
			t.Errorf("problems %+v", got)
		}
		if err := s.Delete(t.Context(), datastore.KindNode, datastore.KeyOf(bad), datastore.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := f.Problems(); len(got) != 0 {
			t.Errorf("problems of a deleted object: %+v", got)
		}
	})
}
