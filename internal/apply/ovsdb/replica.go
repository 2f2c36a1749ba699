package ovsdb

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/jsonrpc"
)

// Snapshot is the watched part of the database at one moment. It never changes.
type Snapshot struct {
	// Synced is false while there is no connection, or the first read is under way;
	// there are no rows then.
	Synced bool
	// Connection counts the connections to the server: another number means that
	// the server may be another process with another database.
	Connection uint64
	// Version of the schema.
	Version string
	// Err says why it is not synced, nil if nothing failed yet.
	Err error

	tables map[string]map[UUID]Row
}

// Rows returns a table's rows, which the caller must not change. It is nil for a
// table that is not watched.
func (s *Snapshot) Rows(table string) map[UUID]Row { return s.tables[table] }

// Row returns one row, which the caller must not change; nil if it is not there.
func (s *Snapshot) Row(table string, u UUID) Row { return s.tables[table][u] }

// Find returns the first row, by UUID, whose column holds the value.
func (s *Snapshot) Find(table, column string, v Value) (UUID, Row) {
	var found UUID
	for u, row := range s.tables[table] {
		if row[column].Equal(v) && (found == "" || u < found) {
			found = u
		}
	}
	return found, s.tables[table][found]
}

// replica is the watched part of the database, owned by the client's goroutine.
type replica struct {
	schema Schema
	watch  map[string][]string
	limit  int // of rows
	rows   int
	tables map[string]map[UUID]Row
	// shared tables are part of a Snapshot: they are copied before they change.
	shared map[string]bool
}

func newReplica(schema Schema, watch map[string][]string, limit int) *replica {
	r := &replica{schema: schema, watch: watch, limit: limit, tables: map[string]map[UUID]Row{}, shared: map[string]bool{}}
	for table := range watch {
		r.tables[table] = map[UUID]Row{}
	}
	return r
}

// publish returns what the replica holds now.
func (r *replica) publish() map[string]map[UUID]Row {
	for table := range r.tables {
		r.shared[table] = true
	}
	return maps.Clone(r.tables)
}

func (r *replica) table(name string) (map[UUID]Row, error) {
	t, ok := r.tables[name]
	if !ok {
		return nil, fmt.Errorf("%w: an update of table %q, which is not watched", jsonrpc.ErrSyntax, name)
	}
	if r.shared[name] {
		t = maps.Clone(t)
		r.tables[name], r.shared[name] = t, false
	}
	return t, nil
}

func (r *replica) put(t map[UUID]Row, u UUID, row Row) error {
	if _, known := t[u]; !known {
		if r.rows >= r.limit {
			return fmt.Errorf("the database has more than %d rows in the tables that are watched", r.limit)
		}
		r.rows++
	}
	t[u] = row
	return nil
}

func (r *replica) remove(t map[UUID]Row, u UUID) {
	if _, known := t[u]; known {
		r.rows--
		delete(t, u)
	}
}

// update2 takes <table-updates2> of ovsdb-server(7).
func (r *replica) update2(b json.RawMessage) error {
	type change struct {
		Initial, Insert, Modify *Row
		Delete                  json.RawMessage
	}
	var updates map[string]map[UUID]change
	if err := json.Unmarshal(b, &updates); err != nil {
		return fmt.Errorf("decode an update: %w: %w", jsonrpc.ErrSyntax, err)
	}
	for _, name := range slices.Sorted(maps.Keys(updates)) {
		t, err := r.table(name)
		if err != nil {
			return err
		}
		for u, c := range updates[name] {
			switch {
			case c.Initial != nil:
				err = r.put(t, u, r.whole(name, *c.Initial))
			case c.Insert != nil:
				err = r.put(t, u, r.whole(name, *c.Insert))
			case c.Modify != nil:
				err = r.modify(name, t, u, *c.Modify)
			case c.Delete != nil:
				r.remove(t, u)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// whole is the row with the columns that the server left out because they hold
// their initial value.
func (r *replica) whole(table string, sent Row) Row {
	row := make(Row, len(r.watch[table]))
	for _, c := range r.watch[table] {
		if v, ok := sent[c]; ok {
			row[c] = v
		} else {
			row[c] = r.schema.Tables[table][c].initial()
		}
	}
	return row
}

func (r *replica) modify(table string, t map[UUID]Row, u UUID, diff Row) error {
	old, ok := t[u]
	if !ok {
		return fmt.Errorf("%w: a change of row %s of table %s, which is not there", jsonrpc.ErrSyntax, u, table)
	}
	row := maps.Clone(old)
	for c, d := range diff {
		if _, watched := row[c]; !watched {
			continue
		}
		if r.schema.Tables[table][c].composite() {
			d = patch(row[c], d)
		}
		row[c] = d
	}
	t[u] = row
	return nil
}

// patch applies a difference: members of a set change sides; a pair of a map is
// removed if it is there as it is, else it is what holds now.
func patch(old, diff Value) Value {
	isMap := old.IsMap() || diff.IsMap()
	held := make(map[Atom]Atom, len(old.Keys)+len(diff.Keys))
	for i, k := range old.Keys {
		held[k] = old.value(i)
	}
	for i, k := range diff.Keys {
		if v, ok := held[k]; ok && v == diff.value(i) {
			delete(held, k)
		} else {
			held[k] = diff.value(i)
		}
	}
	v := Value{Keys: slices.SortedFunc(maps.Keys(held), Atom.Compare)}
	if isMap {
		v.Values = make([]Atom, len(v.Keys))
		for i, k := range v.Keys {
			v.Values[i] = held[k]
		}
	}
	return v
}

// value returns the value of the key i, the zero Atom for a set.
func (v Value) value(i int) Atom {
	if i >= len(v.Values) {
		return Atom{}
	}
	return v.Values[i]
}

// update takes <table-updates> of RFC 7047 section 4.1.6.
func (r *replica) update(b json.RawMessage) error {
	var updates map[string]map[UUID]struct{ New *Row }
	if err := json.Unmarshal(b, &updates); err != nil {
		return fmt.Errorf("decode an update: %w: %w", jsonrpc.ErrSyntax, err)
	}
	for _, name := range slices.Sorted(maps.Keys(updates)) {
		t, err := r.table(name)
		if err != nil {
			return err
		}
		for u, c := range updates[name] {
			if c.New == nil {
				r.remove(t, u)
			} else if err := r.put(t, u, r.whole(name, *c.New)); err != nil {
				return err
			}
		}
	}
	return nil
}
