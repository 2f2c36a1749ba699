package ovs

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func numbersOf(n intent.Node) Numbers {
	out := Numbers{claims.OVSHostPort: HostPortNumber}
	if overlay(n) {
		out[claims.OVSTunnelPort] = TunnelPortNumber
	}
	for i, p := range n.Ports {
		out[p.HostInterface] = of.Port(10 + i)
	}
	return out
}

func pod(name, vpc string, vni packet.VNI, a ...string) intent.Port {
	return intent.Port{
		ID: name + "/eth0", VPC: vpc, VNI: vni, Pod: "shop/" + name, Netns: "/run/netns/" + name, Interface: "eth0",
		HostInterface: claims.PortPrefix + name, MAC: packet.PodMAC(vpc, addrs(a...)[0]), Addresses: addrs(a...),
	}
}

// single is one VPC on one node, with two pods.
func single() intent.Node {
	return intent.Node{
		Name: "n1", MTU: 1450, Underlay: prefixes("172.30.0.11/24"), VTEPMAC: packet.VTEPMAC("n1"),
		VPCs:    []intent.VPC{{Name: "default", VNI: 10}},
		Subnets: []intent.Subnet{{VPC: "default", Name: "pods", CIDRs: prefixes("10.1.0.0/16", "fd01::/48"), Overlay: true}},
		Routes: []intent.Route{
			{VPC: "default", Dst: prefixes("10.1.0.0/26")[0], NextHop: intent.NextHop{Local: true}},
			{VPC: "default", Dst: prefixes("fd01::/122")[0], NextHop: intent.NextHop{Local: true}},
		},
		Tunnels: []intent.TunnelAddress{{VPC: "default", Subnet: "pods", Addr: addrs("10.1.0.1")[0]}, {VPC: "default", Subnet: "pods", Addr: addrs("fd01::1")[0]}},
		Ports:   []intent.Port{pod("a", "default", 10, "10.1.0.5", "fd01::5"), pod("b", "default", 10, "10.1.0.6", "fd01::6")},
		NATs:    []intent.NAT{{VPC: "default", Name: "pods", Sources: prefixes("10.1.0.0/16", "fd01::/48"), Except: intent.SetSubnets}},
		AddressSets: []intent.AddressSet{
			{VPC: "default", Name: intent.SetSubnets, Prefixes: prefixes("10.1.0.0/16", "fd01::/48")},
		},
	}
}

// withPeers adds other nodes: n2 through the tunnel, n3 in the same segment without it.
// An address of n2's block is lent to this node, and one of n2's to n3's.
func withPeers(n intent.Node) intent.Node {
	n.Peers = []intent.Peer{
		{Name: "n2", Addrs: addrs("172.30.0.12", "fd30::12"), VTEPMAC: packet.VTEPMAC("n2"), Outer: addrs("172.30.0.12")[0]},
		{Name: "n3", Addrs: addrs("172.30.0.13"), VTEPMAC: packet.VTEPMAC("n3"), Outer: addrs("172.30.0.13")[0]},
	}
	n.Subnets = append(slices.Clone(n.Subnets), intent.Subnet{VPC: "default", Name: "plain", CIDRs: prefixes("10.7.0.0/16")})
	n.Routes = append(slices.Clone(n.Routes),
		intent.Route{VPC: "default", Dst: prefixes("10.1.0.64/26")[0], NextHop: intent.NextHop{Peer: "n2"}, Encapsulate: true},
		intent.Route{VPC: "default", Dst: prefixes("10.1.0.70/32")[0], NextHop: intent.NextHop{Local: true}},
		intent.Route{VPC: "default", Dst: prefixes("10.1.0.71/32")[0], NextHop: intent.NextHop{Peer: "n3"}, Encapsulate: true},
		intent.Route{VPC: "default", Dst: prefixes("fd01::40/122")[0], NextHop: intent.NextHop{Peer: "n2"}, Encapsulate: true},
		intent.Route{VPC: "default", Dst: prefixes("10.7.0.0/26")[0], NextHop: intent.NextHop{Peer: "n3"}},
	)
	n.AddressSets = []intent.AddressSet{
		{VPC: "default", Name: intent.SetDirect, Prefixes: prefixes("10.7.0.0/26")},
		{VPC: "default", Name: intent.SetSubnets, Prefixes: prefixes("10.1.0.0/16", "10.7.0.0/16", "fd01::/48")},
	}
	return sorted(n)
}

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
	n.RuleLists = append(slices.Clone(n.RuleLists), out, in)
	n.Ports = slices.Clone(n.Ports)
	n.Ports[0].Ingress, n.Ports[0].Egress = in.ID, out.ID
	n.AddressSets = append(slices.Clone(n.AddressSets), sets...)
	return sorted(n)
}

// restricted has a list of all three tiers for what the first pod receives, and one for
// what it sends.
func restricted() intent.Node {
	sets := []intent.AddressSet{
		{VPC: "default", Name: "frontend", Prefixes: prefixes("10.1.0.6/32", "10.1.0.64/31", "fd01::6/128")},
		{VPC: "default", Name: "metrics", Prefixes: prefixes("10.1.0.65/32")},
		{VPC: "default", Name: "nobody"},
		{VPC: "default", Name: "outside", Prefixes: prefixes("0.0.0.0/5", "8.0.0.0/7", "11.0.0.0/8", "12.0.0.0/6")},
		{VPC: "default", Name: "scanners", Prefixes: prefixes("10.1.9.0/24", "fd01::9:0/112")},
		{VPC: "default", Name: "trusted", Prefixes: prefixes("10.1.9.7/32")},
	}
	tier := intent.TierNetworkPolicy
	return withLists(withPeers(single()), sets,
		[]intent.Rule{
			{Tier: intent.TierAdmin, Action: intent.Pass, Match: intent.Match{Sets: []string{"trusted"}}, Origin: origin("cnp-scan", 0)},
			{Tier: intent.TierAdmin, Action: intent.Deny, Match: intent.Match{Sets: []string{"nobody", "scanners"}}, Origin: origin("cnp-scan", 1)},
			{Tier: tier, Action: intent.Accept, Match: intent.Match{Sets: []string{"frontend"}, Protocol: packet.TCP, Ports: ports(80, 80, 443)}, Origin: origin("web", 0)},
			{Tier: tier, Action: intent.Accept, Match: intent.Match{Sets: []string{"metrics", "trusted"}}, Origin: origin("watch", 0)},
			{Tier: tier, Action: intent.Deny, Origin: origin("web", -1)},
		},
		[]intent.Rule{
			{Tier: tier, Action: intent.Accept, Match: intent.Match{Protocol: packet.UDP, Ports: ports(53, 53)}, Origin: origin("dns", 0)},
			{Tier: tier, Action: intent.Accept, Match: intent.Match{Sets: []string{"outside"}, Protocol: packet.TCP, Ports: ports(1, 21, 80, 443, 8080)}, Origin: origin("out", 0)},
			{Tier: tier, Action: intent.Deny, Origin: origin("out", -1)},
		})
}

// tenants has two VPCs, one of them with two isolated tenants.
func tenants() intent.Node {
	n := withPeers(single())
	n.VPCs = []intent.VPC{{Name: "blue", VNI: 20, Tenants: []packet.VNI{21, 22}}, {Name: "default", VNI: 10}}
	n.Subnets = append(n.Subnets, intent.Subnet{VPC: "blue", Name: "blue", CIDRs: prefixes("10.2.0.0/16"), Overlay: true})
	n.Routes = append(n.Routes,
		intent.Route{VPC: "blue", Dst: prefixes("10.2.0.0/26")[0], NextHop: intent.NextHop{Local: true}},
		intent.Route{VPC: "blue", Dst: prefixes("10.2.0.64/26")[0], NextHop: intent.NextHop{Peer: "n2"}, Encapsulate: true})
	n.Tunnels = append(n.Tunnels, intent.TunnelAddress{VPC: "blue", Subnet: "blue", Addr: addrs("10.2.0.1")[0]})
	n.Ports = append(n.Ports, pod("c", "blue", 21, "10.2.0.5"), pod("d", "blue", 22, "10.2.0.6"), pod("e", "blue", 20, "10.2.0.7"))
	n.AddressSets = append(n.AddressSets, intent.AddressSet{VPC: "blue", Name: intent.SetSubnets, Prefixes: prefixes("10.2.0.0/16")})
	return sorted(n)
}

// onlyIPv6 is a cluster without IPv4.
func onlyIPv6() intent.Node {
	a := pod("a", "default", 10, "fd01::5")
	a.MAC = macA
	return intent.Node{
		Name: "n1", MTU: 1430, Underlay: prefixes("fd30::11/64"), VTEPMAC: packet.VTEPMAC("n1"),
		VPCs:    []intent.VPC{{Name: "default", VNI: 10}},
		Subnets: []intent.Subnet{{VPC: "default", Name: "pods", CIDRs: prefixes("fd01::/48"), Overlay: true}},
		Peers:   []intent.Peer{{Name: "n2", Addrs: addrs("fd30::12"), VTEPMAC: packet.VTEPMAC("n2"), Outer: addrs("fd30::12")[0]}},
		Routes: []intent.Route{
			{VPC: "default", Dst: prefixes("fd01::/122")[0], NextHop: intent.NextHop{Local: true}},
			{VPC: "default", Dst: prefixes("fd01::40/122")[0], NextHop: intent.NextHop{Peer: "n2"}, Encapsulate: true},
		},
		Tunnels:     []intent.TunnelAddress{{VPC: "default", Subnet: "pods", Addr: addrs("fd01::1")[0]}},
		Ports:       []intent.Port{a},
		AddressSets: []intent.AddressSet{{VPC: "default", Name: intent.SetSubnets, Prefixes: prefixes("fd01::/48")}},
	}
}

// routed is a node without a tunnel: its peer has a plain route.
func routed() intent.Node {
	n := withPeers(single())
	a := pod("a", "default", 10, "10.7.0.70")
	a.MAC = macA
	n.Subnets = slices.DeleteFunc(slices.Clone(n.Subnets), func(s intent.Subnet) bool { return s.Overlay })
	n.Peers = n.Peers[1:] // n3
	n.Routes = []intent.Route{
		{VPC: "default", Dst: prefixes("10.7.0.0/26")[0], NextHop: intent.NextHop{Peer: "n3"}},
		{VPC: "default", Dst: prefixes("10.7.0.64/26")[0], NextHop: intent.NextHop{Local: true}},
	}
	n.Tunnels, n.NATs, n.Ports = nil, nil, []intent.Port{a}
	n.AddressSets = []intent.AddressSet{
		{VPC: "default", Name: intent.SetDirect, Prefixes: prefixes("10.7.0.0/26")},
		{VPC: "default", Name: intent.SetSubnets, Prefixes: prefixes("10.7.0.0/16")},
	}
	return n
}
