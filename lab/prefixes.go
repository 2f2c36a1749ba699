package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/lab/topology"
)

// validateUnderlay refuses what hosts cannot have as addresses, and what the outside
// host has. The form of the prefixes was checked with the plan.
func validateUnderlay(underlay []netip.Prefix) error {
	for _, u := range underlay {
		right := topology.DefaultUnderlay()[0]
		if u.Addr().Is6() {
			right = topology.DefaultUnderlay()[1]
		}
		if err := v1alpha1.CheckUsable(u); err != nil {
			reason, _, _ := strings.Cut(err.Error(), ": use ")
			return fmt.Errorf("underlay %s %s: choose another, such as %s", u, reason, right)
		}
		for _, i := range topology.Internet() {
			if u.Overlaps(i) {
				return fmt.Errorf("underlay %s overlaps %s, which the outside host has: choose another, such as %s", u, i.Masked(), right)
			}
		}
	}
	return nil
}

// validateSubnets refuses what would hide the lab's own addresses from pods, and what
// the datastore would not take as the default Subnet.
func validateSubnets(o Options) error {
	taken := append(slices.Clone(o.Underlay), topology.Internet()...)
	for i, p := range o.Subnets {
		switch {
		case !p.IsValid():
			return fmt.Errorf("subnet: an invalid CIDR; want one such as %s", freeSubnet(true, taken))
		case p != p.Masked():
			return fmt.Errorf("subnet %s has host bits: want %s", p, p.Masked())
		}
		for _, t := range taken {
			if p.Overlaps(t) {
				return fmt.Errorf("subnet %s overlaps %s, which the lab uses for its nodes and its outside host: choose another, such as %s",
					p, t.Masked(), freeSubnet(p.Addr().Is4(), taken))
			}
		}
		for _, other := range o.Subnets[:i] {
			if p.Overlaps(other) {
				return fmt.Errorf("subnets %s and %s overlap", other, p)
			}
		}
	}
	if errs := v1alpha1.ValidateSubnet(o.Subnet(), nil); len(errs) > 0 {
		var texts []string
		for _, e := range errs {
			texts = append(texts, fmt.Sprintf("%v: %s", e.BadValue, e.Detail))
		}
		return fmt.Errorf("subnet %s", strings.Join(texts, "; "))
	}
	return nil
}

// freeSubnet is a range of a family that is not taken.
func freeSubnet(is4 bool, taken []netip.Prefix) netip.Prefix {
	candidates := []netip.Prefix{
		netip.MustParsePrefix("fd00:10::/64"), netip.MustParsePrefix("fd00:128::/64"), netip.MustParsePrefix("fd00:192::/64"),
	}
	if is4 {
		candidates = []netip.Prefix{
			netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("10.64.0.0/14"), netip.MustParsePrefix("192.168.0.0/16"),
		}
	}
	// One underlay a family cannot take more than one of them.
	i := slices.IndexFunc(candidates, func(c netip.Prefix) bool { return !slices.ContainsFunc(taken, c.Overlaps) })
	return candidates[max(i, 0)]
}
