package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Way is where the kernel sends packets to an address.
type Way struct {
	// Route is the one that decides, as ip(8) shows it.
	Route string
	// Local: the node itself has the address.
	Local bool
	// Dev is the link that they leave by; empty: the kernel refuses them, or there are
	// several ways.
	Dev string
	// MAC is the next hop's hardware address, as far as the kernel knows it; Permanent that
	// it does not forget it.
	MAC       packet.MAC
	Permanent bool
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
	if w.Local || len(r.hops) != 1 {
		return w, nil
	}
	next := dst
	if gw := r.hops[0].gateway; gw.IsValid() {
		next = gw
	}
	w.Dev = name(r.hops[0].index)
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
