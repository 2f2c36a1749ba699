package ovsplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// host are the links of the node that Open vSwitch makes for us, and what must be on them.
type host struct {
	ns *netns.NS
	h  *netlink.Handle
	// socket is for ioctls on links, netdevice(7).
	socket int
	// seen are the names of links that there were.
	seen map[string]bool
	// fresh are the IPv6 addresses that were set and may not receive yet.
	fresh []netip.Addr
}

func openHost(ns *netns.NS) (*host, error) {
	out := &host{ns: ns, seen: map[string]bool{}}
	err := ns.Do(func() (err error) {
		if out.h, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_GENERIC); err != nil {
			return err
		}
		if out.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			out.h.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to links of the host: %w", err)
	}
	return out, nil
}

func (h *host) close() error {
	h.h.Close()
	return unix.Close(h.socket)
}

// hostLink is a link that Open vSwitch makes, and what we put on it.
type hostLink struct {
	name string
	// mac is left alone if it is zero.
	mac packet.MAC
	// noARP: it neither asks nor answers.
	noARP      bool
	addrs      []netip.Prefix
	neighbours []ovs.Neighbour
	sysctls    []linux.Sysctl
}

// gatewayLink is the host's own port of the bridge.
func gatewayLink(g ovs.Gateway) hostLink {
	l := hostLink{name: g.Name, mac: g.MAC, neighbours: g.Neighbours, sysctls: g.Sysctls}
	for _, a := range g.Addresses {
		l.addrs = append(l.addrs, netip.PrefixFrom(a.Addr, a.Addr.BitLen()))
	}
	return l
}

// underlayLink is the local port of the bridge around the NIC. It bears the node's
// underlay addresses a second time: by them ovs-vswitchd knows which tunnel packets are
// its own. The host's own stack takes nothing from it.
func underlayLink(underlay []netip.Prefix) hostLink {
	sysctls := linux.Tunnel{Name: claims.OVSUnderlayBridge}.Sysctls()
	if slices.ContainsFunc(underlay, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		sysctls = append(sysctls, linux.Sysctl{Key: "net/ipv6/conf/" + claims.OVSUnderlayBridge + "/disable_ipv6", Value: "0"})
	}
	return hostLink{name: claims.OVSUnderlayBridge, noARP: true, addrs: underlay, sysctls: sysctls}
}

// task is one difference of a host link, and how to undo it.
type task struct {
	diff apply.Difference
	do   func() error
	// addr is the address that it sets, if it does.
	addr netip.Addr
}

func (t task) text() string {
	verb := map[string]string{missing: "add", unexpected: "remove", differs: "correct"}[t.diff.Problem]
	text := verb + " " + t.diff.Subsystem + " " + t.diff.Object
	if t.diff.Problem == differs {
		text += " from " + t.diff.Got + " to " + t.diff.Want
	}
	return text
}

// The words of apply.Difference.Problem.
const (
	missing    = "missing"
	unexpected = "unexpected"
	differs    = "differs"
	shadowed   = "shadowing"
)

// plan compares a link with what it ought to be. Removals come last.
func (h *host) plan(want hostLink) ([]task, error) {
	link, err := h.h.LinkByName(want.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return []task{{diff: apply.Difference{Subsystem: "link", Object: want.name, Problem: missing}, do: func() error {
			return fmt.Errorf("there is no link %s: Open vSwitch has not made it", want.name)
		}}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", want.name, err)
	}
	tasks, err := h.planSysctls(want)
	if err != nil {
		return nil, err
	}
	attrs := link.Attrs()
	correct := func(wants, got string, do func() error) {
		tasks = append(tasks, task{diff: apply.Difference{Subsystem: "link", Object: want.name, Problem: differs, Want: wants, Got: got}, do: do})
	}
	if !want.mac.IsZero() && packet.MAC(mac6(attrs.HardwareAddr)) != want.mac {
		correct("mac "+want.mac.String(), "mac "+attrs.HardwareAddr.String(), func() error { return h.h.LinkSetHardwareAddr(link, want.mac[:]) })
	}
	if got := attrs.RawFlags&unix.IFF_NOARP != 0; want.noARP && !got {
		correct("noarp true", "noarp false", func() error { return h.h.LinkSetARPOff(link) })
	}
	if attrs.RawFlags&unix.IFF_UP == 0 {
		correct("up true", "up false", func() error { return h.h.LinkSetUp(link) })
	}
	on, err := h.planAddresses(link, want)
	if err != nil {
		return nil, err
	}
	neighbours, err := h.planNeighbours(link, want)
	return append(append(tasks, on...), neighbours...), err
}

func mac6(b net.HardwareAddr) (m [6]byte) {
	copy(m[:], b)
	return m
}

func (h *host) planAddresses(link netlink.Link, want hostLink) (tasks []task, err error) {
	have, err := h.h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", want.name, err)
	}
	got := map[netip.Prefix]netlink.Addr{}
	for _, a := range have {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			ones, _ := a.Mask.Size()
			got[netip.PrefixFrom(ip.Unmap(), ones)] = a
		}
	}
	for _, p := range want.addrs {
		if _, there := got[p]; there {
			delete(got, p)
			continue
		}
		tasks = append(tasks, task{addr: p.Addr(), diff: apply.Difference{Subsystem: "address", Object: p.String() + " dev " + want.name, Problem: missing}, do: func() error {
			return h.h.AddrAdd(link, &netlink.Addr{
				IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
				Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE,
			})
		}})
	}
	for p, a := range got {
		tasks = append(tasks, task{diff: apply.Difference{Subsystem: "address", Object: p.String() + " dev " + want.name, Problem: unexpected}, do: func() error {
			return h.h.AddrDel(link, &a)
		}})
	}
	slices.SortStableFunc(tasks, func(a, b task) int { return a.diff.Compare(b.diff) })
	return tasks, nil
}

func (h *host) planNeighbours(link netlink.Link, want hostLink) (tasks []task, err error) {
	have, err := h.h.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list neighbours on %s: %w", want.name, err)
	}
	permanent := map[netip.Addr]packet.MAC{}
	for _, n := range have {
		if ip, ok := netip.AddrFromSlice(n.IP); ok && n.State&unix.NUD_PERMANENT != 0 {
			permanent[ip.Unmap()] = mac6(n.HardwareAddr)
		}
	}
	for _, n := range want.neighbours {
		if permanent[n.Addr] == n.MAC {
			continue
		}
		tasks = append(tasks, task{diff: apply.Difference{Subsystem: "neighbour", Object: n.Addr.String() + " dev " + want.name, Problem: missing, Want: n.MAC.String()}, do: func() error {
			return h.h.NeighSet(&netlink.Neigh{
				LinkIndex: link.Attrs().Index, IP: n.Addr.AsSlice(), HardwareAddr: n.MAC[:], State: unix.NUD_PERMANENT,
			})
		}})
	}
	return tasks, nil
}

// planSysctls compares settings; those of IPv6 that a kernel without it lacks are left out.
func (h *host) planSysctls(want hostLink) (tasks []task, err error) {
	err = h.ns.Do(func() error {
		for _, s := range want.sysctls {
			path := filepath.Join("/proc/sys", s.Key)
			got, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(s.Key, "net/ipv6/") {
				continue
			}
			if err != nil {
				return fmt.Errorf("read sysctl %s: %w", s.Key, err)
			}
			if text := strings.TrimSpace(string(got)); text != s.Value {
				tasks = append(tasks, task{diff: apply.Difference{Subsystem: "sysctl", Object: s.Key, Problem: differs, Want: s.Value, Got: text}, do: func() error {
					return h.ns.Do(func() error { return os.WriteFile(path, []byte(s.Value), 0o644) })
				}})
			}
		}
		return nil
	})
	return tasks, err
}

// planAhead begins to compare a link with what it ought to be. The function that it returns waits
// for the end of that, and reports whether the link is there and nothing differs.
func (h *host) planAhead(want hostLink) (complete func() bool) {
	done := make(chan bool, 1)
	go func() {
		tasks, err := h.plan(want)
		done <- err == nil && len(tasks) == 0
	}()
	return func() bool { return <-done }
}

// set makes a link what it ought to be. With addOnly nothing is removed.
func (h *host) set(want hostLink, addOnly bool) (changes []string, err error) {
	// With the last address of a family the kernel drops its neighbours: look again.
	for removed := true; removed; {
		removed = false
		tasks, err := h.plan(want)
		if err != nil {
			return changes, err
		}
		for _, t := range tasks {
			if addOnly && t.diff.Problem == unexpected {
				continue
			}
			if err := t.do(); err != nil {
				return changes, fmt.Errorf("%s: %w", t.text(), err)
			}
			changes = append(changes, t.text())
			removed = removed || t.diff.Problem == unexpected
			if t.addr.Is6() {
				h.fresh = append(h.fresh, t.addr)
			}
		}
	}
	return changes, nil
}

// podLink is the node's end of a pod's link.
type podLink struct {
	index int
	up    bool
}

// podLinks are those of ports that exist, by name. They are asked for one by one: a list of
// all links takes the kernel longer, and every attach needs two. The ioctls are the quickest, but
// for a name that it does not know the kernel runs modprobe, and waits for it: such names
// are asked for by netlink until there is a link.
func (h *host) podLinks(ports []intent.Port) (map[string]podLink, error) {
	out := make(map[string]podLink, len(ports))
	for _, p := range ports {
		find := h.linkByNetlink
		if h.seen[p.HostInterface] {
			find = h.linkByIoctl
		}
		l, err := find(p.HostInterface)
		if err != nil {
			return nil, fmt.Errorf("find link %s: %w", p.HostInterface, err)
		}
		if l.index != 0 {
			out[p.HostInterface] = l
		}
	}
	h.seen = make(map[string]bool, len(out))
	for name := range out {
		h.seen[name] = true
	}
	return out, nil
}

// linkByNetlink returns the zero podLink if there is no link of the name, or none can have it.
func (h *host) linkByNetlink(name string) (podLink, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return podLink{}, nil
	}
	link, err := h.h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return podLink{}, nil
	}
	if err != nil {
		return podLink{}, err
	}
	return podLink{index: link.Attrs().Index, up: link.Attrs().RawFlags&unix.IFF_UP != 0}, nil
}

// linkByIoctl is linkByNetlink for a link that was there.
func (h *host) linkByIoctl(name string) (l podLink, err error) {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return l, err
	}
	if err := unix.IoctlIfreq(h.socket, unix.SIOCGIFINDEX, r); errors.Is(err, unix.ENODEV) {
		return l, nil
	} else if err != nil {
		return l, err
	}
	l.index = int(r.Uint32())
	if err := unix.IoctlIfreq(h.socket, unix.SIOCGIFFLAGS, r); err == nil { // else it has just gone
		l.up = r.Uint16()&unix.IFF_UP != 0
	}
	return l, nil
}

// uplink finds the link that bears the node's first underlay address.
func (h *host) uplink(underlay []netip.Prefix) (netlink.Link, error) {
	if len(underlay) == 0 {
		return nil, errors.New("the node has no underlay address")
	}
	addrs, err := h.h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip.Unmap() != underlay[0].Addr() {
			continue
		}
		link, err := h.h.LinkByIndex(a.LinkIndex)
		if err != nil {
			return nil, fmt.Errorf("find the link with the address %s: %w", underlay[0].Addr(), err)
		}
		if link.Attrs().Name != claims.OVSUnderlayBridge {
			return link, nil
		}
	}
	return nil, fmt.Errorf("no link of the node bears its underlay address %s", underlay[0].Addr())
}
