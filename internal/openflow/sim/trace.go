package sim

import (
	"fmt"
	"strings"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// Effect says what a step did.
type Effect uint8

// The effects.
const (
	// Matched: the packet met a flow of a table.
	Matched Effect = iota + 1
	// Missed: no flow of a table matched.
	Missed
	// Changed: a field was set.
	Changed
	// Went: to another table, a group, or the actions of a clone.
	Went
	// Tracked: the connection tracker looked at the packet, or forgot it.
	Tracked
	// Sent: the packet left by a port.
	Sent
	// Ignored: the action did nothing. Detail says why.
	Ignored
	// Ended: the actions of this flow end here.
	Ended
)

// String is one word.
func (e Effect) String() string {
	words := [...]string{Matched: "matched", Missed: "missed", Changed: "changed", Went: "went", Tracked: "tracked", Sent: "sent", Ignored: "ignored", Ended: "ended"}
	if e == 0 || int(e) >= len(words) {
		return "unknown"
	}
	return words[e]
}

// Step is one thing that happened to a packet.
type Step struct {
	// Round counts how often the packet came back from the connection tracker.
	Round int
	// Depth counts the resubmits, clones and groups that the step is within.
	Depth int
	Table uint8
	// Name of the table, empty if it has none.
	Name string
	// Flow that was met, without cookie and actions, as ovs-ofctl prints it; empty for
	// Missed. Comment is the flow's.
	Flow, Comment string
	// Statement is the action, as ovs-ofctl prints it; empty for Matched and Missed.
	Statement string
	Effect    Effect
	// Detail says more for people: the value that was set, the state of the connection.
	Detail string
}

// Place is the table, "4 (tunnel-vni)".
func (s Step) Place() string {
	if s.Name == "" {
		return fmt.Sprint(s.Table)
	}
	return fmt.Sprintf("%d (%s)", s.Table, s.Name)
}

// String is one line.
func (s Step) String() string {
	var b strings.Builder
	b.WriteString(strings.Repeat("  ", s.Depth))
	switch s.Effect {
	case Matched:
		fmt.Fprintf(&b, "table %s: %s", s.Place(), s.Flow)
		if s.Comment != "" {
			fmt.Fprintf(&b, " (%s)", s.Comment)
		}
		return b.String()
	case Missed:
		fmt.Fprintf(&b, "table %s: no flow", s.Place())
		return b.String()
	}
	fmt.Fprintf(&b, "  %s: %s", s.Statement, s.Effect)
	if s.Detail != "" {
		b.WriteString(", " + s.Detail)
	}
	return b.String()
}

// Trace is the way of a packet, step by step.
type Trace []Step

// Path is the steps that find flows, without what these did.
func (t Trace) Path() Trace {
	var out Trace
	for _, s := range t {
		if s.Effect == Matched || s.Effect == Missed {
			out = append(out, s)
		}
	}
	return out
}

// String is one line a step.
func (t Trace) String() string {
	lines := make([]string, len(t))
	for i, s := range t {
		lines[i] = s.String()
	}
	return strings.Join(lines, "\n")
}

// describe is a flow's match with its priority.
func describe(f *of.Flow) string {
	text := fmt.Sprintf("priority=%d", f.Priority)
	if len(f.Match) > 0 {
		text += "," + f.Match.String()
	}
	return text
}

// stateNames are the bits of ct_state, as in a match.
func stateNames(state uint64) string {
	return strings.TrimPrefix(of.NewMatch(of.Eq(of.CTState, state)).String(), "ct_state=")
}
