package usage

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// contradictions is the annotation of a flag that names those that it cannot be given with.
const contradictions = "fairlead-contradicts"

// Contradict says that of these flags of a command at most one can be given.
func Contradict(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		// The only mistake is a flag that does not exist.
		_ = cmd.Flags().SetAnnotation(name, contradictions, names)
	}
}

// checkFlags refuses flags that contradict each other, and those that were given nothing: in
// a script, a variable that is not set would silently mean the default.
func checkFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if err != nil || !f.Changed {
			return
		}
		if text := f.Value.String(); text == "" || text == "[]" {
			err = Errorf("%s%s is empty: give it a value, or leave it out (%s)", about(cmd), called(f), expected(f))
			return
		}
		for _, name := range f.Annotations[contradictions] {
			if other := cmd.Flags().Lookup(name); err == nil && other != nil && other != f && other.Changed {
				err = Errorf("%s%s and %s contradict each other: give one", about(cmd), called(f), called(other))
			}
		}
	})
	return err
}

// called is how a person finds a flag in the help.
func called(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand + " (--" + f.Name + ")"
	}
	return "--" + f.Name
}

// flagError says what an error of pflag means.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	var unknown *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	var malformed *pflag.InvalidSyntaxError
	help := cmd.CommandPath() + " --help"
	switch {
	case errors.As(err, &unknown):
		return noFlag(cmd, unknown)
	case errors.As(err, &bare):
		f := bare.GetFlag()
		return Errorf("%s%s needs a value: %s", about(cmd), called(f), expected(f))
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		return Errorf("%s%s was given %s%s: want %s", about(cmd), called(f), Quote(invalid.GetValue()), excess(invalid), wanted(f, invalid.Unwrap()))
	case errors.As(err, &malformed):
		return Errorf("%s%s is no flag: flags are written --name, --name=value or --name value (%s lists them)", about(cmd), Quote(malformed.GetSpecifiedFlag()), help)
	}
	return Errorf("%s%w (%s lists the flags)", about(cmd), err, help)
}

// noFlag names a flag that there is, if one is near.
func noFlag(cmd *cobra.Command, e *pflag.NotExistError) error {
	given := "--" + e.GetSpecifiedName()
	if in := e.GetSpecifiedShortnames(); in != "" {
		given = "-" + e.GetSpecifiedName()
		if in = "-" + in; in[:2] != given { // pflag takes a byte for a letter.
			given = in
		} else if in != given {
			given += ", in " + Quote(in)
		}
	}
	if len(given) > longest {
		given = Quote(given)
	}
	hint := cmd.CommandPath() + " --help lists the flags"
	if near := nearest(cmd, cmp.Or(e.GetSpecifiedShortnames(), e.GetSpecifiedName())); near != "" {
		hint = "did you mean --" + near + "? (" + hint + ")"
	}
	return Errorf("%sthere is no flag %s: %s", about(cmd), given, hint)
}

// nearest is the flag whose name somebody may have meant: one that begins so, is written
// with one dash, or differs in a letter or two.
func nearest(cmd *cobra.Command, name string) string {
	best, distance := "", 3
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || len(name) < 3 || len(name) > longest {
			return
		}
		d := edits(name, f.Name)
		if strings.HasPrefix(f.Name, name) {
			d = 1
		}
		if d < min(distance, len(name)) {
			best, distance = f.Name, d
		}
	})
	return best
}

// edits is how many letters must be inserted, removed or replaced (Levenshtein).
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := diagonal
			if a[i] != b[j] {
				next = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

// kinds are what flags take, by the type's name in pflag, with an example each.
var kinds = map[string]struct{ what, example string }{
	"int":      {"a whole number", "3"},
	"uint64":   {"a whole number that is not negative", "100"},
	"bool":     {"true or false", "false"},
	"duration": {"a duration", "1m30s"},
}

// expected is what a flag takes, with an example: its default, if that is one.
func expected(f *pflag.Flag) string {
	kind, ok := kinds[f.Value.Type()]
	if !ok {
		_, about := pflag.UnquoteUsage(f)
		return about
	}
	example := kind.example
	if !slices.Contains([]string{"", "0", "0s", "false"}, f.DefValue) {
		example = f.DefValue
		// A duration of 1h is written 1h0m0s.
		for _, zero := range []string{"m0s", "h0m"} {
			if rest, ok := strings.CutSuffix(example, zero); ok {
				example = rest + zero[:1]
			}
		}
	}
	between := " "
	if f.NoOptDefVal != "" {
		between = "="
	}
	return kind.what + ", such as --" + f.Name + between + example
}

// wanted is what a flag takes, in its own words where it has some: those of the standard
// library and of pflag's types are about programs.
func wanted(f *pflag.Flag, cause error) string {
	if _, known := kinds[f.Value.Type()]; known || cause == nil {
		return expected(f)
	}
	if strings.HasPrefix(f.Value.Type(), "string") {
		return expected(f) + "; commas stand between the parts of a list, and quotation marks come in pairs"
	}
	return strings.TrimPrefix(cause.Error(), "want ")
}

// excess says that a number would be one, if it were not so large.
func excess(e *pflag.InvalidValueError) string {
	if errors.Is(e, strconv.ErrRange) {
		return ", which is out of range"
	}
	return ""
}
