package feed

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
	// secondLook is how long a suspicious list waits for the one that confirms it.
	secondLook = time.Second
	// maxBatch bounds the events that reach the world as one revision.
	maxBatch = 1024
)

// follower is the goroutine of one kind.
type follower struct {
	*Feed
	kind    world.Kind
	log     *slog.Logger
	rv      string // to watch from; empty: list first
	backoff time.Duration
	down    bool // the last attempt failed
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			f.log.Info("the datastore has forgotten our position: listing again", "resourceVersion", f.rv)
			f.rv = ""
		}
		f.failed(err)
		if !f.pause(ctx) {
			return
		}
	}
}

// once lists if that is needed, and watches until the watch ends. It returns why.
func (f *follower) once(ctx context.Context) error {
	if f.rv == "" {
		if err := f.list(ctx); err != nil {
			return fmt.Errorf("list %s: %w", f.kind, err)
		}
	}
	w, err := f.Store.Watch(ctx, datastore.Kind(f.kind), f.rv)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.kind, err)
	}
	defer w.Stop()
	f.watching()
	for e := range w.Events() {
		f.backoff = 0
		f.deliver(append([]datastore.Event{e}, ready(w.Events())...))
	}
	if err := w.Err(); err != nil {
		return fmt.Errorf("watch %s: %w", f.kind, err)
	}
	return nil
}

// ready takes what has arrived already.
func ready(events <-chan datastore.Event) []datastore.Event {
	var out []datastore.Event
	for len(out) < maxBatch {
		select {
		case e, ok := <-events:
			if !ok {
				return out
			}
			out = append(out, e)
		default:
			return out
		}
	}
	return out
}

// deliver applies events to the world as one revision.
func (f *follower) deliver(events []datastore.Event) {
	changes := make([]world.Change, 0, len(events)+1)
	n := 0
	for _, e := range events {
		if e.ResourceVersion != "" {
			f.rv = e.ResourceVersion
		}
		if e.Object == nil {
			continue
		}
		switch e.Type {
		case datastore.Added, datastore.Modified:
			n++
			if c := f.convert(f.kind, e.Object); c.Object != nil {
				changes = append(changes, c)
			}
		case datastore.Deleted:
			n++
			changes = append(changes, f.remove(f.kind, keyOf(e.Object)))
		}
	}
	f.World.Apply(append(changes, world.Change{Kind: f.kind, ResourceVersion: f.rv})...)
	for _, e := range events {
		if e.Object != nil && (e.Type == datastore.Added || e.Type == datastore.Modified) {
			f.seen(f.kind, e.Object)
		}
	}
	f.update(f.kind, false, func(s *KindStatus) {
		s.Events += uint64(n)
		s.ResourceVersion = f.rv
	})
	if f.Metrics != nil && n > 0 {
		f.Metrics.Received(f.kind, n)
	}
}

// list replaces the world's objects of the kind by those of the datastore. What is
// suspiciously missing is removed only when a second list misses it too.
func (f *follower) list(ctx context.Context) error {
	var missedBefore map[world.Key]bool
	for {
		l, err := f.read(ctx)
		if err != nil {
			return err
		}
		f.backoff = 0
		if f.Metrics != nil {
			f.Metrics.Listed(f.kind)
		}
		f.update(f.kind, false, func(s *KindStatus) { s.Lists++ })
		changes := l.changes
		snap, _ := f.World.Snapshot()
		have := keysOf(snap, f.kind)
		remove, missing := judge(have, l.keys, missedBefore)
		for _, k := range remove {
			changes = append(changes, f.remove(f.kind, k))
		}
		if len(missing) == 0 {
			f.World.Apply(append(changes, world.Change{Kind: f.kind, ResourceVersion: l.rv, Synced: true})...)
			f.seenAll(l.objects)
			f.rv = l.rv
			f.trusted()
			return nil
		}
		f.World.Apply(changes...)
		f.seenAll(l.objects)
		f.suspect(len(missing), len(have))
		missedBefore = missing
		if !wait(ctx, secondLook) {
			return ctx.Err()
		}
	}
}

// listing is a list of a kind in the world's words.
type listing struct {
	rv      string
	changes []world.Change
	keys    map[world.Key]bool
	// objects are there only if somebody wants to see them.
	objects []datastore.Object
}

// read lists the kind. Objects are converted as they come, page by page where the
// store has pages, for in the datastore's form they are many times as large.
func (f *follower) read(ctx context.Context) (l listing, err error) {
	take := func(first bool, objects []datastore.Object) {
		if first {
			l = listing{keys: map[world.Key]bool{}}
		}
		for _, o := range objects {
			l.keys[keyOf(o)] = true
			if c := f.convert(f.kind, o); c.Object != nil {
				l.changes = append(l.changes, c)
			}
		}
		if f.Seen != nil {
			l.objects = append(l.objects, objects...)
		}
	}
	if pager, ok := f.Store.(datastore.Pager); ok {
		rv, err := pager.Pages(ctx, datastore.Kind(f.kind), take)
		l.rv = rv
		return l, err
	}
	list, err := f.Store.List(ctx, datastore.Kind(f.kind))
	if err != nil {
		return listing{}, err
	}
	take(true, list.Items)
	l.rv = list.ResourceVersion
	return l, nil
}

func (f *follower) seenAll(objects []datastore.Object) {
	for _, o := range objects {
		f.seen(f.kind, o)
	}
}

// judge says which objects of the world a list removes. missing are those that it
// lacks and that a further list must confirm: over a fifth of what the world has and
// at least three, unless the list before lacked them too.
func judge(have, listed, missedBefore map[world.Key]bool) (remove []world.Key, missing map[world.Key]bool) {
	missing = map[world.Key]bool{}
	for k := range have {
		if !listed[k] {
			missing[k] = true
		}
	}
	for k := range missing {
		if missedBefore[k] {
			remove = append(remove, k)
			delete(missing, k)
		}
	}
	if len(missing) < 3 || len(missing)*5 <= len(have) {
		for k := range missing {
			remove = append(remove, k)
		}
		missing = nil
	}
	slices.SortFunc(remove, world.Key.Compare)
	return remove, missing
}

func (f *follower) suspect(missing, have int) {
	why := fmt.Sprintf("the list lacks %d of %d objects: nothing is removed until a second one confirms it", missing, have)
	f.log.Warn("suspicious list", "missing", missing, "known", have)
	f.update(f.kind, true, func(s *KindStatus) { s.Suspicious = why })
}

func (f *follower) trusted() {
	f.update(f.kind, true, func(s *KindStatus) {
		s.Suspicious = ""
		s.ResourceVersion = f.rv
	})
}

func (f *follower) watching() {
	if f.down {
		f.down = false
		f.log.Info("following the datastore again")
	}
	f.update(f.kind, true, func(s *KindStatus) {
		if s.Phase != Watching {
			s.Phase, s.Since = Watching, time.Now()
		}
	})
}

// failed notes that the connection is lost. A position that was forgotten and a watch
// that the server ended in order are no failures worth a warning.
func (f *follower) failed(err error) {
	if f.Metrics != nil {
		f.Metrics.Lost(f.kind)
	}
	ordinary := err == nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
	if !ordinary && !f.down {
		f.down = true
		f.log.Warn("the datastore does not answer: the world stays as it is", "err", err)
	}
	f.update(f.kind, true, func(s *KindStatus) {
		if err != nil {
			s.LastError, s.LastErrorTime = err.Error(), time.Now()
		}
		if !ordinary && s.Phase == Watching {
			s.Phase, s.Since = Disconnected, time.Now()
		}
	})
}

// pause waits before the next attempt. It reports false if ctx ended.
func (f *follower) pause(ctx context.Context) bool {
	f.backoff = min(cmp.Or(2*f.backoff, minBackoff), maxBackoff)
	return wait(ctx, f.backoff/2+rand.N(f.backoff/2))
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
