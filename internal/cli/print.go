package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// table is what people read.
type table struct {
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	for _, row := range append([][]string{t.header}, t.rows...) {
		cells := make([]string, len(row))
		for i, c := range row {
			// A cell is one line: objects are data, and may hold anything.
			cells[i] = oneLine(c)
		}
		if _, err := fmt.Fprintln(tw, strings.TrimRight(strings.Join(cells, "\t"), "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// oneLine replaces what would leave a cell, or drive a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

// outputFlag adds -o and returns where its value will be.
func outputFlag(cmd *cobra.Command) *string {
	format := cmd.Flags().StringP("output", "o", "table", "table, wide, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "wide", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return format
}

// print writes value as JSON or YAML, or the table that draw makes of it.
func (a *app) print(format string, value any, draw func(wide bool) table) error {
	switch format {
	case "table", "wide":
		t := draw(format == "wide")
		if len(t.rows) == 0 {
			fmt.Fprintln(a.err, "nothing found")
			return nil
		}
		return t.write(a.out)
	case "json":
		e := json.NewEncoder(a.out)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		raw, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = a.out.Write(raw)
		return err
	}
	return usagef("-o %q: want table, wide, json or yaml", format)
}

// age is how long ago t was, as kubectl writes it.
func age(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	d := time.Since(t)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 3*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 72*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
