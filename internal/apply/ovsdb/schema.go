package ovsdb

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Schema is what the client needs to know of a database's schema (RFC 7047
// section 3.2).
type Schema struct {
	Name, Version string
	// Tables by name, their columns by name.
	Tables map[string]map[string]Column
}

// Column is a column's type.
type Column struct {
	// Key and, for a map, Value: "string", "integer", "real", "boolean" or "uuid".
	Key, Value string
	// Min is 0 or 1, Max the largest number of members, -1 if it is unlimited.
	Min, Max int
}

// initial is what a column holds that a row does not mention.
func (c Column) initial() Value {
	if c.Value != "" {
		return Value{Values: []Atom{}}
	}
	if c.Min == 0 {
		return Value{}
	}
	switch c.Key {
	case "integer":
		return Set(Integer(0))
	case "real":
		return Set(Real(0))
	case "boolean":
		return Set(Boolean(false))
	case "uuid":
		return Set(Ref("00000000-0000-0000-0000-000000000000"))
	}
	return Set(String(""))
}

// composite reports whether a change of the column is sent as a difference.
func (c Column) composite() bool { return c.Max < 0 || c.Max > 1 }

// UnmarshalJSON implements json.Unmarshaler for the <type> of RFC 7047.
func (c *Column) UnmarshalJSON(b []byte) error {
	var atomic string
	if json.Unmarshal(b, &atomic) == nil {
		*c = Column{Key: atomic, Min: 1, Max: 1}
		return nil
	}
	var t struct {
		Key, Value base
		Min        *int
		Max        *json.RawMessage
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("decode a column's type: %w", err)
	}
	*c = Column{Key: string(t.Key), Value: string(t.Value), Min: 1, Max: 1}
	if t.Min != nil {
		c.Min = *t.Min
	}
	if t.Max == nil {
		return nil
	}
	if string(*t.Max) == `"unlimited"` {
		c.Max = -1
		return nil
	}
	if err := json.Unmarshal(*t.Max, &c.Max); err != nil {
		return fmt.Errorf("decode a column's type: %w", err)
	}
	return nil
}

// base is the <base-type> of RFC 7047 without its constraints.
type base string

func (t *base) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*t = base(s)
		return nil
	}
	var o struct{ Type string }
	if err := json.Unmarshal(b, &o); err != nil {
		return fmt.Errorf("decode a base type: %w", err)
	}
	*t = base(o.Type)
	return nil
}

func decodeSchema(b []byte) (Schema, error) {
	var raw struct {
		Name, Version string
		Tables        map[string]struct {
			Columns map[string]struct{ Type Column }
		}
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return Schema{}, fmt.Errorf("decode the schema: %w", err)
	}
	s := Schema{Name: raw.Name, Version: raw.Version, Tables: make(map[string]map[string]Column, len(raw.Tables))}
	for name, t := range raw.Tables {
		columns := make(map[string]Column, len(t.Columns))
		for c, v := range t.Columns {
			columns[c] = v.Type
		}
		s.Tables[name] = columns
	}
	return s, nil
}

// check returns a SchemaError if a table or column of need is not there.
func (s Schema) check(need map[string][]string) error {
	var missing []string
	for _, table := range slices.Sorted(maps.Keys(need)) {
		columns, ok := s.Tables[table]
		if !ok {
			missing = append(missing, table)
			continue
		}
		for _, c := range slices.Sorted(slices.Values(need[table])) {
			if _, ok := columns[c]; !ok {
				missing = append(missing, table+"."+c)
			}
		}
	}
	if missing == nil {
		return nil
	}
	return &SchemaError{Database: s.Name, Version: s.Version, Missing: missing}
}
