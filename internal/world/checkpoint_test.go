package world_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

var asValues = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.IgnoreUnexported(world.Snapshot{}),
}

// entry is one row of a table, for comparison.
type entry struct {
	Key   world.Key
	Value any
}

func entries[V any](t world.Table[*V]) []entry {
	var list []entry
	for k, v := range t.All() {
		list = append(list, entry{k, v})
	}
	return list
}

// contents is what a checkpoint holds of a snapshot.
func contents(s *world.Snapshot) any {
	return struct {
		Revision uint64
		Position world.Position
		Tables   [][]entry
	}{s.Revision, s.Position, [][]entry{
		entries(s.Nodes), entries(s.Namespaces), entries(s.Pods), entries(s.VPCs),
		entries(s.Subnets), entries(s.Blocks), entries(s.NodeNetworks), entries(s.NetNamespaces),
		entries(s.NetworkPolicies), entries(s.ClusterNetworkPolicies),
	}}
}

func encode(t testing.TB, s *world.Snapshot) []byte {
	t.Helper()
	data, err := world.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCheckpointRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		store := world.NewStore(nil)
		for range rapid.IntRange(0, 30).Draw(rt, "changes") {
			c := worldtest.Wild(rt)
			c.ResourceVersion = rapid.SampledFrom([]string{"", "7", "8"}).Draw(rt, "position")
			c.Synced = rapid.Bool().Draw(rt, "synced")
			store.Apply(c)
		}
		snap, _ := store.Snapshot()
		data := encode(t, snap)
		got, err := world.Decode(data)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(contents(snap), contents(got), asValues); diff != "" {
			rt.Fatalf("the world has changed on its way (-want +got):\n%s", diff)
		}
		if len(got.Synced) != 0 || got.Attachments.Len() != 0 || got.TunnelAddresses.Len() != 0 {
			rt.Fatal("a checkpoint knows what only a living node does")
		}
		if !bytes.Equal(data, encode(t, got)) {
			rt.Fatal("the same world gives other bytes")
		}
	})
}

// TestCheckpointHasEveryField fills every field of every type with something of its
// own, so that a field added to the world cannot be forgotten.
func TestCheckpointHasEveryField(t *testing.T) {
	store := world.NewStore(nil)
	for kind, object := range map[world.Kind]any{
		world.KindNode: &world.Node{}, world.KindNamespace: &world.Namespace{}, world.KindPod: &world.Pod{}, world.KindVPC: &world.VPC{},
		world.KindSubnet: &world.Subnet{}, world.KindBlock: &world.Block{}, world.KindNodeNetwork: &world.NodeNetwork{}, world.KindNetNamespace: &world.NetNamespace{},
		world.KindNetworkPolicy: &world.NetworkPolicy{}, world.KindClusterNetworkPolicy: &world.ClusterNetworkPolicy{},
	} {
		n := 0
		fill(t, reflect.ValueOf(object).Elem(), &n)
		store.Apply(world.Change{Kind: kind, Key: world.Key{Namespace: "ns", Name: "x"}, Object: object, ResourceVersion: "1"})
	}
	snap, _ := store.Snapshot()
	got, err := world.Decode(encode(t, snap))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(contents(snap), contents(got), asValues); diff != "" {
		t.Errorf("fields are missing (-want +got):\n%s", diff)
	}
}

// fill sets a value to something that is not zero and not like the one before.
func fill(t *testing.T, v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(*n)})))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(*n), 0}), 24)))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(int64(*n), int64(*n)).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(string(rune('a' + *n)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32:
		v.SetInt(int64(*n))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		v.SetUint(uint64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), n)
		fill(t, v.Index(1), n)
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), reflect.ValueOf("value"))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	default:
		t.Fatalf("fill cannot fill a %s", v.Type())
	}
}

func TestCheckpointTellsNilFromEmpty(t *testing.T) {
	for _, want := range []*world.VPC{
		{Name: "x"},
		{Name: "x", Namespaces: &world.Selector{}},
		{Name: "x", Namespaces: &world.Selector{MatchLabels: map[string]string{}, MatchExpressions: []world.Requirement{}}},
		{Name: "x", Namespaces: &world.Selector{MatchExpressions: []world.Requirement{{Values: []string{}}}}},
	} {
		got, err := world.Decode(encode(t, world.NewStore(nil).Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: "x"}, Object: want})))
		if err != nil {
			t.Fatal(err)
		}
		v, _ := got.VPCs.Get(world.Key{Name: "x"})
		if diff := cmp.Diff(want, v); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestCheckpointTornOrCorrupt cuts a checkpoint at every byte and turns every bit.
func TestCheckpointTornOrCorrupt(t *testing.T) {
	data := encode(t, worldtest.Large(2, 2))
	for n := range data {
		if _, err := world.Decode(data[:n]); !errors.Is(err, world.ErrCheckpoint) {
			t.Fatalf("torn after %d of %d bytes: %v", n, len(data), err)
		}
	}
	for i := range data {
		for bit := range 8 {
			data[i] ^= 1 << bit
			if _, err := world.Decode(data); !errors.Is(err, world.ErrCheckpoint) {
				t.Fatalf("bit %d of byte %d turned: %v", bit, i, err)
			}
			data[i] ^= 1 << bit
		}
	}
	if _, err := world.Decode(append(data, 0)); !errors.Is(err, world.ErrCheckpoint) {
		t.Error("a byte after the end goes unnoticed")
	}
}

func TestEncodeRefusesNil(t *testing.T) {
	s := &world.Snapshot{}
	s.Pods = s.Pods.With(world.Key{Name: "x"}, nil)
	if _, err := world.Encode(s); err == nil {
		t.Error("a table with a nil pod was encoded")
	}
}

// FuzzDecode gives arbitrary payloads a valid header, so that they get past the
// checksum.
func FuzzDecode(f *testing.F) {
	data := encode(f, worldtest.Large(2, 2))
	const header = 16
	f.Add(data[header:])
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, payload []byte) {
		whole := append(bytes.Clone(data[:header]), payload...)
		binary.BigEndian.PutUint32(whole[12:], crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
		s, err := world.Decode(whole)
		if err != nil {
			if !errors.Is(err, world.ErrCheckpoint) {
				t.Fatalf("the error is not ErrCheckpoint: %v", err)
			}
			return
		}
		again, err := world.Decode(encode(t, s))
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded and decoded: %v", err)
		}
		if diff := cmp.Diff(contents(s), contents(again), asValues); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func BenchmarkEncode50000Pods(b *testing.B) {
	s := worldtest.Large(1000, 50)
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(encode(b, s))))
	}
}

func BenchmarkDecode50000Pods(b *testing.B) {
	data := encode(b, worldtest.Large(1000, 50))
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := world.Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}
