package ovsplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/switchdb"
	"github.com/fairlead-sdn/fairlead/internal/apply/rtnl"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// application is one Apply.
type application struct {
	*Plane
	options apply.Options
	report  apply.Report
	failed  map[intent.Ref]bool
	// named counts the conversations that were named in the report.
	named int
	// listed are the entries of our zones, read since the flows hold, if listedAll.
	listed    []connection
	listedAll bool
}

// rendered is what an intent means for the host.
type rendered struct {
	host  ovs.Host
	state linux.State
	// uplink is the NIC that must be a port of ours, nil if none must.
	uplink netlink.Link
	// noUplink says why there is none, if one is needed.
	noUplink error
}

func (r rendered) uplinkName() string {
	if r.uplink == nil {
		return ""
	}
	return r.uplink.Attrs().Name
}

func (r rendered) bridges(n intent.Node, d datapath) []switchdb.Bridge {
	hwaddr := ""
	if r.uplink != nil {
		hwaddr = packet.MAC(mac6(r.uplink.Attrs().HardwareAddr)).String()
	}
	return bridges(n, d.switchOf(r.uplinkName()), hwaddr)
}

// render computes what the host needs. The NIC becomes a port of ours only if tunnel
// packets must leave by it.
func (p *Plane) render(n intent.Node) rendered {
	r := rendered{host: ovs.RenderHost(n)}
	r.state = linux.State{Ports: r.host.Ports, Routes: r.host.Routes, Sysctls: r.host.Sysctls, Problems: r.host.Problems}
	uplink, err := p.host.uplink(n.Underlay)
	if p.datapath.kind == ovs.Netdev && len(n.Underlay) > 0 && (len(n.Tunnels) > 0 || slices.ContainsFunc(n.Subnets, func(s intent.Subnet) bool { return s.Overlay })) {
		r.uplink, r.noUplink = uplink, err
	}
	// Our bridge bears the node's addresses a second time: routes lead over the NIC.
	for i, route := range r.state.Routes {
		for j, hop := range route.Hops {
			if hop.Dev == "" && err == nil && hop.Near == n.Underlay[0].Addr() {
				r.state.Routes[i].Hops[j].Dev = uplink.Attrs().Name
			}
		}
	}
	return r
}

// Apply implements apply.Plane.
func (p *Plane) Apply(ctx context.Context, desired intent.Node, o apply.Options) (apply.Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	if p.closed {
		return apply.Report{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return apply.Report{}, fmt.Errorf("apply the intent of node %s: %w", desired.Name, err)
	}
	a := application{Plane: p, options: o, failed: map[intent.Ref]bool{}}
	err := a.run(ctx, desired)
	slices.SortFunc(a.report.Failed, func(a, b apply.ObjectError) int {
		return cmp.Or(cmp.Compare(a.Ref.Kind, b.Ref.Kind), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	a.report.Duration = time.Since(start)
	select {
	case p.applied <- struct{}{}:
	default:
	}
	return a.report, err
}

func (a *application) fail(e apply.ObjectError) {
	if !a.failed[e.Ref] {
		a.failed[e.Ref] = true
		a.report.Failed = append(a.report.Failed, e)
	}
}

func (a *application) say(format string, args ...any) {
	a.report.Changes = append(a.report.Changes, fmt.Sprintf(format, args...))
}

func (a *application) took(r rtnl.Result) {
	a.report.Changes = append(a.report.Changes, r.Changes...)
	for _, e := range r.Failed {
		a.fail(e)
	}
}

func (a *application) run(ctx context.Context, desired intent.Node) error {
	r := a.render(desired)
	node := intent.Ref{Kind: "Node", Name: desired.Name}
	for _, problem := range r.host.Problems {
		a.fail(apply.ObjectError{Ref: problem.Ref, Err: errors.New(problem.Text)})
	}
	if r.noUplink != nil {
		a.fail(apply.ObjectError{Ref: node, Err: fmt.Errorf("no other node is reached through the tunnel: %w", r.noUplink)})
	}
	earlier, err := a.host.podLinks(desired.Ports)
	if err != nil {
		return err
	}
	early := a.begin(ctx, desired, r.bridges(desired, a.datapath))
	defer func() { early().discard(ctx) }() // if it was not taken
	prepared, err := a.links.Prepare(ctx, r.state, a.options)
	a.took(prepared)
	if err != nil {
		return fmt.Errorf("prepare links: %w", err)
	}
	now, err := a.host.podLinks(desired.Ports)
	if err != nil {
		return err
	}
	a.finishFrames(r.host.Ports, now)
	changes, filterErr := a.filter.Apply(ctx, ovs.RenderTable(desired, a.datapath.switchOf(r.uplinkName())), a.options)
	a.report.Changes = append(a.report.Changes, changes...)
	if filterErr != nil {
		filterErr = fmt.Errorf("packet filter: %w", filterErr)
	}
	if made, ok := a.filter.(linuxplane.Maker); ok && made.Anew() {
		a.forgetUntranslated(ctx, desired)
	}
	switchErr := a.applySwitch(ctx, desired, r, replaced(earlier, now), now, early)
	hold := errors.Join(filterErr, switchErr)
	committed, err := a.links.Commit(ctx, r.state, a.options, hold)
	a.took(committed)
	if err != nil {
		err = fmt.Errorf("commit links and routes: %w", err)
	}
	if fresh := a.host.fresh; len(fresh) > 0 {
		a.links.AwaitLocal(ctx, claims.OVSHostPort, fresh)
		a.host.fresh = nil
	}
	return errors.Join(hold, err)
}

// forgetUntranslated makes the host's flows begin anew that began while there was no
// table, if it gives them another source: the kernel decides that for the first packet only.
func (a *application) forgetUntranslated(ctx context.Context, desired intent.Node) {
	r, err := a.hostFlows.Walk(ctx, []conntrack.Query{{}}, func(f conntrack.Flow) conntrack.Decision {
		node := f.ReplyDst == f.Src && slices.ContainsFunc(desired.Underlay, func(p netip.Prefix) bool { return p.Addr() == f.Src })
		toPod := slices.ContainsFunc(desired.Subnets, func(s intent.Subnet) bool {
			return slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return c.Contains(f.Dst) })
		})
		return conntrack.Decision{Delete: linuxplane.Untranslated(desired, f) || node && toPod}
	})
	if err != nil {
		a.log.Warn("flows that began without our table may keep their source until they end", "err", err)
	}
	if r.Changed > 0 {
		a.say("forget %d flows of the host that began without our table", r.Changed)
	}
}

// replaced are links that have another index than before: whatever Open vSwitch has open
// under their names is gone.
func replaced(earlier, now map[string]podLink) map[string]bool {
	out := map[string]bool{}
	for name, link := range now {
		if earlier[name].index != link.index {
			out[name] = true
		}
	}
	return out
}

// finishFrames turns the offloads of pods off that we have not seen to yet.
func (a *application) finishFrames(ports []linux.Port, links map[string]podLink) {
	if a.datapath.kind != ovs.Netdev {
		return
	}
	wanted := map[string]bool{}
	for _, p := range ports {
		wanted[p.HostName] = true
		if a.failed[p.Ref] || !a.options.Refresh && a.plain[p.HostName] == links[p.HostName].index {
			continue
		}
		changed, err := plainFrames(p)
		if err != nil {
			a.fail(apply.ObjectError{Ref: p.Ref, Err: fmt.Errorf("set up %s of pod %s: %w", p.Name, p.Pod, err)})
			continue
		}
		if changed {
			a.say("turn transmit offloads of %s of pod %s off", p.Name, p.Pod)
		}
		a.plain[p.HostName] = links[p.HostName].index
	}
	for name := range a.plain {
		if !wanted[name] {
			delete(a.plain, name)
		}
	}
}

// applySwitch brings in all that Open vSwitch does. links are those of ports that exist;
// those of replaced are taken out of the bridge first. early are the flows that were handed over.
func (a *application) applySwitch(ctx context.Context, desired intent.Node, r rendered, replaced map[string]bool, links map[string]podLink, early func() *ahead) (err error) {
	defer func() {
		if err != nil {
			a.tracks.judged = nil // by which flows is not known any more
		}
	}()
	waiting, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	wanted := r.bridges(desired, a.datapath)
	wanted = withPorts(wanted, func(name string) bool { return links[name].index != 0 })
	a.bridges, a.last = wanted, &desired
	flows := early()
	known, err := a.db.Numbers(waiting)
	if err != nil {
		flows.discard(ctx)
		return fmt.Errorf("the database of Open vSwitch: %w", err)
	}
	a.number(wanted, known)
	// What the host's port lacks is found out meanwhile, if it is there.
	gateway := a.host.planAhead(gatewayLink(r.host.Gateway))
	numbers, installed, err := a.applyBridges(waiting, desired, wanted, func(name string) bool { _, there := known[name]; return there && replaced[name] }, flows)
	complete := gateway()
	if err != nil {
		return fmt.Errorf("the database of Open vSwitch: %w", err)
	}
	if !complete {
		err = a.setGateway(r.host.Gateway)
	}
	if err != nil {
		return err
	}
	if r.uplink != nil {
		a.joinUplink(desired, r.uplink)
	}
	if !installed {
		err = a.install(waiting, desired, numbers)
	}
	if err != nil {
		return fmt.Errorf("flows of the bridge %s: %w", claims.OVSBridge, err)
	}
	// Thousands of conversations and hundreds of peers are asked about one by one.
	following, cancel := context.WithTimeout(ctx, 5*a.patience)
	defer cancel()
	if err := a.vacate(following, desired, links); err != nil {
		return fmt.Errorf("forget flows of the addresses of new ports: %w", err)
	}
	a.followPolicy(following, desired)
	if a.datapath.kind == ovs.Netdev {
		if r.uplink != nil {
			a.keepUnderlay(following, desired)
		}
		a.route(following, desired, r.uplink)
	}
	return nil
}

// setGateway completes the host's port of the bridge, before the routes that lead there: with
// its last address of a family the kernel drops them all.
func (a *application) setGateway(g ovs.Gateway) error {
	tasks, err := a.host.plan(gatewayLink(g))
	if err != nil || len(tasks) == 0 {
		return err
	}
	// What the kernel drops along with an address is our own doing.
	a.links.Reread()
	changes, err := a.host.set(gatewayLink(g), a.options.AddOnly)
	a.links.Reread()
	a.report.Changes = append(a.report.Changes, changes...)
	if err != nil {
		return fmt.Errorf("the host's port of the bridge: %w", err)
	}
	return nil
}

// joinUplink completes the bridge around the NIC. If it cannot be had, pods of this node
// reach each other and the outside all the same.
func (a *application) joinUplink(desired intent.Node, uplink netlink.Link) {
	changes, err := a.host.set(underlayLink(desired.Underlay), a.options.AddOnly)
	a.report.Changes = append(a.report.Changes, changes...)
	if err != nil {
		a.fail(apply.ObjectError{
			Ref: intent.Ref{Kind: "Node", Name: desired.Name},
			Err: fmt.Errorf("the bridge %s around %s: no other node is reached through the tunnel: %w", claims.OVSUnderlayBridge, uplink.Attrs().Name, err),
		})
	}
}

// withPorts leaves out ports of pods that keep refuses.
func withPorts(list []switchdb.Bridge, keep func(name string) bool) []switchdb.Bridge {
	out := slices.Clone(list)
	for i, b := range out {
		out[i].Ports = slices.DeleteFunc(slices.Clone(b.Ports), func(p switchdb.Port) bool {
			return strings.HasPrefix(p.Name, claims.PortPrefix) && !keep(p.Name)
		})
	}
	return out
}

// applyBridges brings bridges and ports in and returns the ports' numbers, and whether the
// flows are in too. Only without the bridge itself nothing works. Ports that are stale are taken out
// first: what Open vSwitch has open under their names is gone.
func (a *application) applyBridges(
	ctx context.Context, desired intent.Node, wanted []switchdb.Bridge, stale func(name string) bool, early *ahead,
) (numbers ovs.Numbers, installed bool, err error) {
	if slices.ContainsFunc(desired.Ports, func(p intent.Port) bool { return stale(p.HostInterface) }) {
		early.discard(ctx)
		early = nil
		r, err := a.db.Apply(ctx, withPorts(wanted, func(name string) bool { return !stale(name) }), switchdb.Options{})
		a.report.Changes = append(a.report.Changes, r.Changes...)
		if err != nil {
			return nil, false, err
		}
	}
	s, err := a.db.Submit(ctx, wanted, switchdb.Options{AddOnly: a.options.AddOnly})
	r := s.Report
	a.report.Changes = append(a.report.Changes, r.Changes...)
	if err == nil {
		r, err = a.realise(ctx, early, s)
	} else {
		early.discard(ctx)
	}
	if slices.Contains(r.Changes, "add bridge "+claims.OVSUnderlayBridge) {
		a.tunnel = tunnelRoutes{} // ovs-vswitchd forgets neighbours with the bridge
	}
	refs := map[string]intent.Ref{}
	for _, p := range desired.Ports {
		refs[p.HostInterface] = p.Ref()
	}
	for _, f := range r.Failed {
		ref, ok := refs[f.Port]
		if !ok {
			ref = intent.Ref{Kind: "Node", Name: desired.Name}
		}
		a.fail(apply.ObjectError{Ref: ref, Err: f})
		if f.Bridge == claims.OVSBridge && (f.Port == "" || f.Port == claims.OVSHostPort) {
			err = errors.Join(err, f)
		}
	}
	return numbersOf(r), early != nil && early.committed, err
}

// Audit implements apply.Plane.
func (p *Plane) Audit(ctx context.Context, desired intent.Node) ([]apply.Difference, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	r := p.render(desired)
	out, linkErr := p.links.Audit(ctx, r.state)
	diffs, filterErr := p.filter.Audit(ctx, ovs.RenderTable(desired, p.datapath.switchOf(r.uplinkName())))
	out = append(out, diffs...)
	diffs, switchErr := p.auditSwitch(ctx, desired, r)
	out = append(out, diffs...)
	slices.SortFunc(out, apply.Difference.Compare)
	return out, errors.Join(linkErr, filterErr, switchErr)
}

func (p *Plane) auditSwitch(ctx context.Context, desired intent.Node, r rendered) ([]apply.Difference, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	known, err := p.db.Numbers(ctx)
	if err != nil {
		return nil, err
	}
	wanted := r.bridges(desired, p.datapath)
	asked, next := p.asked, p.nextNumber
	p.number(wanted, known)
	p.asked, p.nextNumber = asked, next
	changes, failures, err := p.db.Audit(ctx, wanted)
	if err != nil {
		return nil, err
	}
	var out []apply.Difference
	noBridge := false
	for _, c := range changes {
		verb, what, _ := strings.Cut(c, " ")
		problem := map[string]string{"add": missing, "remove": unexpected}[verb]
		out = append(out, apply.Difference{Subsystem: "ovs", Object: what, Problem: cmp.Or(problem, differs)})
		noBridge = noBridge || c == "add bridge "+claims.OVSBridge
	}
	for _, f := range failures {
		out = append(out, apply.Difference{Subsystem: "ovs", Object: f.Bridge + " " + f.Port, Problem: differs, Got: f.Error()})
		noBridge = noBridge || f.Bridge == claims.OVSBridge && f.Port == ""
	}
	hostLinks := []hostLink{gatewayLink(r.host.Gateway)}
	if r.uplink != nil {
		hostLinks = append(hostLinks, underlayLink(desired.Underlay))
	}
	for _, l := range hostLinks {
		tasks, err := p.host.plan(l)
		if err != nil {
			return out, err
		}
		for _, t := range tasks {
			out = append(out, t.diff)
		}
	}
	if noBridge {
		return out, nil
	}
	diffs, err := p.auditFlows(ctx, desired)
	out = append(out, diffs...)
	if err == nil && r.uplink != nil {
		diffs, err = p.auditTunnel(ctx, desired)
		out = append(out, diffs...)
	}
	if err == nil && r.uplink != nil {
		diffs, err = p.auditUnderlay(ctx)
		out = append(out, diffs...)
	}
	return out, err
}
