package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/fairlead-sdn/fairlead/internal/apply/bpf"
	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/config"
	render "github.com/fairlead-sdn/fairlead/internal/render/nft"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
)

// plane is the linux plane with the drivers that it was made of.
type plane struct {
	*linuxplane.Plane
	ns     *netns.NS
	filter *nft.Driver
	wire   *bpf.Wire
}

// openPlane opens the drivers in this process's network namespace.
func openPlane(ctx context.Context, c config.Agent, log *slog.Logger) (_ *plane, err error) {
	p := &plane{}
	if p.ns, err = netns.Current(); err != nil {
		return nil, err
	}
	if p.filter, err = nft.Open(ctx, nft.Config{Table: claims.NFTTable, Logger: log.With("component", "nft")}); err != nil {
		return nil, errors.Join(err, p.ns.Close())
	}
	if p.wire, err = bpf.Open(bpf.Config{Dir: c.BPFDir}); err != nil {
		return nil, errors.Join(err, p.filter.Close(), p.ns.Close())
	}
	p.Plane, err = linuxplane.New(linuxplane.Config{
		NS: p.ns, SavedSysctls: filepath.Join(c.RunDir, "sysctls.json"), Table: render.Render,
		Filter: linuxplane.NFT(p.filter), Wire: p.wire, Log: log.With("component", "plane"),
	})
	if err != nil {
		return nil, errors.Join(err, p.wire.Close(), p.filter.Close(), p.ns.Close())
	}
	return p, nil
}

// Close closes the plane and its drivers; the kernel keeps everything.
func (p *plane) Close() error { return errors.Join(p.Plane.Close(), p.ns.Close()) }

// Drops joins the counters of the tunnel programs and of the nftables rules.
func (p *plane) Drops(ctx context.Context) (map[string]uint64, error) {
	out := map[string]uint64{}
	wire, err := p.wire.Drops()
	if err != nil {
		return nil, err
	}
	for reason, n := range wire {
		out["wire "+reason] = n
	}
	counters, err := p.filter.Counters(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range counters {
		if c.Chain != "postrouting" {
			out[c.Comment] += c.Packets
		}
	}
	return out, nil
}

// Features tells what the kernel offers and what is used of it.
func (p *plane) Features() []string {
	table := "nftables table without owner (kernel before 6.9): watched and restored"
	if p.filter.Owned() {
		table = "nftables table owned and persistent: others cannot change it"
	}
	return []string{table, p.wire.Feature()}
}

// State implements attach.Namespaces.
func (p *plane) State(path string) (attach.NamespaceState, error) {
	alive, err := netns.Alive(path)
	if err != nil {
		return attach.NamespaceAlive, fmt.Errorf("look at network namespace %s: %w", path, err)
	}
	if !alive {
		return attach.NamespaceDead, nil
	}
	ns, err := netns.Open(path)
	if err != nil {
		return attach.NamespaceAlive, err
	}
	host := ns.ID() == p.ns.ID()
	if err := ns.Close(); err != nil {
		return attach.NamespaceAlive, err
	}
	if host {
		return attach.NamespaceHost, nil
	}
	return attach.NamespaceAlive, nil
}
