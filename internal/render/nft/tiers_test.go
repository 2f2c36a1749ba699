package nft

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// The next table shares what did not change, and is the same as one from scratch.
func TestRenderAfter(t *testing.T) {
	n := restricted()
	table, state := RenderAfter(nil, n, Options{})
	again, state := RenderAfter(state, n, Options{})
	rules := func(t nft.Table, s *State) []nft.Rule {
		chain := s.lists[n.Ports[0].Egress].entry()
		return t.Chains[slices.IndexFunc(t.Chains, func(c nft.Chain) bool { return c.Name == chain })].Rules
	}
	if a, b := rules(table, state), rules(again, state); &a[0] != &b[0] {
		t.Error("an unchanged list was rendered again")
	}
	changed := n
	changed.AddressSets = slices.Clone(n.AddressSets)
	for i, s := range changed.AddressSets {
		if s.Name == "frontend" {
			changed.AddressSets[i].Prefixes = prefixes("10.1.0.6/32")
		}
	}
	after, last := RenderAfter(state, changed, Options{})
	if got, want := after.String(), Render(changed, Options{}).String(); got != want {
		t.Error("a changed set gives another table than from scratch")
	}
	if a, b := rules(again, state), rules(after, last); &a[0] != &b[0] {
		t.Error("a list that does not use the changed set was rendered again")
	}
}

// plain is the shop without policies.
func plain() intent.Node {
	n := restricted()
	n.RuleLists, n.AddressSets = nil, []intent.AddressSet{{VPC: "default", Name: SetSubnets, Prefixes: prefixes("10.1.0.0/16", "fd01::/48")}}
	for i := range n.Ports {
		n.Ports[i].Ingress, n.Ports[i].Egress = "", ""
	}
	return n
}

// Whatever was there before, a table is the one from scratch, and its lists share what
// they have in common.
func TestRenderAfterIsRender(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var state *State
		sets := drawSets(t)
		for range 4 {
			if rapid.Bool().Draw(t, "other sets") {
				sets = drawSets(t)
			}
			n := withLists(plain(), sets, drawRules(t, sets), drawRules(t, sets))
			for range 2 {
				more := intent.NewRuleList("default", rapid.SampledFrom([]intent.Direction{intent.Ingress, intent.Egress}).Draw(t, "direction"),
					append(slices.Clone(n.RuleLists[0].Rules), drawRules(t, sets)...))
				slices.SortStableFunc(more.Rules, func(a, b intent.Rule) int { return int(a.Tier) - int(b.Tier) })
				more = intent.NewRuleList("default", more.Direction, more.Rules)
				n.RuleLists = append(n.RuleLists, more)
			}
			slices.SortFunc(n.RuleLists, intent.RuleList.Compare)
			n.RuleLists = slices.CompactFunc(n.RuleLists, func(a, b intent.RuleList) bool { return a.ID == b.ID })
			var got nft.Table
			got, state = RenderAfter(state, n, Options{})
			if err := got.Validate(); err != nil {
				t.Fatal(err)
			}
			if want := Render(n, Options{}); want.String() != got.String() {
				t.Fatalf("not the table from scratch (-want +got):\n%s", cmp.Diff(want.String(), got.String()))
			}
		}
	})
}

// Two lists with a tier in common have its sets once, and a set for the same pods is one
// whatever tiers allow them.
func TestListsShare(t *testing.T) {
	pods := []intent.AddressSet{
		{VPC: "default", Name: "a", Prefixes: prefixes("10.1.0.8/30")},
		{VPC: "default", Name: "b", Prefixes: prefixes("10.1.1.0/24")},
	}
	accept := func(tier intent.Tier, set, policy string) intent.Rule {
		return intent.Rule{Tier: tier, Action: intent.Accept, Match: intent.Match{Sets: []string{set}}, Origin: intent.RuleOrigin{Kind: "NetworkPolicy", Name: policy}}
	}
	deny := intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Deny}
	n := withLists(plain(), pods,
		[]intent.Rule{accept(intent.TierAdmin, "b", "x"), accept(intent.TierNetworkPolicy, "a", "y"), deny},
		[]intent.Rule{accept(intent.TierAdmin, "b", "z"), deny})
	names := map[string]int{}
	for _, s := range Render(n, Options{}).Sets {
		if strings.HasPrefix(s.Name, "peers-") {
			names[s.Name]++
		}
	}
	if len(names) != 2 {
		t.Errorf("sets of peers %v, want one for a and one for b", names)
	}
}
