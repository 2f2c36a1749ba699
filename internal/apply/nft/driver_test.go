package nft_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	n "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// smallTable is a forward chain of rules named by their comments, a set and a
// verdict map.
func smallTable(comments ...string) n.Table {
	forward := n.Chain{Name: "forward", Base: &n.Base{Hook: n.HookForward, Priority: 10}}
	for _, c := range comments {
		forward.Rules = append(forward.Rules, n.Rule{
			Statements: []n.Statement{n.Is(n.IPSaddr, addr(fmt.Sprintf("10.0.0.%d", 1+int(c[0])))), n.Counter{}, verdict(n.Drop)},
			Comment:    c,
		})
	}
	forward.Rules = append(forward.Rules,
		n.Rule{Statements: []n.Statement{n.Lookup{Key: n.Select(n.IPDaddr), Set: "blocked"}, verdict(n.Drop)}, Comment: "blocked"},
		n.Rule{Statements: []n.Statement{n.VMap{Key: n.Select(n.MetaIIFName), Map: "from"}}, Comment: "from"})
	return n.Table{
		Name: "fairlead",
		Sets: []n.Set{
			{Name: "blocked", Key: []n.Type{n.TypeIPv4Addr}, Interval: true, Elements: elements(key(prefix("10.1.0.0/24")), key(prefix("10.2.0.0/24")))},
			{Name: "from", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeVerdict}, Elements: []n.Element{
				{Key: key(n.IfName("eth1")), Verdict: verdict(n.Jump, "from-eth1")},
			}},
		},
		Chains: []n.Chain{forward, {Name: "from-eth1", Rules: []n.Rule{{Statements: []n.Statement{verdict(n.Return)}, Comment: "end"}}}},
	}
}

// eachKind runs a test with an owned and with a plain table.
func eachKind(t *testing.T, test func(t *testing.T, cfg nft.Config)) {
	t.Helper()
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			test(t, nft.Config{NetNS: testNS(t), Plain: plain})
		})
	}
}

// mustEqual compares the kernel's table with a desired one: by nft's text, with
// elements of sets in any order, and by our own audit.
func mustEqual(t *testing.T, d *nft.Driver, ns string, want n.Table) {
	t.Helper()
	if diff := cmp.Diff(blocks(want.String()), blocks(listed(t, ns))); diff != "" {
		t.Errorf("kernel's table (-want +got):\n%s", diff)
	}
	found, err := d.Audit(context.WithoutCancel(t.Context()), want)
	if err != nil || len(found) > 0 {
		t.Errorf("audit: %v %v, want nothing", found, err)
	}
}

// blocks is the sets and chains of a listing, sorted: nft lists them in the order
// of their creation.
func blocks(text string) []string {
	parts := strings.Split(strings.TrimSuffix(text, "}\n"), "\n\n")
	parts[0] = parts[0][strings.Index(parts[0], "\n")+1:]
	for i, p := range parts {
		parts[i] = strings.TrimRight(p, "\n")
	}
	slices.Sort(parts)
	return parts
}

// TestSteps walks through changes of every kind; after each the kernel holds what
// was asked for and the change was no larger than needed.
func TestSteps(t *testing.T) {
	needNFT(t)
	with := func(change func(*n.Table)) n.Table {
		table := smallTable("a", "b", "c")
		change(&table)
		return table
	}
	steps := []struct {
		name  string
		table n.Table
		check func(c nft.Changes) bool
	}{
		{"first", smallTable("a", "b", "c"), func(c nft.Changes) bool {
			return c.RulesAdded == 6 && c.ChainsAdded == 2 && c.SetsAdded == 2 && c.ElementsAdded == 3
		}},
		{"again", smallTable("a", "b", "c"), nft.Changes.Empty},
		{"insert in front", smallTable("x", "a", "b", "c"), func(c nft.Changes) bool { return c.RulesAdded == 1 && c.RulesRemoved == 0 }},
		{"replace one", smallTable("x", "y", "b", "c"), func(c nft.Changes) bool { return c.RulesAdded == 1 && c.RulesRemoved == 1 }},
		{"insert several in the middle", smallTable("x", "y", "p", "q", "r", "b", "c"), func(c nft.Changes) bool { return c.RulesAdded == 3 && c.RulesRemoved == 0 }},
		{"move one to the front", smallTable("c", "x", "y", "p", "q", "r", "b"), func(c nft.Changes) bool { return c.RulesAdded == 1 && c.RulesRemoved == 1 }},
		{"reverse", smallTable("b", "r", "q", "p", "y", "x", "c"), func(c nft.Changes) bool { return c.RulesAdded == c.RulesRemoved && c.RulesAdded == 6 }},
		{"same rule twice", smallTable("b", "b", "b"), func(c nft.Changes) bool { return c.RulesAdded == 2 }},
		{"back", smallTable("a", "b", "c"), func(c nft.Changes) bool { return c.RulesAdded == 2 && c.RulesRemoved == 2 }},
		{"split a prefix", with(func(t *n.Table) {
			t.Sets[0].Elements = elements(key(prefix("10.1.0.0/25")), key(prefix("10.1.0.128/25")), key(prefix("10.2.0.0/24")))
		}), func(c nft.Changes) bool {
			return c.ElementsAdded == 2 && c.ElementsRemoved == 1 && c.RulesAdded == 0 && c.SetsRebuilt == 0
		}},
		{"join it again", smallTable("a", "b", "c"), func(c nft.Changes) bool { return c.ElementsAdded == 1 && c.ElementsRemoved == 2 }},
		{"another verdict and a chain of its own", with(func(t *n.Table) {
			t.Sets[1].Elements[0].Verdict = verdict(n.Goto, "from-eth2")
			t.Chains[1].Name = "from-eth2"
		}), func(c nft.Changes) bool {
			return c.ElementsAdded == 1 && c.ElementsRemoved == 1 && c.ChainsAdded == 1 && c.ChainsRemoved == 1
		}},
		{"the former chain", smallTable("a", "b", "c"), func(c nft.Changes) bool { return c.ChainsAdded == 1 && c.ChainsRemoved == 1 }},
		{"set of another kind", with(func(t *n.Table) {
			t.Sets[0] = n.Set{Name: "blocked", Key: []n.Type{n.TypeIPv4Addr}, Elements: elements(key(addr("10.1.0.1")))}
		}), func(c nft.Changes) bool { return c.SetsRebuilt == 1 && c.RulesRemoved == 1 && c.RulesAdded == 1 }},
		{"constant set", with(func(t *n.Table) { t.Sets[0].Constant = true }), func(c nft.Changes) bool { return c.SetsRebuilt == 1 }},
		{"constant set changed", with(func(t *n.Table) {
			t.Sets[0].Constant = true
			t.Sets[0].Elements = t.Sets[0].Elements[:1]
		}), func(c nft.Changes) bool { return c.SetsRebuilt == 1 && c.ElementsAdded == 1 && c.RulesAdded == 1 }},
		{"policy", with(func(t *n.Table) { t.Chains[0].Base.Policy = n.PolicyDrop }), func(c nft.Changes) bool { return c.ChainsChanged == 1 && c.RulesAdded == 1 }},
		{"priority", with(func(t *n.Table) { t.Chains[0].Base.Priority = 11 }), func(c nft.Changes) bool { return c.ChainsChanged == 1 && c.RulesAdded == 5 }},
		{"base chain becomes an ordinary one", with(func(t *n.Table) {
			t.Chains[0].Base = nil
			t.Chains[0].Rules = t.Chains[0].Rules[:3]
			t.Chains[1].Rules = append([]n.Rule{{Statements: []n.Statement{verdict(n.Jump, "forward")}}}, t.Chains[1].Rules...)
		}), func(c nft.Changes) bool { return c.ChainsChanged == 1 }},
		{"and back", smallTable("a"), func(c nft.Changes) bool { return c.ChainsChanged == 1 }},
		{"nothing", n.Table{Name: "fairlead"}, func(c nft.Changes) bool { return c.ChainsRemoved == 2 && c.SetsRemoved == 2 }},
		{"everything", fullTable(), func(c nft.Changes) bool { return c.RulesAdded > 100 }},
		{"small again", smallTable("a"), func(c nft.Changes) bool { return c.SetsRemoved > 10 }},
	}
	eachKind(t, func(t *testing.T, cfg nft.Config) {
		d := open(t, cfg)
		for _, step := range steps {
			c := apply(t, d, step.table)
			if !step.check(c) {
				t.Errorf("%s: unexpected changes %+v", step.name, c)
			}
			mustEqual(t, d, cfg.NetNS, step.table)
			if err := d.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if again := apply(t, d, step.table); !again.Empty() {
				t.Errorf("%s: applied after reading back: %+v, want nothing", step.name, again)
			}
		}
	})
}

// TestOwned holds what an owned table is for: a foreign flush leaves it alone, it
// outlives its driver, the next one adopts it without rewriting, and only one at a
// time may have it.
func TestOwned(t *testing.T) {
	needNFT(t)
	cfg := nft.Config{NetNS: testNS(t)}
	first := open(t, cfg)
	if !first.Owned() {
		t.Skip("needs a kernel with owned, persistent tables (6.9)")
	}
	table := fullTable()
	apply(t, first, table)
	handles := run(t, cfg.NetNS, "nft", "--stateless", "--handle", "list", "table", "inet", "fairlead")

	run(t, cfg.NetNS, "nft", "flush", "ruleset")
	mustEqual(t, first, cfg.NetNS, table)
	if out, err := try(t, cfg.NetNS, "nft", "delete", "chain", "inet", "fairlead", "forward"); err == nil {
		t.Errorf("a foreign process deleted a chain: %s", out)
	}

	var owned *nft.OwnedError
	_, err := nft.Open(t.Context(), nft.Config{Table: "fairlead", NetNS: cfg.NetNS})
	if !errors.As(err, &owned) {
		t.Fatalf("second driver: %v, want an OwnedError", err)
	}
	if owned.PID != os.Getpid() || owned.Process == "" {
		t.Errorf("owner is process %d (%q), want %d: %v", owned.PID, owned.Process, os.Getpid(), owned)
	}

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, cfg.NetNS, "nft", "list", "table", "inet", "fairlead")
	second := open(t, cfg)
	if !second.Adopted() || !second.Owned() {
		t.Errorf("adopted %v, owned %v, want both", second.Adopted(), second.Owned())
	}
	if c := apply(t, second, table); !c.Empty() {
		t.Errorf("the adopting driver wrote %+v, want nothing", c)
	}
	if diff := cmp.Diff(withoutOwner(handles), withoutOwner(run(t, cfg.NetNS, "nft", "--stateless", "--handle", "list", "table", "inet", "fairlead"))); diff != "" {
		t.Errorf("handles changed by adoption (-before +after):\n%s", diff)
	}
	run(t, cfg.NetNS, "nft", "flush", "ruleset")
	mustEqual(t, second, cfg.NetNS, table)
	if err := second.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := run(t, cfg.NetNS, "nft", "list", "ruleset"); out != "" {
		t.Errorf("after Delete the ruleset is %q, want nothing", out)
	}
	apply(t, second, table)
	mustEqual(t, second, cfg.NetNS, table)
}

// TestUpgrade turns a plain table, as an older version left it, into an owned one,
// and back.
func TestUpgrade(t *testing.T) {
	needNFT(t)
	cfg := nft.Config{NetNS: testNS(t), Plain: true}
	old := open(t, cfg)
	apply(t, old, smallTable("a"))
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Plain = false
	d := open(t, cfg)
	if !d.Owned() {
		t.Skip("needs a kernel with owned, persistent tables (6.9)")
	}
	if c := apply(t, d, smallTable("a")); !c.TableCreated {
		t.Errorf("changes %+v, want the table made anew", c)
	}
	run(t, cfg.NetNS, "nft", "flush", "ruleset")
	mustEqual(t, d, cfg.NetNS, smallTable("a"))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Plain = true
	back := open(t, cfg)
	if c := apply(t, back, smallTable("a")); !c.TableCreated {
		t.Errorf("changes %+v, want the table made anew", c)
	}
	mustEqual(t, back, cfg.NetNS, smallTable("a"))
}

// watch runs Watch and returns its events; it ends with the test.
func watch(t *testing.T, d *nft.Driver) <-chan nft.Foreign {
	t.Helper()
	events, done := make(chan nft.Foreign, 64), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- d.Watch(ctx, func(f nft.Foreign) { events <- f }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("watch ended with %v, want the context's error", err)
		}
	})
	return events
}

func next(t *testing.T, events <-chan nft.Foreign) nft.Foreign {
	t.Helper()
	select {
	case f := <-events:
		return f
	case <-time.After(10 * time.Second):
		t.Fatal("no event of a foreign change")
		return nft.Foreign{}
	}
}

// TestForeign damages a plain table in several ways; each is reported with its
// author and undone by the next Apply.
func TestForeign(t *testing.T) {
	needNFT(t)
	cfg := nft.Config{NetNS: testNS(t), Plain: true}
	d := open(t, cfg)
	events := watch(t, d)
	table := smallTable("a", "b", "c")
	apply(t, d, table)
	for _, damage := range []struct {
		cmd, event string
	}{
		{"flush chain inet fairlead forward", "deleted"},
		{"add element inet fairlead blocked { 10.9.0.0/24 }", "added elements to set blocked"},
		{"delete element inet fairlead blocked { 10.2.0.0/24 }", "deleted elements of set blocked"},
		{"insert rule inet fairlead forward accept comment \"mine\"", `added rule "mine" of chain forward`},
		{"add rule inet fairlead from-eth1 drop", "added a rule of chain from-eth1"},
		{"add chain inet fairlead other", "added or changed chain other"},
		{"add set inet fairlead others { type ipv4_addr; }", "added set others"},
		{"add chain inet fairlead forward { policy drop; }", "added or changed chain forward"},
		{"add table inet fairlead { flags dormant; }", "changed the table"},
		{"delete element inet fairlead from { eth1 }", "deleted elements of set from"},
		{"flush ruleset", "deleted the table"},
		{"delete table inet fairlead", "deleted the table"},
	} {
		run(t, cfg.NetNS, append([]string{"nft"}, damage.cmd)...)
		f := next(t, events)
		if !f.Ours || f.Process != "nft" || f.PID == 0 || !slices.Contains(f.Tables, "inet fairlead") {
			t.Errorf("%s: event %+v, want one of nft about our table", damage.cmd, f)
		}
		if !slices.ContainsFunc(f.Events, func(e string) bool { return strings.Contains(e, damage.event) }) {
			t.Errorf("%s: events %q, want %q", damage.cmd, f.Events, damage.event)
		}
		if found, err := d.Audit(t.Context(), table); err != nil || len(found) == 0 {
			t.Errorf("%s: audit found %v, %v, want the damage", damage.cmd, found, err)
		}
		if c := apply(t, d, table); c.Empty() {
			t.Errorf("%s: nothing was restored", damage.cmd)
		}
		mustEqual(t, d, cfg.NetNS, table)
	}
	run(t, cfg.NetNS, "nft", "add table ip other")
	if f := next(t, events); f.Ours || !slices.Equal(f.Tables, []string{"ip other"}) {
		t.Errorf("event %+v, want one about table ip other only", f)
	}
	if c := apply(t, d, table); !c.Empty() {
		t.Errorf("a change of another table made us write %+v", c)
	}
}

// TestAudit tells a person what differs.
func TestAudit(t *testing.T) {
	needNFT(t)
	cfg := nft.Config{NetNS: testNS(t), Plain: true}
	d := open(t, cfg)
	table := smallTable("a", "b")
	apply(t, d, table)
	run(t, cfg.NetNS, "nft", "insert rule inet fairlead forward accept")
	run(t, cfg.NetNS, "nft", "flush chain inet fairlead from-eth1")
	run(t, cfg.NetNS, "nft", "delete element inet fairlead blocked { 10.2.0.0/24 }")
	run(t, cfg.NetNS, "nft", "add element inet fairlead blocked { 10.9.0.1-10.9.0.5 }")
	run(t, cfg.NetNS, "nft", "delete element inet fairlead from { eth1 }; add element inet fairlead from { eth1 : drop }")
	run(t, cfg.NetNS, "nft", "add chain inet fairlead forward { policy drop; }")
	run(t, cfg.NetNS, "nft", "add chain inet fairlead other")
	found, err := d.Audit(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, f.String())
	}
	want := []string{
		"set blocked: missing: element 10.2.0.0/24",
		"set blocked: extra: element 10.9.0.1-10.9.0.5",
		`set from: changed: element "eth1" : drop, want "eth1" : jump from-eth1`,
		`chain forward: changed: it is "type filter hook forward priority filter + 10; policy drop;", want "type filter hook forward priority filter + 10; policy accept;"`,
		"chain forward: extra: rule 1 of chain forward (handle N), written by somebody else",
		`chain from-eth1: missing: rule 1: return comment "end"`,
		"chain other: extra: 0 rules",
	}
	for i, line := range got {
		if at := strings.Index(line, "(handle "); at >= 0 {
			got[i] = line[:at] + "(handle N)" + line[at+strings.Index(line[at:], ")")+1:]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

// TestInvalid never reaches the kernel.
func TestInvalid(t *testing.T) {
	d := open(t, nft.Config{NetNS: testNS(t)})
	bad := smallTable("a")
	bad.Sets[0].Elements = append(bad.Sets[0].Elements, elements(key(addr("10.1.0.7")))...)
	_, err := d.Apply(t.Context(), bad)
	if want := "set blocked: elements 10.1.0.0/24 and 10.1.0.7 overlap"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	if _, err := d.Apply(t.Context(), n.Table{Name: "other"}); err == nil {
		t.Error("applying another table's name succeeded")
	}
}

// TestLargeSet applies a set of 10,000 elements, then changes one.
func TestLargeSet(t *testing.T) {
	const size = 10000
	eachKind(t, func(t *testing.T, cfg nft.Config) {
		d := open(t, cfg)
		for _, interval := range []bool{false, true} {
			set := n.Set{Name: fmt.Sprintf("pods-%v", interval), Key: []n.Type{n.TypeIPv4Addr}, Interval: interval}
			for i := range uint32(size) {
				var b [4]byte
				binary.BigEndian.PutUint32(b[:], 10<<24|i*2)
				set.Elements = append(set.Elements, n.Element{Key: key(n.Addr(netip.AddrFrom4(b)))})
			}
			table := n.Table{Name: "fairlead", Sets: []n.Set{set}}
			start := time.Now()
			c := apply(t, d, table)
			all := time.Since(start)
			if c.ElementsAdded != size {
				t.Fatalf("%d elements added, want %d", c.ElementsAdded, size)
			}
			start = time.Now()
			if again := apply(t, d, table); !again.Empty() {
				t.Errorf("again: %+v", again)
			}
			same := time.Since(start)
			table.Sets[0].Elements = table.Sets[0].Elements[:size-1]
			start = time.Now()
			if c := apply(t, d, table); c.ElementsRemoved != 1 || c.ElementsAdded != 0 {
				t.Errorf("one element less: %+v", c)
			}
			one := time.Since(start)
			start = time.Now()
			if err := d.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Logf("interval %v: %d elements applied in %v (%d messages, %d bytes), again %v, one removed %v, read back %v",
				interval, size, all, c.Messages, c.Bytes, same, one, time.Since(start))
			if again := apply(t, d, table); !again.Empty() {
				t.Errorf("after reading back: %+v", again)
			}
		}
	})
}

// TestConcurrent changes a table while somebody else changes another one all the
// time: every change succeeds, whether transactions meet or not.
func TestConcurrent(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg nft.Config) {
		d := open(t, cfg)
		cfg.Table = "other"
		other := open(t, cfg)
		stop, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				table := smallTable("a", "b")
				if i%2 == 0 {
					table = smallTable("b")
				}
				table.Name = "other"
				if _, err := other.Apply(context.Background(), table); err != nil {
					ended <- err
					return
				}
			}
		}()
		for i := range 100 {
			table := smallTable("a", "b", "c")
			if i%2 == 0 {
				table = smallTable("c")
			}
			if _, err := d.Apply(t.Context(), table); err != nil {
				t.Errorf("apply %d: %v", i, err)
				break
			}
		}
		close(stop)
		if err := <-ended; err != nil {
			t.Errorf("the other table: %v", err)
		}
		if found, err := d.Audit(t.Context(), smallTable("a", "b", "c")); err != nil || len(found) > 0 {
			t.Errorf("audit: %v %v, want nothing", found, err)
		}
	})
}

// TestCanceled does nothing once the context has ended.
func TestCanceled(t *testing.T) {
	d := open(t, nft.Config{NetNS: testNS(t)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Apply(ctx, smallTable("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

// TestErrors has the shape that callers branch on.
func TestErrors(t *testing.T) {
	err := error(&nft.ObjectError{Verb: "add", Object: "rule 3 of chain forward", Errno: unix.ENOENT, Detail: "no such set"})
	if want := "add rule 3 of chain forward: no such file or directory (no such set)"; err.Error() != want || !errors.Is(err, unix.ENOENT) {
		t.Errorf("error %q, want %q", err, want)
	}
}
