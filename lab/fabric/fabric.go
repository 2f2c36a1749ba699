package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// Fabric is the set of bridges in the program's own network namespace.
type Fabric struct {
	handle *netlink.Handle
	mtu    int
}

// New makes a Fabric whose links all have the given MTU, in bytes.
func New(mtu int) (*Fabric, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// The fabric is wires: it has no addresses and answers nobody.
	if err := Sysctl("ipv6/conf/default/disable_ipv6", "1"); err != nil {
		h.Close()
		return nil, err
	}
	return &Fabric{handle: h, mtu: mtu}, nil
}

// Close releases the netlink socket; the links live as long as their namespaces.
func (f *Fabric) Close() { f.handle.Close() }

// AddBridge makes a bridge for a segment.
func (f *Fabric) AddBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, f.mtu
	snooping := false
	// Without snooping every multicast frame, neighbour solicitations too, reaches
	// every port at once.
	if err := f.handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("add bridge %s: %w", name, err)
	}
	return f.setUp(name, true)
}

// Target is the namespace that the far end of a veth pair goes to: that of a
// process, or an open one.
type Target struct {
	Pid int
	NS  *os.File
}

// Attach connects the interface ifName of a namespace to a bridge, through a port
// of the given name. A port of that name that is left over is removed first. The
// zero mac lets the kernel choose.
func (f *Fabric) Attach(bridge, port, ifName string, mac packet.MAC, to Target) error {
	if err := f.Detach(port); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = port, f.mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: ifName, PeerMTU: uint32(f.mtu)}
	if !mac.IsZero() {
		veth.PeerHardwareAddr = mac[:]
	}
	if to.NS != nil {
		veth.PeerNamespace = netlink.NsFd(to.NS.Fd())
	} else {
		veth.PeerNamespace = netlink.NsPid(to.Pid)
	}
	if err := f.handle.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s with its end %s: %w", port, ifName, err)
	}
	master, err := f.handle.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", bridge, err)
	}
	link, err := f.handle.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find port %s: %w", port, err)
	}
	if err := f.handle.LinkSetMaster(link, master); err != nil {
		return fmt.Errorf("put port %s into bridge %s: %w", port, bridge, err)
	}
	return f.setUp(port, true)
}

// Detach removes a port and the interface at its other end, if it is there.
func (f *Fabric) Detach(port string) error {
	link, err := f.handle.LinkByName(port)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = f.handle.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove port %s: %w", port, err)
	}
	return nil
}

// SetPort cuts a port (the host's interface loses its carrier) or restores it.
func (f *Fabric) SetPort(port string, up bool) error { return f.setUp(port, up) }

// pollUp is how often WaitUp looks.
const pollUp = 5 * time.Millisecond

// WaitUp waits until an interface in the network namespace ns, the calling program's
// own if ns is nil, can carry packets: the kernel learns of a carrier some time after
// it is there.
func WaitUp(ctx context.Context, ns *os.File, name string) error {
	for {
		up := false
		err := netspace.Do(ns, func() error {
			h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return fmt.Errorf("open rtnetlink: %w", err)
			}
			defer h.Close()
			link, err := h.LinkByName(name)
			if err != nil {
				return fmt.Errorf("find link %s: %w", name, err)
			}
			up = link.Attrs().OperState == netlink.OperUp
			return nil
		})
		if err != nil || up {
			return err
		}
		timer := time.NewTimer(pollUp)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("link %s does not come up: %w", name, ctx.Err())
		}
	}
}

func (f *Fabric) setUp(name string, up bool) error {
	link, err := f.handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	set, word := f.handle.LinkSetUp, "up"
	if !up {
		set, word = f.handle.LinkSetDown, "down"
	}
	if err := set(link); err != nil {
		return fmt.Errorf("set link %s %s: %w", name, word, err)
	}
	return nil
}

// Interface is how an interface of a host is set up.
type Interface struct {
	Name      string
	Addresses []netip.Prefix
	// Gateways become the next hops of default routes.
	Gateways []netip.Addr
	// Routes beside the default ones: destination to next hop.
	Routes map[netip.Prefix]netip.Addr
}

// Prepare readies a fresh network namespace, the calling program's own if ns is
// nil: the loopback comes up, and sockets of processes that have ended do not keep
// the namespace alive for minutes. A router forwards. All else stays as the kernel
// made it: a node must look like a machine nobody has tuned.
func Prepare(ns *os.File, router bool) error {
	settings := []struct{ key, value string }{{"ipv4/tcp_orphan_retries", "1"}}
	if router {
		settings = append(settings, []struct{ key, value string }{
			{"ipv4/ip_forward", "1"},
			{"ipv4/conf/all/send_redirects", "0"},
			{"ipv4/conf/default/send_redirects", "0"},
			{"ipv6/conf/all/forwarding", "1"},
			{"ipv6/conf/default/forwarding", "1"},
		}...)
	}
	return netspace.Do(ns, func() error {
		for _, s := range settings {
			if err := Sysctl(s.key, s.value); err != nil {
				return err
			}
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open rtnetlink: %w", err)
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err == nil {
			err = h.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("set the loopback up: %w", err)
		}
		return nil
	})
}

// Configure sets up an interface in the network namespace ns, the calling program's
// own if ns is nil. Its addresses can be used at once, and the link-local one as soon as
// there is a carrier: the plan makes no duplicates, so nobody looks for them.
func Configure(ns *os.File, i Interface) error {
	return netspace.Do(ns, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open rtnetlink: %w", err)
		}
		defer h.Close()
		link, err := h.LinkByName(i.Name)
		if err != nil {
			return fmt.Errorf("find interface %s: %w", i.Name, err)
		}
		if err := Sysctl("ipv6/conf/"+i.Name+"/accept_dad", "0"); err != nil {
			return err
		}
		for _, a := range i.Addresses {
			addr := &netlink.Addr{IPNet: ipNet(a)}
			if a.Addr().Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := h.AddrReplace(link, addr); err != nil {
				return fmt.Errorf("add address %s to %s: %w", a, i.Name, err)
			}
		}
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("set interface %s up: %w", i.Name, err)
		}
		for _, g := range i.Gateways {
			everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if g.Is6() {
				everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			if err := addRoute(h, link, everything, g); err != nil {
				return err
			}
		}
		for dst, via := range i.Routes {
			if err := addRoute(h, link, dst, via); err != nil {
				return err
			}
		}
		return awaitLocal(h, i.Addresses)
	})
}

// localPatience bounds, in seconds, how long nothing may happen before an address is usable.
const localPatience = 10

// awaitLocal waits until the thread's network namespace takes IPv6 addresses for its own:
// the kernel confirms an address before it has made its local route.
func awaitLocal(h *netlink.Handle, addresses []netip.Prefix) error {
	// First listen, then look: no route can come unnoticed in between.
	news, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("listen to routes: %w", err)
	}
	defer news.Close()
	if err := news.SetReceiveTimeout(&unix.Timeval{Sec: localPatience}); err != nil {
		return fmt.Errorf("listen to routes: %w", err)
	}
	for _, a := range addresses {
		for a.Addr().Is6() {
			r, err := h.RouteGet(a.Addr().AsSlice())
			if err == nil && len(r) > 0 && r[0].Type == unix.RTN_LOCAL {
				break
			}
			if _, _, err := news.Receive(); err != nil {
				return fmt.Errorf("wait for the local route to %s: %w", a.Addr(), err)
			}
		}
	}
	return nil
}

func addRoute(h *netlink.Handle, link netlink.Link, dst netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(dst), Gw: via.AsSlice(), Protocol: unix.RTPROT_STATIC}
	if err := h.RouteReplace(r); err != nil {
		return fmt.Errorf("add route %s via %s: %w", dst, via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Sysctl sets a key below net, of the calling thread's network namespace. A key
// of IPv6 that does not exist is no error: the kernel then has no IPv6.
func Sysctl(key, value string) error {
	err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0o644)
	if errors.Is(err, os.ErrNotExist) && key[:5] == "ipv6/" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("set net/%s to %s: %w", key, value, err)
	}
	return nil
}
