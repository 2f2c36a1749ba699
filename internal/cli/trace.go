package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/internal/apply"
)

func (a *app) traceCommand() *cobra.Command {
	return a.explainCommand(&cobra.Command{
		Use: "trace SRC DST:PORT/PROTO", Short: "Follow a packet stage by stage: oracle, rendered rules, and the live nodes",
		Long: `Follow the first packet of a flow stage by stage, on the sender's node and on the
receiver's.

Three columns: what the oracle says; the way through the rules that Fairlead has rendered,
with the names of tables, chains and programs; and what the node itself holds and does:
handles, counters, maps, routes, neighbours, and on Open vSwitch the switch's own trace
(ofproto/trace). If they do not agree, the exit code is 3.

` + endsHelp,
		Example: "  fairlead trace shop/web shop/db:5432/TCP\n  fairlead trace shop/web 8.8.8.8:53/UDP -o wide",
	}, a.printTrace)
}

// printTrace draws the way of a packet.
func (a *app) printTrace(f whyFlow, wide bool) error {
	if err := a.sayVerdict(f); err != nil {
		return err
	}
	var b bytes.Buffer
	t := drawTrace(f.groups(), wide)
	if err := t.write(&b); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	for line := range strings.Lines(b.String()) {
		fmt.Fprintln(a.out, strings.TrimRight(line, " \n"))
	}
	fmt.Fprintln(a.out)
	return a.sayAgreement(f)
}

// traceGroup is a run of steps that are about one stage, on one node; a stage of the
// oracle that no rule is about is alone.
type traceGroup struct {
	// stage and oracle are what the oracle says, empty if it said so before.
	stage, oracle string
	// node is where the steps are, empty for none; silent is why there is no step.
	node, silent string
	steps        []apply.Step
}

// groups are the way in the order of the packet.
func (f whyFlow) groups() []traceGroup {
	var walked []traceGroup
	for _, n := range f.Nodes {
		walked = append(walked, n.groups()...)
	}
	var out []traceGroup
	home := f.homes(walked)
	said := 0
	// tell adds what the oracle said of stages before one that no step is about.
	tell := func(before int) {
		for ; said < before; said++ {
			if home[said] < 0 {
				out = append(out, traceGroup{stage: f.Stages[said].Name, oracle: f.Stages[said].text()})
			}
		}
	}
	for i, g := range walked {
		if k := slices.Index(home, i); k >= 0 {
			tell(k)
			g.stage, g.oracle = f.Stages[k].Name, f.Stages[k].text()
		}
		out = append(out, g)
	}
	tell(len(f.Stages))
	return out
}

// groups are the steps of a node by stage.
func (n whyNode) groups() []traceGroup {
	name := n.Node
	if n.Explanation == nil {
		return []traceGroup{{node: name, silent: "no evidence: " + strings.TrimPrefix(n.Error, "node "+n.Node+": ")}}
	}
	if n.Explanation.Plane != "" {
		name += " (" + n.Explanation.Plane + ")"
	}
	if n.Explanation.Rules == nil {
		return []traceGroup{{node: name, silent: n.Explanation.NoRules}}
	}
	var out []traceGroup
	for i, s := range n.Explanation.Rules.Steps {
		if i == 0 || s.Stage != n.Explanation.Rules.Steps[i-1].Stage {
			out = append(out, traceGroup{node: name})
		}
		last := &out[len(out)-1]
		last.steps = append(last.steps, s)
	}
	return out
}

// homes are, for each stage of the oracle, the group beside which it stands; -1 is none.
// The last node judges what the receiver's policies allow, the first one all else.
func (f whyFlow) homes(walked []traceGroup) []int {
	out := make([]int, len(f.Stages))
	taken := map[int]bool{}
	for k, s := range f.Stages {
		about := func(i int) bool {
			return !taken[i] && len(walked[i].steps) > 0 && walked[i].steps[0].Stage == s.Name
		}
		out[k] = -1
		late := s.Name == apply.StageIngress || s.Name == apply.StageDelivery || s.Name == apply.StageTenant
		for i := range walked {
			if about(i) && (out[k] < 0 || late && walked[i].node != walked[out[k]].node) {
				out[k] = i
			}
		}
		if out[k] >= 0 {
			taken[out[k]] = true
		}
	}
	return out
}

func (s whyStage) text() string { return passWord(s.Pass) + ": " + s.Why }

// The widths of columns that are folded, in characters.
const (
	oracleWidth = 40
	rulesWidth  = 64
	liveWidth   = 44
)

// drawTrace draws groups; wide ones are not folded, and show the text of rules.
func drawTrace(groups []traceGroup, wide bool) table {
	t := table{header: []string{"STAGE", "ORACLE", "NODE", "RULES", "LIVE"}}
	fold := wrap
	if wide {
		t.header = append(t.header, "TEXT")
		fold = func(text string, _ int) []string { return []string{text} }
	}
	node := ""
	for _, g := range groups {
		oracle := fold(g.oracle, oracleWidth)
		var rules, live, text []string
		for _, s := range g.steps {
			a, b := fold(stepText(s), rulesWidth), fold(brief(s.Live), liveWidth)
			n := max(len(a), len(b))
			rules, live = append(rules, padded(a, n)...), append(live, padded(b, n)...)
			text = append(text, padded([]string{brief(s.Text)}, n)...)
		}
		if g.silent != "" {
			rules = fold(g.silent, rulesWidth)
		}
		n := max(len(oracle), len(rules))
		oracle, rules, live, text = padded(oracle, n), padded(rules, n), padded(live, n), padded(text, n)
		for i := range n {
			// Not empty at the end: a table aligns columns only as far as rows have cells.
			row := []string{"", oracle[i], "", rules[i], live[i] + " "}
			if i == 0 {
				row[0] = g.stage
				if g.node != node && g.node != "" {
					row[2], node = g.node, g.node
				}
			}
			if wide {
				row = append(row, text[i]+" ")
			}
			t.add(row...)
		}
	}
	return t
}

// padded has n entries.
func padded(list []string, n int) []string {
	for len(list) < n {
		list = append(list, "")
	}
	return list
}

// stepText is a step in names: what table or chain, which rule, what it does.
func stepText(s apply.Step) string {
	place := "chain " + s.Chain
	switch {
	case s.Hook == "bridge":
		place = "table " + s.Chain
	case s.Hook == "route":
		place = "route " + s.Text
	case strings.HasPrefix(s.Chain, "program "):
		place = s.Chain
	case s.Chain == "":
		place = s.Hook
	}
	if s.Comment != "" {
		place += ": " + brief(s.Comment)
	} else if s.Rule >= 0 {
		place += ": " + brief(s.Text)
	}
	return place + " → " + s.Effect
}

// longID are the identifiers of containers.
var longID = regexp.MustCompile(`\b([0-9a-f]{12})[0-9a-f]{20,}\b`)

// brief shortens identifiers, as container tools do.
func brief(text string) string { return longID.ReplaceAllString(text, "$1") }

// wrap breaks a text between words into lines of a width; a longer word has a line.
func wrap(text string, width int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) > width:
			out = append(out, line)
			line = word
		default:
			line += " " + word
		}
	}
	if line != "" {
		out = append(out, line)
	}
	return out
}
