package linux

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// example has every kind of route.
func example() intent.Node {
	n := intent.Node{
		Name: "n1", MTU: 1430, VTEPMAC: packet.VTEPMAC("n1"),
		Underlay: []netip.Prefix{prefix("192.0.2.1/24"), prefix("2001:db8::1/64")},
		VPCs:     []intent.VPC{{Name: "default", VNI: 10}},
		Subnets: []intent.Subnet{
			{VPC: "default", Name: "default", Overlay: true, CIDRs: []netip.Prefix{prefix("10.128.0.0/14"), prefix("fd00:128::/48")}},
			{VPC: "default", Name: "racks", CIDRs: []netip.Prefix{prefix("10.64.0.0/16")}},
			{VPC: "default", Name: "tiny", Overlay: true, CIDRs: []netip.Prefix{prefix("10.99.0.0/28")}},
		},
		Peers: []intent.Peer{
			{Name: "far", Addrs: []netip.Addr{addr("198.51.100.7")}, Outer: addr("198.51.100.7")},
			{Name: "near", Addrs: []netip.Addr{addr("192.0.2.2"), addr("2001:db8::2")}, Outer: addr("192.0.2.2")},
			{Name: "six", Addrs: []netip.Addr{addr("2001:db8::6")}, Outer: addr("2001:db8::6")},
		},
		Tunnels: []intent.TunnelAddress{
			{VPC: "default", Subnet: "default", Addr: addr("10.128.0.1")},
			{VPC: "default", Subnet: "default", Addr: addr("fd00:128::1")},
			{VPC: "default", Subnet: "tiny", Addr: addr("10.99.0.1")},
		},
		Ports: []intent.Port{
			port("a", "10.128.0.2", "fd00:128::2"),
			port("b", "10.64.0.3"),
		},
	}
	route := func(dst string, h intent.NextHop, encapsulate bool) {
		n.Routes = append(n.Routes, intent.Route{VPC: "default", Dst: prefix(dst), NextHop: h, Encapsulate: encapsulate})
	}
	local := intent.NextHop{Local: true}
	peer := func(name string) intent.NextHop { return intent.NextHop{Peer: name} }
	route("10.128.0.0/26", local, false)           // own block
	route("10.128.0.9/32", peer("far"), true)      // lent out of it, behind the tunnel
	route("10.128.0.10/32", peer("near"), false)   // lent out of it, in the segment
	route("10.128.1.0/26", peer("far"), true)      // a block behind the tunnel: the Subnet's route does
	route("10.128.1.7/32", local, false)           // lent to this node, by far
	route("10.128.2.0/26", peer("near"), false)    // a block in the segment
	route("10.128.2.5/32", peer("far"), true)      // lent out of that
	route("fd00:128::/122", local, false)          // own block
	route("fd00:128:0:1::/122", peer("six"), true) // behind the tunnel
	route("fd00:128:0:2::/122", peer("near"), false)
	route("10.64.0.0/26", local, false)
	route("10.64.1.0/26", peer("near"), false)
	route("10.64.2.0/26", peer("far"), false) // another segment: routers know the way
	route("10.64.3.0/26", peer("six"), false) // no IPv4 in common
	route("10.99.0.0/28", local, false)       // a whole Subnet
	route("203.0.113.0/24", intent.NextHop{Gateway: addr("192.0.2.254")}, false)
	route("203.0.114.0/24", intent.NextHop{Device: "wan0"}, false)
	route("203.0.115.0/24", intent.NextHop{ECMP: []intent.NextHop{{Gateway: addr("192.0.2.253")}, {Peer: "near"}}}, false)
	route("203.0.116.0/24", intent.NextHop{ECMP: []intent.NextHop{{Peer: "far"}, {Peer: "near"}}}, true)
	route("203.0.117.0/24", peer("nobody"), false)
	route("203.0.118.0/24", intent.NextHop{}, false)
	slices.SortFunc(n.Routes, intent.Route.Compare)
	return n
}

func port(id string, addrs ...string) intent.Port {
	p := intent.Port{
		ID: id + "/eth0", VPC: "default", VNI: 10, Pod: "ns/" + id, Netns: "/run/netns/" + id, Interface: "eth0",
		HostInterface: "flp" + id, MAC: packet.PodMAC("default", addr(addrs[0])),
	}
	for _, a := range addrs {
		p.Addresses = append(p.Addresses, addr(a))
	}
	return p
}

// text is a State for people.
func text(s State) string {
	var b strings.Builder
	if t := s.Tunnel; t != nil {
		fmt.Fprintf(&b, "tunnel %s mac %s mtu %d port %d for %v\n", t.Name, t.MAC, t.MTU, t.Port, t.Refs)
		for _, a := range t.Addresses {
			fmt.Fprintf(&b, "\taddress %s\n", a.Addr)
		}
		writeSysctls(&b, t.Sysctls())
	}
	for _, p := range s.Ports {
		fmt.Fprintf(&b, "port %s mac %s | %s mac %s in %s mtu %d, addresses %s, gateways %s\n",
			p.HostName, p.HostMAC, p.Name, p.MAC, p.Netns, p.MTU, p.Addresses, p.Gateways())
		writeSysctls(&b, p.HostSysctls())
		b.WriteString("\tin the pod:\n")
		writeSysctls(&b, p.PodSysctls())
	}
	for _, r := range s.Routes {
		fmt.Fprintf(&b, "route %s metric %d", r.Dst, r.Metric)
		if len(r.Hops) == 0 {
			b.WriteString(" unreachable")
		}
		for _, h := range r.Hops {
			if h.Gateway.IsValid() {
				fmt.Fprintf(&b, " via %s", h.Gateway)
			}
			dev := h.Dev
			if dev == "" {
				dev = "of " + h.Near.String()
			}
			fmt.Fprintf(&b, " dev %s", dev)
		}
		if r.Src.IsValid() {
			fmt.Fprintf(&b, " src %s", r.Src)
		}
		fmt.Fprintf(&b, " (%s)\n", r.Ref)
	}
	writeSysctls(&b, s.Sysctls)
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "problem %s: %s\n", p.Ref, p.Text)
	}
	return b.String()
}

func writeSysctls(b *strings.Builder, s []Sysctl) {
	for _, s := range s {
		fmt.Fprintf(b, "\tsysctl %s = %s\n", s.Key, s.Value)
	}
}

func TestRenderStateGolden(t *testing.T) {
	plain := example()
	plain.Subnets = plain.Subnets[1:2]
	plain.Tunnels, plain.Ports = nil, plain.Ports[1:]
	plain.Routes = slices.DeleteFunc(plain.Routes, func(r intent.Route) bool { return !prefix("10.64.0.0/16").Overlaps(r.Dst) })
	for name, n := range map[string]intent.Node{"overlay": example(), "routed": plain, "empty": {Name: "n1"}} {
		t.Run(name, func(t *testing.T) {
			got, file := text(RenderState(n)), filepath.Join("testdata", name+".state")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(string(want), got); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRenderStateIgnoresOrder(t *testing.T) {
	want := text(RenderState(example()))
	for seed := range uint64(20) {
		n := example()
		rng := rand.New(rand.NewPCG(seed, 1))
		shuffle(rng, n.Ports)
		shuffle(rng, n.Routes)
		shuffle(rng, n.Peers)
		shuffle(rng, n.Tunnels)
		shuffle(rng, n.Subnets)
		if diff := gocmp.Diff(want, text(RenderState(n))); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
}

func shuffle[T any](rng *rand.Rand, s []T) {
	rng.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}

func TestRenderPortRefuses(t *testing.T) {
	good := port("a", "10.128.0.2", "fd00:128::2")
	if _, err := RenderPort(good, 1400); err != nil {
		t.Fatalf("a good port: %v", err)
	}
	for _, tc := range []struct {
		name string
		bad  func(p *intent.Port)
		want string
	}{
		{"interface that leaves its directory", func(p *intent.Port) { p.Interface = "../../x" }, "interface name"},
		{"interface called all", func(p *intent.Port) { p.Interface = "all" }, "interface name"},
		{"interface called lo", func(p *intent.Port) { p.Interface = "lo" }, "interface name"},
		{"no interface", func(p *intent.Port) { p.Interface = "" }, "interface name"},
		{"dots", func(p *intent.Port) { p.Interface = ".." }, "interface name"},
		{"interface of 16 bytes", func(p *intent.Port) { p.Interface = "abcdefghijklmnop" }, "interface name"},
		{"interface pattern", func(p *intent.Port) { p.Interface = "eth%d" }, "interface name"},
		{"host's end of somebody else", func(p *intent.Port) { p.HostInterface = "eth0" }, "host's end"},
		{"host's end that leaves its directory", func(p *intent.Port) { p.HostInterface = "flp/../../x" }, "host's end"},
		{"relative namespace", func(p *intent.Port) { p.Netns = "run/netns/a" }, "network namespace"},
		{"namespace with dots", func(p *intent.Port) { p.Netns = "/run/netns/../../etc/x" }, "network namespace"},
		{"no MAC address", func(p *intent.Port) { p.MAC = packet.MAC{} }, "MAC address"},
		{"multicast MAC address", func(p *intent.Port) { p.MAC[0] = 1 }, "MAC address"},
		{"two addresses of one family", func(p *intent.Port) { p.Addresses[1] = addr("10.128.0.3") }, "one unicast address a family"},
		{"multicast address", func(p *intent.Port) { p.Addresses[0] = addr("224.0.0.1") }, "one unicast address a family"},
		{"IPv4 in IPv6", func(p *intent.Port) { p.Addresses[1] = addr("::ffff:10.0.0.1") }, "one unicast address a family"},
		{"no address at all", func(p *intent.Port) { p.Addresses[0] = netip.Addr{} }, "one unicast address a family"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := good
			p.Addresses = slices.Clone(good.Addresses)
			tc.bad(&p)
			got, err := RenderPort(p, 1400)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error about the %s", err, tc.want)
			}
			if got.Ref != good.Ref() {
				t.Errorf("the failure is that of %v", got.Ref)
			}
		})
	}
}

func TestTwoPortsThatClaimTheSame(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		twin       func(p *intent.Port)
	}{
		{"address", "address 10.128.0.2 is already that of port a/eth0", func(p *intent.Port) { p.Addresses = []netip.Addr{addr("10.128.0.2")} }},
		{"host's end", "link flpa is already that of port a/eth0", func(p *intent.Port) { p.HostInterface = "flpa" }},
		{"interface", "interface eth0 in /run/netns/a is already that of port a/eth0", func(p *intent.Port) { p.Netns = "/run/netns/a" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, twin := example(), port("c", "10.128.0.3")
			tc.twin(&twin)
			n.Ports = append([]intent.Port{twin}, n.Ports...)
			s := RenderState(n)
			found := slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Ref == twin.Ref() && p.Text == tc.want })
			if len(s.Ports) != 2 || !found {
				t.Errorf("ports %v, problems %v; want %q", s.Ports, s.Problems, tc.want)
			}
		})
	}
}

// Whatever the intent: the kernel's longest match over the rendered routes leads
// where the longest match over the intent's routes does.
func TestRoutesLeadWhereTheIntentSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := intent.Node{
			Name: "n1", MTU: 1430, Underlay: []netip.Prefix{prefix("192.0.2.1/24")}, VPCs: []intent.VPC{{Name: "default", VNI: 1}},
			Peers:   []intent.Peer{{Name: "p1", Addrs: []netip.Addr{addr("192.0.2.2")}}, {Name: "p2", Addrs: []netip.Addr{addr("192.0.2.3")}}},
			Subnets: []intent.Subnet{{VPC: "default", Name: "s", Overlay: true, CIDRs: []netip.Prefix{prefix("10.0.0.0/24")}}},
		}
		for range rapid.IntRange(0, 12).Draw(t, "routes") {
			dst := netip.PrefixFrom(drawAddr(t), rapid.IntRange(24, 32).Draw(t, "bits")).Masked()
			if slices.ContainsFunc(n.Routes, func(r intent.Route) bool { return r.Dst == dst }) {
				continue
			}
			h := rapid.SampledFrom([]intent.NextHop{{Local: true}, {Peer: "p1"}, {Peer: "p2"}}).Draw(t, "hop")
			n.Routes = append(n.Routes, intent.Route{VPC: "default", Dst: dst, NextHop: h, Encapsulate: h.Peer != "" && rapid.Bool().Draw(t, "encapsulate")})
		}
		slices.SortFunc(n.Routes, intent.Route.Compare)
		for range rapid.IntRange(0, 3).Draw(t, "ports") {
			a := drawAddr(t)
			n.Ports = append(n.Ports, port(fmt.Sprintf("p%s", a), a.String()))
		}
		s := RenderState(n)
		for i := range 256 {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			if want, got := wanted(n, a), kernel(s, a); want != got {
				t.Fatalf("%s: the intent leads to %q, the kernel to %q\n%s", a, want, got, text(s))
			}
		}
	})
}

func drawAddr(t *rapid.T) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "address")})
}

// wanted reads the intent naively.
func wanted(n intent.Node, a netip.Addr) string {
	for _, p := range n.Ports {
		if slices.Contains(p.Addresses, a) {
			return p.HostInterface
		}
	}
	best := intent.Route{Dst: prefix("0.0.0.0/0"), NextHop: intent.NextHop{Peer: "subnet"}, Encapsulate: true}
	for _, r := range n.Routes {
		if r.Dst.Contains(a) && r.Dst.Bits() > best.Dst.Bits() {
			best = r
		}
	}
	switch {
	case best.NextHop.Local:
		return "unreachable"
	case best.Encapsulate:
		return claims.VXLANDevice
	case best.NextHop.Peer == "p1":
		return "192.0.2.2"
	}
	return "192.0.2.3"
}

// kernel is the kernel's choice: the longest prefix, then the lowest metric.
func kernel(s State, a netip.Addr) string {
	matching := slices.DeleteFunc(slices.Clone(s.Routes), func(r Route) bool { return !r.Dst.Contains(a) })
	if len(matching) == 0 {
		return "nowhere"
	}
	r := slices.MinFunc(matching, func(a, b Route) int {
		return cmp.Or(cmp.Compare(b.Dst.Bits(), a.Dst.Bits()), cmp.Compare(a.Metric, b.Metric))
	})
	switch {
	case len(r.Hops) == 0:
		return "unreachable"
	case r.Hops[0].Gateway.IsValid():
		return r.Hops[0].Gateway.String()
	}
	return r.Hops[0].Dev
}

// One route per Subnet, however many peers there are behind the tunnel.
func TestTunnelRoutesDoNotGrowWithPeers(t *testing.T) {
	n := example()
	before := len(RenderState(n).Routes)
	for i := range 1000 {
		name := fmt.Sprintf("peer%04d", i)
		n.Peers = append(n.Peers, intent.Peer{Name: name, Addrs: []netip.Addr{addr("198.51.100.9")}, Outer: addr("198.51.100.9")})
		n.Routes = append(n.Routes, intent.Route{
			VPC: "default", Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 129, byte(i >> 2), byte(i << 6)}), 26), NextHop: intent.NextHop{Peer: name}, Encapsulate: true,
		})
	}
	if after := len(RenderState(n).Routes); after != before {
		t.Errorf("%d routes with 1,000 more peers, want %d as before", after, before)
	}
}

func BenchmarkRenderState(b *testing.B) {
	n := example()
	for i := range 1000 {
		n.Routes = append(n.Routes, intent.Route{
			VPC: "default", Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 129, byte(i >> 2), byte(i << 6)}), 26), NextHop: intent.NextHop{Peer: "near"},
		})
	}
	for i := range 110 {
		n.Ports = append(n.Ports, port(fmt.Sprintf("x%d", i), fmt.Sprintf("10.128.9.%d", i)))
	}
	for b.Loop() {
		RenderState(n)
	}
}
