package rtnl

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// Way is where the kernel sends packets to an address.
type Way struct {
	// Route is the one that decides, as ip(8) shows it.
	Route string
	// Local: the node itself has the address.
	Local bool
	// Hops are the next hops, of which the kernel takes one; none: it refuses them, or they
	// have arrived.
	Hops []Hop
	// Dev is the link that they leave by, if there is one next hop.
	Dev string
	// MAC is the next hop's hardware address, as far as the kernel knows it; Permanent that
	// it does not forget it.
	MAC       packet.MAC
	Permanent bool
}

// Hop is a next hop. Gateway is invalid for what is directly on the link.
type Hop struct {
	Dev     string
	Gateway netip.Addr
}

// Lookup asks the kernel for the route that packets to an address take. Rules that look at
// marks or at the link that a packet came in by are not asked.
func (d *Driver) Lookup(dst netip.Addr) (Way, error) {
	r, err := d.conn.lookup(dst)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return Way{Route: fmt.Sprintf("no route to %s: %v", dst, err)}, nil
	case err != nil:
		return Way{}, fmt.Errorf("look up the route to %s: %w", dst, err)
	}
	links, err := d.conn.links()
	if err != nil {
		return Way{}, err
	}
	name := func(index int) string {
		if l, ok := links[index]; ok {
			return l.name
		}
		return fmt.Sprint(index)
	}
	w := Way{Route: r.describe(name), Local: r.kind == unix.RTN_LOCAL}
	if w.Local {
		return w, nil
	}
	for _, h := range r.hops {
		w.Hops = append(w.Hops, Hop{name(h.index), h.gateway})
	}
	if len(w.Hops) != 1 {
		return w, nil
	}
	next := dst
	if gw := w.Hops[0].Gateway; gw.IsValid() {
		next = gw
	}
	w.Dev = w.Hops[0].Dev
	w.MAC, w.Permanent, err = d.conn.neighbour(neighKey{r.hops[0].index, next})
	return w, err
}

// lookup asks for the entry of the routing table that decides (RTM_F_FIB_MATCH, Linux 4.13).
func (c *conn) lookup(dst netip.Addr) (route, error) {
	m := make(message, rtmsgLen)
	m[0], m[1] = family(dst), byte(dst.BitLen())
	binary.NativeEndian.PutUint32(m[8:], unix.RTM_F_FIB_MATCH)
	m.addAddr(unix.RTA_DST, dst)
	b, err := c.get(unix.RTM_GETROUTE, m)
	if err != nil {
		return route{}, err
	}
	r, _, ok := parseRoute(b)
	if !ok {
		return route{}, errors.New("the kernel's answer is no route")
	}
	return r, nil
}

// localPatience bounds how long a Commit waits for new addresses.
const localPatience = time.Second

// awaitLocal waits until what is sent to IPv6 addresses that are new is delivered: those of
// fresh ports, and with tunnel those of the tunnel. The kernel confirms such an address
// before it has its local route, which a worker makes that waits for its turn among all who
// change links. It is called last, when the routes are mostly there. One that does not come
// in time is no failure: the address is set, and all else works.
func (d *Driver) awaitLocal(ctx context.Context, want linux.State, tunnel bool) {
	if len(d.fresh) == 0 && !tunnel {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, localPatience)
	defer cancel()
	tell := func(link string, err error) {
		if err != nil {
			d.log.Warn("a new IPv6 address may not receive yet", "link", link, "err", err)
		}
	}
	if tunnel && want.Tunnel != nil {
		var addrs []netip.Addr
		l, _ := d.shadow.named(want.Tunnel.Name)
		for _, a := range want.Tunnel.Addresses {
			if d.shadow.addrs[addrKey{l.index, netip.PrefixFrom(a.Addr, a.Addr.BitLen())}] {
				addrs = append(addrs, a.Addr)
			}
		}
		tell(l.name, d.delivers(ctx, d.ns, addrs))
	}
	var ports []linux.Port
	for _, p := range want.Ports {
		if d.fresh[p.HostName] && !d.failed[p.HostName] {
			ports = append(ports, p)
		}
	}
	clear(d.fresh)
	d.spread(len(ports), func(_ *conn, i int) {
		ns, err := netns.Open(ports[i].Netns)
		if err == nil {
			defer ns.Close()
			err = d.delivers(ctx, ns, ports[i].Addresses)
		}
		tell(ports[i].HostName, err)
	})
}

// AwaitLocal is what a Commit does about its own addresses: it waits until what is sent to
// those that others of this process have just set on a link is delivered. One that does not
// come in time is told to the log.
func (d *Driver) AwaitLocal(ctx context.Context, link string, addrs []netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, localPatience)
	defer cancel()
	if err := d.delivers(ctx, d.ns, addrs); err != nil {
		d.log.Warn("a new IPv6 address may not receive yet", "link", link, "err", err)
	}
}

// delivers waits until a namespace takes the IPv6 addresses among addrs for its own.
func (d *Driver) delivers(ctx context.Context, ns *netns.NS, addrs []netip.Addr) error {
	c, err := d.dial(ns, nil)
	if err != nil {
		return err
	}
	defer c.close()
	local := func(a netip.Addr) bool {
		r, err := c.lookup(a)
		return err == nil && r.kind == unix.RTN_LOCAL
	}
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a.Is4() || local(a) })
	if len(addrs) == 0 {
		return nil
	}
	// First listen, then look again: no route can come unnoticed in between.
	m, err := listen(ns)
	if err != nil {
		return err
	}
	defer m.close()
	defer context.AfterFunc(ctx, m.interrupt)()
	for _, a := range addrs {
		for !local(a) {
			if err = m.wait(); err == nil {
				_, _, err = m.drain()
			}
			if err != nil {
				return fmt.Errorf("wait for the local route to %s: %w", a, cmp.Or(ctx.Err(), err))
			}
		}
	}
	return nil
}

// neighbour is what the kernel knows of one; the zero MAC if nothing.
func (c *conn) neighbour(k neighKey) (mac packet.MAC, permanent bool, err error) {
	answers, err := c.dump(unix.RTM_GETNEIGH, make(message, ndmsgLen))
	if err != nil {
		return packet.MAC{}, false, fmt.Errorf("list neighbours: %w", err)
	}
	for _, a := range answers {
		if n, ok := parseNeigh(a); ok && n.neighKey == k {
			return n.mac, n.permanent, nil
		}
	}
	return packet.MAC{}, false, nil
}
