package ovsdb

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/jsonrpc"
)

// ErrDisconnected says that there is no connection to the server and that nothing
// was sent.
var ErrDisconnected = errors.New("not connected to the OVSDB server")

// ErrUncertain says that the connection broke after a transaction was sent and
// before it was answered: it may have happened or not.
var ErrUncertain = errors.New("the connection to the OVSDB server broke before it answered: the transaction may have happened")

// ErrClosed says that the client's Run has ended.
var ErrClosed = errors.New("the OVSDB client is closed")

// Kinds of OpError (RFC 7047 sections 3.1 and 5.2).
const (
	ConstraintViolation  = "constraint violation"
	ReferentialIntegrity = "referential integrity violation"
	TimedOut             = "timed out"
)

// OpError says that the server refused a transaction, of which nothing happened.
type OpError struct {
	// Index of the operation that it refused, or the number of operations if what
	// failed was the commit.
	Index int
	// Op and Table of the operation, Op is "commit" if what failed was the commit.
	Op, Table string
	// Kind is the error in the protocol's words, one of the constants above or any other of the RFC.
	Kind string
	// Details are for people.
	Details string
}

// Error implements error.
func (e *OpError) Error() string {
	s := fmt.Sprintf("OVSDB refuses operation %d (%s", e.Index, e.Op)
	if e.Table != "" {
		s += " " + e.Table
	}
	s += "): " + e.Kind
	if e.Details != "" {
		s += ": " + e.Details
	}
	return s
}

// Refused reports whether err is an OpError of the kind.
func Refused(err error, kind string) bool {
	var op *OpError
	return errors.As(err, &op) && op.Kind == kind
}

// SchemaError says that the server's database is not what this program needs.
type SchemaError struct {
	Database, Version string
	// Missing are the tables and "table.column"s that it lacks, in order.
	Missing []string
}

// Error implements error.
func (e *SchemaError) Error() string {
	return fmt.Sprintf("the database %s of schema version %s lacks %v: a newer Open vSwitch is needed", e.Database, e.Version, e.Missing)
}

// serverError is the "error" member of a response: a string or an object.
type serverError struct{ Kind, Details string }

func (e *serverError) Error() string {
	if e.Details == "" {
		return e.Kind
	}
	return e.Kind + ": " + e.Details
}

func decodeServerError(b json.RawMessage) *serverError {
	var o struct{ Error, Details string }
	if json.Unmarshal(b, &o) == nil && o.Error != "" {
		return &serverError{o.Error, o.Details}
	}
	var s string
	if json.Unmarshal(b, &s) == nil && s != "" {
		return &serverError{Kind: s}
	}
	return &serverError{Kind: fmt.Sprintf("error %.200s", b)}
}

// decodeResults decodes the answer to a transaction of ops.
func decodeResults(ops []Operation, b json.RawMessage) ([]Result, error) {
	var parts []*struct {
		UUID    *Value
		Count   int
		Rows    []Row
		Error   string
		Details string
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return nil, fmt.Errorf("decode the results of a transaction: %w", err)
	}
	for i, p := range parts {
		if p == nil || p.Error == "" {
			continue
		}
		e := &OpError{Index: i, Op: "commit", Kind: p.Error, Details: p.Details}
		if i < len(ops) {
			e.Op, e.Table = ops[i].kind, ops[i].table
		}
		return nil, e
	}
	if len(parts) != len(ops) {
		return nil, fmt.Errorf("decode the results of a transaction: %w: %d results for %d operations", jsonrpc.ErrSyntax, len(parts), len(ops))
	}
	results := make([]Result, len(ops))
	for i, p := range parts {
		if p == nil {
			return nil, fmt.Errorf("decode the results of a transaction: %w: operation %d has none", jsonrpc.ErrSyntax, i)
		}
		results[i] = Result{Count: p.Count, Rows: p.Rows}
		if p.UUID != nil {
			results[i].UUID = p.UUID.Atom().UUID()
		}
	}
	return results, nil
}
