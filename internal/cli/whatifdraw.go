package cli

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func (a *app) printWhatif(format *outputFormat, r *whatifReport) error {
	for _, u := range r.Unknown {
		fmt.Fprintf(a.err, "flows not known: %s\n", u)
	}
	if !format.forPeople() {
		return a.print(format, r, nil)
	}
	a.warnProblems(r.Problems)
	for _, c := range r.Changes {
		words := map[string]string{"create": "would be created", "change": "would be changed", "delete": "would be deleted", "none": "would stay as it is"}
		if err := a.say("%s %s", c.Object, words[c.Action]); err != nil {
			return err
		}
	}
	for _, n := range r.Notes {
		if err := a.say("note: %s", n); err != nil {
			return err
		}
	}
	tables := []table{drawReach(r, *format == "wide"), drawBroken(r)}
	for i, t := range tables {
		if len(t.rows) == 0 {
			continue
		}
		title := []string{"Who reaches whom would change:", "Flows that would break:"}[i]
		if err := a.say(""); err != nil {
			return err
		}
		if err := a.say("%s", title); err != nil {
			return err
		}
		if err := t.write(a.out); err != nil {
			return err
		}
	}
	if r.Limited != "" {
		if err := a.say("LIMITED: %s", r.Limited); err != nil {
			return err
		}
	}
	if err := a.say(""); err != nil {
		return err
	}
	return a.say("%s", r.sum())
}

// sum is the last line.
func (r *whatifReport) sum() string {
	text := fmt.Sprintf("%s judged that can change, %d would", count(r.Pairs, "pair", "pairs"), r.Changed)
	switch {
	case len(r.Flows) > 0:
		text += fmt.Sprintf("; %s would break", count(len(r.Flows), "flow", "flows"))
	case len(r.Unknown) > 0:
		text += "; not every node could be asked for its flows"
	default:
		text += "; no flow that is known would break"
	}
	return text
}

func drawReach(r *whatifReport, wide bool) table {
	t := table{header: []string{"FROM", "TO", "PORT", "NOW", "THEN", "BECAUSE OF"}}
	for _, g := range r.Reach {
		port := g.Port
		if len(g.Families) == 1 {
			port += " " + g.Families[0]
		}
		from, to := crowd(g.From, r.sizes), crowd(g.To, r.sizes)
		if wide {
			from, to = strings.Join(g.From, ","), strings.Join(g.To, ",")
		}
		t.add(from, to, port, g.Before, g.After, because(g.Policy, g.Direction, g.Why))
	}
	return t
}

func because(p *whyPolicy, direction, why string) string {
	if p == nil {
		return why
	}
	return fmt.Sprintf("%s (%s)", policyText(p.Kind, p.Name, p.Rule, p.RuleName), direction)
}

func drawBroken(r *whatifReport) table {
	t := table{header: []string{"FROM", "TO", "FLOW", "BECAUSE OF"}}
	for _, f := range r.Flows {
		flow := fmt.Sprintf("%s > %s/%s", netip.AddrPortFrom(f.Src, f.SrcPort), netip.AddrPortFrom(f.Dst, f.DstPort), f.Protocol)
		t.add(f.From, f.To, flow, because(f.Policy, f.Direction, f.Why))
	}
	return t
}

// crowd names a list of ends in a few words: a few of each namespace, and how many more.
// sizes are the pods of each namespace that there are.
func crowd(names []string, sizes map[string]int) string {
	const shown = 3
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	var order []string
	by := map[string][]string{}
	for _, n := range names {
		ns, _, pod := strings.Cut(n, "/")
		if !pod || ns == "node" {
			ns = n
		}
		if by[ns] == nil {
			order = append(order, ns)
		}
		by[ns] = append(by[ns], n)
	}
	var out []string
	for _, ns := range order {
		list := by[ns]
		switch {
		case len(list) == 1:
			out = append(out, list[0])
		case sizes[ns] == len(list):
			out = append(out, fmt.Sprintf("all %d of %s", len(list), ns))
		default:
			out = append(out, fmt.Sprintf("%d of %s (%s, …)", len(list), ns, list[0]))
		}
	}
	if len(out) > shown {
		out = append(slices.Clone(out[:shown]), fmt.Sprintf("and more, %d in all", len(names)))
	}
	return strings.Join(out, ", ")
}
