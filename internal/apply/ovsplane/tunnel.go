package ovsplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// tunnelRoutes are what ovs-vswitchd has been told of the way to peers: with the datapath
// in userspace it must leave by our bridge, not by the NIC that the kernel's routes name.
// They live in its memory only.
type tunnelRoutes struct {
	// known: gateways is what it has; connection is that of the bridge then.
	known      bool
	connection uint64
	// gateways are the next hops by peer address; the zero Addr is the same segment.
	gateways map[netip.Addr]netip.Addr
	// met are the hardware addresses of next hops that it was told, zero for those that the
	// kernel does not know yet.
	met map[netip.Addr]packet.MAC
	// uplink is the index of the link that they are on.
	uplink int
}

// underlayFlow is all that the bridge around the NIC does. Open vSwitch makes one like it for
// a bridge of its own accord, but not again for one whose flows somebody has deleted.
func underlayFlow() of.Flow {
	return of.Flow{Cookie: claims.OVSCookie, Actions: []of.Action{of.Output{Port: of.PortNormal}}}
}

// keepUnderlay makes the flows of ours in the bridge around the NIC what they ought to be.
// The other bridge is there already: this one takes a try to connect at most.
func (a *application) keepUnderlay(ctx context.Context, desired intent.Node) {
	ctx, cancel := context.WithTimeout(ctx, min(a.patience, time.Second))
	defer cancel()
	s, err := a.underlay.Await(ctx)
	s.Foreign = 0
	if err == nil && !a.options.Refresh && s == a.underlaid {
		return
	}
	var found openflowconn.Rules
	if err == nil {
		found, err = a.underlay.Read(ctx)
	}
	if err == nil {
		changes := openflowconn.Diff(openflowconn.Rules{Flows: found.Flows}, openflowconn.Rules{Flows: []of.Flow{underlayFlow()}})
		if a.options.AddOnly {
			changes.Flows = onlyAdditions(changes.Flows, found.Flows)
		}
		if !changes.Empty() {
			err = a.underlay.Commit(ctx, changes)
			a.say("bridge %s: %s", claims.OVSUnderlayBridge, tellFlows(changes.Flows))
		}
	}
	if err != nil {
		a.fail(apply.ObjectError{
			Ref: intent.Ref{Kind: "Node", Name: desired.Name},
			Err: fmt.Errorf("flows of the bridge %s: other nodes may not be reached through the tunnel: %w", claims.OVSUnderlayBridge, err),
		})
		return
	}
	a.underlaid = s
}

// auditUnderlay compares the flows of the bridge around the NIC with what it does.
func (p *Plane) auditUnderlay(ctx context.Context) (out []apply.Difference, err error) {
	if _, err := p.underlay.Await(ctx); err != nil {
		return nil, err
	}
	found, err := p.underlay.Flows(ctx, of.FlowFilter{Table: of.TableAll})
	if err != nil {
		return nil, err
	}
	want := underlayFlow()
	if !slices.ContainsFunc(found, func(f of.FlowDesc) bool { return f.Err == nil && f.Flow.Equal(want) }) {
		out = append(out, apply.Difference{Subsystem: "ovs", Object: "flow " + want.String() + " of bridge " + claims.OVSUnderlayBridge, Problem: missing})
	}
	return append(out, underlayShadowing(found)...), nil
}

// route tells ovs-vswitchd the way to every peer.
func (a *application) route(ctx context.Context, desired intent.Node, uplink netlink.Link) {
	t := &a.tunnel
	if !t.known || t.connection != a.flows.connection || a.options.Refresh {
		got, err := readTunnelRoutes(ctx, a.control)
		if err != nil {
			a.fail(apply.ObjectError{Ref: intent.Ref{Kind: "Node", Name: desired.Name}, Err: err})
			return
		}
		met := t.met
		if met == nil || t.connection != a.flows.connection {
			met = map[netip.Addr]packet.MAC{}
		}
		*t = tunnelRoutes{known: true, connection: a.flows.connection, gateways: got, met: met}
	}
	wanted := map[netip.Addr]bool{}
	for _, peer := range desired.Peers {
		if uplink == nil || !peer.Outer.IsValid() || wanted[peer.Outer] {
			continue
		}
		wanted[peer.Outer] = true
		if err := a.routeTo(ctx, peer.Outer, uplink); err != nil {
			a.fail(apply.ObjectError{Ref: peer.Ref(), Err: fmt.Errorf("tell ovs-vswitchd the way to %s: %w", peer.Outer, err)})
		}
	}
	if uplink != nil {
		if err := a.meet(ctx, uplink); err != nil {
			a.log.Warn("ovs-vswitchd does not know the next hop: the first packet to a node may be lost", "err", err)
		}
	}
	if a.options.AddOnly {
		return
	}
	for outer := range t.gateways {
		if wanted[outer] {
			continue
		}
		if _, err := a.control.Call(ctx, "ovs-vswitchd", "ovs/route/del", host32(outer)); err != nil {
			a.log.Warn("a route to a peer that is gone stays in ovs-vswitchd", "peer", outer, "err", err)
			continue
		}
		delete(t.gateways, outer)
		a.say("remove tunnel route %s", host32(outer))
	}
}

// routeTo follows the host's own route.
func (a *application) routeTo(ctx context.Context, outer netip.Addr, uplink netlink.Link) error {
	// A peer that was told stays with its route until the next refresh: the host's
	// routes between nodes hardly ever change.
	have, there := a.tunnel.gateways[outer]
	if there && !a.options.Refresh {
		return nil
	}
	found, err := a.host.h.RouteGet(outer.AsSlice())
	if err != nil {
		return fmt.Errorf("the host has no route: %w", err)
	}
	if len(found) == 0 || found[0].LinkIndex != uplink.Attrs().Index {
		return fmt.Errorf("the host's route does not lead over %s, which bears the node's underlay address", uplink.Attrs().Name)
	}
	gateway, _ := netip.AddrFromSlice(found[0].Gw)
	gateway = gateway.Unmap()
	if there && have == gateway {
		return nil
	}
	if there {
		if _, err := a.control.Call(ctx, "ovs-vswitchd", "ovs/route/del", host32(outer)); err != nil {
			return err
		}
	}
	args := []string{host32(outer), claims.OVSUnderlayBridge}
	if gateway.IsValid() {
		args = append(args, gateway.String())
	}
	if _, err := a.control.Call(ctx, "ovs-vswitchd", "ovs/route/add", args...); err != nil {
		return err
	}
	a.tunnel.gateways[outer] = gateway
	a.say("add tunnel route %s", strings.Join(args, " "))
	return nil
}

// meet tells ovs-vswitchd the hardware addresses of next hops: it would ask for one only
// when there is a packet to send, and lose that. The kernel finds them out and keeps them
// true; of its answers ovs-vswitchd gets a copy. It forgets what it has not heard of for
// a quarter of an hour: every refresh has the kernel ask again.
func (a *application) meet(ctx context.Context, uplink netlink.Link) error {
	t := &a.tunnel
	t.uplink = uplink.Attrs().Index
	var hops []netip.Addr
	for outer, gateway := range t.gateways {
		hop := outer
		if gateway.IsValid() {
			hop = gateway
		}
		if t.met[hop].IsZero() || a.options.Refresh {
			hops = append(hops, hop)
		}
	}
	if len(hops) == 0 {
		return nil
	}
	list, err := a.host.h.NeighList(t.uplink, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list neighbours on %s: %w", uplink.Attrs().Name, err)
	}
	known := map[netip.Addr]netlink.Neigh{}
	for _, n := range list {
		if ip, ok := netip.AddrFromSlice(n.IP); ok && heard(n) {
			known[ip.Unmap()] = n
		}
	}
	var errs []error
	for _, hop := range hops {
		n, ok := known[hop]
		old, before := t.met[hop]
		if !before {
			t.met[hop] = packet.MAC{}
		}
		// What the kernel has not verified of late may be out of date: it is better than
		// nothing, but not than what ovs-vswitchd has heard since.
		if ok && (old.IsZero() || n.State&netlink.NUD_STALE == 0) {
			errs = append(errs, t.tell(ctx, a.control, hop, mac6(n.HardwareAddr)))
		}
		if !ok || n.State&netlink.NUD_STALE != 0 {
			errs = append(errs, a.host.h.NeighSet(&netlink.Neigh{LinkIndex: t.uplink, IP: hop.AsSlice(), Flags: netlink.NTF_USE}))
		}
	}
	return errors.Join(errs...)
}

// heard reports whether an entry has a hardware address.
func heard(n netlink.Neigh) bool {
	const valid = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	return n.State&valid != 0 && len(n.HardwareAddr) == len(packet.MAC{})
}

func (t *tunnelRoutes) tell(ctx context.Context, c openflowconn.Control, hop netip.Addr, mac packet.MAC) error {
	if _, err := c.Call(ctx, "ovs-vswitchd", "tnl/neigh/set", claims.OVSUnderlayBridge, hop.String(), mac.String()); err != nil {
		return err
	}
	t.met[hop] = mac
	return nil
}

// hear takes over what the kernel has just found out about a next hop: that nobody knew
// it, or that it has another address.
func (p *Plane) hear(ctx context.Context, n netlink.Neigh) {
	hop, ok := netip.AddrFromSlice(n.IP)
	if !ok || !heard(n) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &p.tunnel
	mac := packet.MAC(mac6(n.HardwareAddr))
	if known, ours := t.met[hop.Unmap()]; p.closed || !ours || known == mac || n.LinkIndex != t.uplink {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	if err := t.tell(ctx, p.control, hop.Unmap(), mac); err != nil {
		p.log.Debug("a next hop is not known to ovs-vswitchd", "hop", hop.Unmap(), "err", err)
	}
}

func host32(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// readTunnelRoutes reads what ovs-vswitchd has been told, by us.
func readTunnelRoutes(ctx context.Context, c openflowconn.Control) (map[netip.Addr]netip.Addr, error) {
	text, err := c.Call(ctx, "ovs-vswitchd", "ovs/route/show")
	if err != nil {
		return nil, err
	}
	return parseTunnelRoutes(text), nil
}

// parseTunnelRoutes reads lines such as "User: 192.0.2.2/32 dev BRIDGE GW 192.0.2.9 SRC 192.0.2.1".
func parseTunnelRoutes(text string) map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 4 || words[0] != "User:" || !slices.Contains(words, claims.OVSUnderlayBridge) {
			continue
		}
		dst, err := netip.ParsePrefix(words[1])
		if err != nil || !dst.IsSingleIP() {
			continue
		}
		var gateway netip.Addr
		if i := slices.Index(words, "GW"); i > 0 && i+1 < len(words) {
			gateway, _ = netip.ParseAddr(words[i+1])
		}
		out[dst.Addr().Unmap()] = gateway
	}
	return out
}

// forget takes back what was told. A daemon that is gone has forgotten by itself.
func (t *tunnelRoutes) forget(ctx context.Context, c openflowconn.Control) {
	if got, err := readTunnelRoutes(ctx, c); err == nil {
		for outer := range got {
			_, _ = c.Call(ctx, "ovs-vswitchd", "ovs/route/del", host32(outer))
		}
	}
	*t = tunnelRoutes{}
}

// auditTunnel compares what ovs-vswitchd was told with the peers.
func (p *Plane) auditTunnel(ctx context.Context, desired intent.Node) ([]apply.Difference, error) {
	got, err := readTunnelRoutes(ctx, p.control)
	if err != nil {
		return nil, err
	}
	var out []apply.Difference
	wanted := map[netip.Addr]bool{}
	for _, peer := range desired.Peers {
		if !peer.Outer.IsValid() || wanted[peer.Outer] {
			continue
		}
		wanted[peer.Outer] = true
		if _, there := got[peer.Outer]; !there {
			out = append(out, apply.Difference{Subsystem: "ovs", Object: "tunnel route " + host32(peer.Outer), Problem: missing})
		}
	}
	for outer := range got {
		if !wanted[outer] {
			out = append(out, apply.Difference{Subsystem: "ovs", Object: "tunnel route " + host32(outer), Problem: unexpected})
		}
	}
	return out, nil
}
