package bpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// host is a thread of its own in a fresh network and mount namespace.
type host struct {
	t     *testing.T
	calls chan func()
	fd    int
	nl    *netlink.Handle
	wire  *Wire
	dir   string
	mac   packet.MAC
}

func newHost(t *testing.T, name string) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces and BPF programs")
	}
	h := &host{t: t, calls: make(chan func()), mac: packet.VTEPMAC(name), dir: t.TempDir()}
	started := make(chan error)
	go func() {
		// Never unlocked: the thread dies with the goroutine, and its namespaces with it.
		runtime.LockOSThread()
		started <- h.enter()
		for f := range h.calls {
			f()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("make namespace of host %s: %v", name, err)
	}
	t.Cleanup(func() {
		h.do(func() {
			if h.wire != nil {
				h.wire.Close()
			}
			unix.Unmount(h.dir, unix.MNT_DETACH)
		})
		h.nl.Close()
		unix.Close(h.fd)
		close(h.calls)
	})
	return h
}

func (h *host) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("bpf", h.dir, "bpf", 0, ""); err != nil {
		return err
	}
	var err error
	if h.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	h.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	return err
}

// do runs f on the host's thread. A failed check ends f, then the test.
func (h *host) do(f func()) {
	h.t.Helper()
	failed := make(chan any)
	h.calls <- func() {
		defer func() { failed <- recover() }()
		f()
	}
	if why := <-failed; why != nil {
		h.t.Fatal(why)
	}
}

// must ends the test if there is an error; inside of do, check does the same
// without ending the host's thread.
func (h *host) must(what string, err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
}

func check(what string, err error) {
	if err != nil {
		panic(fmt.Sprintf("%s: %v", what, err))
	}
}

// tunnel makes the tunnel device with an address of the node itself.
func (h *host) tunnel(inner ...string) int {
	h.t.Helper()
	vx := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: claims.VXLANDevice, MTU: 1400, HardwareAddr: h.mac[:]},
		FlowBased: true, Port: int(claims.VXLANPort), Learning: false,
	}
	h.must("add tunnel device", h.nl.LinkAdd(vx))
	l, err := h.nl.LinkByName(claims.VXLANDevice)
	h.must("find tunnel device", err)
	h.must("arp off", h.nl.LinkSetARPOff(l))
	for _, a := range inner {
		p := netip.MustParsePrefix(a)
		h.must("add address", h.nl.AddrAdd(l, &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(p.Addr(), p.Addr().BitLen())), Flags: unix.IFA_F_NODAD}))
	}
	h.must("tunnel up", h.nl.LinkSetUp(l))
	for _, a := range inner {
		h.must("add route", h.nl.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipnet(netip.MustParsePrefix(a).Masked()), Scope: unix.RT_SCOPE_LINK}))
	}
	return l.Attrs().Index
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// cable joins two hosts by a veth pair with the given underlay addresses.
func cable(a, b *host, addrA, addrB string) {
	t := a.t
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(b.fd)}
	a.must("add cable", a.nl.LinkAdd(veth))
	for _, end := range []struct {
		h    *host
		addr string
	}{{a, addrA}, {b, addrB}} {
		l, err := end.h.nl.LinkByName("eth0")
		end.h.must("find cable", err)
		end.h.must("address", end.h.nl.AddrAdd(l, &netlink.Addr{IPNet: ipnetHost(end.addr), Flags: unix.IFA_F_NODAD}))
		end.h.must("up", end.h.nl.LinkSetUp(l))
	}
}

func ipnetHost(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// send sends one UDP datagram with the VNI in its mark, from src.
func (h *host) send(vni packet.VNI, src, dst netip.AddrPort, text string) {
	h.t.Helper()
	h.do(func() {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(src), Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			return errors.Join(c.Control(func(fd uintptr) {
				err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(claims.Mark(vni))),
					unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1))
			}), err)
		}}
		conn, err := d.Dial("udp", dst.String())
		if err != nil {
			h.t.Errorf("dial %s: %v", dst, err)
			return
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(text)); err != nil {
			h.t.Errorf("send to %s: %v", dst, err)
		}
	})
}

func (h *host) listen(addr netip.AddrPort) *net.UDPConn {
	h.t.Helper()
	var conn *net.UDPConn
	var err error
	h.do(func() { conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr)) })
	h.must("listen", err)
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

const (
	vpc    packet.VNI = 0xabcdef // uses bits on both sides of kube-proxy's
	tenant packet.VNI = 77
	alien  packet.VNI = 99
)

// pair is two hosts with the wire between them: 10.1.0.0/24 is at a, 10.2.0.0/24
// at b (and the same in IPv6).
func pair(t *testing.T, outerA, outerB string) (a, b *host) {
	t.Helper()
	a, b = newHost(t, "a"), newHost(t, "b")
	cable(a, b, outerA, outerB)
	oa, ob := netip.MustParsePrefix(outerA).Addr(), netip.MustParsePrefix(outerB).Addr()
	for _, s := range []struct {
		h             *host
		inner, inner6 string
		outerA        netip.Addr
		outerB        netip.Addr
	}{{a, "10.1.0.1/8", "fd10:1::1/16", netip.Addr{}, ob}, {b, "10.2.0.1/8", "fd10:2::1/16", oa, netip.Addr{}}} {
		index := s.h.tunnel(s.inner, s.inner6)
		want := linux.Wire{VNIs: []linux.WireVNI{{VNI: tenant, VPC: vpc}, {VNI: vpc, VPC: vpc}}}
		for _, net := range []string{"10.1.0.0/24", "fd10:1::/64"} {
			want.Entries = append(want.Entries, linux.WireEntry{VPC: vpc, Prefix: netip.MustParsePrefix(net), Outer: s.outerA, MAC: a.mac})
		}
		for _, net := range []string{"10.2.0.0/24", "fd10:2::/64"} {
			want.Entries = append(want.Entries, linux.WireEntry{VPC: vpc, Prefix: netip.MustParsePrefix(net), Outer: s.outerB, MAC: b.mac})
		}
		s.h.do(func() {
			var err error
			s.h.wire, err = Open(Config{Dir: s.h.dir + "/fairlead"})
			check("open", err)
			if _, err := s.h.wire.Apply(context.Background(), want, apply.Options{}); err != nil {
				t.Errorf("apply: %v", err)
			}
			if _, err := s.h.wire.Attach(index); err != nil {
				t.Errorf("attach: %v", err)
			}
		})
	}
	return a, b
}

// expect sends a packet and says whether it came; a second, good one marks the
// end of the wait.
func expect(t *testing.T, a, b *host, vni packet.VNI, src, dst string, want bool) {
	t.Helper()
	d := netip.MustParseAddr(dst)
	conn := b.listen(netip.AddrPortFrom(d, 0))
	port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	a.send(vni, netip.AddrPortFrom(netip.MustParseAddr(src), 0), netip.AddrPortFrom(d, port), "probe")
	good := "10.1.0.1"
	if d.Is6() {
		good = "fd10:1::1"
	}
	a.send(vpc, netip.AddrPortFrom(netip.MustParseAddr(good), 0), netip.AddrPortFrom(d, port), "end")
	got := false
	buf := make([]byte, 64)
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	for {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("VNI %d %s > %s: the good packet did not come: %v", vni, src, dst, err)
		}
		if string(buf[:n]) == "end" {
			break
		}
		got = true
	}
	if got != want {
		t.Errorf("VNI %d %s > %s: delivered %t, want %t", vni, src, dst, got, want)
	}
}

func TestWireContract(t *testing.T) {
	for _, underlay := range []struct{ name, a, b string }{
		{"over IPv4", "192.0.2.1/24", "192.0.2.2/24"},
		{"over IPv6", "2001:db8::1/64", "2001:db8::2/64"},
	} {
		t.Run(underlay.name, func(t *testing.T) {
			a, b := pair(t, underlay.a, underlay.b)
			expect(t, a, b, vpc, "10.1.0.1", "10.2.0.1", true)
			expect(t, a, b, tenant, "10.1.0.1", "10.2.0.1", true)
			expect(t, a, b, tenant, "fd10:1::1", "fd10:2::1", true)
			expect(t, a, b, alien, "10.1.0.1", "10.2.0.1", false)
			expect(t, a, b, vpc, "10.3.0.1", "10.2.0.1", false)
			expect(t, a, b, vpc, "10.2.0.9", "10.2.0.1", false)

			// What has no VNI gets that of the VPC, if there is but one.
			expect(t, a, b, 0, "10.1.0.1", "10.2.0.1", true)
			two := linux.Wire{VNIs: []linux.WireVNI{{VNI: alien, VPC: alien}}}
			a.do(func() {
				_, err := a.wire.Apply(t.Context(), two, apply.Options{AddOnly: true})
				check("add a VPC", err)
			})
			expect(t, a, b, 0, "10.1.0.1", "10.2.0.1", false)

			// A node that lies about its VNIs and places is held by its peer.
			a.do(func() {
				forged, err := a.wire.Apply(t.Context(), linux.Wire{
					VNIs: []linux.WireVNI{{VNI: vpc, VPC: vpc}, {VNI: alien, VPC: vpc}},
					Entries: []linux.WireEntry{
						{VPC: vpc, Prefix: netip.MustParsePrefix("0.0.0.0/0"), Outer: netip.MustParsePrefix(underlay.b).Addr(), MAC: b.mac},
						{VPC: vpc, Prefix: netip.MustParsePrefix("::/0"), Outer: netip.MustParsePrefix(underlay.b).Addr(), MAC: b.mac},
					},
				}, apply.Options{})
				if err != nil || len(forged) == 0 {
					t.Errorf("forge: %v %v", forged, err)
				}
			})
			expect(t, a, b, alien, "10.1.0.1", "10.2.0.1", false)
			expect(t, a, b, vpc, "10.3.0.1", "10.2.0.1", false)
			var drops map[string]uint64
			b.do(func() { drops, _ = b.wire.Drops(t.Context()) })
			if drops["wire in-unknown-vni"] != 1 || drops["wire in-bad-source"] != 3 {
				t.Errorf("drop counters of the receiver are %v, want one unknown VNI and three bad sources", drops)
			}
		})
	}
}

func TestAdoptAfterRestart(t *testing.T) {
	a, b := pair(t, "192.0.2.1/24", "192.0.2.2/24")
	a.do(func() {
		index := 0
		if l, err := a.nl.LinkByName(claims.VXLANDevice); err == nil {
			index = l.Attrs().Index
		}
		before, _, err := a.wire.read()
		check("read maps", err)
		check("close", a.wire.Close())
		a.wire, err = Open(Config{Dir: a.dir + "/fairlead"})
		check("open again", err)
		if diff := cmp.Diff(before, a.wire.places); diff != "" {
			t.Errorf("the maps were not adopted (-before +after):\n%s", diff)
		}
		changes, err := a.wire.Attach(index)
		if err != nil || len(changes) != 0 {
			t.Errorf("attach after a restart changed %v, error %v; want nothing", changes, err)
		}
		if on, err := a.wire.Attached(index); !on || err != nil {
			t.Errorf("attached: %t, %v", on, err)
		}
	})
	expect(t, a, b, vpc, "10.1.0.1", "10.2.0.1", true)
}

func TestApplyIsIdempotentAndComplete(t *testing.T) {
	h := newHost(t, "a")
	h.do(func() {
		var err error
		h.wire, err = Open(Config{Dir: h.dir + "/fairlead"})
		check("open", err)
		want := linux.Wire{VNIs: []linux.WireVNI{{VNI: 5, VPC: 5}}}
		for i := range 1000 {
			want.Entries = append(want.Entries, linux.WireEntry{
				VPC: 5, Prefix: netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/26", i/256, i%256)),
				Outer: netip.AddrFrom4([4]byte{172, 30, byte(i / 256), byte(i)}), MAC: packet.VTEPMAC(fmt.Sprint(i)),
			})
		}
		start := time.Now()
		changes, err := h.wire.Apply(t.Context(), want, apply.Options{})
		check("apply", err)
		t.Logf("1,000 prefixes from nothing: %v", time.Since(start))
		if len(changes) != 1001 {
			t.Errorf("%d changes, want 1001", len(changes))
		}
		if again, err := h.wire.Apply(t.Context(), want, apply.Options{Refresh: true}); err != nil || len(again) != 0 {
			t.Errorf("applied again: %v %v, want no change", again, err)
		}
		fewer := linux.Wire{VNIs: want.VNIs, Entries: want.Entries[:10]}
		if kept, err := h.wire.Apply(t.Context(), fewer, apply.Options{AddOnly: true}); err != nil || len(kept) != 0 {
			t.Errorf("add-only removed: %v %v", kept, err)
		}
		if gone, err := h.wire.Apply(t.Context(), fewer, apply.Options{}); err != nil || len(gone) != 990 {
			t.Errorf("removed %d prefixes, error %v; want 990", len(gone), err)
		}
		// Somebody else removes an entry and changes a VNI.
		k, _ := encodeEntry(fewer.Entries[3])
		check("damage", h.wire.objects.FlPlaces.Delete(k))
		check("damage", h.wire.objects.FlVnis.Put(uint32(5), uint32(6)))
		diff, err := h.wire.Audit(fewer)
		if err != nil || len(diff) != 2 || diff[0].Problem != "missing" && diff[0].Problem != "differs" || diff[0].Problem == diff[1].Problem {
			t.Errorf("audit: %v %v, want one missing prefix and one VNI that differs", diff, err)
		}
		if fixed, err := h.wire.Apply(t.Context(), fewer, apply.Options{Refresh: true}); err != nil || len(fixed) != 2 {
			t.Errorf("repair: %v %v, want two changes", fixed, err)
		}
		check("uninstall", Uninstall(h.dir+"/fairlead"))
		if _, err := os.Stat(h.dir + "/fairlead"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("pins are left after uninstall: %v", err)
		}
	})
}

func TestOpenNeedsBPFFS(t *testing.T) {
	if _, err := Open(Config{Dir: t.TempDir() + "/fairlead"}); err == nil {
		t.Fatal("a plain directory was accepted for pins")
	}
}
