package rtnl

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// addUnderlay gives the node a NIC: one end of a veth pair whose other end, up, is
// in a namespace of its own.
func (n *node) addUnderlay(w *world) {
	n.Helper()
	other := netnstest.New(n.T)
	err := n.out.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nic"}, PeerName: "nic", PeerNamespace: netlink.NsFd(other.FD())})
	if err != nil {
		n.Fatal(err)
	}
	far := handle(n.T, other)
	l, err := far.LinkByName("nic")
	if err != nil {
		n.Fatal(err)
	}
	if err := far.LinkSetUp(l); err != nil {
		n.Fatal(err)
	}
	nic := n.link("nic")
	for _, p := range w.Underlay {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := n.out.AddrAdd(nic, a); err != nil {
			n.Fatal(err)
		}
	}
	// IPv6 addresses survive a NIC that goes down, as they do where a network
	// daemon looks after them.
	if err := n.ns.Do(func() error { return writeSysctl("net/ipv6/conf/nic/keep_addr_on_down", "1") }); err != nil {
		n.Fatal(err)
	}
	if err := n.out.LinkSetUp(nic); err != nil {
		n.Fatal(err)
	}
}

// addPeers adds peers with a block each, direct or behind the tunnel.
func (w *world) addPeers(from, to int, encapsulate bool) {
	for i := from; i < to; i++ {
		name := "peer" + string(rune('a'+i/1000)) + netip.AddrFrom4([4]byte{0, 0, byte(i >> 8), byte(i)}).String()
		a4 := netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i%200)})
		w.Peers = append(w.Peers, intent.Peer{Name: name, Addrs: []netip.Addr{a4, netip.MustParseAddr("2001:db8::2")}, Outer: a4})
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 129, byte(i >> 2), byte(i << 6)}), 26)
		w.Routes = append(w.Routes, intent.Route{VPC: "default", Dst: dst, NextHop: intent.NextHop{Peer: name}, Encapsulate: encapsulate})
	}
}

// watch runs a Watch that repairs at once, as the agent does, until the test ends.
// repaired gets the time of each Apply that changed something.
func (n *node) watch(state linux.State) (foreign chan apply.Foreign, repaired chan time.Time) {
	foreign, repaired = make(chan apply.Foreign, 1000), make(chan time.Time, 1000)
	kick := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- n.d.Watch(ctx, func(f apply.Foreign) {
			foreign <- f
			select {
			case kick <- struct{}{}:
			default:
			}
		})
	}()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		for {
			select {
			case <-ctx.Done():
				return
			case <-kick:
				r, err := n.try(ctx, state, apply.Options{})
				if err != nil && ctx.Err() == nil {
					n.Errorf("repair: %v", err)
				}
				if len(r.Changes) > 0 {
					repaired <- time.Now()
				}
			}
		}
	}()
	n.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.Errorf("watch: %v", err)
		}
		<-idle
	})
	return foreign, repaired
}

func TestForeignDamageIsRepaired(t *testing.T) {
	for _, tc := range []struct {
		name   string
		report string // what a Foreign must tell
		damage func(n *node, p intent.Port) error
	}{
		{"flush routes", "route 10.128.0.0/14 dev fl.vxlan src 10.128.0.1 deleted", func(n *node, _ intent.Port) error { return n.flushRoutes() }},
		{"delete the tunnel", "link fl.vxlan deleted", func(n *node, _ intent.Port) error { return n.out.LinkDel(n.link(claims.VXLANDevice)) }},
		{"tunnel's MAC", "link fl.vxlan: MAC address changed", func(n *node, _ intent.Port) error {
			return n.out.LinkSetHardwareAddr(n.link(claims.VXLANDevice), net.HardwareAddr{2, 0, 0, 0, 0, 9})
		}},
		{"tunnel's MTU", "link fl.vxlan: MTU changed", func(n *node, _ intent.Port) error { return n.out.LinkSetMTU(n.link(claims.VXLANDevice), 1200) }},
		{"tunnel down", "link fl.vxlan set down", func(n *node, _ intent.Port) error { return n.out.LinkSetDown(n.link(claims.VXLANDevice)) }},
		{"tunnel's address", "address 10.128.0.1/32 dev fl.vxlan deleted", func(n *node, _ intent.Port) error {
			return n.out.AddrDel(n.link(claims.VXLANDevice), &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{10, 128, 0, 1}, Mask: net.CIDRMask(32, 32)}})
		}},
		{"a foreign address on the tunnel", "address 10.9.9.9/32 dev fl.vxlan added", func(n *node, _ intent.Port) error {
			return n.out.AddrAdd(n.link(claims.VXLANDevice), &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{10, 9, 9, 9}, Mask: net.CIDRMask(32, 32)}})
		}},
		{"port's neighbour", "neighbour 10.128.0.2 dev flp", func(n *node, p intent.Port) error {
			return n.out.NeighDel(&netlink.Neigh{LinkIndex: n.link(p.HostInterface).Attrs().Index, IP: p.Addresses[0].AsSlice()})
		}},
		{"port's neighbour poisoned", "neighbour fd00:128::2 dev flp", func(n *node, p intent.Port) error {
			return n.out.NeighSet(&netlink.Neigh{
				LinkIndex: n.link(p.HostInterface).Attrs().Index, IP: p.Addresses[1].AsSlice(),
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}, State: netlink.NUD_PERMANENT,
			})
		}},
		{"host's end deleted", "link flp", func(n *node, p intent.Port) error { return n.out.LinkDel(n.link(p.HostInterface)) }},
		{"host's end down", "set down", func(n *node, p intent.Port) error { return n.out.LinkSetDown(n.link(p.HostInterface)) }},
		{"host's MAC", "MAC address changed", func(n *node, p intent.Port) error {
			return n.out.LinkSetHardwareAddr(n.link(p.HostInterface), net.HardwareAddr{2, 0, 0, 0, 0, 9})
		}},
		{"a route of ours replaced", "route 10.129.0.0/26 via 192.0.2.10 dev nic src 10.128.0.1 changed", func(n *node, p intent.Port) error {
			return n.out.RouteReplace(&netlink.Route{
				Dst: &net.IPNet{IP: net.IP{10, 129, 0, 0}, Mask: net.CIDRMask(26, 32)}, LinkIndex: n.link("nic").Attrs().Index, Protocol: claims.RouteProtocol,
			})
		}},
		{"forwarding off", "sysctl net/ipv4/ip_forward set to 0", func(n *node, _ intent.Port) error {
			return n.ns.Do(func() error { return writeSysctl("net/ipv4/ip_forward", "0") })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, w := newNode(t), newWorld()
			n.addUnderlay(w)
			a, b := w.addPod(t, 2), w.addPod(t, 3)
			w.addPeers(0, 2, false)
			state := w.state()
			n.mustApply(state, apply.Options{})
			foreign, repaired := n.watch(state)
			start := time.Now()
			if err := tc.damage(n, a); err != nil {
				t.Fatal(err)
			}
			select {
			case at := <-repaired:
				t.Logf("repaired %v after it began", at.Sub(start))
			case <-t.Context().Done():
				t.Fatal("not repaired")
			}
			n.settle(state)
			n.audit()
			var told []string
			for len(foreign) > 0 {
				told = append(told, (<-foreign).What)
			}
			if all := strings.Join(told, "\n"); !strings.Contains(all, tc.report) {
				t.Errorf("reported:\n%s\nwant a line with %q", all, tc.report)
			}
			netnstest.Serve(t, w.pods[b.ID], 8080)
			reach(t, w.pods[a.ID], b.Addresses[0])
		})
	}
}

// A port's link goes with the pod's namespace, which the runtime removes as soon as DEL has
// answered. That is one piece of news, and no reason to read everything anew.
func TestPortGoneWithItsNamespace(t *testing.T) {
	n, w := newNode(t), newWorld()
	a, b := w.addPod(t, 2), w.addPod(t, 3)
	n.mustApply(w.state(), apply.Options{})
	known := func() *shadow {
		n.d.mu.Lock()
		defer n.d.mu.Unlock()
		return n.d.shadow
	}
	before := known()
	foreign := make(chan apply.Foreign, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.d.Watch(ctx, func(f apply.Foreign) { foreign <- f }) }()
	inside := handle(t, w.pods[a.ID])
	eth0, err := inside.LinkByName(a.Interface)
	if err != nil {
		t.Fatal(err)
	}
	if err := inside.LinkDel(eth0); err != nil {
		t.Fatal(err)
	}
	if f := <-foreign; f.Port != a.HostInterface || f.What != "link "+a.HostInterface+" deleted" {
		t.Errorf("told of %+v", f)
	}
	if known() != before {
		t.Error("everything was read anew")
	}
	w.Ports = []intent.Port{b}
	if r := n.apply(w.state(), apply.Options{}); len(r.Failed) > 0 || r.Foreign {
		t.Errorf("failed: %v, others changed something: %t", r.Failed, r.Foreign)
	}
	n.audit()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for len(foreign) > 0 {
		t.Errorf("told of %+v, too", <-foreign)
	}
}

// settle applies until nothing is left to do: the repair may have begun between
// two halves of one damage.
func (n *node) settle(state linux.State) {
	n.Helper()
	for range 5 {
		if r := n.apply(state, apply.Options{}); len(r.Changes) == 0 {
			return
		}
	}
	n.Error("it does not settle")
}

func (n *node) flushRoutes() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := n.out.RouteListFiltered(family, &netlink.Route{Protocol: claims.RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if err := n.out.RouteDel(&r); err != nil {
				return err
			}
		}
	}
	return nil
}

// A NIC that goes down takes IPv4 routes with it without a word from the kernel.
func TestUnderlayDownAndUp(t *testing.T) {
	n, w := newNode(t), newWorld()
	n.addUnderlay(w)
	w.addPeers(0, 50, false)
	state := w.state()
	n.mustApply(state, apply.Options{})
	_, repaired := n.watch(state)
	nic := n.link("nic")
	if err := n.out.LinkSetDown(nic); err != nil {
		t.Fatal(err)
	}
	if r := n.apply(state, apply.Options{}); len(r.Failed) != 50 || !strings.Contains(r.Failed[0].Error(), "link is down") {
		t.Errorf("with the NIC down %d objects failed, want 50 that say why: %v", len(r.Failed), r.Failed[:min(1, len(r.Failed))])
	}
	for len(repaired) > 0 {
		<-repaired
	}
	start := time.Now()
	if err := n.out.LinkSetUp(nic); err != nil {
		t.Fatal(err)
	}
	t.Logf("50 routes are back %v after the NIC", (<-repaired).Sub(start))
	n.settle(state)
	n.audit()
}

// An address of the node's that routes wait for is noticed when it comes: nothing else
// tells that they can be had.
func TestUnderlayAddressComes(t *testing.T) {
	n, w := newNode(t), newWorld()
	n.addUnderlay(w)
	w.addPeers(0, 2, true)
	for i := range w.Peers { // over IPv6 alone
		dst := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 0x29, 15: byte(i << 2)}), 126)
		w.Routes = append(w.Routes, intent.Route{VPC: "default", Dst: dst, NextHop: intent.NextHop{Peer: w.Peers[i].Name}})
	}
	state, nic := w.state(), n.link("nic")
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: w.Underlay[1].Addr().AsSlice(), Mask: net.CIDRMask(w.Underlay[1].Bits(), 128)}, Flags: unix.IFA_F_NODAD}
	if err := n.out.AddrDel(nic, addr); err != nil {
		t.Fatal(err)
	}
	if r := n.apply(state, apply.Options{}); len(r.Failed) != 2 {
		t.Fatalf("without the address %d objects failed, want 2: %v", len(r.Failed), r.Failed)
	}
	_, repaired := n.watch(state)
	start := time.Now()
	if err := n.out.AddrAdd(nic, addr); err != nil {
		t.Fatal(err)
	}
	t.Logf("2 routes are there %v after the address", (<-repaired).Sub(start))
	n.settle(state)
	n.audit()
}

// A link that is down only between two looks of ours has lost its routes all the same,
// and only the notifications in between tell of it.
func TestLinkDownAndUpUnseen(t *testing.T) {
	for _, tc := range []struct {
		name, link string
		direct     bool
	}{
		{"NIC under direct routes", "nic", true},
		{"NIC under the tunnel", "nic", false},
		{"host's end", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, w := newNode(t), newWorld()
			n.addUnderlay(w)
			pod := w.addPod(t, 2)
			w.addPeers(0, 2, !tc.direct)
			state := w.state()
			n.mustApply(state, apply.Options{})
			n.mustApply(state, apply.Options{}) // our own notifications are read
			l := n.link(cmp.Or(tc.link, pod.HostInterface))
			if err := errors.Join(n.out.LinkSetDown(l), n.out.LinkSetUp(l)); err != nil {
				t.Fatal(err)
			}
			n.mustApply(state, apply.Options{})
			n.audit()
			if !slices.ContainsFunc(n.d.foreign, func(f apply.Foreign) bool { return f.What == "link "+l.Attrs().Name+" set down and up again" }) {
				t.Errorf("reported: %v", n.d.foreign)
			}
		})
	}
}

// What others do to what is theirs is nobody's concern.
func TestForeignObjectsStay(t *testing.T) {
	n, w := newNode(t), newWorld()
	n.addUnderlay(w)
	w.addPod(t, 2)
	state := w.state()
	n.mustApply(state, apply.Options{})
	err := n.out.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "theirs"}, PeerName: "theirs2"})
	if err != nil {
		t.Fatal(err)
	}
	theirs := n.link("theirs")
	if err := n.out.LinkSetUp(theirs); err != nil {
		t.Fatal(err)
	}
	dst := &net.IPNet{IP: net.IP{10, 200, 0, 0}, Mask: net.CIDRMask(16, 32)}
	if err := n.out.RouteAdd(&netlink.Route{Dst: dst, LinkIndex: theirs.Attrs().Index, Protocol: unix.RTPROT_STATIC}); err != nil {
		t.Fatal(err)
	}
	before := dump(t, n.ns)
	for _, o := range []apply.Options{{}, {Refresh: true}} {
		if changes := n.mustApply(state, o); len(changes) > 0 {
			t.Errorf("changed: %v", changes)
		}
	}
	if len(n.d.foreign) > 0 {
		t.Errorf("reported as foreign changes to what is ours: %v", n.d.foreign)
	}
	if got := dump(t, n.ns); strings.Join(got, "\n") != strings.Join(before, "\n") {
		t.Error("foreign objects were touched")
	}
}

func TestForeignObjectsInTheWay(t *testing.T) {
	n, w := newNode(t), newWorld()
	n.addUnderlay(w)
	a, b := w.addPod(t, 2), w.addPod(t, 3)
	w.addPeers(0, 2, false)
	state := w.state()
	inPod := handle(t, w.pods[a.ID])
	steps := []error{
		n.out.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: claims.VXLANDevice}}),
		inPod.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}),
		n.out.RouteAdd(&netlink.Route{
			Dst: &net.IPNet{IP: net.IP{10, 129, 0, 0}, Mask: net.CIDRMask(26, 32)}, LinkIndex: n.link("nic").Attrs().Index, Protocol: unix.RTPROT_STATIC,
		}),
	}
	for _, err := range steps {
		if err != nil {
			t.Fatal(err)
		}
	}
	r := n.apply(state, apply.Options{})
	want := map[intent.Ref]string{
		{Kind: "Subnet", Name: "default"}:                   "a foreign link (kind bridge) bears the tunnel's name fl.vxlan",
		{Kind: "TunnelAddress", Name: "default 10.128.0.1"}: "a foreign link",
		intent.PortRef(a.ID):                                "the pod has a foreign link eth0 already",
		{Kind: "Route", Name: "default 10.129.0.0/26"}:      "the foreign route 10.129.0.0/26 dev nic, protocol 4, is there",
	}
	got := map[intent.Ref]string{}
	for _, f := range r.Failed {
		got[f.Ref] = f.Err.Error()
	}
	for ref, text := range want {
		if !strings.Contains(got[ref], text) {
			t.Errorf("%s: got %q, want %q in it", ref, got[ref], text)
		}
	}
	for _, ref := range []intent.Ref{intent.PortRef(b.ID), {Kind: "Route", Name: "default 10.129.0.64/26"}} {
		if got[ref] != "" {
			t.Errorf("%s failed too: %s", ref, got[ref])
		}
	}
	if n.link(claims.VXLANDevice).Type() != "bridge" {
		t.Error("the foreign link was replaced")
	}
	for _, err := range []error{n.out.LinkDel(n.link(claims.VXLANDevice)), inPod.LinkDel(mustLink(t, inPod, "eth0"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := n.out.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: net.IP{10, 129, 0, 0}, Mask: net.CIDRMask(26, 32)}}); err != nil {
		t.Fatal(err)
	}
	n.mustApply(state, apply.Options{})
}

func mustLink(t *testing.T, h *netlink.Handle, name string) netlink.Link {
	t.Helper()
	l, err := h.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
