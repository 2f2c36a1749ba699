package nft

import (
	"bufio"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// FuzzParse feeds arbitrary bytes to everything that reads the kernel's messages.
func FuzzParse(f *testing.F) {
	b := newBatch("fairlead", 1, 7)
	set := nftables.Set{Name: "s", Key: []nftables.Type{nftables.TypeIfName, nftables.TypeIPv4Addr}, Interval: true, Counter: true}
	s := encodeSet(set)
	b.newTable(tableFlagsOwned, true)
	b.newChain(&chainState{name: "c", base: &nftables.Base{Hook: nftables.HookForward}})
	b.newSet(set, s, 1)
	s.elements["\x01\x02\x03\x04\x05\x06\x07\x08"] = ""
	b.elements(s, []string{"\x01\x02\x03\x04\x05\x06\x07\x08"}, false)
	e := encoder{}
	e.statement(nftables.Counter{})
	b.newRule("c", 0, ruleState{exprs: e.b, comment: "hello"}, 0)
	f.Add(b.finish())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		w := watcher{table: "fairlead", pending: map[uint32]*Foreign{}, fn: func(Foreign) {}}
		_ = messages(data, func(m message) error {
			parseAll(m.attributes())
			_ = parseError(m)
			_ = w.event(m)
			return nil
		})
		parseAll(data)
		_ = portInode(bufio.NewScanner(strings.NewReader(string(data))), 7)
	})
}

// A field that register 0 still holds is not loaded again: every packet pays for that.
func TestFieldsAreLoadedOnce(t *testing.T) {
	name := func(s string) nftables.Match { return nftables.IsNot(nftables.MetaIIFName, nftables.IfName(s)) }
	for _, tc := range []struct {
		statements []nftables.Statement
		loads      int
	}{
		{[]nftables.Statement{name("a"), name("b"), name("c")}, 1},
		{[]nftables.Statement{name("a"), nftables.IsNot(nftables.MetaOIFName, nftables.IfName("a")), name("c")}, 3},
		{[]nftables.Statement{nftables.NoFlag(nftables.MetaMark, 1), nftables.NoFlag(nftables.MetaMark, 2)}, 2},
		{[]nftables.Statement{name("a"), nftables.Counter{}, name("b")}, 2},
	} {
		exprs, err := encodeRule(nftables.Rule{Statements: tc.statements}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(exprs), "meta\x00"); got != tc.loads {
			t.Errorf("%v: %d loads, want %d", tc.statements, got, tc.loads)
		}
	}
}

func parseAll(b []byte) {
	_, _ = parseTable(b)
	_, _, _ = parseChain(b)
	_, _, _, _ = parseRule(b)
	_, _, _, _ = parseGen(b)
	_, _ = parseUserdata(b)
	_, set, err := parseSet(b)
	if err != nil || set == nil {
		set = &setState{}
	}
	for _, flags := range []uint32{set.def.flags, 0, unix.NFT_SET_INTERVAL, unix.NFT_SET_INTERVAL | setFlagConcat} {
		var elements []element
		_ = parseElements(b, func(e element) { elements = append(elements, e) })
		for _, size := range []uint32{set.def.keyLen, 4} {
			s := setState{def: setDef{flags: flags, keyLen: size}, elements: map[string]string{}}
			s.fill(elements)
			for key, data := range s.elements {
				_ = elementText(nftables.Set{Key: []nftables.Type{nftables.TypeIPv4Addr}, Interval: flags != 0}, key, data)
				_ = elementText(nftables.Set{Key: []nftables.Type{nftables.TypeMark, nftables.TypeIfName}, Data: []nftables.Type{nftables.TypeVerdict}}, key, data)
			}
		}
	}
}

// TestUserdata reads back what it writes.
func TestUserdata(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		comment := rapid.StringMatching(`[a-z ]{0,127}`).Draw(t, "comment")
		var d digest
		for i := range d {
			d[i] = rapid.Byte().Draw(t, "byte")
		}
		raw := appendUserdata(nil, comment, d)
		if gotComment, gotDigest := parseUserdata(raw); gotComment != comment || gotDigest != d {
			t.Fatalf("read %q %x, want %q %x", gotComment, gotDigest, comment, d)
		}
		if len(raw) > unix.NFT_USERDATA_MAXLEN {
			t.Fatalf("%d bytes of userdata, at most %d", len(raw), unix.NFT_USERDATA_MAXLEN)
		}
	})
}

// TestPlan turns any list of rules into any other with the edits that planRules
// gives, and keeps as many rules as a longest common subsequence would if no rule
// occurs twice.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) []ruleState {
			letters := rapid.SliceOfNDistinct(rapid.IntRange(0, 12), 0, 12, rapid.ID).Draw(t, name)
			rules := make([]ruleState, len(letters))
			for i, l := range letters {
				rules[i].digest[0] = byte(l + 1)
				rules[i].handle = uint64(100 + i)
			}
			return rules
		}
		have, want := draw("have"), draw("want")
		plan := planRules(have, want, nil)
		kept, last := 0, -1
		for j, i := range plan.kept {
			if i < 0 {
				continue
			}
			kept++
			if i <= last || have[i].digest != want[j].digest {
				t.Fatalf("kept %v: rule %d does not follow or is another one", plan.kept, i)
			}
			last = i
		}
		if best := longestCommon(have, want); kept != best {
			t.Fatalf("kept %d rules, a longest common subsequence has %d", kept, best)
		}
	})
}

// longestCommon is the textbook length of a longest common subsequence.
func longestCommon(a, b []ruleState) int {
	best := make([][]int, len(a)+1)
	for i := range best {
		best[i] = make([]int, len(b)+1)
	}
	for i := range a {
		for j := range b {
			best[i+1][j+1] = max(best[i][j+1], best[i+1][j])
			if a[i].digest == b[j].digest {
				best[i+1][j+1] = best[i][j] + 1
			}
		}
	}
	return best[len(a)][len(b)]
}

// TestPortInode reads the table of netlink sockets.
func TestPortInode(t *testing.T) {
	const table = `sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
0000000000000000 0   4242       00000000 0        0        0     2        0        111
0000000000000000 12  4242       00000000 0        0        0     2        0        222
0000000000000000 12  4294967295 00000000 0        0        0     2        0        333
`
	for port, want := range map[uint32]string{4242: "222", 4294967295: "333", 1: ""} {
		if got := portInode(bufio.NewScanner(strings.NewReader(table)), port); got != want {
			t.Errorf("port %d: inode %q, want %q", port, got, want)
		}
	}
}

// TestEncodeDeterministic gives the same digests whatever the order of sets and
// elements.
func TestEncodeDeterministic(t *testing.T) {
	table := nftables.Table{
		Name: "t",
		Sets: []nftables.Set{
			{Name: "a", Key: []nftables.Type{nftables.TypeMark}, Elements: []nftables.Element{{Key: []nftables.Value{nftables.Mark(1)}}, {Key: []nftables.Value{nftables.Mark(2)}}}},
			{Name: "b", Key: []nftables.Type{nftables.TypeMark}},
		},
		Chains: []nftables.Chain{{Name: "c", Rules: []nftables.Rule{{Statements: []nftables.Statement{
			nftables.Lookup{Key: nftables.Select(nftables.MetaMark), Set: "a"}, nftables.Counter{},
		}}}}},
	}
	first, err := encode(table, encoded{})
	if err != nil {
		t.Fatal(err)
	}
	table.Sets[0], table.Sets[1] = table.Sets[1], table.Sets[0]
	e := table.Sets[1].Elements
	e[0], e[1] = e[1], e[0]
	second, err := encode(table, encoded{})
	if err != nil {
		t.Fatal(err)
	}
	all := cmp.AllowUnexported(state{}, chainState{}, ruleState{}, setState{}, setDef{})
	if diff := cmp.Diff(first, second, all); diff != "" {
		t.Errorf("order changed the encoding (-first +second):\n%s", diff)
	}
	table.Sets[1].Interval = true
	third, err := encode(table, encoded{})
	if err != nil {
		t.Fatal(err)
	}
	if third.chains["c"].rules[0].digest == second.chains["c"].rules[0].digest {
		t.Error("a rule's digest does not depend on the definition of its set")
	}
}
