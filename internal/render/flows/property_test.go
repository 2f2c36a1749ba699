package flows

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

const both = claims.CTJudged | claims.CTCut

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// The places of the property: two VPCs with pods here (x.x.0.2 and on) and elsewhere
// (x.x.1.x), the node's own addresses, and others.
var pools = map[string][]netip.Addr{
	"a":     {ip("10.1.0.2"), ip("10.1.0.3"), ip("10.1.0.4"), ip("fd01::2"), ip("fd01::3")},
	"b":     {ip("10.2.0.2"), ip("10.2.0.3"), ip("fd02::2")},
	"lent":  {ip("10.1.1.40"), ip("fd01::1:40")},
	"peers": {ip("10.1.1.1"), ip("10.1.1.2"), ip("10.2.1.1"), ip("fd01::1:1"), ip("10.1.1.40")},
	"else":  {ip("203.0.113.1"), ip("203.0.113.2"), ip("2001:db8::1"), ip("192.0.2.1"), ip("10.1.0.1"), ip("192.0.2.99")},
}

func everybody() (out []netip.Addr) {
	for _, name := range []string{"a", "b", "peers", "else"} {
		out = append(out, pools[name]...)
	}
	return out
}

func prefixes(addrs ...netip.Addr) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, a := range addrs {
		b.Add(a)
	}
	s, _ := b.IPSet()
	return s.Prefixes()
}

func drawSome[T any](t *rapid.T, from []T, label string) (out []T) {
	for i, x := range from {
		if rapid.Bool().Draw(t, fmt.Sprint(label, i)) {
			out = append(out, x)
		}
	}
	return out
}

func drawRules(t *rapid.T) (rules []intent.Rule) {
	n := rapid.IntRange(0, 4).Draw(t, "rules")
	tier := intent.TierAdmin
	for i := range n {
		tier = max(tier, rapid.SampledFrom([]intent.Tier{intent.TierAdmin, intent.TierNetworkPolicy, intent.TierBaseline}).Draw(t, "tier"))
		r := intent.Rule{Tier: tier, Action: rapid.SampledFrom([]intent.Action{intent.Accept, intent.Deny, intent.Pass}).Draw(t, "action")}
		r.Origin = intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "ns", Name: "p", Index: i}
		r.Match.Sets = drawSome(t, []string{"s0", "s1", "s2"}, "sets")
		if rapid.Bool().Draw(t, "proto") {
			r.Match.Protocol = rapid.SampledFrom([]packet.Protocol{packet.TCP, packet.UDP}).Draw(t, "protocol")
			if rapid.Bool().Draw(t, "ports") {
				r.Match.Ports = []intent.PortRange{{First: 80, Last: 81}}
			}
		}
		rules = append(rules, r)
	}
	return rules
}

// drawNode draws an intent; shared lists make some ports keep theirs between two.
func drawNode(t *rapid.T, lists []intent.RuleList) intent.Node {
	n := intent.Node{
		Name: "n", MTU: 1400, Underlay: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
		Tunnels: []intent.TunnelAddress{{VPC: "a", Subnet: "a", Addr: ip("10.1.0.1")}},
		VPCs:    []intent.VPC{{Name: "a", VNI: 10, Tenants: []packet.VNI{11, 12}}, {Name: "b", VNI: 20}},
		Routes: []intent.Route{
			{VPC: "a", Dst: netip.MustParsePrefix("10.1.0.0/24"), NextHop: intent.NextHop{Local: true}},
			{VPC: "a", Dst: netip.MustParsePrefix("10.1.1.0/24"), NextHop: intent.NextHop{Peer: "m"}},
			{VPC: "a", Dst: netip.MustParsePrefix("fd01::/112"), NextHop: intent.NextHop{Local: true}},
			{VPC: "b", Dst: netip.MustParsePrefix("10.2.0.0/24"), NextHop: intent.NextHop{Local: true}},
			{VPC: "b", Dst: netip.MustParsePrefix("fd02::/112"), NextHop: intent.NextHop{Local: true}},
		},
	}
	used := map[string]intent.RuleList{}
	pick := func(vpc string, d intent.Direction) string {
		all := append([]intent.RuleList{{}}, slices.DeleteFunc(slices.Clone(lists), func(l intent.RuleList) bool { return l.VPC != vpc || l.Direction != d })...)
		l := rapid.SampledFrom(all).Draw(t, "list")
		if l.ID != "" {
			used[l.ID] = l
		}
		return l.ID
	}
	for _, vpc := range []string{"a", "b"} {
		for i, addr := range append(slices.Clone(pools[vpc]), pools["lent"]...) {
			if i >= len(pools[vpc]) && vpc == "b" || !rapid.Bool().Draw(t, "exists") {
				continue
			}
			p := intent.Port{
				ID: fmt.Sprintf("%s%d-%d/eth0", vpc, i, rapid.IntRange(0, 9).Draw(t, "id")/8), VPC: vpc, VNI: 20, Addresses: []netip.Addr{addr},
				Ingress: pick(vpc, intent.Ingress), Egress: pick(vpc, intent.Egress),
			}
			if vpc == "a" {
				p.VNI = rapid.SampledFrom([]packet.VNI{10, 11, 11, 12}).Draw(t, "vni")
			}
			n.Ports = append(n.Ports, p)
		}
	}
	slices.SortFunc(n.Ports, intent.Port.Compare)
	for _, l := range used {
		n.RuleLists = append(n.RuleLists, l)
	}
	slices.SortFunc(n.RuleLists, intent.RuleList.Compare)
	for _, vpc := range []string{"a", "b"} {
		for _, s := range []string{"s0", "s1", "s2"} {
			n.AddressSets = append(n.AddressSets, intent.AddressSet{VPC: vpc, Name: s, Prefixes: prefixes(drawSome(t, everybody(), s)...)})
		}
		cidrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/64")}
		if vpc == "b" {
			cidrs = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd02::/64")}
		}
		n.AddressSets = append(n.AddressSets, intent.AddressSet{VPC: vpc, Name: intent.SetSubnets, Prefixes: cidrs})
	}
	members := map[packet.VNI][]netip.Addr{}
	for _, a := range pools["peers"] {
		vni := rapid.SampledFrom([]packet.VNI{0, 11, 12}).Draw(t, "tenant elsewhere")
		members[vni] = append(members[vni], a)
	}
	for _, vni := range []packet.VNI{11, 12} {
		if len(members[vni]) > 0 {
			n.AddressSets = append(n.AddressSets, intent.AddressSet{VPC: "a", Name: intent.SetTenant(vni), Prefixes: prefixes(members[vni]...)})
		}
	}
	slices.SortFunc(n.AddressSets, intent.AddressSet.Compare)
	return n
}

func portOf(n intent.Node, a netip.Addr) *intent.Port {
	i := slices.IndexFunc(n.Ports, func(p intent.Port) bool { return slices.Contains(p.Addresses, a) })
	if i < 0 {
		return nil
	}
	return &n.Ports[i]
}

// extra is an address of the node that its intent does not name.
var extra = ip("192.0.2.99")

func owns(n intent.Node, a netip.Addr) bool {
	return a == extra || a == n.Underlay[0].Addr() || a == n.Tunnels[0].Addr
}

// judgeWhole says what a node's rules say about a first packet, and whether they are
// asked at all: the plain reading, one rule after the other.
func judgeWhole(n intent.Node, p packet.Packet) (want, asked bool) {
	from, to := portOf(n, p.Src), portOf(n, p.Dst)
	switch {
	case from == nil && owns(n, p.Src):
		return true, false
	case from == nil && to == nil:
		return true, !owns(n, p.Dst)
	case from != nil && from == to:
		return true, true
	}
	vpcOf := func(a netip.Addr) string {
		for _, s := range n.AddressSets {
			if s.Name == intent.SetSubnets && s.Contains(a) {
				return s.VPC
			}
		}
		return ""
	}
	own := map[string]packet.VNI{"a": 10, "b": 20}
	if from != nil && vpcOf(p.Dst) != "" && vpcOf(p.Dst) != from.VPC {
		return false, true
	}
	tenantOf := func(port, other *intent.Port, a netip.Addr) packet.VNI {
		if port != nil {
			return port.VNI
		}
		for _, s := range n.AddressSets {
			if vni, is := s.Tenant(); is && s.VPC == other.VPC && s.Contains(a) {
				return vni
			}
		}
		return 0
	}
	vpc := ""
	if from != nil {
		vpc = from.VPC
	}
	if to != nil {
		vpc = to.VPC
	}
	if a, b := tenantOf(from, to, p.Src), tenantOf(to, from, p.Dst); a != 0 && b != 0 && a != b && a != own[vpc] && b != own[vpc] {
		return false, true
	}
	if from != nil {
		if ok, _ := n.Judge(*from, intent.Egress, p); !ok {
			return false, true
		}
	}
	if to != nil {
		if ok, _ := n.Judge(*to, intent.Ingress, p); !ok {
			return false, true
		}
	}
	return true, true
}

// drawFlow draws a flow of a node whose flows obey its rules.
func drawFlow(t *rapid.T, n intent.Node) Flow {
	all := everybody()
	src := rapid.SampledFrom(all).Draw(t, "src")
	dst := rapid.SampledFrom(slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return a.Is4() != src.Is4() })).Draw(t, "dst")
	f := Flow{First: packet.Packet{
		Src: src, Dst: dst, SrcPort: 999, DstPort: uint16(rapid.IntRange(79, 82).Draw(t, "port")),
		Protocol: rapid.SampledFrom([]packet.Protocol{packet.TCP, packet.UDP}).Draw(t, "protocol"),
	}}
	f.Mark = rapid.SampledFrom([]uint32{0, 0x4000}).Draw(t, "foreign bits")
	switch v, asked := judgeWhole(n, f.First); {
	case !asked:
	case !v:
		f.Mark |= both
	default:
		f.Mark |= claims.CTJudged
	}
	return f
}

// moved: another has the address now, or nobody.
func moved(old, desired intent.Node, a netip.Addr) bool {
	was, is := portOf(old, a), portOf(desired, a)
	if was == nil {
		return is != nil && slices.Contains(pools["lent"], a)
	}
	return is == nil || was.ID != is.ID
}

func wantMark(old, desired intent.Node, f Flow) (mark uint32, forget bool) {
	p := f.First
	if moved(old, desired, p.Src) || moved(old, desired, p.Dst) {
		return 0, true
	}
	v, _ := judgeWhole(desired, p)
	switch {
	case f.Mark&both == 0:
	case v:
		return f.Mark&^both | claims.CTJudged, false
	default:
		return f.Mark | claims.CTCut, false
	}
	return f.Mark, false
}

// vacant: an address of the node's blocks that nobody has.
func vacant(n intent.Node, a netip.Addr) bool {
	inBlock := slices.Contains(pools["a"], a) || slices.Contains(pools["b"], a)
	return inBlock && portOf(n, a) == nil
}

func apply(f Flow, v Verdict) uint32 {
	mark, mask := v.Mark()
	return f.Mark&^mask | mark
}

func TestAgreesWithWholeRecomputation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var lists []intent.RuleList
		for range 4 {
			vpc := rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "vpc")
			d := rapid.SampledFrom([]intent.Direction{intent.Ingress, intent.Egress}).Draw(t, "direction")
			lists = append(lists, intent.NewRuleList(vpc, d, drawRules(t)))
		}
		old := drawNode(t, lists)
		desired := drawNode(t, lists)
		if rapid.Bool().Draw(t, "same ports") {
			desired.Ports, desired.RuleLists = old.Ports, old.RuleLists
		}
		if rapid.Bool().Draw(t, "same sets") {
			desired.AddressSets = old.AddressSets
		}
		change, whole := Compare(&old, desired, Options{}), Compare(nil, desired, Options{})
		d, w := change.Decider([]netip.Addr{extra}), whole.Decider([]netip.Addr{extra})
		for range 40 {
			f := drawFlow(t, old)
			if vacant(old, f.First.Src) || vacant(old, f.First.Dst) {
				continue // nobody gets through to such an address
			}
			v, _ := d.Decide(f)
			want, forget := wantMark(old, desired, f)
			if got := apply(f, v); forget != (v == Forget) || !forget && got != want {
				t.Fatalf("flow %s, mark %x: %s, so %x; want %x, forget %t", f.First, f.Mark, v, got, want, forget)
			}
			if v != Keep && !slices.ContainsFunc(change.Queries(), func(q Query) bool { return covers(q, f) }) {
				t.Fatalf("flow %s: %s, and no query finds it", f.First, v)
			}
			if again, _ := w.Decide(f); !forget && (again == Forget || apply(f, again) != want) {
				t.Fatalf("flow %s, mark %x: without the old intent %s, want %x", f.First, f.Mark, again, want)
			}
			if again, _ := w.Decide(Flow{First: f.First, Mark: want}); !forget && again != Keep {
				t.Fatalf("flow %s: not settled, %s", f.First, again)
			}
		}
	})
}

func covers(q Query, f Flow) bool {
	return (!q.End.IsValid() || q.End == f.First.Src || q.End == f.First.Dst) && (!q.Unjudged || f.Mark&both == 0) && (!q.Cut || f.Mark&claims.CTCut != 0)
}
