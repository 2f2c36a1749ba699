package usage

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// program has a flag of every type, and a command of every kind.
func program() *cobra.Command {
	root := &cobra.Command{Use: "tool", Args: Commands, RunE: func(*cobra.Command, []string) error { return nil }, SuggestionsMinimumDistance: 2}
	root.PersistentFlags().String("lab", "", "name of the lab")
	run := func(*cobra.Command, []string) error { return nil }
	make := &cobra.Command{Use: "make THING", Example: "  tool make hay\n  tool make do", Args: Arguments(1, 1), RunE: run}
	f := make.Flags()
	f.IntP("count", "c", 3, "how many")
	f.Uint64("packets", 0, "how many")
	f.Duration("for", 0, "how long")
	f.Duration("wait", 3600e9, "how long")
	f.Bool("dry", false, "change nothing")
	f.StringSlice("subnet", nil, "CIDRs, such as 10.0.0.0/16")
	f.StringP("name", "n", "", "name of the thing")
	f.BoolP("all", "A", false, "all")
	Contradict(make, "name", "all")
	show := &cobra.Command{Use: "show", Args: Arguments(0, 0), RunE: run}
	many := &cobra.Command{Use: "many A B…", Args: Arguments(2, -1), RunE: run}
	group := &cobra.Command{Use: "group"}
	group.AddCommand(&cobra.Command{Use: "one", RunE: run}, &cobra.Command{Use: "two", RunE: run}, &cobra.Command{Use: "secret", Hidden: true, RunE: run})
	root.AddCommand(make, show, many, group)
	Strict(root)
	return root
}

func TestSentences(t *testing.T) {
	long := strings.Repeat("x", 500)
	for _, tt := range []struct {
		line string
		want string // "" is no mistake
	}{
		{"make hay", ""},
		{"make hay --dry=false --wait 1m --subnet a,b -A", ""},
		{"group one anything", ""},
		{"", ""},
		{"help make", ""},
		{"help group two", ""},

		{"make", `make: no argument was given, and it takes one argument: tool make THING, such as tool make hay`},
		{"make a b", `make: "b" is one argument too many: tool make THING, such as tool make hay`},
		{"show x", `show: "x" is one argument too many: it takes none (tool show --help lists its flags)`},
		{"many a", `many: one argument was given, and it takes at least two arguments: tool many A B…`},
		{"many", `many: no argument was given, and it takes at least two arguments: tool many A B…`},

		{"make hay --count many", `make: -c (--count) was given "many": want a whole number, such as --count 3`},
		{"make hay -c 99999999999999999999", `make: -c (--count) was given "99999999999999999999", which is out of range: want a whole number, such as --count 3`},
		{"make hay --packets -1", `make: --packets was given "-1": want a whole number that is not negative, such as --packets 100`},
		{"make hay --for 5", `make: --for was given "5": want a duration, such as --for 1m30s`},
		{"make hay --wait soon", `make: --wait was given "soon": want a duration, such as --wait 1h`},
		{"make hay --dry=maybe", `make: --dry was given "maybe": want true or false, such as --dry=false`},
		{`make hay --subnet a,"b`, `make: --subnet was given "a,\"b": want CIDRs, such as 10.0.0.0/16; commas stand between the parts of a list, and quotation marks come in pairs`},
		{"make hay --count " + long, `make: -c (--count) was given "` + long[:64] + `"…: want a whole number, such as --count 3`},

		{"make hay --count", `make: -c (--count) needs a value: a whole number, such as --count 3`},
		{"make hay -n", `make: -n (--name) needs a value: name of the thing`},
		{"make hay --name=", `make: -n (--name) is empty: give it a value, or leave it out (name of the thing)`},
		{"show --lab=", `show: --lab is empty: give it a value, or leave it out (name of the lab)`},
		{"make hay --subnet=", `make: --subnet is empty: give it a value, or leave it out (CIDRs, such as 10.0.0.0/16)`},
		{"make hay -A -n x", `make: -A (--all) and -n (--name) contradict each other: give one`},

		{"make hay --cuont 3", `make: there is no flag --cuont: did you mean --count? (tool make --help lists the flags)`},
		{"make hay -count 3", `make: -c (--count) was given "ount": want a whole number, such as --count 3`},
		{"make hay -subnet 3", `make: there is no flag -s, in "-subnet": did you mean --subnet? (tool make --help lists the flags)`},
		{"make hay -z", `make: there is no flag -z: tool make --help lists the flags`},
		{"make hay -é", `make: there is no flag -é: tool make --help lists the flags`},
		{"make hay --zz", `make: there is no flag --zz: tool make --help lists the flags`},
		{"make hay --" + long, `make: there is no flag "--` + long[:62] + `"…: tool make --help lists the flags`},
		{"---x", `"---x" is no flag: flags are written --name, --name=value or --name value (tool --help lists them)`},
		{"--nonsense", `there is no flag --nonsense: tool --help lists the flags`},

		{"shwo", `there is no command "shwo": did you mean show?`},
		{"frobnicate", `there is no command "frobnicate": tool --help lists the commands`},
		{"group", `group: say which: one, two`},
		{"group three", `group: "three" is none of one, two`},
		{"help nosuch", `there is no command "nosuch": tool --help lists the commands`},
		{"help group three", `group: "three" is none of one, two`},
		{"completion", `completion: say which: bash, fish, powershell, zsh`},
		{"completion bash x", `completion bash: "x" is one argument too many: it takes none (tool completion bash --help lists its flags)`},
	} {
		root := program()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(strings.Fields(tt.line))
		err := root.Execute()
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%q:\n got %s\nwant %s", tt.line, got, tt.want)
		}
		if err != nil && !errors.As(err, new(Error)) {
			t.Errorf("%q: %T is not an Error", tt.line, err)
		}
		if err != nil && out.Len() > 0 {
			t.Errorf("%q: printed %q", tt.line, out.String())
		}
	}
}

// What cobra, pflag and strconv say of a mistake reaches nobody.
func TestNoWordsOfLibraries(t *testing.T) {
	for _, line := range []string{
		"make", "make a b c", "show a", "many", "make a --count x", "make a --packets x", "make a --for x", "make a --dry=x", `make a --subnet "`, "make a --count", "make a -c",
		"make a -q", "--q", "---q", "--=q", "-=q", "make a -c=", "help a b", "completion tcsh", "group a", "-", "--", "make a --count=9e99", "make a --wait 9999999h",
	} {
		root := program()
		root.SetArgs(strings.Fields(line))
		root.SetOut(&bytes.Buffer{})
		err := root.Execute()
		if err == nil {
			continue
		}
		for _, word := range []string{"strconv", "parsing", "arg(s)", "shorthand", "invalid argument", "pflag", "time:", "bad flag", "unknown", "parse error"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%q: %q is in %q", line, word, err)
			}
		}
	}
}
