package nft

import (
	"context"
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// KernelRule is what the kernel holds in the place of a desired rule.
type KernelRule struct {
	// Handle is zero if the kernel does not hold the rule.
	Handle uint64
	// Counted rules have a counter.
	Counted        bool
	Packets, Bytes uint64
}

// Rules reads the rules of the table from the kernel and finds the desired ones among
// them: by chain, in the order of each chain's rules. What is not there exactly as it
// should be has no handle. It changes nothing.
func (d *Driver) Rules(ctx context.Context, desired nftables.Table) (map[string][]KernelRule, error) {
	want, err := encode(desired, encoded{})
	if err != nil {
		return nil, fmt.Errorf("find the rules of nftables table %s: %w", desired.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	have, err := d.readTable(ctx)
	if err == nil && have.exists {
		if err = d.readChains(ctx, have); err == nil {
			err = d.readRules(ctx, have, "")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the rules of nftables table %s: %w", d.cfg.Table, err)
	}
	out := make(map[string][]KernelRule, len(want.chains))
	for name, c := range want.chains {
		list := make([]KernelRule, len(c.rules))
		if there := have.chains[name]; there != nil {
			for j, i := range planRules(there.rules, c.rules, nil).kept {
				if i >= 0 {
					r := there.rules[i]
					list[j] = KernelRule{Handle: r.handle, Counted: r.counted, Packets: r.packets, Bytes: r.bytes}
				}
			}
		}
		out[name] = list
	}
	return out, nil
}
