package linuxplane

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// forgetUntranslated makes flows begin anew that began while there was no table, if
// they ought to be masqueraded: the kernel decides that for the first packet only, and
// nobody would ever answer them.
func (a *application) forgetUntranslated(ctx context.Context, desired intent.Node) {
	if len(desired.NATs) == 0 {
		return
	}
	r, err := a.flows.Walk(ctx, []conntrack.Query{{}}, func(f conntrack.Flow) conntrack.Decision {
		return conntrack.Decision{Delete: Untranslated(desired, f)}
	})
	if err != nil {
		a.log.Warn("flows that began without our rules may stay without masquerade until they end", "err", err)
	}
	if r.Changed > 0 {
		a.report.Changes = append(a.report.Changes, fmt.Sprintf("forget %d flows that began without masquerade", r.Changed))
	}
}

// Untranslated reports whether a flow has its own source address and ought not to: natOutgoing
// says so.
func Untranslated(n intent.Node, f conntrack.Flow) bool {
	if f.ReplyDst != f.Src || ownAddress(n, f.Dst) {
		return false
	}
	return slices.ContainsFunc(n.NATs, func(nat intent.NAT) bool {
		return contains(nat.Sources, f.Src) && !slices.ContainsFunc(n.AddressSets, func(s intent.AddressSet) bool {
			return s.VPC == nat.VPC && s.Name == nat.Except && contains(s.Prefixes, f.Dst)
		})
	})
}

func ownAddress(n intent.Node, a netip.Addr) bool {
	return slices.ContainsFunc(n.Underlay, func(p netip.Prefix) bool { return p.Addr() == a }) ||
		slices.ContainsFunc(n.Tunnels, func(t intent.TunnelAddress) bool { return t.Addr == a })
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
