package rtnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// routeKey is what the kernel tells the routes of a table apart by.
type routeKey struct {
	dst    netip.Prefix
	metric uint32
}

// route is a route of the main table, by link indices.
type route struct {
	routeKey
	protocol byte
	// kind is RTN_UNICAST, RTN_UNREACHABLE, …
	kind byte
	src  netip.Addr
	hops []hop // sorted
}

type hop struct {
	index   int
	gateway netip.Addr
}

func (r route) equal(o route) bool {
	return r.routeKey == o.routeKey && r.protocol == o.protocol && r.kind == o.kind && r.src == o.src && slices.Equal(r.hops, o.hops)
}

func sortHops(h []hop) {
	slices.SortFunc(h, func(a, b hop) int { return cmp.Or(cmp.Compare(a.index, b.index), a.gateway.Compare(b.gateway)) })
}

const (
	rtmsgLen = unix.SizeofRtMsg
	rtnhLen  = unix.SizeofRtNexthop
)

func (r route) header() message {
	m := make(message, rtmsgLen)
	m[0], m[1] = family(r.dst.Addr()), byte(r.dst.Bits())
	m[4], m[5], m[6], m[7] = claims.RouteTable, r.protocol, unix.RT_SCOPE_UNIVERSE, r.kind
	if r.dst.Bits() > 0 {
		m.addAddr(unix.RTA_DST, r.dst.Addr())
	}
	m.addUint32(unix.RTA_PRIORITY, r.metric)
	return m
}

// message is the body of a request that adds the route.
func (r route) message() message {
	m := r.header()
	if r.src.IsValid() {
		m.addAddr(unix.RTA_PREFSRC, r.src)
	}
	if !slices.ContainsFunc(r.hops, func(h hop) bool { return h.gateway.IsValid() }) && len(r.hops) > 0 {
		m[6] = unix.RT_SCOPE_LINK
	}
	if len(r.hops) == 1 {
		h := r.hops[0]
		m.addUint32(unix.RTA_OIF, uint32(h.index))
		if h.gateway.IsValid() {
			binary.NativeEndian.PutUint32(m[8:], unix.RTNH_F_ONLINK)
			m.addAddr(unix.RTA_GATEWAY, h.gateway)
		}
	}
	if len(r.hops) > 1 {
		m.nested(unix.RTA_MULTIPATH, func(m *message) {
			for _, h := range r.hops {
				*m = append(*m, h.nexthop()...)
			}
		})
	}
	return m
}

// nexthop is a struct rtnexthop with its attributes.
func (h hop) nexthop() message {
	m := make(message, rtnhLen)
	binary.NativeEndian.PutUint32(m[4:], uint32(h.index))
	if h.gateway.IsValid() {
		m[2] = unix.RTNH_F_ONLINK
		m.addAddr(unix.RTA_GATEWAY, h.gateway)
	}
	binary.NativeEndian.PutUint16(m, uint16(len(m)))
	return m
}

// parseRoute reads a route and its table.
func parseRoute(b []byte) (r route, table uint32, ok bool) {
	if len(b) < rtmsgLen || (b[0] != unix.AF_INET && b[0] != unix.AF_INET6) || binary.NativeEndian.Uint32(b[8:])&unix.RTM_F_CLONED != 0 {
		return route{}, 0, false
	}
	r = route{protocol: b[5], kind: b[7]}
	table = uint32(b[4])
	dst := netip.IPv4Unspecified()
	if b[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	var single hop
	attributes(b[rtmsgLen:], func(kind uint16, v []byte) {
		switch kind {
		case unix.RTA_TABLE:
			table = number(v)
		case unix.RTA_DST:
			dst = address(v)
		case unix.RTA_PRIORITY:
			r.metric = number(v)
		case unix.RTA_PREFSRC:
			r.src = address(v)
		case unix.RTA_OIF:
			single.index = int(int32(number(v)))
		case unix.RTA_GATEWAY:
			single.gateway = address(v)
		case unix.RTA_MULTIPATH:
			r.hops = parseNexthops(v)
		}
	})
	r.dst = netip.PrefixFrom(dst, int(b[1]))
	switch {
	case r.kind != unix.RTN_UNICAST:
		r.hops = nil // IPv6 names the loopback link here
	case len(r.hops) == 0 && single.index != 0:
		r.hops = []hop{single}
	}
	sortHops(r.hops)
	return r, table, r.dst.IsValid()
}

func parseNexthops(b []byte) []hop {
	var out []hop
	for len(b) >= rtnhLen {
		n := int(binary.NativeEndian.Uint16(b))
		if n < rtnhLen || n > len(b) {
			break
		}
		h := hop{index: int(int32(binary.NativeEndian.Uint32(b[4:])))}
		attributes(b[rtnhLen:n], func(kind uint16, v []byte) {
			if kind == unix.RTA_GATEWAY {
				h.gateway = address(v)
			}
		})
		out = append(out, h)
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}

// routes lists the routes of the main table that bear the protocol; 0 means all.
func (c *conn) routes(protocol byte) (map[routeKey]route, error) {
	out := map[routeKey]route{}
	for _, fam := range []byte{unix.AF_INET, unix.AF_INET6} {
		tables, err := c.tables(fam, protocol)
		if err != nil {
			return nil, err
		}
		for _, r := range tables[claims.RouteTable] {
			out[r.routeKey] = r
		}
	}
	return out, nil
}

// tables lists the routes of a family that bear the protocol, 0 for all, by table.
func (c *conn) tables(fam, protocol byte) (map[uint32][]route, error) {
	m := make(message, rtmsgLen)
	m[0], m[5] = fam, protocol
	answers, err := c.dump(unix.RTM_GETROUTE, m)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	out := map[uint32][]route{}
	for _, a := range answers {
		if r, table, ok := parseRoute(a); ok && (protocol == 0 || r.protocol == protocol) {
			out[table] = append(out[table], r)
		}
	}
	return out, nil
}

// addRoute adds a route that is not there; replaceRoute changes the one that has
// its key, which must be ours, without a gap.
func (c *conn) addRoute(r route) error {
	return c.do(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r.message())
}

func (c *conn) replaceRoute(r route) error { return c.change(routeRequest(r)) }

func routeRequest(r route) request {
	return request{unix.RTM_NEWROUTE, unix.NLM_F_CREATE | unix.NLM_F_REPLACE, r.message()}
}

// removeRoute names protocol, kind and metric, so it can hit no foreign route.
func (c *conn) removeRoute(r route) error {
	m := r.header()
	m[6] = unix.RT_SCOPE_NOWHERE
	return gone(c.do(unix.RTM_DELROUTE, 0, m))
}

// describe is the route as ip(8) shows it.
func (r route) describe(name func(index int) string) string {
	var b strings.Builder
	if word, ok := refusals[r.kind]; ok {
		b.WriteString(word + " ")
	}
	b.WriteString(r.dst.String())
	for _, h := range r.hops {
		if len(r.hops) > 1 {
			b.WriteString(" nexthop")
		}
		if h.gateway.IsValid() {
			b.WriteString(" via " + h.gateway.String())
		}
		b.WriteString(" dev " + name(h.index))
	}
	if r.src.IsValid() {
		b.WriteString(" src " + r.src.String())
	}
	return b.String()
}
