package linuxplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/fairlead-sdn/fairlead/internal/apply/bpf"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/apply/rtnl"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// Options of Open.
type Options struct {
	// NS is the node's network namespace. The caller keeps it open until after Close.
	NS *netns.NS
	// BPFDir is where the tunnel programs are pinned, below a mounted BPF file
	// system: claims.BPFPinDir.
	BPFDir string
	// SavedSysctls is the file that remembers the node's sysctls as they were, in a
	// directory that a reboot empties: below claims.RunDir. Empty: they are not
	// restored by Uninstall.
	SavedSysctls string
	// PlainTable makes the nftables table without an owner, as on kernels before 6.9.
	PlainTable bool
	// FlowCache lets established flows between pods pass by the kernel's own path.
	FlowCache bool
	Log       *slog.Logger
}

// Open opens the drivers and makes a Plane of them. In the kernel it claims the
// nftables table and loads the tunnel programs; traffic is not touched before the
// first Apply.
func Open(ctx context.Context, o Options) (*Plane, error) {
	wire, err := bpf.Open(bpf.Config{Dir: o.BPFDir, FlowCache: o.FlowCache})
	if err != nil {
		return nil, fmt.Errorf("open the linux plane: %w", err)
	}
	driver, err := openTable(ctx, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the linux plane: %w", err), wire.Close())
	}
	p, err := assemble(ctx, o, driver, wire)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the linux plane: %w", err), driver.Close(), wire.Close())
	}
	return p, nil
}

// Uninstall removes everything that is ours from the node: links and with them the pods' network,
// routes, the table, the programs, and sets the node's sysctls back to what they were. No Plane
// may be open. It loads no programs: where they cannot be loaded there are none.
func Uninstall(ctx context.Context, o Options) error {
	links, err := rtnl.Open(rtnl.Config{NS: o.NS, SavedSysctls: o.SavedSysctls, Log: o.Log})
	if err != nil {
		return fmt.Errorf("connect to links and routes: %w", err)
	}
	driver, err := openTable(ctx, o)
	if err != nil {
		return errors.Join(err, links.Close())
	}
	return errors.Join(links.Uninstall(ctx), bpf.Uninstall(o.BPFDir), driver.Delete(ctx), links.Close(), driver.Close())
}

func openTable(ctx context.Context, o Options) (*nft.Driver, error) {
	return nft.Open(ctx, nft.Config{
		Table: claims.NFTTable, NetNS: fmt.Sprintf("/proc/self/fd/%d", o.NS.FD()), Plain: o.PlainTable, Logger: o.Log,
	})
}

func assemble(ctx context.Context, o Options, driver *nft.Driver, wire *bpf.Wire) (*Plane, error) {
	filter, err := newFilter(ctx, driver)
	if err != nil {
		return nil, err
	}
	tracked, err := conntrack.Open(o.NS)
	if err != nil {
		return nil, err
	}
	p, err := New(Config{
		NS: o.NS, SavedSysctls: o.SavedSysctls, Table: renderer(), FlowCache: o.FlowCache, Filter: filter, Wire: wire, Flows: tracked, Log: o.Log,
	})
	if err != nil {
		return nil, errors.Join(err, tracked.Close())
	}
	return p, nil
}

// renderer is rendernft.Render; what does not change between two tables is not made
// twice. A Plane renders one table at a time.
func renderer() func(intent.Node, rendernft.Options) nftables.Table {
	var last *rendernft.State
	return func(n intent.Node, o rendernft.Options) (t nftables.Table) {
		t, last = rendernft.RenderAfter(last, n, o)
		return t
	}
}
