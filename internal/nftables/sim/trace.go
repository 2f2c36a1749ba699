package sim

import (
	"fmt"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Effect says what a step did.
type Effect uint8

// The effects.
const (
	// Passed: the match or lookup held, the rule goes on.
	Passed Effect = iota + 1
	// Failed: the statement did not hold, or read what the packet does not have; the
	// next rule runs.
	Failed
	// Counted: a counter counted the packet.
	Counted
	// Changed: a mark or zone was set.
	Changed
	// Decided: a verdict was given: accept, drop, return, a jump or a goto.
	Decided
	// Translated: NAT chose, or applied, a translation.
	Translated
	// Tracked: conntrack looked at the packet.
	Tracked
	// Logged: the packet's head was sent to a log group.
	Logged
)

// String is one word.
func (e Effect) String() string {
	words := [...]string{Passed: "passed", Failed: "failed", Counted: "counted", Changed: "changed", Decided: "decided", Translated: "translated", Tracked: "tracked", Logged: "logged"}
	if e == 0 || int(e) >= len(words) {
		return "unknown"
	}
	return words[e]
}

// NoRule is the Rule of a Step that no rule made: a chain's policy, conntrack,
// NAT of a known flow.
const NoRule = -1

// Step is one thing that happened to a packet. Chain and Rule find the rule in the
// kernel: rules of a chain have the order of the table.
type Step struct {
	Hook nftables.Hook
	// Chain is where the rule is; empty for conntrack and NAT.
	Chain string
	// Rule is the rule's place in its chain, counted from 0, or NoRule.
	Rule int
	// Comment is the rule's.
	Comment string
	// Statement is the text of the statement, as nft prints it.
	Statement string
	Effect    Effect
	// Detail says more for people: the value that was read, the mark that was set.
	Detail string
}

// String is one line.
func (s Step) String() string {
	place := s.Hook.String()
	if s.Chain != "" && s.Chain != place {
		place += "/" + s.Chain
	}
	if s.Rule != NoRule {
		place += fmt.Sprintf(" rule %d", s.Rule)
	}
	if s.Comment != "" {
		place += fmt.Sprintf(" (%s)", s.Comment)
	}
	text := place + ": " + s.Statement + ": " + s.Effect.String()
	if s.Detail != "" {
		text += ", " + s.Detail
	}
	return text
}

// Trace is the way of a packet, step by step.
type Trace []Step

// Taken is the trace without the rules that did not hold: of each rule that had an
// effect its steps are kept, of all others none.
func (t Trace) Taken() Trace {
	var out Trace
	for i := 0; i < len(t); {
		end := i + 1
		for end < len(t) && t[end].Rule != NoRule && t[end].sameRule(t[i]) && t[end-1].Effect != Failed {
			end++
		}
		if rule := t[i:end]; rule.acted() {
			out = append(out, rule...)
		}
		i = end
	}
	return out
}

func (s Step) sameRule(o Step) bool {
	return s.Hook == o.Hook && s.Chain == o.Chain && s.Rule == o.Rule
}

func (t Trace) acted() bool {
	for _, s := range t {
		if s.Effect != Passed && s.Effect != Failed {
			return true
		}
	}
	return false
}

// String is one line a step.
func (t Trace) String() string {
	lines := make([]string, len(t))
	for i, s := range t {
		lines[i] = s.String()
	}
	return strings.Join(lines, "\n")
}
