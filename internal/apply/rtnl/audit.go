package rtnl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// Audit reads the kernel anew, the pods' sides too, and says how it differs from
// the state, and which foreign routes and rules shadow ours. It changes nothing. A pod that cannot be looked at does not hide the
// others' differences: the error names it.
func (d *Driver) Audit(ctx context.Context, want linux.State) ([]apply.Difference, error) {
	s, err := readShadow(d.conn, d.remover.doomed())
	if err != nil {
		return nil, err
	}
	out := s.planTunnel(want.Tunnel)
	wanted := map[string]bool{}
	var errs []error
	for _, p := range want.Ports {
		wanted[p.HostName] = true
		diffs, err := d.auditPort(ctx, s, p)
		out = append(out, diffs...)
		errs = append(errs, err)
	}
	for _, l := range s.links {
		if isPort(l.name) && !wanted[l.name] {
			out = append(out, apply.Difference{Subsystem: "link", Object: l.name, Problem: unexpected})
		}
	}
	for _, c := range append(s.planAddresses(want), s.planNeighbours(want, nil)...) {
		out = append(out, c.diff)
	}
	routes, failures, _ := s.planRoutes(want.Routes, nil)
	for _, c := range routes {
		out = append(out, c.diff)
	}
	for _, f := range failures {
		out = append(out, apply.Difference{Subsystem: "route", Object: f.Ref.String(), Problem: missing, Got: f.Err.Error()})
	}
	shadowed, err := d.conn.shadowing(s)
	out, errs = append(out, shadowed...), append(errs, err)
	sysctls := slices.Clone(want.Sysctls)
	if _, ok := s.named(claims.VXLANDevice); ok && want.Tunnel != nil {
		sysctls = append(sysctls, want.Tunnel.Sysctls()...)
	}
	diffs, err := d.auditSysctls(sysctls)
	out = append(out, diffs...)
	slices.SortFunc(out, apply.Difference.Compare)
	return out, errors.Join(append(errs, err)...)
}

func (d *Driver) auditSysctls(want []linux.Sysctl) (out []apply.Difference, err error) {
	err = d.ns.Do(func() error {
		out, err = sysctlDifferences(want)
		return err
	})
	return out, err
}

// auditPort compares the links of a port: its host's end with its sysctls, and
// everything in the pod.
func (d *Driver) auditPort(ctx context.Context, s *shadow, p linux.Port) ([]apply.Difference, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	host, ok := s.named(p.HostName)
	if !ok {
		return []apply.Difference{{Subsystem: "link", Object: p.HostName, Problem: missing, Want: "a link to pod " + p.Pod}}, nil
	}
	out := planHostEnd(host, p)
	diffs, err := d.auditSysctls(p.HostSysctls())
	out = append(out, diffs...)
	if err != nil {
		return out, fmt.Errorf("audit %s: %w", p.Ref, err)
	}
	diffs, err = d.checkPod(p, host)
	if err != nil {
		return append(out, diffs...), fmt.Errorf("audit %s: %w", p.Ref, err)
	}
	return append(out, diffs...), nil
}

// CheckPort compares one attachment with the kernel: both ends, the node's
// neighbours and routes for it, and all that the pod was given. mtu is the node's,
// in bytes. It changes nothing, and what the pod's own people added is no
// difference.
func (d *Driver) CheckPort(ctx context.Context, ip intent.Port, mtu int) ([]apply.Difference, error) {
	return d.checkPort(ctx, ip, mtu, linux.PortRoutes)
}

// CheckLinks is CheckPort without routes: for who has the node's end of a port in a
// bridge.
func (d *Driver) CheckLinks(ctx context.Context, ip intent.Port, mtu int) ([]apply.Difference, error) {
	return d.checkPort(ctx, ip, mtu, func(linux.Port) []linux.Route { return nil })
}

func (d *Driver) checkPort(ctx context.Context, ip intent.Port, mtu int, routes func(linux.Port) []linux.Route) ([]apply.Difference, error) {
	p, err := linux.RenderPort(ip, mtu)
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", p.Ref, err)
	}
	s, err := readShadow(d.conn, nil)
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", p.Ref, err)
	}
	out, err := d.auditPort(ctx, s, p)
	if err != nil {
		return out, err
	}
	host, there := s.named(p.HostName)
	if !there {
		return out, nil
	}
	for _, c := range s.planNeighbours(linux.State{Ports: []linux.Port{p}}, nil) {
		if c.ref == p.Ref {
			out = append(out, c.diff)
		}
	}
	for _, r := range routes(p) {
		have, ok := s.routes[routeKey{r.Dst, r.Metric}]
		if !ok || len(have.hops) != 1 || have.hops[0].index != host.index {
			diff := apply.Difference{Subsystem: "route", Object: r.Dst.String(), Problem: problem(ok), Want: "dev " + p.HostName}
			if ok {
				diff.Got = have.describe(s.name)
			}
			out = append(out, diff)
		}
	}
	slices.SortFunc(out, apply.Difference.Compare)
	return out, nil
}

// Uninstall removes everything that is ours from the node's namespace: links (and
// with them the pods' ends), routes, addresses, and sets the node's sysctls back to
// what they were. It tries everything and returns what failed.
func (d *Driver) Uninstall(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	s, err := readShadow(d.conn, nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range s.routes {
		if err := d.conn.removeRoute(r); err != nil {
			errs = append(errs, fmt.Errorf("remove route %s: %w", r.describe(s.name), err))
		}
	}
	for _, l := range s.links {
		if isPort(l.name) || l.name == claims.VXLANDevice && l.kind == "vxlan" {
			if err := gone(d.conn.setUp(l.index, false)); err != nil {
				errs = append(errs, fmt.Errorf("set link %s down: %w", l.name, err))
			}
			d.remover.add(l)
		}
	}
	errs = append(errs, d.remover.flush(ctx), d.settings.restore())
	d.shadow, d.vital = nil, vital{}
	clear(d.verified)
	return errors.Join(errs...)
}

// failChange turns the kernel's refusal into a failure of the object.
func (d *Driver) failChange(c change, err error, r *Result) {
	ref := c.ref
	if ref == (intent.Ref{}) {
		ref = intent.Ref{Kind: c.diff.Subsystem, Name: c.diff.Object}
	}
	hint := ""
	switch {
	case errors.Is(err, unix.EEXIST) && c.diff.Subsystem == "route":
		hint = d.whoseRoute(c)
	case errors.Is(err, unix.EEXIST):
		d.stale = true
	case errors.Is(err, unix.ENETDOWN):
		hint = " (the link is down: it is tried again when it comes up)"
	case errors.Is(err, unix.ENODEV):
		d.stale = true
	}
	r.fail(ref, fmt.Errorf("%s: %w%s", c.text(), err, hint))
}

// whoseRoute names the route that is in the way.
func (d *Driver) whoseRoute(c change) string {
	all, err := d.conn.routes(0)
	if err != nil {
		return ""
	}
	have, ok := all[c.route]
	if !ok || have.protocol == claims.RouteProtocol {
		d.stale = true
		return ""
	}
	return fmt.Sprintf(" (the foreign route %s, protocol %d, is there: remove it)", have.describe(d.shadow.name), have.protocol)
}

// TunnelIndex is the index of the tunnel device as the kernel has it now, 0 if
// there is none.
func (d *Driver) TunnelIndex() (int, error) {
	l, ok, err := d.conn.link(claims.VXLANDevice)
	if err != nil || !ok || l.kind != "vxlan" {
		return 0, err
	}
	return l.index, nil
}

// PortIndex are the indices of the links of ours to pods as the kernel has them now, by
// name.
func (d *Driver) PortIndex() (map[string]int, error) {
	links, err := d.conn.links()
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, l := range links {
		if isPort(l.name) && l.kind == "veth" {
			out[l.name] = l.index
		}
	}
	return out, nil
}

// Setting is the value of a sysctl of the node as the kernel has it now.
func (d *Driver) Setting(key string) (value string, err error) {
	err = d.ns.Do(func() error {
		value, err = readSysctl(key)
		return err
	})
	return value, err
}
