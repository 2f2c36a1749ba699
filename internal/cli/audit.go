package cli

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit [NODE…]", Short: "Compare the kernel with what it should hold, and name what others changed",
		Long:              "Compare the kernel of every node with what it should hold, and name what others changed in\nthe last hour. Exits with 1 if anything differs.",
		ValidArgsFunction: a.completeNodes,
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		answers, failed := ask[admin.Audit](cmd.Context(), a, args, "/v1/audit")
		if len(answers) == 0 && failed != nil {
			return failed
		}
		all := values(answers)
		if err := a.printAudit(format, all); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		if slices.ContainsFunc(all, func(x admin.Audit) bool { return len(x.Differences) > 0 }) {
			return exitError(exitFailed)
		}
		return nil
	}
	return cmd
}

func (a *app) printAudit(format *outputFormat, all []admin.Audit) error {
	if !format.forPeople() {
		return a.print(format, all, nil)
	}
	var lines []string
	for _, x := range all {
		if len(x.Differences) == 0 {
			lines = append(lines, x.Node+": the kernel holds what it should")
		}
		lines = append(lines, once(x.Node+": ", x.Differences)...)
		for _, f := range x.Foreign {
			lines = append(lines, fmt.Sprintf("%s: %s  %s", x.Node, a.local(f.Time).Format(time.TimeOnly), f.Text()))
		}
	}
	for _, l := range lines {
		if err := a.say("%s", l); err != nil {
			return err
		}
	}
	return nil
}

// once lists differences, those that read alike as one line.
func once(prefix string, differences []apply.Difference) []string {
	var lines []string
	for i, n := 0, 0; i < len(differences); i += n {
		text := differences[i].Text()
		for n = 1; i+n < len(differences) && differences[i+n].Text() == text; n++ {
		}
		if n > 1 {
			text += fmt.Sprintf(" (%d of these)", n)
		}
		lines = append(lines, prefix+text)
	}
	return lines
}

func (a *app) journalCommand() *cobra.Command {
	var since time.Duration
	cmd := &cobra.Command{
		Use: "journal NODE", Short: "Show what a node's network did, and when", Args: usage.Arguments(1, 1),
		Example: "  fairlead journal node-1 --since 10m",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeNodes(cmd, args, text)
		},
	}
	format := outputFlag(cmd)
	cmd.Flags().DurationVar(&since, "since", time.Hour, "how far back")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if since < 0 {
			return usagef("--since %s: want no negative duration", since)
		}
		path := "/v1/journal?since=" + url.QueryEscape(a.now().Add(-since).UTC().Format(time.RFC3339))
		answers, err := ask[[]journal.Entry](cmd.Context(), a, args, path)
		if err != nil {
			return err
		}
		entries := slices.Concat(values(answers)...)
		if entries == nil {
			entries = []journal.Entry{}
		}
		return a.print(format, entries, func(bool) table {
			t := table{header: []string{"TIME", "REVISION", "WHAT"}}
			for _, e := range entries {
				revision := "-"
				if e.Revision > 0 {
					revision = fmt.Sprint(e.Revision)
				}
				for _, line := range journalLines(e) {
					t.add(a.local(e.Time).Format(time.DateTime), revision, line)
				}
			}
			return t
		})
	}
	return cmd
}

func journalLines(e journal.Entry) []string {
	var out []string
	if e.Note != "" {
		out = append(out, e.Note)
	}
	for _, f := range e.Foreign {
		out = append(out, f.Text())
	}
	for _, o := range e.Objects {
		out = append(out, "intent: "+o)
	}
	for _, c := range e.Changes {
		out = append(out, "kernel: "+c)
	}
	for _, f := range e.Failed {
		out = append(out, "failed: "+f)
	}
	return out
}
