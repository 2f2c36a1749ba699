package addressing

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
)

// usable reports whether a prefix can be one of pods: valid, and no IPv4 in IPv6.
func usable(p netip.Prefix) bool { return p.IsValid() && !p.Addr().Is4In6() }

func contains(cidrs []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
}

// covers reports whether one of cidrs holds all of p.
func covers(cidrs []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Bits() <= p.Bits() && c.Contains(p.Addr()) })
}

// merged returns the same addresses as the smallest sorted list of prefixes.
func merged(prefixes []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	return prefixesOf(&b)
}

// prefixesOf never fails: only usable prefixes are put into builders here, and a
// set of those is always valid.
func prefixesOf(b *netipx.IPSetBuilder) []netip.Prefix {
	set, err := b.IPSet()
	if err != nil {
		return nil
	}
	return set.Prefixes()
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// enumerate names the first few of a list, so that messages stay bounded.
func enumerate(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}
