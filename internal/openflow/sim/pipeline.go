package sim

import (
	"cmp"
	"encoding/binary"
	"slices"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// Pipeline is flows and groups, indexed. It is never changed, and may be used by
// several Switches at once.
type Pipeline struct {
	tables [256]*table
	groups map[uint32]of.Group
}

// New indexes flows and groups. Of two flows with the same key the later one counts, as
// for a switch that gets them one after the other. Flows and groups that a switch would
// not take are errors.
func New(flows []of.Flow, groups []of.Group) (*Pipeline, error) {
	p := &Pipeline{groups: make(map[uint32]of.Group, len(groups))}
	for i := range flows {
		f := &flows[i]
		if err := f.Validate(); err != nil {
			return nil, err
		}
		if p.tables[f.Table] == nil {
			p.tables[f.Table] = &table{}
		}
		p.tables[f.Table].add(f)
	}
	for _, t := range p.tables {
		if t != nil {
			t.sort()
		}
	}
	for _, g := range groups {
		if err := g.Validate(); err != nil {
			return nil, err
		}
		p.groups[g.ID] = g
	}
	return p, nil
}

// Lookup finds the flow that a packet meets in a table, false if there is none. Of flows
// of the same priority that match both, which a switch may choose among, it takes always
// the same one.
func (p *Pipeline) Lookup(t uint8, k *Packet) (of.Flow, bool) {
	if f := p.lookup(t, k); f != nil {
		return *f, true
	}
	return of.Flow{}, false
}

func (p *Pipeline) lookup(t uint8, k *Packet) *of.Flow {
	if p.tables[t] == nil {
		return nil
	}
	var buf [keyRoom]byte
	return p.tables[t].lookup(k, true, buf[:0])
}

// keyRoom is enough for the key of most flows.
const keyRoom = 256

// table is a tuple space: a subtable for every set of masks.
type table struct {
	// subtables, those with the highest priorities first.
	subtables []*subtable
	bySign    map[string]*subtable
}

// subtable is the flows that look at the same bits.
type subtable struct {
	sign  string
	terms []of.Term // Only fields and masks.
	max   uint16
	// entries by the bits that they want, from the highest priority.
	entries map[string][]entry
}

// entry is a flow; conjunctions are what it is a choice of.
type entry struct {
	flow         *of.Flow
	conjunctions []of.Conjunction
}

func (t *table) add(f *of.Flow) {
	var sign, key []byte
	for _, term := range f.Match {
		sign = append(sign, byte(term.Field))
		sign = appendValue(sign, term.Mask)
		key = appendBits(key, term.Field, term.Value)
	}
	s := t.bySign[string(sign)]
	if s == nil {
		s = &subtable{sign: string(sign), terms: f.Match, entries: map[string][]entry{}}
		if t.bySign == nil {
			t.bySign = map[string]*subtable{}
		}
		t.bySign[s.sign] = s
		t.subtables = append(t.subtables, s)
	}
	e := entry{flow: f}
	for _, a := range f.Actions {
		if c, ok := a.(of.Conjunction); ok {
			e.conjunctions = append(e.conjunctions, c)
		}
	}
	list := s.entries[string(key)]
	at, taken := slices.BinarySearchFunc(list, f.Priority, func(e entry, priority uint16) int {
		return cmp.Compare(priority, e.flow.Priority)
	})
	if taken {
		list[at] = e
	} else {
		list = slices.Insert(list, at, e)
	}
	s.entries[string(key)] = list
	s.max = max(s.max, f.Priority)
}

func (t *table) sort() {
	slices.SortFunc(t.subtables, func(a, b *subtable) int {
		return cmp.Or(cmp.Compare(b.max, a.max), cmp.Compare(a.sign, b.sign))
	})
}

func appendValue(b []byte, v of.Value) []byte {
	b = binary.BigEndian.AppendUint64(b, v.Hi)
	return binary.BigEndian.AppendUint64(b, v.Lo)
}

func appendBits(b []byte, f of.Field, v of.Value) []byte {
	if f.Bits() > 64 {
		return appendValue(b, v)
	}
	return binary.BigEndian.AppendUint64(b, v.Lo)
}

func (s *subtable) find(k *Packet, buf []byte) []entry {
	for _, term := range s.terms {
		buf = appendBits(buf, term.Field, k.Get(term.Field).And(term.Mask))
	}
	return s.entries[string(buf)]
}

// lookup is classifier_lookup__ of lib/classifier.c: flows that are a choice of a
// conjunction (soft matches) only count where, of the same priority, there is a choice
// for every dimension; then the packet is searched for again with conj_id.
func (t *table) lookup(k *Packet, conjunctions bool, buf []byte) *of.Flow {
	var hard *of.Flow
	var soft [][]entry
	for _, s := range t.subtables {
		if hard != nil && s.max <= hard.Priority {
			break
		}
		found := s.find(k, buf)
		switch {
		case len(found) == 0 || beats(hard, found[0].flow):
		case len(found[0].conjunctions) == 0:
			hard = found[0].flow
		case conjunctions:
			soft = append(soft, found)
		}
	}
	for {
		soft = slices.DeleteFunc(soft, func(list []entry) bool { return len(list) == 0 || beats(hard, list[0].flow) })
		if len(soft) == 0 {
			return hard
		}
		if f := t.conjoined(k, soft, buf); f != nil {
			return f
		}
		hard = dropHighest(soft, hard)
	}
}

// beats reports whether a flow is at least as important as another one.
func beats(f, than *of.Flow) bool { return f != nil && f.Priority >= than.Priority }

func highest(soft [][]entry) uint16 {
	var top uint16
	for _, list := range soft {
		top = max(top, list[0].flow.Priority)
	}
	return top
}

// conjoined finds the flow of a conjunction that is complete among the highest soft
// matches.
func (t *table) conjoined(k *Packet, soft [][]entry, buf []byte) *of.Flow {
	top := highest(soft)
	clauses := map[uint32]uint64{} // Dimensions that have a choice, those that do not exist included.
	for _, list := range soft {
		if list[0].flow.Priority != top {
			continue
		}
		for _, c := range list[0].conjunctions {
			if c.Clause == 0 || c.Clause > c.Clauses || c.Clauses > 64 {
				continue
			}
			if _, ok := clauses[c.ID]; !ok {
				clauses[c.ID] = ^uint64(0) << (c.Clauses & 63)
				if c.Clauses == 64 {
					clauses[c.ID] = 0
				}
			}
			clauses[c.ID] |= 1 << (c.Clause - 1)
			if clauses[c.ID] != ^uint64(0) {
				continue
			}
			was := k.Get(of.ConjID)
			k.set(of.ConjID, uint64(c.ID))
			f := t.lookup(k, false, buf)
			k.Set(of.ConjID, was)
			if f != nil {
				return f
			}
			break // As the switch does: it leaves the other conjunctions of this flow.
		}
	}
	return nil
}

// dropHighest leaves the highest soft matches for what has the same match and a lower
// priority, and returns the best hard match.
func dropHighest(soft [][]entry, hard *of.Flow) *of.Flow {
	top := highest(soft)
	for i, list := range soft {
		if list[0].flow.Priority != top {
			continue
		}
		soft[i] = list[1:]
		if len(soft[i]) > 0 && len(soft[i][0].conjunctions) == 0 {
			if !beats(hard, soft[i][0].flow) {
				hard = soft[i][0].flow
			}
			soft[i] = nil
		}
	}
	return hard
}
