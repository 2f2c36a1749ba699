package openflow

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"slices"
)

// Flow is one rule of a table.
type Flow struct {
	Table uint8
	// Priority decides between flows of a table that match the same packet: the
	// highest wins.
	Priority uint16
	Cookie   uint64
	// IdleTimeout and HardTimeout are in seconds; 0 is never. Only flows that the
	// switch learned have them in our pipeline.
	IdleTimeout, HardTimeout uint16
	Match                    Match
	Actions                  []Action
	// Comment names the object that the flow came from. It is not sent to the
	// switch and not compared.
	Comment string
}

// Key identifies a flow within a switch: no two flows have the same.
type Key struct {
	Table    uint8
	Priority uint16
	// Match is the canonical text of the match.
	Match string
}

// Key gives the flow's key.
func (f Flow) Key() Key {
	return Key{f.Table, f.Priority, f.Match.String()}
}

// Equal says whether a switch that has one flow need not be told about the other.
func (f Flow) Equal(o Flow) bool {
	return f.Table == o.Table && f.Priority == o.Priority && f.Cookie == o.Cookie &&
		f.IdleTimeout == o.IdleTimeout && f.HardTimeout == o.HardTimeout &&
		f.Match.Equal(o.Match) && EqualActions(f.Actions, o.Actions)
}

// EqualActions says whether two lists of actions do the same.
func EqualActions(a, b []Action) bool {
	if len(a) != len(b) {
		return false
	}
	var x, y [256]byte
	return bytes.Equal(appendActions(x[:0], a), appendActions(y[:0], b))
}

// Compare orders flows for people: by table, then from the highest priority, then
// by match, cookie and actions. Equal flows compare as 0.
func Compare(a, b Flow) int {
	if c := cmp.Or(
		cmp.Compare(a.Table, b.Table),
		cmp.Compare(b.Priority, a.Priority),
		a.Match.Compare(b.Match),
		cmp.Compare(a.Cookie, b.Cookie),
		cmp.Compare(a.IdleTimeout, b.IdleTimeout),
		cmp.Compare(a.HardTimeout, b.HardTimeout),
	); c != 0 {
		return c
	}
	return bytes.Compare(appendActions(nil, a.Actions), appendActions(nil, b.Actions))
}

// Sort sorts flows in place, see Compare.
func Sort(flows []Flow) { slices.SortFunc(flows, Compare) }

// Hash is a fingerprint of a set of flows: the same in any order, on any machine,
// whatever the comments.
func Hash(flows []Flow) [sha256.Size]byte {
	sorted := slices.Clone(flows)
	Sort(sorted)
	h := sha256.New()
	var line []byte
	for _, f := range sorted {
		line = append(f.appendText(line[:0]), '\n')
		h.Write(line)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
