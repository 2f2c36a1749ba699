package nft_test

import (
	"fmt"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	n "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// deep is a table whose base chain is the first of so many jumps.
func deep(kind n.VerdictKind, jumps int) n.Table {
	table := n.Table{Name: "fairlead"}
	for i := range jumps {
		table.Chains = append(table.Chains, n.Chain{Name: fmt.Sprintf("c%d", i), Rules: []n.Rule{{Statements: []n.Statement{verdict(kind, fmt.Sprintf("c%d", i+1))}}}})
	}
	table.Chains[0].Base = &n.Base{Hook: n.HookForward}
	table.Chains = append(table.Chains, n.Chain{Name: fmt.Sprintf("c%d", jumps)})
	return table
}

// TestDepth shows that what Validate takes the kernel takes, up to the limit.
func TestDepth(t *testing.T) {
	d := open(t, nft.Config{NetNS: testNS(t)})
	for _, kind := range []n.VerdictKind{n.Jump, n.Goto} {
		valid := 0
		for jumps := 1; jumps < 30; jumps++ {
			table := deep(kind, jumps)
			if table.Validate() != nil {
				break
			}
			valid = jumps
			if _, err := d.Apply(t.Context(), table); err != nil {
				t.Fatalf("%d %vs are valid, but: %v", jumps, kind, err)
			}
		}
		if valid < 10 {
			t.Errorf("only %d %vs are valid", valid, kind)
		}
	}
}
