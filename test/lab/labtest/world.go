package labtest

import (
	"context"
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// World is what the datastore says at this moment, as an agent would read it.
func (l *Lab) World() *world.Snapshot {
	l.t.Helper()
	ctx, cancel := l.call()
	defer cancel()
	snap, err := l.TryWorld(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	return snap
}

// TryWorld is World for other goroutines than the test's.
func (l *Lab) TryWorld(ctx context.Context) (*world.Snapshot, error) {
	var changes []world.Change
	for _, kind := range world.DatastoreKinds() {
		list, err := l.Store.List(ctx, datastore.Kind(kind))
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind, err)
		}
		for _, o := range list.Items {
			value, _ := feed.Convert(kind, o)
			changes = append(changes, world.Change{Kind: kind, Key: world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}, Object: value})
		}
		changes = append(changes, world.Change{Kind: kind, ResourceVersion: list.ResourceVersion, Synced: true})
	}
	return world.NewStore(nil).Apply(changes...), nil
}
