package addressing

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// table makes a table of named objects.
func table[T any](name func(*T) string, objects ...*T) world.Table[*T] {
	var t world.Table[*T]
	for _, o := range objects {
		t = t.With(world.Key{Name: name(o)}, o)
	}
	return t
}

func network(name string, mtu int, addrs ...string) *world.NodeNetwork {
	n := &world.NodeNetwork{Name: name, MTU: mtu}
	for _, a := range addrs {
		n.Addresses = append(n.Addresses, prefix(a))
	}
	return n
}

func networks(list ...*world.NodeNetwork) world.Table[*world.NodeNetwork] {
	return table(func(n *world.NodeNetwork) string { return n.Name }, list...)
}

var values = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func everybody(string) bool { return true }

func TestMTU(t *testing.T) {
	for _, tt := range []struct {
		name          string
		nodes         []*world.NodeNetwork
		configured    int
		overlay, ipv6 bool
		want          int
		problem       string
	}{
		{name: "nobody known", overlay: true, want: 1450},
		{name: "nobody known, IPv6", overlay: true, ipv6: true, want: 1450},
		{name: "no MTU told", nodes: []*world.NodeNetwork{network("n1", 0, "172.30.0.1/24")}, overlay: true, want: 1450},
		{name: "one", nodes: []*world.NodeNetwork{network("n1", 1500, "172.30.0.1/24")}, overlay: true, want: 1450},
		{name: "no overlay", nodes: []*world.NodeNetwork{network("n1", 1500, "172.30.0.1/24")}, want: 1500},
		{name: "smallest", nodes: []*world.NodeNetwork{network("n1", 9000, "172.30.0.1/24"), network("n2", 8000, "172.30.0.2/24")}, overlay: true, want: 7950},
		{name: "dual stack is IPv4 outside", nodes: []*world.NodeNetwork{network("n1", 1500, "172.30.0.1/24", "fd30::1/64")}, overlay: true, want: 1450},
		{name: "IPv6 outside", nodes: []*world.NodeNetwork{network("n1", 1500, "172.30.0.1/24"), network("n2", 1500, "fd30::2/64")}, overlay: true, want: 1430},
		{name: "configured", nodes: []*world.NodeNetwork{network("n1", 1500, "172.30.0.1/24")}, configured: 1300, overlay: true, want: 1300},
		{name: "configured too large", nodes: []*world.NodeNetwork{network("n1", 1500, "172.30.0.1/24")}, configured: 1500, overlay: true, want: 1500, problem: "MTUTooLarge"},
		{name: "configured, nobody known", configured: 9000, overlay: true, want: 9000},
		{name: "floor of IPv6", nodes: []*world.NodeNetwork{network("n1", 1300, "172.30.0.1/24")}, overlay: true, ipv6: true, want: 1280, problem: "MTUTooSmall"},
		{name: "floor is of IPv6 only", nodes: []*world.NodeNetwork{network("n1", 1300, "172.30.0.1/24")}, overlay: true, want: 1250},
		{name: "configured below the floor", configured: 1000, ipv6: true, want: 1280, problem: "MTUTooSmall"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := DecideUnderlay("n1", everybody, networks(tt.nodes...))
			got, problems := u.MTU(tt.configured, tt.overlay, tt.ipv6)
			if got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if (len(problems) > 0) != (tt.problem != "") || len(problems) > 0 && problems[0].Reason != tt.problem {
				t.Errorf("problems %v, want %q", problems, tt.problem)
			}
		})
	}
}

func TestSegments(t *testing.T) {
	for _, tt := range []struct {
		name             string
		ours, theirs     []string
		outer            string
		direct4, direct6 bool
	}{
		{name: "one segment", ours: []string{"172.30.0.1/24"}, theirs: []string{"172.30.0.2/24"}, outer: "172.30.0.2", direct4: true},
		{name: "two segments", ours: []string{"172.30.0.1/24"}, theirs: []string{"172.30.1.2/24"}, outer: "172.30.1.2"},
		{name: "only ours contains", ours: []string{"172.30.0.1/16"}, theirs: []string{"172.30.1.2/24"}, outer: "172.30.1.2"},
		{name: "only theirs contains", ours: []string{"172.30.0.1/24"}, theirs: []string{"172.30.1.2/16"}, outer: "172.30.1.2"},
		{name: "families apart", ours: []string{"172.30.0.1/24", "fd30::1/64"}, theirs: []string{"172.30.1.2/24", "fd30::2/64"}, outer: "172.30.1.2", direct6: true},
		{name: "IPv6 first told", ours: []string{"fd30::1/64", "172.30.0.1/24"}, theirs: []string{"fd30::2/64", "172.30.0.2/24"}, outer: "172.30.0.2", direct4: true, direct6: true},
		{name: "common is IPv6", ours: []string{"fd30::1/64"}, theirs: []string{"172.30.0.2/24", "fd30::2/64"}, outer: "fd30::2", direct6: true},
		{name: "nothing in common", ours: []string{"fd30::1/64"}, theirs: []string{"172.30.0.2/24"}},
		{name: "point to point", ours: []string{"172.30.0.1/32"}, theirs: []string{"172.30.0.2/32"}, outer: "172.30.0.2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := DecideUnderlay("n1", everybody, networks(network("n1", 1500, tt.ours...), network("n2", 1500, tt.theirs...)))
			if len(u.Peers) != 1 {
				t.Fatalf("peers %v", u.Peers)
			}
			outer := ""
			if u.Peers[0].Outer.IsValid() {
				outer = u.Peers[0].Outer.String()
			}
			p := u.paths["n2"]
			if outer != tt.outer || p.direct4 != tt.direct4 || p.direct6 != tt.direct6 {
				t.Errorf("outer %s, direct %v %v; want %s, %v %v", outer, p.direct4, p.direct6, tt.outer, tt.direct4, tt.direct6)
			}
		})
	}
}

// TestDuplicateAddress: our own claim, then that of a living node, then the first.
func TestDuplicateAddress(t *testing.T) {
	all := networks(network("a", 0, "172.30.0.9/24"), network("b", 0, "172.30.0.9/24"), network("c", 0, "172.30.0.9/24", "fd30::3/64"))
	for _, tt := range []struct {
		self   string
		living string
		want   []string // peers with their addresses
	}{
		{"x", "abc", []string{"a [172.30.0.9]", "c [fd30::3]"}},
		{"x", "b", []string{"b [172.30.0.9]", "c [fd30::3]"}},
		{"x", "", []string{"a [172.30.0.9]", "c [fd30::3]"}},
		{"c", "ab", nil},
	} {
		u := DecideUnderlay(tt.self, func(n string) bool { return strings.Contains(tt.living, n) }, all)
		var got []string
		for _, p := range u.Peers {
			got = append(got, fmt.Sprintf("%s %s", p.Name, p.Addrs))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("self %s, living %q (-want +got):\n%s", tt.self, tt.living, diff)
		}
	}
}

// subnetsOf decides about Subnets of one VPC, the oldest first.
func subnetsOf(t *testing.T, segments []netip.Prefix, list ...*world.Subnet) *Subnets {
	t.Helper()
	vpcs := table(func(v *world.VPC) string { return v.Name }, &world.VPC{Name: "default", VNI: 1})
	tenants := tenancy.Decide(world.Table[*world.Namespace]{}, vpcs, world.Table[*world.NetNamespace]{})
	for i, s := range list {
		s.VPC, s.Created = "default", time.Unix(int64(i), 0)
	}
	return DecideSubnets(tenants, segments, table(func(s *world.Subnet) string { return s.Name }, list...))
}

func blocks(list ...*world.Block) world.Table[*world.Block] {
	return table(func(b *world.Block) string { return b.Name }, list...)
}

func TestCIDRsAreTidied(t *testing.T) {
	s := subnetsOf(t, nil, &world.Subnet{
		Name: "s", NATOutgoing: true,
		CIDRs: []netip.Prefix{prefix("10.1.1.0/24"), prefix("10.1.0.77/24"), prefix("10.1.0.0/25"), {}, prefix("::ffff:10.9.0.0/120"), prefix("fd10::/64")},
	})
	want := []intent.Subnet{{VPC: "default", Name: "s", Overlay: true, CIDRs: []netip.Prefix{prefix("10.1.0.0/24"), prefix("10.1.1.0/24"), prefix("fd10::/64")}}}
	if diff := cmp.Diff(want, s.List, values); diff != "" {
		t.Errorf("Subnets (-want +got):\n%s", diff)
	}
	merged := []netip.Prefix{prefix("10.1.0.0/23"), prefix("fd10::/64")}
	if diff := cmp.Diff([]intent.AddressSet{{VPC: "default", Name: "subnets", Prefixes: merged}}, s.AddressSets, values); diff != "" {
		t.Errorf("sets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]intent.NAT{{VPC: "default", Name: "s", Sources: merged, Except: "subnets"}}, s.NATs, values); diff != "" {
		t.Errorf("NATs (-want +got):\n%s", diff)
	}
	if len(s.Problems) != 2 {
		t.Errorf("problems %v, want one for each CIDR that is none", s.Problems)
	}
}

func TestLoansOfAWholeBlock(t *testing.T) {
	u := DecideUnderlay("n1", everybody, networks(network("n1", 0, "172.30.0.1/24"), network("n2", 0, "172.30.0.2/24"), network("n3", 0, "172.30.0.3/24")))
	s := subnetsOf(t, nil, &world.Subnet{Name: "s", CIDRs: []netip.Prefix{prefix("10.1.0.0/24")}})
	loan := func(a, node string) world.Loan { return world.Loan{Addr: netip.MustParseAddr(a), Node: node} }
	r := DecideRoutes(u, s, blocks(
		&world.Block{Name: "single", Subnet: "s", CIDR: prefix("10.1.0.7/32"), Node: "n2", Lent: []world.Loan{loan("10.1.0.7", "n1")}},
		&world.Block{Name: "plain", Subnet: "s", CIDR: prefix("10.1.0.16/28"), Node: "n2", Lent: []world.Loan{
			loan("10.1.0.17", "n3"), loan("10.1.0.17", "n1"), loan("10.1.0.18", "n2"), loan("10.1.0.99", "n1"), loan("10.1.0.19", "lost"),
		}},
		&world.Block{Name: "own", Subnet: "s", CIDR: prefix("10.1.0.32/28"), Node: "n1", Lent: []world.Loan{loan("10.1.0.33", "lost")}},
	))
	var got []string
	for _, route := range r.List {
		got = append(got, route.Dst.String()+" "+route.String())
	}
	want := []string{
		"10.1.0.7/32 local", // Borrowed, and the whole block.
		"10.1.0.16/28 via n2, encapsulated",
		"10.1.0.17/32 via n3, encapsulated", // The first loan counts.
		"10.1.0.19/32 local",                // Nowhere: its borrower is not known, and its owner does not have it.
		"10.1.0.32/28 local",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var reasons []string
	for _, p := range r.Problems {
		reasons = append(reasons, p.Key.Name+" "+p.Reason)
	}
	if diff := cmp.Diff([]string{"plain OutsideBlock", "lost NoNodeNetwork"}, reasons, cmpopts.SortSlices(func(a, b string) bool { return a < b })); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// TestDirectSetEqualsLongestMatch compares the set with what it stands for, address
// by address.
func TestDirectSetEqualsLongestMatch(t *testing.T) {
	all := networks(network("n1", 0, "172.30.0.1/24"), network("n2", 0, "172.30.0.2/24"), network("n3", 0, "172.30.1.3/24"))
	rapid.Check(t, func(rt *rapid.T) {
		u := DecideUnderlay("n1", everybody, all)
		s := subnetsOf(t, nil, &world.Subnet{Name: "s", CIDRs: []netip.Prefix{prefix("10.1.0.0/24")}, Encapsulation: world.CrossSubnet})
		node := rapid.SampledFrom([]string{"n1", "n2", "n3", "lost"})
		var list []*world.Block
		at := map[netip.Addr]string{}
		for i := range 4 {
			b := &world.Block{Name: fmt.Sprint(i), Subnet: "s", Node: node.Draw(rt, "owner"), CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(8 * i)}), 29)}
			for a := b.CIDR.Addr(); b.CIDR.Contains(a); a = a.Next() {
				at[a] = b.Node
				if rapid.IntRange(0, 3).Draw(rt, "lent") == 0 {
					at[a] = node.Draw(rt, "borrower")
					b.Lent = append(b.Lent, world.Loan{Addr: a, Node: at[a]})
				}
			}
			list = append(list, b)
		}
		r := DecideRoutes(u, s, blocks(list...))
		for a, where := range at {
			in := len(r.AddressSets) > 0 && contains(r.AddressSets[0].Prefixes, a)
			if in != (where == "n2") {
				rt.Fatalf("%s is at %s, in the set %v: %v", a, where, in, r.AddressSets)
			}
		}
	})
}

func TestProblemsStayBounded(t *testing.T) {
	u := DecideUnderlay("n1", everybody, networks(network("n1", 0, "172.30.0.1/24"), network("n2", 0, "172.30.1.2/24")))
	s := subnetsOf(t, nil, &world.Subnet{Name: "s", CIDRs: []netip.Prefix{prefix("10.1.0.0/16")}, Transport: world.Routed})
	var list []*world.Block
	for i := range 1000 {
		b := &world.Block{Name: fmt.Sprintf("b%04d", i), Subnet: "s", Node: "n2", CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 16), byte(i % 16 * 16)}), 28)}
		if i%2 == 0 {
			b.Node = "lost"
		}
		list = append(list, b)
	}
	r := DecideRoutes(u, s, blocks(list...))
	if len(r.Problems) != 2 || len(r.Problems[0].Message) > 300 || len(r.Problems[1].Message) > 300 {
		t.Errorf("problems: %v", r.Problems)
	}
}
