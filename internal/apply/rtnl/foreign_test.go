package rtnl

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
)

func network(t *testing.T, cidr string) *net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(cidr)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Foreign routes and rules that win over ours are named, and nothing else: each case
// is what an outsider does to a node that is as it should be.
func TestForeignRoutesShadow(t *testing.T) {
	const subnet = "10.128.0.0/14 dev fl.vxlan src 10.128.0.1"
	rule := func(change func(*netlink.Rule)) func(*node) error {
		return func(n *node) error {
			r := netlink.NewRule()
			r.Family, r.Priority, r.Table = unix.AF_INET, 100, 52
			change(r)
			return n.out.RuleAdd(r)
		}
	}
	route := func(table int, dst string) func(*node) error {
		return func(n *node) error {
			return n.out.RouteAdd(&netlink.Route{Dst: network(n.T, dst), LinkIndex: n.link("nic").Attrs().Index, Table: table})
		}
	}
	found := func(subsystem, object, want string) []apply.Difference {
		return []apply.Difference{{Subsystem: subsystem, Object: object, Problem: shadowing, Want: want}}
	}
	for name, c := range map[string]struct {
		steps []func(*node) error
		want  []apply.Difference
	}{
		"a route to a part of a Subnet":    {[]func(*node) error{route(0, "10.128.3.0/24")}, found("route", "10.128.3.0/24 dev nic", subnet)},
		"an IPv6 route to a part":          {[]func(*node) error{route(0, "fd00:128::7700/120")}, found("route", "fd00:128::7700/120 dev nic", "fd00:128::/48 dev fl.vxlan src fd00:128::1")},
		"a wider route":                    {[]func(*node) error{route(0, "10.0.0.0/8")}, nil},
		"a route elsewhere":                {[]func(*node) error{route(0, "10.200.0.0/24")}, nil},
		"a route that no rule asks for":    {[]func(*node) error{route(52, "10.128.3.0/24")}, nil},
		"a rule with an empty table":       {[]func(*node) error{rule(func(*netlink.Rule) {})}, nil},
		"a rule with a table of elsewhere": {[]func(*node) error{route(52, "10.200.0.0/24"), rule(func(*netlink.Rule) {})}, nil},
		"a rule with a default route": {
			[]func(*node) error{route(52, "0.0.0.0/0"), rule(func(*netlink.Rule) {})},
			found("rule", "100: from all lookup 52", subnet+", and 2 more"),
		},
		"the same, but default routes do not count": {
			[]func(*node) error{route(52, "0.0.0.0/0"), rule(func(r *netlink.Rule) { r.SuppressPrefixlen = 0 })}, nil,
		},
		"a rule for packets with a foreign mark": {
			[]func(*node) error{route(52, "0.0.0.0/0"), rule(func(r *netlink.Rule) { r.Mark = 0x8000 })}, nil,
		},
		"a rule for packets without a foreign mark": {
			[]func(*node) error{route(52, "0.0.0.0/0"), rule(func(r *netlink.Rule) { r.Mark, r.Invert = 0x8000, true })},
			found("rule", "100: not from all fwmark 0x8000/0xffffffff lookup 52", subnet+", and 2 more"),
		},
		"a rule for another source": {
			[]func(*node) error{route(52, "0.0.0.0/0"), rule(func(r *netlink.Rule) { r.Src = network(t, "192.0.2.0/24") })}, nil,
		},
		"a rule for pods": {
			[]func(*node) error{route(52, "0.0.0.0/0"), rule(func(r *netlink.Rule) { r.Src = network(t, "10.128.0.2/32") })},
			found("rule", "100: from 10.128.0.2/32 lookup 52", subnet+", and 2 more"),
		},
		"a rule that refuses": {
			[]func(*node) error{rule(func(r *netlink.Rule) { r.Table, r.Type, r.Dst = 0, unix.FR_ACT_BLACKHOLE, network(t, "10.128.0.2/32") })},
			found("rule", "100: from all to 10.128.0.2/32 blackhole", subnet+", and 2 more"),
		},
		"a rule behind the main table": {
			[]func(*node) error{route(52, "0.0.0.0/0"), rule(func(r *netlink.Rule) { r.Priority = 32800 })}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, w := newNode(t), newWorld()
			n.addUnderlay(w)
			w.addPod(t, 2)
			state := w.state()
			n.mustApply(state, apply.Options{})
			for _, step := range c.steps {
				if err := step(n); err != nil {
					t.Fatal(err)
				}
			}
			if changes := n.apply(state, apply.Options{Refresh: true}).Changes; len(changes) > 0 {
				t.Errorf("changed what is foreign: %v", changes)
			}
			got, err := n.d.Audit(t.Context(), state)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("audit (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.want, n.shadowing()); d != "" {
				t.Errorf("between audits (-want +got):\n%s", d)
			}
		})
	}
}

func (n *node) shadowing() []apply.Difference {
	n.Helper()
	got, err := n.d.Shadowing()
	if err != nil {
		n.Fatal(err)
	}
	return got
}

// What shadows our routes is told as it comes, and no more once it is gone, without anything
// being applied; and the kernel is read only when there is news.
func TestShadowingFollowsTheKernel(t *testing.T) {
	n, w := newNode(t), newWorld()
	if got := n.shadowing(); got != nil {
		t.Errorf("before the first Apply: %v", got)
	}
	n.addUnderlay(w)
	w.addPod(t, 2)
	n.mustApply(w.state(), apply.Options{})
	nic := n.link("nic")
	part := &netlink.Route{Dst: network(t, "10.128.3.0/24"), LinkIndex: nic.Attrs().Index}
	other := &netlink.Route{Dst: network(t, "0.0.0.0/0"), LinkIndex: nic.Attrs().Index, Table: 52}
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = unix.AF_INET, 100, 52
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"a route", func() error { return n.out.RouteAdd(part) }, []string{"10.128.3.0/24 dev nic"}},
		{"the route goes", func() error { return n.out.RouteDel(part) }, nil},
		{"a rule whose table is empty", func() error { return n.out.RuleAdd(rule) }, nil},
		{"its table is filled", func() error { return n.out.RouteAdd(other) }, []string{"100: from all lookup 52"}},
		{"the rule goes", func() error { return n.out.RuleDel(rule) }, nil},
		{"a route again", func() error { return n.out.RouteAdd(part) }, []string{"10.128.3.0/24 dev nic"}},
		{"its link is set down, and it goes without a word", func() error { return n.out.LinkSetDown(nic) }, nil},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		var got []string
		for _, d := range n.shadowing() {
			got = append(got, d.Object)
		}
		if d := cmp.Diff(step.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, d)
		}
	}
	// The kernel's own news of the link may still be on its way.
	remembered := false
	for try := 0; try < 1000 && !remembered; try++ {
		n.d.shadowed = []apply.Difference{{Object: "remembered"}}
		remembered = len(n.shadowing()) == 1
	}
	if !remembered {
		t.Error("the kernel is read though there is no news")
	}
}
