package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func origin(name string, i int) intent.RuleOrigin {
	if strings.HasPrefix(name, "cnp") {
		return intent.RuleOrigin{Kind: "ClusterNetworkPolicy", Name: name, Index: i}
	}
	return intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "shop", Name: name, Index: i}
}

func ports(first, last uint16, more ...uint16) []intent.PortRange {
	out := []intent.PortRange{{First: first, Last: last}}
	for _, p := range more {
		out = append(out, intent.PortRange{First: p, Last: p})
	}
	return out
}

// withLists gives an intent the lists of its first port.
func withLists(n intent.Node, sets []intent.AddressSet, ingress, egress []intent.Rule) intent.Node {
	vpc := n.Ports[0].VPC
	in, out := intent.NewRuleList(vpc, intent.Ingress, ingress), intent.NewRuleList(vpc, intent.Egress, egress)
	n.RuleLists = append(n.RuleLists, out, in)
	slices.SortFunc(n.RuleLists, intent.RuleList.Compare)
	n.Ports = slices.Clone(n.Ports)
	n.Ports[0].Ingress, n.Ports[0].Egress = in.ID, out.ID
	n.AddressSets = append(slices.Clone(n.AddressSets), sets...)
	slices.SortFunc(n.AddressSets, intent.AddressSet.Compare)
	return n
}

// restricted is one VPC with a shop: a list of all three tiers for what the pod
// receives, one for what it sends.
func restricted() intent.Node {
	n := intent.Node{
		Name: "n1", MTU: 1450, Underlay: prefixes("172.30.0.11/24"), VTEPMAC: packet.VTEPMAC("n1"),
		VPCs:    []intent.VPC{{Name: "default", VNI: 10}},
		Subnets: []intent.Subnet{{VPC: "default", Name: "default", CIDRs: prefixes("10.1.0.0/16", "fd01::/48")}},
		Ports: []intent.Port{
			{ID: "a/eth0", VPC: "default", VNI: 10, HostInterface: "flpaaa", Addresses: addrs("10.1.0.5", "fd01::5"), MAC: packet.MAC{2}},
			{ID: "b/eth0", VPC: "default", VNI: 10, HostInterface: "flpbbb", Addresses: addrs("10.1.0.6", "fd01::6"), MAC: packet.MAC{2, 1}},
		},
		AddressSets: []intent.AddressSet{{VPC: "default", Name: SetSubnets, Prefixes: prefixes("10.1.0.0/16", "fd01::/48")}},
	}
	sets := []intent.AddressSet{
		{VPC: "default", Name: "frontend", Prefixes: prefixes("10.1.0.6/32", "10.1.2.0/31", "fd01::6/128")},
		{VPC: "default", Name: "metrics", Prefixes: prefixes("10.1.2.1/32")},
		{VPC: "default", Name: "nobody"},
		{VPC: "default", Name: "outside", Prefixes: prefixes("0.0.0.0/5", "8.0.0.0/7", "11.0.0.0/8", "12.0.0.0/6")},
		{VPC: "default", Name: "scanners", Prefixes: prefixes("10.1.9.0/24", "fd01::9:0/112")},
		{VPC: "default", Name: "trusted", Prefixes: prefixes("10.1.9.7/32")},
	}
	return withLists(n, sets,
		[]intent.Rule{
			{Tier: intent.TierAdmin, Action: intent.Pass, Match: intent.Match{Sets: []string{"trusted"}}, Origin: origin("cnp-scan", 0)},
			{Tier: intent.TierAdmin, Action: intent.Deny, Match: intent.Match{Sets: []string{"nobody", "scanners"}}, Origin: origin("cnp-scan", 1)},
			{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"frontend"}, Protocol: packet.TCP, Ports: ports(80, 80, 443)}, Origin: origin("web", 0)},
			{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"metrics", "trusted"}}, Origin: origin("watch", 0)},
			{Tier: intent.TierNetworkPolicy, Action: intent.Deny, Origin: origin("web", -1)},
		},
		[]intent.Rule{
			{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Protocol: packet.UDP, Ports: ports(53, 53)}, Origin: origin("dns", 0)},
			{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"outside"}, Protocol: packet.TCP, Ports: ports(1, 21, 80, 443, 8080)}, Origin: origin("out", 0)},
			{Tier: intent.TierNetworkPolicy, Action: intent.Deny, Origin: origin("out", -1)},
		})
}

// few are addresses at and beside the bounds of drawn sets, in both families.
var few = addrs("0.0.0.0", "10.1.0.0", "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.7", "10.1.0.8", "255.255.255.255",
	"::", "fd01::", "fd01::1", "fd01::2", "fd01::3", "fd01::4", "fd01::8", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")

// drawSets returns sets of disjoint prefixes with bounds at those addresses.
func drawSets(t *rapid.T) (out []intent.AddressSet) {
	for i := range rapid.IntRange(0, 8).Draw(t, "sets") {
		s := intent.AddressSet{VPC: "default", Name: fmt.Sprintf("s%d", i)}
		for range rapid.IntRange(0, 4).Draw(t, "prefixes") {
			a := rapid.SampledFrom(few).Draw(t, "address")
			bits := a.BitLen() - rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, a.BitLen()}).Draw(t, "host bits")
			p := netip.PrefixFrom(a, bits).Masked()
			if !slices.ContainsFunc(s.Prefixes, p.Overlaps) {
				s.Prefixes = append(s.Prefixes, p)
			}
		}
		slices.SortFunc(s.Prefixes, intent.ComparePrefix)
		out = append(out, s)
	}
	return out
}

// apart returns a set for every address, and for each a rule of its own.
func apart(t *rapid.T) (sets []intent.AddressSet, rules []intent.Rule) {
	for i, a := range few {
		s := intent.AddressSet{VPC: "default", Name: fmt.Sprintf("t%02d", i), Prefixes: []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}}
		sets = append(sets, s)
		rules = append(rules, intent.Rule{
			Tier: intent.TierNetworkPolicy, Action: intent.Action(rapid.IntRange(1, 3).Draw(t, "action")), Origin: origin("q", i),
			Match: intent.Match{Sets: []string{s.Name}, Protocol: packet.TCP, Ports: ports(uint16(i*10+1), uint16(i*10+90))},
		})
	}
	return sets, rules
}

func inTiers(a, b []intent.Rule) []intent.Rule {
	out := slices.Concat(a, b)
	slices.SortStableFunc(out, func(a, b intent.Rule) int { return int(a.Tier) - int(b.Tier) })
	return out
}

// fewPorts are at and beside the bounds of drawn ranges.
var fewPorts = []uint16{0, 1, 79, 80, 81, 82, 90, 91, 65534, 65535}

func drawRules(t *rapid.T, sets []intent.AddressSet) (out []intent.Rule) {
	for i := range rapid.IntRange(0, 12).Draw(t, "rules") {
		r := intent.Rule{
			Tier: rapid.SampledFrom([]intent.Tier{1, 2, 2, 2, 3}).Draw(t, "tier"), Action: intent.Action(rapid.IntRange(1, 3).Draw(t, "action")),
			Origin: origin("p", i),
		}
		for _, s := range sets {
			if rapid.IntRange(0, 3).Draw(t, "in") == 0 {
				r.Match.Sets = append(r.Match.Sets, s.Name)
			}
		}
		r.Match.Protocol = rapid.SampledFrom([]packet.Protocol{0, packet.TCP, packet.TCP, packet.UDP, packet.SCTP}).Draw(t, "protocol")
		if r.Match.Protocol != 0 {
			for _, first := range fewPorts {
				if n := len(r.Match.Ports); rapid.IntRange(0, 3).Draw(t, "port") == 0 && (n == 0 || int(r.Match.Ports[n-1].Last)+1 < int(first)) {
					r.Match.Ports = append(r.Match.Ports, intent.PortRange{First: first, Last: first + min(rapid.SampledFrom([]uint16{0, 0, 1, 9}).Draw(t, "more"), 65535-first)})
				}
			}
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b intent.Rule) int { return int(a.Tier) - int(b.Tier) })
	return out
}

// probes are packets between the restricted pod and a peer, of every protocol, at
// every port that matters.
func probes(pod, peer netip.Addr, outward bool) (out []packet.Packet) {
	p := packet.Packet{Src: peer, Dst: pod}
	if outward {
		p.Src, p.Dst = pod, peer
	}
	for _, proto := range []packet.Protocol{packet.TCP, packet.UDP, packet.SCTP} {
		for _, port := range fewPorts {
			q := p
			q.Protocol, q.SrcPort, q.DstPort, q.SYN = proto, 1000, port, proto == packet.TCP
			out = append(out, q)
		}
	}
	p.Protocol = packet.ICMP
	if pod.Is6() {
		p.Protocol = packet.ICMPv6
	}
	out = append(out, p)
	p.Protocol = 47 // GRE
	return append(out, p)
}

// walk takes the first packet of a flow through a hook.
func walk(t rapid.TB, rules *sim.Ruleset, h nft.Hook, p packet.Packet, in, out string) sim.Result {
	t.Helper()
	q := sim.Of(p)
	q.In, q.Out, q.Mark = in, out, claims.MarkChecked
	q.CT = sim.CT{State: nft.CTNew, First: true}
	r, err := rules.Hook(h, q, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The kernel's rules say of every first packet of a flow what the lists say, which
// are asked rule by rule; in both directions, for the node too.
func TestListsAgree(t *testing.T) {
	shared := false
	rapid.Check(t, func(t *rapid.T) {
		n := restricted()
		n.RuleLists = nil
		sets := drawSets(t)
		ingress, egress := drawRules(t, sets), drawRules(t, sets)
		if rapid.Bool().Draw(t, "many classes") {
			var more []intent.AddressSet
			var rules []intent.Rule
			more, rules = apart(t)
			sets = append(sets, more...)
			ingress, egress = inTiers(ingress, rules), inTiers(rules, egress)
		}
		n = withLists(n, sets, ingress, egress)
		table := Render(n, Options{})
		if err := table.Validate(); err != nil {
			t.Fatalf("the table is not valid: %v\n%s", err, table)
		}
		for _, s := range table.Sets {
			shared = shared || len(s.Key) == 3
		}
		rules := sim.New(table)
		port := n.Ports[0]
		for _, peer := range few {
			pod := port.Addresses[0]
			if peer.Is6() {
				pod = port.Addresses[1]
			}
			for _, p := range probes(pod, peer, true) {
				want, by := n.Judge(port, intent.Egress, p)
				for h, out := range map[nft.Hook]string{nft.HookForward: "eth0", nft.HookInput: ""} {
					got := walk(t, rules, h, p, port.HostInterface, out)
					if got.Dropped == want || !got.Dropped && got.Packet.CT.Mark != claims.CTJudged {
						t.Fatalf("%s %s: dropped %v (%s), mark %#x; the list allows it: %v, by %+v\n%s", h, p, got.Dropped, got.Why, got.Packet.CT.Mark, want, by, table)
					}
				}
			}
			for _, p := range probes(pod, peer, false) {
				want, by := n.Judge(port, intent.Ingress, p)
				got := walk(t, rules, nft.HookForward, p, "eth0", port.HostInterface)
				if got.Dropped == want || !got.Dropped && got.Packet.CT.Mark != claims.CTJudged {
					t.Fatalf("forward %s: dropped %v (%s), mark %#x; the list allows it: %v, by %+v\n%s", p, got.Dropped, got.Why, got.Packet.CT.Mark, want, by, table)
				}
			}
		}
	})
	if !shared && !testing.Short() {
		t.Error("no table had a set of address, protocol and port: the test proves nothing about them")
	}
}

// What classify makes of a tier is what asking its rules one by one gives.
func TestClassify(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := drawSets(t)
		rules := drawRules(t, sets)
		for i := range rules {
			rules[i].Tier = intent.TierAdmin
		}
		in := func(set string) []netip.Prefix {
			return sets[slices.IndexFunc(sets, func(s intent.AddressSet) bool { return s.Name == set })].Prefixes
		}
		classes, rest := classify(rules, in)
		for _, peer := range few {
			c := rest
			found := 0
			for _, x := range classes {
				for _, r := range x.peers[map[bool]int{true: 0, false: 1}[peer.Is4()]] {
					if at := pointOf(peer); r.from.compare(at) <= 0 && at.compare(r.to) <= 0 {
						c = x.conduct
						found++
					}
				}
			}
			if found > 1 {
				t.Fatalf("%s is in %d classes", peer, found)
			}
			for _, p := range probes(peer, peer, false) {
				want := first(rules, in, peer, p)
				for _, s := range c[protocolOf(p.Protocol)] {
					if s.first <= p.DstPort && p.DstPort <= s.last && s.is != want {
						t.Fatalf("%s from %s: %v, want %v", p, peer, s.is, want)
					}
				}
			}
		}
	})
}

// first is the action of the first rule that matches, Pass if none does.
func first(rules []intent.Rule, in func(string) []netip.Prefix, peer netip.Addr, p packet.Packet) intent.Action {
	for _, r := range rules {
		m := r.Match
		contains := func(s string) bool {
			return slices.ContainsFunc(in(s), func(x netip.Prefix) bool { return x.Contains(peer) })
		}
		if (len(m.Sets) == 0 || slices.ContainsFunc(m.Sets, contains)) && (m.Protocol == 0 || m.Protocol == p.Protocol) &&
			(len(m.Ports) == 0 || slices.ContainsFunc(m.Ports, func(x intent.PortRange) bool { return x.First <= p.DstPort && p.DstPort <= x.Last })) {
			return r.Action
		}
	}
	return intent.Pass
}

// Flows that were judged pass whatever the lists say now, flows that were cut are
// silent in both directions and at every hook, and answers are not judged.
func TestFlows(t *testing.T) {
	n := restricted()
	rules, adopting := sim.New(Render(n, Options{})), sim.New(Render(n, Options{Adopting: true}))
	out := packet.Packet{Src: addrs("10.1.0.5")[0], Dst: addrs("10.1.9.9")[0], Protocol: packet.TCP, SrcPort: 1000, DstPort: 25}
	allowed := out
	allowed.Dst, allowed.DstPort = addrs("9.9.9.9")[0], 443
	open := allowed
	open.SYN = true
	free := packet.Packet{Src: addrs("10.1.0.6")[0], Dst: addrs("9.9.9.9")[0], Protocol: packet.TCP, SrcPort: 1000, DstPort: 25}
	itself := packet.Packet{Src: addrs("10.1.0.5")[0], Dst: addrs("10.1.0.5")[0], Protocol: packet.UDP, DstPort: 7}
	established, fresh := sim.CT{State: nft.CTEstablished}, sim.CT{State: nft.CTNew, First: true}
	with := func(c sim.CT, mark uint32, reply bool) sim.CT {
		c.Mark, c.Reply = mark, reply
		return c
	}
	const pod, other = "flpaaa", "flpbbb"
	for _, tt := range []struct {
		name    string
		rules   *sim.Ruleset
		hook    nft.Hook
		p       packet.Packet
		in, out string
		ct      sim.CT
		why     string // "" passes
	}{
		{"judged", rules, nft.HookForward, out, pod, "eth0", with(established, claims.CTJudged, false), ""},
		{"judged, foreign bits", rules, nft.HookForward, out, pod, "eth0", with(established, claims.CTJudged|0xff, false), ""},
		{"judged, answer", rules, nft.HookForward, out.Reverse(), "eth0", pod, with(established, claims.CTJudged, true), ""},
		{"cut", rules, nft.HookForward, allowed, pod, "eth0", with(established, ctMask, false), FlowCut},
		{"cut, never judged", rules, nft.HookForward, allowed, pod, "eth0", with(established, claims.CTCut, false), FlowCut},
		{"cut, answer", rules, nft.HookForward, allowed.Reverse(), "eth0", pod, with(established, ctMask, true), FlowCut},
		{"cut, to the node", rules, nft.HookInput, allowed, pod, "", with(established, ctMask, false), FlowCut},
		{"cut, the node answers", rules, nft.HookOutput, allowed.Reverse(), "", pod, with(established, ctMask, true), FlowCut},
		{"unjudged, allowed", rules, nft.HookForward, allowed, pod, "eth0", established, ""},
		{"unjudged, denied", rules, nft.HookForward, out, pod, "eth0", established, "denied by NetworkPolicy shop/out isolates"},
		{"unjudged, answer", rules, nft.HookForward, allowed.Reverse(), "eth0", pod, with(established, 0, true), AnswerUnjudged},
		{"begins with SYN", rules, nft.HookForward, open, pod, "eth0", fresh, ""},
		{"begins in the middle", rules, nft.HookForward, allowed, pod, "eth0", fresh, MiddleOfTCP},
		{"begins in the middle, no list", rules, nft.HookForward, free, other, "eth0", fresh, MiddleOfTCP},
		{"begins in the middle, to the node", rules, nft.HookInput, allowed, pod, "", fresh, MiddleOfTCP},
		{"begins in the middle, adopted", adopting, nft.HookForward, allowed, pod, "eth0", fresh, ""},
		{"begins in the middle, adopted and denied", adopting, nft.HookForward, out, pod, "eth0", fresh, "denied by NetworkPolicy shop/out isolates"},
		{"invalid", rules, nft.HookForward, free, other, "eth0", sim.CT{}, NoFlow},
		{"no list", rules, nft.HookForward, free, other, "eth0", established, ""},
		{"to itself", rules, nft.HookForward, itself, pod, pod, fresh, ""},
		{"foreign, in the middle", rules, nft.HookForward, free, "docker0", "eth0", fresh, ""},
		{"foreign, answer", rules, nft.HookForward, free.Reverse(), "eth0", "docker0", with(established, 0, true), ""},
		{"foreign, with the same mark", rules, nft.HookForward, free, "docker0", "eth0", with(established, claims.CTCut, false), ""},
		{"foreign, invalid", rules, nft.HookForward, free, "docker0", "eth0", sim.CT{}, ""},
		{"answers the node", rules, nft.HookInput, out, pod, "", with(established, 0, true), ""},
		{"the node to the pod", rules, nft.HookOutput, out.Reverse(), "", pod, fresh, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := sim.Of(tt.p)
			p.In, p.Out, p.CT, p.Mark = tt.in, tt.out, tt.ct, claims.MarkChecked
			r, err := tt.rules.Hook(tt.hook, p, nil, false)
			if err != nil {
				t.Fatal(err)
			}
			if r.Dropped != (tt.why != "") || r.Why != tt.why {
				t.Errorf("dropped %v, %q; want %q", r.Dropped, r.Why, tt.why)
			}
			if mark := r.Packet.CT.Mark; strings.HasPrefix(tt.name, "foreign") && mark != tt.ct.Mark {
				t.Errorf("a flow of others was marked: %#x", mark)
			}
			if foreign := tt.ct.Mark &^ ctMask; r.Packet.CT.Mark&foreign != foreign {
				t.Errorf("the mark lost foreign bits: %#x, was %#x", r.Packet.CT.Mark, tt.ct.Mark)
			}
		})
	}
}

// A node without lists has nothing of them in its table but the verdict on flows.
func TestNoListsCostNothing(t *testing.T) {
	n := restricted()
	n.RuleLists = nil
	for i := range n.Ports {
		n.Ports[i].Ingress, n.Ports[i].Egress = "", ""
	}
	table := Render(n, Options{})
	for _, c := range table.Chains {
		if c.Name == "judge" || c.Name == "to-node" || c.Name == "flows" {
			for _, r := range c.Rules {
				for _, s := range r.Statements {
					switch s.(type) {
					case nft.Lookup, nft.VMap:
						t.Errorf("chain %s looks something up: %s", c.Name, r)
					}
				}
			}
		}
		if c.Name == "sent" && slices.ContainsFunc(c.Rules, func(r nft.Rule) bool { return r.Comment == FlowCut }) {
			t.Error("all that the node sends is tested for flows that were cut, and none can be")
		}
	}
}

// A list that the intent lacks allows nothing, and no name of a policy can break the
// table.
func TestBadLists(t *testing.T) {
	n := restricted()
	n.Ports[1].Ingress = "ingress-missing"
	rules := sim.New(Render(n, Options{}))
	p := packet.Packet{Src: addrs("9.9.9.9")[0], Dst: addrs("10.1.0.6")[0], Protocol: packet.UDP, DstPort: 1}
	if r := walk(t, rules, nft.HookForward, p, "eth0", "flpbbb"); !r.Dropped {
		t.Error("a list that is missing allows a flow")
	}
	for _, name := range []string{strings.Repeat("s", 253), "a\nb", `"; flush ruleset; "`, "é", "", "\xff\x00"} {
		n := restricted()
		for i := range n.RuleLists {
			for j := range n.RuleLists[i].Rules {
				o := &n.RuleLists[i].Rules[j].Origin
				o.Kind, o.Namespace, o.Name, o.RuleName, o.Index = name, name, name, name, 1<<31-1
			}
			n.RuleLists[i].ID += name
		}
		n.Ports[0].Ingress, n.Ports[0].Egress = n.RuleLists[1].ID, n.RuleLists[0].ID
		if err := Render(n, Options{}).Validate(); err != nil {
			t.Fatalf("name %q: %v", name, err)
		}
	}
}

// The comment of a rule names the policies that it comes from, as many as fit.
func TestOrigins(t *testing.T) {
	var rules []intent.Rule
	for i := range 20000 {
		rules = append(rules, intent.Rule{Action: intent.Accept, Origin: origin(fmt.Sprintf("p%d", i/2), i)})
	}
	text := origins(AllowedBy, intent.Accept, rules, nil)
	if want := "allowed by NetworkPolicy shop/p0 rule 0, NetworkPolicy shop/p0 rule 1, NetworkPolicy shop/p1 rule 2 and 19997 more"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
}

// The last address of a prefix is that of the library that everybody uses.
func TestEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address")))
		if rapid.Bool().Draw(t, "IPv4") {
			a = netip.AddrFrom4([4]byte(a.AsSlice()[:4]))
		}
		p := netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
		got := end(p)
		if want := netipx.RangeOfPrefix(p.Masked()).To(); got.addr(a.Is4()) != want {
			t.Fatalf("%s ends at %s, want %s", p, got.addr(a.Is4()), want)
		}
		if next := got.next(); next.prev() != got || got != lastOf[map[bool]int{true: 0, false: 1}[a.Is4()]] && next.addr(a.Is4()) != got.addr(a.Is4()).Next() {
			t.Fatalf("%s is followed by %s", got.addr(a.Is4()), next.addr(a.Is4()))
		}
	})
}
