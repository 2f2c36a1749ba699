package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

// realNode is a node with an Open vSwitch, made so by programs.
type realNode struct {
	t    *testing.T
	ns   *netns.NS
	ovs  *ovstest.OVS
	pods map[string]*netns.NS
}

// run runs a program in a namespace, a line each.
func run(t *testing.T, ns *netns.NS, stdin string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		args := strings.Fields(line)
		var out bytes.Buffer
		err := ns.Do(func() error {
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
			return cmd.Run()
		})
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out.Bytes())
		}
	}
}

func newRealNode(t *testing.T) *realNode {
	ns := netnstest.New(t)
	run(t, ns, "", "ip link set lo up")
	return &realNode{t: t, ns: ns, ovs: ovstest.Start(t, ns), pods: map[string]*netns.NS{}}
}

// build makes everything that an intent asks for. The NIC "nic" is there.
func (r *realNode) build(n intent.Node) {
	r.t.Helper()
	host := RenderHost(n)
	for _, p := range n.Ports {
		pod := netnstest.New(r.t)
		r.pods[p.ID] = pod
		run(r.t, r.ns, "", fmt.Sprintf("ip link add %s type veth peer name eth0 netns %s", p.HostInterface, pod), "ip link set "+p.HostInterface+" up")
		run(r.t, pod, "", "ip link set lo up", "ip link set eth0 address "+p.MAC.String()+" mtu "+strconv.Itoa(n.MTU), "ip link set eth0 addrgenmode none", "ip link set eth0 up",
			"ethtool -K eth0 tx off", fmt.Sprintf("ip neigh replace 169.254.1.1 lladdr %s dev eth0 nud permanent", claims.GatewayMAC),
			fmt.Sprintf("ip neigh replace fe80::1 lladdr %s dev eth0 nud permanent", claims.GatewayMAC))
		for _, a := range p.Addresses {
			run(r.t, pod, "", fmt.Sprintf("ip addr add %s dev eth0 nodad", netip.PrefixFrom(a, a.BitLen())), fmt.Sprintf("ip route replace default via %s dev eth0 onlink", map[bool]netip.Addr{true: claims.Gateway4, false: claims.Gateway6}[a.Is4()]))
		}
	}
	// The NIC stays the host's, and its bridge bears its addresses a second time.
	mac := fmt.Sprintf("02:00:00:00:00:%02x", n.Underlay[0].Addr().AsSlice()[3])
	var args []string
	for _, b := range RenderBridges(n, Switch{Datapath: Netdev, Uplink: "nic"}) {
		args = append(args, "--", "add-br", b.Name, "--", "set", "bridge", b.Name, "datapath_type="+b.Datapath, "fail_mode="+b.FailMode)
		if b.Name == claims.OVSUnderlayBridge {
			args = append(args, "other-config:hwaddr="+mac)
		}
		for _, p := range b.Ports {
			args = append(args, "--", "add-port", b.Name, p.Name)
			if p.Type != "" {
				args = append(args, "--", "set", "interface", p.Name, "type="+p.Type, fmt.Sprintf("ofport_request=%d", p.Number))
			}
			if p.MTU != 0 {
				args = append(args, "--", "set", "interface", p.Name, fmt.Sprintf("mtu_request=%d", p.MTU))
			}
			for k, v := range p.Options {
				args = append(args, "--", "set", "interface", p.Name, "options:"+k+"="+v)
			}
		}
	}
	run(r.t, r.ns, "", "ip link set nic address "+mac)
	r.ovs.Run("ovs-vsctl", args[1:]...)
	run(r.t, r.ns, "", "ip link set "+claims.OVSUnderlayBridge+" arp off up", "ip link set nic up", "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
		fmt.Sprintf("ip link set %s address %s", claims.OVSHostPort, host.Gateway.MAC), "ip link set "+claims.OVSHostPort+" addrgenmode none", "ip link set "+claims.OVSHostPort+" up")
	for _, u := range n.Underlay {
		run(r.t, r.ns, "", fmt.Sprintf("ip addr add %s dev nic", u), fmt.Sprintf("ip addr add %s dev %s noprefixroute", u, claims.OVSUnderlayBridge))
	}
	for _, a := range host.Gateway.Addresses {
		run(r.t, r.ns, "", fmt.Sprintf("ip addr add %s dev %s nodad", netip.PrefixFrom(a.Addr, a.Addr.BitLen()), claims.OVSHostPort))
	}
	for _, x := range host.Gateway.Neighbours {
		run(r.t, r.ns, "", fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", x.Addr, x.MAC, claims.OVSHostPort))
	}
	for _, route := range host.Routes {
		run(r.t, r.ns, "", fmt.Sprintf("ip route add %s via %s dev %s onlink src %s", route.Dst, route.Hops[0].Gateway, route.Hops[0].Dev, route.Src))
	}
	for _, peer := range n.Peers {
		// The switch learns of the bridge's address by itself, a moment later.
		for deadline := time.Now().Add(10 * time.Second); ; {
			out, err := r.ovs.Try(nil, "ovs-appctl", "ovs/route/add", netip.PrefixFrom(peer.Outer, peer.Outer.BitLen()).String(), claims.OVSUnderlayBridge)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				r.t.Fatalf("ovs/route/add: %v\n%s", err, out)
			}
		}
	}
	table := RenderTable(n, Switch{Datapath: Netdev, Uplink: "nic"})
	if err := table.Validate(); err != nil {
		r.t.Fatal(err)
	}
	run(r.t, r.ns, table.String(), "nft -f -")
	r.flows(n)
}

// flows replaces the flows by those of an intent.
func (r *realNode) flows(n intent.Node) {
	r.t.Helper()
	numbers := Numbers{}
	for _, name := range append([]string{claims.OVSHostPort, claims.OVSTunnelPort}, slices.Collect(hostInterfaces(n))...) {
		number, err := strconv.Atoi(strings.TrimSpace(r.ovs.Run("ovs-vsctl", "get", "interface", name, "ofport")))
		if err != nil {
			r.t.Fatalf("port %s: %v", name, err)
		}
		numbers[name] = of.Port(number)
	}
	p := Render(n, numbers, Options{})
	if len(p.Problems) > 0 {
		r.t.Fatal(p.Problems)
	}
	if out, err := r.ovs.Try([]byte(of.Text(p.Flows())), "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "replace-flows", claims.OVSBridge, "-"); err != nil {
		r.t.Fatalf("ovs-ofctl: %v\n%s", err, out)
	}
}

func hostInterfaces(n intent.Node) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, p := range n.Ports {
			if !yield(p.HostInterface) {
				return
			}
		}
	}
}

// twoNodes are intents of two nodes: a and b on the first, c on the second, which takes
// from a only what is for TCP port 80.
func twoNodes() (first, second intent.Node) {
	first = single()
	first.Peers = []intent.Peer{{Name: "n2", Addrs: addrs("172.30.0.12"), VTEPMAC: packet.VTEPMAC("n2"), Outer: addrs("172.30.0.12")[0]}}
	second = single()
	second.Name, second.Underlay, second.VTEPMAC = "n2", prefixes("172.30.0.12/24"), packet.VTEPMAC("n2")
	second.Peers = []intent.Peer{{Name: "n1", Addrs: addrs("172.30.0.11"), VTEPMAC: packet.VTEPMAC("n1"), Outer: addrs("172.30.0.11")[0]}}
	second.Tunnels = []intent.TunnelAddress{{VPC: "default", Subnet: "pods", Addr: addrs("10.1.0.65")[0]}, {VPC: "default", Subnet: "pods", Addr: addrs("fd01::41")[0]}}
	second.Ports = []intent.Port{pod("c", "default", 10, "10.1.0.66", "fd01::42")}
	for _, ends := range []struct {
		n     *intent.Node
		here  []netip.Prefix
		there []netip.Prefix
		peer  string
	}{
		{&first, prefixes("10.1.0.0/26", "fd01::/122"), prefixes("10.1.0.64/26", "fd01::40/122"), "n2"},
		{&second, prefixes("10.1.0.64/26", "fd01::40/122"), prefixes("10.1.0.0/26", "fd01::/122"), "n1"},
	} {
		ends.n.Routes = nil
		for i := range ends.here {
			ends.n.Routes = append(ends.n.Routes, intent.Route{VPC: "default", Dst: ends.here[i], NextHop: intent.NextHop{Local: true}},
				intent.Route{VPC: "default", Dst: ends.there[i], NextHop: intent.NextHop{Peer: ends.peer}, Encapsulate: true})
		}
	}
	return sorted(first), withLists(second, []intent.AddressSet{{VPC: "default", Name: "a", Prefixes: prefixes("10.1.0.5/32", "fd01::5/128")}}, []intent.Rule{
		{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"a"}, Protocol: packet.TCP, Ports: ports(80, 80)}, Origin: origin("c", 0)},
		{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"a"}, Protocol: packet.UDP, Ports: ports(81, 81)}, Origin: origin("c", 1)},
		{Tier: intent.TierNetworkPolicy, Action: intent.Deny, Origin: origin("c", -1)},
	}, nil)
}

// TestTraffic sends real packets between pods of two nodes, the nodes, and from a pod to
// what is outside for it.
func TestTraffic(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two switches")
	}
	for _, program := range []string{"ip", "nft", "ethtool", "sysctl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	one, two := newRealNode(t), newRealNode(t)
	run(t, one.ns, "", fmt.Sprintf("ip link add nic type veth peer name nic netns %s", two.ns), "ethtool -K nic tx off")
	run(t, two.ns, "", "ethtool -K nic tx off")
	first, second := twoNodes()
	one.build(first)
	two.build(second)
	a, b, c := one.pods["a/eth0"], one.pods["b/eth0"], two.pods["c/eth0"]
	for _, ns := range []*netns.NS{a, b, c, one.ns, two.ns} {
		netnstest.Serve(t, ns, 80)
		netnstest.Serve(t, ns, 81)
	}
	for _, test := range []struct {
		name    string
		from    *netns.NS
		network string
		to      string
		allowed bool
	}{
		{"same node", a, "tcp", "10.1.0.6:80", true},
		{"same node", a, "udp", "10.1.0.6:80", true},
		{"same node", a, "tcp", "[fd01::6]:80", true},
		{"other node", a, "tcp", "10.1.0.66:80", true},
		{"other node", a, "tcp", "[fd01::42]:80", true},
		{"other node, denied port", a, "tcp", "10.1.0.66:81", false},
		{"other node, denied protocol", a, "udp", "10.1.0.66:80", false},
		{"other node, denied peer", b, "tcp", "10.1.0.66:80", false},
		{"other node, denied peer", b, "tcp", "[fd01::42]:80", false},
		{"back", c, "tcp", "10.1.0.5:80", true},
		{"back", c, "udp", "[fd01::5]:80", true},
		{"node to its pod", one.ns, "tcp", "10.1.0.5:80", true},
		{"node to its pod", one.ns, "tcp", "[fd01::5]:80", true},
		{"node to its pod that denies", two.ns, "tcp", "10.1.0.66:81", true},
		{"node to a pod elsewhere", two.ns, "tcp", "10.1.0.5:80", true},
		{"node to a pod elsewhere", two.ns, "udp", "[fd01::5]:80", true},
		{"node to a pod elsewhere that denies", one.ns, "tcp", "10.1.0.66:80", false},
		{"node to another node's own address", one.ns, "tcp", "10.1.0.65:80", true},
		{"node to another node's own address", two.ns, "udp", "[fd01::1]:80", true},
		{"node to its own address", one.ns, "tcp", "10.1.0.1:80", true},
		{"pod to its node", a, "tcp", "172.30.0.11:80", true},
		{"pod to its node's own address", a, "tcp", "10.1.0.1:80", true},
		{"pod to its node's own address", a, "tcp", "[fd01::1]:80", true},
		{"pod to another node's own address", a, "tcp", "10.1.0.65:80", true},
		{"pod to the outside", a, "tcp", "172.30.0.12:80", true},
		{"pod to the outside", a, "udp", "172.30.0.12:80", true},
	} {
		t.Run(fmt.Sprintf("%s %s %s", test.name, test.network, test.to), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := netnstest.Probe(ctx, test.from, test.network, netip.MustParseAddrPort(test.to))
			if (err == nil) != test.allowed {
				t.Errorf("%v, want it allowed: %v", err, test.allowed)
			}
		})
	}
	for _, test := range []struct {
		name     string
		from, to *netns.NS
		addr     string
	}{
		{"closed port here", a, b, "10.1.0.6:9"},
		{"closed port here", a, b, "[fd01::6]:9"},
		{"closed port elsewhere", c, a, "10.1.0.5:9"},
		{"closed port elsewhere", c, a, "[fd01::5]:9"},
	} {
		_, err := netnstest.Probe(t.Context(), test.from, "udp", netip.MustParseAddrPort(test.addr))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %s: %v, want the pod's ICMP error", test.name, test.addr, err)
		}
	}
	for _, test := range []struct {
		to             string
		whole, allowed bool
	}{
		{"10.1.0.6:81", false, true},
		{"[fd01::6]:81", false, true},
		// No fragment shows its port; connection tracking knows it.
		{"10.1.0.66:81", false, true},
		{"[fd01::42]:81", false, true},
		{"10.1.0.66:80", false, false},
		{"[fd01::42]:80", false, false},
		{"10.1.0.66:81", true, true},
		{"[fd01::42]:81", true, true},
	} {
		if err := fragmented(a, test.to, test.whole); (err == nil) != test.allowed {
			t.Errorf("a datagram in fragments to %s, behind a whole one %v: %v", test.to, test.whole, err)
		}
	}
	// The permanent neighbour is gone: the bridge answers.
	run(t, a, "", "ip neigh del 169.254.1.1 dev eth0", "ip neigh del fe80::1 dev eth0")
	for _, to := range []string{"10.1.0.6:80", "[fd01::6]:80"} {
		if _, err := netnstest.Probe(t.Context(), a, "tcp", netip.MustParseAddrPort(to)); err != nil {
			t.Errorf("without a permanent neighbour: %s: %v", to, err)
		}
	}
}

// fragmented sends a datagram that does not fit into one packet, behind one that does if
// whole is set, and waits for them to come back.
func fragmented(from *netns.NS, to string, whole bool) error {
	var conn net.Conn
	if err := from.Do(func() (err error) {
		conn, err = net.Dial("udp", to)
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	sizes := []int{1900}
	if whole {
		sizes = []int{100, 1900}
	}
	for _, size := range sizes {
		_ = conn.SetDeadline(time.Now().Add(netnstest.Patience))
		if _, err := conn.Write(make([]byte, size)); err != nil {
			return err
		}
		n, err := conn.Read(make([]byte, 2000))
		if err != nil {
			return err
		}
		if n != size {
			return fmt.Errorf("%d bytes came back of %d", n, size)
		}
	}
	return nil
}
