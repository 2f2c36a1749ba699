package world

import (
	"cmp"
	"iter"
)

// Key identifies an object inside its table. Namespace is empty for objects
// that have none.
type Key struct {
	Namespace string
	Name      string
}

// String is "namespace/name", or "name".
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Compare orders keys by namespace, then name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// priority is a hash of the key (FNV-1a, 64 bits, mixed), which makes a treap's
// shape a function of its set of keys.
func (k Key) priority() uint64 {
	h := uint64(14695981039346656037)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	add(k.Namespace)
	h = (h ^ '/') * 1099511628211
	add(k.Name)
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}

// Table is an immutable ordered map from Key to V: a treap whose priorities are
// hashes of the keys. With and Without return a new table in O(log n) and share
// the rest. The zero Table is empty. V is usually a pointer to a value that
// nobody changes any more; two values are "the same" if they are ==.
type Table[V comparable] struct {
	root *treapNode[V]
	size int
}

type treapNode[V comparable] struct {
	key         Key
	priority    uint64
	value       V
	left, right *treapNode[V]
}

// before reports whether n is above o in a treap. Equal priorities (a hash
// collision) are ordered by key, so that the shape stays canonical.
func (n *treapNode[V]) before(o *treapNode[V]) bool {
	if n.priority != o.priority {
		return n.priority > o.priority
	}
	return n.key.Compare(o.key) < 0
}

// Len is the number of entries.
func (t Table[V]) Len() int { return t.size }

// Get returns the value of a key.
func (t Table[V]) Get(k Key) (V, bool) {
	for n := t.root; n != nil; {
		switch c := k.Compare(n.key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	var none V
	return none, false
}

// With returns a table in which k has the value v.
func (t Table[V]) With(k Key, v V) Table[V] {
	old, had := t.Get(k)
	if had && old == v {
		return t
	}
	left, right := split(t.root, k)
	t.root = join(join(left, &treapNode[V]{key: k, priority: k.priority(), value: v}), right)
	if !had {
		t.size++
	}
	return t
}

// Without returns a table that lacks k.
func (t Table[V]) Without(k Key) Table[V] {
	if _, had := t.Get(k); !had {
		return t
	}
	left, right := split(t.root, k)
	return Table[V]{root: join(left, right), size: t.size - 1}
}

// split parts a treap into the keys below k and those above; k itself is dropped.
func split[V comparable](n *treapNode[V], k Key) (left, right *treapNode[V]) {
	if n == nil {
		return nil, nil
	}
	switch c := k.Compare(n.key); {
	case c < 0:
		c := *n
		left, c.left = split(n.left, k)
		return left, &c
	case c > 0:
		c := *n
		c.right, right = split(n.right, k)
		return &c, right
	default:
		return n.left, n.right
	}
}

// join merges two treaps; every key of a is below every key of b.
func join[V comparable](a, b *treapNode[V]) *treapNode[V] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.before(b):
		c := *a
		c.right = join(a.right, b)
		return &c
	default:
		c := *b
		c.left = join(a, b.left)
		return &c
	}
}

// builder makes a table of entries whose keys ascend, in linear time. spine is the
// way from the root to the last entry, always to the right.
type builder[V comparable] struct {
	spine []*treapNode[V]
	size  int
}

// add appends an entry and reports whether its key is above the last.
func (b *builder[V]) add(k Key, v V) bool {
	n := &treapNode[V]{key: k, priority: k.priority(), value: v}
	if len(b.spine) > 0 && b.spine[len(b.spine)-1].key.Compare(k) >= 0 {
		return false
	}
	for len(b.spine) > 0 && n.before(b.spine[len(b.spine)-1]) {
		n.left = b.spine[len(b.spine)-1]
		b.spine = b.spine[:len(b.spine)-1]
	}
	if len(b.spine) > 0 {
		b.spine[len(b.spine)-1].right = n
	}
	b.spine = append(b.spine, n)
	b.size++
	return true
}

func (b *builder[V]) table() Table[V] {
	if b.size == 0 {
		return Table[V]{}
	}
	return Table[V]{root: b.spine[0], size: b.size}
}

// All yields the entries in the order of their keys.
func (t Table[V]) All() iter.Seq2[Key, V] {
	return func(yield func(Key, V) bool) { t.root.walk(yield) }
}

// Values yields the values in the order of their keys.
func (t Table[V]) Values() iter.Seq[V] {
	return func(yield func(V) bool) {
		t.root.walk(func(_ Key, v V) bool { return yield(v) })
	}
}

func (n *treapNode[V]) walk(yield func(Key, V) bool) bool {
	return n == nil || n.left.walk(yield) && yield(n.key, n.value) && n.right.walk(yield)
}

// Delta is one difference between two tables. Old or New is the zero value where
// HadOld or HasNew is false.
type Delta[V comparable] struct {
	Key            Key
	Old, New       V
	HadOld, HasNew bool
}

// Diff yields what differs between two tables, in the order of the keys. Shared
// structure is skipped: the cost is O(d log n) for d differences.
func Diff[V comparable](old, new Table[V]) iter.Seq[Delta[V]] {
	return func(yield func(Delta[V]) bool) { diff(old.root, new.root, yield) }
}

func diff[V comparable](a, b *treapNode[V], yield func(Delta[V]) bool) bool {
	switch {
	case a == b:
		return true
	case a == nil:
		return b.walk(func(k Key, v V) bool { return yield(Delta[V]{Key: k, New: v, HasNew: true}) })
	case b == nil:
		return a.walk(func(k Key, v V) bool { return yield(Delta[V]{Key: k, Old: v, HadOld: true}) })
	case a.key == b.key:
		return diff(a.left, b.left, yield) &&
			(a.value == b.value || yield(Delta[V]{Key: a.key, Old: a.value, New: b.value, HadOld: true, HasNew: true})) &&
			diff(a.right, b.right, yield)
	case a.before(b): // The shape is canonical: b cannot hold a's key.
		left, right := split(b, a.key)
		return diff(a.left, left, yield) &&
			yield(Delta[V]{Key: a.key, Old: a.value, HadOld: true}) &&
			diff(a.right, right, yield)
	default:
		left, right := split(a, b.key)
		return diff(left, b.left, yield) &&
			yield(Delta[V]{Key: b.key, New: b.value, HasNew: true}) &&
			diff(right, b.right, yield)
	}
}
