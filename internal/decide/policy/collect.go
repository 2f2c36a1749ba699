package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// collectionKey names what a collection collects: the pods of a query, or, with a
// port, where those of them that declare a port of that name do.
type collectionKey struct {
	query string
	port  string
}

// wanted is a collection that some rule needs.
type wanted struct {
	key   collectionKey
	query selector.Query
}

// bucket is a part of a collection. Protocol and port are zero where the collection
// has no port name, and for pods whose ports are not known.
type bucket struct {
	vpc      string
	protocol packet.Protocol
	port     uint16
}

func (b bucket) compare(o bucket) int {
	return cmp.Or(cmp.Compare(b.vpc, o.vpc), cmp.Compare(b.protocol, o.protocol), cmp.Compare(b.port, o.port))
}

// content is what is in a bucket: the addresses of pods that are meant for sure, and
// of pods that may be.
type content struct {
	narrow []netip.Prefix // the first
	unsure []netip.Addr   // the second, sorted
	wide   []netip.Prefix // both
}

// collection is the addresses of the pods of one query. It is immutable.
type collection struct {
	wanted
	buckets map[bucket]content
}

// collections are all that this node's rules need. It is immutable.
type collections struct {
	list    []*collection // sorted by key
	catalog *selector.Catalog
}

func compareKey(a, b collectionKey) int {
	return cmp.Or(cmp.Compare(a.query, b.query), cmp.Compare(a.port, b.port))
}

func (c *collections) get(k collectionKey) *collection {
	if c == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(c.list, k, func(c *collection, k collectionKey) int { return compareKey(c.key, k) })
	if !found {
		return nil
	}
	return c.list[i]
}

// with returns the collections of a list of what is wanted, sorted, without doubles.
// Those that exist are taken over.
func (c *collections) with(list []wanted, index selector.Index[peer]) *collections {
	if c != nil && slices.EqualFunc(c.list, list, func(c *collection, w wanted) bool { return c.key == w.key }) {
		return c
	}
	next := &collections{list: make([]*collection, len(list))}
	k := &collector{index: index}
	queries := make([]selector.Query, len(list))
	for i, w := range list {
		queries[i] = w.query
		if next.list[i] = c.get(w.key); next.list[i] == nil {
			next.list[i] = k.collect(w)
		}
	}
	next.catalog = selector.NewCatalog(queries)
	return next
}

// collector collects one collection after the other, with the same memory.
type collector struct {
	index selector.Index[peer]
	free  []*halves
}

// halves are the addresses of a bucket.
type halves struct{ sure, unsure gathered }

func (k *collector) collect(w wanted) *collection {
	found := map[bucket]*halves{}
	var last bucket // Most pods add to the same.
	var in *halves
	for p, answer := range k.index.Select(w.query) {
		contribute(w.key.port, p, answer, func(b bucket, a netip.Addr, sure bool) {
			if in == nil || b != last {
				if in, last = found[b], b; in == nil {
					in = k.halves()
					found[b] = in
				}
			}
			if sure {
				in.sure.add(a)
			} else {
				in.unsure.add(a)
			}
		})
	}
	c := &collection{wanted: w, buckets: make(map[bucket]content, len(found))}
	for b, in := range found {
		c.buckets[b] = in.content()
		k.free = append(k.free, in)
	}
	return c
}

func (k *collector) halves() *halves {
	if n := len(k.free); n > 0 {
		in := k.free[n-1]
		k.free = k.free[:n-1]
		in.sure.reset()
		in.unsure.reset()
		return in
	}
	return &halves{}
}

func (h *halves) content() content {
	c := content{narrow: h.sure.prefixes(), unsure: h.unsure.addrs()}
	c.wide = Edit(c.narrow, nil, c.unsure)
	return c
}

// after returns the content after addresses went and came.
func (c content) after(gone, come, goneUnsure, comeUnsure []netip.Addr) content {
	c.narrow = Edit(c.narrow, gone, come)
	if len(goneUnsure)+len(comeUnsure) > 0 {
		c.unsure = slices.DeleteFunc(slices.Clone(c.unsure), func(a netip.Addr) bool { return slices.Contains(goneUnsure, a) })
		c.unsure = append(c.unsure, comeUnsure...)
		slices.SortFunc(c.unsure, netip.Addr.Compare)
		c.unsure = slices.Compact(c.unsure)
	}
	c.wide = Edit(c.narrow, nil, c.unsure)
	return c
}

// sameShape reports whether rules that name ports come to the same with another
// version of the collection.
func (c *collection) sameShape(o *collection) bool {
	if c == o || c == nil || o == nil {
		return c == o
	}
	if len(c.buckets) != len(o.buckets) {
		return false
	}
	for b, in := range c.buckets {
		other, has := o.buckets[b]
		if !has || (len(in.narrow) == 0) != (len(other.narrow) == 0) {
			return false
		}
	}
	return true
}

// order returns the buckets sorted.
func (c *collection) order() []bucket { return slices.SortedFunc(maps.Keys(c.buckets), bucket.compare) }

// contribute yields what a pod adds to a collection.
func contribute(port string, p *pod, answer selector.Answer, yield func(b bucket, a netip.Addr, sure bool)) {
	for i := range p.Value.held {
		h := &p.Value.held[i]
		if port == "" || !p.Known {
			yield(bucket{vpc: h.vpc}, h.addr, answer == selector.Yes && port == "")
			continue
		}
		for _, c := range p.Value.ports {
			if c.Name == port && c.Port != 0 && slices.Contains(transports(), c.Protocol) {
				yield(bucket{vpc: h.vpc, protocol: c.Protocol, port: c.Port}, h.addr, answer == selector.Yes)
			}
		}
	}
}

// contribution is one address that a pod adds to a bucket.
type contribution struct {
	bucket bucket
	addr   netip.Addr
	sure   bool
}

// difference is what changed pods take from a collection, and add to it.
type difference struct{ gone, come map[contribution]bool }

// update returns the collections after changes of pods and namespaces, and how many
// of them differ. Only queries that select a pod before or after are looked at.
func (c *collections) update(was, now selector.Index[peer], changes []podChange) (*collections, int) {
	if c == nil || len(c.list) == 0 {
		return c, 0
	}
	touched := map[int]*difference{}
	of := func(i int) *difference {
		if touched[i] == nil {
			touched[i] = &difference{map[contribution]bool{}, map[contribution]bool{}}
		}
		return touched[i]
	}
	for _, change := range changes {
		c.ask(was, change.Old, func(i int, x contribution) { of(i).gone[x] = true })
		c.ask(now, change.New, func(i int, x contribution) { of(i).come[x] = true })
	}
	for _, d := range touched { // What stays, or goes from one pod to another, is no difference.
		for x := range d.come {
			if d.gone[x] {
				delete(d.gone, x)
				delete(d.come, x)
			}
		}
	}
	maps.DeleteFunc(touched, func(_ int, d *difference) bool { return len(d.gone)+len(d.come) == 0 })
	if len(touched) == 0 {
		return c, 0
	}
	next := &collections{list: slices.Clone(c.list), catalog: c.catalog}
	for i, d := range touched {
		next.list[i] = next.list[i].with(d)
	}
	return next, len(touched)
}

// ask yields what a pod contributes to each collection.
func (c *collections) ask(index selector.Index[peer], p *pod, yield func(int, contribution)) {
	if p == nil {
		return
	}
	for i, answer := range c.catalog.Ask(p.Key.Namespace, index.Namespace(p.Key.Namespace), p.Labels, p.Known) {
		contribute(c.list[i].key.port, p, answer, func(b bucket, a netip.Addr, sure bool) { yield(i, contribution{b, a, sure}) })
	}
}

// with returns a collection after a difference.
func (c *collection) with(d *difference) *collection {
	type edits struct{ gone, come, goneUnsure, comeUnsure []netip.Addr }
	of := map[bucket]*edits{}
	note := func(x contribution, sure, unsure func(*edits) *[]netip.Addr) {
		e := of[x.bucket]
		if e == nil {
			e = &edits{}
			of[x.bucket] = e
		}
		list := unsure(e)
		if x.sure {
			list = sure(e)
		}
		*list = append(*list, x.addr)
	}
	for x := range d.gone {
		note(x, func(e *edits) *[]netip.Addr { return &e.gone }, func(e *edits) *[]netip.Addr { return &e.goneUnsure })
	}
	for x := range d.come {
		note(x, func(e *edits) *[]netip.Addr { return &e.come }, func(e *edits) *[]netip.Addr { return &e.comeUnsure })
	}
	next := &collection{wanted: c.wanted, buckets: maps.Clone(c.buckets)}
	for b, e := range of {
		in := next.buckets[b].after(e.gone, e.come, e.goneUnsure, e.comeUnsure)
		if len(in.wide) == 0 {
			delete(next.buckets, b)
			continue
		}
		next.buckets[b] = in
	}
	return next
}
