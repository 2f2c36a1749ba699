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
