package ovsplane

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
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
		*t = tunnelRoutes{known: true, connection: a.flows.connection, gateways: got}
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
