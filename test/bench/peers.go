package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// Targets of the linux plane.
const (
	peersAll = 0.3
	peersOne = 5e-3
)

// benchPeers applies an intent with many peers to a fresh namespace, and then takes
// one peer away and brings it back.
func benchPeers(ctx context.Context, e *environment) ([]figure, error) {
	all, fewer := peerIntents(false)
	allPlain, fewerPlain := peerIntents(true)
	var figures []figure
	for _, k := range []struct {
		name       string
		all, fewer intent.Node
	}{{"overlay", all, fewer}, {"routed", allPlain, fewerPlain}} {
		var whole, plus, same samples
		for range e.rounds(10) {
			if err := measurePeers(ctx, e, k.all, k.fewer, &whole, &plus, &same); err != nil {
				return figures, fmt.Errorf("%s: %w", k.name, err)
			}
		}
		figures = append(figures,
			figure{name: k.name + ", 1,000 peers from nothing", ours: whole, target: target{limit: peersAll}},
			figure{name: k.name + ", one new peer", ours: plus, target: target{limit: peersOne}},
			figure{name: k.name + ", nothing new", ours: same},
		)
	}
	return figures, nil
}

// peerIntents are those of a node with 1,000 peers and with one less, without pods.
// Routed ones are plain routes, for nothing is encapsulated.
func peerIntents(routed bool) (all, fewer intent.Node) {
	snap := *worldtest.Large(manyNodes+1, 1)
	key := world.Key{Name: "default"}
	if sn, ok := snap.Subnets.Get(key); ok && routed {
		plain := *sn
		plain.Transport = world.Routed
		snap.Subnets = snap.Subnets.With(key, &plain)
	}
	compiler := decide.New(decide.Config{Node: benchNode})
	all, state, _ := compiler.Compile(nil, &snap)
	fewer, _, _ = compiler.Compile(state, world.NewStore(&snap).Apply(peer(&snap)(false)...))
	return all, fewer
}

// measurePeers opens a plane in a namespace of its own.
func measurePeers(ctx context.Context, e *environment, all, fewer intent.Node, whole, plus, same *samples) (err error) {
	dir, err := os.MkdirTemp(e.dir, "plane")
	if err != nil {
		return err
	}
	bpfDir := filepath.Join(dir, "bpf")
	if err := os.Mkdir(bpfDir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("bpf", bpfDir, "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount a BPF file system: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(bpfDir, unix.MNT_DETACH)) }()
	made, err := netspace.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, made.Close()) }()
	if err := underlay(made, all.Underlay); err != nil {
		return err
	}
	ns, err := netns.Open(fmt.Sprintf("/proc/self/fd/%d", made.Fd()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	o := linuxplane.Options{NS: ns, BPFDir: filepath.Join(bpfDir, "fairlead"), Log: slog.New(slog.DiscardHandler)}
	p, err := linuxplane.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(), linuxplane.Uninstall(context.WithoutCancel(ctx), o)) }()
	timed := func(n intent.Node, into *samples) error {
		start := time.Now()
		report, err := p.Apply(ctx, n, apply.Options{})
		into.add(time.Since(start))
		if err == nil && len(report.Failed) > 0 {
			err = report.Failed[0]
		}
		return err
	}
	if err := timed(all, whole); err != nil {
		return err
	}
	var ignored samples
	for range 10 {
		if err := errors.Join(timed(fewer, &ignored), timed(all, plus), timed(all, same)); err != nil {
			return err
		}
	}
	return nil
}

// underlay makes the node's interface: a veth with its addresses, whose other end leads nowhere.
func underlay(ns *os.File, addresses []netip.Prefix) error {
	if err := fabric.Prepare(ns, false); err != nil {
		return err
	}
	err := netspace.Do(ns, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = "eth0", net.HardwareAddr{2, 0x77, 2, 0, 0, 1}
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "wire"}); err != nil {
			return err
		}
		wire, err := h.LinkByName("wire")
		if err != nil {
			return err
		}
		return h.LinkSetUp(wire)
	})
	if err != nil {
		return fmt.Errorf("make the underlay: %w", err)
	}
	return fabric.Configure(ns, fabric.Interface{Name: "eth0", Addresses: addresses})
}
