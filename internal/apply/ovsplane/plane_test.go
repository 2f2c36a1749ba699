package ovsplane

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/planetest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

// node is a namespace that plays a node, with a NIC that is up and an Open vSwitch.
type node struct {
	ns  *netns.NS
	out *netlink.Handle
	ovs *ovstest.OVS
	dir string
	// pods are their namespaces, by path.
	pods map[string]*netns.NS
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{ns: netnstest.New(t), dir: t.TempDir(), pods: map[string]*netns.NS{}}
	n.out = handle(t, n.ns)
	other := netnstest.New(t)
	err := n.out.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nic"}, PeerName: "nic", PeerNamespace: netlink.NsFd(other.FD())})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*netlink.Handle{handle(t, other), n.out} {
		up(t, h, "nic")
	}
	nic, err := n.out.LinkByName("nic")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range planetest.Node().Underlay {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := n.out.AddrAdd(nic, a); err != nil {
			t.Fatal(err)
		}
	}
	n.ovs = ovstest.Start(t, n.ns)
	return n
}

func up(t testing.TB, h *netlink.Handle, name string) {
	t.Helper()
	l, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkSetUp(l)
	}
	if err != nil {
		t.Fatalf("set up link %s: %v", name, err)
	}
}

func handle(t testing.TB, ns *netns.NS) *netlink.Handle {
	t.Helper()
	var h *netlink.Handle
	err := ns.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func (n *node) open(t testing.TB) *Plane {
	t.Helper()
	p, err := Open(t.Context(), Options{NS: n.ns, RunDir: n.ovs.Host.Run, SavedSysctls: n.dir + "/sysctls.json", Patience: soon})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// pod makes the namespace of a pod that answers on port 8080.
func (n *node) pod(t testing.TB) string {
	t.Helper()
	ns := netnstest.New(t)
	n.pods[ns.String()] = ns
	up(t, handle(t, ns), "lo")
	netnstest.Serve(t, ns, 8080)
	return ns.String()
}

func TestContract(t *testing.T) {
	planetest.Run(t, func(t *testing.T) planetest.Harness {
		n := newNode(t)
		p := n.open(t)
		return planetest.Harness{
			Plane: p,
			Reopen: func(t *testing.T) apply.Plane {
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				p = n.open(t)
				return p
			},
			Netns: func(t *testing.T) string { return n.pod(t) },
			Break: func(t *testing.T, p intent.Port) func() {
				netnstest.Remove(t, p.Netns)
				return func() {}
			},
			Damage: n.damage,
			Probe:  n.probe,
			Open:   n.converse,
		}
	})
}

func (n *node) probe(t *testing.T, from, _ intent.Port, addr netip.Addr, proto packet.Protocol) bool {
	_, err := netnstest.Probe(t.Context(), n.pods[from.Netns], strings.ToLower(proto.String()), netip.AddrPortFrom(addr, 8080))
	return err == nil
}

// damage deletes the link of a port, or a route.
func (n *node) damage(t *testing.T, r intent.Ref) {
	t.Helper()
	if r.Kind == "Port" {
		for i := 2; i < 31; i++ {
			if p := planetest.Port(i, "/"); p.Ref() == r {
				l, err := n.out.LinkByName(p.HostInterface)
				if err == nil {
					err = n.out.LinkDel(l)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		return
	}
	_, dst, _ := strings.Cut(r.Name, " ")
	p := netip.MustParsePrefix(dst)
	err := n.out.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}})
	if err != nil {
		t.Fatal(err)
	}
}

// converse opens a conversation between two pods.
func (n *node) converse(t *testing.T, from, to intent.Port, addr netip.Addr, proto packet.Protocol) func(back bool) bool {
	t.Helper()
	var ends [2]net.Conn
	var err error
	if proto == packet.TCP {
		ends, err = n.stream(from, to, addr)
	} else {
		ends, err = n.datagrams(from, to, addr)
	}
	if err != nil {
		t.Errorf("%s does not converse with %s over %s: %v", from.Pod, to.Pod, proto, err)
		return func(bool) bool { return false }
	}
	t.Cleanup(func() { ends[0].Close(); ends[1].Close() })
	var sent [2]byte
	var behind [2]bool
	return func(back bool) bool {
		i := 0
		if back {
			i = 1
		}
		// What TCP could not deliver it sends again ever more rarely.
		patience := 300 * time.Millisecond
		if behind[i] && proto == packet.TCP {
			patience = 10 * time.Second
		}
		sent[i]++
		if _, err := ends[i].Write([]byte{sent[i]}); err != nil {
			return false
		}
		behind[i] = !hears(ends[1-i], sent[i], patience)
		return !behind[i]
	}
}

// hears waits for a byte.
func hears(c net.Conn, want byte, patience time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 64)
	for {
		got, err := c.Read(b)
		if slices.Contains(b[:got], want) {
			return true
		}
		if err != nil {
			return false
		}
	}
}

func (n *node) stream(from, to intent.Port, addr netip.Addr) (ends [2]net.Conn, err error) {
	var l *net.TCPListener
	err = n.pods[to.Netns].Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		return ends, err
	}
	defer l.Close()
	err = n.pods[from.Netns].Do(func() (err error) {
		ends[0], err = net.DialTimeout("tcp", l.Addr().String(), netnstest.Patience)
		return err
	})
	if err != nil {
		return ends, err
	}
	_ = l.SetDeadline(time.Now().Add(netnstest.Patience))
	ends[1], err = l.Accept()
	return ends, err
}

func (n *node) datagrams(from, to intent.Port, addr netip.Addr) (ends [2]net.Conn, err error) {
	var server *net.UDPConn
	err = n.pods[to.Netns].Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		return ends, err
	}
	err = n.pods[from.Netns].Do(func() (err error) {
		ends[0], err = net.Dial("udp", server.LocalAddr().String())
		return err
	})
	if err != nil {
		return ends, err
	}
	// A link that has just been set up may lose the first datagrams.
	var peer netip.AddrPort
	for range 20 {
		if _, err = ends[0].Write([]byte{0}); err != nil {
			return ends, err
		}
		_ = server.SetReadDeadline(time.Now().Add(netnstest.Patience / 20))
		if _, peer, err = server.ReadFromUDPAddrPort(make([]byte, 8)); err == nil {
			break
		}
	}
	ends[1] = answering{server, peer}
	return ends, err
}

// answering is the server's end of a conversation in datagrams.
type answering struct {
	*net.UDPConn
	to netip.AddrPort
}

func (a answering) Write(b []byte) (int, error) { return a.WriteToUDPAddrPort(b, a.to) }

var _ io.Writer = answering{}

// applied applies an intent and wants it whole.
func applied(t testing.TB, p *Plane, n intent.Node, o apply.Options) apply.Report {
	t.Helper()
	r, err := p.Apply(t.Context(), n, o)
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	for _, f := range r.Failed {
		t.Errorf("failed: %v", f)
	}
	return r
}

// intentOf is the suite's intent with pods.
func (n *node) intentOf(t testing.TB, pods int) intent.Node {
	t.Helper()
	out := planetest.Node()
	for i := range pods {
		out.Ports = append(out.Ports, planetest.Port(i+2, n.pod(t)))
	}
	return out
}

func TestUninstallLeavesNothing(t *testing.T) {
	n := newNode(t)
	foreign := "foreign"
	n.ovs.Run("ovs-vsctl", "add-br", foreign, "--", "set", "bridge", foreign, "datapath_type=netdev")
	p := n.open(t)
	applied(t, p, n.intentOf(t, 1), apply.Options{})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if err := Uninstall(t.Context(), Options{
		NS: n.ns, RunDir: n.ovs.Host.Run, SavedSysctls: n.dir + "/sysctls.json", Patience: soon, Log: slog.New(slog.NewTextHandler(&log, nil)),
	}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("what is meant to go is complained of: %s", &log)
	}
	if got := strings.TrimSpace(n.ovs.Run("ovs-vsctl", "list-br")); got != foreign {
		t.Errorf("bridges after Uninstall: %s, want %s", got, foreign)
	}
	links, err := n.out.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	slices.Sort(names)
	if want := []string{foreign, "lo", "nic", "ovs-netdev"}; !slices.Equal(names, want) {
		t.Errorf("links after Uninstall: %v, want %v", names, want)
	}
}

// The node's own IPv6 addresses can be reached at once, though others change links all the
// time, for which the kernel's worker that makes their local routes waits.
func TestOwnAddressesReceiveAtOnce(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	t.Cleanup(func() { _ = p.Close() })
	desired := n.intentOf(t, 0)
	applied(t, p, desired, apply.Options{})
	link, err := n.out.LinkByName(claims.OVSHostPort)
	if err != nil {
		t.Fatal(err)
	}
	other, ended := handle(t, netnstest.New(t)), make(chan struct{})
	go func() {
		defer close(ended)
		for t.Context().Err() == nil {
			busy := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "busy"}, PeerName: "idle"}
			if err := errors.Join(other.LinkAdd(busy), other.LinkDel(busy)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	t.Cleanup(func() { <-ended }) // the context ends before
	for range 20 {
		for _, a := range desired.Tunnels {
			if a.Addr.Is4() {
				continue
			}
			if err := n.out.AddrDel(link, &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr.AsSlice(), Mask: net.CIDRMask(128, 128)}}); err != nil {
				t.Fatal(err)
			}
			applied(t, p, desired, apply.Options{})
			if got, err := n.out.RouteGet(a.Addr.AsSlice()); err != nil || got[0].Type != unix.RTN_LOCAL {
				t.Errorf("the route to %s is %v (%v), want a local one", a.Addr, got, err)
			}
		}
	}
}
