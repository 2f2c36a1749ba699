package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
)

// link is a candidate's connection to the shared store, which can be cut, or left
// hanging until the call's context ends.
type link struct {
	datastore.Store
	cut, hang atomic.Bool
}

func (l *link) down(ctx context.Context) error {
	if l.hang.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if l.cut.Load() {
		return apierrors.NewServiceUnavailable("cut")
	}
	return nil
}

func (l *link) Get(ctx context.Context, k datastore.Kind, key datastore.Key) (datastore.Object, error) {
	if err := l.down(ctx); err != nil {
		return nil, err
	}
	return l.Store.Get(ctx, k, key)
}

func (l *link) Create(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	if err := l.down(ctx); err != nil {
		return nil, err
	}
	return l.Store.Create(ctx, o)
}

func (l *link) Update(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	if err := l.down(ctx); err != nil {
		return nil, err
	}
	return l.Store.Update(ctx, o)
}

// candidate runs an Elector and records when it worked.
type candidate struct {
	link    *link
	elector Elector
	cancel  context.CancelFunc
	done    chan error

	mu      sync.Mutex
	leading bool
	began   time.Time
	ended   time.Time
}

func start(t *testing.T, store datastore.Store, name string) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &candidate{link: &link{Store: store}, cancel: cancel, done: make(chan error, 1)}
	c.elector = Elector{Store: c.link, Name: "controller", Identity: name}
	go func() { c.done <- c.elector.Run(ctx, c.work) }()
	return c
}

func (c *candidate) work(ctx context.Context) error {
	c.set(true)
	<-ctx.Done()
	c.set(false)
	return ctx.Err()
}

func (c *candidate) set(leading bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = leading
	if leading {
		c.began = time.Now()
	} else {
		c.ended = time.Now()
	}
}

func (c *candidate) leads() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leading
}

func leaseOf(t *testing.T, s datastore.Store) *coordinationv1.Lease {
	t.Helper()
	o, err := s.Get(t.Context(), datastore.KindLease, datastore.Key{Namespace: DefaultNamespace, Name: "controller"})
	if err != nil {
		t.Fatal(err)
	}
	return o.(*coordinationv1.Lease)
}

func newStore(t *testing.T) *memory.Store {
	t.Helper()
	s := memory.New(memory.Config{})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestOneLeaderOfThree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		all := []*candidate{start(t, s, "a"), start(t, s, "b"), start(t, s, "c")}
		for range 60 {
			time.Sleep(time.Second)
			n := 0
			for _, c := range all {
				if c.leads() {
					n++
				}
			}
			if n != 1 {
				t.Fatalf("%d leaders, want 1", n)
			}
		}
		for _, c := range all {
			c.cancel()
			if err := <-c.done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v, want context.Canceled", err)
			}
		}
	})
}

func TestSuccessorTakesAtOnceAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		a := start(t, s, "a")
		synctest.Wait()
		b := start(t, s, "b")
		time.Sleep(10 * time.Second)
		if !a.leads() || b.leads() {
			t.Fatalf("a leads %v, b leads %v; want a alone", a.leads(), b.leads())
		}
		a.cancel()
		<-a.done
		if got := ptr.Deref(leaseOf(t, s).Spec.HolderIdentity, "?"); got != "" {
			t.Fatalf("holder %q after release, want none", got)
		}
		time.Sleep(3 * time.Second)
		if !b.leads() {
			t.Fatal("b does not lead 3 s after a gave up")
		}
		if got := ptr.Deref(leaseOf(t, s).Spec.LeaseTransitions, 0); got != 1 {
			t.Errorf("%d transitions, want 1", got)
		}
		b.cancel()
		<-b.done
	})
}

// A leader that is cut off must have stopped before anybody else starts.
func TestCutLeaderStopsBeforeSuccessorStarts(t *testing.T) {
	for _, mode := range []string{"cut", "hang"} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				a := start(t, s, "a")
				synctest.Wait()
				b := start(t, s, "b")
				time.Sleep(5 * time.Second)
				cutAt := time.Now()
				if mode == "cut" {
					a.link.cut.Store(true)
				} else {
					a.link.hang.Store(true)
				}
				if err := <-a.done; !errors.Is(err, ErrLost) {
					t.Fatalf("Run: %v, want ErrLost", err)
				}
				if d := a.ended.Sub(cutAt); d > DefaultRenewDeadline {
					t.Errorf("a worked for %s after the cut, want at most %s", d, DefaultRenewDeadline)
				}
				time.Sleep(DefaultDuration + 3*time.Second)
				if !b.leads() {
					t.Fatal("b does not lead")
				}
				if !b.began.After(a.ended) {
					t.Errorf("b began at %s, a ended at %s", b.began, a.ended)
				}
				b.cancel()
				<-b.done
			})
		})
	}
}

func TestShortOutageKeepsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		a := start(t, s, "a")
		time.Sleep(5 * time.Second)
		a.link.cut.Store(true)
		time.Sleep(6500 * time.Millisecond)
		a.link.cut.Store(false)
		time.Sleep(30 * time.Second)
		if !a.leads() {
			t.Fatal("a lost the Lease over 6.5 s without datastore")
		}
		a.cancel()
		<-a.done
	})
}

func TestForeignChangeAndDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		a := start(t, s, "a")
		time.Sleep(5 * time.Second)
		l := leaseOf(t, s)
		l.Labels = map[string]string{"seen": "yes"}
		if _, err := s.Update(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if !a.leads() {
			t.Fatal("a label on the Lease ended a's leadership")
		}
		if got := leaseOf(t, s).Labels["seen"]; got != "yes" {
			t.Errorf("the renewal dropped the label: %q", got)
		}
		if err := s.Delete(t.Context(), datastore.KindLease, a.electorKey(), datastore.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-a.done; !errors.Is(err, ErrLost) {
			t.Fatalf("Run after the deletion: %v, want ErrLost", err)
		}
	})
}

func (c *candidate) electorKey() datastore.Key {
	return datastore.Key{Namespace: DefaultNamespace, Name: c.elector.Name}
}

func TestWorkEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		want := errors.New("work failed")
		e := Elector{Store: s, Name: "controller", Identity: "a"}
		if err := e.Run(t.Context(), func(context.Context) error { return want }); !errors.Is(err, want) {
			t.Errorf("Run: %v, want %v", err, want)
		}
		if got := ptr.Deref(leaseOf(t, s).Spec.HolderIdentity, "?"); got != "" {
			t.Errorf("holder %q after work ended, want none", got)
		}
	})
}

func TestBadElector(t *testing.T) {
	s := newStore(t)
	for name, e := range map[string]Elector{
		"no identity": {Store: s, Name: "x"},
		"no name":     {Store: s, Identity: "x"},
		"deadline":    {Store: s, Name: "x", Identity: "y", Duration: 5 * time.Second, RenewDeadline: 5 * time.Second},
		"seconds":     {Store: s, Name: "x", Identity: "y", Duration: 15500 * time.Millisecond},
	} {
		if err := e.Run(t.Context(), func(context.Context) error { return nil }); err == nil {
			t.Errorf("%s: Run succeeded, want an error", name)
		}
	}
}
