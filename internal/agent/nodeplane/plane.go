package nodeplane

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/fairlead-sdn/fairlead/internal/agent"
	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsplane"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
)

// plainTable is an environment variable: "1" makes the agent behave as on a kernel
// before 6.9, whose nftables tables have no owner (docs/plane-linux.md). For tests.
const plainTable = "FAIRLEAD_PLAIN_TABLE"

// Plane is the data plane of this process's network namespace.
type Plane interface {
	agent.Plane
	attach.Namespaces
}

// Open opens the plane that an agent's configuration names. It changes nothing on the
// node.
func Open(ctx context.Context, c config.Agent, log *slog.Logger) (Plane, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	if c.Plane == config.PlaneOVS {
		p, err := ovsplane.Open(ctx, ovsOptions(c, ns, log))
		if err != nil {
			return nil, errors.Join(err, ns.Close())
		}
		return &ovsPlane{p, namespaces{ns}}, nil
	}
	p, err := linuxplane.Open(ctx, linuxOptions(c, ns, log))
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return &linuxPlane{p, namespaces{ns}}, nil
}

// remove takes everything of the plane that the configuration names away from the node.
func remove(ctx context.Context, c config.Agent, log *slog.Logger) (err error) {
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	if c.Plane != config.PlaneOVS {
		return linuxplane.Uninstall(ctx, linuxOptions(c, ns, log))
	}
	return ovsplane.Uninstall(ctx, ovsOptions(c, ns, log))
}

func savedSysctls(c config.Agent) string { return filepath.Join(c.RunDir, "sysctls.json") }

func linuxOptions(c config.Agent, ns *netns.NS, log *slog.Logger) linuxplane.Options {
	return linuxplane.Options{
		NS: ns, BPFDir: c.BPFDir, SavedSysctls: savedSysctls(c), PlainTable: os.Getenv(plainTable) == "1", FlowCache: *c.FlowCache,
		Log: log.With("component", "plane"),
	}
}

func ovsOptions(c config.Agent, ns *netns.NS, log *slog.Logger) ovsplane.Options {
	return ovsplane.Options{
		NS: ns, RunDir: c.OVS.RunDir, Datapath: c.OVS.Datapath, SavedSysctls: savedSysctls(c), PlainTable: os.Getenv(plainTable) == "1",
		Log: log.With("component", "plane"),
	}
}

type linuxPlane struct {
	*linuxplane.Plane
	namespaces
}

// Close closes the plane; the kernel keeps everything.
func (p *linuxPlane) Close() error { return errors.Join(p.Plane.Close(), p.ns.Close()) }

type ovsPlane struct {
	*ovsplane.Plane
	namespaces
}

// Close closes the plane; kernel and Open vSwitch keep everything.
func (p *ovsPlane) Close() error { return errors.Join(p.Plane.Close(), p.ns.Close()) }

// namespaces are the network namespaces that pods may be in; ns is the node's.
type namespaces struct{ ns *netns.NS }

// State implements attach.Namespaces.
func (n namespaces) State(path string) (attach.NamespaceState, error) {
	ns, err := netns.Open(path)
	switch {
	case errors.Is(err, netns.ErrGone), errors.Is(err, netns.ErrOther):
		return attach.NamespaceDead, nil
	case err != nil:
		return attach.NamespaceAlive, err
	}
	host := ns.ID() == n.ns.ID()
	if err := ns.Close(); err != nil {
		return attach.NamespaceAlive, err
	}
	if host {
		return attach.NamespaceHost, nil
	}
	return attach.NamespaceAlive, nil
}
