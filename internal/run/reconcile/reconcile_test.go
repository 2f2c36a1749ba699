package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// plane records what it is asked, takes Cost for each Apply, and fails what it is told to.
type plane struct {
	apply.Plane
	cost time.Duration

	mu      sync.Mutex
	options []apply.Options
	fail    map[intent.Ref]error
	err     error
	again   time.Duration
}

func (p *plane) Apply(ctx context.Context, n intent.Node, o apply.Options) (apply.Report, error) {
	time.Sleep(p.cost)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.options = append(p.options, o)
	r := apply.Report{Again: p.again}
	for ref, err := range p.fail {
		r.Failed = append(r.Failed, apply.ObjectError{Ref: ref, Err: err})
	}
	return r, p.err
}

func (p *plane) calls() int { return len(p.asked()) }

func (p *plane) asked() []apply.Options {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.options)
}

func (p *plane) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// loop starts a loop over an empty world; it ends with the test.
func loop(t *testing.T, p apply.Plane, change func(*Config)) (*Loop, *world.Store) {
	t.Helper()
	w := world.NewStore(nil)
	c := Config{
		World: w, Plane: p, Logger: slog.New(slog.DiscardHandler),
		Compile: func(s *world.Snapshot) (intent.Node, []world.Problem) { return intent.Node{MTU: int(s.Revision)}, nil },
	}
	if change != nil {
		change(&c)
	}
	l := New(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return l, w
}

func setNode(w *world.Store, name string) uint64 {
	return w.Apply(world.Change{Kind: world.KindNode, Key: world.Key{Name: name}, Object: &world.Node{Name: name}}).Revision
}

func TestManyChangesBecomeFewPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{cost: 10 * time.Millisecond}
		l, w := loop(t, p, nil)
		synctest.Wait()
		var last uint64
		for i := range 100 {
			last = setNode(w, string(rune('a'+i)))
		}
		if err := l.Wait(t.Context(), last, intent.Ref{}); err != nil {
			t.Fatal(err)
		}
		if n := p.calls(); n > 3 {
			t.Errorf("100 changes made %d passes, want at most 3", n)
		}
	})
}

// leader is a plane that takes rules ahead.
type leader struct {
	plane
	led      []int // MTUs
	aheadErr error
}

func (p *leader) Ahead(_ context.Context, n intent.Node) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.led = append(p.led, n.MTU)
	return []string{"ahead"}, p.aheadErr
}

// Rules do not wait for a pass that takes long, and what came ahead is not taken for granted.
func TestRulesComeAhead(t *testing.T) {
	exists := func(s *world.Snapshot) (intent.Node, []world.Problem) {
		if _, there := s.Nodes.Get(world.Key{Name: "a"}); there {
			return intent.Node{MTU: 2}, nil
		}
		return intent.Node{MTU: 1}, nil
	}
	for name, c := range map[string]struct {
		cost     time.Duration
		change   func(*Config)
		err      error
		then     func(w *world.Store)
		led      []int
		options  []apply.Options
		intended int
	}{
		"at once": {cost: time.Second, led: []int{2}, options: make([]apply.Options, 2), intended: 2},
		"it goes again": {
			cost: time.Second, then: func(w *world.Store) { w.Apply(world.Change{Kind: world.KindNode, Key: world.Key{Name: "a"}}) },
			led: []int{2, 1}, options: make([]apply.Options, 2), intended: 1,
		},
		"it fails":     {cost: time.Second, err: errors.New("no"), led: []int{2}, options: []apply.Options{{}, {Refresh: true}}, intended: 2},
		"short passes": {cost: aheadAfter - 1, options: make([]apply.Options, 2), intended: 2},
		"not whole": {
			cost: time.Second, change: func(c *Config) { c.Complete = func(s *world.Snapshot) bool { return s.Revision == 0 } },
			options: []apply.Options{{}, {AddOnly: true}}, intended: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &leader{plane: plane{cost: c.cost}, aheadErr: c.err}
				l, w := loop(t, p, func(config *Config) {
					config.Compile = exists
					if c.change != nil {
						c.change(config)
					}
				})
				synctest.Wait() // The first pass is under way.
				revision := setNode(w, "a")
				for range 2 {
					time.Sleep(min(c.cost, aheadAfter))
					synctest.Wait()
					if c.then != nil {
						c.then(w)
					}
				}
				time.Sleep(3 * c.cost)
				synctest.Wait()
				p.mu.Lock()
				defer p.mu.Unlock()
				if !slices.Equal(p.led, c.led) {
					t.Errorf("rules of %v came ahead, want %v", p.led, c.led)
				}
				if !slices.Equal(p.options, c.options) {
					t.Errorf("passes with %v, want %v", p.options, c.options)
				}
				last := l.Last()
				if last.Intent.MTU != c.intended || last.Snapshot.Revision < revision {
					t.Errorf("revision %d with intent %d, want %d with %d", last.Snapshot.Revision, last.Intent.MTU, revision, c.intended)
				}
				if told := slices.Contains(last.Report.Changes, "ahead"); told != (len(c.led) > 0) {
					t.Errorf("told of changes %v", last.Report.Changes)
				}
			})
		})
	}
}

// Who looks at the kernel sees what a pass has left, not what one is doing.
func TestBetweenPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{cost: time.Second}
		l, w := loop(t, p, nil)
		synctest.Wait()
		time.Sleep(2 * time.Second) // the first pass
		revision := setNode(w, "a")
		synctest.Wait()
		if n := p.calls(); n != 1 {
			t.Fatalf("%d passes have ended, want the second one under way", n)
		}
		brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := l.Between(brief, func(Outcome) error { t.Error("called in the midst of a pass"); return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that the time was up", err)
		}
		wrong := errors.New("wrong")
		err := l.Between(t.Context(), func(last Outcome) error {
			if last.Snapshot.Revision != revision || p.calls() != 2 {
				t.Errorf("revision %d after %d passes, want %d after 2", last.Snapshot.Revision, p.calls(), revision)
			}
			setNode(w, "b")
			time.Sleep(5 * time.Second)
			if n := p.calls(); n != 2 {
				t.Errorf("%d passes, want none meanwhile", n)
			}
			return wrong
		})
		if !errors.Is(err, wrong) {
			t.Errorf("error %v, want f's", err)
		}
		time.Sleep(2 * time.Second)
		if n := p.calls(); n != 3 {
			t.Errorf("%d passes, want the third one afterwards", n)
		}
	})
}

func TestIdleLoopAppliesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		l, w := loop(t, p, nil)
		time.Sleep(time.Second)
		start := time.Now()
		if err := l.Wait(t.Context(), setNode(w, "a"), intent.Ref{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("an idle loop took %v to apply a change, want no delay", took)
		}
	})
}

func TestPassesKeepTheirDistance(t *testing.T) {
	const distance = 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		l, w := loop(t, p, func(c *Config) { c.MinInterval = distance })
		synctest.Wait() // the first pass
		start := time.Now()
		setNode(w, "a")
		synctest.Wait()
		if n := p.calls(); n != 1 {
			t.Errorf("%d passes at once after the first one, want them %v apart", n, distance)
		}
		// What comes meanwhile is applied with it.
		if err := l.Wait(t.Context(), setNode(w, "b"), intent.Ref{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != distance || p.calls() != 2 {
			t.Errorf("%d passes after %v, want the second one after %v", p.calls(), took, distance)
		}
	})
}

func TestPlaneIsNotAskedForTheSameIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		l, w := loop(t, p, func(c *Config) {
			c.RetryMin, c.RetryMax = time.Hour, time.Hour
			c.Compile = func(*world.Snapshot) (intent.Node, []world.Problem) { return intent.Node{MTU: 1450}, nil }
		})
		seen := func(name string, want int) {
			t.Helper()
			if err := l.Wait(t.Context(), setNode(w, name), intent.Ref{}); err != nil {
				t.Error(err)
			}
			if got := p.calls(); got != want {
				t.Errorf("after %s the plane was asked %d times, want %d", name, got, want)
			}
		}
		synctest.Wait()
		seen("a", 1)
		seen("b", 1)
		if !l.Last().Unchanged {
			t.Error("the outcome does not say that nothing changed")
		}
		l.Poke()
		synctest.Wait()
		time.Sleep(time.Second)
		seen("c, which follows a poke", 2)
		p.set(func() { p.fail = map[intent.Ref]error{{Kind: "Route", Name: "r"}: errors.New("no")} })
		l.Poke()
		time.Sleep(time.Second)
		seen("d, which follows a failure", 4)
		p.set(func() { p.fail = nil })
		seen("e, which follows a failure", 5)
		seen("f", 5)
	})
}

func attachment(w *world.Store, id string, present bool) uint64 {
	c := world.Change{Kind: world.KindAttachment, Key: world.Key{Name: id}}
	if present {
		c.Object = &world.Attachment{ID: id}
	}
	return w.Apply(c).Revision
}

// ports compiles every attachment whose ID is not "refused".
func ports(s *world.Snapshot) (intent.Node, []world.Problem) {
	var n intent.Node
	var problems []world.Problem
	for k, a := range s.Attachments.All() {
		if a.ID == "refused" {
			problems = append(problems, world.Problem{Kind: world.KindAttachment, Key: k, Reason: "NoSubnet", Message: "gone"})
			continue
		}
		n.Ports = append(n.Ports, intent.Port{ID: a.ID})
	}
	return n, problems
}

func TestWaitTellsTheObjectsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no such namespace")
		p := &plane{fail: map[intent.Ref]error{intent.PortRef("a"): broken}}
		l, w := loop(t, p, func(c *Config) { c.Compile = ports })
		attachment(w, "a", true)
		attachment(w, "refused", true)
		rev := attachment(w, "b", true)
		if err := l.Wait(t.Context(), rev, intent.PortRef("a")); !errors.Is(err, broken) {
			t.Errorf("the failed port: got %v, want %v", err, broken)
		}
		if err := l.Wait(t.Context(), rev, intent.PortRef("b")); err != nil {
			t.Errorf("another port: got %v, want no error", err)
		}
		if err := l.Wait(t.Context(), rev, intent.PortRef("refused")); err == nil || err.Error() != "NoSubnet: gone" {
			t.Errorf("a port that decide refused: got %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Wait(ctx, rev+1, intent.PortRef("b")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a revision that never comes: got %v", err)
		}
	})
}

func TestWaitForRemovalNeedsACompleteWorld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, w := loop(t, &plane{}, func(c *Config) { c.Complete, c.Compile = (*world.Snapshot).AllSynced, ports })
		attachment(w, "a", true)
		rev := attachment(w, "a", false)
		for _, ref := range []intent.Ref{intent.PortRef("a"), {}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := l.Wait(ctx, rev, ref); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%q counts as removed by a pass that removes nothing: %v", ref, err)
			}
			cancel()
		}
		for _, k := range world.DatastoreKinds() {
			w.Apply(world.Change{Kind: k, Synced: true})
		}
		for _, ref := range []intent.Ref{intent.PortRef("a"), {}} {
			if err := l.Wait(t.Context(), rev, ref); err != nil {
				t.Errorf("%q: %v", ref, err)
			}
		}
	})
}

func TestRetryBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{fail: map[intent.Ref]error{intent.PortRef("a"): errors.New("broken")}}
		loop(t, p, nil)
		time.Sleep(10 * time.Minute)
		n := p.calls()
		// 0.1 s doubled to 30 s: 9 tries in the first half minute, then two a minute.
		if n < 20 || n > 32 {
			t.Errorf("%d tries in ten minutes, want about 28", n)
		}
		p.set(func() { p.fail = nil })
		time.Sleep(time.Minute)
		n = p.calls()
		time.Sleep(time.Hour)
		if got := p.calls(); got != n {
			t.Errorf("%d passes after all was well, want none", got-n)
		}
	})
}

// A plane that has something for a time only is asked when the time is over, and no more.
func TestPlaneIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{again: 30 * time.Second}
		_, w := loop(t, p, func(c *Config) {
			c.Compile = func(*world.Snapshot) (intent.Node, []world.Problem) { return intent.Node{MTU: 1450}, nil }
		})
		asked := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := p.calls(); got != want {
				t.Errorf("the plane was asked %d times, want %d", got, want)
			}
		}
		asked(20*time.Second, 1)
		setNode(w, "a") // of no concern to the plane
		asked(9*time.Second, 1)
		p.set(func() { p.again = 0 })
		asked(2*time.Second, 2)
		asked(time.Hour, 2)
	})
}

func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		l, _ := loop(t, p, func(c *Config) { c.Resync = time.Minute })
		time.Sleep(time.Second)
		l.Refresh()
		time.Sleep(time.Second)
		if got := p.asked(); len(got) != 2 || !got[1].Refresh || got[0].Refresh {
			t.Errorf("passes after one foreign change: %+v, want the second with Refresh", got)
		}
		time.Sleep(5 * time.Minute)
		if n := p.calls(); n != 7 {
			t.Errorf("%d passes after five more minutes with a resync each minute, want 7", n)
		}
		// A plane that failed as a whole is read back.
		p.set(func() { p.err = errors.New("gone"); p.options = nil })
		l.Poke()
		time.Sleep(150 * time.Millisecond)
		if got := p.asked(); len(got) < 2 || !got[1].Refresh {
			t.Errorf("passes after a failure: %+v, want a retry with Refresh", got)
		}
	})
}

func TestAddOnlyUntilComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		l, w := loop(t, p, func(c *Config) { c.Complete, c.Compile = (*world.Snapshot).AllSynced, ports })
		rev := attachment(w, "a", true)
		if err := l.Wait(t.Context(), rev, intent.PortRef("a")); err != nil {
			t.Fatal(err)
		}
		for _, k := range world.DatastoreKinds() {
			rev = w.Apply(world.Change{Kind: k, Synced: true}).Revision
		}
		if err := l.Wait(t.Context(), rev, intent.Ref{}); err != nil {
			t.Fatal(err)
		}
		if first, last := p.asked()[0], p.asked()[p.calls()-1]; !first.AddOnly || last.AddOnly {
			t.Errorf("add-only before and after the world was complete: %t %t, want true false", first.AddOnly, last.AddOnly)
		}
	})
}
