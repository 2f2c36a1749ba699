package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// node is a namespace that plays a node, with a driver and an outsider's handle.
type node struct {
	*testing.T
	ns     *netns.NS
	d      *Driver
	out    *netlink.Handle
	dir    string
	writes atomic.Int64
	// mu makes applies follow one another.
	mu    sync.Mutex
	state linux.State
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{T: t, ns: netnstest.New(t), dir: t.TempDir()}
	n.out = handle(t, n.ns)
	n.start()
	return n
}

func handle(t *testing.T, ns *netns.NS) *netlink.Handle {
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

// start opens a driver, as a started agent does.
func (n *node) start() {
	n.Helper()
	d, err := Open(Config{NS: n.ns, SavedSysctls: n.dir + "/sysctls.json", Log: testLog(n.T)})
	if err != nil {
		n.Fatal(err)
	}
	n.d = d
	n.hook(func() error { return nil })
	n.Cleanup(func() {
		if err := d.Close(); err != nil {
			n.Error(err)
		}
	})
}

// hook counts the changes that the driver asks the kernel for over netlink, and
// lets refuse refuse them.
func (n *node) hook(refuse func() error) {
	count := func() error {
		n.writes.Add(1)
		return refuse()
	}
	n.d.conn.refuse = count
	n.d.dial = func(ns *netns.NS, also func() error) (*conn, error) {
		c, err := dial(ns, also)
		if err == nil {
			c.refuse = count
		}
		return c, err
	}
}

func testLog(t *testing.T) *slog.Logger {
	if !testing.Verbose() || os.Getenv("RTNL_DEBUG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// apply does both halves and returns what they did.
func (n *node) apply(s linux.State, o apply.Options) Result {
	n.Helper()
	r, err := n.try(n.Context(), s, o)
	if err != nil {
		n.Fatal(err)
	}
	return r
}

func (n *node) try(ctx context.Context, s linux.State, o apply.Options) (Result, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = s
	a, err := n.d.Prepare(ctx, s, o)
	if err != nil {
		return a, err
	}
	b, err := n.d.Commit(ctx, s, o, nil)
	a.Changes = append(a.Changes, b.Changes...)
	for _, f := range b.Failed {
		a.fail(f.Ref, f.Err)
	}
	return a, err
}

// mustApply applies, wants no failure, and wants the kernel to agree.
func (n *node) mustApply(s linux.State, o apply.Options) []string {
	n.Helper()
	r := n.apply(s, o)
	for _, f := range r.Failed {
		n.Errorf("%v", f)
	}
	n.audit()
	return r.Changes
}

func (n *node) audit() {
	n.Helper()
	n.mu.Lock()
	state := n.state
	n.mu.Unlock()
	diffs, err := n.d.Audit(n.Context(), state)
	if err != nil {
		n.Errorf("audit: %v", err)
	}
	for _, d := range diffs {
		n.Errorf("audit: %+v", d)
	}
}

func (n *node) link(name string) netlink.Link {
	n.Helper()
	l, err := n.out.LinkByName(name)
	if err != nil {
		n.Fatalf("link %s: %v", name, err)
	}
	return l
}

// world is an intent with a dual-stack overlay Subnet.
type world struct {
	intent.Node
	pods map[string]*netns.NS
}

const subnet4, subnet6 = "10.128.0.0/14", "fd00:128::/48"

func newWorld() *world {
	return &world{pods: map[string]*netns.NS{}, Node: intent.Node{
		Name: "n1", MTU: 1450, VTEPMAC: packet.VTEPMAC("n1"),
		Underlay: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")},
		VPCs:     []intent.VPC{{Name: "default", VNI: 1}},
		Subnets: []intent.Subnet{{
			VPC: "default", Name: "default", Overlay: true,
			CIDRs: []netip.Prefix{netip.MustParsePrefix(subnet4), netip.MustParsePrefix(subnet6)},
		}},
		Tunnels: []intent.TunnelAddress{
			{VPC: "default", Subnet: "default", Addr: netip.MustParseAddr("10.128.0.1")},
			{VPC: "default", Subnet: "default", Addr: netip.MustParseAddr("fd00:128::1")},
		},
		Routes: []intent.Route{
			{VPC: "default", Dst: netip.MustParsePrefix("10.128.0.0/26"), NextHop: intent.NextHop{Local: true}},
			{VPC: "default", Dst: netip.MustParsePrefix("fd00:128::/122"), NextHop: intent.NextHop{Local: true}},
		},
	}}
}

// port describes pod number i, from 2 on.
func port(i int, path string) intent.Port {
	a4 := netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)})
	a6 := netip.MustParseAddr(fmt.Sprintf("fd00:128::%x", i))
	id := fmt.Sprintf("container%04d", i)
	return intent.Port{
		ID: id + "/eth0", VPC: "default", VNI: 1, Pod: fmt.Sprintf("ns/pod%d", i), Netns: path, Interface: "eth0",
		HostInterface: claims.PortName(id, "eth0"), MAC: packet.PodMAC("default", a4), Addresses: []netip.Addr{a4, a6},
	}
}

// addPod adds pod number i in a fresh namespace.
func (w *world) addPod(t testing.TB, i int) intent.Port {
	t.Helper()
	ns := netnstest.New(t)
	p := port(i, ns.String())
	w.Ports = append(w.Ports, p)
	w.pods[p.ID] = ns
	return p
}

func (w *world) state() linux.State { return linux.RenderState(w.Node) }

func reach(t testing.TB, from *netns.NS, to netip.Addr) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		if _, err := netnstest.Probe(t.Context(), from, network, netip.AddrPortFrom(to, 8080)); err != nil {
			t.Errorf("probe %s over %s: %v", to, network, err)
		}
	}
}

func TestPortsCarryTraffic(t *testing.T) {
	n, w := newNode(t), newWorld()
	a, b := w.addPod(t, 2), w.addPod(t, 3)
	n.mustApply(w.state(), apply.Options{})
	netnstest.Serve(t, w.pods[b.ID], 8080)
	for _, addr := range b.Addresses {
		reach(t, w.pods[a.ID], addr)
		reach(t, n.ns, addr)
		from, err := netnstest.Probe(t.Context(), n.ns, "tcp", netip.AddrPortFrom(addr, 8080))
		if err != nil {
			t.Fatal(err)
		}
		if want := w.source(addr); from != want {
			t.Errorf("the node reaches %s from %s, want its tunnel address %s", addr, from, want)
		}
	}
}

func (w *world) source(a netip.Addr) netip.Addr {
	for _, t := range w.Tunnels {
		if t.Addr.Is4() == a.Is4() {
			return t.Addr
		}
	}
	return netip.Addr{}
}

// The gateway is nobody: the node answers that it knows no such place.
func TestGatewayIsNobody(t *testing.T) {
	n, w := newNode(t), newWorld()
	a := w.addPod(t, 2)
	n.mustApply(w.state(), apply.Options{})
	if got := ping(t, w.pods[a.ID], claims.Gateway4); got != icmpUnreachable {
		t.Errorf("echo request to the gateway: got ICMP type %d, want %d", got, icmpUnreachable)
	}
	if got := ping(t, w.pods[a.ID], netip.MustParseAddr("10.128.0.63")); got != icmpUnreachable {
		t.Errorf("echo request to an unknown address of the own block: got ICMP type %d, want %d", got, icmpUnreachable)
	}
}

const icmpUnreachable = 3

// ping sends an echo request and returns the ICMP type of what comes back.
func ping(t *testing.T, ns *netns.NS, to netip.Addr) byte {
	t.Helper()
	var c net.PacketConn
	err := ns.Do(func() (err error) {
		c, err = net.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := []byte{8, 0, 0, 0, 0, 7, 0, 1}
	binary.BigEndian.PutUint16(request[2:], ^uint16(0x0800+7+1))
	if _, err := c.WriteTo(request, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(netnstest.Patience))
	buf := make([]byte, 256)
	if _, _, err := c.ReadFrom(buf); err != nil {
		t.Fatalf("no answer at all: %v", err)
	}
	return buf[0]
}

// quiet begins a time in which the driver must not change anything. The function
// that it returns ends it: it looks at what the driver sent and at what the kernel
// announced in the namespaces as somebody's doing.
func (n *node) quiet(others ...*netns.NS) (end func()) {
	n.Helper()
	var monitors []*monitor
	for _, ns := range append(others, n.ns) {
		m, err := listen(ns)
		if err != nil {
			n.Fatal(err)
		}
		n.Cleanup(func() { _ = m.close() })
		monitors = append(monitors, m)
	}
	before := n.writes.Load()
	return func() {
		n.Helper()
		if sent := n.writes.Load() - before; sent > 0 {
			n.Errorf("%d changes were sent to the kernel, want none", sent)
		}
		for _, m := range monitors {
			events, complete, err := m.drain()
			if err != nil || !complete {
				n.Errorf("notifications: complete %t, %v", complete, err)
			}
			for _, e := range events {
				// Port 0 is the kernel itself: a carrier that comes up, an address that is
				// ready.
				if e.port != 0 {
					n.Errorf("the kernel announced a change by port %d: %+v", e.port, e)
				}
			}
		}
	}
}

func TestApplyAgainSendsNothing(t *testing.T) {
	n, w := newNode(t), newWorld()
	a := w.addPod(t, 2)
	w.addPod(t, 3)
	n.mustApply(w.state(), apply.Options{})
	end := n.quiet(w.pods[a.ID])
	state := w.state()
	start := time.Now()
	const times = 10_000
	for range times {
		if r := n.apply(state, apply.Options{}); len(r.Changes)+len(r.Failed) > 0 {
			t.Fatalf("an Apply of what is there changed: %v %v", r.Changes, r.Failed)
		}
	}
	t.Logf("%d applies of the same: %v each", times, time.Since(start)/times)
	if changes := n.mustApply(w.state(), apply.Options{Refresh: true}); len(changes) > 0 {
		t.Errorf("a refresh changed: %v", changes)
	}
	end()
}

// A new process finds everything as it is and writes nothing.
func TestRestartAdopts(t *testing.T) {
	n, w := newNode(t), newWorld()
	a := w.addPod(t, 2)
	w.addPod(t, 3)
	n.mustApply(w.state(), apply.Options{})
	if err := n.d.Close(); err != nil {
		t.Fatal(err)
	}
	end := n.quiet(w.pods[a.ID])
	n.start()
	for _, o := range []apply.Options{{AddOnly: true}, {}} {
		if changes := n.mustApply(w.state(), o); len(changes) > 0 {
			t.Errorf("a restart changed: %v", changes)
		}
	}
	end()
}

func TestRemovalIsComplete(t *testing.T) {
	n, w := newNode(t), newWorld()
	before := dump(t, n.ns)
	a := w.addPod(t, 2)
	b := w.addPod(t, 3)
	n.mustApply(w.state(), apply.Options{})
	w.Ports = w.Ports[:1]
	start := time.Now()
	n.apply(w.state(), apply.Options{})
	t.Logf("removal of a port until the reply: %v", time.Since(start))
	if err := n.d.remover.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("and until the link is gone: %v", time.Since(start))
	n.audit()
	if _, err := n.out.LinkByName(b.HostInterface); err == nil {
		t.Errorf("link %s is still there", b.HostInterface)
	}
	if err := n.d.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, dump(t, n.ns)); diff != "" {
		t.Errorf("after Uninstall the namespace differs (-before +after):\n%s", diff)
	}
	if _, err := handle(t, w.pods[a.ID]).LinkByName("eth0"); err == nil {
		t.Error("the pod's end is still there")
	}
	w.Ports = nil
	if changes := n.mustApply(w.state(), apply.Options{}); len(changes) == 0 {
		t.Error("an Apply after Uninstall did nothing")
	}
}

// dump is everything that Fairlead could change in a namespace, as text.
func dump(t *testing.T, ns *netns.NS) []string {
	t.Helper()
	c, err := dial(ns, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	var out []string
	links, err := c.links()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		out = append(out, fmt.Sprintf("link %+v", l))
	}
	addrs, err := c.addresses()
	if err != nil {
		t.Fatal(err)
	}
	for a := range addrs {
		out = append(out, fmt.Sprintf("address %v", a))
	}
	routes, err := c.routes(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		out = append(out, fmt.Sprintf("route %+v", r))
	}
	err = ns.Do(func() error {
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			v, err := readSysctl(key)
			if err != nil {
				return err
			}
			out = append(out, "sysctl "+key+" "+v)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}
