package nft_test

import (
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// portTable has one verdict map with an element per name, and a chain that the
// elements lead to.
func portTable(name, comment string, ports ...string) nftables.Table {
	m := nftables.Set{Name: "ports", Key: []nftables.Type{nftables.TypeIfName}, Data: []nftables.Type{nftables.TypeVerdict}}
	for _, p := range ports {
		m.Elements = append(m.Elements, nftables.Element{
			Key: []nftables.Value{nftables.IfName(p)}, Verdict: nftables.Verdict{Kind: nftables.Goto, Chain: "pod"},
		})
	}
	return nftables.Table{Name: name, Sets: []nftables.Set{m}, Chains: []nftables.Chain{
		{Name: "pod", Rules: []nftables.Rule{{Comment: comment, Statements: []nftables.Statement{
			nftables.Is(nftables.IPSaddr, nftables.Addr(netip.MustParseAddr("10.0.0.1"))), nftables.Verdict{Kind: nftables.Drop},
		}}}},
		{Name: "forward", Base: &nftables.Base{Type: nftables.TypeFilter, Hook: nftables.HookForward}, Rules: []nftables.Rule{
			{Statements: []nftables.Statement{nftables.VMap{Key: nftables.Select(nftables.MetaIIFName), Map: "ports"}}},
		}},
	}}
}

// After a restart, until the world is known to be complete, what the kernel holds
// stays as it is and only additions are made.
func TestExtendAddsAndKeeps(t *testing.T) {
	ns := testNS(t)
	d := open(t, nft.Config{Table: "fairlead", NetNS: ns})
	if _, err := d.Apply(t.Context(), portTable("fairlead", "old", "p1", "p2")); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, nft.Config{Table: "fairlead", NetNS: ns})
	changes, err := d.Extend(t.Context(), portTable("fairlead", "new", "p2", "p3"))
	if err != nil {
		t.Fatal(err)
	}
	if changes.ElementsAdded != 1 || changes.ElementsRemoved+changes.RulesAdded+changes.RulesRemoved+changes.ChainsRemoved+changes.SetsRebuilt != 0 {
		t.Errorf("extending changed %+v, want one element added", changes)
	}
	if again, err := d.Extend(t.Context(), portTable("fairlead", "new", "p2", "p3")); err != nil || !again.Empty() {
		t.Errorf("extending again: %+v, %v; want nothing", again, err)
	}
	want := portTable("fairlead", "old", "p1", "p2", "p3")
	if diff, err := d.Audit(t.Context(), want); err != nil || len(diff) != 0 {
		t.Errorf("the kernel after extending: %v, %v", diff, err)
	}
	// The world is complete: now it is made equal.
	want = portTable("fairlead", "new", "p2", "p3")
	if _, err := d.Apply(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if diff, err := d.Audit(t.Context(), want); err != nil || len(diff) != 0 {
		t.Errorf("the kernel after applying: %v, %v", diff, err)
	}
}

// Whole chains and sets stay as they are, and so do chains that have other rules; what
// only has more rules gets them.
func TestExtendWhole(t *testing.T) {
	set := func(whole bool, addrs ...string) nftables.Set {
		s := nftables.Set{Name: "allowed", Key: []nftables.Type{nftables.TypeIPv4Addr}, Interval: true, Whole: whole}
		for _, a := range addrs {
			s.Elements = append(s.Elements, nftables.Element{Key: []nftables.Value{nftables.Prefix(netip.MustParsePrefix(a))}})
		}
		return s
	}
	rule := func(comment string) nftables.Rule {
		return nftables.Rule{Comment: comment, Statements: []nftables.Statement{nftables.Lookup{Key: nftables.Select(nftables.IPSaddr), Set: "allowed"}, nftables.Counter{}}}
	}
	table := func(whole bool, addrs []string, rules ...string) nftables.Table {
		c := nftables.Chain{Name: "asked", Whole: whole}
		for _, r := range rules {
			c.Rules = append(c.Rules, rule(r))
		}
		return nftables.Table{Name: "fairlead", Sets: []nftables.Set{set(whole, addrs...)}, Chains: []nftables.Chain{c}}
	}
	for _, tt := range []struct {
		name     string
		whole    bool
		old, new []string
		want     []string
		addrs    []string
	}{
		{name: "more rules", old: []string{"a", "c"}, new: []string{"a", "b", "c", "d"}, want: []string{"a", "b", "c", "d"}, addrs: []string{"10.0.0.0/31", "10.0.0.8/32"}},
		{name: "other rules", old: []string{"a", "c"}, new: []string{"a", "b"}, want: []string{"a", "c"}, addrs: []string{"10.0.0.0/31", "10.0.0.8/32"}},
		{name: "whole", whole: true, old: []string{"a"}, new: []string{"a", "b"}, want: []string{"a"}, addrs: []string{"10.0.0.0/31"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, nft.Config{NetNS: testNS(t)})
			old := []string{"10.0.0.0/31"}
			apply(t, d, table(tt.whole, old, tt.old...))
			next := table(tt.whole, []string{"10.0.0.0/31", "10.0.0.8/32"}, tt.new...)
			if _, err := d.Extend(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			if diff, err := d.Audit(t.Context(), table(tt.whole, tt.addrs, tt.want...)); err != nil || len(diff) != 0 {
				t.Errorf("the kernel after extending: %v, %v", diff, err)
			}
			apply(t, d, next)
			if diff, err := d.Audit(t.Context(), next); err != nil || len(diff) != 0 {
				t.Errorf("the kernel after applying: %v, %v", diff, err)
			}
		})
	}
}
