package cli

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const docs = "../../docs"

func readDoc(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// commands are those that people call, by path without "fairlead".
func commands(t *testing.T) map[string]*cobra.Command {
	t.Helper()
	out := map[string]*cobra.Command{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "help" || c.Hidden {
			return
		}
		path := strings.TrimPrefix(c.CommandPath(), "fairlead ")
		if c.Name() == "completion" || !c.HasSubCommands() {
			out[path] = c
			return
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).root())
	if len(out) < 25 {
		t.Fatalf("only %d commands were found: %v", len(out), slices.Sorted(maps.Keys(out)))
	}
	return out
}

// Every command has its place in docs/cli.md, and every flag stands beside its command.
func TestEveryCommandAndFlagIsDocumented(t *testing.T) {
	text := readDoc(t, filepath.Join(docs, "cli.md"))
	for path, cmd := range commands(t) {
		var about []string
		for line := range strings.Lines(text) {
			if regexp.MustCompile("`" + path + "[` \\[]").MatchString(line) {
				about = append(about, line)
			}
		}
		if len(about) == 0 {
			t.Errorf("docs/cli.md does not mention %q", path)
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			lines := about
			if f.Name == "output" && cmd.Name() != "diag" {
				lines = strings.Split(text, "\n")
			}
			if f.Name != "help" && !slices.ContainsFunc(lines, func(l string) bool { return mentions(l, f) }) {
				t.Errorf("docs/cli.md does not mention --%s where it mentions %q", f.Name, path)
			}
		})
	}
	(&app{}).root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !mentions(text, f) {
			t.Errorf("docs/cli.md does not mention --%s", f.Name)
		}
		if f.DefValue != "" && f.DefValue != "[]" && !strings.Contains(text, "`"+f.DefValue+"`") {
			t.Errorf("docs/cli.md does not mention that --%s is %s by default", f.Name, f.DefValue)
		}
	})
}

func mentions(text string, f *pflag.Flag) bool {
	names := "--" + f.Name
	if f.Shorthand != "" {
		names += "|-" + f.Shorthand
	}
	return regexp.MustCompile("(^|[^-\\w])(" + names + ")([^-\\w]|$)").MatchString(text)
}

var (
	// spans are code inside of a line, in the README and in docs.
	spans = regexp.MustCompile("`([^`]+)`")
	// flagWords are flags in a command line or a synopsis.
	flagWords = regexp.MustCompile(`(?:^|[\s\[(|])(--?[a-z][-a-z]*)`)
)

// Every "fairlead …" that the documentation shows is a command with those flags.
func TestDocumentedCommandsExist(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range append(files, "../../README.md", "../../examples/README.md", "../../demo.sh") {
		for line := range strings.Lines(readDoc(t, file)) {
			for _, text := range commandLines(line) {
				found++
				checkLine(t, file, text)
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d command lines were found in the documentation", found)
	}
}

// commandLines are the calls of fairlead in a line of Markdown or of a script.
func commandLines(line string) []string {
	var parts []string
	for _, m := range spans.FindAllStringSubmatch(line, -1) {
		parts = append(parts, m[1])
	}
	parts = append(parts, spans.ReplaceAllString(line, ""))
	var out []string
	for i, p := range parts {
		p, _, _ = strings.Cut(p, " #")
		code := i < len(parts)-1 || strings.HasPrefix(line, "  ")
		for call := range strings.FieldsFuncSeq(p, func(r rune) bool { return strings.ContainsRune(";&(), …", r) && r != ' ' }) {
			call = strings.TrimSpace(call)
			for _, name := range []string{"fairlead ", "bin/fairlead ", "$fairlead "} {
				if rest, ok := strings.CutPrefix(call, name); ok && code && !strings.HasPrefix(call, "fairlead ─") {
					out = append(out, rest)
				}
			}
		}
	}
	return out
}

func checkLine(t *testing.T, file, line string) {
	t.Helper()
	root := (&app{}).root()
	words := strings.Fields(line)
	cmd, _, err := root.Find(words)
	if err != nil || cmd == root && !strings.HasPrefix(words[0], "-") {
		t.Errorf("%s: there is no command %q", file, line)
		return
	}
	if cmd.HasSubCommands() && cmd != root {
		rest := strings.Fields(strings.TrimPrefix("fairlead "+line, cmd.CommandPath()))
		if len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
			t.Errorf("%s: %q is no command of %q", file, rest[0], cmd.CommandPath())
		}
	}
	own, _, _ := strings.Cut(line, " -- ")
	cmd.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	for _, m := range flagWords.FindAllStringSubmatch(own, -1) {
		name := strings.TrimLeft(m[1], "-")
		known := cmd.Flag(name) != nil
		if !strings.HasPrefix(m[1], "--") {
			known = len(name) == 1 && (cmd.Flags().ShorthandLookup(name) != nil || cmd.InheritedFlags().ShorthandLookup(name) != nil)
		}
		if !known {
			t.Errorf("%s: %q has no flag %s", file, cmd.CommandPath(), m[1])
		}
	}
}

// The synopses of docs/cli.md name flags that exist.
func TestDocumentedFlagsExist(t *testing.T) {
	all := commands(t)
	for line := range strings.Lines(readDoc(t, filepath.Join(docs, "cli.md"))) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range spans.FindAllStringSubmatch(strings.ReplaceAll(line, `\|`, "|"), -1) {
			for path := range all {
				if m[1] == path || strings.HasPrefix(m[1], path+" ") {
					checkLine(t, "cli.md", m[1])
				}
			}
		}
	}
}

// Links between pages lead somewhere.
func TestDocumentationLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	files, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md") {
		for _, m := range link.FindAllStringSubmatch(readDoc(t, file), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			}
		}
	}
}
