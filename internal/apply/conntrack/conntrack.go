package conntrack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
)

// Flow is an entry.
type Flow struct {
	// Src and Dst are those of the flow's first packet, as it came.
	Src, Dst netip.Addr
	// ReplyDst is where answers go: Src, unless the source is translated.
	ReplyDst netip.Addr
}

// Forget deletes the entries of a network namespace, in all zones, that match, and
// returns how many there were. The next packet of such a flow is a first one again.
func Forget(ns *netns.NS, match func(Flow) bool) (int, error) {
	var h *netlink.Handle
	err := ns.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("connect to conntrack: %w", err)
	}
	defer h.Close()
	deleted := 0
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		n, ferr := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter(match))
		deleted += int(n)
		err = errors.Join(err, ferr)
	}
	if err != nil {
		return deleted, fmt.Errorf("delete conntrack entries: %w", err)
	}
	return deleted, nil
}

type filter func(Flow) bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f filter) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	return f(Flow{Src: addr(c.Forward.SrcIP), Dst: addr(c.Forward.DstIP), ReplyDst: addr(c.Reverse.DstIP)})
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
