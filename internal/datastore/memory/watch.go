package memory

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// batch bounds how many events a watcher takes under the store's lock at once.
const batch = 256

// Watch implements datastore.Store.
func (s *Store) Watch(ctx context.Context, kind datastore.Kind, resourceVersion string) (datastore.Watcher, error) {
	if _, err := datastore.Lookup(kind); err != nil {
		return nil, err
	}
	from, err := parse(resourceVersion)
	if err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if err := s.checkHistory(from); err != nil {
		return nil, err
	}
	w := &watch{store: s, kind: kind, position: from, reported: from}
	stream := datastore.NewStream(ctx, s.done, w.run)
	s.wg.Go(func() { <-stream.Done() })
	return stream, nil
}

func (s *Store) checkHistory(from uint64) error {
	switch {
	case from < s.compacted:
		return apierrors.NewResourceExpired(fmt.Sprintf("resourceVersion %d is too old: the history begins at %d", from, s.compacted))
	case from > s.revision:
		return apierrors.NewResourceExpired(fmt.Sprintf("resourceVersion %d is newer than the datastore's %d: it is of another datastore", from, s.revision))
	}
	return nil
}

// watch follows the history of one kind. It holds no events of its own: a slow
// consumer costs nothing, until the history has moved past it.
type watch struct {
	store *Store
	kind  datastore.Kind
	// position is the last revision that was looked at, reported the last one that
	// the consumer was told of.
	position, reported uint64
}

func (w *watch) run(ctx context.Context, send func(datastore.Event) error) error {
	bookmark := time.NewTicker(w.store.config.BookmarkInterval)
	defer bookmark.Stop()
	for {
		changes, changed, err := w.take()
		if err != nil {
			return err
		}
		for _, c := range changes {
			c.event.Object = clone(c.event.Object)
			if err := send(c.event); err != nil {
				return err
			}
			w.reported = c.revision
		}
		if changed == nil {
			continue // there may be more
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.store.done:
			return datastore.ErrClosed()
		case <-changed:
		case <-bookmark.C:
			if w.position == w.reported {
				continue
			}
			if err := send(datastore.Event{Type: datastore.Bookmark, ResourceVersion: format(w.position)}); err != nil {
				return err
			}
			w.reported = w.position
		}
	}
}

// take returns the next events of the kind; changed is nil if there may be more at
// once, else it tells when to look again.
func (w *watch) take() (changes []change, changed <-chan struct{}, err error) {
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkHistory(w.position); err != nil {
		return nil, nil, err
	}
	for _, c := range s.history[w.position-s.compacted:] {
		if len(changes) == batch {
			return changes, nil, nil
		}
		w.position++
		if c.kind == w.kind {
			changes = append(changes, c)
		}
	}
	return changes, s.changed, nil
}
