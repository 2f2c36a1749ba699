package intent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// policies is a list with a rule of every sort, and the sets that it needs.
func policies() ([]Rule, []AddressSet) {
	origin := func(name string, i int) RuleOrigin {
		return RuleOrigin{Kind: "NetworkPolicy", Namespace: "web", Name: name, Index: i}
	}
	rules := []Rule{
		{Tier: TierAdmin, Action: Pass, Match: Match{Sets: []string{"a"}}, Origin: RuleOrigin{Kind: "ClusterNetworkPolicy", Name: "c", RuleName: "spare"}},
		{Tier: TierAdmin, Action: Deny, Match: Match{Sets: []string{"a", "b"}, Protocol: packet.UDP}, Origin: RuleOrigin{Kind: "ClusterNetworkPolicy", Name: "c", Index: 1}},
		{Tier: TierNetworkPolicy, Action: Accept, Match: Match{Sets: []string{"a", "b"}, Protocol: packet.TCP, Ports: []PortRange{{80, 80}, {8000, 8080}}}, Origin: origin("p", 0)},
		{Tier: TierNetworkPolicy, Action: Deny, Origin: origin("p", -1)},
	}
	sets := []AddressSet{
		{VPC: "default", Name: "a", Prefixes: []netip.Prefix{prefix("10.128.0.4/30"), prefix("10.128.0.9/32"), prefix("fd10::8/125")}},
		{VPC: "default", Name: "b", Prefixes: []netip.Prefix{prefix("0.0.0.0/0")}},
	}
	return rules, sets
}

// restricted is the valid intent with that list on a port.
func restricted() Node {
	n := valid()
	rules, sets := policies()
	n.RuleLists = []RuleList{NewRuleList("default", Ingress, rules)}
	n.AddressSets = slices.Concat(sets, n.AddressSets)
	n.Ports[0].Ingress = n.RuleLists[0].ID
	return n
}

func TestValidatePolicy(t *testing.T) {
	if faults := Validate(restricted()); len(faults) > 0 {
		t.Fatalf("a valid intent has faults: %v", faults)
	}
	again := func(n *Node, change func(*RuleList)) {
		change(&n.RuleLists[0])
		l := &n.RuleLists[0]
		l.ID = ruleListID(l.VPC, l.Direction, l.Rules)
	}
	for _, tt := range []struct {
		name   string
		breaks func(*Node)
		want   string
	}{
		{"ID", func(n *Node) { n.RuleLists[0].ID = "x" }, "RuleList x: its content has the ID ingress-"},
		{"content", func(n *Node) { n.RuleLists[0].Rules[0].Origin.Index = 7 }, "its content has the ID"},
		{"unknown list", func(n *Node) { n.Ports[0].Egress = "x" }, "Port c1/eth0: its egress list x is not in the intent"},
		{"list of the other direction", func(n *Node) { n.Ports[0].Egress = n.Ports[0].Ingress }, "is of VPC default, ingress"},
		{"list of another VPC", func(n *Node) { n.Ports[1].Ingress = n.Ports[0].Ingress }, "Port c2/eth0: its ingress list"},
		{"twice", func(n *Node) { n.RuleLists = append(n.RuleLists, n.RuleLists[0]) }, "holds it twice"},
		{"unknown set", func(n *Node) { n.AddressSets = n.AddressSets[1:] }, "rule 0: the set a of VPC default is not in the intent"},
		{"unknown VPC", func(n *Node) { again(n, func(l *RuleList) { l.VPC = "x" }) }, `is in VPC "x"`},
		{"direction", func(n *Node) { again(n, func(l *RuleList) { l.Direction = 0 }) }, "unknown 0 is no direction"},
		{"tiers out of order", func(n *Node) { again(n, func(l *RuleList) { slices.Reverse(l.Rules) }) }, "is of tier Admin, after one of tier NetworkPolicy"},
		{"action", func(n *Node) { again(n, func(l *RuleList) { l.Rules[0].Action = 9 }) }, "rule 0: unknown 9 is no action"},
		{"no origin", func(n *Node) { again(n, func(l *RuleList) { l.Rules[0].Origin.Name = "" }) }, "rule 0 comes from no policy"},
		{"ports without protocol", func(n *Node) { again(n, func(l *RuleList) { l.Rules[2].Match.Protocol = 0 }) }, "rule 2 has ports and no protocol"},
		{"protocol", func(n *Node) { again(n, func(l *RuleList) { l.Rules[1].Match.Protocol = packet.ICMP }) }, "rule 1: protocol ICMP has no ports"},
		{"adjoining ports", func(n *Node) {
			again(n, func(l *RuleList) { l.Rules[2].Match.Ports = []PortRange{{1, 2}, {3, 4}} })
		}, "ports 1-2 3-4 are not sorted, disjoint and apart"},
		{"sets unsorted", func(n *Node) { again(n, func(l *RuleList) { slices.Reverse(l.Rules[1].Match.Sets) }) }, `rule 1: sets ["b" "a"] are not sorted`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := restricted()
			tt.breaks(&n)
			if got := fmt.Sprint(Validate(n)); !strings.Contains(got, tt.want) {
				t.Errorf("got %s, want one with %q", got, tt.want)
			}
		})
	}
}

func TestPolicyText(t *testing.T) {
	l := restricted().RuleLists[0]
	want := `VPC default, ingress
  Admin: Pass peers in a: ClusterNetworkPolicy c rule 0 ("spare")
  Admin: Deny peers in a or b, UDP: ClusterNetworkPolicy c rule 1
  NetworkPolicy: Accept peers in a or b, TCP 80 8000-8080: NetworkPolicy web/p rule 0
  NetworkPolicy: Deny everything: NetworkPolicy web/p isolates`
	if diff := cmp.Diff(want, l.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := restricted(); !strings.Contains(n.String(), l.Ref().String()) || !strings.HasSuffix(n.Ports[0].String(), ", "+l.ID) {
		t.Errorf("the intent's text lacks the list, or the port's does:\n%s", n)
	}
}

// TestEqualSeesPolicy turns each field of lists and rules.
func TestEqualSeesPolicy(t *testing.T) {
	rule := func(turn func(*Rule)) func(*Node) { return func(n *Node) { turn(&n.RuleLists[0].Rules[2]) } }
	for name, turn := range map[string]func(*Node){
		"Port.Ingress": func(n *Node) { n.Ports[0].Ingress = "x" }, "Port.Egress": func(n *Node) { n.Ports[0].Egress = "x" },
		"ID": func(n *Node) { n.RuleLists[0].ID = "x" }, "VPC": func(n *Node) { n.RuleLists[0].VPC = "x" }, "Direction": func(n *Node) { n.RuleLists[0].Direction = Egress },
		"Rules": func(n *Node) { n.RuleLists[0].Rules = n.RuleLists[0].Rules[1:] },
		"Tier":  rule(func(r *Rule) { r.Tier = TierBaseline }), "Action": rule(func(r *Rule) { r.Action = Deny }),
		"Sets": rule(func(r *Rule) { r.Match.Sets = nil }), "Protocol": rule(func(r *Rule) { r.Match.Protocol = packet.SCTP }), "Ports": rule(func(r *Rule) { r.Match.Ports[0].Last++ }),
		"Kind": rule(func(r *Rule) { r.Origin.Kind = "x" }), "Namespace": rule(func(r *Rule) { r.Origin.Namespace = "x" }), "Name": rule(func(r *Rule) { r.Origin.Name = "x" }),
		"Index": rule(func(r *Rule) { r.Origin.Index++ }), "RuleName": rule(func(r *Rule) { r.Origin.RuleName = "x" }),
	} {
		n := restricted()
		turn(&n)
		if n.Equal(restricted()) {
			t.Errorf("Equal does not see %s", name)
		}
		if len(Diff(restricted(), n)) == 0 {
			t.Errorf("Diff does not see %s", name)
		}
		was, now := restricted().RuleLists[0], n.RuleLists[0]
		same := ruleListID(was.VPC, was.Direction, was.Rules) == ruleListID(now.VPC, now.Direction, now.Rules)
		if inRules := !strings.HasPrefix(name, "Port.") && name != "ID"; same == inRules {
			t.Errorf("%s: the same ID is %t", name, same)
		}
	}
}

func TestJudge(t *testing.T) {
	n := restricted()
	for _, tt := range []struct {
		src      string
		protocol packet.Protocol
		port     uint16
		allowed  bool
		rule     int
	}{
		{"10.128.0.5", packet.UDP, 53, false, 3},  // passed to the next tier, and isolated there
		{"10.128.0.5", packet.TCP, 8080, true, 2}, // passed and accepted
		{"10.128.0.5", packet.TCP, 8081, false, 3},
		{"10.128.0.8", packet.UDP, 53, false, 1},
		{"10.128.0.8", packet.ICMP, 0, false, 3},
		{"10.128.0.8", packet.TCP, 80, true, 2},
		{"fd10::f", packet.TCP, 80, true, 2},
		{"fd10::10", packet.TCP, 80, false, 3},
	} {
		allowed, rule := n.Judge(n.Ports[0], Ingress, packet.Packet{Src: addr(tt.src), Dst: addr("10.128.0.2"), Protocol: tt.protocol, DstPort: tt.port})
		if allowed != tt.allowed || rule != &n.RuleLists[0].Rules[tt.rule] {
			t.Errorf("%s %s %d: %t by %v, want %t by rule %d", tt.src, tt.protocol, tt.port, allowed, rule, tt.allowed, tt.rule)
		}
	}
	if allowed, rule := n.Judge(n.Ports[0], Egress, packet.Packet{}); !allowed || rule != nil {
		t.Error("a port without a list is restricted")
	}
	lost := n.Ports[0]
	lost.Egress = "lost"
	if allowed, _ := n.Judge(lost, Egress, packet.Packet{}); allowed {
		t.Error("a list that is not there allows")
	}
	out := NewRuleList("default", Egress, n.RuleLists[0].Rules)
	in := func(set string, a netip.Addr) bool { return set == "b" && a == addr("192.0.2.1") }
	if allowed, rule := out.Judge(packet.Packet{Dst: addr("192.0.2.1"), Protocol: packet.TCP, DstPort: 80}, in); !allowed || rule != 2 {
		t.Errorf("egress: %t by %d", allowed, rule)
	}
	onlyPass := NewRuleList("default", Ingress, n.RuleLists[0].Rules[:1])
	if allowed, rule := onlyPass.Judge(packet.Packet{}, func(string, netip.Addr) bool { return true }); !allowed || rule != -1 {
		t.Errorf("what passes the last tier: %t by %d, want allowed by none", allowed, rule)
	}
}

// TestContains compares the search with asking every prefix.
func TestContains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(0, 63)
		var list []netip.Prefix
		for from := number.Draw(t, "from"); from < 64; from += 1 + number.Draw(t, "gap") {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(from)}), rapid.IntRange(30, 32).Draw(t, "bits")).Masked())
			from |= 3
		}
		s := AddressSet{Prefixes: list}
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(number.Draw(t, "address"))})
		want := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
		if got := s.Contains(a); got != want {
			t.Fatalf("%s in %s: got %t", a, s, got)
		}
	})
}
