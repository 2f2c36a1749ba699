package nftables_test

import (
	"testing"

	n "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// What is judged after an earlier version gets the verdict that it gets alone.
func TestValidateAfter(t *testing.T) {
	base := func() n.Table {
		return n.Table{
			Name: "fairlead",
			Sets: []n.Set{{Name: "peers", Key: []n.Type{n.TypeIPv4Addr}, Interval: true, Elements: elements(key(prefix("10.0.0.0/8")))}},
			Chains: []n.Chain{
				{Name: "leaf", Rules: []n.Rule{{Statements: []n.Statement{n.Lookup{Key: n.Select(n.IPSaddr), Set: "peers"}, drop}}}},
				{Name: "forward", Base: &n.Base{Hook: n.HookForward}, Rules: []n.Rule{{Statements: []n.Statement{n.Verdict{Kind: n.Jump, Chain: "leaf"}}}}},
			},
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*n.Table)
		valid  bool
	}{
		{"nothing", func(*n.Table) {}, true},
		{"a set gone", func(t *n.Table) { t.Sets = nil }, false},
		{"a set of another type", func(t *n.Table) { t.Sets[0] = n.Set{Name: "peers", Key: []n.Type{n.TypeIPv6Addr}} }, false},
		{"a set that is a map", func(t *n.Table) { t.Sets[0].Data, t.Sets[0].Elements = []n.Type{n.TypeVerdict}, nil }, false},
		{"a chain gone", func(t *n.Table) { t.Chains = t.Chains[1:] }, false},
		{"a chain with a hook", func(t *n.Table) { t.Chains[0].Base = &n.Base{Hook: n.HookInput} }, false},
		{"another rule", func(t *n.Table) { t.Chains[0].Rules = []n.Rule{{}} }, false},
		{"a chain twice", func(t *n.Table) { t.Chains = append(t.Chains, t.Chains[0]) }, false},
		{"one more chain", func(t *n.Table) { t.Chains = append(t.Chains, n.Chain{Name: "more"}) }, true},
		{"a chain with a bad name", func(t *n.Table) { t.Chains = append(t.Chains, n.Chain{Name: "list"}) }, false},
		{"overlapping elements", func(t *n.Table) { t.Sets[0].Elements = elements(key(prefix("10.0.0.0/8")), key(prefix("10.1.0.0/16"))) }, false},
		{"a circle", func(t *n.Table) {
			t.Chains[0].Rules = []n.Rule{{Statements: []n.Statement{n.Verdict{Kind: n.Jump, Chain: "leaf"}}}}
		}, false},
	} {
		table := base()
		tt.change(&table)
		if err := table.ValidateAfter(base()); (err == nil) != tt.valid || (table.Validate() == nil) != tt.valid {
			t.Errorf("%s: %v, alone %v; want valid: %v", tt.name, err, table.Validate(), tt.valid)
		}
	}
}
