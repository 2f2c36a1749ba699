package ovs

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

var update = flag.Bool("update", false, "rewrite the golden files")

type example struct {
	node    intent.Node
	options Options
}

func examples() map[string]example {
	return map[string]example{
		"empty":      {node: intent.Node{Name: "n1"}},
		"same-node":  {node: single()},
		"cross-node": {node: withPeers(single())},
		"policy":     {node: restricted()},
		"tenants":    {node: tenants()},
		"routed":     {node: routed()},
		"ipv6":       {node: onlyIPv6()},
		"adopting":   {node: single(), options: Options{Adopting: true}},
	}
}

// text is flows as people read them: by table, each behind a comment.
func text(flows []of.Flow) string {
	flows = slices.Clone(flows)
	of.Sort(flows)
	var b strings.Builder
	table := -1
	for _, f := range flows {
		if int(f.Table) != table {
			table = int(f.Table)
			fmt.Fprintf(&b, "\n=== %d %s\n", table, TableName(f.Table))
		}
		line := strings.TrimPrefix(f.String(), fmt.Sprintf("cookie=%#x, ", claims.OVSCookie))
		line = strings.TrimPrefix(line, fmt.Sprintf("table=%d, ", f.Table))
		fmt.Fprintf(&b, "# %s\n%s\n", f.Comment, line)
	}
	return strings.TrimPrefix(b.String(), "\n")
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", file, diff)
	}
}

func TestGolden(t *testing.T) {
	for name, e := range examples() {
		t.Run(name, func(t *testing.T) {
			numbers := numbersOf(e.node)
			if name == "empty" {
				numbers = nil
			} else if errs := intent.Validate(e.node); len(errs) > 0 {
				t.Fatalf("the example is no intent: %v", errs)
			}
			p := Render(e.node, numbers, e.options)
			check(t, p)
			if name != "empty" && len(p.Problems) > 0 {
				t.Errorf("problems: %v", p.Problems)
			}
			golden(t, name+".flows", text(p.Flows()))
		})
	}
}

// check holds what is true of every pipeline.
func check(t interface {
	Helper()
	Errorf(format string, args ...any)
}, p *Pipeline,
) {
	t.Helper()
	seen := map[of.Key]of.Flow{}
	var last string
	for i, part := range p.Parts {
		if i > 0 && part.Name <= last {
			t.Errorf("part %q comes after %q", part.Name, last)
		}
		last = part.Name
	}
	for _, f := range p.Flows() {
		if err := f.Validate(); err != nil {
			t.Errorf("%v", err)
		}
		if other, there := seen[f.Key()]; there {
			t.Errorf("two flows with one key:\n%s # %s\n%s # %s", f, f.Comment, other, other.Comment)
		}
		seen[f.Key()] = f
		if f.Comment == "" || f.Cookie&claims.OVSCookieMask != claims.OVSCookie {
			t.Errorf("a flow without comment or with a foreign cookie: %s", f)
		}
		if tableNames[f.Table] == "" {
			t.Errorf("a flow of a table without a name: %s", f)
		}
	}
}

// The flows of the examples are fingerprinted: whoever changes them raises Version, so
// that the agent knows an upgrade of the pipeline when it meets one.
func TestVersion(t *testing.T) {
	var all []byte
	list := examples()
	for _, name := range slices.Sorted(maps.Keys(list)) {
		h := of.Hash(Render(list[name].node, numbersOf(list[name].node), list[name].options).Flows())
		all = append(all, h[:]...)
	}
	sum := sha256.Sum256(all)
	got := fmt.Sprintf("version %d: %s\n", Version, hex.EncodeToString(sum[:]))
	file := filepath.Join("testdata", "version")
	recorded, err := os.ReadFile(file)
	if err == nil && strings.HasPrefix(string(recorded), fmt.Sprintf("version %d:", Version)) && string(recorded) != got {
		t.Fatalf("the flows of the examples have changed: raise Version in layout.go (and run with -update)\nwant %sgot %s", recorded, got)
	}
	golden(t, "version", got)
}

func shuffle[T any](r *rand.Rand, list []T) []T {
	list = slices.Clone(list)
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

func TestRenderIgnoresOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, e := range examples() {
		want := text(Render(e.node, numbersOf(e.node), e.options).Flows())
		numbers := numbersOf(e.node)
		for range 10 {
			n := e.node
			n.VPCs, n.Subnets, n.Peers, n.Routes = shuffle(r, n.VPCs), shuffle(r, n.Subnets), shuffle(r, n.Peers), shuffle(r, n.Routes)
			n.Tunnels, n.Ports, n.NATs = shuffle(r, n.Tunnels), shuffle(r, n.Ports), shuffle(r, n.NATs)
			n.AddressSets, n.RuleLists = shuffle(r, n.AddressSets), shuffle(r, n.RuleLists)
			if diff := cmp.Diff(want, text(Render(n, numbers, e.options).Flows())); diff != "" {
				t.Fatalf("%s: order changed the flows (-want +got):\n%s", name, diff)
			}
		}
	}
}

// The flows that the documentation shows are real ones.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "pipeline-ovs.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, e := range examples() {
		for _, f := range Render(e.node, numbersOf(e.node), e.options).Flows() {
			f.Cookie = 0
			known[f.String()] = true
		}
	}
	shown := 0
	for line := range strings.Lines(string(doc)) {
		if !strings.HasPrefix(line, "table=") {
			continue
		}
		f, err := of.ParseFlow(strings.Replace(strings.TrimSpace(line), ":", ",", 1))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if shown++; !known[f.String()] {
			t.Errorf("no example has the flow %s", line)
		}
	}
	if shown == 0 {
		t.Error("no flow is shown")
	}
	for table, name := range tableNames {
		if !strings.Contains(string(doc), name) {
			t.Errorf("table %d, %s, is not explained", table, name)
		}
	}
}
