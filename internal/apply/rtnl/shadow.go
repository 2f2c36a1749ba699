package rtnl

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// shadow is what the kernel holds in the node's namespace, as far as we know.
type shadow struct {
	// links are all of them, by index.
	links map[int]link
	// addrs are those of all links.
	addrs map[addrKey]bool
	// neighs are the permanent ones on our links.
	neighs map[neighKey]packet.MAC
	// routes are those with our protocol.
	routes map[routeKey]route
}

// ours tells our links by their names.
func ours(name string) bool {
	return name == claims.VXLANDevice || isPort(name)
}

func isPort(name string) bool {
	return strings.HasPrefix(name, claims.PortPrefix) || strings.HasPrefix(name, claims.TemporaryLinks)
}

// readShadow reads everything, except links that are about to go.
func readShadow(c *conn, doomed map[int]bool) (*shadow, error) {
	s := &shadow{}
	var err error
	if s.links, err = c.links(); err != nil {
		return nil, err
	}
	maps.DeleteFunc(s.links, func(i int, _ link) bool { return doomed[i] })
	if s.addrs, err = c.addresses(); err != nil {
		return nil, err
	}
	if s.neighs, err = c.neighbours(); err != nil {
		return nil, err
	}
	maps.DeleteFunc(s.neighs, func(k neighKey, _ packet.MAC) bool { return !ours(s.links[k.index].name) })
	if s.routes, err = c.routes(claims.RouteProtocol); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *shadow) named(name string) (link, bool) {
	for _, l := range s.links {
		if l.name == name {
			return l, true
		}
	}
	return link{}, false
}

// byName maps names to indices, for who looks up many.
func (s *shadow) byName() map[string]int {
	out := make(map[string]int, len(s.links))
	for i, l := range s.links {
		out[l.name] = i
	}
	return out
}

func (s *shadow) name(index int) string {
	if l, ok := s.links[index]; ok {
		return l.name
	}
	return fmt.Sprintf("if%d", index)
}

// forget drops what the kernel drops by itself with a link that is set down.
func (s *shadow) forget(index int) {
	maps.DeleteFunc(s.neighs, func(k neighKey, _ packet.MAC) bool { return k.index == index })
	maps.DeleteFunc(s.routes, func(_ routeKey, r route) bool {
		return len(r.hops) > 0 && !slices.ContainsFunc(r.hops, func(h hop) bool { return h.index != index })
	})
}

// vital are things of the node's that ours cannot do without.
type vital struct {
	// links that the wanted routes use, and those to other nodes, by index.
	links map[int]bool
	// addrs are the node's own among nodes, there or not.
	addrs []netip.Addr
}

// address reports whether an address, there or not, is one of them or on one of the
// links.
func (v vital) address(k addrKey) bool {
	return v.links[k.index] || slices.Contains(v.addrs, k.prefix.Addr())
}

// finding is one difference between two shadows, for people.
type finding struct {
	subsystem, what string
}

// compare says what of ours changed from s to next.
func (s *shadow) compare(next *shadow, v vital) []finding {
	out := s.compareLinks(next, v.links)
	for k := range s.addrs {
		if (ours(s.links[k.index].name) || v.address(k)) && !next.addrs[k] {
			out = append(out, finding{"address", fmt.Sprintf("address %s dev %s deleted", k.prefix, s.name(k.index))})
		}
	}
	for k := range next.addrs {
		if (ours(next.links[k.index].name) || slices.Contains(v.addrs, k.prefix.Addr())) && !s.addrs[k] {
			out = append(out, finding{"address", fmt.Sprintf("address %s dev %s added", k.prefix, next.name(k.index))})
		}
	}
	for k, mac := range s.neighs {
		if got, ok := next.neighs[k]; !ok {
			out = append(out, finding{"neighbour", fmt.Sprintf("neighbour %s dev %s deleted", k.addr, s.name(k.index))})
		} else if got != mac {
			out = append(out, finding{"neighbour", fmt.Sprintf("neighbour %s dev %s changed to %s", k.addr, s.name(k.index), got)})
		}
	}
	for k, mac := range next.neighs {
		if _, ok := s.neighs[k]; !ok {
			out = append(out, finding{"neighbour", fmt.Sprintf("neighbour %s lladdr %s dev %s added", k.addr, mac, next.name(k.index))})
		}
	}
	for k, r := range s.routes {
		if got, ok := next.routes[k]; !ok {
			out = append(out, finding{"route", fmt.Sprintf("route %s deleted", r.describe(s.name))})
		} else if !got.equal(r) {
			out = append(out, finding{"route", fmt.Sprintf("route %s changed to %s", r.describe(s.name), got.describe(next.name))})
		}
	}
	for k, r := range next.routes {
		if _, ok := s.routes[k]; !ok {
			out = append(out, finding{"route", fmt.Sprintf("route %s added", r.describe(next.name))})
		}
	}
	slices.SortFunc(out, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.subsystem, b.subsystem), cmp.Compare(a.what, b.what))
	})
	return out
}

func (s *shadow) compareLinks(next *shadow, carriers map[int]bool) []finding {
	var out []finding
	say := func(format string, args ...any) {
		out = append(out, finding{"link", fmt.Sprintf(format, args...)})
	}
	for i, l := range s.links {
		got, ok := next.links[i]
		switch {
		case !ours(l.name) && !carriers[i]:
		case !ok:
			say("link %s deleted", l.name)
		case got.name != l.name:
			say("link %s renamed to %s", l.name, got.name)
		case got.up && !l.up:
			say("link %s set up", l.name)
		case !got.up && l.up:
			say("link %s set down", l.name)
		case !ours(l.name):
		case got.mac != l.mac:
			say("link %s: MAC address changed from %s to %s", l.name, l.mac, got.mac)
		case got.mtu != l.mtu:
			say("link %s: MTU changed from %d to %d", l.name, l.mtu, got.mtu)
		case got != l:
			say("link %s: settings changed", l.name)
		}
	}
	for i, l := range next.links {
		if _, ok := s.links[i]; !ok && ours(l.name) {
			say("link %s added", l.name)
		}
	}
	return out
}

// near finds the link that bears an address.
func (s *shadow) near() map[netip.Addr]int {
	out := make(map[netip.Addr]int, len(s.addrs))
	for k := range s.addrs {
		if i, ok := out[k.prefix.Addr()]; !ok || k.index < i {
			out[k.prefix.Addr()] = k.index
		}
	}
	return out
}
