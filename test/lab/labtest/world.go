package labtest

import (
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// World is what the datastore says at this moment, as an agent would read it.
func (l *Lab) World() *world.Snapshot {
	l.t.Helper()
	var changes []world.Change
	for _, kind := range world.DatastoreKinds() {
		ctx, cancel := l.call()
		list, err := l.Store.List(ctx, datastore.Kind(kind))
		cancel()
		if err != nil {
			l.t.Fatalf("list %s: %v", kind, err)
		}
		for _, o := range list.Items {
			value, _ := feed.Convert(kind, o)
			changes = append(changes, world.Change{Kind: kind, Key: world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}, Object: value})
		}
		changes = append(changes, world.Change{Kind: kind, ResourceVersion: list.ResourceVersion, Synced: true})
	}
	return world.NewStore(nil).Apply(changes...)
}
