package linuxplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/rtnl"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// Filter brings an nftables table into the kernel.
type Filter interface {
	// Apply makes the table so, and returns its changes, for people. With AddOnly it
	// adds to what is there and neither changes nor removes it.
	Apply(ctx context.Context, want nftables.Table, o apply.Options) ([]string, error)
	Audit(ctx context.Context, want nftables.Table) ([]apply.Difference, error)
	// Watch reports what others did to the table, until ctx ends.
	Watch(ctx context.Context, changed func(apply.Foreign)) error
	// Delete removes the table.
	Delete(ctx context.Context) error
	io.Closer
}

// Maps are those of the tunnel programs.
type Maps interface {
	Apply(ctx context.Context, want linux.Wire, o apply.Options) ([]string, error)
	Audit(want linux.Wire) ([]apply.Difference, error)
}

// Programs are the tunnel programs. Their methods are called on a thread that is
// in the node's network namespace.
type Programs interface {
	Attach(ifindex int) ([]string, error)
	Attached(ifindex int) (bool, error)
	io.Closer
}

// Guard are the programs on the node's ends of pods' links: they check what pods send.
// AttachPort and PortAttached are called on a thread in the node's network namespace,
// AttachPort on several at once.
type Guard interface {
	ApplyPorts(ctx context.Context, want []linux.Guard, o apply.Options) ([]string, error)
	AuditPorts(want []linux.Guard) ([]apply.Difference, error)
	AttachPort(ifindex int) ([]string, error)
	PortAttached(ifindex int) (bool, error)
}

// Cache is the flow cache of the programs.
type Cache interface {
	// Cache turns it on or off; mtu is that of all links, in bytes.
	Cache(on bool, mtu int) ([]string, error)
	// Invalidate makes it forget all flows.
	Invalidate() error
}

// Wire is all of it; *bpf.Wire is one.
type Wire interface {
	Maps
	Programs
	Guard
	Cache
}

// Config of a Plane.
type Config struct {
	// NS is the node's network namespace. The caller keeps it open until after Close.
	NS *netns.NS
	// SavedSysctls is the file that remembers the node's sysctls as they were; it
	// ought to be in a directory that a reboot empties. Empty: they are not restored.
	SavedSysctls string
	// Table renders the nftables table: nft.Render of render/nft.
	Table func(intent.Node, rendernft.Options) nftables.Table
	// FlowCache lets established flows pass by the kernel's own path.
	FlowCache bool
	// Filter, Wire and Flows belong to the Plane from New on.
	Filter Filter
	Wire   Wire
	Flows  Flows
	// Now is the clock; nil is the machine's.
	Now func() time.Time
	Log *slog.Logger
}

// Plane is an apply.Plane. Apply, Audit and CheckPort may be called from several
// goroutines; applies follow one another.
type Plane struct {
	ns     *netns.NS
	links  *rtnl.Driver
	table  func(intent.Node, rendernft.Options) nftables.Table
	filter Filter
	wire   Wire
	flows  Flows
	now    func() time.Time
	log    *slog.Logger

	// foreign: others changed something since the last Apply.
	foreign atomic.Bool

	// mu is held by an Apply, and by whoever must not see one under way.
	mu sync.Mutex
	// rules guards what is below within an Apply, which lets go of it while the kernel
	// changes links: rules may come ahead then.
	rules sync.Mutex
	// ahead: an Apply is under way, and its rules are in force.
	ahead bool
	// vacant are the addresses of which no flow is known.
	vacant vacancy
	// adopting: the table lets TCP flows go on that were there before it; until
	// adoptUntil at least, and the first Apply from then on. It is set by the first Apply.
	adopting   bool
	adoptUntil time.Time
	// judged is the intent that all flows are known to obey, nil if none is.
	judged *intent.Node
	// cut are the flows that were cut.
	cut cuts
	// attached is the index of the device that the programs are on, as we know; guarded
	// are those of the links of ports that they are on.
	attached int
	guarded  map[int]bool
	cache    cache
	closed   bool
}

var (
	_ apply.Plane = (*Plane)(nil)
	_ apply.Ahead = (*Plane)(nil)
)

// New connects to the kernel. It changes nothing there.
func New(c Config) (*Plane, error) {
	links, err := rtnl.Open(rtnl.Config{NS: c.NS, SavedSysctls: c.SavedSysctls, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("connect to links and routes: %w", err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Plane{ns: c.NS, links: links, table: c.Table, filter: c.Filter, wire: c.Wire, flows: c.Flows, now: c.Now, log: c.Log, guarded: map[int]bool{}}
	p.cache.wanted = c.FlowCache
	p.adopting = p.anew()
	return p, nil
}

// ErrClosed is the error of a Plane after Close.
var ErrClosed = errors.New("the linux plane is closed")

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
	p.rules.Lock()
	defer p.rules.Unlock()
	defer func() { p.ahead = false }()
	state := p.state(desired)
	a := application{Plane: p, options: o}
	for _, problem := range state.Problems {
		a.fail(apply.ObjectError{Ref: problem.Ref, Err: errors.New(problem.Text)})
	}
	err := a.run(ctx, desired, state)
	slices.SortFunc(a.report.Failed, func(a, b apply.ObjectError) int {
		return cmp.Or(cmp.Compare(a.Ref.Kind, b.Ref.Kind), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	a.report.Duration = time.Since(start)
	a.report.Again = a.adoptsFor()
	return a.report, err
}

// application is one Apply.
type application struct {
	*Plane
	options apply.Options
	report  apply.Report
	failed  map[intent.Ref]bool
	// made: the table was made anew.
	made bool
	// forgotten are the changes of the report that the flow cache knows about.
	forgotten int
}

// fail adds a failure; the first of an object tells why.
func (a *application) fail(e apply.ObjectError) {
	if a.failed[e.Ref] {
		return
	}
	if a.failed == nil {
		a.failed = map[intent.Ref]bool{}
	}
	a.failed[e.Ref] = true
	a.report.Failed = append(a.report.Failed, e)
}

func (a *application) took(r rtnl.Result) {
	a.report.Changes = append(a.report.Changes, r.Changes...)
	for _, e := range r.Failed {
		a.fail(e)
	}
}

func (a *application) run(ctx context.Context, desired intent.Node, state linux.State) error {
	var rules rulesErrors
	early := a.onlyMorePorts(desired)
	if early {
		rules = a.applyRules(ctx, desired, state)
		a.ahead = errors.Join(rules.filter, rules.cache, rules.wire) == nil && a.options == apply.Options{}
	}
	var prepared rtnl.Result
	var err error
	a.aside(func() { prepared, err = a.links.Prepare(ctx, state, a.options) })
	a.took(prepared)
	if err != nil {
		return fmt.Errorf("prepare links: %w", err)
	}
	// The filter drops what the programs on ports have not checked.
	guardErr := a.guardPorts(ctx, state.Guards(prepared.PortIndex))
	if guardErr != nil {
		guardErr = fmt.Errorf("programs on the links of pods: %w", guardErr)
	}
	if !early {
		rules = a.applyRules(ctx, desired, state)
	}
	if rules.wire == nil {
		rules.wire = a.attachWire(prepared.TunnelIndex)
	}
	if rules.wire != nil {
		rules.wire = fmt.Errorf("tunnel programs: %w", rules.wire)
	}
	// Without its rules nothing new may carry traffic.
	hold := errors.Join(guardErr, rules.filter, rules.wire)
	if a.foreign.Swap(false) || prepared.Foreign || a.options.Refresh || hold != nil {
		a.vacant.forget()
	}
	if hold == nil {
		hold = a.vacate(ctx, desired, state)
	}
	var committed rtnl.Result
	a.aside(func() { committed, err = a.links.Commit(ctx, state, a.options, hold) })
	a.took(committed)
	if err != nil {
		a.vacant.forget()
		err = fmt.Errorf("commit links and routes: %w", err)
	}
	return errors.Join(hold, err, rules.cache, a.settleCache(desired.MTU, hold != nil || err != nil))
}

// aside does what takes long and is no matter of rules.
func (a *application) aside(f func()) {
	a.rules.Unlock()
	defer a.rules.Lock()
	f()
}

// Ahead implements apply.Ahead. An Apply whose ports only join has its rules in force before
// it makes links, and has nothing more to do to rules. Those of an intent to which ports only
// join again may follow at once, as if its Apply had begun. So what concerns the rest of the
// cluster does not wait for links, which many pods at once make take long.
func (p *Plane) Ahead(ctx context.Context, newer intent.Node) ([]string, error) {
	p.rules.Lock()
	defer p.rules.Unlock()
	a := application{Plane: p}
	if !p.ahead || !a.onlyMorePorts(newer) {
		return nil, nil
	}
	e := a.applyRules(ctx, newer, p.state(newer))
	err := errors.Join(e.filter, e.cache, e.wire)
	p.ahead = err == nil
	return a.report.Changes, err
}

// onlyMorePorts reports whether all ports stay as they are, and there may be new ones. The
// rules need not wait for the links of those, which takes most of the time: they name links
// that carry nothing yet. What concerns the rest of the cluster is in force sooner then.
// Where a port goes or is another, the programs on its link come first.
func (a *application) onlyMorePorts(desired intent.Node) bool {
	return a.judged != nil && !slices.ContainsFunc(a.judged.Ports, func(was intent.Port) bool {
		i, found := slices.BinarySearchFunc(desired.Ports, was, intent.Port.Compare)
		return !found || !was.Equal(desired.Ports[i])
	})
}

// rulesErrors tell what of the rules is not in force.
type rulesErrors struct{ filter, cache, wire error }

// applyRules brings in the rules, and the maps of the tunnel programs.
func (a *application) applyRules(ctx context.Context, desired intent.Node, state linux.State) (e rulesErrors) {
	if e.filter = a.applyFilter(ctx, desired); e.filter != nil {
		e.filter = fmt.Errorf("packet filter: %w", e.filter)
	} else {
		a.followPolicy(ctx, desired)
	}
	e.cache = a.forgetPassing(e.filter != nil)
	e.wire = a.applyWire(ctx, desired, state)
	return e
}

// applyWire fills the maps before the programs are on the device, and both before
// the device is up. Without a tunnel the maps are only emptied of what was there.
func (a *application) applyWire(ctx context.Context, desired intent.Node, state linux.State) error {
	want := linux.Wire{}
	if state.Tunnel != nil {
		want = linux.RenderWire(desired)
	}
	changes, err := a.wire.Apply(ctx, want, a.options)
	a.report.Changes = append(a.report.Changes, changes...)
	return err
}

// attachWire puts the programs on the tunnel device, if there is one.
func (a *application) attachWire(index int) error {
	if index == 0 || index == a.attached && !a.options.Refresh {
		return nil
	}
	return a.ns.Do(func() error {
		changes, err := a.wire.Attach(index)
		a.report.Changes = append(a.report.Changes, changes...)
		if err == nil {
			a.attached = index
		}
		return err
	})
}

// Audit implements apply.Plane.
func (p *Plane) Audit(ctx context.Context, desired intent.Node) ([]apply.Difference, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	state := p.state(desired)
	out, linkErr := p.links.Audit(ctx, state)
	diffs, filterErr := p.filter.Audit(ctx, p.table(desired, rendernft.Options{Adopting: p.adopting}))
	out = append(out, diffs...)
	want := linux.Wire{}
	if state.Tunnel != nil {
		want = linux.RenderWire(desired)
	}
	diffs, wireErr := p.wire.Audit(want)
	out = append(out, diffs...)
	diffs, guardErr := p.auditGuards(state)
	out = append(out, diffs...)
	var attachErr error
	if state.Tunnel != nil {
		diffs, attachErr = p.auditPrograms()
		out = append(out, diffs...)
	}
	slices.SortFunc(out, apply.Difference.Compare)
	return out, errors.Join(linkErr, filterErr, wireErr, guardErr, attachErr)
}

// Shadowing names the foreign routes and rules that take packets from ours, as Audit does. It
// reads the kernel only if something has changed since it was asked last.
func (p *Plane) Shadowing(context.Context) ([]apply.Difference, error) { return p.links.Shadowing() }

func (p *Plane) auditPrograms() (out []apply.Difference, err error) {
	index, err := p.links.TunnelIndex()
	if err != nil || index == 0 {
		return nil, err // a missing device is told already
	}
	err = p.ns.Do(func() error {
		on, err := p.wire.Attached(index)
		if err == nil && !on {
			out = append(out, apply.Difference{Subsystem: "bpf", Object: "programs of the tunnel device", Problem: "missing"})
		}
		return err
	})
	return out, err
}

// Watch implements apply.Plane. changed is never called twice at once; while it
// blocks, nothing is noticed.
func (p *Plane) Watch(ctx context.Context, changed func(apply.Foreign)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var one sync.Mutex
	serial := func(f apply.Foreign) {
		one.Lock()
		defer one.Unlock()
		if f.Port == "" {
			p.foreign.Store(true)
		}
		changed(f)
	}
	ended := make(chan error, 2)
	for _, watch := range []func(context.Context, func(apply.Foreign)) error{p.links.Watch, p.filter.Watch} {
		go func() { ended <- watch(ctx, serial) }()
	}
	var errs []error
	for range cap(ended) {
		// When one ends early the other must not go on alone.
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
		cancel()
	}
	return errors.Join(errs...)
}

// Close implements apply.Plane.
func (p *Plane) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	return errors.Join(p.links.Close(), p.wire.Close(), p.filter.Close(), p.flows.Close())
}
