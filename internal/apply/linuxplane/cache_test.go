package linuxplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// call is a flow whose ends speak in turn.
type call struct {
	*testing.T
	client, server net.Conn
}

func (c *cluster) call(network string, from, to *netns.NS, at netip.AddrPort) *call {
	c.Helper()
	var listener net.Listener
	var socket net.PacketConn
	k := &call{T: c.T}
	err := to.Do(func() (err error) {
		if network == "udp" {
			socket, err = net.ListenPacket(network, at.String())
			return err
		}
		listener, err = net.Listen(network, at.String())
		return err
	})
	if err == nil {
		err = from.Do(func() (err error) {
			k.client, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(c.Context(), network, at.String())
			return err
		})
	}
	if err == nil {
		if network == "udp" {
			k.server, err = answered(k.client, socket)
		} else {
			k.server, err = listener.Accept()
			_ = listener.Close()
		}
	}
	if err != nil {
		c.Fatalf("%s to %s: %v", network, at, err)
	}
	c.Cleanup(func() { _, _ = k.client.Close(), k.server.Close() })
	return k
}

// turn sends a byte there and back, within a time.
func (k *call) turn(within time.Duration) error {
	b := make([]byte, 64)
	for _, c := range [][2]net.Conn{{k.client, k.server}, {k.server, k.client}} {
		if _, err := c[0].Write([]byte("x")); err != nil {
			return err
		}
		_ = c[1].SetReadDeadline(time.Now().Add(within))
		if _, err := c[1].Read(b); err != nil {
			return err
		}
	}
	return nil
}

func (k *call) turns(n int) {
	k.Helper()
	for i := range n {
		if err := k.turn(5 * time.Second); err != nil {
			k.Fatalf("turn %d: %v", i, err)
		}
	}
}

// forwarded are the packets that a node's own path has forwarded.
func (m *member) forwarded(t *testing.T) (n int) {
	t.Helper()
	err := m.ns.Do(func() error {
		v4, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		lines := strings.SplitN(string(v4), "\n", 3)
		i := slices.Index(strings.Fields(lines[0]), "ForwDatagrams")
		if n, err = strconv.Atoi(strings.Fields(lines[1])[i]); err != nil {
			return err
		}
		v6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		for l := range strings.Lines(string(v6)) {
			if f := strings.Fields(l); f[0] == "Ip6OutForwDatagrams" {
				more, err := strconv.Atoi(f[1])
				n += more
				return err
			}
		}
		return errors.New("no Ip6OutForwDatagrams")
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// passes wants nearly all packets of a call to pass by the paths of both nodes.
func (c *cluster) passes(k *call, want bool) {
	c.Helper()
	const turns = 1000
	before := [2]int{c.nodes[0].forwarded(c.T), c.nodes[1].forwarded(c.T)}
	k.turns(turns)
	for i, m := range c.nodes {
		n := m.forwarded(c.T) - before[i]
		if few := n < turns/2; few != want && (want || i == 0) {
			c.Errorf("node %d forwarded %d packets of %d turns, want few: %v", i, n, turns, want)
		}
	}
}

func TestFlowsPassBy(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	for i, p := range []intent.Port{here.intent.Ports[1], c.nodes[1].intent.Ports[0]} {
		to := []*netns.NS{here.pods[1], c.nodes[1].pods[0]}[i]
		for _, at := range eachAddr(p, 9000) {
			for _, network := range []string{"tcp", "udp"} {
				c.passes(c.call(network, here.pods[0], to, at), true)
			}
		}
	}
	// The node's own flows, and translated ones, do not.
	at := eachAddr(here.intent.Ports[1], 9001)[0]
	service := netip.MustParseAddrPort("10.96.0.1:53")
	c.translate(here.ns, service, at)
	s := c.flow("udp", here.pods[0], here.pods[1], at, service)
	before := here.forwarded(t)
	for range 100 {
		s.runs()
	}
	if n := here.forwarded(t) - before; n < 100 {
		t.Errorf("of a translated flow the node forwarded %d packets only", n)
	}
}

// What is large comes through whole, in both families, in segments that the links carry.
func TestStreamsPassBy(t *testing.T) {
	const size = 256 << 20
	c := newCluster(t, true, false)
	here := c.nodes[0]
	for i, p := range []intent.Port{here.intent.Ports[1], c.nodes[1].intent.Ports[0]} {
		to := []*netns.NS{here.pods[1], c.nodes[1].pods[0]}[i]
		for _, at := range eachAddr(p, 9000) {
			k := c.call("tcp", here.pods[0], to, at)
			sent := make(chan error, 1)
			go func() {
				block := bytes.Repeat([]byte("0123456789abcdef"), 4096)
				var err error
				for n := 0; n < size && err == nil; n += len(block) {
					_, err = k.client.Write(block)
				}
				sent <- errors.Join(err, k.client.Close())
			}()
			_ = k.server.SetReadDeadline(time.Now().Add(time.Minute))
			n, err := io.Copy(io.Discard, k.server)
			if sendErr := <-sent; n != size || err != nil || sendErr != nil {
				t.Errorf("%s: %d bytes of %d came: %v, %v", at, n, size, err, sendErr)
			}
		}
	}
}

// A flow that policy denies from now on is cut when Apply returns, at the latest; and one
// that it allows again passes by again.
func TestPassingFlowsAreCutAtOnce(t *testing.T) {
	c := newCluster(t, true, false)
	here, there := c.nodes[0], c.nodes[1]
	for i, tc := range []struct {
		name   string
		node   *member
		to     *netns.NS
		target intent.Port
		port   int
		dir    intent.Direction
	}{
		{"one node, ingress", here, here.pods[1], here.intent.Ports[1], 1, intent.Ingress},
		{"one node, egress", here, here.pods[1], here.intent.Ports[1], 0, intent.Egress},
		{"across nodes, ingress", there, there.pods[0], there.intent.Ports[0], 0, intent.Ingress},
		{"across nodes, egress", here, there.pods[0], there.intent.Ports[0], 0, intent.Egress},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, at := range eachAddr(tc.target, uint16(9100+i)) {
				k := c.call("udp", here.pods[0], tc.to, at)
				c.passes(k, true)
				tc.node.list(tc.port, tc.dir, intent.Match{Protocol: packet.UDP})
				for i := range c.nodes {
					c.apply(i)
				}
				if err := k.turn(200 * time.Millisecond); err == nil {
					t.Errorf("%s: a packet came through after the policy was applied", at)
				}
				tc.node.allow()
				for i := range c.nodes {
					c.apply(i)
				}
				_ = k.turn(200 * time.Millisecond) // late ones
				c.passes(k, true)
			}
		})
	}
}

// Others' rules count within a second.
func TestForeignRulesStopPassingFlows(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	s := c.flow("udp", here.pods[0], c.nodes[1].pods[0], eachAddr(c.nodes[1].intent.Ports[0], 9000)[0], eachAddr(c.nodes[1].intent.Ports[0], 9000)[0])
	for range 200 {
		s.runs()
	}
	d, err := nft.Open(t.Context(), nft.Config{Table: "foreign", NetNS: here.ns.String(), Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	_, err = d.Apply(t.Context(), nftables.Table{Name: "foreign", Chains: []nftables.Chain{{
		Name: "forward", Base: &nftables.Base{Type: nftables.TypeFilter, Hook: nftables.HookForward},
		Rules: []nftables.Rule{
			{Statements: []nftables.Statement{nftables.Is(nftables.UDPDport, nftables.Port(9000)), nftables.Verdict{Kind: nftables.Drop}}},
			{Statements: []nftables.Statement{nftables.Is(nftables.UDPSport, nftables.Port(9000)), nftables.Verdict{Kind: nftables.Drop}}},
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	s.silent()
}

// Nobody passes with the addresses of another pod's flow.
func TestPassingFlowsAreNobodyElses(t *testing.T) {
	c := newCluster(t, true, false)
	here, there := c.nodes[0], c.nodes[1]
	at := eachAddr(there.intent.Ports[0], 9000)[0]
	k := c.call("udp", here.pods[0], there.pods[0], at)
	c.passes(k, true)
	before, err := here.plane.Drops(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	from := netip.MustParseAddrPort(k.client.LocalAddr().String())
	for range 50 {
		if err := here.pods[1].Do(func() error { return forge(from, at, "forged") }); err != nil {
			t.Fatal(err)
		}
	}
	// Over one link nothing overtakes the packets of the other; so all of them first.
	k.turns(50)
	after, err := here.plane.Drops(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := after[linux.SpoofedSource] - before[linux.SpoofedSource]; n < 50 {
		t.Errorf("%d forged packets were dropped, want 50", n)
	}
	_ = k.server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	b := make([]byte, 64)
	if n, err := k.server.Read(b); err == nil {
		t.Errorf("%q came through", b[:n])
	}
}

// forge sends a UDP packet with any source, from the namespace of the calling thread.
func forge(from, to netip.AddrPort, text string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open a raw socket: %w", err)
	}
	defer unix.Close(fd)
	p := make([]byte, 28, 64)
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_UDP
	copy(p[12:], from.Addr().AsSlice())
	copy(p[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[20:], from.Port())
	binary.BigEndian.PutUint16(p[22:], to.Port())
	binary.BigEndian.PutUint16(p[24:], uint16(8+len(text)))
	return unix.Sendto(fd, append(p, text...), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
}

// Flows go on while no agent runs, and with the next one; a port that is made anew gets
// nothing of what was before.
func TestFlowsPassByWithoutAnAgent(t *testing.T) {
	c := newCluster(t, true, false)
	here, there := c.nodes[0], c.nodes[1]
	k := c.call("tcp", here.pods[0], there.pods[0], eachAddr(there.intent.Ports[0], 9000)[0])
	c.passes(k, true)
	if err := here.plane.Close(); err != nil {
		t.Fatal(err)
	}
	c.passes(k, true)
	var err error
	if here.plane, err = Open(t.Context(), Options{NS: here.ns, BPFDir: here.bpf, FlowCache: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.plane.Close() })
	c.apply(0)
	c.passes(k, true)
	ports := here.intent.Ports
	here.intent.Ports = ports[1:]
	c.report(0, apply.Options{})
	if err := k.turn(200 * time.Millisecond); err == nil {
		t.Error("a port that is gone sends and hears")
	}
	here.intent.Ports = ports
	c.apply(0)
	c.passes(c.call("tcp", here.pods[0], there.pods[0], eachAddr(there.intent.Ports[0], 9001)[0]), true)
}

// Without the setting that conntrack needs there is no cache; it is set again.
func TestFlowCacheNeedsItsSetting(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	write := func(value string) {
		if err := here.ns.Do(func() error { return os.WriteFile("/proc/sys/"+liberal, []byte(value), 0) }); err != nil {
			t.Fatal(err)
		}
	}
	k := c.call("udp", here.pods[0], here.pods[1], eachAddr(here.intent.Ports[1], 9000)[0])
	c.passes(k, true)
	c.report(0, apply.Options{}) // which hears of the first one's own settings
	write("0")
	diffs, err := here.plane.Audit(t.Context(), here.intent)
	if err != nil || len(diffs) != 1 || diffs[0].Subsystem != "sysctl" {
		t.Errorf("audit: %v, %v; want the sysctl", diffs, err)
	}
	c.report(0, apply.Options{})
	c.passes(k, false)
	if f := here.plane.Features(); !slices.ContainsFunc(f, func(s string) bool { return strings.HasPrefix(s, "no flow cache") }) {
		t.Errorf("features %q do not say that there is no cache", f)
	}
	c.report(0, apply.Options{Refresh: true})
	c.passes(k, true)
	if err := here.plane.links.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = here.ns.Do(func() error {
		got, err := os.ReadFile("/proc/sys/" + liberal)
		if err == nil && strings.TrimSpace(string(got)) != "0" {
			t.Errorf("the sysctl is %q after the uninstall", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A port without its program carries nothing, which audit and CHECK tell and a refresh
// repairs.
func TestPortWithoutItsProgram(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	k := c.call("udp", here.pods[0], here.pods[1], eachAddr(here.intent.Ports[1], 9000)[0])
	k.turns(10)
	c.detach(here, here.intent.Ports[0].HostInterface)
	if err := k.turn(200 * time.Millisecond); err == nil {
		t.Error("a port without a program sends")
	}
	drops, err := here.plane.Drops(t.Context())
	if err != nil || drops["not checked by our program on the link"] == 0 {
		t.Errorf("drops %v, %v: want some that were not checked", drops, err)
	}
	for name, look := range map[string]func() ([]apply.Difference, error){
		"audit": func() ([]apply.Difference, error) { return here.plane.Audit(t.Context(), here.intent) },
		"check": func() ([]apply.Difference, error) {
			return here.plane.CheckPort(t.Context(), here.intent.Ports[0], here.intent.MTU)
		},
	} {
		if diffs, err := look(); err != nil || len(diffs) != 1 || diffs[0].Subsystem != "bpf" {
			t.Errorf("%s: %v, %v; want the missing program", name, diffs, err)
		}
	}
	c.report(0, apply.Options{Refresh: true})
	c.apply(0)
	k.turns(10)
}

// detach takes the programs off a link, as an outsider can.
func (c *cluster) detach(m *member, name string) {
	c.Helper()
	h := handle(c.T, m.ns)
	l, err := h.LinkByName(name)
	if err == nil {
		err = h.QdiscDel(&netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}})
	}
	if err != nil {
		c.Fatal(err)
	}
}

// Of the ends of a connection each node's own path sees the first FIN, so that conntrack
// knows; the FIN of the other end and the last ACK pass by.
func TestEndsPassBy(t *testing.T) {
	const connections = 50
	c := newCluster(t, true, false)
	here := c.nodes[0]
	for i, p := range []intent.Port{here.intent.Ports[1], c.nodes[1].intent.Ports[0]} {
		to := []*netns.NS{here.pods[1], c.nodes[1].pods[0]}[i]
		for _, at := range eachAddr(p, 9000) {
			before := [2]int{here.forwarded(t), c.nodes[1].forwarded(t)}
			for range connections {
				k := c.call("tcp", here.pods[0], to, at)
				for _, end := range []net.Conn{k.client, k.server} {
					if err := end.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
			for j, m := range c.nodes[:i+1] {
				// SYN, SYN and ACK, ACK, FIN; and what had to give its place to another's.
				if n := m.forwarded(t) - before[j]; n < 4*connections || n > 4*connections+connections/2 {
					t.Errorf("node %d forwarded %d packets of %d connections to %s, want 4 of each", j, n, connections, at)
				}
				if n := m.running(t, at); n > 0 {
					t.Errorf("node %d takes %d of the connections to %s for running ones", j, n, at)
				}
			}
		}
	}
}

// running are the flows to an address that conntrack of a node does not know to have ended.
func (m *member) running(t *testing.T, to netip.AddrPort) (n int) {
	t.Helper()
	table, err := conntrack.Open(m.ns)
	if err == nil {
		_, err = table.Walk(t.Context(), []conntrack.Query{{End: to.Addr()}}, func(f conntrack.Flow) conntrack.Decision {
			if f.Dst == to.Addr() && f.DstPort == to.Port() && !f.Ended {
				n++
			}
			return conntrack.Decision{}
		})
		err = errors.Join(err, table.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A connection between the ports of one that has just ended is a new one: nothing of its
// beginning passes by.
func TestBeginningsNeverPassBy(t *testing.T) {
	c := newCluster(t, true, false)
	here, there := c.nodes[0], c.nodes[1]
	at := eachAddr(there.intent.Ports[0], 9000)[0]
	from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(here.intent.Ports[0].Addresses[0], 40000))
	var listener net.Listener
	err := there.pods[0].Do(func() (err error) {
		listener, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for i := range 5 {
		before := [2]int{here.forwarded(t), there.forwarded(t)}
		var client, server net.Conn
		d := net.Dialer{Deadline: time.Now().Add(5 * time.Second), LocalAddr: from}
		err := here.pods[0].Do(func() (err error) {
			// The last ACK of the connection before may still be on its way.
			for ok := false; !ok; ok = !errors.Is(err, unix.EADDRINUSE) || time.Now().After(d.Deadline) {
				client, err = d.DialContext(t.Context(), "tcp", at.String())
			}
			return err
		})
		if err == nil {
			server, err = listener.Accept()
		}
		if err != nil {
			t.Fatal(err)
		}
		for j, m := range c.nodes {
			if n := m.forwarded(t) - before[j]; n < 3 {
				t.Errorf("connection %d: node %d forwarded %d packets, want SYN, SYN and ACK, ACK", i, j, n)
			}
		}
		// The server is the first and so the one that waits; the client may use its port again.
		if err := errors.Join(server.Close(), client.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
