package nftables

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// Sorted is a copy of the elements in the order in which nft lists them: single
// keys by their number as the machine reads it, concatenations by their bytes
// from the last to the first, concatenations with ranges (which nft leaves in
// the order of their insertion) by value.
func (s Set) Sorted() []Element {
	sorted := slices.Clone(s.Elements)
	switch {
	case s.Interval && len(s.Key) > 1:
		slices.SortFunc(sorted, func(a, b Element) int { return CompareKeys(a.Key, b.Key) })
	case len(s.Key) > 1 || len(s.Key) == 1 && s.Key[0] == TypeIfName:
		sortByListKey(sorted)
	default:
		slices.SortFunc(sorted, func(a, b Element) int { return CompareKeys(a.Key, b.Key) })
	}
	return sorted
}

// CompareKeys orders keys by value, field by field, lower bounds first.
func CompareKeys(a, b []Value) int {
	return slices.CompareFunc(a, b, func(v, w Value) int {
		return cmp.Or(cmp.Compare(v.Type, w.Type), bytes.Compare(v.From[:], w.From[:]), bytes.Compare(v.To[:], w.To[:]))
	})
}

// sortByListKey sorts by the whole key read as one little-endian number: nft
// compares names and concatenations as the machine's integers.
func sortByListKey(elements []Element) {
	type keyed struct {
		key []byte
		e   Element
	}
	all := make([]keyed, len(elements))
	for i, e := range elements {
		all[i] = keyed{listKey(e.Key), e}
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
	for i := range all {
		elements[i] = all[i].e
	}
}

// listKey is the bytes of a key as the kernel keeps them, last byte first.
func listKey(key []Value) []byte {
	var raw []byte
	for _, v := range key {
		if v.Type.HostOrder() && v.Type.Size() == 4 {
			raw = binary.LittleEndian.AppendUint32(raw, v.Uint())
			continue
		}
		raw = append(raw, v.From[:v.Type.Size()]...)
	}
	slices.Reverse(raw)
	return raw
}
