package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

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

// drives tells whether a terminal may take r for an order: control characters, and
// those that reverse what is written (Unicode UAX 9).
func drives(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// oneLine replaces what would leave a line, or drive a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if drives(r) {
			return ' '
		}
		return r
	}, s)
}

// longestWord is how long a word of a message may be, in bytes, and keptOfWord what is left of
// a longer one: somebody's mistake is not worth a screen.
const (
	longestWord = 512
	keptOfWord  = 64
)

// cutWords shortens words that nobody reads.
func cutWords(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		end := strings.IndexAny(text, " \t\n")
		if end < 0 {
			end = len(text)
		}
		word := text[:end]
		if len(word) > longestWord {
			word = strings.ToValidUTF8(word[:keptOfWord], "") + "…" + strings.ToValidUTF8(word[len(word)-keptOfWord/4:], "")
		}
		b.WriteString(word)
		b.WriteString(text[end:min(end+1, len(text))])
		text = text[min(end+1, len(text)):]
	}
	return b.String()
}

// clean passes messages on without what could drive a terminal, or fill it. Lines stay lines.
type clean struct{ w io.Writer }

// Write implements io.Writer; p holds whole characters.
func (c clean) Write(p []byte) (int, error) {
	text := strings.Map(func(r rune) rune {
		if drives(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, string(p))
	if _, err := io.WriteString(c.w, cutWords(text)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// say prints one line for people.
func (a *app) say(format string, args ...any) error {
	_, err := fmt.Fprintln(a.out, oneLine(fmt.Sprintf(format, args...)))
	return err
}

// formats are what -o takes.
var formats = []string{"table", "wide", "json", "yaml"}

const formatNames = "table, wide, json or yaml"

// outputFormat is the value of -o; it refuses others before anything is done.
type outputFormat string

// String implements pflag.Value.
func (f *outputFormat) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *outputFormat) Type() string { return "format" }

// Set implements pflag.Value.
func (f *outputFormat) Set(s string) error {
	if !slices.Contains(formats, s) {
		return errors.New("want " + formatNames)
	}
	*f = outputFormat(s)
	return nil
}

// forPeople tells a table from what programs read.
func (f *outputFormat) forPeople() bool { return *f == "table" || *f == "wide" }

// outputFlag adds -o and returns where its value will be.
func outputFlag(cmd *cobra.Command) *outputFormat {
	format := outputFormat("table")
	cmd.Flags().VarP(&format, "output", "o", formatNames)
	// The only mistake is a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return &format
}

// print writes value as JSON or YAML, or the table that draw makes of it.
func (a *app) print(format *outputFormat, value any, draw func(wide bool) table) error {
	if format.forPeople() {
		t := draw(*format == "wide")
		if len(t.rows) == 0 {
			fmt.Fprintln(a.err, "nothing found")
			return nil
		}
		return t.write(a.out)
	}
	raw, err := encode(*format, value)
	if err != nil {
		return err
	}
	_, err = a.out.Write(raw)
	return err
}

func encode(format outputFormat, value any) ([]byte, error) {
	if format == "yaml" {
		return yaml.Marshal(value)
	}
	raw, err := json.MarshalIndent(value, "", "  ")
	return append(escape(raw), '\n'), err
}

// escape writes as \uXXXX what JSON would allow in strings and a terminal could take
// for an order; elsewhere JSON has no such characters.
func escape(raw []byte) []byte {
	if !bytes.ContainsFunc(raw, func(r rune) bool { return r != '\n' && drives(r) }) {
		return raw
	}
	var out bytes.Buffer
	for _, r := range string(raw) {
		if r != '\n' && drives(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.Bytes()
}

// age is how long ago t was, as kubectl writes it.
func (a *app) age(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	d := max(a.now().Sub(t), 0)
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

// local is t in the zone of who reads it.
func (a *app) local(t time.Time) time.Time { return t.In(a.now().Location()) }
