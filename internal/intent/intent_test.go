package intent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// valid is an intent with two objects of every kind.
func valid() Node {
	return Node{
		Name: "n1", MTU: 1450, Underlay: []netip.Prefix{prefix("172.30.0.11/24"), prefix("fd30::11/64")}, VTEPMAC: packet.VTEPMAC("n1"),
		VPCs: []VPC{{Name: "default", VNI: 1, Tenants: []packet.VNI{10, 11}}, {Name: "red", VNI: 2}},
		Subnets: []Subnet{
			{VPC: "default", Name: "a", CIDRs: []netip.Prefix{prefix("10.128.0.0/24"), prefix("fd10::/64")}, Overlay: true},
			{VPC: "red", Name: "b", CIDRs: []netip.Prefix{prefix("10.129.0.0/24")}},
		},
		Peers: []Peer{
			{Name: "n2", Addrs: []netip.Addr{addr("172.30.0.12")}, Outer: addr("172.30.0.12"), VTEPMAC: packet.VTEPMAC("n2")},
			{Name: "n3", Addrs: []netip.Addr{addr("fd30::13")}, VTEPMAC: packet.VTEPMAC("n3")},
		},
		Routes: []Route{
			{VPC: "default", Dst: prefix("10.128.0.0/28"), NextHop: NextHop{Local: true}},
			{VPC: "default", Dst: prefix("10.128.0.16/28"), NextHop: NextHop{Peer: "n2"}, Encapsulate: true},
			{VPC: "red", Dst: prefix("0.0.0.0/0"), Origin: OriginStatic, NextHop: NextHop{ECMP: []NextHop{{Gateway: addr("172.30.0.1")}, {Device: "eth1"}}}},
		},
		Tunnels: []TunnelAddress{{VPC: "default", Subnet: "a", Addr: addr("10.128.0.1")}, {VPC: "red", Subnet: "b", Addr: addr("10.129.0.1")}},
		Ports: []Port{
			{ID: "c1/eth0", VPC: "default", VNI: 10, Pod: "ns/a", Netns: "/run/netns/1", Interface: "eth0", HostInterface: "flp1", MAC: packet.MAC{2}, Addresses: []netip.Addr{addr("10.128.0.2"), addr("fd10::2")}},
			{ID: "c2/eth0", VPC: "red", VNI: 2, HostInterface: "flp2", MAC: packet.MAC{4}, Addresses: []netip.Addr{addr("10.129.0.2")}},
		},
		NATs: []NAT{
			{VPC: "default", Name: "a", Sources: []netip.Prefix{prefix("10.128.0.0/24")}, Except: SetSubnets},
			{VPC: "red", Name: "b", Sources: []netip.Prefix{prefix("10.129.0.0/24")}, Except: SetSubnets},
		},
		AddressSets: []AddressSet{
			{VPC: "default", Name: SetSubnets, Prefixes: []netip.Prefix{prefix("10.128.0.0/24"), prefix("fd10::/64")}},
			{VPC: "red", Name: SetSubnets, Prefixes: []netip.Prefix{prefix("10.129.0.0/24")}},
		},
	}
}

func TestValidate(t *testing.T) {
	if faults := Validate(valid()); len(faults) > 0 {
		t.Fatalf("a valid intent has faults: %v", faults)
	}
	for _, tt := range []struct {
		name   string
		breaks func(*Node)
		want   string
	}{
		{"no name", func(n *Node) { n.Name = "" }, "Node : has no name"},
		{"MTU", func(n *Node) { n.MTU = 0 }, "Node n1: MTU 0"},
		{"underlay order", func(n *Node) { n.Underlay[0], n.Underlay[1] = n.Underlay[1], n.Underlay[0] }, "not at most one a family"},
		{"underlay invalid", func(n *Node) { n.Underlay = []netip.Prefix{{}} }, "underlay address invalid IP"},
		{"unsorted", func(n *Node) { n.Peers[0], n.Peers[1] = n.Peers[1], n.Peers[0] }, "Peer n2: stands after Peer n3"},
		{"twice", func(n *Node) { n.Ports[1].ID = n.Ports[0].ID }, "Port c1/eth0: stands after Port c1/eth0"},
		{"VNI zero", func(n *Node) { n.VPCs[0].VNI = 0 }, "VPC default: VNI 0 is not between"},
		{"VNI too large", func(n *Node) { n.VPCs[0].Tenants[1] = packet.MaxVNI + 1 }, "VPC default: VNI 16777216"},
		{"VNI of two", func(n *Node) { n.VPCs[1].VNI = 10 }, "VPC red: VNI 10 is that of VPC default"},
		{"tenants unsorted", func(n *Node) { n.VPCs[0].Tenants = []packet.VNI{11, 10} }, "are not sorted"},
		{"unknown VPC", func(n *Node) { n.Subnets[0].VPC = "x" }, `Subnet a: is in VPC "x"`},
		{"no CIDR", func(n *Node) { n.Subnets[1].CIDRs = nil }, "Subnet b: has no CIDR"},
		{"host bits", func(n *Node) { n.Subnets[1].CIDRs[0] = prefix("10.129.0.1/24") }, "Subnet b: 10.129.0.1/24 is no canonical prefix"},
		{"overlapping CIDRs", func(n *Node) { n.Subnets[1].CIDRs = []netip.Prefix{prefix("10.129.0.0/24"), prefix("10.129.0.0/25")} }, "overlap or are out of order"},
		{"peer without address", func(n *Node) { n.Peers[0].Addrs = nil }, "Peer n2: has no underlay address"},
		{"peer without MAC", func(n *Node) { n.Peers[0].VTEPMAC = packet.MAC{} }, "Peer n2: has no VTEP MAC"},
		{"foreign outer", func(n *Node) { n.Peers[0].Outer = addr("172.30.0.99") }, "Peer n2: outer address 172.30.0.99"},
		{"route outside of its VPC", func(n *Node) { n.Routes[1].Dst = prefix("10.129.0.16/28") }, "lies in no Subnet of VPC default"},
		{"route with host bits", func(n *Node) { n.Routes[0].Dst = prefix("10.128.0.1/28") }, "no canonical prefix"},
		{"empty next hop", func(n *Node) { n.Routes[0].NextHop = NextHop{} }, "has exactly one field, this has 0"},
		{"two next hops", func(n *Node) { n.Routes[0].NextHop.Peer = "n2" }, "has exactly one field, this has 2"},
		{"unknown peer", func(n *Node) { n.Routes[1].NextHop.Peer = "x" }, "the next hop x is no peer"},
		{"list in a list", func(n *Node) { n.Routes[2].NextHop.ECMP[0] = NextHop{ECMP: []NextHop{{Local: true}}} }, "a list of next hops holds a list"},
		{"bad hop in a list", func(n *Node) { n.Routes[2].NextHop.ECMP[0] = NextHop{Peer: "x"} }, "the next hop x is no peer"},
		{"no tunnel", func(n *Node) { n.Routes[1].NextHop.Peer = "n3" }, "has no outer address"},
		{"unknown Subnet", func(n *Node) { n.Tunnels[0].Subnet = "x" }, "Subnet x is not in the intent"},
		{"Subnet of another VPC", func(n *Node) { n.Tunnels[0].Subnet = "b" }, "Subnet b is in VPC red, not in default"},
		{"tunnel address outside", func(n *Node) { n.Tunnels[0].Addr = addr("10.1.0.1") }, "10.1.0.1 lies outside of Subnet a"},
		{"VNI of another VPC", func(n *Node) { n.Ports[0].VNI = 2 }, "Port c1/eth0: VNI 2 is none of VPC default"},
		{"address of another VPC", func(n *Node) { n.Ports[0].Addresses[0] = addr("10.129.0.9") }, "10.129.0.9/32 lies in no Subnet of VPC default"},
		{"address of another port", func(n *Node) {
			n.Ports[1] = n.Ports[0]
			n.Ports[1].ID, n.Ports[1].HostInterface = "c2/eth0", "flp9"
		}, "10.128.0.2 is the address of Port c1/eth0"},
		{"link of another port", func(n *Node) { n.Ports[1].HostInterface = "flp1" }, "host interface flp1 is that of Port c1/eth0"},
		{"port without MAC", func(n *Node) { n.Ports[0].MAC = packet.MAC{} }, "Port c1/eth0: has no MAC address"},
		{"port without address", func(n *Node) { n.Ports[0].Addresses = nil }, "Port c1/eth0: has no pod address"},
		{"NAT without source", func(n *Node) { n.NATs[0].Sources = nil }, "NAT default a: has no source"},
		{"NAT of another VPC", func(n *Node) { n.NATs[0].Sources[0] = prefix("10.129.0.0/24") }, "lies in no Subnet of VPC default"},
		{"NAT with a set of nobody", func(n *Node) { n.NATs[0].Except = "x" }, "the set x of VPC default is not in the intent"},
		{"set overlaps itself", func(n *Node) { n.AddressSets[0].Prefixes[1] = prefix("10.128.0.0/25") }, "AddressSet default subnets: 10.128.0.0/24 and 10.128.0.0/25 overlap"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := valid()
			tt.breaks(&n)
			faults := Validate(n)
			if got := fmt.Sprint(faults); !strings.Contains(got, tt.want) {
				t.Errorf("got %s, want one with %q", got, tt.want)
			}
		})
	}
}

func TestDiff(t *testing.T) {
	old, new := valid(), valid()
	if d := Diff(old, new); len(d) > 0 || !old.Equal(new) {
		t.Fatalf("two equal intents differ: %v", d)
	}
	new.MTU = 1430
	new.VPCs[0].Tenants = []packet.VNI{10}
	new.Subnets = new.Subnets[:1]
	new.Peers[1].Outer = addr("fd30::13")
	new.Routes[1].NextHop.Peer = "n3"
	new.Routes[2].NextHop.ECMP[1].Device = "eth2"
	new.Tunnels = append(new.Tunnels, TunnelAddress{VPC: "red", Subnet: "b", Addr: addr("10.129.0.3")})
	new.Ports = new.Ports[1:]
	new.NATs[0].Except = "others"
	new.AddressSets[1].Prefixes = nil
	var got []string
	for _, c := range Diff(old, new) {
		got = append(got, c.String())
	}
	want := []string{
		"changed Node n1: MTU 1450, underlay 172.30.0.11/24 fd30::11/64, VTEP 06:84:ce:ef:a5:c4 → MTU 1430, underlay 172.30.0.11/24 fd30::11/64, VTEP 06:84:ce:ef:a5:c4",
		"changed VPC default: VNI 1, tenants 10 11 → VNI 1, tenants 10",
		"removed Subnet b: VPC red, 10.129.0.0/24, direct",
		"changed Peer n3: fd30::13, no tunnel, VTEP 06:ae:52:38:b9:75 → fd30::13, outer fd30::13, VTEP 06:ae:52:38:b9:75",
		"changed Route default 10.128.0.16/28: via n2, encapsulated → via n3, encapsulated",
		"changed Route red 0.0.0.0/0: ECMP via 172.30.0.1 dev eth1, from static → ECMP via 172.30.0.1 dev eth2, from static",
		"added TunnelAddress red 10.129.0.3: Subnet b",
		"removed Port c1/eth0: pod ns/a, VPC default, VNI 10, 10.128.0.2 fd10::2, MAC 02:00:00:00:00:00, eth0 in /run/netns/1, host flp1",
		"changed NAT default a: from 10.128.0.0/24, not to subnets → from 10.128.0.0/24, not to others",
		"changed AddressSet red subnets: 10.129.0.0/24 → none",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if old.Equal(new) {
		t.Error("two different intents are equal")
	}
	if first := Diff(Node{}, old); first[0].Op != "added" || len(first) != 18 {
		t.Errorf("from nothing: %d changes, the first %s; want 18 added", len(first), first[0])
	}
	if last := Diff(old, Node{Name: "n1", MTU: old.MTU, Underlay: old.Underlay, VTEPMAC: old.VTEPMAC}); len(last) != 17 || last[0].Op != "removed" {
		t.Errorf("to nothing: %v", last)
	}
}

// TestEqualSeesEveryField turns each field of each object.
func TestEqualSeesEveryField(t *testing.T) {
	for name, turn := range map[string]func(*Node){
		"Name": func(n *Node) { n.Name = "x" }, "MTU": func(n *Node) { n.MTU++ }, "VTEPMAC": func(n *Node) { n.VTEPMAC[5]++ },
		"Underlay": func(n *Node) { n.Underlay = n.Underlay[:1] },
		"VPC.VNI":  func(n *Node) { n.VPCs[0].VNI = 9 }, "VPC.Tenants": func(n *Node) { n.VPCs[0].Tenants = nil }, "VPC.Name": func(n *Node) { n.VPCs[1].Name = "x" },
		"Subnet.VPC": func(n *Node) { n.Subnets[0].VPC = "x" }, "Subnet.Overlay": func(n *Node) { n.Subnets[0].Overlay = false }, "Subnet.CIDRs": func(n *Node) { n.Subnets[0].CIDRs[0] = prefix("10.0.0.0/8") },
		"Peer.Addrs": func(n *Node) { n.Peers[0].Addrs = nil }, "Peer.MAC": func(n *Node) { n.Peers[0].VTEPMAC[0]++ }, "Peer.Outer": func(n *Node) { n.Peers[0].Outer = netip.Addr{} },
		"Route.Dst": func(n *Node) { n.Routes[0].Dst = prefix("10.0.0.0/8") }, "Route.Encapsulate": func(n *Node) { n.Routes[1].Encapsulate = false },
		"Route.Origin": func(n *Node) { n.Routes[0].Origin = OriginBGP }, "Route.NextHop": func(n *Node) { n.Routes[0].NextHop = NextHop{Device: "x"} },
		"Route.ECMP": func(n *Node) { n.Routes[2].NextHop.ECMP[0].Gateway = addr("1.1.1.1") }, "Tunnel": func(n *Node) { n.Tunnels[0].Subnet = "x" },
		"Port.VPC": func(n *Node) { n.Ports[0].VPC = "x" }, "Port.VNI": func(n *Node) { n.Ports[0].VNI = 11 }, "Port.Pod": func(n *Node) { n.Ports[0].Pod = "x" },
		"Port.Netns": func(n *Node) { n.Ports[0].Netns = "x" }, "Port.Interface": func(n *Node) { n.Ports[0].Interface = "x" }, "Port.Host": func(n *Node) { n.Ports[0].HostInterface = "x" },
		"Port.MAC": func(n *Node) { n.Ports[0].MAC[1]++ }, "Port.Addresses": func(n *Node) { n.Ports[0].Addresses = n.Ports[0].Addresses[:1] },
		"NAT.Sources": func(n *Node) { n.NATs[0].Sources = nil }, "NAT.Except": func(n *Node) { n.NATs[0].Except = "x" }, "Set.Prefixes": func(n *Node) { n.AddressSets[0].Prefixes = nil },
	} {
		n := valid()
		turn(&n)
		if n.Equal(valid()) {
			t.Errorf("Equal does not see %s", name)
		}
		if d := Diff(valid(), n); len(d) == 0 {
			t.Errorf("Diff does not see %s", name)
		}
	}
}
