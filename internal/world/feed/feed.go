package feed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Phase says what a kind's goroutine is doing.
type Phase string

// The phases.
const (
	// Syncing: no list has been trusted yet.
	Syncing Phase = "Syncing"
	// Watching: every event arrives.
	Watching Phase = "Watching"
	// Disconnected: the datastore does not answer; the world is as it was.
	Disconnected Phase = "Disconnected"
)

// KindStatus is how one kind is doing.
type KindStatus struct {
	Kind  world.Kind
	Phase Phase
	// Since when the phase lasts.
	Since time.Time
	// Suspicious says why the last list is not trusted; empty if it is.
	Suspicious string
	// LastError is the last failure, at LastErrorTime; it stays after recovery.
	LastError     string
	LastErrorTime time.Time
	// Lists counts full lists, Events changes that the watch delivered.
	Lists, Events uint64
	// ResourceVersion that the world has of this kind.
	ResourceVersion string
}

// Metrics is told what happens. Nil Metrics are allowed.
type Metrics interface {
	Listed(kind world.Kind)
	Received(kind world.Kind, events int)
	Lost(kind world.Kind)
}

// Config of a Feed.
type Config struct {
	Store datastore.Store
	World *world.Store
	// Kinds to follow; nil means all of the datastore's.
	Kinds   []world.Kind
	Logger  *slog.Logger
	Metrics Metrics
	// Seen, if set, is told of every object after the world holds it. It is called
	// from several goroutines, must not block, and must not change the object.
	Seen func(world.Kind, datastore.Object)
}

// Feed follows the datastore. Make it with New.
type Feed struct {
	Config

	mu       sync.Mutex
	status   map[world.Kind]*KindStatus
	problems map[world.Kind]map[world.Key][]world.Problem
	changed  chan struct{}
}

// New checks the configuration.
func New(c Config) (*Feed, error) {
	if c.Store == nil || c.World == nil || c.Logger == nil {
		return nil, errors.New("feed: Store, World and Logger are needed")
	}
	if c.Kinds == nil {
		c.Kinds = world.DatastoreKinds()
	}
	f := &Feed{
		Config: c, status: map[world.Kind]*KindStatus{}, problems: map[world.Kind]map[world.Key][]world.Problem{},
		changed: make(chan struct{}),
	}
	for _, k := range c.Kinds {
		if !slices.Contains(world.DatastoreKinds(), k) {
			return nil, fmt.Errorf("feed: %q is no kind of the datastore", k)
		}
		f.status[k] = &KindStatus{Kind: k, Phase: Syncing, Since: time.Now()}
		f.problems[k] = map[world.Key][]world.Problem{}
	}
	return f, nil
}

// Run follows every kind until ctx ends, and returns nil then.
func (f *Feed) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, k := range f.Kinds {
		g.Go(func() error {
			(&follower{Feed: f, kind: k, log: f.Logger.With("kind", string(k))}).run(ctx)
			return nil
		})
	}
	return g.Wait()
}

// Status of every kind, in the order of Config.Kinds, and a channel that is closed
// when a phase, a suspicion or the problems change.
func (f *Feed) Status() ([]KindStatus, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]KindStatus, 0, len(f.Kinds))
	for _, k := range f.Kinds {
		out = append(out, *f.status[k])
	}
	return out, f.changed
}

// Problems of all objects that could not be read in full, sorted.
func (f *Feed) Problems() []world.Problem {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []world.Problem
	for _, byKey := range f.problems {
		for _, p := range byKey {
			out = append(out, p...)
		}
	}
	slices.SortFunc(out, world.Problem.Compare)
	return out
}

// update changes a kind's status, and wakes who watches it if told so.
func (f *Feed) update(kind world.Kind, wake bool, change func(*KindStatus)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.status[kind])
	if wake {
		f.wake()
	}
}

func (f *Feed) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// seen tells of an object that the world holds.
func (f *Feed) seen(kind world.Kind, o datastore.Object) {
	if f.Seen != nil {
		f.Seen(kind, o)
	}
}

// convert makes a change of an object and keeps its problems.
func (f *Feed) convert(kind world.Kind, o datastore.Object) world.Change {
	value, problems := Convert(kind, o)
	key := keyOf(o)
	f.mu.Lock()
	defer f.mu.Unlock()
	byKey := f.problems[kind]
	if !slices.Equal(byKey[key], problems) {
		if len(problems) == 0 {
			delete(byKey, key)
		} else {
			byKey[key] = problems
		}
		f.wake()
	}
	return world.Change{Kind: kind, Key: key, Object: value}
}

// remove makes the change that removes an object.
func (f *Feed) remove(kind world.Kind, key world.Key) world.Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, had := f.problems[kind][key]; had {
		delete(f.problems[kind], key)
		f.wake()
	}
	return world.Change{Kind: kind, Key: key}
}

// keysOf are the keys of a kind's table.
func keysOf(s *world.Snapshot, kind world.Kind) map[world.Key]bool {
	switch kind {
	case world.KindNode:
		return keys(s.Nodes.All())
	case world.KindNamespace:
		return keys(s.Namespaces.All())
	case world.KindPod:
		return keys(s.Pods.All())
	case world.KindVPC:
		return keys(s.VPCs.All())
	case world.KindSubnet:
		return keys(s.Subnets.All())
	case world.KindBlock:
		return keys(s.Blocks.All())
	case world.KindNodeNetwork:
		return keys(s.NodeNetworks.All())
	case world.KindNetNamespace:
		return keys(s.NetNamespaces.All())
	case world.KindNetworkPolicy:
		return keys(s.NetworkPolicies.All())
	case world.KindClusterNetworkPolicy:
		return keys(s.ClusterNetworkPolicies.All())
	}
	return nil
}

func keys[V any](all iter.Seq2[world.Key, V]) map[world.Key]bool {
	return maps.Collect(func(yield func(world.Key, bool) bool) {
		all(func(k world.Key, _ V) bool { return yield(k, true) })
	})
}
