package sim

import (
	"bytes"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Ruleset is a table made ready to be walked. It is immutable and safe for
// concurrent use; the table must not be changed any more.
type Ruleset struct {
	table  nftables.Table
	chains map[string]*nftables.Chain
	sets   map[string]*set
	// hooks holds the base chains of each hook by priority, those of type nat apart.
	filter, nat [nftables.HookPostrouting + 1][]*nftables.Chain
}

// New makes a Ruleset of a table. The table need not be valid: what is missing in it
// is an error of the walk that comes there.
func New(t nftables.Table) *Ruleset {
	r := &Ruleset{table: t, chains: make(map[string]*nftables.Chain, len(t.Chains)), sets: make(map[string]*set, len(t.Sets))}
	for i := range t.Sets {
		r.sets[t.Sets[i].Name] = newSet(&t.Sets[i])
	}
	for i := range t.Chains {
		c := &t.Chains[i]
		r.chains[c.Name] = c
		if c.Base == nil || c.Base.Hook > nftables.HookPostrouting {
			continue
		}
		list := &r.filter[c.Base.Hook]
		if c.Base.Type == nftables.TypeNAT {
			list = &r.nat[c.Base.Hook]
		}
		*list = append(*list, c)
	}
	for h := range r.filter {
		for _, list := range [][]*nftables.Chain{r.filter[h], r.nat[h]} {
			slices.SortStableFunc(list, func(a, b *nftables.Chain) int { return int(int64(a.Base.Priority) - int64(b.Base.Priority)) })
		}
	}
	return r
}

// Table is what the Ruleset was made of.
func (r *Ruleset) Table() nftables.Table { return r.table }

// set is a set that finds its elements fast.
type set struct {
	*nftables.Set
	exact map[string]*nftables.Element
	// sorted by key; nil for sets without intervals.
	sorted []nftables.Element
}

func newSet(s *nftables.Set) *set {
	out := &set{Set: s}
	if s.Interval {
		out.sorted = slices.Clone(s.Elements)
		slices.SortStableFunc(out.sorted, func(a, b nftables.Element) int { return nftables.CompareKeys(a.Key, b.Key) })
		return out
	}
	out.exact = make(map[string]*nftables.Element, len(s.Elements))
	for i := range s.Elements {
		var key []byte
		for _, v := range s.Elements[i].Key {
			key = append(key, v.From[:v.Type.Size()]...)
		}
		out.exact[string(key)] = &s.Elements[i]
	}
	return out
}

// find returns the element that holds the key. Elements of a valid set do not
// overlap, so there is at most one.
func (s *set) find(key []nftables.Value) *nftables.Element {
	if s.exact != nil {
		var room [64]byte
		raw := room[:0]
		for _, v := range key {
			raw = append(raw, v.From[:v.Type.Size()]...)
		}
		return s.exact[string(raw)]
	}
	if len(s.Key) == 1 {
		return s.findInterval(key)
	}
	for i := range s.sorted {
		if holds(s.sorted[i].Key, key) {
			return &s.sorted[i]
		}
	}
	return nil
}

// findInterval is find for intervals of one field: only the last one that does not
// begin behind the key can hold it.
func (s *set) findInterval(key []nftables.Value) *nftables.Element {
	i, found := slices.BinarySearchFunc(s.sorted, key, func(e nftables.Element, key []nftables.Value) int {
		if len(e.Key) == 0 {
			return -1
		}
		return bytes.Compare(e.Key[0].From[:], key[0].From[:])
	})
	if !found {
		i--
	}
	if i >= 0 && holds(s.sorted[i].Key, key) {
		return &s.sorted[i]
	}
	return nil
}

func holds(element, key []nftables.Value) bool {
	if len(element) != len(key) {
		return false
	}
	for i := range key {
		if !element[i].Contains(key[i]) {
			return false
		}
	}
	return true
}
