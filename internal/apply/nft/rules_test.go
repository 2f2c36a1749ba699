package nft_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
)

// Rules finds what the kernel holds as it should be, and nothing else.
func TestRules(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg nft.Config) {
		cfg.Table = "fairlead"
		d, err := nft.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}()
		table := smallTable("a", "b")
		if rules, err := d.Rules(t.Context(), table); err != nil || rules["forward"][0].Handle != 0 {
			t.Fatalf("before there is a table: %+v, %v", rules, err)
		}
		if _, err := d.Apply(t.Context(), table); err != nil {
			t.Fatal(err)
		}
		rules, err := d.Rules(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		text := run(t, cfg.NetNS, "nft", "-a", "list", "table", "inet", "fairlead")
		for i, comment := range []string{"a", "b", "blocked", "from"} {
			r := rules["forward"][i]
			if r.Counted != (i < 2) || r.Handle == 0 || !strings.Contains(text, handleLine(text, comment, r.Handle)) {
				t.Errorf("rule %d: %+v is not that of\n%s", i, r, text)
			}
		}
		other := smallTable("a", "c", "b")
		rules, err = d.Rules(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		for i, there := range []bool{true, false, true, true, true} {
			if got := rules["forward"][i].Handle != 0; got != there {
				t.Errorf("rule %d of another table: found %t, want %t", i, got, there)
			}
		}
	})
}

// handleLine is the end of a rule's line with the given comment and handle, as nft
// prints it.
func handleLine(text, comment string, handle uint64) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, `comment "`+comment+`"`) {
			before, _, _ := strings.Cut(line, " # handle ")
			return strings.TrimSpace(before) + " # handle " + strconv.FormatUint(handle, 10) + "\n"
		}
	}
	return "no rule with comment " + comment
}
