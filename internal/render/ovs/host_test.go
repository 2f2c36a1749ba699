package ovs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// hostText is a Host as people read it.
func hostText(h Host) string {
	var b strings.Builder
	g := h.Gateway
	fmt.Fprintf(&b, "link %s %s mtu %d\n", g.Name, g.MAC, g.MTU)
	for _, a := range g.Addresses {
		fmt.Fprintf(&b, "address %s # %s\n", a.Addr, a.Ref)
	}
	for _, n := range g.Neighbours {
		fmt.Fprintf(&b, "neighbour %s %s\n", n.Addr, n.MAC)
	}
	for _, s := range append(g.Sysctls, h.Sysctls...) {
		fmt.Fprintf(&b, "sysctl %s %s\n", s.Key, s.Value)
	}
	for _, r := range h.Routes {
		fmt.Fprintf(&b, "route %s metric %d src %s", r.Dst, r.Metric, r.Src)
		for _, hop := range r.Hops {
			fmt.Fprintf(&b, " via %s dev %q near %s", hop.Gateway, hop.Dev, hop.Near)
		}
		fmt.Fprintf(&b, " # %s\n", r.Ref)
	}
	for _, p := range h.Ports {
		fmt.Fprintf(&b, "port %s %s in %s %s %v # %s\n", p.HostName, p.Name, p.Netns, p.MAC, p.Addresses, p.Ref)
	}
	for _, p := range h.Problems {
		fmt.Fprintf(&b, "problem %s: %s\n", p.Ref, p.Text)
	}
	return b.String()
}

func TestHostGolden(t *testing.T) {
	for name, n := range map[string]intent.Node{"cross-node": withPeers(single()), "ipv6": onlyIPv6(), "routed": routed()} {
		golden(t, name+".host", hostText(RenderHost(n)))
	}
}

func TestTableGolden(t *testing.T) {
	for name, n := range map[string]intent.Node{"cross-node": withPeers(single()), "tenants": tenants(), "routed": routed(), "empty": {Name: "n1"}} {
		for _, datapath := range []string{System, Netdev} {
			table := RenderTable(n, Switch{Datapath: datapath, Uplink: "eth0"})
			if err := table.Validate(); err != nil {
				t.Errorf("%s on %s: %v", name, datapath, err)
			}
			if name == "cross-node" || name == "routed" && datapath == Netdev {
				golden(t, name+"-"+datapath+".nft", table.String())
			}
		}
	}
}

func TestBridges(t *testing.T) {
	names := func(bridges []Bridge) (out []string) {
		for _, b := range bridges {
			out = append(out, b.Name+" "+b.Datapath+" "+b.FailMode)
			for _, p := range b.Ports {
				out = append(out, fmt.Sprintf("  %s %q %d %v", p.Name, p.Type, p.Number, p.Options["remote_ip"]))
			}
		}
		return out
	}
	want := []string{
		"fairlead netdev secure", `  fairlead-gw "internal" 1 `, `  fairlead-tun "vxlan" 2 flow`, `  flpa "" 0 `, `  flpb "" 0 `,
		"fairlead-phy netdev standalone", `  eth0 "" 0 `,
	}
	if diff := cmp.Diff(want, names(RenderBridges(single(), Switch{Datapath: Netdev, Uplink: "eth0"}))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	want = []string{"fairlead system secure", `  fairlead-gw "internal" 1 `}
	if diff := cmp.Diff(want, names(RenderBridges(intent.Node{Name: "n1"}, Switch{Datapath: System, Uplink: "eth0"}))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// An intent that intent.Validate would have refused gives problems, and flows that the
// switch takes.
func TestBadIntent(t *testing.T) {
	bad := netip.Addr{}
	n := tenants()
	n.Underlay = append(n.Underlay, netip.Prefix{})
	n.Subnets = append(n.Subnets, intent.Subnet{VPC: "default", Name: "bad", CIDRs: []netip.Prefix{{}, netip.PrefixFrom(addrs("10.9.9.9")[0], 8)}}, intent.Subnet{VPC: "gone", Name: "gone", CIDRs: prefixes("10.8.0.0/16")})
	n.Peers = append(n.Peers, intent.Peer{Name: "n4"}, intent.Peer{Name: "n5", Addrs: []netip.Addr{bad}, Outer: addrs("fd30::15")[0]})
	n.Routes = append(n.Routes,
		intent.Route{VPC: "default", NextHop: intent.NextHop{Local: true}},
		intent.Route{VPC: "default", Dst: prefixes("10.1.1.0/26")[0], NextHop: intent.NextHop{Peer: "n4"}, Encapsulate: true},
		intent.Route{VPC: "default", Dst: prefixes("10.1.1.64/26")[0], NextHop: intent.NextHop{Peer: "nobody"}, Encapsulate: true},
		intent.Route{VPC: "default", Dst: prefixes("10.1.1.128/26")[0], NextHop: intent.NextHop{Peer: "n5"}, Encapsulate: true},
		intent.Route{VPC: "default", Dst: prefixes("10.1.2.0/26")[0], NextHop: intent.NextHop{ECMP: []intent.NextHop{{Peer: "n2"}, {Peer: "n3"}}}, Encapsulate: true},
		intent.Route{VPC: "gone", Dst: prefixes("10.8.0.0/26")[0], NextHop: intent.NextHop{Local: true}},
		intent.Route{VPC: "default", Dst: prefixes("10.1.0.0/26")[0], NextHop: intent.NextHop{Local: true}})
	n.Tunnels = append(n.Tunnels, intent.TunnelAddress{VPC: "default", Addr: bad}, intent.TunnelAddress{VPC: "gone", Addr: addrs("10.8.0.1")[0]})
	for i, p := range []intent.Port{
		{},
		{VPC: "default"},
		{VPC: "default", HostInterface: "flpz1", MAC: packet.MAC{1}},
		{VPC: "default", HostInterface: "flpz2", MAC: packet.MAC{2}, Addresses: []netip.Addr{bad}},
		{VPC: "default", HostInterface: "flpz3", MAC: packet.MAC{2}, Addresses: addrs("10.1.0.5")},
		{VPC: "gone", HostInterface: "flpz4"},
		{VPC: "default", HostInterface: "flpa", MAC: packet.MAC{2}},
		{VPC: "default", HostInterface: "flpz5", MAC: packet.MAC{2}, Addresses: addrs("::ffff:10.1.0.9")},
		{VPC: "default", HostInterface: "flpz6", MAC: packet.MAC{2}, Addresses: addrs("10.1.0.9", "10.1.0.9")},
	} {
		p.ID = fmt.Sprintf("z%d/eth0", i)
		n.Ports = append(n.Ports, p)
	}
	n.RuleLists = append(n.RuleLists, intent.RuleList{ID: "x", VPC: "gone"}, intent.RuleList{ID: "y", VPC: "default"}, intent.RuleList{ID: "y", VPC: "default"})
	n.AddressSets = append(n.AddressSets, intent.AddressSet{VPC: "default", Name: "z", Prefixes: []netip.Prefix{{}}})
	numbers := numbersOf(tenants())
	for i := range 7 {
		numbers[fmt.Sprintf("flpz%d", i)] = HostPortNumber + 1000
	}
	numbers["flpz3"], numbers["flpz6"] = 1001, 0xffff
	p := Render(n, numbers, Options{})
	check(t, p)
	const least = 20
	if len(p.Problems) < least {
		t.Errorf("only %d problems: %v", len(p.Problems), p.Problems)
	}
	RenderHost(n)
	RenderTable(n, Switch{Datapath: System})
	RenderBridges(n, Switch{})
}
