package ovsdb

import (
	"encoding/json"
	"time"
)

// Row is the columns of a row by name.
type Row map[string]Value

// Condition selects rows (RFC 7047 section 5.1).
type Condition struct {
	Column string
	// Function is "==", "!=", "includes", "excludes", "<", "<=", ">" or ">=".
	Function string
	Value    Value
}

// MarshalJSON implements json.Marshaler.
func (c Condition) MarshalJSON() ([]byte, error) {
	return json.Marshal([3]any{c.Column, c.Function, c.Value})
}

// Is selects the row with the UUID.
func Is(u UUID) Condition { return Condition{"_uuid", "==", Set(Ref(u))} }

// Equals selects the rows whose column holds the value.
func Equals(column string, v Value) Condition { return Condition{column, "==", v} }

// Mutation changes a column of selected rows (RFC 7047 section 5.1).
type Mutation struct {
	Column string
	// Mutator is "+=", "-=", "*=", "/=", "%=", "insert" or "delete".
	Mutator string
	Value   Value
}

// MarshalJSON implements json.Marshaler.
func (m Mutation) MarshalJSON() ([]byte, error) {
	return json.Marshal([3]any{m.Column, m.Mutator, m.Value})
}

// Operation is one step of a transaction (RFC 7047 section 5.2). Insert, Select,
// Update, Mutate, Delete, Wait and Comment make them.
type Operation struct {
	kind  string
	table string
	body  any
}

// Kind returns the operation's name in the protocol: "insert", "wait" and so on.
func (o Operation) Kind() string { return o.kind }

// Table returns the table that the operation works on.
func (o Operation) Table() string { return o.table }

// MarshalJSON implements json.Marshaler.
func (o Operation) MarshalJSON() ([]byte, error) { return json.Marshal(o.body) }

type target struct {
	Op    string      `json:"op"`
	Table string      `json:"table"`
	Where []Condition `json:"where"`
}

func on(op, table string, where []Condition) target {
	if where == nil {
		where = []Condition{}
	}
	return target{op, table, where}
}

// Insert makes a row. Other operations of the transaction refer to it as
// Named(name) if name is not empty.
func Insert(table, name string, row Row) Operation {
	return Operation{"insert", table, struct {
		Op    string `json:"op"`
		Table string `json:"table"`
		Row   Row    `json:"row"`
		Name  string `json:"uuid-name,omitempty"`
	}{"insert", table, row, name}}
}

// Select reads the columns of rows. Without conditions it reads them all.
func Select(table string, columns []string, where ...Condition) Operation {
	return Operation{"select", table, struct {
		target
		Columns []string `json:"columns"`
	}{on("select", table, where), columns}}
}

// Update sets columns of rows.
func Update(table string, row Row, where ...Condition) Operation {
	return Operation{"update", table, struct {
		target
		Row Row `json:"row"`
	}{on("update", table, where), row}}
}

// Mutate changes columns of rows by what they hold.
func Mutate(table string, mutations []Mutation, where ...Condition) Operation {
	return Operation{"mutate", table, struct {
		target
		Mutations []Mutation `json:"mutations"`
	}{on("mutate", table, where), mutations}}
}

// Delete removes rows.
func Delete(table string, where ...Condition) Operation {
	return Operation{"delete", table, on("delete", table, where)}
}

// Wait holds the transaction until the columns of the selected rows equal
// (equal true) or differ from rows, at most for the timeout (which is rounded up to
// milliseconds). With timeout 0 it is a test: if it fails, nothing of the
// transaction happens, and the error's Kind is TimedOut.
func Wait(table string, timeout time.Duration, columns []string, equal bool, rows []Row, where ...Condition) Operation {
	until := "!="
	if equal {
		until = "=="
	}
	if rows == nil {
		rows = []Row{}
	}
	return Operation{"wait", table, struct {
		target
		Timeout int64    `json:"timeout"`
		Columns []string `json:"columns"`
		Until   string   `json:"until"`
		Rows    []Row    `json:"rows"`
	}{on("wait", table, where), int64((timeout + time.Millisecond - 1) / time.Millisecond), columns, until, rows}}
}

// Comment goes into the database's log.
func Comment(text string) Operation {
	return Operation{"comment", "", struct {
		Op      string `json:"op"`
		Comment string `json:"comment"`
	}{"comment", text}}
}

// Result is what an operation did.
type Result struct {
	// UUID of the row that an insert made.
	UUID UUID
	// Count of the rows that an update, mutate or delete selected.
	Count int
	// Rows that a select read.
	Rows []Row
}
