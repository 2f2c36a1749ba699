package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/internal/agent/addresses"
	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/run/observe"
	"github.com/fairlead-sdn/fairlead/internal/run/reconcile"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// Plane is what the agent needs of a data plane beyond apply.Plane.
type Plane interface {
	apply.Plane
	// CheckPort says how one port in the kernel differs from the intent; mtu is that
	// of pods, in bytes.
	CheckPort(ctx context.Context, port intent.Port, mtu int) ([]apply.Difference, error)
	// Drops are packets dropped by reason since the tables were made.
	Drops(context.Context) (map[string]uint64, error)
	// Shadowing names what is foreign and takes packets from what is ours, as Audit does. It
	// costs next to nothing while nothing changes.
	Shadowing(context.Context) ([]apply.Difference, error)
	// Features tells, for people, what the kernel offers and what is used of it.
	Features() []string
}

// Config of an Agent. All fields but Plugin and Step are required.
type Config struct {
	config.Agent
	Version    string
	Store      datastore.Store
	Plane      Plane
	Namespaces attach.Namespaces
	Logger     *slog.Logger
	// Plugin is what the container runtime is given once pods can be served: its List in
	// its ConfDir. Without a List, nothing.
	Plugin Plugin
	// Step is attach.Config.Step: it lets tests crash between the steps of ADD and
	// DEL.
	Step func(name string) error

	// findUnderlay replaces the function of that name in tests.
	findUnderlay func(name string) (underlay, error)
	// lookPeriod replaces the constant of that name in tests.
	lookPeriod time.Duration
}

// Agent is one node's daemon. Make it with New and Run it once.
type Agent struct {
	Config
	started time.Time

	health   *health.Registry
	registry *prometheus.Registry
	metrics  *observe.Metrics
	journal  *journal.Journal

	world       *world.Store
	feed        *feed.Feed
	loop        *reconcile.Loop
	addresses   *addresses.Service
	attachments *attach.Service
	announcer   *announcer
	underlay    *underlayWatch
	foreign     foreignLog
	shadowed    atomic.Pointer[[]world.Problem]
	captures    captures

	// compiled is the cache of the compiler, used from the loop's goroutine only.
	compiled *decide.State
	// applied is what the previous pass did, for the journal; likewise.
	applied reconcile.Outcome
	// passed is closed after the first pass, which ended at passedAt.
	passed   chan struct{}
	passOnce sync.Once
	passedAt time.Time
	// settled is closed after the first pass that applied a whole view of the objects.
	settled    chan struct{}
	settleOnce sync.Once
	// writable wakes what could not be written when the disk can be written again.
	writable chan struct{}
}

// New restores what this node knows from its disk. It changes nothing in the
// kernel and asks the datastore nothing.
func New(c Config) (*Agent, error) {
	a := &Agent{Config: c, started: time.Now(), health: health.NewRegistry(time.Now), registry: prometheus.NewRegistry(), passed: make(chan struct{}), settled: make(chan struct{}), writable: make(chan struct{}, 1)}
	a.metrics = observe.New(a.registry)
	a.shadowed.Store(new([]world.Problem))
	var err error
	if a.journal, err = journal.Open(c.StateDir); err != nil {
		return nil, err
	}
	a.world = world.NewStore(a.loadCheckpoint())
	find := findUnderlay
	if c.findUnderlay != nil {
		find = c.findUnderlay
	}
	if a.underlay, err = newUnderlayWatch(c.Underlay.Interface, find); err != nil {
		return nil, err
	}
	if a.feed, err = feed.New(feed.Config{Store: c.Store, World: a.world, Logger: c.Logger.With("component", "feed")}); err != nil {
		return nil, err
	}
	compiler := decide.New(decide.Config{Node: c.Node, MTU: c.MTU})
	a.loop = reconcile.New(reconcile.Config{
		World: a.world, Plane: c.Plane, Logger: c.Logger.With("component", "reconcile"), Resync: c.Resync.Duration,
		Complete: (*world.Snapshot).AllSynced, Observe: a.observe,
		Compile: func(s *world.Snapshot) (n intent.Node, problems []world.Problem) {
			n, a.compiled, problems = compiler.Compile(a.compiled, s)
			return n, problems
		},
	})
	if err := a.openAddresses(); err != nil {
		return nil, err
	}
	a.announcer = &announcer{
		node: c.Node, store: c.Store, facts: a.facts, seen: a.ownNodeNetwork, written: a.addresses.LoansWritten,
		kick: make(chan struct{}, 1), nudge: make(chan struct{}, 1),
		failed: func(err error) { a.report("nodenetwork", health.Degraded, err) },
	}
	a.registerValues()
	return a, nil
}

func (a *Agent) openAddresses() (err error) {
	a.addresses, err = addresses.New(addresses.Config{
		Node: a.Node, Store: a.Store, World: a.world, Applied: a.loop,
		Records: addresses.File{Path: filepath.Join(a.StateDir, "addresses.json")}, Logger: a.Logger.With("component", "addresses"),
	})
	if err != nil {
		return err
	}
	a.attachments, err = attach.New(attach.Config{
		Dir: filepath.Join(a.StateDir, "attachments"), World: a.world, Addresses: a.addresses, Applied: a.loop, Published: a.addresses.Published,
		Namespaces: a.Namespaces, Pods: pods{a.Store}, Log: a.Logger.With("component", "attachments"), Step: a.Step,
	})
	return err
}

// Run serves until ctx ends, and returns nil then; the kernel keeps everything. An
// error means that something without which the agent cannot work has failed.
func (a *Agent) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, a.attachments.Close(), a.journal.Close()) }()
	// The records come first: nothing may be served or removed without them.
	if err := a.attachments.Restore(ctx); err != nil {
		return err
	}
	a.note("started, version " + a.Version)
	g, ctx := errgroup.WithContext(ctx)
	for name, run := range map[string]func(context.Context) error{
		"feed":        a.feed.Run,
		"reconcile":   a.loop.Run,
		"addresses":   a.addresses.Run,
		"attachments": a.attachments.Run,
		"watch":       a.watchPlane,
		"announce":    a.announce,
		"checkpoint":  a.keepCheckpoint,
		"health":      a.watchHealth,
		"underlay":    a.watchUnderlay,
		"shadows":     a.watchShadows,
		"disk":        a.watchDisk,
		"plugin":      a.offerPlugin,
		"cni":         a.cniServer().Run,
		"admin":       a.adminServer().Run,
		"metrics":     a.serveMetrics,
	} {
		g.Go(func() error {
			if err := run(ctx); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (a *Agent) cniServer() *cni.Server {
	return &cni.Server{
		Socket: filepath.Join(a.RunDir, "cni.sock"), Log: a.Logger.With("component", "cni"), Grace: 5 * time.Second,
		Handler: &cni.Handler{
			Attachments: a.attachments, Ports: portChecker{a}, Log: a.Logger.With("component", "cni"), Observe: a.observeCNI,
		},
	}
}

func (a *Agent) adminServer() *admin.Server {
	return &admin.Server{Socket: filepath.Join(a.RunDir, "admin.sock"), Log: a.Logger.With("component", "admin"), Handlers: a.handlers(), Streams: a.streams()}
}

// watchPlane repairs what others change, as soon as the kernel tells.
func (a *Agent) watchPlane(ctx context.Context) error { return a.Plane.Watch(ctx, a.changed) }

// changed is told of every change from outside. A pod's link that has gone with its namespace
// behind DEL is none.
func (a *Agent) changed(f apply.Foreign) {
	if f.Port != "" && !a.attached(f.Port) {
		return
	}
	a.metrics.Foreign(f)
	if a.foreign.add(f) {
		a.Logger.Warn("changed from outside", "subsystem", f.Subsystem, "what", f.What, "process", f.Process)
	}
	a.loop.Poke()
}

// attached reports whether the link of that name is one of an attachment.
func (a *Agent) attached(link string) bool {
	return slices.ContainsFunc(a.attachments.List(), func(x world.Attachment) bool { return x.HostInterface == link })
}

// observe is told of every pass of the loop.
func (a *Agent) observe(o reconcile.Outcome) {
	a.metrics.Pass(o)
	switch {
	case o.Err != nil:
		a.health.Set("plane", health.Failed, o.Err.Error())
	case len(o.Report.Failed) > 0:
		a.health.Set("plane", health.Degraded, fmt.Sprintf("objects that are not applied: %d, the first: %v", len(o.Report.Failed), o.Report.Failed[0]))
	default:
		a.health.Set("plane", health.OK, "")
	}
	e := journal.Entry{
		Time: time.Now(), Revision: o.Snapshot.Revision, Position: o.Snapshot.Position,
		Changes: o.Report.Changes, Foreign: a.foreign.take(), Duration: o.Report.Duration,
	}
	if !o.Unchanged {
		for _, c := range intent.Diff(a.applied.Intent, o.Intent) {
			e.Objects = append(e.Objects, c.String())
		}
	}
	for _, f := range o.Report.Failed {
		e.Failed = append(e.Failed, f.Error())
	}
	if len(e.Changes)+len(e.Failed)+len(e.Foreign)+len(e.Objects) > 0 {
		a.record(e)
	}
	a.passOnce.Do(func() { a.passedAt = time.Now(); close(a.passed) })
	if o.Err == nil && !o.AddOnly {
		a.settleOnce.Do(func() { close(a.settled) })
	}
	if sameNews(a.applied, o) {
		a.announcer.pokeLater()
	} else {
		a.announcer.poke()
	}
	a.applied = o
}

// sameNews reports whether the NodeNetwork has the same to say of both passes.
func sameNews(a, b reconcile.Outcome) bool {
	return a.Intent.MTU == b.Intent.MTU && slices.Equal(a.Problems, b.Problems) && len(a.Report.Failed)+len(b.Report.Failed) == 0
}

// announce waits for the first pass: before it, the node cannot say how it is.
func (a *Agent) announce(ctx context.Context) error {
	select {
	case <-a.passed:
		return a.announcer.run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// note records an event of the agent itself.
func (a *Agent) note(text string) { a.record(journal.Entry{Time: time.Now(), Note: text}) }

// record costs history, not packets, when the disk is full.
func (a *Agent) record(e journal.Entry) { a.report("journal", health.Degraded, a.journal.Add(e)) }

// report sets a component to the level with the error as its message, or to OK.
func (a *Agent) report(component string, level health.Level, err error) {
	if err == nil {
		a.health.Set(component, health.OK, "")
		return
	}
	a.health.Set(component, level, err.Error())
}
