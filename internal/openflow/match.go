package openflow

import (
	"cmp"
	"net/netip"
	"slices"
)

// Term is a demand on one field: the bits of Mask must equal those of Value.
type Term struct {
	Field Field
	Value Value
	Mask  Value
}

// Eq demands that the whole field is v.
func Eq(f Field, v uint64) Term { return EqValue(f, Num(v)) }

// EqValue demands that the whole field is v.
func EqValue(f Field, v Value) Term {
	if v.BitLen() > f.Bits() {
		f = fieldNone
	}
	return Term{f, v, f.full()}
}

// Masked demands that the bits of mask equal those of v.
func Masked(f Field, v, mask uint64) Term { return Term{f, Num(v), Num(mask)} }

// SubEq demands that a part of a field is v.
func SubEq(s Subfield, v uint64) Term {
	if Num(v).BitLen() > s.Width() {
		s = Subfield{}
	}
	return Term{s.Field, Num(v).Lsh(int(s.Offset)), s.Mask()}
}

// MAC demands that the whole field is an Ethernet address.
func MAC(f Field, mac [6]byte) Term { return EqValue(f, MACValue(mac)) }

// Addr demands that the whole field is an address. An address of the other family
// gives a term that Validate refuses.
func Addr(f Field, a netip.Addr) Term { return EqValue(ofFamily(f, a), AddrValue(a)) }

// ofFamily gives the field if it holds addresses as long as a, else none.
func ofFamily(f Field, a netip.Addr) Field {
	if a.BitLen() != f.Bits() {
		return fieldNone
	}
	return f
}

// Prefix demands that an address lies in a prefix. The prefix of length 0 demands
// nothing, and disappears in NewMatch. One of the other family is as in Addr.
func Prefix(f Field, p netip.Prefix) Term {
	f = ofFamily(f, p.Addr())
	host := f.Bits() - p.Bits()
	return Term{f, AddrValue(p.Addr()), f.full().And(Ones(host).Not())}
}

// Exact says whether the whole field is matched.
func (t Term) Exact() bool { return t.Mask == t.Field.full() }

// Match is a conjunction of terms. In its canonical form, which NewMatch gives,
// terms are sorted by field, no field occurs twice, no bit outside of a mask is
// set, no mask is empty, and wide registers are spelled as 32-bit ones, because
// that is how the switch gives them back. A demand on one bit of IPFrag that settles
// the other one is a demand on both.
type Match []Term

// NewMatch brings terms into canonical form. Terms on the same field are joined;
// where two of them contradict each other the later one wins. A value that its
// field cannot hold makes a match that Validate refuses.
func NewMatch(terms ...Term) Match {
	m := make(Match, 0, len(terms))
	for _, t := range terms {
		parts := t.Field.Parts()
		if parts == nil || t.Value.And(t.Mask).BitLen() > t.Field.Bits() {
			m = m.join(t)
			continue
		}
		for i, part := range parts {
			shift := 32 * (len(parts) - 1 - i)
			m = m.join(Term{part, t.Value.Rsh(shift).And(Ones(32)), t.Mask.Rsh(shift).And(Ones(32))})
		}
	}
	for i, t := range m {
		switch t {
		case Masked(IPFrag, 0, FragAny):
			m[i] = Eq(IPFrag, 0)
		case Masked(IPFrag, FragLater, FragLater):
			m[i] = Eq(IPFrag, FragAny|FragLater)
		}
	}
	return m
}

// join adds one term in its place.
func (m Match) join(t Term) Match {
	t.Value = t.Value.And(t.Mask)
	if t.Value.BitLen() > t.Field.Bits() {
		t.Field = fieldNone
	}
	if t.Field.valid() {
		if t.Mask = t.Mask.And(t.Field.full()); t.Mask.IsZero() {
			return m
		}
	}
	i, found := slices.BinarySearchFunc(m, t.Field, func(u Term, f Field) int { return cmp.Compare(u.Field, f) })
	if !found {
		return slices.Insert(m, i, t)
	}
	m[i].Value = m[i].Value.And(t.Mask.Not()).Or(t.Value)
	m[i].Mask = m[i].Mask.Or(t.Mask)
	return m
}

// Get gives the term on a field, and false if there is none.
func (m Match) Get(f Field) (Term, bool) {
	for _, t := range m {
		if t.Field == f {
			return t, true
		}
	}
	return Term{}, false
}

// exact gives the value of a field that is matched wholly.
func (m Match) exact(f Field) (uint64, bool) {
	t, ok := m.Get(f)
	return t.Value.Lo, ok && t.Exact()
}

// Canonical says whether the match is in the form that NewMatch gives.
func (m Match) Canonical() bool { return m.Equal(NewMatch(m...)) }

// Equal says whether two canonical matches demand the same.
func (m Match) Equal(o Match) bool { return slices.Equal(m, o) }

// Compare orders canonical matches: by the first field in which they differ.
func (m Match) Compare(o Match) int {
	return slices.CompareFunc(m, o, func(a, b Term) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), a.Value.Compare(b.Value), a.Mask.Compare(b.Mask))
	})
}
