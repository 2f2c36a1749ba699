package oracle

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// smallWorld: two nodes in one segment, a dual-stack overlay Subnet, pods a and b on
// n1, c on n2, a finished one on n2, and one in n2's host network.
func smallWorld() *world.Snapshot {
	var changes []world.Change
	set := func(kind world.Kind, key world.Key, object any) {
		changes = append(changes, world.Change{Kind: kind, Key: key, Object: object})
	}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	set(world.KindVPC, world.Key{Name: "default"}, &world.VPC{Name: "default", VNI: 1})
	set(world.KindNamespace, world.Key{Name: "ns"}, &world.Namespace{Name: "ns"})
	set(world.KindSubnet, world.Key{Name: "s"}, &world.Subnet{
		Name: "s", VPC: "default", NATOutgoing: true, CIDRs: []netip.Prefix{prefix("10.128.0.0/24"), prefix("fd10::/64")},
	})
	for _, n := range []world.NodeNetwork{
		{Name: "n1", Addresses: []netip.Prefix{prefix("172.30.0.11/24")}},
		{Name: "n2", Addresses: []netip.Prefix{prefix("172.30.0.12/24")}, Borrowed: []world.Allocation{
			{Addr: addr("10.128.0.4"), Owner: world.Owner{Namespace: "ns", Name: "borrower"}},
			{Addr: addr("10.128.0.6"), Owner: world.Owner{Namespace: "ns", Name: "thief"}}, // Nobody lent it.
		}},
	} {
		set(world.KindNode, world.Key{Name: n.Name}, &world.Node{Name: n.Name})
		set(world.KindNodeNetwork, world.Key{Name: n.Name}, &n)
	}
	owner := func(name string) world.Owner { return world.Owner{Namespace: "ns", Name: name, UID: name} }
	for _, b := range []world.Block{
		{Name: "b1", Subnet: "s", Node: "n1", CIDR: prefix("10.128.0.0/28"), Allocations: []world.Allocation{
			{Addr: addr("10.128.0.1"), Owner: world.Owner{Name: "node/n1/tunnel"}},
			{Addr: addr("10.128.0.2"), Owner: owner("a")},
			{Addr: addr("10.128.0.3"), Owner: owner("b")},
			{Addr: addr("10.128.0.4"), Owner: owner("b")}, // Lent: b does not have it any more.
		}, Lent: []world.Loan{{Addr: addr("10.128.0.4"), Node: "n2"}, {Addr: addr("10.128.0.5"), Node: "n2"}}},
		{Name: "b2", Subnet: "s", Node: "n2", CIDR: prefix("10.128.0.16/28"), Allocations: []world.Allocation{
			{Addr: addr("10.128.0.17"), Owner: world.Owner{Name: "node/n2/tunnel"}},
			{Addr: addr("10.128.0.18"), Owner: owner("c")},
			{Addr: addr("10.128.0.19"), Owner: owner("done")},
			{Addr: addr("10.128.0.20"), Owner: world.Owner{Namespace: "ns", Name: "c", UID: "before"}},
		}},
		{Name: "b3", Subnet: "s", Node: "n1", CIDR: prefix("fd10::/124"), Allocations: []world.Allocation{{Addr: addr("fd10::2"), Owner: owner("a")}}},
	} {
		set(world.KindBlock, world.Key{Name: b.Name}, &b)
	}
	ports := []world.ContainerPort{{Protocol: packet.TCP, Port: 80}, {Protocol: packet.UDP, Port: 53}}
	for _, p := range []world.Pod{
		{Name: "a", Node: "n1"},
		{Name: "b", Node: "n1"},
		{Name: "c", Node: "n2"},
		{Name: "done", Node: "n2", Finished: true},
		{Name: "host", Node: "n2", HostNetwork: true},
		{Name: "late", Node: "n2", Addresses: []netip.Addr{addr("10.128.0.30")}}, // Its block does not say so yet.
		{Name: "astray", Node: "n1", Addresses: []netip.Addr{addr("10.128.0.29")}},
	} {
		p.Namespace, p.UID, p.Ports = "ns", p.Name, ports
		set(world.KindPod, world.Key{Namespace: "ns", Name: p.Name}, &p)
	}
	return world.NewStore(nil).Apply(changes...)
}

func pod(name, node string) Place {
	return Place{Kind: Pod, Node: node, Pod: world.Key{Namespace: "ns", Name: name}}
}

// parse reads "SRC:PORT > DST:PORT".
func parse(t *testing.T, proto packet.Protocol, s string) packet.Packet {
	t.Helper()
	from, to, _ := strings.Cut(s, " > ")
	src, err1 := netip.ParseAddrPort(from)
	dst, err2 := netip.ParseAddrPort(to)
	if err1 != nil || err2 != nil {
		t.Fatalf("%q is no packet: %v %v", s, err1, err2)
	}
	return packet.Packet{Src: src.Addr(), SrcPort: src.Port(), Dst: dst.Addr(), DstPort: dst.Port(), Protocol: proto}
}

func TestProbes(t *testing.T) {
	snap := smallWorld()
	for _, tt := range []struct {
		name, from, to string
		proto          packet.Protocol
		port           uint16
		family         Family
		want           bool
		why            string // part of the last stage's reason
	}{
		{"same node", "a", "b", packet.TCP, 80, IPv4, true, "delivered to pod ns/b on n1"},
		{"across nodes", "a", "c", packet.UDP, 53, IPv4, true, "delivered to pod ns/c on n2 as 10.128.0.2:49152"},
		{"port not declared", "a", "c", packet.TCP, 81, IPv4, false, "does not listen"},
		{"protocol not declared", "a", "c", packet.UDP, 80, IPv4, false, "does not listen"},
		{"no such family", "a", "c", packet.TCP, 80, IPv6, false, "ns/c is not known, or has no address"},
		{"itself, IPv6", "a", "a", packet.TCP, 80, IPv6, true, "fd10::2"},
		{"finished", "a", "done", packet.TCP, 80, IPv4, false, "has finished"},
		{"into the host's network", "a", "host", packet.TCP, 80, IPv4, true, "delivered to node n2 as 172.30.0.11:49152"},
		{"from the host's network", "host", "a", packet.TCP, 80, IPv4, true, "delivered to pod ns/a on n1 as 10.128.0.17:49152"},
		{"from the host's network, same node", "host", "c", packet.TCP, 80, IPv4, true, "delivered to pod ns/c on n2 as 172.30.0.12:49152"},
		{"known by its status alone", "a", "late", packet.TCP, 80, IPv4, true, "delivered to pod ns/late on n2"},
		{"a status of another node's block", "a", "astray", packet.TCP, 80, IPv4, false, "ns/astray is not known"},
		{"unknown", "a", "nobody", packet.TCP, 80, IPv4, false, "ns/nobody is not known"},
		{"from unknown", "nobody", "a", packet.TCP, 80, IPv4, false, "ns/nobody is not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := func(name string) world.Key { return world.Key{Namespace: "ns", Name: name} }
			v := JudgeProbe(snap, key(tt.from), key(tt.to), tt.proto, tt.port, tt.family)
			if v.Allowed != tt.want || !strings.Contains(v.Why(), tt.why) {
				t.Errorf("allowed %v because %q; want %v because %q", v.Allowed, v.Why(), tt.want, tt.why)
			}
		})
	}
}

func TestPackets(t *testing.T) {
	m := Read(smallWorld())
	for _, tt := range []struct {
		name   string
		from   Place
		packet string
		want   string // the first outcome, or the stage that cuts
	}{
		{"outside, masqueraded", pod("a", "n1"), "10.128.0.2:1000 > 203.0.113.1:80", "delivered to outside via n1 as 172.30.0.11:1000 > 203.0.113.1:80/UDP"},
		{"own node, unchanged", pod("a", "n1"), "10.128.0.2:1000 > 172.30.0.11:80", "delivered to node n1 as 10.128.0.2:1000 > 172.30.0.11:80/UDP"},
		{"own node's tunnel address", pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.1:80", "delivered to node n1 as 10.128.0.2:1000 > 10.128.0.1:80/UDP"},
		{"other node's tunnel address", pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.17:80", "delivered to node n2 as 10.128.0.2:1000 > 10.128.0.17:80/UDP"},
		{"lent address", pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.4:80", "delivered to pod ns/borrower on n2 as 10.128.0.2:1000 > 10.128.0.4:80/UDP"},
		{"lent address, not said who", pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.5:80", "destination"},
		{"borrowed without a loan", pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.6:80", "destination"},
		{"from an address that was lent away", pod("b", "n1"), "10.128.0.4:1000 > 10.128.0.2:80", "source"},
		{"spoofed pod", pod("a", "n1"), "10.128.0.3:1000 > 10.128.0.18:80", "source"},
		{"spoofed outside", pod("a", "n1"), "203.0.113.1:1000 > 10.128.0.18:80", "source"},
		{"spoofed loopback", pod("a", "n1"), "127.0.0.1:1000 > 10.128.0.18:80", "source"},
		{"a node with another node's address", Place{Kind: Node, Node: "n1"}, "172.30.0.12:1000 > 10.128.0.18:80", "source"},
		{"two families", pod("a", "n1"), "[fd10::2]:1000 > 10.128.0.18:80", "source"},
		{"nobody's address", pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.99:80", "destination"},
		{"loopback", pod("a", "n1"), "10.128.0.2:1000 > 127.0.0.1:80", "destination"},
		{"the gateway", pod("a", "n1"), "10.128.0.2:1000 > 169.254.1.1:80", "destination"},
		{"IPv6 outside, the node has none", pod("a", "n1"), "[fd10::2]:1000 > [2001:db8::1]:80", "nat"},
		{"a pod of before, same name", pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.20:80", "delivered to pod ns/c on n2 as 10.128.0.2:1000 > 10.128.0.20:80/UDP"},
		{"node to outside", Place{Kind: Node, Node: "n1"}, "172.30.0.11:1000 > 203.0.113.1:80", "delivered to outside via n1 as 172.30.0.11:1000 > 203.0.113.1:80/UDP"},
		{"node to node", Place{Kind: Node, Node: "n1"}, "172.30.0.11:1000 > 172.30.0.12:80", "delivered to node n2 as 172.30.0.11:1000 > 172.30.0.12:80/UDP"},
		{"outside to pod", Place{Kind: Outside, Node: "n1"}, "203.0.113.1:1000 > 10.128.0.2:80", "delivered to pod ns/a on n1 as 203.0.113.1:1000 > 10.128.0.2:80/UDP"},
		{"outside to pod by another node", Place{Kind: Outside, Node: "n1"}, "203.0.113.1:1000 > 10.128.0.18:80", "delivered to pod ns/c on n2 as 10.128.0.1:1000 > 10.128.0.18:80/UDP"},
		{"outside with a pod's address", Place{Kind: Outside, Node: "n1"}, "10.128.0.18:1000 > 10.128.0.2:80", "source"},
		{"outside with a node's address", Place{Kind: Outside, Node: "n1"}, "172.30.0.12:1000 > 10.128.0.2:80", "source"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := m.Judge(nil, Probe{From: tt.from, Packet: parse(t, packet.UDP, tt.packet)})
			got := v.Outcomes[0].String()
			if !v.Allowed {
				got = v.Stages[len(v.Stages)-1].Name
			}
			if got != tt.want {
				t.Errorf("got %s, want %s; stages %v", got, tt.want, v.Stages)
			}
		})
	}
}

// What is wrong with an address is told of that address.
func TestAddressesThatNobodyHas(t *testing.T) {
	m := Read(smallWorld())
	for _, tt := range []struct {
		from         Place
		packet, want string
	}{
		{Place{Kind: Outside}, "0.0.0.0:1000 > 10.128.0.2:80", "0.0.0.0 is no address of one machine on a network"},
		{Place{Kind: Outside}, "[ff02::1]:1000 > [fd10::2]:80", "ff02::1 is no address of one machine on a network"},
		{Place{Kind: Outside}, "[2001:db8::1]:1000 > 10.128.0.2:80", "2001:db8::1 and 10.128.0.2 are not two addresses of one family"},
		{pod("a", "n1"), "10.128.0.2:1000 > 255.255.255.255:80", "255.255.255.255 is no address of one machine on a network"},
		{pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.99:80", "10.128.0.99 lies in Subnet s, and nobody has it"},
		{pod("a", "n1"), "10.128.0.2:1000 > 10.128.0.5:80", "10.128.0.5 lies in Subnet s, and nobody has it"},
	} {
		if v := m.Judge(nil, Probe{From: tt.from, Packet: parse(t, packet.UDP, tt.packet)}); v.Allowed || v.Why() != tt.want {
			t.Errorf("%s: %q, want %q", tt.packet, v.Why(), tt.want)
		}
	}
}

func TestFlows(t *testing.T) {
	m := Read(smallWorld())
	out := Probe{From: pod("a", "n1"), Packet: parse(t, packet.TCP, "10.128.0.2:1000 > 203.0.113.1:80")}
	out.Packet.SYN = true
	across := Probe{From: pod("a", "n1"), Packet: parse(t, packet.TCP, "10.128.0.2:1000 > 10.128.0.18:80")}
	across.Packet.SYN = true
	var flows Flows
	for _, p := range []Probe{out, across} {
		v := m.Judge(&flows, p)
		o := v.Outcomes[0]
		if o.AnySrcPort {
			o.Packet.SrcPort = 55555 // The kernel's choice.
		}
		flows.Begin(p, o)
	}
	outside := Place{Kind: Outside}
	quote := parse(t, packet.TCP, "172.30.0.11:55555 > 203.0.113.1:80")
	for _, tt := range []struct {
		name     string
		from     Place
		proto    packet.Protocol
		packet   string
		embedded *packet.Packet
		want     string
	}{
		{"answer from outside", outside, packet.TCP, "203.0.113.1:80 > 172.30.0.11:55555", nil, "delivered to pod ns/a on n1 as 203.0.113.1:80 > 10.128.0.2:1000/TCP"},
		{"answer to a port that nobody masquerades", outside, packet.TCP, "203.0.113.1:80 > 172.30.0.11:55556", nil, "delivered to node n1 as 203.0.113.1:80 > 172.30.0.11:55556/TCP"},
		{"answer from a pod", pod("c", "n2"), packet.TCP, "10.128.0.18:80 > 10.128.0.2:1000", nil, "delivered to pod ns/a on n1 as 10.128.0.18:80 > 10.128.0.2:1000/TCP"},
		{"the flow goes on", pod("a", "n1"), packet.TCP, "10.128.0.2:1000 > 10.128.0.18:80", nil, "delivered to pod ns/c on n2 as 10.128.0.2:1000 > 10.128.0.18:80/TCP"},
		{"middle of a flow that nobody knows", pod("a", "n1"), packet.TCP, "10.128.0.2:1001 > 10.128.0.18:80", nil, "flow"},
		{"from outside, in the middle", Place{Kind: Outside, Node: "n1"}, packet.TCP, "203.0.113.9:1 > 10.128.0.2:80", nil, "flow"},
		{"own node, in the middle", Place{Kind: Node, Node: "n1"}, packet.TCP, "172.30.0.11:1 > 10.128.0.2:80", nil, "delivered to pod ns/a on n1 as 172.30.0.11:1 > 10.128.0.2:80/TCP"},
		{"another node, in the middle", Place{Kind: Node, Node: "n2"}, packet.TCP, "10.128.0.17:1 > 10.128.0.2:80", nil, "flow"},
		{"error of a router about a masqueraded flow", outside, packet.ICMP, "198.51.100.1:0 > 172.30.0.11:0", &quote, "delivered to pod ns/a on n1 as 198.51.100.1:0 > 10.128.0.2:0/ICMP"},
		{"error with a forged quote", outside, packet.ICMP, "198.51.100.1:0 > 172.30.0.11:0", new(parse(t, packet.TCP, "172.30.0.11:1 > 203.0.113.1:80")), "flow"},
		{"error to another than the quoted sender", outside, packet.ICMP, "198.51.100.1:0 > 172.30.0.12:0", &quote, "flow"},
		{"error that is none", outside, packet.UDP, "198.51.100.1:0 > 172.30.0.11:0", &quote, "flow"},
		{"error of the receiver", pod("c", "n2"), packet.ICMP, "10.128.0.18:0 > 10.128.0.2:0", new(parse(t, packet.TCP, "10.128.0.2:1000 > 10.128.0.18:80")), "delivered to pod ns/a on n1 as 10.128.0.18:0 > 10.128.0.2:0/ICMP"},
		{"error of the sender", pod("a", "n1"), packet.ICMP, "10.128.0.2:0 > 10.128.0.18:0", new(parse(t, packet.TCP, "10.128.0.18:80 > 10.128.0.2:1000")), "delivered to pod ns/c on n2 as 10.128.0.2:0 > 10.128.0.18:0/ICMP"},
		{"error of a bystander", pod("b", "n1"), packet.ICMP, "10.128.0.3:0 > 10.128.0.2:0", new(parse(t, packet.TCP, "10.128.0.2:1000 > 10.128.0.18:80")), "flow"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := m.Judge(&flows, Probe{From: tt.from, Packet: parse(t, tt.proto, tt.packet), Embedded: tt.embedded})
			got := v.Outcomes[0].String()
			if !v.Allowed {
				got = v.Stages[len(v.Stages)-1].Name
			}
			if got != tt.want {
				t.Errorf("got %s, want %s; stages %v", got, tt.want, v.Stages)
			}
		})
	}
}

func TestAdoptionTakesTheMiddleOfFlows(t *testing.T) {
	p := Probe{From: pod("a", "n1"), Packet: parse(t, packet.TCP, "10.128.0.2:1001 > 10.128.0.18:80")}
	if v := Judge(smallWorld(), &Flows{Adopting: true}, p); !v.Allowed {
		t.Errorf("while flows are adopted: %v", v.Stages)
	}
}

// TestAnswersEndWithTheFlow moves the tenants apart under an established flow.
func TestAnswersEndWithTheFlow(t *testing.T) {
	snap := smallWorld()
	p := Probe{From: pod("a", "n1"), Packet: parse(t, packet.UDP, "10.128.0.2:1 > 10.128.0.18:2")}
	var flows Flows
	flows.Begin(p, Judge(snap, nil, p).Outcomes[0])
	answer := Probe{From: pod("c", "n2"), Packet: p.Packet.Reverse()}
	if v := Judge(snap, &flows, answer); !v.Allowed {
		t.Fatalf("the answer is refused: %v", v.Stages)
	}
	isolated := world.NewStore(snap).Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: "default"}, Object: &world.VPC{Name: "default", VNI: 1, Tenant: true}})
	if v := Judge(isolated, &flows, answer); v.Allowed || !v.Permits(Outcome{Dropped: true}) {
		t.Errorf("the answer of a flow that is cut is allowed: %v", v.Stages)
	}
}

func TestPermits(t *testing.T) {
	p := packet.Packet{Src: netip.MustParseAddr("10.0.0.1"), SrcPort: 1}
	v := Verdict{Outcomes: []Outcome{{At: Place{Kind: Outside, Node: "n1"}, Packet: p, AnySrcPort: true}}}
	other := p
	other.SrcPort = 9
	if !v.Permits(Outcome{At: Place{Kind: Outside, Node: "n2"}, Packet: other}) {
		t.Error("another source port, or another way out, is not permitted")
	}
	if v.Permits(Outcome{At: Place{Kind: Node, Node: "n1"}, Packet: p}) || v.Permits(Outcome{Dropped: true}) {
		t.Error("another place, or a drop, is permitted")
	}
	v.Outcomes[0].AnySrcPort = false
	if v.Permits(Outcome{At: Place{Kind: Outside}, Packet: other}) {
		t.Error("another source port is permitted without masquerading")
	}
}

func BenchmarkRead(b *testing.B) {
	snap := smallWorld()
	for b.Loop() {
		Read(snap)
	}
}

// What no single machine has does not leave its link.
func TestNoDestinationOfOneMachine(t *testing.T) {
	m := Read(smallWorld())
	for _, to := range []string{"224.0.0.251:5353", "240.0.0.1:80", "255.255.255.255:67", "169.254.1.1:80", "127.0.0.1:80", "0.0.0.0:80", "[ff02::fb]:5353", "[fe80::1]:80", "[::1]:80"} {
		from := "10.128.0.2:1 > "
		if strings.HasPrefix(to, "[") {
			from = "[fd10::2]:1 > "
		}
		v := m.Judge(nil, Probe{From: pod("a", "n1"), Packet: parse(t, packet.UDP, from+to)})
		if last := v.Stages[len(v.Stages)-1]; v.Allowed || last.Name != "destination" {
			t.Errorf("%s: allowed %t, ends at %s", to, v.Allowed, last)
		}
	}
}

func TestVNI(t *testing.T) {
	vpc := func(isolates bool) *Model {
		v := world.Change{Kind: world.KindVPC, Key: world.Key{Name: "default"}, Object: &world.VPC{Name: "default", VNI: 1, Tenant: isolates}}
		room := world.Change{Kind: world.KindNetNamespace, Key: world.Key{Name: "ns"}, Object: &world.NetNamespace{Name: "ns", VNI: 7}}
		return Read(world.NewStore(smallWorld()).Apply(v, room))
	}
	fromPod, fromNode := pod("a", "n1"), Place{Kind: Node, Node: "n1"}
	for _, tt := range []struct {
		name, packet string
		from         Place
		isolates     bool
		want         packet.VNI
	}{
		{"a tenant's", "10.128.0.2:1 > 10.128.0.18:80", fromPod, true, 7},
		{"no isolation", "10.128.0.2:1 > 10.128.0.18:80", fromPod, false, 1},
		{"a tenant's, to the outside", "10.128.0.2:1 > 8.8.8.8:80", fromPod, true, 7},
		{"a node's", "172.30.0.11:1 > 10.128.0.18:80", fromNode, true, 1},
		{"none", "172.30.0.11:1 > 8.8.8.8:80", fromNode, true, 0},
	} {
		if got := vpc(tt.isolates).VNI(Probe{From: tt.from, Packet: parse(t, packet.TCP, tt.packet)}); got != tt.want {
			t.Errorf("%s: VNI %d, want %d", tt.name, got, tt.want)
		}
	}
}
