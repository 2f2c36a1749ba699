package flows

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func rule(a intent.Action, sets ...string) intent.Rule {
	return intent.Rule{
		Tier: intent.TierNetworkPolicy, Action: a, Match: intent.Match{Sets: sets},
		Origin: intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "ns", Name: "web", Index: -1},
	}
}

func admin(a intent.Action, sets ...string) intent.Rule {
	r := rule(a, sets...)
	r.Tier = intent.TierAdmin
	return r
}

// example is a node with three pods; the first hears only members of "friends".
func example() intent.Node {
	in := intent.NewRuleList("a", intent.Ingress, []intent.Rule{rule(intent.Accept, "friends"), rule(intent.Deny)})
	port := func(id, addr string) intent.Port {
		return intent.Port{ID: id, VPC: "a", VNI: 10, Addresses: []netip.Addr{ip(addr)}}
	}
	n := intent.Node{
		Name: "n", Underlay: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
		VPCs: []intent.VPC{{Name: "a", VNI: 10, Tenants: []packet.VNI{11}}},
		Routes: []intent.Route{
			{VPC: "a", Dst: netip.MustParsePrefix("10.1.0.0/24"), NextHop: intent.NextHop{Local: true}},
			{VPC: "a", Dst: netip.MustParsePrefix("10.1.0.40/32"), NextHop: intent.NextHop{Peer: "m"}},
		},
		Ports: []intent.Port{port("1/eth0", "10.1.0.2"), port("2/eth0", "10.1.0.3"), port("3/eth0", "10.1.0.4")},
		AddressSets: []intent.AddressSet{
			{VPC: "a", Name: "friends", Prefixes: prefixes(ip("10.1.0.3"), ip("10.1.1.1"))},
			{VPC: "a", Name: "subnets", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
			{VPC: "a", Name: "unused"},
		},
		RuleLists: []intent.RuleList{in},
	}
	n.Ports[0].Ingress = in.ID
	return n
}

// with changes a copy.
func with(n intent.Node, change func(*intent.Node)) intent.Node {
	n.Ports, n.Routes, n.AddressSets = slices.Clone(n.Ports), slices.Clone(n.Routes), slices.Clone(n.AddressSets)
	change(&n)
	return n
}

func TestQueries(t *testing.T) {
	old := with(example(), func(n *intent.Node) {
		l := intent.NewRuleList("a", intent.Ingress, []intent.Rule{
			admin(intent.Pass, "passed"), admin(intent.Deny, "denied"), rule(intent.Accept, "friends"), rule(intent.Deny),
		})
		n.Ports[0].Ingress, n.RuleLists = l.ID, []intent.RuleList{l}
		n.AddressSets = append(n.AddressSets, intent.AddressSet{VPC: "a", Name: "denied", Prefixes: prefixes(ip("10.1.1.2"))},
			intent.AddressSet{VPC: "a", Name: "passed", Prefixes: prefixes(ip("10.1.1.3"))})
		slices.SortFunc(n.AddressSets, intent.AddressSet.Compare)
	})
	end := func(addrs ...string) (out []Query) {
		for _, a := range addrs {
			out = append(out, Query{End: ip(a)})
		}
		return out
	}
	for _, tc := range []struct {
		name   string
		change func(*intent.Node)
		o      Options
		want   []Query
	}{
		{"nothing", func(*intent.Node) {}, Options{}, nil},
		{"a new port of a block that is here", func(n *intent.Node) {
			n.Ports = append(n.Ports, intent.Port{ID: "4/eth0", VPC: "a", VNI: 10, Addresses: []netip.Addr{ip("10.1.0.5")}})
		}, Options{}, nil},
		{"a new port of an address that was elsewhere", func(n *intent.Node) {
			n.Ports = append(n.Ports, intent.Port{ID: "4/eth0", VPC: "a", VNI: 10, Addresses: []netip.Addr{ip("10.1.0.40")}})
		}, Options{}, end("10.1.0.40")},
		{"a route and a peer", func(n *intent.Node) { n.Routes, n.Peers = n.Routes[:1], []intent.Peer{{Name: "x"}} }, Options{}, nil},
		{"a set that no list uses", func(n *intent.Node) { n.AddressSets[4].Prefixes = prefixes(ip("10.1.0.4")) }, Options{}, nil},
		{"a port is gone", func(n *intent.Node) { n.Ports = n.Ports[:2] }, Options{}, end("10.1.0.4")},
		{"another port has the address", func(n *intent.Node) { n.Ports[2].ID = "4/eth0" }, Options{}, end("10.1.0.4")},
		{"a list", func(n *intent.Node) { n.Ports[0].Ingress = "" }, Options{}, end("10.1.0.2")},
		{"a tenant", func(n *intent.Node) { n.Ports[1].VNI = 11 }, Options{}, end("10.1.0.3")},
		{"a peer next to another joins", func(n *intent.Node) {
			n.AddressSets[1].Prefixes = prefixes(ip("10.1.0.3"), ip("10.1.1.1"), ip("10.1.0.2"))
		}, Options{}, []Query{{Cut: true}}}, // who is accepted makes more allowed, never less
		{"a new port joins", func(n *intent.Node) {
			n.Ports = append(n.Ports, intent.Port{ID: "4/eth0", VPC: "a", VNI: 10, Addresses: []netip.Addr{ip("10.1.0.5")}})
			n.AddressSets[1].Prefixes = prefixes(ip("10.1.0.3"), ip("10.1.1.1"), ip("10.1.0.5"))
		}, Options{}, nil},
		{"a peer joins those who are denied", func(n *intent.Node) { n.AddressSets[0].Prefixes = prefixes(ip("10.1.1.1"), ip("10.1.1.2")) }, Options{}, end("10.1.1.1")},
		{"a peer leaves those who are denied", func(n *intent.Node) { n.AddressSets[0].Prefixes = nil }, Options{}, []Query{{Cut: true}}},
		{"a peer leaves those who are passed on", func(n *intent.Node) { n.AddressSets[2].Prefixes = nil }, Options{}, end("10.1.1.3")},
		{"one leaves and one joins", func(n *intent.Node) {
			n.AddressSets[1].Prefixes = prefixes(ip("10.1.0.3"), ip("10.1.1.9"))
		}, Options{}, append(end("10.1.1.1"), Query{Cut: true})},
		{"a peer leaves", func(n *intent.Node) { n.AddressSets[1].Prefixes = prefixes(ip("10.1.0.3")) }, Options{}, end("10.1.1.1")},
		{"many peers join", func(n *intent.Node) {
			n.AddressSets[1].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		}, Options{}, []Query{{Cut: true}}},
		{"many peers join those who are denied: the port is asked for", func(n *intent.Node) {
			n.AddressSets[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		}, Options{}, end("10.1.0.2")},
		{"many lists", func(n *intent.Node) {
			n.Ports[0].Egress = "x"
			n.Ports[2].Egress = "x"
		}, Options{}, end("10.1.0.2", "10.1.0.4")},
		{"too many to ask one by one", func(n *intent.Node) {
			for i := range maxEnds {
				n.Ports[0].Addresses = append(n.Ports[0].Addresses, netip.AddrFrom4([4]byte{10, 1, 0, byte(100 + i)}))
			}
			n.Ports[0].Ingress = ""
		}, Options{}, []Query{{}}},
		{"a tenant elsewhere, and nobody here is isolated", func(n *intent.Node) {
			n.AddressSets = slices.Insert(n.AddressSets, 4, intent.AddressSet{VPC: "a", Name: intent.SetTenant(12), Prefixes: prefixes(ip("10.1.1.1"))})
		}, Options{}, nil},
		{"Subnets", func(n *intent.Node) { n.AddressSets[3].Prefixes = nil }, Options{}, []Query{{}}},
		{"adopting", func(*intent.Node) {}, Options{Adopting: true}, []Query{{Unjudged: true}}},
		{"add only", func(n *intent.Node) { n.Ports = n.Ports[:1] }, Options{AddOnly: true}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Compare(&old, with(old, tc.change), tc.o).Queries()
			if diff := cmp.Diff(tc.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("queries (-want +got):\n%s", diff)
			}
		})
	}
	if got := Compare(nil, old, Options{}).Queries(); len(got) != 1 || got[0] != (Query{}) {
		t.Errorf("without an old intent: %v, want everything", got)
	}
}

func TestDecide(t *testing.T) {
	const judged, cut = claims.CTJudged, claims.CTCut
	n := example()
	tenant := func(vni packet.VNI, addrs ...string) intent.AddressSet {
		s := intent.AddressSet{VPC: "a", Name: intent.SetTenant(vni)}
		for _, a := range addrs {
			s.Prefixes = append(s.Prefixes, netip.PrefixFrom(ip(a), 32))
		}
		return s
	}
	tenants := func(sets ...intent.AddressSet) func(*intent.Node) {
		return func(n *intent.Node) {
			n.Ports[1].VNI = 11
			n.AddressSets = append(n.AddressSets, sets...)
			slices.SortFunc(n.AddressSets, intent.AddressSet.Compare)
		}
	}
	isolated := with(n, tenants(tenant(11, "10.1.0.3", "10.1.1.2"), tenant(12, "10.1.1.1")))
	joined := with(n, tenants(tenant(11, "10.1.0.3", "10.1.1.1", "10.1.1.2")))
	for _, tc := range []struct {
		name     string
		old      *intent.Node
		desired  intent.Node
		o        Options
		src, dst string
		mark     uint32
		want     Verdict
		why      string
	}{
		{"allowed stays", nil, n, Options{}, "10.1.0.3", "10.1.0.2", judged, Keep, ""},
		{"denied", nil, n, Options{}, "10.1.0.4", "10.1.0.2", judged, Cut, "NetworkPolicy ns/web isolates"},
		{"denied already", nil, n, Options{}, "10.1.0.4", "10.1.0.2", judged | cut, Keep, "NetworkPolicy ns/web isolates"},
		{"allowed again", nil, n, Options{}, "10.1.1.1", "10.1.0.2", judged | cut, Uncut, ""},
		{"cut by adoption, allowed now", nil, n, Options{}, "10.1.1.1", "10.1.0.2", cut, Uncut, ""},
		{"the outside", nil, n, Options{}, "203.0.113.1", "10.1.0.2", judged, Cut, "NetworkPolicy ns/web isolates"},
		{"the node itself", nil, n, Options{}, "192.0.2.1", "10.1.0.2", judged, Keep, ""},
		{"the node by another address", nil, n, Options{}, "192.0.2.99", "10.1.0.2", judged, Keep, ""},
		{"with itself", nil, n, Options{}, "10.1.0.2", "10.1.0.2", judged, Keep, ""},
		{"not concerned", &n, n, Options{}, "10.1.0.4", "10.1.0.2", judged, Keep, ""},
		{"never judged, nobody's time to adopt", nil, n, Options{}, "10.1.0.4", "10.1.0.2", 0, Keep, ""},
		{"address that nobody has", nil, n, Options{}, "203.0.113.1", "10.1.0.77", judged, Forget, ""},
		{"address that is elsewhere", nil, n, Options{}, "203.0.113.1", "10.1.0.40", judged, Keep, ""},
		{"adopt", nil, n, Options{Adopting: true}, "10.1.0.3", "10.1.0.2", 0, Judge, ""},
		{"adopt nothing denied", nil, n, Options{Adopting: true}, "203.0.113.1", "10.1.0.2", 0, Keep, ""},
		{"a pod's denied flow is cut: the node may answer it", nil, n, Options{Adopting: true}, "10.1.0.4", "10.1.0.2", 0, Cut, "NetworkPolicy ns/web isolates"},
		{"others' forwarded flows are nobody's", nil, n, Options{Adopting: true}, "203.0.113.1", "203.0.113.2", 0, Keep, ""},
		{"the node's own are not adopted", nil, n, Options{Adopting: true}, "192.0.2.99", "10.1.0.3", 0, Keep, ""},
		{"nor those to it", nil, n, Options{Adopting: true}, "203.0.113.1", "192.0.2.1", 0, Keep, ""},
		{"nor within it", nil, n, Options{Adopting: true}, "127.0.0.1", "127.0.0.53", 0, Keep, ""},
		{"a pod's to the node", nil, n, Options{Adopting: true}, "10.1.0.2", "192.0.2.1", 0, Judge, ""},
		{"add only adopts", nil, n, Options{Adopting: true, AddOnly: true}, "10.1.0.3", "10.1.0.2", 0, Judge, ""},
		{"and does not cut", nil, n, Options{Adopting: true, AddOnly: true}, "10.1.0.4", "10.1.0.2", 0, Keep, ""},
		{"whatever was judged", nil, n, Options{Adopting: true, AddOnly: true}, "10.1.0.4", "10.1.0.2", judged, Keep, ""},
		{"nor uncut", nil, n, Options{AddOnly: true}, "10.1.0.3", "10.1.0.2", judged | cut, Keep, ""},
		{"nor forget", nil, n, Options{AddOnly: true}, "203.0.113.1", "10.1.0.77", judged, Keep, ""},
		{"a pod elsewhere of another tenant", &n, isolated, Options{}, "10.1.1.1", "10.1.0.3", judged, Cut, "another tenant"},
		{"one of the same tenant", &n, isolated, Options{}, "10.1.1.2", "10.1.0.3", judged, Keep, ""},
		{"one of a global tenant, or unknown", &n, isolated, Options{}, "10.1.1.3", "10.1.0.3", judged, Keep, ""},
		{"to a pod elsewhere of another tenant", &n, isolated, Options{}, "10.1.0.3", "10.1.1.1", judged, Cut, "another tenant"},
		{"to one of the same tenant", &n, isolated, Options{}, "10.1.0.3", "10.1.1.2", judged, Keep, ""},
		{"of a global tenant to one that is isolated", nil, isolated, Options{}, "10.1.0.4", "10.1.1.1", judged, Keep, ""},
		{"tenant as it was", &isolated, isolated, Options{}, "10.1.1.1", "10.1.0.3", judged, Keep, ""},
		{"a pod elsewhere has another tenant now", &isolated, joined, Options{}, "10.1.1.1", "10.1.0.3", judged | cut, Uncut, ""},
		{"and is cut by it", &joined, isolated, Options{}, "10.1.0.3", "10.1.1.1", judged, Cut, "another tenant"},
		{"global tenant here", &n, isolated, Options{}, "10.1.0.4", "10.1.0.3", judged, Keep, ""},
		{"the outside hears every tenant", &n, isolated, Options{}, "203.0.113.1", "10.1.0.3", judged, Keep, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const foreign uint32 = 0x4001
			f := Flow{First: packet.Packet{Src: ip(tc.src), Dst: ip(tc.dst), Protocol: packet.UDP, SrcPort: 1, DstPort: 53}, Mark: tc.mark | foreign}
			d := Compare(tc.old, tc.desired, tc.o).Decider([]netip.Addr{ip("192.0.2.99")})
			got, why := d.Decide(f)
			if got != tc.want || got == Cut && why != tc.why {
				t.Errorf("%s (%s), want %s (%s)", got, why, tc.want, tc.why)
			}
			want := map[Verdict]uint32{Keep: tc.mark, Forget: tc.mark, Cut: tc.mark | cut, Uncut: judged, Judge: judged}[tc.want] | foreign
			if mark := apply(f, got); mark != want {
				t.Errorf("mark %#x, want %#x", mark, want)
			}
		})
	}
}

// A list that the intent lacks allows nothing.
func TestMissingList(t *testing.T) {
	n := with(example(), func(n *intent.Node) { n.Ports[1].Egress = "egress-x" })
	d := Compare(nil, n, Options{}).Decider(nil)
	f := Flow{First: packet.Packet{Src: ip("10.1.0.3"), Dst: ip("203.0.113.1"), Protocol: packet.ICMP}, Mark: claims.CTJudged}
	if v, why := d.Decide(f); v != Cut || why != "the rule list egress-x is missing" {
		t.Errorf("%s (%s), want it to be cut", v, why)
	}
}

// Flows do not say which VPC they are of: an address of two ports is nobody's.
func TestAddressOfTwoPorts(t *testing.T) {
	n := with(example(), func(n *intent.Node) { n.Ports[2].Addresses = n.Ports[0].Addresses })
	d := Compare(nil, n, Options{}).Decider(nil)
	f := Flow{First: packet.Packet{Src: ip("203.0.113.1"), Dst: ip("10.1.0.2"), Protocol: packet.TCP}, Mark: claims.CTJudged}
	if v, _ := d.Decide(f); v != Keep {
		t.Errorf("%s, want keep", v)
	}
}

// BenchmarkDecide judges flows of a pod with many policies, each from another peer.
func BenchmarkDecide(b *testing.B) {
	for _, policies := range []int{1, 100, 5000} {
		n := example()
		var rules []intent.Rule
		for i := range policies {
			r := rule(intent.Accept, fmt.Sprintf("s%04d", i))
			r.Match.Protocol, r.Match.Ports = packet.TCP, []intent.PortRange{{First: uint16(i), Last: uint16(i)}}
			rules = append(rules, r)
			n.AddressSets = append(n.AddressSets, intent.AddressSet{VPC: "a", Name: r.Match.Sets[0], Prefixes: prefixes(ip("10.1.1.1"))})
		}
		l := intent.NewRuleList("a", intent.Ingress, append(rules, rule(intent.Deny)))
		n.Ports[0].Ingress, n.RuleLists = l.ID, []intent.RuleList{l}
		slices.SortFunc(n.AddressSets, intent.AddressSet.Compare)
		b.Run(fmt.Sprintf("%d policies, other peers", policies), func(b *testing.B) {
			d := Compare(nil, n, Options{}).Decider(nil)
			src := ip("20.0.0.0")
			for b.Loop() {
				src = src.Next()
				d.Decide(Flow{First: packet.Packet{Src: src, Dst: ip("10.1.0.2"), Protocol: packet.TCP, DstPort: 443}, Mark: claims.CTJudged})
			}
		})
	}
	b.Run("nothing changed", func(b *testing.B) {
		n := example()
		for i := range 10_000 {
			n.AddressSets[0].Prefixes = append(n.AddressSets[0].Prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i >> 8), byte(i)}), 32))
		}
		for b.Loop() {
			Compare(&n, n, Options{}).Queries()
		}
	})
}
