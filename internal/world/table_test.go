package world

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// keys draws from a pool so small that keys come again.
func drawKey(t *rapid.T) Key {
	return Key{
		Namespace: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "namespace"),
		Name:      rapid.SampledFrom([]string{"", "a", "b", "c", "d/e", "f", "g", "h"}).Draw(t, "name"),
	}
}

// checkShape checks order, heap and that every path is canonical.
func checkShape(t *rapid.T, n *treapNode[int], low, high *Key) int {
	if n == nil {
		return 0
	}
	if low != nil && low.Compare(n.key) >= 0 || high != nil && high.Compare(n.key) <= 0 {
		t.Fatalf("%s is out of order", n.key)
	}
	for _, child := range []*treapNode[int]{n.left, n.right} {
		if child != nil && !n.before(child) {
			t.Fatalf("%s is above %s", n.key, child.key)
		}
	}
	return 1 + checkShape(t, n.left, low, &n.key) + checkShape(t, n.right, &n.key, high)
}

func sameShape(a, b *treapNode[int]) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.key == b.key && a.value == b.value && sameShape(a.left, b.left) && sameShape(a.right, b.right)
}

// TestTableAgainstMap applies random operations to a Table and to a map.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table Table[int]
		model := map[Key]int{}
		t.Repeat(map[string]func(*rapid.T){
			"with": func(t *rapid.T) {
				k, v := drawKey(t), rapid.IntRange(0, 3).Draw(t, "value")
				before := table
				table = table.With(k, v)
				if old, had := model[k]; had && old == v && table != before {
					t.Fatal("the same value made another table")
				}
				model[k] = v
			},
			"without": func(t *rapid.T) {
				k := drawKey(t)
				before := table
				table = table.Without(k)
				if _, had := model[k]; !had && table != before {
					t.Fatal("removing nothing made another table")
				}
				delete(model, k)
			},
			"": func(t *rapid.T) {
				if table.Len() != len(model) || checkShape(t, table.root, nil, nil) != len(model) {
					t.Fatalf("the table has %d entries, want %d", table.Len(), len(model))
				}
				order := slices.SortedFunc(maps.Keys(model), Key.Compare)
				var built builder[int]
				i := 0
				for k, v := range table.All() {
					if k != order[i] || v != model[k] {
						t.Fatalf("entry %d is %s=%d, want %s=%d", i, k, v, order[i], model[order[i]])
					}
					if got, ok := table.Get(k); !ok || got != v {
						t.Fatalf("Get(%s) = %d, %v", k, got, ok)
					}
					if !built.add(k, v) {
						t.Fatalf("the builder refused %s", k)
					}
					i++
				}
				if !sameShape(table.root, built.table().root) {
					t.Fatal("the shape depends on the way there")
				}
				if _, ok := table.Get(Key{Name: "nobody"}); ok {
					t.Fatal("Get found a key that is not there")
				}
			},
		})
	})
}

func TestBuilderRefusesDisorder(t *testing.T) {
	var b builder[int]
	if !b.add(Key{Name: "b"}, 1) || b.add(Key{Name: "b"}, 1) || b.add(Key{Name: "a"}, 1) || !b.add(Key{Name: "c"}, 1) {
		t.Error("the builder takes keys that do not ascend, or refuses those that do")
	}
}

func naiveDiff(old, new Table[int]) []Delta[int] {
	keys := map[Key]bool{}
	for k := range old.All() {
		keys[k] = true
	}
	for k := range new.All() {
		keys[k] = true
	}
	var deltas []Delta[int]
	for _, k := range slices.SortedFunc(maps.Keys(keys), Key.Compare) {
		d := Delta[int]{Key: k}
		d.Old, d.HadOld = old.Get(k)
		d.New, d.HasNew = new.Get(k)
		if d.HadOld != d.HasNew || d.Old != d.New {
			deltas = append(deltas, d)
		}
	}
	return deltas
}

// TestDiffEqualsNaive walks away from one table by two ways.
func TestDiffEqualsNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		change := func(table Table[int], label string) Table[int] {
			for range rapid.IntRange(0, 12).Draw(t, label) {
				if k := drawKey(t); rapid.Bool().Draw(t, "remove") {
					table = table.Without(k)
				} else {
					table = table.With(k, rapid.IntRange(0, 3).Draw(t, "value"))
				}
			}
			return table
		}
		common := change(Table[int]{}, "common")
		a, b := change(common, "old"), change(common, "new")
		want := naiveDiff(a, b)
		if diff := cmp.Diff(want, slices.Collect(Diff(a, b))); diff != "" {
			t.Fatalf("Diff (-want +got):\n%s", diff)
		}
		if n := rapid.IntRange(0, len(want)).Draw(t, "stop after"); n > 0 {
			if got := slices.Collect(take(Diff(a, b), n)); len(got) != n {
				t.Fatalf("stopped after %d of %d", len(got), n)
			}
		}
	})
}

func take[T any](seq iter.Seq[T], n int) iter.Seq[T] {
	return func(yield func(T) bool) {
		for v := range seq {
			if n--; !yield(v) || n == 0 {
				return
			}
		}
	}
}

// largeTable returns a table of n entries.
func largeTable(n int) Table[int] {
	var t Table[int]
	for i := range n {
		t = t.With(Key{Namespace: fmt.Sprintf("ns%d", i%500), Name: fmt.Sprintf("pod-%d", i)}, i)
	}
	return t
}

// TestSharing counts the nodes that one change copies, and that a Diff visits.
func TestSharing(t *testing.T) {
	old := largeTable(20000)
	shared := map[*treapNode[int]]bool{}
	var walk func(n *treapNode[int], visit func(*treapNode[int]) bool)
	walk = func(n *treapNode[int], visit func(*treapNode[int]) bool) {
		if n != nil && visit(n) {
			walk(n.left, visit)
			walk(n.right, visit)
		}
	}
	walk(old.root, func(n *treapNode[int]) bool { shared[n] = true; return true })
	for i := range 200 {
		fresh := 0
		next := old.With(Key{Namespace: "ns7", Name: fmt.Sprintf("new-%d", i)}, i)
		walk(next.root, func(n *treapNode[int]) bool {
			if !shared[n] {
				fresh++
			}
			return !shared[n]
		})
		if fresh > 80 {
			t.Fatalf("one change copied %d of 20000 nodes", fresh)
		}
	}
}

func BenchmarkTableWith(b *testing.B) {
	t := largeTable(50000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t = t.With(Key{Namespace: "ns7", Name: "pod-7"}, i)
	}
}

func BenchmarkTableDiffOne(b *testing.B) {
	t := largeTable(50000)
	u := t.With(Key{Namespace: "ns7", Name: "pod-7"}, -1)
	b.ReportAllocs()
	for b.Loop() {
		for range Diff(t, u) {
		}
	}
}

func BenchmarkTableGet(b *testing.B) {
	t := largeTable(50000)
	for b.Loop() {
		t.Get(Key{Namespace: "ns7", Name: "pod-7"})
	}
}
