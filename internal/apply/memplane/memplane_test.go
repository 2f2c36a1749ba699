package memplane

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// node returns n1's intent, or n2's: one VPC with two tenants, a port of each on
// each node (10.128.0.N2 and 10.128.0.N3).
func node(name string) intent.Node {
	own, other := "172.30.0.11", "172.30.0.12"
	block, there, tunnel := "10.128.0.0/28", "10.128.0.16/28", "10.128.0.1"
	ports := []string{"10.128.0.2", "10.128.0.3"}
	peer := "n2"
	if name == "n2" {
		own, other, block, there, tunnel, peer = other, own, there, block, "10.128.0.17", "n1"
		ports = []string{"10.128.0.18", "10.128.0.19"}
	}
	n := intent.Node{
		Name: name, MTU: 1450, Underlay: []netip.Prefix{prefix(own + "/24")}, VTEPMAC: packet.VTEPMAC(name),
		VPCs:    []intent.VPC{{Name: "default", VNI: 1, Tenants: []packet.VNI{10, 11}}, {Name: "red", VNI: 2}},
		Subnets: []intent.Subnet{{VPC: "default", Name: "s", CIDRs: []netip.Prefix{prefix("10.128.0.0/24")}, Overlay: true}},
		Peers:   []intent.Peer{{Name: peer, Addrs: []netip.Addr{addr(other)}, Outer: addr(other), VTEPMAC: packet.VTEPMAC(peer)}},
		Routes: []intent.Route{
			{VPC: "default", Dst: prefix(block), NextHop: intent.NextHop{Local: true}},
			{VPC: "default", Dst: prefix(there), NextHop: intent.NextHop{Peer: peer}, Encapsulate: true},
		},
		Tunnels:     []intent.TunnelAddress{{VPC: "default", Subnet: "s", Addr: addr(tunnel)}},
		NATs:        []intent.NAT{{VPC: "default", Name: "s", Sources: []netip.Prefix{prefix("10.128.0.0/24")}, Except: intent.SetSubnets}},
		AddressSets: []intent.AddressSet{{VPC: "default", Name: intent.SetSubnets, Prefixes: []netip.Prefix{prefix("10.128.0.0/24")}}},
	}
	if name == "n2" {
		n.Routes[0], n.Routes[1] = n.Routes[1], n.Routes[0]
	}
	for i, a := range ports {
		n.Ports = append(n.Ports, intent.Port{
			ID: a, VPC: "default", VNI: packet.VNI(10 + i), HostInterface: "flp" + a, MAC: packet.PodMAC("default", addr(a)), Addresses: []netip.Addr{addr(a)},
		})
	}
	return n
}

func applied(t *testing.T) *Fabric {
	t.Helper()
	f := NewFabric()
	for _, name := range []string{"n1", "n2"} {
		n := node(name)
		if faults := intent.Validate(n); len(faults) > 0 {
			t.Fatalf("the test's intent is invalid: %v", faults)
		}
		if _, err := f.Node(name).Apply(t.Context(), n, apply.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func udp(src, dst string) packet.Packet {
	return packet.Packet{Src: addr(src), Dst: addr(dst), SrcPort: 1000, DstPort: 53, Protocol: packet.UDP}
}

// TestWireContract forges tunnel packets to n1, in each of the ways that the
// contract refuses.
func TestWireContract(t *testing.T) {
	good := Frame{
		OuterSrc: addr("172.30.0.12"), OuterDst: addr("172.30.0.11"), VNI: 10,
		SrcMAC: packet.VTEPMAC("n2"), DstMAC: packet.VTEPMAC("n1"), Inner: udp("10.128.0.18", "10.128.0.2"),
	}
	for _, tt := range []struct {
		name  string
		forge func(*Frame)
		want  string // part of the reason; empty if delivered
	}{
		{"honest", func(*Frame) {}, ""},
		{"global tenant or node", func(f *Frame) { f.VNI = 1 }, ""},
		{"stranger", func(f *Frame) { f.OuterSrc = addr("172.30.0.99") }, "is no node"},
		{"itself", func(f *Frame) { f.OuterSrc = addr("172.30.0.11") }, "is no node"},
		{"another tenant", func(f *Frame) { f.VNI = 11 }, "of tenant 11, the port 10.128.0.2 of 10"},
		{"VNI of nobody", func(f *Frame) { f.VNI = 99 }, "belongs to no VPC"},
		{"VNI of another VPC", func(f *Frame) { f.VNI = 2 }, "is not at node n2 in VPC red"},
		{"inner source on the receiver", func(f *Frame) { f.Inner.Src = addr("10.128.0.3") }, "is not at node n2"},
		{"inner source of nobody", func(f *Frame) { f.Inner.Src = addr("10.128.0.99") }, "is not at node n2"},
		{"inner source outside", func(f *Frame) { f.Inner.Src = addr("203.0.113.1") }, "is not at node n2"},
		{"inner destination on the sender", func(f *Frame) { f.Inner.Dst = addr("10.128.0.19") }, "is not on node n1"},
		{"inner destination outside", func(f *Frame) { f.Inner.Dst = addr("203.0.113.1") }, "is not on node n1"},
		{"inner destination of nobody", func(f *Frame) { f.Inner.Dst = addr("10.128.0.9") }, "nobody on node n1"},
		{"another node's MAC", func(f *Frame) { f.DstMAC = packet.VTEPMAC("n2") }, "inner destination MAC"},
		{"to nobody", func(f *Frame) { f.OuterDst = addr("172.30.0.77") }, "nobody on the underlay"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			frame := good
			tt.forge(&frame)
			d := applied(t).Inject(frame)
			if d.Dropped != (tt.want != "") || !strings.Contains(d.Why, tt.want) {
				t.Errorf("dropped %v: %s; want %q", d.Dropped, d.Why, tt.want)
			}
		})
	}
}

func TestPodAddressFromTheUnderlay(t *testing.T) {
	f := applied(t)
	frame := Frame{NextHop: addr("172.30.0.11"), Inner: udp("10.128.0.18", "10.128.0.2")}
	if d := f.Inject(frame); !d.Dropped {
		t.Errorf("a pod's address came in without the tunnel: %+v", d)
	}
	n := node("n1")
	n.AddressSets = append([]intent.AddressSet{{VPC: "default", Name: intent.SetDirect, Prefixes: []netip.Prefix{prefix("10.128.0.16/28")}}}, n.AddressSets...)
	if _, err := f.Node("n1").Apply(t.Context(), n, apply.Options{}); err != nil {
		t.Fatal(err)
	}
	if d := f.Inject(frame); d.Dropped {
		t.Errorf("a pod's address of the set is refused: %s", d.Why)
	}
	frame.Inner.Dst = addr("10.128.0.19")
	if d := f.Inject(frame); !d.Dropped {
		t.Errorf("another node's packet was passed on: %+v", d)
	}
}

// TestMasqueradeChoosesFreePorts sends from two pods with one source port, and
// answers both.
func TestMasqueradeChoosesFreePorts(t *testing.T) {
	f := applied(t)
	seen := map[uint16]bool{}
	for _, port := range []string{"10.128.0.2", "10.128.0.3"} {
		d := f.Send(Place{Node: "n1", Port: port}, udp(port, "203.0.113.1"))
		if d.Dropped || d.Packet.Src != addr("172.30.0.11") || seen[d.Packet.SrcPort] {
			t.Fatalf("%+v", d)
		}
		seen[d.Packet.SrcPort] = true
		back := f.Send(Place{Outside: true}, d.Packet.Reverse())
		if back.Dropped || back.At != (Place{Node: "n1", Port: port}) || back.Packet != udp(port, "203.0.113.1").Reverse() {
			t.Errorf("the answer: %+v", back)
		}
		again := f.Send(Place{Node: "n1", Port: port}, udp(port, "203.0.113.1"))
		if again.Packet != d.Packet {
			t.Errorf("the second packet looks otherwise: %s, %s", again.Packet, d.Packet)
		}
	}
}

func TestSendFromNowhere(t *testing.T) {
	f := applied(t)
	for _, from := range []Place{{Node: "n9"}, {Node: "n1", Port: "x"}} {
		if d := f.Send(from, udp("10.128.0.2", "10.128.0.18")); !d.Dropped {
			t.Errorf("%s sends", from)
		}
	}
}

// TestLoopEnds has two nodes that send a packet to each other for ever.
func TestLoopEnds(t *testing.T) {
	f := NewFabric()
	for _, name := range []string{"n1", "n2"} {
		n := node(name)
		n.Subnets[0].CIDRs = append(n.Subnets[0].CIDRs, prefix("10.200.0.0/24"))
		peer := n.Peers[0].Name
		n.Routes = append(n.Routes, intent.Route{VPC: "default", Dst: prefix("10.200.0.0/24"), NextHop: intent.NextHop{Peer: peer}})
		if _, err := f.Node(name).Apply(t.Context(), n, apply.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if d := f.Send(Place{Outside: true, Node: "n1"}, udp("203.0.113.1", "10.200.0.1")); !d.Dropped || !strings.Contains(d.Why, "a loop") {
		t.Errorf("%+v", d)
	}
}

func TestApply(t *testing.T) {
	f := NewFabric()
	p := f.Node("n1")
	full := node("n1")
	report, err := p.Apply(t.Context(), full, apply.Options{})
	if err != nil || len(report.Failed) > 0 || len(report.Changes) != len(intent.Diff(intent.Node{}, full)) {
		t.Fatalf("%v, %+v", err, report)
	}
	if report, _ = p.Apply(t.Context(), full, apply.Options{}); len(report.Changes) > 0 {
		t.Errorf("the second time: %v", report.Changes)
	}
	less := full
	less.Ports, less.Routes = full.Ports[:1], full.Routes[:1]
	if report, _ = p.Apply(t.Context(), less, apply.Options{AddOnly: true}); len(report.Changes) > 0 || !p.Intent().Equal(full) {
		t.Errorf("only adding, it changed %v", report.Changes)
	}
	if report, _ = p.Apply(t.Context(), less, apply.Options{}); len(report.Changes) != 2 || !p.Intent().Equal(less) {
		t.Errorf("it changed %v", report.Changes)
	}
	if p.Applies() != 4 {
		t.Errorf("%d applies", p.Applies())
	}
}

func TestFail(t *testing.T) {
	p := NewFabric().Node("n1")
	full := node("n1")
	broken := errors.New("broken")
	p.Fail(full.Ports[0].Ref(), broken)
	report, err := p.Apply(t.Context(), full, apply.Options{})
	if err != nil || len(report.Failed) != 1 || !errors.Is(report.Err(full.Ports[0].Ref()), broken) {
		t.Fatalf("%v, %+v", err, report)
	}
	without := full
	without.Ports = full.Ports[1:]
	if !p.Intent().Equal(without) {
		t.Errorf("all else is not as desired:\n%s", p.Intent())
	}
	p.Fail(full.Ports[0].Ref(), nil)
	if report, _ = p.Apply(t.Context(), full, apply.Options{}); len(report.Failed) > 0 || !p.Intent().Equal(full) {
		t.Errorf("healed: %+v", report)
	}
	// What fails to change stays what it was, and what fails to go stays.
	changed := node("n1")
	changed.Ports[0].MAC[5]++
	changed.Routes = changed.Routes[:1]
	p.Fail(full.Ports[0].Ref(), broken)
	p.Fail(full.Routes[1].Ref(), broken)
	if report, _ = p.Apply(t.Context(), changed, apply.Options{}); len(report.Failed) != 2 || !p.Intent().Equal(full) {
		t.Errorf("%+v\n%s", report, p.Intent())
	}
}

func TestAuditAndDamage(t *testing.T) {
	p := NewFabric().Node("n1")
	full := node("n1")
	if _, err := p.Apply(t.Context(), full, apply.Options{}); err != nil {
		t.Fatal(err)
	}
	if !p.Damage(full.Routes[0].Ref()) || p.Damage(intent.Ref{Kind: "Route", Name: "nobody's"}) {
		t.Error("Damage says the wrong thing")
	}
	desired := node("n1")
	desired.Ports = desired.Ports[:1]
	desired.Peers[0].VTEPMAC[0]++
	got, err := p.Audit(t.Context(), desired)
	if err != nil {
		t.Fatal(err)
	}
	var problems []string
	for _, d := range got {
		problems = append(problems, d.Problem+" "+d.Object)
	}
	want := []string{"differs Peer n2", "missing Route default 10.128.0.0/28", "unexpected Port 10.128.0.3"}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
