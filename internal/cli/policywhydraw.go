package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// printWhy writes a report, for people with draw.
func (a *app) printWhy(format *outputFormat, r *whyReport, draw func(f whyFlow, wide bool) error) error {
	for _, f := range r.Flows {
		for _, n := range f.Nodes {
			if n.Error != "" {
				fmt.Fprintf(a.err, "no evidence of node %s: %s\n", n.Node, n.Error)
			}
		}
	}
	if !format.forPeople() {
		return a.print(format, r, nil)
	}
	for _, note := range r.Notes {
		if err := a.say("note: %s", note); err != nil {
			return err
		}
	}
	for i, f := range r.Flows {
		if i > 0 || len(r.Notes) > 0 {
			fmt.Fprintln(a.out)
		}
		if err := draw(f, *format == "wide"); err != nil {
			return err
		}
	}
	// What stands at the end must not hide what stands above.
	disagree := 0
	for _, f := range r.Flows {
		disagree += min(len(f.Disagreements), 1)
	}
	if disagree > 0 && len(r.Flows) > 1 {
		fmt.Fprintln(a.out)
		return a.say("Of %d pairs of addresses, %s.", len(r.Flows), count(disagree, "DISAGREES", "DISAGREE"))
	}
	return nil
}

// printWhyFlow tells which policies decide, and what the nodes have of them.
func (a *app) printWhyFlow(f whyFlow, wide bool) error {
	if err := a.sayVerdict(f); err != nil {
		return err
	}
	for _, t := range []table{f.drawStages(), f.drawPolicies(), f.drawLists(), f.drawRules(wide)} {
		if err := a.sayTable(t); err != nil {
			return err
		}
	}
	fmt.Fprintln(a.out)
	return a.sayAgreement(f)
}

// sayTable writes a table behind an empty line, if it has rows.
func (a *app) sayTable(t table) error {
	if len(t.rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	return t.write(a.out)
}

// sayVerdict tells what the oracle says.
func (a *app) sayVerdict(f whyFlow) error {
	port := f.Packet.Protocol.String()
	if f.Packet.DstPort != 0 {
		port = fmt.Sprintf("%d/%s", f.Packet.DstPort, f.Packet.Protocol)
	}
	word := "DENIED"
	if f.Allowed {
		word = "ALLOWED"
	}
	if err := a.say("%s  %s → %s, %s", word, placeText(f.From, f.Packet.Src), placeText(f.To, f.Packet.Dst), port); err != nil {
		return err
	}
	return a.say("  %s", f.Why)
}

func (a *app) sayAgreement(f whyFlow) error {
	for _, d := range f.Disagreements {
		if err := a.say("DISAGREEMENT  %s", d); err != nil {
			return err
		}
	}
	var silent []string
	for _, m := range f.Missing {
		silent = append(silent, fmt.Sprintf("no evidence of %s: %s", m.Node, m.Reason))
	}
	asked, rules := 0, 0
	for _, n := range f.Nodes {
		if n.Explanation != nil {
			asked++
			if n.Explanation.Rules != nil {
				rules++
			}
		}
	}
	switch {
	case len(f.Disagreements) > 0:
		for _, text := range silent {
			if err := a.say("%s", text); err != nil {
				return err
			}
		}
		return a.say("The sources DISAGREE: one of them is wrong. fairlead diag -o FILE gathers what a report needs.")
	case len(silent) > 0 && asked > 0:
		return a.say("%s; the rest agrees.", strings.Join(silent, "; "))
	case len(silent) > 0:
		return a.say("%s; this is what the objects say.", strings.Join(silent, "; "))
	case asked == 0:
		return a.say("This is what the objects say; no node was asked.")
	case rules == 0:
		return a.say("The objects and the nodes' rule lists agree.")
	}
	return a.say("The objects, the nodes' rule lists and the kernels' rules agree.")
}

func placeText(p whyPlace, a netip.Addr) string {
	switch p.Kind {
	case "pod":
		return fmt.Sprintf("%s (%s on %s)", p.Pod, a, p.Node)
	case "node":
		return fmt.Sprintf("node %s (%s)", p.Node, a)
	}
	return fmt.Sprintf("outside (%s)", a)
}

func (f whyFlow) drawStages() table {
	t := table{header: []string{"STAGE", "RESULT", "WHY"}}
	for _, s := range f.Stages {
		t.add(s.Name, passWord(s.Pass), s.Why)
	}
	return t
}

func passWord(pass bool) string {
	if pass {
		return "pass"
	}
	return "CUT"
}

func (f whyFlow) drawPolicies() table {
	t := table{header: []string{"DIRECTION", "TIER", "POLICY", "RULE", "ACTION"}}
	for _, list := range [][]whyStage{f.Egress, f.Ingress} {
		for _, s := range list {
			p := s.Policy
			if p == nil {
				t.add(s.Name, "-", "-", "-", allowWord(s.Pass)+": "+s.Why)
				continue
			}
			rule := fmt.Sprint(p.Rule)
			switch {
			case p.Rule < 0:
				rule = "none allows"
			case p.RuleName != "":
				rule += " (" + p.RuleName + ")"
			}
			t.add(s.Name, p.Tier, p.Kind+" "+p.Name, rule, p.Action)
		}
	}
	return t
}

func (f whyFlow) drawLists() table {
	t := table{header: []string{"NODE", "DIRECTION", "LIST", "RESULT", "DECIDED BY"}}
	for _, n := range f.Nodes {
		if n.Explanation == nil {
			t.add(n.Node, "-", "-", "unknown", n.Error)
			continue
		}
		if j := n.Explanation.Egress; j != nil {
			t.add(n.Node, "egress", cmp.Or(j.List, "-"), allowWord(j.Allowed), judgementText(j))
		}
		if j := n.Explanation.Ingress; j != nil {
			t.add(n.Node, "ingress", cmp.Or(j.List, "-"), allowWord(j.Allowed), judgementText(j))
		}
	}
	return t
}

func (f whyFlow) drawRules(wide bool) table {
	t := table{header: []string{"NODE", "HOOK", "CHAIN", "RULE", "HANDLE", "PACKETS", "EFFECT", "COMMENT"}}
	if wide {
		t.header = append(t.header, "TEXT")
	}
	for _, n := range f.Nodes {
		if n.Explanation == nil {
			continue
		}
		w := n.Explanation.Rules
		if w == nil {
			row := []string{n.Node, "-", "-", "-", "-", "-", "-", n.Explanation.NoRules, "-"}
			t.add(row[:len(t.header)]...)
			continue
		}
		for _, s := range w.Steps {
			rule, handle, packets := "end", "-", "-"
			if s.Rule >= 0 {
				rule, handle = fmt.Sprint(s.Rule), "MISSING"
			}
			switch {
			case s.Handle != 0 && s.Hook == "bridge":
				handle = fmt.Sprintf("%#x", s.Handle) // a cookie
			case s.Handle != 0:
				handle = fmt.Sprint(s.Handle)
			}
			if s.Packets != nil {
				packets = fmt.Sprint(*s.Packets)
			}
			row := []string{n.Node, s.Hook, s.Chain, rule, handle, packets, s.Effect, dash(brief(s.Comment))}
			if wide {
				row = append(row, dash(s.Text))
			}
			t.add(row...)
		}
	}
	return t
}

// judgementText is what decided on a node, for people.
func judgementText(j *admin.Judgement) string {
	if j.Rule == nil {
		return j.Reason
	}
	return fmt.Sprintf("rule %d: %s by %s", j.Rule.Index, j.Rule.Action, policyText(j.Rule.Kind, j.Rule.Policy, j.Rule.PolicyRule, j.Rule.Name))
}

// policyText names a policy and its rule.
func policyText(kind, name string, rule int, ruleName string) string {
	short := map[string]string{string(world.KindNetworkPolicy): "netpol", string(world.KindClusterNetworkPolicy): "cnp"}
	text := cmp.Or(short[kind], kind) + "/" + name
	switch {
	case rule < 0:
		return text + ", which isolates the pod"
	case ruleName != "":
		return fmt.Sprintf("%s rule %d (%q)", text, rule, ruleName)
	}
	return fmt.Sprintf("%s rule %d", text, rule)
}
