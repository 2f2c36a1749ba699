package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/agent/addresses"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var someFacts = facts{
	underlay: underlay{device: "eth0", addresses: prefixes("172.30.0.11/24", "fd00:30::11/64"), mtu: 1500}, plane: "linux", podMTU: 1450,
	worst: health.State{Component: "plane", Level: health.OK},
}

func TestSpec(t *testing.T) {
	want := v1alpha1.NodeNetworkSpec{
		Addresses: []string{"172.30.0.11/24", "fd00:30::11/64"}, VTEPMAC: packet.VTEPMAC("n1").String(), MTU: 1500, Plane: v1alpha1.PlaneLinux,
	}
	if d := cmp.Diff(want, someFacts.spec("n1")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestStatusConditions(t *testing.T) {
	for _, tt := range []struct {
		name  string
		worst health.State
		want  metav1.Condition
	}{
		{"well", health.State{Component: "a", Level: health.OK}, metav1.Condition{Status: "True", Reason: "Ready", Message: "all components are well"}},
		{"degraded", health.State{Component: "journal", Level: health.Degraded, Message: "disk full"}, metav1.Condition{Status: "True", Reason: "Degraded", Message: "journal: disk full"}},
		{"failed", health.State{Component: "plane", Level: health.Failed, Message: "gone"}, metav1.Condition{Status: "False", Reason: "Failed", Message: "plane: gone"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := someFacts
			f.worst = tt.worst
			got := f.status(v1alpha1.NodeNetworkStatus{}).Conditions
			if len(got) != 1 || got[0].LastTransitionTime.IsZero() {
				t.Fatalf("got %+v", got)
			}
			got[0].LastTransitionTime = metav1.Time{}
			tt.want.Type = v1alpha1.ConditionReady
			if d := cmp.Diff([]metav1.Condition{tt.want}, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A condition keeps the time of its last change, whatever else its message says.
func TestStatusKeepsTransitionTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := someFacts
		first := f.status(v1alpha1.NodeNetworkStatus{})
		time.Sleep(time.Hour)
		f.worst = health.State{Component: "journal", Level: health.Degraded, Message: "disk full"}
		second := f.status(first)
		if !second.Conditions[0].LastTransitionTime.Equal(&first.Conditions[0].LastTransitionTime) || second.Conditions[0].Reason != "Degraded" {
			t.Errorf("True to True: %v, was %v", second.Conditions[0], first.Conditions[0])
		}
		f.worst.Level = health.Failed
		if third := f.status(second); !third.Conditions[0].LastTransitionTime.After(second.Conditions[0].LastTransitionTime.Time) {
			t.Errorf("True to False keeps the time %v", third.Conditions[0].LastTransitionTime)
		}
	})
}

func TestStatusLoansAndProblems(t *testing.T) {
	f := someFacts
	f.loans = addresses.Loans{
		Wanted:   []string{"default"},
		Borrowed: []world.Allocation{{Addr: netip.MustParseAddr("10.0.0.9"), Owner: world.Owner{Namespace: "ns", Name: "p", UID: "u"}}},
	}
	for i := range maxProblems + 7 {
		f.problems = append(f.problems, world.Problem{
			Kind: world.KindPod, Key: world.Key{Namespace: "ns", Name: fmt.Sprint("p", i)}, Field: "spec.x", Reason: "R", Message: "m",
		})
	}
	got := f.status(v1alpha1.NodeNetworkStatus{})
	if got.PodMTU != 1450 || got.ProblemCount != maxProblems+7 || len(got.Problems) != maxProblems {
		t.Errorf("MTU %d, %d problems of which %d are listed", got.PodMTU, got.ProblemCount, len(got.Problems))
	}
	if d := cmp.Diff(v1alpha1.ObjectProblem{Kind: "Pod", Namespace: "ns", Name: "p0", Field: "spec.x", Reason: "R", Message: "m"}, got.Problems[0]); d != "" {
		t.Errorf("problem (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"default"}, got.Wanted); d != "" {
		t.Errorf("wanted (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]v1alpha1.AddressOwner{"10.0.0.9": {Namespace: "ns", Name: "p", UID: "u"}}, got.Borrowed); d != "" {
		t.Errorf("borrowed (-want +got):\n%s", d)
	}
	if !equalStatus(got, f.status(got)) {
		t.Error("the same facts give another status")
	}
}

// counted is a store that counts writes and reads, and fails on demand.
type counted struct {
	datastore.Store
	mu     sync.Mutex
	reads  int
	writes []string
	fail   func(verb string) error
}

func (c *counted) begin(verb string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if verb == "get" {
		c.reads++
	} else {
		c.writes = append(c.writes, verb)
	}
	if c.fail != nil {
		return c.fail(verb)
	}
	return nil
}

func (c *counted) Get(ctx context.Context, kind datastore.Kind, key datastore.Key) (datastore.Object, error) {
	if err := c.begin("get"); err != nil {
		return nil, err
	}
	return c.Store.Get(ctx, kind, key)
}

func (c *counted) Create(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	if err := c.begin("create"); err != nil {
		return nil, err
	}
	return c.Store.Create(ctx, o)
}

func (c *counted) Update(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	if err := c.begin("update"); err != nil {
		return nil, err
	}
	return c.Store.Update(ctx, o)
}

func (c *counted) UpdateStatus(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	if err := c.begin("status"); err != nil {
		return nil, err
	}
	return c.Store.UpdateStatus(ctx, o)
}

func (c *counted) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.writes
	c.writes = nil
	return out
}

func (c *counted) setFail(f func(string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = f
}

// announcing is an announcer that runs, and what it is told. Use it in a bubble.
type announcing struct {
	*announcer
	t     *testing.T
	store *counted

	mu      sync.Mutex
	now     facts
	world   *world.NodeNetwork
	version uint64
	errs    []error
	looks   int
}

func announce(t *testing.T) *announcing {
	store := memory.New(memory.Config{})
	a := &announcing{t: t, store: &counted{Store: store}, now: someFacts}
	a.announcer = &announcer{
		node: "n1", store: a.store, kick: make(chan struct{}, 1), nudge: make(chan struct{}, 1),
		facts:   func() facts { a.mu.Lock(); defer a.mu.Unlock(); return a.now },
		seen:    func() *world.NodeNetwork { a.mu.Lock(); defer a.mu.Unlock(); a.looks++; return a.world },
		written: func(v uint64) { a.mu.Lock(); defer a.mu.Unlock(); a.version = v },
		failed:  func(err error) { a.mu.Lock(); defer a.mu.Unlock(); a.errs = append(a.errs, err) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, store.Close()); err != nil {
			t.Error(err)
		}
	})
	return a
}

// change changes the facts, and returns what was written because of that.
func (a *announcing) change(f func(*facts)) []string {
	a.mu.Lock()
	f(&a.now)
	a.mu.Unlock()
	a.poke()
	time.Sleep(time.Second) // of the bubble's time
	synctest.Wait()
	return a.store.take()
}

func (a *announcing) object() *v1alpha1.NodeNetwork {
	a.t.Helper()
	n, err := asNodeNetwork(a.store.Store.Get(a.t.Context(), kindNodeNetwork, datastore.Key{Name: "n1"}))
	if err != nil {
		a.t.Fatal(err)
	}
	return n
}

func (a *announcing) lastError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.errs) == 0 {
		return errors.New("nothing was reported")
	}
	return a.errs[len(a.errs)-1]
}

func TestAnnounceCreatesThenWritesWhatDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := announce(t)
		synctest.Wait()
		if d := cmp.Diff([]string{"create", "status"}, a.store.take()); d != "" {
			t.Errorf("at first (-want +got):\n%s", d)
		}
		if n := a.object(); n.Spec.MTU != 1500 || n.Status.PodMTU != 1450 {
			t.Errorf("stored: %+v", n)
		}
		for _, tt := range []struct {
			name string
			do   func(*facts)
			want []string
		}{
			{"nothing", func(*facts) {}, nil},
			{"the MTU", func(f *facts) { f.underlay.mtu = 9000 }, []string{"update"}},
			{"an address", func(f *facts) { f.underlay.addresses = prefixes("172.30.0.99/24") }, []string{"update"}},
			{"a loan", func(f *facts) { f.loans = addresses.Loans{Version: 7, Wanted: []string{"default"}} }, []string{"status"}},
			{"a problem", func(f *facts) { f.problems = []world.Problem{{Kind: "Pod", Key: world.Key{Name: "p"}}} }, []string{"status"}},
			{"health", func(f *facts) { f.worst.Level = health.Failed }, []string{"status"}},
			{"both", func(f *facts) { f.podMTU, f.underlay.mtu = 8950, 9001 }, []string{"update", "status"}},
			{"nothing any more", func(*facts) {}, nil},
		} {
			if d := cmp.Diff(tt.want, a.change(tt.do)); d != "" {
				t.Errorf("%s changes (-want +got):\n%s", tt.name, d)
			}
			if err := a.lastError(); err != nil {
				t.Errorf("%s changes: %v", tt.name, err)
			}
		}
		if n := a.object(); n.Spec.MTU != 9001 || n.Status.PodMTU != 8950 || n.Spec.Addresses[0] != "172.30.0.99/24" || n.Status.Wanted[0] != "default" {
			t.Errorf("stored: %+v", n)
		}
		if a.version != 7 {
			t.Errorf("the loans of version %d are known to be written, want 7", a.version)
		}
	})
}

// A node at rest writes nothing, however often somebody asks.
func TestNoHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := announce(t)
		synctest.Wait()
		a.store.take()
		for range 60 {
			if got := a.change(func(*facts) {}); got != nil {
				t.Fatalf("a quiet node writes %q", got)
			}
			time.Sleep(time.Minute)
		}
	})
}

// Passes that changed nothing of the node's own are looked at together, and do not keep
// what is known to have changed waiting.
func TestPassesAreAnnouncedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := announce(t)
		looks := func() int {
			synctest.Wait()
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.looks
		}
		before := looks()
		for range 9 {
			a.pokeLater()
			time.Sleep(announcePatience / 10)
		}
		if n := looks() - before; n != 0 {
			t.Errorf("looked %d times within the patience, want none", n)
		}
		time.Sleep(announcePatience / 5)
		if n := looks() - before; n != 1 {
			t.Errorf("looked %d times after it, want once", n)
		}
		time.Sleep(2 * announcePatience)
		before = looks()
		a.pokeLater()
		a.poke()
		time.Sleep(announceGather)
		if looks() == before {
			t.Error("a change waited for passes")
		}
	})
}

// While the world has seen what was written, the datastore is not even read.
func TestNoReadsWhileTheWorldAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := announce(t)
		synctest.Wait()
		a.mu.Lock()
		a.world = &world.NodeNetwork{Name: "n1"}
		a.mu.Unlock()
		a.change(func(*facts) {})
		reads := a.store.reads
		for range 30 {
			a.change(func(*facts) {})
		}
		if a.store.reads != reads {
			t.Errorf("%d reads although nothing has changed", a.store.reads-reads)
		}
		// What others write over it is mended: the world tells.
		n := a.object()
		n.Spec.MTU = 1280
		if _, err := a.store.Store.Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		a.mu.Lock()
		a.world = &world.NodeNetwork{Name: "n1", MTU: 1280}
		a.mu.Unlock()
		if d := cmp.Diff([]string{"update"}, a.change(func(*facts) {})); d != "" {
			t.Errorf("after a foreign write (-want +got):\n%s", d)
		}
	})
}

// Whoever deletes the object, or changes it at the same moment, does not win.
func TestAnnounceAfterConflictAndDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := announce(t)
		synctest.Wait()
		a.store.take()
		conflicts := 2
		a.store.setFail(func(verb string) error {
			if verb != "update" || conflicts == 0 {
				return nil
			}
			conflicts--
			return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("nodenetworks").GroupResource(), "n1", errors.New("changed"))
		})
		a.mu.Lock()
		a.now.underlay.mtu = 4000
		a.mu.Unlock()
		a.poke()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if d := cmp.Diff([]string{"update", "update", "update"}, a.store.take()); d != "" {
			t.Errorf("after two conflicts (-want +got):\n%s", d)
		}
		if a.object().Spec.MTU != 4000 || a.lastError() != nil {
			t.Errorf("stored MTU %d, %v", a.object().Spec.MTU, a.lastError())
		}
		if err := a.store.Store.Delete(t.Context(), kindNodeNetwork, datastore.Key{Name: "n1"}, datastore.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"create", "status"}, a.change(func(*facts) {})); d != "" {
			t.Errorf("after a delete (-want +got):\n%s", d)
		}
	})
}

// A datastore that is away is tried again until it is there, and reported meanwhile.
func TestAnnounceWithoutDatastore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := announce(t)
		synctest.Wait()
		a.store.take()
		a.store.setFail(func(string) error { return apierrors.NewServiceUnavailable("away") })
		reads := a.store.reads
		a.change(func(f *facts) { f.loans.Version = 9; f.loans.Wanted = []string{"s"} })
		time.Sleep(time.Minute)
		synctest.Wait()
		if tries := a.store.reads - reads; tries < 25 || tries > 65 {
			t.Errorf("%d attempts in a minute, want one every one or two seconds", tries)
		}
		if err := a.lastError(); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("reported: %v", err)
		}
		if a.version == 9 {
			t.Error("the loans count as written, and were not")
		}
		a.store.setFail(nil)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if d := cmp.Diff([]string{"status"}, a.store.take()); d != "" || a.lastError() != nil || a.version != 9 {
			t.Errorf("when it is back: %v, version %d (-want +got):\n%s", a.lastError(), a.version, d)
		}
	})
}
