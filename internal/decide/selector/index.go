package selector

import (
	"iter"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Pod is a pod in an Index, with what the caller keeps about it. It is immutable.
type Pod[V any] struct {
	Key world.Key
	// Known is false for a pod of which nothing but the name is known: then it has
	// no labels. A name may stand for two: one that is known, and an earlier or later
	// one that is not.
	Known  bool
	Labels map[string]string
	Value  V
}

// place orders pods: by key, the known one first.
type place struct {
	key   world.Key
	known bool
}

func (p *Pod[V]) place() place { return place{p.Key, p.Known} }

func (p place) compare(o place) int {
	if c := p.key.Compare(o.key); c != 0 || p.known == o.known {
		return c
	}
	if p.known {
		return -1
	}
	return 1
}

// PodChange replaces a pod by another of the same place; nil is none.
type PodChange[V any] struct{ Old, New *Pod[V] }

func (c PodChange[V]) place() place {
	if c.Old != nil {
		return c.Old.place()
	}
	return c.New.place()
}

// Index holds pods by namespace and by label. It is immutable; the zero Index is
// empty.
type Index[V any] struct {
	namespaces world.Table[*world.Namespace]
	spaces     world.Table[*posting[V]] // by namespace
	labels     world.Table[*posting[V]] // by label key (as Namespace) and value
	keys       world.Table[*posting[V]] // by label key
	unknown    *posting[V]
}

// posting lists the pods that have something in common, sorted by place.
type posting[V any] struct{ pods []*Pod[V] }

// With returns the Index with changed pods and the given namespaces.
func (x Index[V]) With(namespaces world.Table[*world.Namespace], changes []PodChange[V]) Index[V] {
	x.namespaces = namespaces
	changes = slices.Clone(changes)
	slices.SortFunc(changes, func(a, b PodChange[V]) int { return a.place().compare(b.place()) })
	spaces, labels, keys := map[world.Key][]PodChange[V]{}, map[world.Key][]PodChange[V]{}, map[world.Key][]PodChange[V]{}
	var unknown []PodChange[V]
	for _, c := range changes {
		space := world.Key{Name: c.place().key.Namespace}
		spaces[space] = append(spaces[space], c)
		if !c.place().known {
			unknown = append(unknown, c)
			continue
		}
		byLabels(c, func(key, value string, part PodChange[V]) {
			label := world.Key{Namespace: key, Name: value}
			labels[label] = append(labels[label], part)
		})
		byKeys(c, func(key string, part PodChange[V]) {
			keys[world.Key{Name: key}] = append(keys[world.Key{Name: key}], part)
		})
	}
	x.spaces = update(x.spaces, spaces)
	x.labels = update(x.labels, labels)
	x.keys = update(x.keys, keys)
	if len(unknown) > 0 {
		x.unknown = x.unknown.with(unknown)
	}
	return x
}

// byLabels yields what of a change concerns each label that the pod had or has.
func byLabels[V any](c PodChange[V], yield func(key, value string, part PodChange[V])) {
	if c.Old != nil {
		for k, v := range c.Old.Labels {
			part := PodChange[V]{Old: c.Old}
			if c.New != nil {
				if now, has := c.New.Labels[k]; has && now == v {
					part.New = c.New
				}
			}
			yield(k, v, part)
		}
	}
	if c.New == nil {
		return
	}
	for k, v := range c.New.Labels {
		if c.Old != nil {
			if before, had := c.Old.Labels[k]; had && before == v {
				continue
			}
		}
		yield(k, v, PodChange[V]{New: c.New})
	}
}

// byKeys is byLabels for the keys alone.
func byKeys[V any](c PodChange[V], yield func(key string, part PodChange[V])) {
	if c.Old != nil {
		for k := range c.Old.Labels {
			part := PodChange[V]{Old: c.Old}
			if c.New != nil {
				if _, has := c.New.Labels[k]; has {
					part.New = c.New
				}
			}
			yield(k, part)
		}
	}
	if c.New == nil {
		return
	}
	for k := range c.New.Labels {
		if c.Old != nil {
			if _, had := c.Old.Labels[k]; had {
				continue
			}
		}
		yield(k, PodChange[V]{New: c.New})
	}
}

func update[V any](t world.Table[*posting[V]], changes map[world.Key][]PodChange[V]) world.Table[*posting[V]] {
	for k, c := range changes {
		old, _ := t.Get(k)
		if p := old.with(c); len(p.pods) > 0 {
			t = t.With(k, p)
		} else {
			t = t.Without(k)
		}
	}
	return t
}

func (p *posting[V]) list() []*Pod[V] {
	if p == nil {
		return nil
	}
	return p.pods
}

// with returns the posting with changes, which are sorted by place. What lies
// between them is copied as it is.
func (p *posting[V]) with(changes []PodChange[V]) *posting[V] {
	rest := p.list()
	pods := make([]*Pod[V], 0, len(rest)+len(changes))
	for _, c := range changes {
		if len(rest) > 0 {
			i, found := find(rest, c.place())
			pods = append(pods, rest[:i]...)
			rest = rest[i:]
			if found {
				rest = rest[1:]
			}
		}
		if c.New != nil {
			pods = append(pods, c.New)
		}
	}
	return &posting[V]{pods: append(pods, rest...)}
}

func find[V any](pods []*Pod[V], at place) (int, bool) {
	return slices.BinarySearchFunc(pods, at, func(p *Pod[V], at place) int { return p.place().compare(at) })
}

// Get returns a pod, or nil.
func (x Index[V]) Get(k world.Key, known bool) *Pod[V] {
	space, _ := x.spaces.Get(world.Key{Name: k.Namespace})
	pods := space.list()
	if i, found := find(pods, place{k, known}); found {
		return pods[i]
	}
	return nil
}

// Namespace returns a namespace, or nil.
func (x Index[V]) Namespace(name string) *world.Namespace {
	ns, _ := x.namespaces.Get(world.Key{Name: name})
	return ns
}

// Of yields the pods of a namespace, in order.
func (x Index[V]) Of(namespace string) []*Pod[V] {
	space, _ := x.spaces.Get(world.Key{Name: namespace})
	return space.list()
}

// Ask asks a query about a pod of the Index.
func (x Index[V]) Ask(q Query, p *Pod[V]) Answer {
	return q.Ask(p.Key.Namespace, x.Namespace(p.Key.Namespace), p.Labels, p.Known)
}

// Select yields the pods for which the answer is not No, in no particular order.
func (x Index[V]) Select(q Query) iter.Seq2[*Pod[V], Answer] {
	return func(yield func(*Pod[V], Answer) bool) {
		spaces, inSpaces := x.inNamespaces(q)
		byLabel, ok := x.byLabel(q)
		if !ok || inSpaces <= count(byLabel) {
			for _, s := range spaces {
				for _, p := range s.pods {
					if a := min(s.answer, q.Pods.Ask(p.Labels, p.Known)); a != No && !yield(p, a) {
						return
					}
				}
			}
			return
		}
		for _, list := range byLabel {
			for _, p := range list {
				if a := x.Ask(q, p); a != No && !yield(p, a) {
					return
				}
			}
		}
	}
}

// space is a namespace that a query chooses, or may choose.
type space[V any] struct {
	answer Answer
	pods   []*Pod[V]
}

// inNamespaces returns the namespaces that a query chooses, and the number of pods
// in them.
func (x Index[V]) inNamespaces(q Query) ([]space[V], int) {
	if q.Namespace != "" {
		pods := x.Of(q.Namespace)
		return []space[V]{{Yes, pods}}, len(pods)
	}
	var spaces []space[V]
	n := 0
	for key, p := range x.spaces.All() {
		if a := q.inNamespace(key.Name, x.Namespace(key.Name)); a != No {
			spaces = append(spaces, space[V]{a, p.pods})
			n += len(p.pods)
		}
	}
	return spaces, n
}

// byLabel returns the shortest lists that hold every pod whose labels may satisfy
// the query, disjoint; false if there is no such list.
func (x Index[V]) byLabel(q Query) ([][]*Pod[V], bool) {
	var best [][]*Pod[V]
	found := false
	for _, r := range q.Pods.requirements {
		var lists [][]*Pod[V]
		switch r.op {
		case in:
			for _, v := range r.values {
				p, _ := x.labels.Get(world.Key{Namespace: r.key, Name: v})
				lists = append(lists, p.list())
			}
		case exists:
			p, _ := x.keys.Get(world.Key{Name: r.key})
			lists = append(lists, p.list())
		default:
			continue
		}
		if !found || count(lists) < count(best) {
			best, found = lists, true
		}
	}
	return append(best, x.unknown.list()), found
}

func count[T any](lists [][]T) int {
	n := 0
	for _, l := range lists {
		n += len(l)
	}
	return n
}

// Catalog holds queries by what their pods must have. It is immutable; nil is empty.
type Catalog struct {
	queries []Query
	byTerm  map[term][]int
	rest    []int // may select any pod
}

// NewCatalog makes the Catalog of a list of queries.
func NewCatalog(queries []Query) *Catalog {
	c := &Catalog{queries: queries, byTerm: make(map[term][]int, len(queries))}
	for i, q := range queries {
		terms := q.terms()
		for _, t := range terms {
			c.byTerm[t] = append(c.byTerm[t], i)
		}
		if terms == nil {
			c.rest = append(c.rest, i)
		}
	}
	return c
}

// Ask yields the queries, by their index in the list, whose answer for a pod is not
// No, each once. ns is nil if the labels of the namespace are not known.
func (c *Catalog) Ask(namespace string, ns *world.Namespace, labels map[string]string, known bool) iter.Seq2[int, Answer] {
	return func(yield func(int, Answer) bool) {
		if c == nil {
			return
		}
		ask := func(list []int) bool {
			for _, i := range list {
				if a := c.queries[i].Ask(namespace, ns, labels, known); a != No && !yield(i, a) {
					return false
				}
			}
			return true
		}
		if ns == nil || !known { // Nobody knows what the pod has.
			for i, q := range c.queries {
				if a := q.Ask(namespace, ns, labels, known); a != No && !yield(i, a) {
					return
				}
			}
			return
		}
		if !ask(c.rest) || !ask(c.byTerm[term{namespaceName, namespace, ""}]) {
			return
		}
		for k, v := range labels {
			if !ask(c.byTerm[term{podLabel, k, v}]) || !ask(c.byTerm[term{podKey, k, ""}]) {
				return
			}
		}
		for k, v := range ns.Labels {
			if !ask(c.byTerm[term{namespaceLabel, k, v}]) || !ask(c.byTerm[term{namespaceKey, k, ""}]) {
				return
			}
		}
	}
}
