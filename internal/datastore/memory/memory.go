package memory

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// The defaults of Config.
const (
	DefaultHistory          = 10_000
	DefaultBookmarkInterval = 5 * time.Second
)

// Config of a Store. The zero value works.
type Config struct {
	// History is the number of events that watches can resume across; 0 means
	// DefaultHistory.
	History int
	// BookmarkInterval is how often a watch with nothing to deliver says how far it
	// is; 0 means DefaultBookmarkInterval.
	BookmarkInterval time.Duration
	// Admission admits what is written.
	Admission datastore.Admission
}

// Store implements datastore.Store. Make it with New.
type Store struct {
	config Config
	done   chan struct{} // closed by Close
	wg     sync.WaitGroup

	mu sync.Mutex
	// revision is the number of the last event; it is never 0, so that no List has
	// a resourceVersion that reads as "unset".
	revision uint64
	// history holds the events compacted+1 … revision.
	history   []change
	compacted uint64
	objects   map[datastore.Kind]map[datastore.Key]datastore.Object
	// changed is closed, and replaced, with every event.
	changed chan struct{}
	closed  bool
}

// change is one event of one kind. Its object is shared and never modified.
type change struct {
	kind     datastore.Kind
	revision uint64
	event    datastore.Event
}

// New makes an empty Store.
func New(c Config) *Store {
	if c.History <= 0 {
		c.History = DefaultHistory
	}
	if c.BookmarkInterval <= 0 {
		c.BookmarkInterval = DefaultBookmarkInterval
	}
	return &Store{
		config: c, done: make(chan struct{}), revision: 1, compacted: 1,
		objects: map[datastore.Kind]map[datastore.Key]datastore.Object{}, changed: make(chan struct{}),
	}
}

// begin locks the store for one call.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return datastore.ErrClosed()
	}
	return nil
}

// Get implements datastore.Store.
func (s *Store) Get(ctx context.Context, kind datastore.Kind, key datastore.Key) (datastore.Object, error) {
	r, err := lookup(kind, key)
	if err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	o, ok := s.objects[kind][key]
	if !ok {
		return nil, apierrors.NewNotFound(r.GroupResource(), key.Name)
	}
	return clone(o), nil
}

// List implements datastore.Store.
func (s *Store) List(ctx context.Context, kind datastore.Kind) (datastore.List, error) {
	if _, err := datastore.Lookup(kind); err != nil {
		return datastore.List{}, err
	}
	if err := s.begin(ctx); err != nil {
		return datastore.List{}, err
	}
	list := datastore.List{ResourceVersion: format(s.revision)}
	for _, o := range s.objects[kind] {
		list.Items = append(list.Items, o)
	}
	s.mu.Unlock()
	// Stored objects never change, so copying and sorting need no lock.
	slices.SortFunc(list.Items, func(a, b datastore.Object) int {
		return datastore.CompareKeys(datastore.KeyOf(a), datastore.KeyOf(b))
	})
	for i, o := range list.Items {
		list.Items[i] = clone(o)
	}
	return list, nil
}

// Create implements datastore.Store.
func (s *Store) Create(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	kind, err := datastore.KindOf(o)
	if err != nil {
		return nil, err
	}
	r, err := datastore.Lookup(kind)
	if err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	admitted, err := s.config.Admission.Create(o, s.lister)
	if err != nil {
		return nil, err
	}
	key := datastore.KeyOf(admitted)
	if _, ok := s.objects[kind][key]; ok {
		return nil, apierrors.NewAlreadyExists(r.GroupResource(), key.Name)
	}
	return s.put(kind, datastore.Added, admitted)
}

// Update implements datastore.Store.
func (s *Store) Update(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	return s.update(ctx, o, func(o, old datastore.Object) (datastore.Object, bool, error) {
		return s.config.Admission.Update(o, old, s.lister)
	})
}

// UpdateStatus implements datastore.Store.
func (s *Store) UpdateStatus(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	return s.update(ctx, o, s.config.Admission.UpdateStatus)
}

func (s *Store) update(ctx context.Context, o datastore.Object, admit func(o, old datastore.Object) (datastore.Object, bool, error)) (datastore.Object, error) {
	kind, err := datastore.KindOf(o)
	if err != nil {
		return nil, err
	}
	key := datastore.KeyOf(o)
	r, err := lookup(kind, key)
	if err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	old, ok := s.objects[kind][key]
	if !ok {
		return nil, apierrors.NewNotFound(r.GroupResource(), key.Name)
	}
	admitted, changed, err := admit(o, old)
	if err != nil {
		return nil, err
	}
	if !changed {
		return clone(old), nil
	}
	return s.put(kind, datastore.Modified, admitted)
}

// Delete implements datastore.Store.
func (s *Store) Delete(ctx context.Context, kind datastore.Kind, key datastore.Key, p datastore.Preconditions) error {
	r, err := lookup(kind, key)
	if err != nil {
		return err
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	o, ok := s.objects[kind][key]
	if !ok {
		return apierrors.NewNotFound(r.GroupResource(), key.Name)
	}
	if err := p.Check(r, o); err != nil {
		return err
	}
	delete(s.objects[kind], key)
	// The last state carries the revision of its end, as an API server's does.
	last := clone(o)
	last.SetResourceVersion(format(s.revision + 1))
	s.publish(kind, datastore.Event{Type: datastore.Deleted, Object: last})
	return nil
}

// Close implements datastore.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// put stores an admitted object the way any other datastore would return it: read
// back from JSON.
func (s *Store) put(kind datastore.Kind, t datastore.EventType, o datastore.Object) (datastore.Object, error) {
	raw, err := datastore.Encode(o)
	if err != nil {
		return nil, err
	}
	key := datastore.KeyOf(o)
	stored, err := datastore.Decode(kind, key, raw, format(s.revision+1))
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if s.objects[kind] == nil {
		s.objects[kind] = map[datastore.Key]datastore.Object{}
	}
	s.objects[kind][key] = stored
	s.publish(kind, datastore.Event{Type: t, Object: stored})
	return clone(stored), nil
}

func (s *Store) publish(kind datastore.Kind, e datastore.Event) {
	s.revision++
	e.ResourceVersion = format(s.revision)
	s.history = append(s.history, change{kind, s.revision, e})
	if n := len(s.history) - s.config.History; n > 0 {
		s.compact(n)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// compact forgets the n oldest events.
func (s *Store) compact(n int) {
	clear(s.history[:n]) // the array may live on for long
	s.history = s.history[n:]
	s.compacted += uint64(n)
}

// lister reads without copying: Admission does not modify what it is given.
func (s *Store) lister(kind datastore.Kind) ([]datastore.Object, error) {
	out := make([]datastore.Object, 0, len(s.objects[kind]))
	for _, o := range s.objects[kind] {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b datastore.Object) int {
		return datastore.CompareKeys(datastore.KeyOf(a), datastore.KeyOf(b))
	})
	return out, nil
}

func lookup(kind datastore.Kind, key datastore.Key) (*datastore.Resource, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return nil, err
	}
	return r, r.CheckKey(key)
}

func clone(o datastore.Object) datastore.Object { return o.DeepCopyObject().(datastore.Object) }

func format(revision uint64) string { return strconv.FormatUint(revision, 10) }

func parse(resourceVersion string) (uint64, error) {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil || n == 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("watch: resourceVersion %q is not one that a List or an event carried", resourceVersion))
	}
	return n, nil
}
