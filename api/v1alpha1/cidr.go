package v1alpha1

import (
	"fmt"
	"net/netip"
)

// reservedRanges can never be pod addresses: unspecified ("this network"),
// loopback, link-local, and multicast with the reserved class E (RFC 6890). ::/80
// holds the IPv4-mapped addresses too (RFC 4291, section 2.5.5.2): tunnel maps know
// IPv4 addresses by them.
func reservedRanges() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("224.0.0.0/3"),
		netip.MustParsePrefix("::/80"),
		netip.MustParsePrefix("fe80::/10"),
		netip.MustParsePrefix("ff00::/8"),
	}
}

// ParseCIDR reads a CIDR in the one form that our objects allow: canonical
// text, no host bits, no IPv4-mapped IPv6. The error says what would be right.
func ParseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if _, aerr := ParseAddr(s); aerr == nil {
			return netip.Prefix{}, fmt.Errorf("is an address, not a CIDR: add a prefix length, such as 10.128.0.0/14 or fd00:10::/64")
		}
		return netip.Prefix{}, fmt.Errorf("is not a CIDR such as 10.128.0.0/14 or fd00:10::/64")
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("is IPv4-mapped IPv6: write the IPv4 CIDR")
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("has bits set after its prefix length: %s would be right", p.Masked())
	}
	if p.String() != s {
		return netip.Prefix{}, fmt.Errorf("is not in canonical form: write %s", p)
	}
	return p, nil
}

// ParseAddr reads an address in canonical text, without zone, not IPv4-mapped.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("is not an address such as 10.128.0.5 or fd00:10::5")
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("has a zone: write %s", a.WithZone(""))
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("is IPv4-mapped IPv6: write %s", a.Unmap())
	case a.String() != s:
		return netip.Addr{}, fmt.Errorf("is not in canonical form: write %s", a)
	}
	return a, nil
}

// CheckUsable refuses ranges that no pod can have.
func CheckUsable(p netip.Prefix) error {
	for _, r := range reservedRanges() {
		if r.Overlaps(p) {
			return fmt.Errorf("overlaps %s, which is unspecified, loopback, IPv4-mapped, link-local, multicast or reserved: use a private range such as 10.128.0.0/14 or fd00:10::/64", r)
		}
	}
	return nil
}

// contains reports whether inner lies wholly inside outer.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// containedInAny reports whether p lies wholly inside one of the prefixes.
func containedInAny(prefixes []netip.Prefix, p netip.Prefix) bool {
	for _, outer := range prefixes {
		if contains(outer, p) {
			return true
		}
	}
	return false
}

// validCIDRs parses a list and leaves out what is malformed.
func validCIDRs(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		if p, err := ParseCIDR(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}
