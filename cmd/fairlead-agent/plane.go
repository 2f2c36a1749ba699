package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
)

// plainTable is an environment variable: "1" makes the agent behave as on a kernel
// before 6.9, whose nftables tables have no owner (docs/plane-linux.md). For tests.
const plainTable = "FAIRLEAD_PLAIN_TABLE"

// plane is the linux plane of this process's network namespace.
type plane struct {
	*linuxplane.Plane
	ns *netns.NS
}

func openPlane(ctx context.Context, c config.Agent, log *slog.Logger) (*plane, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	p, err := linuxplane.Open(ctx, linuxplane.Options{
		NS: ns, BPFDir: c.BPFDir, SavedSysctls: filepath.Join(c.RunDir, "sysctls.json"), PlainTable: os.Getenv(plainTable) == "1",
		Log: log.With("component", "plane"),
	})
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return &plane{Plane: p, ns: ns}, nil
}

// Close closes the plane; the kernel keeps everything.
func (p *plane) Close() error { return errors.Join(p.Plane.Close(), p.ns.Close()) }

// State implements attach.Namespaces.
func (p *plane) State(path string) (attach.NamespaceState, error) {
	ns, err := netns.Open(path)
	switch {
	case errors.Is(err, netns.ErrGone), errors.Is(err, netns.ErrOther):
		return attach.NamespaceDead, nil
	case err != nil:
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
