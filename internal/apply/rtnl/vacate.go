package rtnl

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// Vacate makes the addresses of ports that are not up unreachable: from then on until
// Commit lets such a port carry, a packet for it gets no further than the look-up of its
// route. A port for which that cannot be had is failed, and stays down. It returns the
// addresses, less those of links that we have set up before and somebody else has set
// down. Call it between Prepare and Commit of the same state.
//
// The routes of the node's own blocks come first. An address that none of them covers gets
// a route of its own, which Commit takes away when the port has its. Routes of ours that
// still lead to the address, since it was another node's, go. When Vacate returns, no
// packet is under way any more that had another route.
func (d *Driver) Vacate(ctx context.Context, want linux.State, o apply.Options) (Result, []netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var r Result
	if d.closed {
		return r, nil, errClosed
	}
	if d.shadow == nil || d.stale {
		if err := d.catchUp(false); err != nil {
			return r, nil, err
		}
	}
	ports := d.unfinished(want)
	if len(ports) == 0 {
		return r, nil, ctx.Err()
	}
	d.run(ctx, d.shadow.planUnreachable(want.Routes), o, &r)
	wanted := make(map[routeKey]bool, len(want.Routes))
	for _, w := range want.Routes {
		wanted[routeKey{w.Dst, w.Metric}] = true
	}
	var addrs []netip.Addr
	index := d.shadow.byName()
	for _, p := range ports {
		for _, a := range p.Addresses {
			if err := d.vacate(a, wanted, o, &r); err != nil {
				d.failed[p.HostName] = true
				r.fail(p.Ref, fmt.Errorf("keep packets away from %s until pod %s is set up: %w", a, p.Pod, err))
			}
		}
		if !d.failed[p.HostName] && !slices.Equal(d.carried[index[p.HostName]], p.Addresses) {
			addrs = append(addrs, p.Addresses...)
		}
	}
	if len(r.Changes) > 0 {
		gracePeriod()
	}
	return r, addrs, ctx.Err()
}

// unfinished are the ports that Commit is going to set up.
func (d *Driver) unfinished(want linux.State) (out []linux.Port) {
	index := d.shadow.byName()
	for _, p := range want.Ports {
		if l, ok := d.shadow.links[index[p.HostName]]; ok && !l.up && !d.failed[p.HostName] {
			out = append(out, p)
		}
	}
	return out
}

// planUnreachable is planRoutes of the unreachable ones alone, without removals.
func (s *shadow) planUnreachable(routes []linux.Route) (out []change) {
	var want []linux.Route
	for _, w := range routes {
		if len(w.Hops) == 0 {
			want = append(want, w)
		}
	}
	changes, _, _ := s.planRoutes(want, nil) // without hops there is nothing to fail
	for _, c := range changes {
		if c.diff.Problem != unexpected {
			out = append(out, c)
		}
	}
	return out
}

// vacate makes one address unreachable; wanted are the keys of the routes that
// stay, or come with Commit.
func (d *Driver) vacate(a netip.Addr, wanted map[routeKey]bool, o apply.Options, r *Result) error {
	own := netip.PrefixFrom(a, a.BitLen())
	bits := -1
	for k, have := range d.shadow.routes {
		if have.kind == unix.RTN_UNREACHABLE && k.dst.Contains(a) {
			bits = max(bits, k.dst.Bits())
		}
	}
	if bits < 0 {
		hold := route{routeKey: routeKey{own, linux.MetricUnreachable}, protocol: claims.RouteProtocol, kind: unix.RTN_UNREACHABLE}
		if err := d.conn.addRoute(hold); err != nil {
			return fmt.Errorf("add route %s: %w", hold.describe(d.shadow.name), err)
		}
		d.shadow.routes[hold.routeKey] = hold
		r.say("add route %s", hold.describe(d.shadow.name))
		bits = own.Bits()
	}
	for k, have := range d.shadow.routes {
		if have.kind == unix.RTN_UNREACHABLE || !k.dst.Contains(a) || k.dst.Bits() < bits {
			continue
		}
		text := have.describe(d.shadow.name)
		// What leads to the address itself cannot be the port's route: its link is down.
		if o.AddOnly || wanted[k] && k.dst != own {
			return fmt.Errorf("route %s leads to it; it is tried again when the state of the cluster is known", text)
		}
		if err := d.conn.removeRoute(have); err != nil {
			return fmt.Errorf("remove route %s: %w", text, err)
		}
		delete(d.shadow.routes, k)
		r.say("remove route %s", text)
	}
	return nil
}

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h.
const membarrierGlobal = 1

// gracePeriod returns when every CPU has left what it was doing in the kernel, and so
// when packets that found a route before are through the rules, and conntrack knows of
// their flows. It takes some milliseconds. Kernels that isolate CPUs (nohz_full) refuse;
// what a packet takes to pass through the node is then less than the requests to the
// kernel take that follow.
func gracePeriod() { _, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0) }
