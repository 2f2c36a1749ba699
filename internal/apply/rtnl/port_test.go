package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
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
)

var errCrash = errors.New("the process died here")

// crashAfter lets the driver make a number of changes, and then none any more.
func (n *node) crashAfter(changes int) (crashed *atomic.Bool) {
	crashed = new(atomic.Bool)
	left := new(atomic.Int64)
	left.Store(int64(changes))
	n.hook(func() error {
		if left.Add(-1) < 0 {
			crashed.Store(true)
			return errCrash
		}
		return nil
	})
	return crashed
}

// A process that dies after any number of changes leaves something that the next
// one completes, and never a pod that is up without all it needs.
func TestCrashAnywhere(t *testing.T) {
	for changes, done := 0, false; !done; changes++ {
		t.Run(fmt.Sprintf("after %d changes", changes), func(t *testing.T) {
			n, w := newNode(t), newWorld()
			a, b := w.addPod(t, 2), w.addPod(t, 3)
			crashed := n.crashAfter(changes)
			n.apply(w.state(), apply.Options{})
			done = !crashed.Load()
			if err := n.d.Close(); err != nil {
				t.Fatal(err)
			}
			n.start()
			n.mustApply(w.state(), apply.Options{AddOnly: true})
			netnstest.Serve(t, w.pods[b.ID], 8080)
			reach(t, w.pods[a.ID], b.Addresses[0])
			reach(t, w.pods[a.ID], b.Addresses[1])
		})
		if changes > 200 {
			t.Fatal("it never ends")
		}
	}
}

// What an earlier life of the same attachment left behind.
func TestLeftovers(t *testing.T) {
	pair := func(n *node, p intent.Port, ns *netns.NS, name string) error {
		return n.out.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: p.HostInterface}, PeerName: name, PeerNamespace: netlink.NsFd(ns.FD()),
		})
	}
	for _, tc := range []struct {
		name string
		make func(t *testing.T, n *node, w *world, p intent.Port) error
	}{
		{"a pair with wrong MAC addresses and MTU", func(_ *testing.T, n *node, w *world, p intent.Port) error {
			return pair(n, p, w.pods[p.ID], p.Interface)
		}},
		{"a pair whose other end is elsewhere", func(t *testing.T, n *node, _ *world, p intent.Port) error {
			return pair(n, p, netnstest.New(t), p.Interface)
		}},
		{"a pair that never left the node", func(_ *testing.T, n *node, _ *world, p intent.Port) error {
			return pair(n, p, n.ns, "eth0")
		}},
		{"a pair whose other end has another name", func(_ *testing.T, n *node, w *world, p intent.Port) error {
			return pair(n, p, w.pods[p.ID], "net1")
		}},
		{"a wrong address and route in the pod", func(t *testing.T, n *node, w *world, p intent.Port) error {
			if err := pair(n, p, w.pods[p.ID], p.Interface); err != nil {
				return err
			}
			h := handle(t, w.pods[p.ID])
			eth0 := mustLink(t, h, "eth0")
			return errors.Join(
				h.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{10, 128, 0, 99}, Mask: net.CIDRMask(24, 32)}}),
				h.LinkSetUp(eth0),
				h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IP{10, 128, 0, 98}, Flags: int(netlink.FLAG_ONLINK)}),
			)
		}},
		{"a port that nobody wants holds the pod's name", func(t *testing.T, n *node, w *world, p intent.Port) error {
			return n.out.LinkAdd(&netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: "flpold"}, PeerName: p.Interface, PeerNamespace: netlink.NsFd(w.pods[p.ID].FD()),
			})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, w := newNode(t), newWorld()
			a, b := w.addPod(t, 2), w.addPod(t, 3)
			if err := tc.make(t, n, w, a); err != nil {
				t.Fatal(err)
			}
			n.mustApply(w.state(), apply.Options{})
			addrs, err := handle(t, w.pods[a.ID]).AddrList(mustLink(t, handle(t, w.pods[a.ID]), "eth0"), netlink.FAMILY_ALL)
			if err != nil || len(addrs) != 2 {
				t.Errorf("addresses in the pod: %v (%v), want two", addrs, err)
			}
			netnstest.Serve(t, w.pods[b.ID], 8080)
			reach(t, w.pods[a.ID], b.Addresses[0])
			reach(t, w.pods[a.ID], b.Addresses[1])
		})
	}
}

func TestAddOnly(t *testing.T) {
	n, w := newNode(t), newWorld()
	a, b := w.addPod(t, 2), w.addPod(t, 3)
	full := w.state()
	n.mustApply(full, apply.Options{})
	w.Ports = w.Ports[1:]
	w.Routes, w.Tunnels = nil, nil // so that the sources of routes differ too
	c := w.addPod(t, 4)
	if err := n.d.Close(); err != nil {
		t.Fatal(err)
	}
	n.start()
	r := n.apply(w.state(), apply.Options{AddOnly: true})
	for _, change := range r.Changes {
		if strings.HasPrefix(change, "remove") || strings.Contains(change, "down") || strings.HasPrefix(change, "correct route") {
			t.Errorf("an add-only Apply did: %s", change)
		}
	}
	netnstest.Serve(t, w.pods[a.ID], 8080)
	reach(t, w.pods[b.ID], a.Addresses[0])
	reach(t, w.pods[c.ID], a.Addresses[0])
	n.apply(w.state(), apply.Options{})
	n.audit()
	if err := n.d.remover.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.out.LinkByName(a.HostInterface); err == nil {
		t.Error("after a full Apply the unwanted port is still there")
	}
}

func TestHoldKeepsNewLinksDown(t *testing.T) {
	n, w := newNode(t), newWorld()
	a := w.addPod(t, 2)
	n.mustApply(w.state(), apply.Options{})
	b := w.addPod(t, 3)
	hold := errors.New("no rules")
	if _, err := n.d.Prepare(t.Context(), w.state(), apply.Options{}); err != nil {
		t.Fatal(err)
	}
	r, err := n.d.Commit(t.Context(), w.state(), apply.Options{}, hold)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Failed) != 1 || r.Failed[0].Ref != intent.PortRef(b.ID) || !errors.Is(r.Failed[0].Err, hold) {
		t.Errorf("failed: %v, want the new port because of %v", r.Failed, hold)
	}
	for name, up := range map[string]bool{a.HostInterface: true, b.HostInterface: false, claims.VXLANDevice: true} {
		if got := n.link(name).Attrs().Flags&net.FlagUp != 0; got != up {
			t.Errorf("link %s up: got %t, want %t", name, got, up)
		}
	}
	n.mustApply(w.state(), apply.Options{})
}

func TestFailuresStayWithTheirPort(t *testing.T) {
	n, w := newNode(t), newWorld()
	gone, own, odd, good := w.addPod(t, 2), w.addPod(t, 3), w.addPod(t, 4), w.addPod(t, 5)
	netnstest.Remove(t, gone.Netns)
	w.Ports[1].Netns = n.ns.String()
	w.Ports[2].Netns = "/proc/self/ns/uts"
	r := n.apply(w.state(), apply.Options{})
	var failed []string
	for _, f := range r.Failed {
		failed = append(failed, f.Error())
	}
	slices.Sort(failed)
	for i, want := range []struct{ id, text string }{
		{gone.ID, "the network namespace is gone"}, {own.ID, "is the node's own network namespace"}, {odd.ID, "not a network namespace"},
	} {
		if i >= len(failed) || !strings.Contains(failed[i], want.id) || !strings.Contains(failed[i], want.text) {
			t.Errorf("failures %q: want number %d to name %s and say %q", failed, i, want.id, want.text)
		}
	}
	end := n.quiet()
	n.apply(w.state(), apply.Options{})
	end()
	netnstest.Serve(t, w.pods[good.ID], 8080)
	reach(t, n.ns, good.Addresses[0])
}

func TestPortGoesAndComesBackAtOnce(t *testing.T) {
	n, w := newNode(t), newWorld()
	a := w.addPod(t, 2)
	with := w.state()
	w.Ports = nil
	without := w.state()
	n.mustApply(with, apply.Options{})
	open := openFiles(t)
	for range 5 {
		n.apply(without, apply.Options{})
		n.mustApply(with, apply.Options{})
	}
	if now := openFiles(t); now > open {
		t.Errorf("%d files are open, %d were before", now, open)
	}
	netnstest.Serve(t, w.pods[a.ID], 8080)
	reach(t, n.ns, a.Addresses[0])
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// Another container takes over the namespace of one that has just gone.
func TestNamespaceChangesHands(t *testing.T) {
	n, w := newNode(t), newWorld()
	a := w.addPod(t, 2)
	n.mustApply(w.state(), apply.Options{})
	heir := port(3, a.Netns)
	for _, o := range []apply.Options{{}, {Refresh: true}} {
		w.Ports = nil
		n.apply(w.state(), apply.Options{})
		w.Ports = []intent.Port{heir}
		n.mustApply(w.state(), o)
		w.Ports = []intent.Port{a}
		n.mustApply(w.state(), o) // both in one step
	}
	netnstest.Serve(t, w.pods[a.ID], 8080)
	reach(t, n.ns, a.Addresses[0])
}

// A port whose address changes loses the old one; what the pod's own people added
// stays.
func TestPortChanges(t *testing.T) {
	n, w := newNode(t), newWorld()
	a := w.addPod(t, 2)
	n.mustApply(w.state(), apply.Options{})
	pod := handle(t, w.pods[a.ID])
	theirs := &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{10, 77, 0, 1}, Mask: net.CIDRMask(32, 32)}}
	if err := pod.AddrAdd(mustLink(t, pod, "eth0"), theirs); err != nil {
		t.Fatal(err)
	}
	w.Ports[0].Addresses = []netip.Addr{netip.MustParseAddr("10.128.0.7")}
	w.Ports[0].MAC = packet.PodMAC("default", w.Ports[0].Addresses[0])
	w.MTU = 1400
	n.mustApply(w.state(), apply.Options{})
	addrs, err := pod.AddrList(mustLink(t, pod, "eth0"), netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, addr := range addrs {
		got = append(got, addr.IPNet.String())
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"10.128.0.7/32", "10.77.0.1/32"}, got); diff != "" {
		t.Errorf("addresses in the pod (-want +got):\n%s", diff)
	}
	if mtu := mustLink(t, pod, "eth0").Attrs().MTU; mtu != 1400 {
		t.Errorf("MTU in the pod: got %d, want 1400", mtu)
	}
}

// A further interface of a pod neither takes the first one's default routes nor, when
// it goes, leaves the pod without.
func TestSecondInterface(t *testing.T) {
	n, w := newNode(t), newWorld()
	first := w.addPod(t, 2)
	second := port(3, first.Netns)
	second.ID, second.Interface = first.ID+"-second", "net1"
	w.Ports = append(w.Ports, second)
	other := w.addPod(t, 4)
	n.mustApply(w.state(), apply.Options{})
	for _, p := range []intent.Port{first, second} {
		if diffs, err := n.d.CheckPort(t.Context(), p, w.MTU); err != nil || len(diffs) > 0 {
			t.Errorf("%s: %v, error %v", p.Interface, diffs, err)
		}
	}
	netnstest.Serve(t, w.pods[other.ID], 8080)
	reach(t, w.pods[first.ID], other.Addresses[0])
	reach(t, w.pods[first.ID], other.Addresses[1])
	w.Ports = slices.DeleteFunc(w.Ports, func(p intent.Port) bool { return p.ID == second.ID })
	n.mustApply(w.state(), apply.Options{})
	if diffs, err := n.d.CheckPort(t.Context(), first, w.MTU); err != nil || len(diffs) > 0 {
		t.Errorf("after the second has gone: %v, error %v", diffs, err)
	}
}

// More queues than the one that is used cost a wait for every CPU, per pair.
func TestPairsHaveOneQueue(t *testing.T) {
	n, w := newNode(t), newWorld()
	p := w.addPod(t, 2)
	n.mustApply(w.state(), apply.Options{})
	for _, a := range []*netlink.LinkAttrs{mustLink(t, n.out, p.HostInterface).Attrs(), mustLink(t, handle(t, w.pods[p.ID]), "eth0").Attrs()} {
		if a.NumTxQueues != 1 || a.NumRxQueues != 1 {
			t.Errorf("%s has %d queues to send and %d to receive, want one of each", a.Name, a.NumTxQueues, a.NumRxQueues)
		}
	}
}

func TestCheckPort(t *testing.T) {
	n, w := newNode(t), newWorld()
	a := w.addPod(t, 2)
	n.mustApply(w.state(), apply.Options{})
	pod := handle(t, w.pods[a.ID])
	eth0 := mustLink(t, pod, "eth0")
	check := func() []string {
		diffs, err := n.d.CheckPort(t.Context(), a, w.MTU)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, d := range diffs {
			out = append(out, d.Subsystem+" "+d.Object+" "+d.Problem)
		}
		return out
	}
	if got := check(); len(got) > 0 {
		t.Errorf("a port that is right: %v", got)
	}
	err := errors.Join(
		pod.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{10, 77, 0, 1}, Mask: net.CIDRMask(32, 32)}}),
		pod.AddrDel(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: a.Addresses[1].AsSlice(), Mask: net.CIDRMask(128, 128)}}),
		pod.NeighDel(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, IP: claims.Gateway4.AsSlice()}),
		pod.RouteDel(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: claims.Gateway4.AsSlice()}),
		w.pods[a.ID].Do(func() error { return writeSysctl("net/ipv6/conf/eth0/accept_ra", "1") }),
		n.out.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: a.Addresses[0].AsSlice(), Mask: net.CIDRMask(32, 32)}, Scope: netlink.SCOPE_LINK}),
	)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"address fd00:128::2/128 of pod ns/pod2 missing",
		"neighbour 169.254.1.1 of pod ns/pod2 missing",
		"route 0.0.0.0/0 of pod ns/pod2 missing",
		"route 10.128.0.2/32 missing",
		"sysctl net/ipv6/conf/eth0/accept_ra of pod ns/pod2 differs",
	}
	if diff := cmp.Diff(want, check()); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	if err := pod.LinkDel(eth0); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"link " + a.HostInterface + " missing"}, check()); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

func TestTunnelWithOtherSettings(t *testing.T) {
	n, w := newNode(t), newWorld()
	err := n.out.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: claims.VXLANDevice}, VxlanId: 7, Port: 4789, Learning: true})
	if err != nil {
		t.Fatal(err)
	}
	n.mustApply(w.state(), apply.Options{})
	v, ok := n.link(claims.VXLANDevice).(*netlink.Vxlan)
	if !ok || !v.FlowBased || v.Learning || v.Port != 4789 || v.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		t.Errorf("tunnel device: %+v", v)
	}
}

func TestForeignVXLANOnOurPort(t *testing.T) {
	n, w := newNode(t), newWorld()
	err := n.out.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "calico"}, FlowBased: true, Port: 4789})
	if err != nil {
		t.Fatal(err)
	}
	r := n.apply(w.state(), apply.Options{})
	ref := intent.Ref{Kind: "Subnet", Name: "default"}
	i := slices.IndexFunc(r.Failed, func(e apply.ObjectError) bool { return e.Ref == ref })
	if i < 0 || !strings.Contains(r.Failed[i].Error(), "the foreign VXLAN device calico holds UDP port 4789") {
		t.Errorf("failed: %v", r.Failed)
	}
}

// Notifications that were lost are no notifications: everything is read again.
func TestLostNotifications(t *testing.T) {
	n, w := newNode(t), newWorld()
	w.addPeers(0, 100, true)
	a := w.addPod(t, 2)
	n.mustApply(w.state(), apply.Options{})
	if err := n.d.monitor.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) }); err != nil {
		t.Fatal(err)
	}
	dst := &net.IPNet{IP: net.IP{10, 250, 0, 0}, Mask: net.CIDRMask(24, 32)}
	for range 50 {
		err := errors.Join(n.out.RouteAdd(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE}), n.out.RouteDel(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE}))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := n.out.LinkDel(n.link(a.HostInterface)); err != nil {
		t.Fatal(err)
	}
	n.mustApply(w.state(), apply.Options{})
	reachable := n.link(a.HostInterface)
	if reachable.Attrs().Flags&net.FlagUp == 0 {
		t.Error("the port was not repaired")
	}
}

func TestHundredPorts(t *testing.T) {
	n, w := newNode(t), newWorld()
	var pods []intent.Port
	for i := range 100 {
		pods = append(pods, w.addPod(t, i+2))
	}
	start := time.Now()
	n.mustApplyQuick(w)
	t.Logf("100 ports from nothing: %v", time.Since(start))
	n.audit()
	if err := n.d.Close(); err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	n.start()
	if r := n.apply(w.state(), apply.Options{}); len(r.Changes) > 0 {
		t.Errorf("a restart changed: %v", r.Changes)
	}
	t.Logf("100 ports adopted by a new process: %v", time.Since(start))
	var each []time.Duration
	for i := range 20 {
		w.addPod(t, 200+i)
		start = time.Now()
		n.mustApplyQuick(w)
		each = append(each, time.Since(start))
	}
	slices.Sort(each)
	t.Logf("one more port, render included: median %v, worst of %d %v", each[len(each)/2], len(each), each[len(each)-1])
	netnstest.Serve(t, w.pods[pods[99].ID], 8080)
	reach(t, w.pods[pods[0].ID], pods[99].Addresses[0])
	w.Ports = nil
	start = time.Now()
	n.mustApplyQuick(w)
	t.Logf("removal of 120 ports until the reply: %v", time.Since(start))
	if err := n.d.remover.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("and until the links are gone: %v", time.Since(start))
}

func (n *node) mustApplyQuick(w *world) {
	n.Helper()
	if r := n.apply(w.state(), apply.Options{}); len(r.Failed) > 0 {
		n.Errorf("failed: %v", r.Failed)
	}
}

func TestThousandPeers(t *testing.T) {
	n, w := newNode(t), newWorld()
	n.addUnderlay(w)
	w.addPeers(0, 1000, false)
	start := time.Now()
	n.mustApplyQuick(w)
	t.Logf("1,000 peers' routes from nothing: %v (render included)", time.Since(start))
	n.audit()
	n.mustApplyQuick(w)
	var each []time.Duration
	for i := range 20 {
		w.addPeers(1000+i, 1001+i, false)
		start = time.Now()
		r := n.apply(w.state(), apply.Options{})
		each = append(each, time.Since(start))
		if len(r.Changes) != 1 || len(r.Failed) > 0 || !strings.HasPrefix(r.Changes[0], "add route 10.129.") {
			t.Errorf("one new peer: changed %v, failed %v; want one route", r.Changes, r.Failed)
		}
	}
	slices.Sort(each)
	t.Logf("one new peer among 1,000, render included: median %v, worst of %d %v", each[len(each)/2], len(each), each[len(each)-1])
	w.Peers, w.Routes = nil, nil
	n.mustApplyQuick(w)
	n.audit()
}
