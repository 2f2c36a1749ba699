package ovsplane

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// traced is what ofproto/trace says of a packet, in one bridge.
type traced struct {
	// path are the flows that it meets, in order.
	path []met
	// sent: it leaves by some port.
	sent bool
	// notes are what befalls it behind the port, lost why it goes nowhere from there.
	notes []string
	lost  string
}

// met is a flow that the switch met in a table.
type met struct {
	table    uint8
	missed   bool
	match    string
	priority int
}

// String names it for people.
func (m met) String() string {
	if m.missed {
		return "no flow of table " + ovs.TableName(m.table)
	}
	text := fmt.Sprintf("flow priority=%d", m.priority)
	if m.match != "" {
		text += "," + m.match
	}
	return text + " of table " + ovs.TableName(m.table)
}

// is reports whether it is the flow of a step.
func (m met) is(s step) bool {
	if m.table != s.table || m.missed != (s.flow == nil) {
		return false
	}
	if m.missed {
		return true
	}
	match, err := of.ParseMatch(m.match)
	return m.priority == int(s.flow.Priority) && (err != nil || match.Equal(of.NewMatch(s.flow.Match...)))
}

// The lines of ofproto/trace (ofproto-dpif-trace.c, ofproto-dpif-xlate.c of Open vSwitch).
var (
	traceBridge = regexp.MustCompile(`^bridge\("(.*)"\)$`)
	traceFlow   = regexp.MustCompile(`^\s*(\d+)\. (?:(.*), )?priority (\d+)(?:, cookie 0x[0-9a-f]+)?$`)
	traceMiss   = regexp.MustCompile(`^\s*(\d+)\. No match\.`)
	traceOutput = regexp.MustCompile(`^\s+(?:output:|IN_PORT|LOCAL)`)
	traceNote   = regexp.MustCompile(`^\s+-> (.*(?:tunnel|neighbor|MTU|TTL).*)$`)
	traceLost   = regexp.MustCompile(`native tunnel routing failed|tunneling.*failed|no tunnel`)
)

// parseTrace reads the part of the text that is about a bridge.
func parseTrace(text, bridge string) traced {
	var out traced
	here := true
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := traceBridge.FindStringSubmatch(line); m != nil {
			here = m[1] == bridge
			continue
		}
		if !here {
			continue
		}
		if m := traceFlow.FindStringSubmatch(line); m != nil {
			table, err1 := strconv.ParseUint(m[1], 10, 8)
			priority, err2 := strconv.ParseUint(m[3], 10, 16)
			if err1 == nil && err2 == nil {
				out.path = append(out.path, met{table: uint8(table), match: m[2], priority: int(priority)})
			}
		} else if m := traceMiss.FindStringSubmatch(line); m != nil {
			if table, err := strconv.ParseUint(m[1], 10, 8); err == nil {
				out.path = append(out.path, met{table: uint8(table), missed: true})
			}
		} else if m := traceNote.FindStringSubmatch(line); m != nil {
			out.notes = append(out.notes, m[1])
			if traceLost.MatchString(m[1]) {
				out.lost = m[1]
			}
		} else if traceOutput.MatchString(line) {
			out.sent = true
		}
	}
	return out
}
