package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// state is the content of our table in the terms in which desired and actual are
// compared: as read from the kernel, or as encoded from the desired values.
type state struct {
	// exists, flags and owner (a netlink port) are the table's.
	exists bool
	flags  uint32
	owner  uint32
	chains map[string]*chainState
	sets   map[string]*setState
}

func newState() *state {
	return &state{chains: map[string]*chainState{}, sets: map[string]*setState{}}
}

// keep makes s hold all that have holds, as it is there, and what s adds to it: new
// chains and sets, elements, and rules between or behind those of a chain. Chains and
// sets of have are shared, never changed.
func (s *state) keep(have *state) {
	for name, c := range have.chains {
		if w := s.chains[name]; w == nil || w.whole || !sameBase(w.base, c.base) || !within(c.rules, w.rules) {
			s.chains[name] = c
		}
	}
	for name, h := range have.sets {
		w := s.sets[name]
		if w == nil || w.whole || w.def != h.def || h.broken {
			s.sets[name] = h
			continue
		}
		merged := *w
		merged.elements = maps.Clone(w.elements)
		maps.Copy(merged.elements, h.elements)
		s.sets[name] = &merged
	}
}

// within reports whether all the rules are among others, in their order.
func within(rules, others []ruleState) bool {
	for _, o := range others {
		if len(rules) > 0 && rules[0].digest == o.digest {
			rules = rules[1:]
		}
	}
	return len(rules) == 0
}

type chainState struct {
	name  string
	base  *nftables.Base
	rules []ruleState
	// whole is the desired chain's.
	whole bool
}

// digest identifies the content of a rule: its expressions, its comment and the
// definitions of the sets that it looks into.
type digest [16]byte

type ruleState struct {
	// handle is zero for a rule that the kernel does not have yet.
	handle  uint64
	digest  digest
	comment string
	// exprs is the encoded content; nil for rules read from the kernel.
	exprs []byte
	// looks is the sets that the rule looks into.
	looks []string
	// packets and bytes are the rule's counter, if counted.
	counted        bool
	packets, bytes uint64
}

// setDef is what cannot be changed in a set.
type setDef struct {
	flags             uint32
	keyType, keyLen   uint32
	dataType, dataLen uint32
	counter           bool
}

type setState struct {
	name string
	def  setDef
	// elements maps the wire form of a key (for interval sets: both bounds) to the
	// wire form of its data.
	elements map[string]string
	// broken says that the kernel's elements make no sense to us; the set is built
	// anew.
	broken bool
	// order is the keys in the order in which new ones are added, id is name and
	// definition in one; desired only.
	order []string
	id    string
	// whole is the desired set's.
	whole bool
}

// encoded is a table with its encoding.
type encoded struct {
	table nftables.Table
	state *state
}

// remember keeps a table and its encoding for the next call of encode.
func remember(t nftables.Table, s *state) encoded {
	return encoded{nftables.Table{Name: t.Name, Sets: slices.Clone(t.Sets), Chains: slices.Clone(t.Chains)}, s}
}

// encode brings a valid table into the form of the kernel. Sets and chains that are
// the same as in an earlier encoding share its memory.
func encode(t nftables.Table, prev encoded) (*state, error) {
	s := newState()
	s.exists = true
	sets := make(map[string]nftables.Set, len(t.Sets))
	old := make(map[string]nftables.Set, len(prev.table.Sets))
	for _, set := range prev.table.Sets {
		old[set.Name] = set
	}
	for _, set := range t.Sets {
		sets[set.Name] = set
		if o, ok := old[set.Name]; ok && set.Equal(o) {
			s.sets[set.Name] = prev.state.sets[set.Name]
		} else {
			s.sets[set.Name] = encodeSet(set)
		}
	}
	oldChains := make(map[string]nftables.Chain, len(prev.table.Chains))
	for _, c := range prev.table.Chains {
		oldChains[c.Name] = c
	}
	for _, c := range t.Chains {
		if o, ok := oldChains[c.Name]; ok && c.Equal(o) {
			if same := prev.state.chains[c.Name]; same != nil && s.looksAlike(prev.state, same) {
				s.chains[c.Name] = same
				continue
			}
		}
		chain := &chainState{name: c.Name, base: c.Base, rules: make([]ruleState, len(c.Rules)), whole: c.Whole}
		s.chains[c.Name] = chain
		for i, r := range c.Rules {
			exprs, err := encodeRule(r, sets)
			if err != nil {
				return nil, fmt.Errorf("rule %d of chain %s: %w", i+1, c.Name, err)
			}
			looks := r.Sets()
			chain.rules[i] = ruleState{digest: s.digestOf(exprs, r.Comment, looks), comment: r.Comment, exprs: exprs, looks: looks}
		}
	}
	return s, nil
}

// looksAlike reports whether the sets that a chain of an earlier state looks into are
// still of the same definition.
func (s *state) looksAlike(prev *state, c *chainState) bool {
	for _, r := range c.rules {
		for _, name := range r.looks {
			if s.sets[name] == nil || prev.sets[name] == nil || s.sets[name].id != prev.sets[name].id {
				return false
			}
		}
	}
	return true
}

// digestVersion changes when the same values are encoded otherwise than before,
// so that a new version of the program rewrites its rules.
const digestVersion = 1

func (s *state) digestOf(exprs []byte, comment string, looks []string) digest {
	b := make([]byte, 0, len(exprs)+len(comment)+64)
	b = append(b, digestVersion)
	b = append(append(b, exprs...), comment...)
	for _, name := range looks {
		b = append(append(b, 0), s.sets[name].id...)
	}
	sum := sha256.Sum256(b)
	return digest(sum[:16])
}

// typeID is nft's number of a type (its datatype.h), which it needs to print.
func typeID(t nftables.Type) uint32 {
	switch t {
	case nftables.TypeIPv4Addr:
		return 7
	case nftables.TypeIPv6Addr:
		return 8
	case nftables.TypeEtherAddr:
		return 9
	case nftables.TypeInetProto:
		return 12
	case nftables.TypeInetService:
		return 13
	case nftables.TypeMark:
		return 19
	case nftables.TypeIfName:
		return 41
	}
	return 0
}

// dataVerdict is NFT_DATA_VERDICT as the type of a map's data.
const dataVerdict uint32 = 0xffffff00

// typesID combines the numbers of a concatenation, six bits each.
func typesID(types []nftables.Type) (id, size uint32) {
	for _, t := range types {
		id = id<<6 | typeID(t)
		size += uint32(units(t.Size())) * 4
	}
	if len(types) == 1 {
		size = uint32(types[0].Size())
	}
	return id, size
}

func encodeSet(set nftables.Set) *setState {
	s := &setState{name: set.Name, def: setDef{counter: set.Counter}, whole: set.Whole}
	s.def.keyType, s.def.keyLen = typesID(set.Key)
	if set.Constant {
		s.def.flags |= unix.NFT_SET_CONSTANT
	}
	if set.Interval {
		s.def.flags |= unix.NFT_SET_INTERVAL
		if len(set.Key) > 1 {
			s.def.flags |= setFlagConcat
		}
	}
	switch {
	case set.IsVerdictMap():
		s.def.flags |= unix.NFT_SET_MAP
		s.def.dataType = dataVerdict
	case set.IsMap():
		s.def.flags |= unix.NFT_SET_MAP
		s.def.dataType, s.def.dataLen = typesID(set.Data)
	}
	s.id = fmt.Sprintf("%s %+v", s.name, s.def)
	sorted := set.Sorted()
	s.elements = make(map[string]string, len(sorted))
	s.order = make([]string, len(sorted))
	var buf []byte
	for i, e := range sorted {
		buf = appendKey(buf[:0], e.Key, false, set.Interval)
		if set.Interval {
			buf = appendKey(buf, e.Key, true, set.Interval)
		}
		key := string(buf)
		s.order[i] = key
		switch {
		case set.IsVerdictMap():
			s.elements[key] = verdictData(verdictCode(e.Verdict.Kind), e.Verdict.Chain)
		case set.IsMap():
			s.elements[key] = string(appendKey(nil, e.Data, false, false))
		default:
			s.elements[key] = ""
		}
	}
	return s
}

// appendKey appends the lower or upper bounds of a key as the kernel keeps them:
// fields of a concatenation padded to four bytes, marks in the machine's byte
// order unless the set compares bytes.
func appendKey(b []byte, key []nftables.Value, upper, interval bool) []byte {
	for _, v := range key {
		bound := v.From
		if upper {
			bound = v.To
		}
		if interval {
			b = append(b, bound[:v.Type.Size()]...)
		} else {
			b = append(b, registerBytes(v, bound)...)
		}
		for len(key) > 1 && len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return b
}

// verdictData is the comparable form of an element's verdict.
func verdictData(code uint32, chain string) string {
	return string(binary.BigEndian.AppendUint32(nil, code)) + chain
}

// sortedNames is the names of chains or sets in order.
func sortedNames[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// sameBase says whether the parts of a base chain that cannot be changed agree.
func sameBase(a, b *nftables.Base) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Type == b.Type && a.Hook == b.Hook && a.Priority == b.Priority
}

// describe is the rule's place, for messages.
func describe(chain string, i int, r ruleState) string {
	return fmt.Sprintf("rule %d of chain %s", i+1, nftables.RuleName(chain, nftables.Rule{Comment: r.comment}))
}
