package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Compile turns a snapshot into this node's intent. It is never called twice at once,
// and with snapshots whose revisions never go back.
type Compile func(*world.Snapshot) (intent.Node, []world.Problem)

// Config of a Loop. World, Compile, Plane and Logger are required.
type Config struct {
	World   *world.Store
	Compile Compile
	Plane   apply.Plane
	Logger  *slog.Logger
	// MinInterval between the ends of two passes that follow changes.
	MinInterval time.Duration
	// Resync is how often everything is read back from the kernel; zero is never.
	Resync time.Duration
	// RetryMin and RetryMax bound the delay until failed objects are tried again.
	RetryMin, RetryMax time.Duration
	// Complete says whether a snapshot may remove what it lacks. Nil is always.
	Complete func(*world.Snapshot) bool
	// Observe gets the outcome of every pass, from the loop's goroutine.
	Observe func(Outcome)
}

// Outcome is what one pass did.
type Outcome struct {
	Snapshot *world.Snapshot
	Intent   intent.Node
	Problems []world.Problem
	Report   apply.Report
	// Err is the plane's error that names no object.
	Err error
	// AddOnly says that the pass was not allowed to change or remove anything.
	AddOnly bool
	// Compile is how long the compiler took.
	Compile time.Duration
	// Unchanged says that the intent is that of the pass before, which succeeded, so
	// that the plane was not asked.
	Unchanged bool
}

// Loop is the reconcile loop. Run it once.
type Loop struct {
	config Config
	poke   chan struct{}
	// turn is held by a pass, and by who must not see one under way.
	turn chan struct{}
	// ahead tells whether rules came ahead of the next pass, and led what that changed. Who
	// holds the turn has them.
	ahead bool
	led   []string

	mu      sync.Mutex
	refresh bool
	last    Outcome
	removed uint64        // newest revision of a pass that could remove things
	passed  chan struct{} // closed after every pass
}

// New returns a Loop; defaults fill zero durations.
func New(c Config) *Loop {
	if c.MinInterval == 0 {
		c.MinInterval = time.Millisecond
	}
	if c.RetryMin == 0 {
		c.RetryMin = 100 * time.Millisecond
	}
	if c.RetryMax == 0 {
		c.RetryMax = 30 * time.Second
	}
	if c.Complete == nil {
		c.Complete = func(*world.Snapshot) bool { return true }
	}
	if c.Observe == nil {
		c.Observe = func(Outcome) {}
	}
	return &Loop{config: c, poke: make(chan struct{}, 1), turn: make(chan struct{}, 1), passed: make(chan struct{})}
}

// Refresh asks for a pass that reads the kernel back: somebody changed what is
// ours. It never blocks.
func (l *Loop) Refresh() {
	l.markStale()
	l.Poke()
}

// markStale makes the next pass read the kernel back.
func (l *Loop) markStale() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refresh = true
}

// Poke asks for a pass although the world did not change. It never blocks.
func (l *Loop) Poke() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// Last returns the outcome of the latest pass; its Snapshot is nil before the
// first.
func (l *Loop) Last() Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Between calls f with the outcome of the latest pass while none is under way: what the
// kernel holds then is what that pass left. Passes wait for f. The error is f's, or ctx's
// if it ends while a pass is under way.
func (l *Loop) Between(ctx context.Context, f func(Outcome) error) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()
	return f(l.Last())
}

// Wait returns when a pass has applied a revision of at least the given one. The
// error is that of the object if the plane could not apply it, or why the intent
// lacks a port that the world asks for. A port that the world no longer has, and
// the zero Ref, count as applied only after a pass that was allowed to remove
// things. Wait returns ctx's error when ctx ends first.
func (l *Loop) Wait(ctx context.Context, revision uint64, ref intent.Ref) error {
	for {
		l.mu.Lock()
		last, removed, passed := l.last, l.removed, l.passed
		l.mu.Unlock()
		if last.Snapshot != nil && last.Snapshot.Revision >= revision {
			switch err := last.of(ref); {
			case err != nil:
				return err
			case last.asked(ref) || removed >= revision:
				return nil
			}
		}
		select {
		case <-passed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// of is why the pass did not apply the object.
func (o Outcome) of(ref intent.Ref) error {
	if o.Err != nil {
		return o.Err
	}
	if err := o.Report.Err(ref); err != nil {
		return err
	}
	if !o.asked(ref) || slices.ContainsFunc(o.Intent.Ports, func(p intent.Port) bool { return p.ID == ref.Name }) {
		return nil
	}
	a, _ := o.Snapshot.Attachments.Get(world.Key{Name: ref.Name})
	pod := world.Key{Namespace: a.Pod.Namespace, Name: a.Pod.Name}
	for _, p := range o.Problems {
		if p.Kind == world.KindAttachment && p.Key.Name == ref.Name || p.Kind == world.KindPod && p.Key == pod {
			return fmt.Errorf("%s: %s", p.Reason, p.Message)
		}
	}
	return errors.New("its VPC or Subnet is not in use on this node")
}

// asked reports whether the world of the pass has the attachment.
func (o Outcome) asked(ref intent.Ref) bool {
	_, ok := o.Snapshot.Attachments.Get(world.Key{Name: ref.Name})
	return ok && ref == intent.PortRef(ref.Name)
}

// Ready returns why the plane cannot serve: nothing has been applied yet, or the
// last pass failed as a whole. One failed object is no reason.
func (l *Loop) Ready() error {
	last := l.Last()
	if last.Snapshot == nil {
		return errors.New("the first intent is not applied yet")
	}
	return last.Err
}

// MTU of pods in bytes, as last applied; zero before the first pass.
func (l *Loop) MTU() int { return l.Last().Intent.MTU }

// Run runs the loop until ctx ends. It returns nil then: what is in the kernel
// stays.
func (l *Loop) Run(ctx context.Context) error {
	retry, resync, again := stopped(), stopped(), stopped()
	defer retry.Stop()
	defer resync.Stop()
	defer again.Stop()
	delay := time.Duration(0)
	if l.config.Resync > 0 {
		resync.Reset(l.config.Resync)
	}
	asked := true
	for {
		_, changed := l.config.World.Snapshot()
		ok := l.pass(ctx, asked)
		if ctx.Err() != nil {
			return nil
		}
		if ok {
			delay = 0
			retry.Stop()
		} else {
			delay = min(max(2*delay, l.config.RetryMin), l.config.RetryMax)
			retry.Reset(delay)
		}
		// Unless the plane was not asked, what it says now is what counts.
		if out := l.Last(); out.Report.Again > 0 {
			again.Reset(out.Report.Again)
		} else if !out.Unchanged {
			again.Stop()
		}
		ended := time.Now()
		asked = true
		select {
		case <-changed:
			asked = false
		case <-l.poke:
		case <-retry.C:
		case <-again.C:
		case <-resync.C:
			resync.Reset(l.config.Resync)
			l.markStale()
		case <-ctx.Done():
			return nil
		}
		// What comes in a burst is applied together. Who comes alone wakes nobody in vain.
		if rest := l.config.MinInterval - time.Since(ended); rest > 0 && !sleep(ctx, rest) {
			return nil
		}
	}
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pass runs one pass over the newest snapshot and reports whether all went well. What
// changes in the cluster is mostly of no concern to this node: the plane is asked only
// if the intent differs, or if somebody asked for the pass.
func (l *Loop) pass(ctx context.Context, asked bool) bool {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-l.turn }()
	snap, _ := l.config.World.Snapshot()
	l.mu.Lock()
	options := apply.Options{Refresh: l.refresh, AddOnly: !l.config.Complete(snap)}
	l.refresh = false
	l.mu.Unlock()

	start := time.Now()
	out := Outcome{Snapshot: snap, AddOnly: options.AddOnly}
	out.Intent, out.Problems = l.config.Compile(snap)
	out.Compile = time.Since(start)
	last := l.Last()
	out.Unchanged = !asked && !l.ahead && options == (apply.Options{}) && last.settled() && last.Intent.Equal(out.Intent)
	if !out.Unchanged {
		led := l.led
		l.ahead, l.led = false, nil
		l.apply(ctx, &out, options)
		out.Report.Changes = append(led, out.Report.Changes...)
	}
	l.log(out, last)

	l.mu.Lock()
	if out.Err != nil {
		// What the plane did is not known for certain.
		l.refresh = true
	}
	l.last = out
	if out.Err == nil && !out.AddOnly {
		l.removed = snap.Revision
	}
	close(l.passed)
	l.passed = make(chan struct{})
	l.mu.Unlock()
	l.config.Observe(out)
	return out.Err == nil && len(out.Report.Failed) == 0
}

// aheadAfter is how long a pass takes before it is looked what has come meanwhile, and
// then between two looks.
const aheadAfter = 5 * time.Millisecond

// apply asks the plane. What the rest of the cluster needs of this node are rules, and
// what takes long are links: where the plane can do it, rules of what comes meanwhile come
// ahead.
func (l *Loop) apply(ctx context.Context, out *Outcome, o apply.Options) {
	plane, able := l.config.Plane.(apply.Ahead)
	if !able || o != (apply.Options{}) {
		out.Report, out.Err = l.config.Plane.Apply(ctx, out.Intent, o)
		return
	}
	under, over := context.WithCancel(ctx)
	ended := make(chan struct{})
	revision, was := out.Snapshot.Revision, out.Intent
	timer := time.AfterFunc(aheadAfter, func() {
		defer close(ended)
		l.lookAhead(ctx, under, plane, revision, was)
	})
	out.Report, out.Err = l.config.Plane.Apply(ctx, out.Intent, o)
	over()
	if !timer.Stop() {
		<-ended
	}
}

// lookAhead brings in the rules of snapshots that are newer than the pass that is under way.
// What fails, the next pass does again and tells.
func (l *Loop) lookAhead(ctx, under context.Context, plane apply.Ahead, revision uint64, was intent.Node) {
	for {
		snap, changed := l.config.World.Snapshot()
		if snap.Revision > revision && l.config.Complete(snap) {
			revision = snap.Revision
			if n, _ := l.config.Compile(snap); !n.Equal(was) {
				was, l.ahead = n, true
				changes, err := plane.Ahead(ctx, n)
				l.led = append(l.led, changes...)
				if err != nil {
					l.markStale()
				}
			}
		}
		select {
		case <-changed:
		case <-under.Done():
		}
		if !sleep(under, aheadAfter) {
			return
		}
	}
}

// settled reports whether the pass left nothing to be done.
func (o Outcome) settled() bool {
	return o.Snapshot != nil && o.Err == nil && !o.AddOnly && len(o.Report.Failed) == 0
}

// log tells what is news: a failure that lasts is told once, not with every pass.
func (l *Loop) log(out, before Outcome) {
	if news(out.Err, before.Err) {
		l.config.Logger.Error("apply failed", "revision", out.Snapshot.Revision, "err", out.Err)
	}
	for _, f := range out.Report.Failed {
		if news(f.Err, before.Report.Err(f.Ref)) {
			l.config.Logger.Warn("object not applied", "object", f.Ref.String(), "err", f.Err)
		}
	}
	if n := len(out.Report.Changes); n > 0 {
		l.config.Logger.Debug("applied", "revision", out.Snapshot.Revision, "changes", n, "duration", out.Report.Duration)
	}
}

func news(err, before error) bool {
	return err != nil && (before == nil || before.Error() != err.Error())
}
