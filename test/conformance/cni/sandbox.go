package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// sandbox is a container's network namespace.
type sandbox struct {
	s    *suite
	path string // where it is mounted, as the node sees it
	fd   int    // -1 when it is gone
}

// newSandbox makes a network namespace and mounts it in the node's view.
func (s *suite) newSandbox(t *testing.T, name string) *sandbox {
	t.Helper()
	b := &sandbox{s: s, path: filepath.Join(s.target.NetnsDir, name), fd: -1}
	err := b.make()
	t.Cleanup(func() { b.destroy(t) })
	if err != nil {
		t.Fatalf("make a network namespace at %s: %v", b.path, err)
	}
	return b
}

// make makes the namespace and mounts it on the node. The node's /proc need not know
// this process, so that the namespace is not named there: its mount is cloned here
// and moved to its place there.
func (b *sandbox) make() error {
	tree := -1
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if b.fd, err = openNamespace("net"); err != nil {
			return err
		}
		tree, err = unix.OpenTree(b.fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return b.s.target.RunIn(func() error {
		if err := os.MkdirAll(b.s.target.NetnsDir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(b.path, nil, 0o444); err != nil {
			return err
		}
		return unix.MoveMount(tree, "", unix.AT_FDCWD, b.path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	})
}

// destroy removes the namespace, as a runtime does when a container has died.
func (b *sandbox) destroy(t *testing.T) {
	t.Helper()
	if b.fd < 0 {
		return
	}
	unix.Close(b.fd)
	b.fd = -1
	err := b.s.target.RunIn(func() error {
		if err := unix.Unmount(b.path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount: %w", err)
		}
		return os.Remove(b.path)
	})
	if err != nil {
		t.Errorf("remove the network namespace %s: %v", b.path, err)
	}
}

// in calls fn on a thread inside the namespace.
func (b *sandbox) in(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(b.fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", b.path, err)
		}
		return fn()
	})
}

// open returns a netlink handle in the namespace, closed with the test.
func (b *sandbox) open(t *testing.T) *netlink.Handle {
	t.Helper()
	handle, err := netlink.NewHandleAt(netns.NsHandle(b.fd), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatalf("open netlink in %s: %v", b.path, err)
	}
	t.Cleanup(handle.Close)
	return handle
}

// iface is what netlink says about an interface.
type iface struct {
	Name  string
	MAC   string
	MTU   int
	Up    bool
	Addrs []netip.Prefix // without IPv6 link-local addresses; sorted
}

// interfaces returns all interfaces of the namespace except lo.
func (b *sandbox) interfaces(t *testing.T) []iface {
	t.Helper()
	handle := b.open(t)
	list, err := readInterfaces(handle)
	if err != nil {
		t.Fatalf("list the interfaces of %s: %v", b.path, err)
	}
	return list
}

func readInterfaces(handle *netlink.Handle) ([]iface, error) {
	links, err := retryDump(handle.LinkList)
	if err != nil {
		return nil, err
	}
	var list []iface
	for _, link := range links {
		attrs := link.Attrs()
		if attrs.Flags&net.FlagLoopback != 0 {
			continue
		}
		entry := iface{Name: attrs.Name, MAC: attrs.HardwareAddr.String(), MTU: attrs.MTU, Up: attrs.Flags&net.FlagUp != 0}
		addrs, err := retryDump(func() ([]netlink.Addr, error) { return handle.AddrList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if p := prefixOf(a.IPNet); p.IsValid() && !p.Addr().IsLinkLocalUnicast() {
				entry.Addrs = append(entry.Addrs, p)
			}
		}
		slices.SortFunc(entry.Addrs, netip.Prefix.Compare)
		list = append(list, entry)
	}
	slices.SortFunc(list, func(a, b iface) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// interfaceNamed returns the interface, and whether it exists.
func (b *sandbox) interfaceNamed(t *testing.T, name string) (iface, bool) {
	t.Helper()
	for _, i := range b.interfaces(t) {
		if i.Name == name {
			return i, true
		}
	}
	return iface{}, false
}

// routes returns the namespace's routes of the main table.
func (b *sandbox) routes(t *testing.T) []netlink.Route {
	t.Helper()
	handle := b.open(t)
	routes, err := retryDump(func() ([]netlink.Route, error) {
		return handle.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		t.Fatalf("list the routes of %s: %v", b.path, err)
	}
	return routes
}

// retryDump repeats a netlink dump that a change interrupted.
func retryDump[T any](dump func() ([]T, error)) ([]T, error) {
	for {
		list, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
}

// nodeInterfaces returns the names of the node's interfaces, sorted.
func (s *suite) nodeInterfaces() ([]string, error) {
	var names []string
	err := s.target.RunIn(func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer handle.Close()
		links, err := retryDump(handle.LinkList)
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return err
	})
	slices.Sort(names)
	return names, err
}

// eventually calls ok until it is true, ctx ends or ten seconds have passed: the
// kernel takes interfaces and namespaces apart in its own time.
func eventually(ctx context.Context, ok func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ok()
		}
	}
	return true
}

// prefixOf converts; the zero Prefix if n is none.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	if !ok {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr.Unmap(), ones)
}

// addrOf converts; the zero Addr if ip is nil.
func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
