package nft_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	n "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// inside runs fn on a thread within a network namespace.
func inside[T any](t testing.TB, ns string, fn func() (T, error)) T {
	t.Helper()
	type result struct {
		v   T
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var r result
		file, err := os.Open(ns)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			_ = file.Close()
		}
		if r.err = err; err == nil {
			r.v, r.err = fn()
		}
		done <- r
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.v
}

// network is a client and a server with a node between them that forwards.
type network struct{ client, node, server string }

func newNetwork(t *testing.T) network {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the ip program to build the network")
	}
	w := network{client: testNS(t), node: testNS(t), server: testNS(t)}
	run(t, w.node, "ip", "link", "add", "cli0", "type", "veth", "peer", "name", "eth0", "netns", w.client)
	run(t, w.node, "ip", "link", "add", "srv0", "type", "veth", "peer", "name", "eth0", "netns", w.server)
	for _, a := range [][3]string{
		{w.node, "cli0", "10.0.1.1/24"},
		{w.node, "cli0", "fd00:1::1/64"},
		{w.node, "srv0", "10.0.2.1/24"},
		{w.node, "srv0", "fd00:2::1/64"},
		{w.client, "eth0", "10.0.1.2/24"},
		{w.client, "eth0", "10.0.1.99/24"},
		{w.client, "eth0", "fd00:1::2/64"},
		{w.client, "eth0", "fd00:1::99/64"},
		{w.server, "eth0", "10.0.2.2/24"},
		{w.server, "eth0", "fd00:2::2/64"},
	} {
		args := []string{"ip", "addr", "add", a[2], "dev", a[1]}
		if netip.MustParsePrefix(a[2]).Addr().Is6() {
			args = append(args, "nodad")
		}
		run(t, a[0], args...)
		run(t, a[0], "ip", "link", "set", a[1], "up")
	}
	for ns, via := range map[string][2]string{w.client: {"10.0.1.1", "fd00:1::1"}, w.server: {"10.0.2.1", "fd00:2::1"}} {
		run(t, ns, "ip", "route", "add", "default", "via", via[0])
		run(t, ns, "ip", "-6", "route", "add", "default", "via", via[1])
	}
	inside(t, w.node, func() (struct{}, error) {
		for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0o644); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return w
}

// send sends one datagram from the client.
func (w network) send(t *testing.T, from, to, payload string) {
	t.Helper()
	conn := inside(t, w.client, func() (*net.UDPConn, error) {
		return net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
	})
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte(payload)); err != nil {
		t.Fatalf("send from %s to %s: %v", from, to, err)
	}
}

// listen opens a port of the server. (Not on the wildcard: net finds out once per
// process whether there is IPv6, perhaps in a namespace that has none.)
func (w network) listen(t *testing.T, at string, port uint16) *net.UDPConn {
	t.Helper()
	conn := inside(t, w.server, func() (*net.UDPConn, error) {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(at), port)))
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// receive reads one datagram and its source.
func receive(t *testing.T, conn *net.UDPConn) (payload string, from netip.Addr) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1500)
	size, addr, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return string(buf[:size]), addr.Addr().Unmap()
}

// nodeTable is anti-spoofing, marking, dispatch by interface and masquerade.
func nodeTable() n.Table {
	base := func(t n.ChainType, h n.Hook, p int32) *n.Base { return &n.Base{Type: t, Hook: h, Priority: p} }
	rule := func(comment string, s ...n.Statement) n.Rule { return n.Rule{Comment: comment, Statements: s} }
	drop, count := verdict(n.Drop), n.Counter{}
	cli := n.IfName("cli0")
	return n.Table{
		Name: "fairlead",
		Sets: []n.Set{
			{Name: "spoof4", Key: []n.Type{n.TypeIfName, n.TypeIPv4Addr}, Elements: elements(key(cli, addr("10.0.1.2")), key(n.IfName("srv0"), addr("10.0.2.2")))},
			{Name: "spoof6", Key: []n.Type{n.TypeIfName, n.TypeIPv6Addr}, Elements: elements(key(cli, addr("fd00:1::2")), key(n.IfName("srv0"), addr("fd00:2::2")))},
			{Name: "port-mark", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeMark}, Elements: []n.Element{{Key: key(cli), Data: key(n.Mark(0x10))}}},
			{Name: "from-port", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeVerdict}, Elements: []n.Element{{Key: key(cli), Verdict: verdict(n.Jump, "from-cli")}}},
			{Name: "peers4", Key: []n.Type{n.TypeMark, n.TypeIPv4Addr, n.TypeInetProto, n.TypeInetService}, Interval: true, Elements: elements(
				key(n.Mark(0x10), prefix("10.0.2.0/24"), n.Proto(17), n.PortRange(1001, 1003)))},
			{Name: "peers6", Key: []n.Type{n.TypeMark, n.TypeIPv6Addr, n.TypeInetProto, n.TypeInetService}, Interval: true, Elements: elements(
				key(n.Mark(0x10), prefix("fd00:2::/64"), n.Proto(17), n.PortRange(1001, 1003)))},
			{Name: "vpc-of4", Key: []n.Type{n.TypeIPv4Addr}, Data: []n.Type{n.TypeMark}, Interval: true, Elements: []n.Element{
				{Key: key(prefix("10.0.1.0/24")), Data: key(n.Mark(1))}, {Key: key(prefix("10.0.2.0/24")), Data: key(n.Mark(2))},
			}},
			{Name: "wide-mark", Key: []n.Type{n.TypeMark}, Interval: true, Elements: elements(key(markRange(0x8000, 0x01000000)))},
		},
		Chains: []n.Chain{
			{Name: "spoofing", Base: base(n.TypeFilter, n.HookPrerouting, -310), Rules: []n.Rule{
				rule("spoofed4", n.Lookup{Key: n.Select(n.MetaIIFName, n.IPSaddr), Op: n.Neq, Set: "spoof4"}, count, drop),
				rule("nd", n.Is(n.ICMPv6Type, n.Number(n.ICMPv6Type, 135)), accept),
				rule("na", n.Is(n.ICMPv6Type, n.Number(n.ICMPv6Type, 136)), accept),
				rule("spoofed6", n.Lookup{Key: n.Select(n.MetaIIFName, n.IP6Saddr), Op: n.Neq, Set: "spoof6"}, count, drop),
				rule("mark", n.Mangle{Field: n.MetaMark, From: n.Select(n.MetaIIFName), Map: "port-mark"}),
			}},
			{Name: "dispatch", Base: &n.Base{Hook: n.HookForward, Priority: 10, Policy: n.PolicyDrop}, Rules: []n.Rule{
				rule("judged before", n.AnyFlag(n.CTState, n.CTEstablished), n.Masked(n.CTMark, 1<<28, 1<<28), count, accept),
				rule("dispatch", n.VMap{Key: n.Select(n.MetaIIFName), Map: "from-port"}),
				rule("unjudged", count),
			}},
			{Name: "from-cli", Rules: []n.Rule{
				rule("by name", n.Is(n.MetaIIFName, n.IfNamePrefix("cl")), n.Is(n.EtherSaddr, n.MAC([6]byte{2, 0, 0, 0, 0, 9})), count),
				rule("port 1000", n.Is(n.UDPDport, n.Port(1000)), count, drop),
				rule("marked", n.Masked(n.MetaMark, 0xff, 0x10), count),
				rule("keep foreign bits", n.Mangle{Field: n.MetaMark, Value: 0x8000, Mask: 0xc000}),
				rule("kept", n.Is(n.MetaMark, n.Mark(0x8010)), n.Lookup{Key: n.Select(n.MetaMark), Set: "wide-mark"}, count),
				rule("back", n.Mangle{Field: n.MetaMark, Mask: 0xc000}),
				rule("no way back", n.Is(n.FibSaddrIIF, n.Missing), count, drop),
				rule("judge", n.Mangle{Field: n.CTMark, Value: 1 << 28, Mask: 1 << 28}),
				rule("allow4", n.Lookup{Key: n.Select(n.MetaMark, n.IPDaddr, n.MetaL4Proto, n.THDport), Set: "peers4"}, count, accept),
				rule("allow6", n.Lookup{Key: n.Select(n.MetaMark, n.IP6Daddr, n.MetaL4Proto, n.THDport), Set: "peers6"}, count, accept),
				rule("rest", count, drop),
			}},
			{Name: "marks", Base: base(n.TypeFilter, n.HookPostrouting, -160), Rules: []n.Rule{
				rule("vpc", n.Mangle{Field: n.MetaMark, From: n.Select(n.IPDaddr), Map: "vpc-of4"}),
				rule("to vpc 2", n.Is(n.MetaMark, n.Mark(2)), count),
			}},
			{Name: "nat", Base: base(n.TypeNAT, n.HookPostrouting, 95), Rules: []n.Rule{
				rule("masquerade4", n.Is(n.IPSaddr, prefix("10.0.1.0/24")), n.Is(n.MetaOIFName, n.IfName("srv0")), count, n.Masquerade{Flags: n.NATFullyRandom}),
				rule("masquerade6", n.Is(n.IP6Saddr, prefix("fd00:1::/64")), n.Is(n.MetaOIFName, n.IfName("srv0")), count, n.Masquerade{}),
			}},
		},
	}
}

// TestPackets sends real packets through rules of every important kind.
func TestPackets(t *testing.T) {
	w := newNetwork(t)
	run(t, w.client, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:09")
	d := open(t, nft.Config{NetNS: w.node})
	apply(t, d, nodeTable())

	families := []struct{ name, client, spoofed, server, masqueraded string }{
		{"4", "10.0.1.2", "10.0.1.99", "10.0.2.2", "10.0.2.1"},
		{"6", "fd00:1::2", "fd00:1::99", "fd00:2::2", "fd00:2::1"},
	}
	for _, f := range families {
		conns := map[uint16]*net.UDPConn{}
		for _, port := range []uint16{1000, 1001, 2000} {
			conns[port] = w.listen(t, f.server, port)
		}
		to := func(port uint16) string {
			return netip.AddrPortFrom(netip.MustParseAddr(f.server), port).String()
		}
		// What is refused goes first: on one link nothing overtakes, so once the last
		// datagram has come none of the others will.
		w.send(t, f.client, to(1000), "to the dropped port")
		w.send(t, f.client, to(2000), "to a port outside of the set")
		w.send(t, f.spoofed, to(1001), "with a spoofed source")
		w.send(t, f.client, to(1001), "allowed")
		payload, from := receive(t, conns[1001])
		if payload != "allowed" || from != netip.MustParseAddr(f.masqueraded) {
			t.Errorf("family %s: first came %q from %s, want the allowed datagram from %s", f.name, payload, from, f.masqueraded)
		}
		for _, port := range []uint16{1000, 2000} {
			if err := conns[port].SetReadDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			if size, _, err := conns[port].ReadFromUDPAddrPort(make([]byte, 1500)); err == nil {
				t.Errorf("family %s: %d bytes came through to port %d", f.name, size, port)
			}
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	counters, err := d.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, c := range counters {
		got[c.Comment] += c.Packets
		if c.Packets > 0 && (c.Bytes == 0 || c.Handle == 0) {
			t.Errorf("counter %+v without bytes or handle", c)
		}
	}
	for comment, want := range map[string]uint64{
		"spoofed4": 1, "spoofed6": 1, "port 1000": 2, "by name": 6, "marked": 4, "kept": 4, "no way back": 0,
		"allow4": 1, "allow6": 1, "rest": 2, "to vpc 2": 1, "masquerade4": 1, "masquerade6": 1, "unjudged": 0,
	} {
		// The kernel sends multicast of its own (IPv6), which anti-spoofing counts too.
		if g := got[comment]; g != want && !(comment == "spoofed6" && g >= want) {
			t.Errorf("counter %q is %d, want %d", comment, g, want)
		}
	}
	if t.Failed() {
		t.Log(fmt.Sprint(counters))
	}
}

// TestEstablished lets an answer through by its judged flow only.
func TestEstablished(t *testing.T) {
	w := newNetwork(t)
	d := open(t, nft.Config{NetNS: w.node})
	apply(t, d, nodeTable())
	conn := w.listen(t, "10.0.2.2", 1001)
	client := inside(t, w.client, func() (*net.UDPConn, error) {
		return net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 0, 1, 2)}, &net.UDPAddr{IP: net.IPv4(10, 0, 2, 2), Port: 1001})
	})
	defer func() { _ = client.Close() }()
	if _, err := client.Write([]byte("ask")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, from, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.WriteToUDPAddrPort([]byte("answer"), from); err != nil {
		t.Fatal(err)
	}
	if payload, from := receive(t, client); payload != "answer" || from != netip.MustParseAddr("10.0.2.2") {
		t.Errorf("got %q from %s, want the answer of the server", payload, from)
	}
}
