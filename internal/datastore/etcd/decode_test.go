package etcd

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// Compaction takes the state before an event away. What a consumer holds must not
// outlive the object all the same.
func TestEventsWithoutTheStateBefore(t *testing.T) {
	r, err := datastore.Lookup(datastore.KindNamespace)
	if err != nil {
		t.Fatal(err)
	}
	s := &Store{config: Config{Prefix: "/fairlead", OnCorrupt: func(string, error) {}}}
	w := &watch{store: s, resource: r}
	kv := func(value string, created int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte("/fairlead/namespaces/web"), Value: []byte(value), CreateRevision: created, ModRevision: 9}
	}
	const good = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"web"}}`
	for _, tc := range []struct {
		name  string
		event *clientv3.Event
		want  datastore.EventType // empty: nothing to tell
	}{
		{"deleted", &clientv3.Event{Type: mvccpb.DELETE, Kv: kv("", 0)}, datastore.Deleted},
		{"overwritten by what cannot be read", &clientv3.Event{Type: mvccpb.PUT, Kv: kv("torn", 4)}, datastore.Deleted},
		{"created as what cannot be read", &clientv3.Event{Type: mvccpb.PUT, Kv: kv("torn", 9)}, ""},
		{"changed", &clientv3.Event{Type: mvccpb.PUT, Kv: kv(good, 4)}, datastore.Added},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := w.decode(tc.event)
			if ok != (tc.want != "") || got.Type != tc.want {
				t.Fatalf("told %t, %q; want %q", ok, got.Type, tc.want)
			}
			if ok && (datastore.KeyOf(got.Object) != (datastore.Key{Name: "web"}) || got.ResourceVersion != "9") {
				t.Errorf("object %s at %s, want web at 9", datastore.KeyOf(got.Object), got.ResourceVersion)
			}
		})
	}
}
