package rtnl

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// The words of apply.Difference.Problem.
const (
	missing    = "missing"
	unexpected = "unexpected"
	shadowing  = "shadowing"
	differs    = "differs"
)

// change is one difference between what is wanted and the shadow, and how to undo
// it. Audit shows the differences; Apply makes the changes.
type change struct {
	ref  intent.Ref
	diff apply.Difference
	// route is the key of a route.
	route routeKey
	// do changes the kernel; done then changes the shadow.
	do   func(c *conn) error
	done func(s *shadow)
}

// verb is what is done about a problem.
func verb(problem string) string {
	switch problem {
	case missing:
		return "add"
	case unexpected:
		return "remove"
	}
	return "correct"
}

// text is the change for people.
func (c change) text() string {
	return verb(c.diff.Problem) + " " + c.diff.Subsystem + " " + c.diff.Object
}

// planAddresses compares the addresses of our links: only the tunnel has any.
func (s *shadow) planAddresses(want linux.State) []change {
	var out []change
	wanted := map[addrKey]bool{}
	if want.Tunnel != nil {
		tunnel, there := s.named(want.Tunnel.Name)
		for _, a := range want.Tunnel.Addresses {
			k := addrKey{tunnel.index, netip.PrefixFrom(a.Addr, a.Addr.BitLen())}
			wanted[k] = true
			if there && s.addrs[k] {
				continue
			}
			out = append(out, change{
				ref: a.Ref, diff: apply.Difference{Subsystem: "address", Object: k.prefix.String() + " dev " + want.Tunnel.Name, Problem: missing},
				do: func(c *conn) error {
					if !there {
						return fmt.Errorf("there is no link %s", want.Tunnel.Name)
					}
					return c.addAddress(k)
				},
				done: func(s *shadow) { s.addrs[k] = true },
			})
		}
	}
	for k := range s.addrs {
		if name := s.links[k.index].name; ours(name) && !wanted[k] {
			out = append(out, change{
				diff: apply.Difference{Subsystem: "address", Object: k.prefix.String() + " dev " + name, Problem: unexpected},
				do:   func(c *conn) error { return c.removeAddress(k) },
				done: func(s *shadow) { delete(s.addrs, k) },
			})
		}
	}
	return sorted(out)
}

// planNeighbours compares the permanent neighbours on the host's ends. Those of
// failed ports are left as they are.
func (s *shadow) planNeighbours(want linux.State, failed map[string]bool) []change {
	var out []change
	wanted, index := map[neighKey]bool{}, s.byName()
	for _, p := range want.Ports {
		i, there := index[p.HostName]
		for _, a := range p.Addresses {
			k := neighKey{i, a}
			wanted[k] = there
			got, have := s.neighs[k]
			if failed[p.HostName] || there && have && got == p.MAC {
				continue
			}
			diff := apply.Difference{Subsystem: "neighbour", Object: a.String() + " dev " + p.HostName, Problem: missing, Want: p.MAC.String()}
			if there && have {
				diff.Problem, diff.Got = differs, got.String()
			}
			out = append(out, change{
				ref: p.Ref, diff: diff,
				do: func(c *conn) error {
					if !there {
						return errLinkGone(p.HostName)
					}
					return c.setNeighbour(k, p.MAC)
				},
				done: func(s *shadow) { s.neighs[k] = p.MAC },
			})
		}
	}
	for k := range s.neighs {
		if name := s.links[k.index].name; !wanted[k] && !failed[name] {
			out = append(out, change{
				diff: apply.Difference{Subsystem: "neighbour", Object: k.addr.String() + " dev " + name, Problem: unexpected},
				do:   func(c *conn) error { return c.removeNeighbour(k) },
				done: func(s *shadow) { delete(s.neighs, k) },
			})
		}
	}
	return sorted(out)
}

// resolver turns names of links into indices.
type resolver struct {
	index map[string]int
	near  map[netip.Addr]int
	addrs map[netip.Addr]bool
	// carriers collects the links that routes use, whether they can or not.
	carriers map[int]bool
}

func (s *shadow) resolver() *resolver {
	r := &resolver{index: s.byName(), near: s.near(), carriers: map[int]bool{}, addrs: map[netip.Addr]bool{}}
	for k := range s.addrs {
		r.addrs[k.prefix.Addr()] = true
	}
	return r
}

func (r *resolver) route(w linux.Route) (route, error) {
	out := route{routeKey: routeKey{w.Dst, w.Metric}, protocol: claims.RouteProtocol, kind: unix.RTN_UNREACHABLE}
	// The kernel refuses a source that is not there. Should the tunnel's address be
	// missing, routes to local pods work all the same.
	if r.addrs[w.Src] {
		out.src = w.Src
	}
	for _, h := range w.Hops {
		index, ok := r.near[h.Near]
		what := "link with the address " + h.Near.String()
		if h.Dev != "" {
			index, ok = r.index[h.Dev]
			what = "link " + h.Dev
		}
		if !ok {
			return out, fmt.Errorf("add route %s: there is no %s", w.Dst, what)
		}
		r.carriers[index] = true
		out.kind = unix.RTN_UNICAST
		out.hops = append(out.hops, hop{index, h.Gateway})
	}
	sortHops(out.hops)
	return out, nil
}

// planRoutes compares routes. Routes that cannot be had are failures; what is
// there under their keys stays.
func (s *shadow) planRoutes(want []linux.Route, failed map[intent.Ref]bool) (changes []change, failures []apply.ObjectError, carriers map[int]bool) {
	r := s.resolver()
	wanted := make(map[routeKey]bool, len(want))
	for _, w := range want {
		k := routeKey{w.Dst, w.Metric}
		wanted[k] = true
		if failed[w.Ref] {
			continue
		}
		target, err := r.route(w)
		if err != nil {
			failures = append(failures, apply.ObjectError{Ref: w.Ref, Err: err})
			continue
		}
		have, there := s.routes[k]
		if there && have.equal(target) {
			continue
		}
		c := change{
			ref: w.Ref, route: k, diff: apply.Difference{Subsystem: "route", Object: target.describe(s.name), Problem: missing},
			do:   func(c *conn) error { return c.addRoute(target) },
			done: func(s *shadow) { s.routes[k] = target },
		}
		if there {
			c.diff.Problem, c.diff.Want, c.diff.Got = differs, target.describe(s.name), have.describe(s.name)
			c.do = func(c *conn) error { return c.replaceRoute(target) }
		}
		changes = append(changes, c)
	}
	var removals []change
	for k, have := range s.routes {
		if wanted[k] {
			continue
		}
		removals = append(removals, change{
			diff: apply.Difference{Subsystem: "route", Object: have.describe(s.name), Problem: unexpected},
			do:   func(c *conn) error { return c.removeRoute(have) },
			done: func(s *shadow) { delete(s.routes, k) },
		})
	}
	return append(changes, sorted(removals)...), failures, r.carriers
}

func sorted(changes []change) []change {
	slices.SortStableFunc(changes, func(a, b change) int { return a.diff.Compare(b.diff) })
	return changes
}

// planTunnel compares the tunnel device, without its addresses.
func (s *shadow) planTunnel(t *linux.Tunnel) []apply.Difference {
	if t == nil {
		if l, ok := s.named(claims.VXLANDevice); ok && l.kind == "vxlan" {
			return []apply.Difference{{Subsystem: "link", Object: l.name, Problem: unexpected}}
		}
		return nil
	}
	l, ok := s.named(t.Name)
	if !ok {
		return []apply.Difference{{Subsystem: "link", Object: t.Name, Problem: missing}}
	}
	var out []apply.Difference
	tell := func(what, want, got string) {
		if want != got {
			out = append(out, apply.Difference{Subsystem: "link", Object: t.Name, Problem: differs, Want: what + " " + want, Got: what + " " + got})
		}
	}
	tell("kind", "vxlan", l.kind)
	tell("settings", fmt.Sprint(tunnelSettings(t)), fmt.Sprint(l.vxlan))
	tell("mac", t.MAC.String(), l.mac.String())
	tell("mtu", fmt.Sprint(t.MTU), fmt.Sprint(l.mtu))
	tell("noarp", "true", fmt.Sprint(l.noARP))
	tell("up", "true", fmt.Sprint(l.up))
	return out
}

func tunnelSettings(t *linux.Tunnel) vxlan { return vxlan{external: true, port: t.Port} }

// String is for differences.
func (v vxlan) String() string {
	return fmt.Sprintf("external=%t learning=%t port=%d", v.external, v.learning, v.port)
}

// planHostEnd compares the host's end of a port, less neighbours and routes.
func planHostEnd(l link, p linux.Port) []apply.Difference {
	var out []apply.Difference
	tell := func(what, want, got string) {
		if want != got {
			out = append(out, apply.Difference{Subsystem: "link", Object: p.HostName, Problem: differs, Want: what + " " + want, Got: what + " " + got})
		}
	}
	tell("kind", "veth", l.kind)
	tell("mac", p.HostMAC.String(), l.mac.String())
	tell("mtu", fmt.Sprint(p.MTU), fmt.Sprint(l.mtu))
	tell("noarp", "true", fmt.Sprint(l.noARP))
	tell("up", "true", fmt.Sprint(l.up))
	return out
}

// givenTo lists the addresses that a host's end has neighbours for: those that its
// pod was given.
func (s *shadow) givenTo(index int) map[netip.Addr]packet.MAC {
	out := map[netip.Addr]packet.MAC{}
	for k, mac := range s.neighs {
		if k.index == index {
			out[k.addr] = mac
		}
	}
	return out
}
