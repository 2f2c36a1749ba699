package rtnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// mainRule is the priority of the kernel's own rule for the main table.
const mainRule = 32766

// ourMarks are the bits of packets' marks that our own programs set.
const ourMarks = claims.MarkVNIMask | claims.MarkChecked | claims.MarkTunnel | claims.MarkLearn | claims.MarkTry

// rule is a routing rule that the kernel asks before the main table.
type rule struct {
	priority uint32
	inverted bool
	// dst and src are invalid for any.
	dst, src   netip.Prefix
	mark, mask uint32
	action     byte
	table      uint32
	// suppress is the length up to which prefixes of the table do not count; -1 none.
	suppress int32
	// device is set for the rule that asks the table of a VRF's device.
	device bool
}

// parseRule reads a struct fib_rule_hdr with its attributes.
func parseRule(b []byte) (rule, bool) {
	if len(b) < rtmsgLen || (b[0] != unix.AF_INET && b[0] != unix.AF_INET6) {
		return rule{}, false
	}
	r := rule{
		action: b[7], table: uint32(b[4]), suppress: -1,
		inverted: binary.NativeEndian.Uint32(b[8:])&unix.FIB_RULE_INVERT != 0,
	}
	attributes(b[rtmsgLen:], func(kind uint16, v []byte) {
		switch kind {
		case unix.FRA_DST:
			r.dst = netip.PrefixFrom(address(v), int(b[1]))
		case unix.FRA_SRC:
			r.src = netip.PrefixFrom(address(v), int(b[2]))
		case unix.FRA_PRIORITY:
			r.priority = number(v)
		case unix.FRA_FWMARK:
			r.mark = number(v)
		case unix.FRA_FWMASK:
			r.mask = number(v)
		case unix.FRA_SUPPRESS_PREFIXLEN:
			r.suppress = int32(number(v))
		case unix.FRA_TABLE:
			r.table = number(v)
		case unix.FRA_L3MDEV:
			r.device = true
		}
	})
	return r, true
}

// describe is the rule as ip(8) shows it.
func (r rule) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:", r.priority)
	if r.inverted {
		b.WriteString(" not")
	}
	b.WriteString(" from " + prefixOrAll(r.src))
	if r.dst.IsValid() {
		b.WriteString(" to " + r.dst.String())
	}
	if r.mask != 0 {
		fmt.Fprintf(&b, " fwmark %#x/%#x", r.mark, r.mask)
	}
	switch r.action {
	case unix.FR_ACT_TO_TBL:
		fmt.Fprintf(&b, " lookup %d", r.table)
	case unix.FR_ACT_BLACKHOLE, unix.FR_ACT_UNREACHABLE, unix.FR_ACT_PROHIBIT:
		b.WriteString(" " + refusals[r.action])
	}
	return b.String()
}

// refusals are the words of ip(8) for what refuses packets: routes and rules have the
// same numbers.
var refusals = map[byte]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}

func prefixOrAll(p netip.Prefix) string {
	if p.IsValid() {
		return p.String()
	}
	return "all"
}

// takes reports whether packets to dst that no foreign program marked can match: the
// rule's other selectors (links, ports, users) are taken to hold for some packet. A
// source is one of ours if our routes lead to it.
func (r rule) takes(dst netip.Prefix, ours []route) bool {
	if r.inverted {
		return true
	}
	if r.mark&^ourMarks != 0 {
		return false
	}
	if r.dst.IsValid() && !r.dst.Overlaps(dst) {
		return false
	}
	return !r.src.IsValid() || slices.ContainsFunc(ours, func(o route) bool { return r.src.Overlaps(o.dst) })
}

// rules lists the rules that come before the main table, by family of addresses.
func (c *conn) rules(fam byte) ([]rule, error) {
	m := make(message, rtmsgLen)
	m[0] = fam
	answers, err := c.dump(unix.RTM_GETRULE, m)
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	var out []rule
	for _, a := range answers {
		if r, ok := parseRule(a); ok && r.priority < mainRule {
			out = append(out, r)
		}
	}
	return out, nil
}

// Shadowing names the foreign routes and rules that take packets from ours, as Audit does. It
// reads the kernel only if something has changed since it was asked last. Before the first
// Apply there is nothing.
func (d *Driver) Shadowing() ([]apply.Difference, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shadow == nil {
		return nil, nil
	}
	if err := d.catchUp(false); err != nil {
		return nil, err
	}
	if !d.looked {
		found, err := d.conn.shadowing(d.shadow)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(found, apply.Difference.Compare)
		d.shadowed, d.looked = found, true
	}
	return slices.Clone(d.shadowed), nil
}

// shadowing names the foreign routes and rules that take packets from our routes:
// nothing of ours is missing, and traffic goes elsewhere all the same. They are not
// ours to remove.
func (c *conn) shadowing(s *shadow) ([]apply.Difference, error) {
	var out []apply.Difference
	for _, fam := range []byte{unix.AF_INET, unix.AF_INET6} {
		ours := slices.SortedFunc(maps.Values(s.routes), func(a, b route) int {
			return cmp.Or(cmp.Compare(a.dst.Bits(), b.dst.Bits()), a.dst.Addr().Compare(b.dst.Addr()), cmp.Compare(a.metric, b.metric))
		})
		ours = slices.DeleteFunc(ours, func(r route) bool { return family(r.dst.Addr()) != fam })
		tables, err := c.tables(fam, 0)
		if err != nil {
			return nil, err
		}
		for _, f := range tables[claims.RouteTable] {
			if f.protocol != claims.RouteProtocol {
				out = appendShadow(out, s, "route", f.describe(s.name), ours, f.shadows)
			}
		}
		rules, err := c.rules(fam)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			out = appendShadow(out, s, "rule", r.describe(), ours, func(o route) bool {
				return r.takes(o.dst, ours) && r.leads(o.dst, tables[r.table])
			})
		}
	}
	return out, nil
}

// appendShadow appends a difference if the foreign thing hits any of our routes.
func appendShadow(out []apply.Difference, s *shadow, subsystem, foreign string, ours []route, hits func(route) bool) []apply.Difference {
	var hit []route
	for _, o := range ours {
		if hits(o) {
			hit = append(hit, o)
		}
	}
	if len(hit) == 0 {
		return out
	}
	want := hit[0].describe(s.name)
	if len(hit) > 1 {
		want = fmt.Sprintf("%s, and %d more", want, len(hit)-1)
	}
	return append(out, apply.Difference{Subsystem: subsystem, Object: foreign, Problem: shadowing, Want: want})
}

// shadows reports whether the kernel prefers r for a part of what o is for.
func (r route) shadows(o route) bool {
	switch {
	case !r.dst.Overlaps(o.dst):
		return false
	case r.dst.Bits() == o.dst.Bits():
		return r.metric < o.metric
	}
	return r.dst.Bits() > o.dst.Bits()
}

// leads reports whether the rule decides about packets to a part of dst: it refuses
// them, or its table has a route for them.
func (r rule) leads(dst netip.Prefix, table []route) bool {
	switch {
	case r.device || r.action == unix.FR_ACT_GOTO || r.action == unix.FR_ACT_NOP:
		return false
	case r.action != unix.FR_ACT_TO_TBL:
		return true
	case r.table == unix.RT_TABLE_LOCAL || r.table == claims.RouteTable:
		return false
	}
	return slices.ContainsFunc(table, func(t route) bool {
		return t.kind != unix.RTN_THROW && int32(t.dst.Bits()) > r.suppress && t.dst.Overlaps(dst)
	})
}
