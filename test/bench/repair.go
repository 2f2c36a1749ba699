package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/lab"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// repairTime is the target for the median, in seconds.
const repairTime = 0.1

// damage is something that an outsider does to a node.
type damage struct {
	name string
	do   func() error
	// whole reports whether the kernel is as it was.
	whole func() (bool, error)
}

// benchRepair breaks things in a node of the lab and waits until they are there
// again. On kernels before 6.9 the rules could be broken too; later ones refuse that
// to everybody but the agent, which is checked instead.
func benchRepair(ctx context.Context, e *environment) (_ []figure, err error) {
	l, err := e.lab(ctx)
	if err != nil {
		return nil, err
	}
	ns, err := nodeSpace(ctx, l, "node-1")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	var h *netlink.Handle
	err = netspace.Do(ns, func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink in the node: %w", err)
	}
	defer h.Close()
	// A lab is ready when pods can be attached; the tunnel comes with the first Subnet.
	var list []damage
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var last error
	err = poll(wait, 20*time.Millisecond, func() (bool, error) {
		list, last = damages(h)
		return last == nil, nil
	})
	if err != nil {
		return nil, errors.Join(err, last)
	}
	rules, err := ruleDamage(ctx, ns)
	if err != nil {
		return nil, err
	}
	list = append(list, rules...)
	var figures []figure
	for _, d := range list {
		var took samples
		for range e.rounds(30) {
			if err := breakOnce(ctx, d, &took); err != nil {
				return figures, fmt.Errorf("%s: %w", d.name, err)
			}
		}
		figures = append(figures, figure{name: d.name, ours: took, target: target{limit: repairTime}})
	}
	return figures, nil
}

func nodeSpace(ctx context.Context, l *lab.Lab, name string) (*os.File, error) {
	s, err := l.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range s.Nodes {
		if n.Name == name {
			return netspace.Open(fmt.Sprintf("/proc/%d/ns/net", n.Pid))
		}
	}
	return nil, fmt.Errorf("the lab has no %s", name)
}

// pause between two pieces of damage, so that each meets an agent at rest.
const pause = 50 * time.Millisecond

func breakOnce(ctx context.Context, d damage, took *samples) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	start := time.Now()
	if err := d.do(); err != nil {
		return err
	}
	if err := poll(ctx, time.Millisecond, d.whole); err != nil {
		return fmt.Errorf("wait for the repair: %w", err)
	}
	took.add(time.Since(start))
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func damages(h *netlink.Handle) ([]damage, error) {
	tunnel, err := h.LinkByName(claims.VXLANDevice)
	if err != nil {
		return nil, fmt.Errorf("find the tunnel device: %w", err)
	}
	routes, err := ourRoutes(h, tunnel.Attrs().Index)
	if err != nil {
		return nil, fmt.Errorf("list the routes to the tunnel device: %w", err)
	}
	if len(routes) == 0 {
		return nil, errors.New("no route leads to the tunnel device")
	}
	hasRoutes := func() (bool, error) {
		link, err := h.LinkByName(claims.VXLANDevice)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return false, nil
		}
		if err != nil || link.Attrs().Flags&net.FlagUp == 0 {
			return false, err
		}
		now, err := ourRoutes(h, link.Attrs().Index)
		return len(now) == len(routes), err
	}
	return []damage{
		{"a route is deleted", func() error { return h.RouteDel(&routes[0]) }, hasRoutes},
		{"the tunnel device is set down", func() error { return withTunnel(h, h.LinkSetDown) }, hasRoutes},
		{"the tunnel device is deleted", func() error { return withTunnel(h, h.LinkDel) }, hasRoutes},
	}, nil
}

func withTunnel(h *netlink.Handle, do func(netlink.Link) error) error {
	link, err := h.LinkByName(claims.VXLANDevice)
	if err != nil {
		return err
	}
	return do(link)
}

// ourRoutes are the agent's IPv4 routes to a device.
func ourRoutes(h *netlink.Handle, index int) ([]netlink.Route, error) {
	filter := &netlink.Route{LinkIndex: index, Protocol: claims.RouteProtocol, Table: claims.RouteTable}
	return h.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
}

// ruleDamage flushes a chain of rules, if the kernel lets anybody do that.
func ruleDamage(ctx context.Context, ns *os.File) ([]damage, error) {
	const chain = "inet " + claims.NFTTable + " postrouting"
	if err := typed(ctx, ns, "nft", "list chain "+chain); err != nil {
		return nil, err
	}
	flush := func() error { return typed(ctx, ns, "nft", "flush chain "+chain) }
	if flush() != nil {
		return nil, nil // refused: the table has an owner
	}
	return []damage{{"a chain of rules is flushed", flush, func() (bool, error) {
		out, err := typedOutput(ctx, ns, "nft", "list chain "+chain)
		return bytes.Contains(out, []byte("masquerade")), err
	}}}, nil
}
