package conntrack_test

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
)

func TestForget(t *testing.T) {
	ns := netnstest.New(t)
	var h *netlink.Handle
	err := ns.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	add := func(family netlink.InetFamily, src, dst, replyDst string) {
		t.Helper()
		tuple := func(from, to string, sport, dport uint16) netlink.IPTuple {
			return netlink.IPTuple{
				Protocol: unix.IPPROTO_UDP, SrcPort: sport, DstPort: dport,
				SrcIP: netip.MustParseAddr(from).AsSlice(), DstIP: netip.MustParseAddr(to).AsSlice(),
			}
		}
		err := h.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 100, Forward: tuple(src, dst, 1000, 53), Reverse: tuple(dst, replyDst, 53, 1000),
		})
		if err != nil {
			t.Skipf("this kernel takes no conntrack entries: %v", err)
		}
	}
	add(unix.AF_INET, "10.0.0.1", "192.0.2.1", "10.0.0.1")
	add(unix.AF_INET, "10.0.0.2", "192.0.2.1", "10.0.0.2")
	add(unix.AF_INET6, "fd00::1", "2001:db8::1", "fd00::1")
	add(unix.AF_INET6, "fd00::2", "2001:db8::1", "fd00::2")
	doomed := map[netip.Addr]bool{netip.MustParseAddr("10.0.0.1"): true, netip.MustParseAddr("fd00::1"): true}
	n, err := conntrack.Forget(ns, func(f conntrack.Flow) bool { return doomed[f.Src] && f.ReplyDst == f.Src && f.Dst.IsValid() })
	if err != nil || n != 2 {
		t.Errorf("forgot %d flows, %v; want 2", n, err)
	}
	left := 0
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := h.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range flows {
			left++
			if a, _ := netip.AddrFromSlice(f.Forward.SrcIP); doomed[a.Unmap()] {
				t.Errorf("still there: %s", f)
			}
		}
	}
	if left != 2 {
		t.Errorf("%d entries are left, want 2", left)
	}
}
