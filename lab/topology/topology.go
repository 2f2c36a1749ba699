package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Limits of a plan.
const (
	MaxNodes    = 200
	MaxSegments = 200
)

// Numbers of the segments that every lab has beside those of its nodes.
const (
	outsideSegment = 254
	controlSegment = 255
)

// Numbers of hosts inside a segment.
const (
	routerHost  = 1
	controlHost = 2
	outsideHost = 10
	firstNode   = 11
)

// DefaultUnderlay are the prefixes that segments are cut from. They exist inside
// of a lab's namespaces only, so that two labs may use the same.
func DefaultUnderlay() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:30::/32")}
}

// Internet are the addresses that the outside host has beside those of its
// segment: documentation prefixes (RFC 5737, RFC 3849), reached through routers
// only, as the internet is.
func Internet() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("203.0.113.10/24"), netip.MustParsePrefix("2001:db8:113::10/64")}
}

// Plan is the topology of a lab.
type Plan struct {
	// Segments of the nodes, then "outside" and "control".
	Segments []Segment
	Nodes    []Host
	Outside  Host
	Control  Host
}

// Segment is one L2 network.
type Segment struct {
	Name string
	// Router has these addresses in the segment, one a family.
	Router []netip.Prefix
}

// Host is one machine with one interface.
type Host struct {
	Name    string
	Segment string
	// MAC stays the same from boot to boot, as that of a machine does.
	MAC       packet.MAC
	Addresses []netip.Prefix
	// Gateways are the router's addresses, one a family.
	Gateways []netip.Addr
}

// Addrs are the host's addresses without their prefixes.
func (h Host) Addrs() []netip.Addr {
	out := make([]netip.Addr, 0, len(h.Addresses))
	for _, p := range h.Addresses {
		out = append(out, p.Addr())
	}
	return out
}

// NodeName is the name of the i-th node, from 1.
func NodeName(i int) string { return "node-" + strconv.Itoa(i) }

// New plans nodes over segments, the first node in the first segment, the second in
// the next, and around.
func New(nodes, segments int, underlay []netip.Prefix) (*Plan, error) {
	switch {
	case nodes < 1 || nodes > MaxNodes:
		return nil, fmt.Errorf("%d nodes: a lab has 1 to %d", nodes, MaxNodes)
	case segments < 1 || segments > MaxSegments:
		return nil, fmt.Errorf("%d segments: a lab has 1 to %d", segments, MaxSegments)
	case segments > nodes:
		return nil, fmt.Errorf("segments: %d, nodes: %d: some segments would be empty", segments, nodes)
	}
	if err := CheckUnderlay(underlay); err != nil {
		return nil, err
	}
	p := &Plan{}
	for i := range segments {
		p.Segments = append(p.Segments, segment("segment-"+strconv.Itoa(i+1), i, underlay))
	}
	p.Segments = append(p.Segments,
		segment("outside", outsideSegment, underlay), segment("control", controlSegment, underlay))
	for i := range nodes {
		number := i % segments
		p.Nodes = append(p.Nodes, host(NodeName(i+1), p.Segments[number], number, firstNode+i, underlay))
	}
	p.Outside = host("outside", p.Segments[segments], outsideSegment, outsideHost, underlay)
	p.Control = host("control", p.Segments[segments+1], controlSegment, controlHost, underlay)
	return p, nil
}

// CheckUnderlay says whether segments can be cut from the prefixes: one IPv4 /16,
// one IPv6 /32, or both.
func CheckUnderlay(underlay []netip.Prefix) error {
	seen := map[bool]bool{}
	for _, u := range underlay {
		is4 := u.Addr().Is4()
		switch {
		case u != u.Masked():
			return fmt.Errorf("underlay %s has host bits: want %s", u, u.Masked())
		case is4 && u.Bits() != 16:
			return fmt.Errorf("underlay %s: an IPv4 underlay is a /16, such as 172.30.0.0/16", u)
		case !is4 && u.Bits() != 32:
			return fmt.Errorf("underlay %s: an IPv6 underlay is a /32, such as fd00:30::/32", u)
		case seen[is4]:
			return fmt.Errorf("underlay %s: one prefix a family is enough", u)
		}
		seen[is4] = true
	}
	if len(underlay) == 0 {
		return errors.New("the underlay has no prefix: want an IPv4 /16, an IPv6 /32, or both")
	}
	return nil
}

func segment(name string, number int, underlay []netip.Prefix) Segment {
	s := Segment{Name: name}
	for _, u := range underlay {
		s.Router = append(s.Router, address(u, number, routerHost))
	}
	return s
}

func host(name string, s Segment, number, hostNumber int, underlay []netip.Prefix) Host {
	h := Host{Name: name, Segment: s.Name, MAC: packet.MAC{0x02, 0x6c, 0x61, 0x62, byte(number), byte(hostNumber)}}
	for i, u := range underlay {
		h.Addresses = append(h.Addresses, address(u, number, hostNumber))
		h.Gateways = append(h.Gateways, s.Router[i].Addr())
	}
	return h
}

// address is a host of a segment: x.y.SEGMENT.HOST/24, or PREFIX:SEGMENT::HOST/64
// with numbers that read as decimal ones.
func address(underlay netip.Prefix, segment, host int) netip.Prefix {
	if underlay.Addr().Is4() {
		a := underlay.Addr().As4()
		a[2], a[3] = byte(segment), byte(host)
		return netip.PrefixFrom(netip.AddrFrom4(a), 24)
	}
	a := underlay.Addr().As16()
	s, h := decimalDigits(segment), decimalDigits(host)
	a[4], a[5] = byte(s>>8), byte(s)
	a[14], a[15] = byte(h>>8), byte(h)
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

// decimalDigits is the number whose hexadecimal digits are n's decimal ones.
func decimalDigits(n int) int {
	return n/1000%10<<12 | n/100%10<<8 | n/10%10<<4 | n%10
}
