package ovsdb

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Kind is the type of an Atom.
type Kind uint8

// The kinds of atoms (RFC 7047 section 3.1). A Named atom stands for the UUID that
// an insert of the same transaction will get.
const (
	KindString Kind = iota + 1
	KindInteger
	KindReal
	KindBoolean
	KindUUID
	KindNamed
)

// Atom is one scalar. Atoms are comparable.
type Atom struct {
	kind    Kind
	text    string
	integer int64
	real    float64
}

// UUID names a row.
type UUID string

// String makes a string atom.
func String(s string) Atom { return Atom{kind: KindString, text: s} }

// Integer makes an integer atom.
func Integer(i int64) Atom { return Atom{kind: KindInteger, integer: i} }

// Real makes a real atom.
func Real(f float64) Atom { return Atom{kind: KindReal, real: f} }

// Boolean makes a boolean atom.
func Boolean(b bool) Atom {
	a := Atom{kind: KindBoolean}
	if b {
		a.integer = 1
	}
	return a
}

// Ref makes an atom that refers to a row.
func Ref(u UUID) Atom { return Atom{kind: KindUUID, text: string(u)} }

// Named makes an atom that refers to the row that an insert of the same transaction
// makes under the name.
func Named(name string) Atom { return Atom{kind: KindNamed, text: name} }

// Kind returns what the atom is, 0 for the zero Atom.
func (a Atom) Kind() Kind { return a.kind }

// Text returns a string atom's text, "" for any other.
func (a Atom) Text() string {
	if a.kind != KindString {
		return ""
	}
	return a.text
}

// Int returns an integer atom's value, 0 for any other.
func (a Atom) Int() int64 {
	if a.kind != KindInteger {
		return 0
	}
	return a.integer
}

// Bool reports whether the atom is the boolean true.
func (a Atom) Bool() bool { return a.kind == KindBoolean && a.integer == 1 }

// Float returns a real atom's value; an integer is one too.
func (a Atom) Float() float64 {
	if a.kind == KindInteger {
		return float64(a.integer)
	}
	return a.real
}

// UUID returns the row that the atom refers to, "" if it is no reference.
func (a Atom) UUID() UUID {
	if a.kind != KindUUID {
		return ""
	}
	return UUID(a.text)
}

// Compare orders atoms: by kind, then by value.
func (a Atom) Compare(b Atom) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.text, b.text), cmp.Compare(a.integer, b.integer), cmp.Compare(a.real, b.real))
}

// MarshalJSON implements json.Marshaler in the notation of RFC 7047.
func (a Atom) MarshalJSON() ([]byte, error) {
	switch a.kind {
	case KindString:
		return json.Marshal(a.text)
	case KindInteger:
		return strconv.AppendInt(nil, a.integer, 10), nil
	case KindReal:
		return json.Marshal(a.real)
	case KindBoolean:
		return strconv.AppendBool(nil, a.integer == 1), nil
	case KindUUID:
		return json.Marshal([2]string{"uuid", a.text})
	case KindNamed:
		return json.Marshal([2]string{"named-uuid", a.text})
	}
	return nil, fmt.Errorf("an atom without a value")
}

// Value is what a column holds: a set of atoms, of which a scalar is the set of
// one, or a map. The zero Value is the empty set. Values are in order and without
// duplicates as Set, Map and the decoder make them.
type Value struct {
	// Keys are a set's members or a map's keys.
	Keys []Atom
	// Values belong to the Keys of a map, nil for a set.
	Values []Atom
}

// Set makes a set.
func Set(members ...Atom) Value {
	keys := slices.Clone(members)
	slices.SortFunc(keys, Atom.Compare)
	return Value{Keys: slices.Compact(keys)}
}

// Strings makes a set of strings.
func Strings(members ...string) Value {
	atoms := make([]Atom, len(members))
	for i, m := range members {
		atoms[i] = String(m)
	}
	return Set(atoms...)
}

// Map makes a map of strings.
func Map(m map[string]string) Value {
	v := Value{Keys: make([]Atom, 0, len(m)), Values: make([]Atom, 0, len(m))}
	for k := range m {
		v.Keys = append(v.Keys, String(k))
	}
	slices.SortFunc(v.Keys, Atom.Compare)
	for _, k := range v.Keys {
		v.Values = append(v.Values, String(m[k.text]))
	}
	return v
}

// IsMap reports whether the value is a map.
func (v Value) IsMap() bool { return v.Values != nil }

// Atom returns the member of a set of one, the zero Atom of any other value.
func (v Value) Atom() Atom {
	if len(v.Keys) != 1 || v.IsMap() {
		return Atom{}
	}
	return v.Keys[0]
}

// At returns the value of a string key of a map.
func (v Value) At(key string) (Atom, bool) {
	i, found := slices.BinarySearchFunc(v.Keys, String(key), Atom.Compare)
	if !found || !v.IsMap() {
		return Atom{}, false
	}
	return v.Values[i], true
}

// Equal reports whether two values are the same. An empty map equals an empty set:
// on the wire they cannot always be told apart.
func (v Value) Equal(w Value) bool {
	return slices.Equal(v.Keys, w.Keys) && slices.Equal(v.Values, w.Values)
}

// MarshalJSON implements json.Marshaler in the notation of RFC 7047.
func (v Value) MarshalJSON() ([]byte, error) {
	if !v.IsMap() {
		if len(v.Keys) == 1 {
			return v.Keys[0].MarshalJSON()
		}
		keys := v.Keys
		if keys == nil {
			keys = []Atom{}
		}
		return json.Marshal([2]any{"set", keys})
	}
	pairs := make([][2]Atom, len(v.Keys))
	for i := range v.Keys {
		pairs[i] = [2]Atom{v.Keys[i], v.Values[i]}
	}
	return json.Marshal([2]any{"map", pairs})
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value) UnmarshalJSON(b []byte) error {
	d, err := decodeValue(b)
	if err == nil {
		*v = d
	}
	return err
}

func decodeValue(b []byte) (Value, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '[' {
		a, err := decodeAtom(b)
		if err != nil {
			return Value{}, err
		}
		return Value{Keys: []Atom{a}}, nil
	}
	tag, body, err := tagged(b)
	if err != nil {
		return Value{}, err
	}
	switch tag {
	case "set":
		return decodeSet(body)
	case "map":
		return decodeMap(body)
	}
	a, err := decodeAtom(b)
	if err != nil {
		return Value{}, err
	}
	return Value{Keys: []Atom{a}}, nil
}

func tagged(b []byte) (string, json.RawMessage, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return "", nil, fmt.Errorf("decode a value: %w", err)
	}
	var tag string
	if len(parts) != 2 || json.Unmarshal(parts[0], &tag) != nil {
		return "", nil, fmt.Errorf("decode a value: want a pair that begins with a word, got %.80s", b)
	}
	return tag, parts[1], nil
}

func decodeSet(b []byte) (Value, error) {
	var members []json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		return Value{}, fmt.Errorf("decode a set: %w", err)
	}
	keys := make([]Atom, len(members))
	for i, m := range members {
		a, err := decodeAtom(m)
		if err != nil {
			return Value{}, err
		}
		keys[i] = a
	}
	return Set(keys...), nil
}

func decodeMap(b []byte) (Value, error) {
	var pairs [][]json.RawMessage
	if err := json.Unmarshal(b, &pairs); err != nil {
		return Value{}, fmt.Errorf("decode a map: %w", err)
	}
	decoded := make([][2]Atom, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return Value{}, fmt.Errorf("decode a map: a pair has %d parts", len(p))
		}
		for j := range p {
			a, err := decodeAtom(p[j])
			if err != nil {
				return Value{}, err
			}
			decoded[i][j] = a
		}
	}
	slices.SortFunc(decoded, func(a, b [2]Atom) int { return a[0].Compare(b[0]) })
	v := Value{Keys: make([]Atom, len(decoded)), Values: make([]Atom, len(decoded))}
	for i, p := range decoded {
		if i > 0 && p[0] == decoded[i-1][0] {
			return Value{}, fmt.Errorf("decode a map: a key appears twice")
		}
		v.Keys[i], v.Values[i] = p[0], p[1]
	}
	return v, nil
}

func decodeAtom(b []byte) (Atom, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return Atom{}, fmt.Errorf("decode an atom: nothing there")
	}
	switch b[0] {
	case '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return Atom{}, fmt.Errorf("decode a string: %w", err)
		}
		return String(s), nil
	case 't', 'f':
		var t bool
		if err := json.Unmarshal(b, &t); err != nil {
			return Atom{}, fmt.Errorf("decode a boolean: %w", err)
		}
		return Boolean(t), nil
	case '[':
		return decodeReference(b)
	}
	if i, err := strconv.ParseInt(string(b), 10, 64); err == nil {
		return Integer(i), nil
	}
	var f float64
	if err := json.Unmarshal(b, &f); err != nil || b[0] == 'n' {
		return Atom{}, fmt.Errorf("decode an atom: %.40s is none", b)
	}
	return Real(f), nil
}

func decodeReference(b []byte) (Atom, error) {
	tag, body, err := tagged(b)
	if err != nil {
		return Atom{}, err
	}
	var s string
	if err := json.Unmarshal(body, &s); err != nil {
		return Atom{}, fmt.Errorf("decode a reference: %w", err)
	}
	switch tag {
	case "uuid":
		return Ref(UUID(s)), nil
	case "named-uuid":
		return Named(s), nil
	}
	return Atom{}, fmt.Errorf("decode an atom: %q is none", tag)
}
