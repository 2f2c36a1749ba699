package linuxplane

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/apply/rtnl"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// judgedNode has two ports; what the second receives is allowed from 10.0.0.2 and
// 10.0.9.0/24 to port 80 only.
func judgedNode() intent.Node {
	origin := intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "ns", Name: "p"}
	isolates := origin
	isolates.Index = -1
	list := intent.NewRuleList("default", intent.Ingress, []intent.Rule{
		{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Origin: origin, Match: intent.Match{
			Sets: []string{"friends"}, Protocol: packet.TCP, Ports: []intent.PortRange{{First: 80, Last: 80}},
		}},
		{Tier: intent.TierNetworkPolicy, Action: intent.Deny, Origin: isolates},
	})
	port := func(id, link, addr, ingress string) intent.Port {
		a := netip.MustParseAddr(addr)
		return intent.Port{
			ID: id, VPC: "default", VNI: 4096, Pod: "ns/" + id, HostInterface: link, Addresses: []netip.Addr{a},
			MAC: packet.PodMAC("default", a), Ingress: ingress,
		}
	}
	friends := []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32"), netip.MustParsePrefix("10.0.9.0/24")}
	cidr := netip.MustParsePrefix("10.0.0.0/16")
	return intent.Node{
		Name: "n1", MTU: 1450, Underlay: []netip.Prefix{netip.MustParsePrefix("172.30.0.11/24")}, VTEPMAC: packet.VTEPMAC("n1"),
		VPCs:    []intent.VPC{{Name: "default", VNI: 4096}},
		Subnets: []intent.Subnet{{VPC: "default", Name: "s", CIDRs: []netip.Prefix{cidr}, Overlay: true}},
		Peers:   []intent.Peer{{Name: "n2", Addrs: []netip.Addr{netip.MustParseAddr("172.30.0.12")}, Outer: netip.MustParseAddr("172.30.0.12"), VTEPMAC: packet.VTEPMAC("n2")}},
		Routes: []intent.Route{
			{VPC: "default", Dst: netip.MustParsePrefix("10.0.0.0/24"), NextHop: intent.NextHop{Local: true}},
			{VPC: "default", Dst: netip.MustParsePrefix("10.0.9.0/24"), NextHop: intent.NextHop{Peer: "n2"}, Encapsulate: true},
		},
		Tunnels:     []intent.TunnelAddress{{VPC: "default", Subnet: "s", Addr: netip.MustParseAddr("10.0.0.1")}},
		Ports:       []intent.Port{port("a", "flpaaaaaaaaaaaa", "10.0.0.2", ""), port("b", "flpbbbbbbbbbbbb", "10.0.0.3", list.ID), port("c", "flpcccccccccccc", "10.0.0.4", "")},
		AddressSets: []intent.AddressSet{{VPC: "default", Name: "friends", Prefixes: friends}, {VPC: "default", Name: intent.SetSubnets, Prefixes: []netip.Prefix{cidr}}},
		RuleLists:   []intent.RuleList{list},
	}
}

func TestFollow(t *testing.T) {
	n := judgedNode()
	table := rendernft.Render(n, rendernft.Options{})
	if err := table.Validate(); err != nil {
		t.Fatal(err)
	}
	passage := func(src, dst string, port uint16) apply.Passage {
		at := apply.Passage{Packet: packet.Packet{
			Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Protocol: packet.TCP, SrcPort: 49152, DstPort: port, SYN: true,
		}}
		for i, p := range n.Ports {
			if slices.Contains(p.Addresses, at.Packet.Src) {
				at.Sender = &n.Ports[i]
			}
			if slices.Contains(p.Addresses, at.Packet.Dst) {
				at.Receiver = &n.Ports[i]
			}
		}
		return at
	}
	// The ports have no namespace, so their routes are not rendered.
	var links []linux.Route
	for _, p := range n.Ports {
		links = append(links, linux.Route{Dst: netip.PrefixFrom(p.Addresses[0], 32), Hops: []linux.Hop{{Dev: p.HostInterface}}})
	}
	remote := func(at apply.Passage, vni packet.VNI) apply.Passage {
		at.VNI = vni
		return at
	}
	spoofed := func(at apply.Passage) apply.Passage {
		at.Packet.Src = netip.MustParseAddr("10.0.0.77")
		return at
	}
	own := func(at apply.Passage) apply.Passage {
		at.FromNode = true
		return at
	}
	for _, tt := range []struct {
		name string
		at   apply.Passage
		want string
		// comment of a step on the way.
		comment string
	}{
		{"a friend here", passage("10.0.0.2", "10.0.0.3", 80), "accept", "policies of the receiver"},
		{"another tenant's VNI", remote(passage("10.0.9.7", "10.0.0.3", 80), 4100), "drop", ""},
		{"of nobody's", remote(passage("10.0.8.7", "10.0.0.3", 80), 4096), "drop", ""},
		{"nobody elsewhere has it", passage("10.0.0.3", "10.0.8.7", 80), "drop", ""},
		{"not its own address", spoofed(passage("10.0.0.2", "10.0.0.3", 80)), "drop", ""},
		{"another port", passage("10.0.0.2", "10.0.0.3", 81), "drop", "denied by "},
		{"a stranger here", passage("10.0.0.4", "10.0.0.3", 80), "drop", "denied by "},
		{"a friend elsewhere", remote(passage("10.0.9.7", "10.0.0.3", 80), 4096), "accept", "policies of the receiver"},
		{"the node itself", own(passage("10.0.0.1", "10.0.0.3", 81)), "accept", ""},
		{"to another node", passage("10.0.0.3", "10.0.9.7", 5), "accept", ""},
		{"outside", passage("10.0.0.3", "192.0.2.1", 5), "accept", ""},
		{"to the node", passage("10.0.0.3", "172.30.0.11", 5), "accept", ""},
		{"nobody has the address", passage("10.0.0.3", "10.0.0.99", 5), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := linux.RenderState(n)
			trip := trip{host: Host{Node: n, Table: table, Routes: append(state.Routes, links...)}, wire: linux.RenderWire(n)}
			if err := trip.follow(tt.at); err != nil {
				t.Fatal(err)
			}
			walk := apply.Walk{Verdict: trip.verdict, Steps: slices.Concat(trip.arrival, trip.leg.Steps, trip.departure)}
			looks := trip.leg.looks
			found := slices.ContainsFunc(walk.Steps, func(s apply.Step) bool { return strings.Contains(s.Comment, tt.comment) && s.Rule >= 0 })
			if walk.Verdict != tt.want || tt.comment != "" && !found {
				t.Errorf("%q, want %q by way of %q: %s", walk.Verdict, tt.want, tt.comment, lines(walk))
			}
			for _, s := range walk.Steps {
				if s.Stage == "" || s.Effect == "" || s.Rule >= 0 && s.Text == "" {
					t.Errorf("a step says nothing: %+v", s)
				}
			}
			for name := range looks {
				if !slices.ContainsFunc(table.Sets, func(s nftables.Set) bool { return s.Name == name }) {
					t.Errorf("there is no set %s", name)
				}
			}
		})
	}
}

func lines(w apply.Walk) string {
	var b strings.Builder
	for _, s := range w.Steps {
		fmt.Fprintf(&b, "\n%s %s %d: %s: %s (%s)", s.Hook, s.Chain, s.Rule, s.Text, s.Effect, s.Comment)
	}
	return b.String()
}

func TestProveRule(t *testing.T) {
	have := []nft.KernelRule{{Handle: 7, Counted: true, Packets: 3}, {}}
	for _, tt := range []struct {
		name          string
		rule          int
		have          []nft.KernelRule
		live, missing string
	}{
		{"there", 0, have, "handle 7, 3 packets; @a as wanted; @b DIFFERS", ""},
		{"not as it should be", 1, have, "MISSING", "egress: rule 1 of chain forward is not in the kernel: drop"},
		{"no such chain", 0, nil, "MISSING", "egress: rule 0 of chain forward is not in the kernel: drop"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var walk apply.Walk
			s := apply.Step{Stage: apply.StageEgress, Chain: "forward", Rule: tt.rule, Text: "drop"}
			proveRule(&s, tt.have, []string{"a", "b"}, map[string]bool{"b": true}, &walk)
			if s.Live != tt.live || strings.Join(walk.Missing, "; ") != tt.missing {
				t.Errorf("%q, want %q; missing %q, want %q", s.Live, tt.live, walk.Missing, tt.missing)
			}
			if there := tt.missing == ""; there != (s.Handle == 7) || there != (s.Packets != nil && *s.Packets == 3) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Of several next hops all must be those of the kernel.
func TestLeads(t *testing.T) {
	gw := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	hops := []linux.Hop{{Near: gw("172.30.0.11"), Gateway: gw("172.30.0.12")}, {Near: gw("172.31.0.11"), Gateway: gw("172.31.0.12")}}
	two := &way{route: &linux.Route{Hops: hops}, out: Underlay}
	one := &way{route: &linux.Route{Hops: []linux.Hop{{Dev: "fl.vxlan"}}}, out: "fl.vxlan"}
	own := &way{out: Underlay}
	for name, c := range map[string]struct {
		way  *way
		got  []rtnl.Hop
		want bool
	}{
		"both, in another order":    {two, []rtnl.Hop{{Dev: "eth1", Gateway: gw("172.31.0.12")}, {Dev: "eth0", Gateway: gw("172.30.0.12")}}, true},
		"one of them":               {two, []rtnl.Hop{{Dev: "eth0", Gateway: gw("172.30.0.12")}}, false},
		"one is another":            {two, []rtnl.Hop{{Dev: "eth0", Gateway: gw("172.30.0.12")}, {Dev: "eth1", Gateway: gw("172.31.0.13")}}, false},
		"one twice":                 {two, []rtnl.Hop{{Dev: "eth0", Gateway: gw("172.30.0.12")}, {Dev: "eth0", Gateway: gw("172.30.0.12")}}, false},
		"one by the tunnel":         {two, []rtnl.Hop{{Dev: "eth0", Gateway: gw("172.30.0.12")}, {Dev: "fl.vxlan", Gateway: gw("172.31.0.12")}}, false},
		"one more":                  {two, []rtnl.Hop{{Dev: "eth0", Gateway: gw("172.30.0.12")}, {Dev: "eth1", Gateway: gw("172.31.0.12")}, {Dev: "eth1"}}, false},
		"none":                      {two, nil, false},
		"the tunnel":                {one, []rtnl.Hop{{Dev: "fl.vxlan"}}, true},
		"the tunnel, by a gateway":  {one, []rtnl.Hop{{Dev: "fl.vxlan", Gateway: gw("172.30.0.12")}}, false},
		"the host's own":            {own, []rtnl.Hop{{Dev: "eth0", Gateway: gw("172.30.0.1")}}, true},
		"the host's own, of two":    {own, []rtnl.Hop{{Dev: "eth0", Gateway: gw("172.30.0.1")}, {Dev: "eth1", Gateway: gw("172.31.0.1")}}, true},
		"the host's own, to a pod":  {own, []rtnl.Hop{{Dev: "flpabc"}}, false},
		"the host's own is nowhere": {own, nil, false},
	} {
		if got := c.way.leads(c.got); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
