package rtnl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// Config of a Driver.
type Config struct {
	// NS is the node's namespace. The caller keeps it open until after Close.
	NS *netns.NS
	// SavedSysctls is the file that remembers what the node's sysctls were before;
	// empty for none, and then Uninstall leaves them.
	SavedSysctls string
	Log          *slog.Logger
}

// Driver makes the kernel equal to a linux.State. It is safe for concurrent use.
//
// An Apply has two halves, so that its caller can put filter rules between them:
// Prepare makes links that carry nothing yet, Commit lets them carry. Vacate, between
// them, keeps away what is sent to those links' addresses already.
type Driver struct {
	ns  *netns.NS
	log *slog.Logger
	// dial opens a socket in a namespace, and does there what the function says.
	dial func(*netns.NS, func() error) (*conn, error)
	conn *conn
	// spare are further sockets like conn, for what is done at once.
	spare   []*conn
	monitor *monitor
	remover *remover

	mu       sync.Mutex
	settings settings
	// shadow is nil before the first read; stale says that it must be read anew,
	// because of what we did ourselves.
	shadow *shadow
	stale  bool
	vital  vital
	// verified are the ports whose pod's side we have seen to be right, by host's end.
	verified map[string]verified
	// failed are the ports and the tunnel (by link name) that Prepare could not make.
	failed map[string]bool
	// fresh are the ports (by host's end) whose pods were given IPv6 addresses by Prepare.
	fresh map[string]bool
	// carried are the addresses of the ports that we know to be up, or to have been, by
	// index of the host's end.
	carried map[int][]netip.Addr
	// shadowed is what Shadowing found; looked: nothing has changed since that concerns it.
	shadowed []apply.Difference
	looked   bool
	// foreign waits for Watch, which kick wakes.
	foreign []apply.Foreign
	kick    chan struct{}
	closed  bool
}

// Result says what half of an Apply did.
type Result struct {
	Changes []string
	// Failed objects, at most once each, in no order.
	Failed []apply.ObjectError
	// TunnelIndex is that of the tunnel device, 0 if there is none.
	TunnelIndex int
	// PortIndex are those of the host's ends of the ports that there are, by name.
	PortIndex map[string]int
	// Foreign says, of Prepare, that others changed something which Watch has not told yet.
	Foreign bool
}

func (r *Result) fail(ref intent.Ref, err error) {
	if !slices.ContainsFunc(r.Failed, func(e apply.ObjectError) bool { return e.Ref == ref }) {
		r.Failed = append(r.Failed, apply.ObjectError{Ref: ref, Err: err})
	}
}

func (r *Result) say(format string, args ...any) {
	r.Changes = append(r.Changes, fmt.Sprintf(format, args...))
}

// Open connects to the kernel. It changes nothing.
func Open(c Config) (_ *Driver, err error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	d := &Driver{
		ns: c.NS, log: c.Log, dial: dial, settings: settings{ns: c.NS, file: c.SavedSysctls},
		verified: map[string]verified{}, failed: map[string]bool{}, fresh: map[string]bool{}, carried: map[int][]netip.Addr{}, kick: make(chan struct{}, 1),
	}
	// First listen, then read: nothing can happen unnoticed in between.
	if d.monitor, err = listen(c.NS); err != nil {
		return nil, err
	}
	if d.conn, err = dial(c.NS, nil); err != nil {
		return nil, errors.Join(err, d.monitor.close())
	}
	removals, err := dial(c.NS, nil)
	if err != nil {
		d.conn.close()
		return nil, errors.Join(err, d.monitor.close())
	}
	d.remover = newRemover(removals, d.log)
	return d, nil
}

// Close lets go of the kernel, which keeps everything. Links whose removal has
// not begun stay, set down.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.remover.close()
	d.conn.close()
	for _, c := range d.spare {
		c.close()
	}
	return d.monitor.close()
}

var errClosed = errors.New("the rtnetlink driver is closed")

// catchUp makes the shadow true: it reads everything if it must, or if there was
// a notification of something that we did not do.
func (d *Driver) catchUp(refresh bool) error {
	if d.closed {
		return errClosed
	}
	events, complete, err := d.monitor.drain()
	if err != nil {
		return err
	}
	if d.shadow == nil || d.stale {
		return d.read(0, false)
	}
	port, news, doomed := uint32(0), refresh || !complete, d.remover.doomed()
	dropped := map[int]bool{}
	for _, e := range d.takeLost(events, doomed) {
		// Routes by a link that is set down go without a word.
		if _, isLink := e.key.(int); isLink || e.foreign {
			d.looked = false
		}
		if e.key == (allLinks{}) {
			d.reportSettings()
			continue
		}
		if d.shadow.news(e, d.vital, doomed) {
			d.log.Debug("kernel notification differs from what we know", "object", fmt.Sprint(e.key), "deleted", e.deleted)
			if e.dropped && d.shadow.links[e.link.index].up {
				dropped[e.link.index] = true
			}
			port, news = cmp.Or(port, e.port), true
		}
	}
	if !news {
		return nil
	}
	if err := d.read(port, true); err != nil {
		return err
	}
	for _, i := range slices.Sorted(maps.Keys(dropped)) {
		if l := d.shadow.links[i]; l.up {
			d.report(finding{"link", fmt.Sprintf("link %s set down and up again", l.name)}, processOf(port))
		}
	}
	return nil
}

// takeLost takes the ends of ports' links that are gone, and what was on them, into the shadow.
// They go whenever a pod's namespace does, which is no reason to read everything anew. It
// returns the events that are not about them.
func (d *Driver) takeLost(events []event, doomed map[int]bool) []event {
	lost := map[int]bool{}
	for _, e := range events {
		index, _ := e.key.(int)
		l, known := d.shadow.links[index]
		if !e.deleted || !known || doomed[index] || !isPort(l.name) {
			continue
		}
		lost[index] = true
		d.looked = false
		d.drop(l)
		d.tell(apply.Foreign{Subsystem: "link", What: fmt.Sprintf("link %s deleted", l.name), Process: processOf(e.port), Port: l.name})
	}
	if len(lost) == 0 {
		return events
	}
	return slices.DeleteFunc(events, func(e event) bool { return e.on(lost) })
}

// drop takes a link that is gone, or as good as that, out of what is known.
func (d *Driver) drop(l link) {
	d.shadow.forget(l.index)
	delete(d.shadow.links, l.index)
	maps.DeleteFunc(d.shadow.addrs, func(k addrKey, _ bool) bool { return k.index == l.index })
	delete(d.verified, l.name)
}

// read reads the kernel anew. With report, what differs from what we knew is
// foreign, done by whoever has the netlink port.
func (d *Driver) read(port uint32, report bool) error {
	next, err := readShadow(d.conn, d.remover.doomed())
	if err != nil {
		d.stale = true
		return err
	}
	old := d.shadow
	d.shadow, d.stale, d.looked = next, false, false
	if old == nil || !report {
		return nil
	}
	process := processOf(port)
	for _, f := range old.compare(next, d.vital) {
		d.report(f, process)
	}
	return nil
}

// foreignLimit bounds how much is kept for a Watch that is slow or is not there.
const foreignLimit = 256

func (d *Driver) report(f finding, process string) {
	d.tell(apply.Foreign{Subsystem: f.subsystem, What: f.what, Process: process})
}

func (d *Driver) tell(f apply.Foreign) {
	d.log.Debug("changed from outside", "subsystem", f.Subsystem, "what", f.What, "process", f.Process)
	if len(d.foreign) < foreignLimit {
		f.Time = time.Now()
		d.foreign = append(d.foreign, f)
	}
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

func (d *Driver) reportSettings() {
	for _, what := range d.settings.changed() {
		d.report(finding{"sysctl", what}, "")
	}
}

// Reread makes the next half of an Apply read the kernel anew, without telling of what it
// finds: its caller has changed something beside the Driver, of which routes make use.
func (d *Driver) Reread() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stale = true
}

// Prepare reads back what must be read, and makes links with nothing on them that
// could carry traffic: the tunnel, and the pairs of new ports, set up inside of
// the pods, their host's ends down. Links of ports that are not wanted any more
// are set down. The error is for what concerns no object.
func (d *Driver) Prepare(ctx context.Context, want linux.State, o apply.Options) (Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var r Result
	if o.Refresh {
		clear(d.verified)
		d.settings.known = nil
	}
	if err := d.catchUp(o.Refresh); err != nil {
		return r, err
	}
	r.Foreign = slices.ContainsFunc(d.foreign, func(f apply.Foreign) bool { return f.Port == "" })
	clear(d.failed)
	changes, err := d.settings.apply(want.Sysctls)
	r.Changes = append(r.Changes, changes...)
	if err != nil {
		r.fail(intent.Ref{Kind: "Node", Name: "sysctls"}, err)
	}
	d.prepareTunnel(ctx, want.Tunnel, &r)
	if !o.AddOnly {
		d.quiesce(want, &r)
	}
	d.preparePorts(ctx, want, o, &r)
	if l, ok := d.shadow.named(claims.VXLANDevice); ok && want.Tunnel != nil && !d.failed[l.name] {
		r.TunnelIndex = l.index
	}
	r.PortIndex = make(map[string]int, len(want.Ports))
	index := d.shadow.byName()
	for _, p := range want.Ports {
		// One that failed may carry what it did before.
		if i, ok := index[p.HostName]; ok && d.shadow.links[i].kind == "veth" {
			r.PortIndex[p.HostName] = i
		}
	}
	return r, ctx.Err()
}

// unwanted are the links of ours that the state does not name, sorted by index.
func (d *Driver) unwanted(want linux.State) []link {
	wanted := map[string]bool{}
	for _, p := range want.Ports {
		wanted[p.HostName] = true
	}
	if want.Tunnel != nil {
		wanted[want.Tunnel.Name] = true
	}
	var out []link
	for _, l := range d.shadow.links {
		// A link of another kind with the tunnel's name is somebody else's.
		if ours(l.name) && !wanted[l.name] && (l.name != claims.VXLANDevice || l.kind == "vxlan") {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b link) int { return cmp.Compare(a.index, b.index) })
	return out
}

// quiesce stops what is going to be removed while the rules that watch over it
// are still there.
func (d *Driver) quiesce(want linux.State, r *Result) {
	todo := slices.DeleteFunc(d.unwanted(want), func(l link) bool { return !l.up })
	errs := make([]error, len(todo))
	d.spread(len(todo), func(c *conn, i int) { errs[i] = gone(c.setUp(todo[i].index, false)) })
	for i, l := range todo {
		if errs[i] != nil {
			r.fail(intent.Ref{Kind: "Link", Name: l.name}, fmt.Errorf("set link %s down: %w", l.name, errs[i]))
			continue
		}
		l.up = false
		d.shadow.links[l.index] = l
		d.shadow.forget(l.index)
	}
}

// Commit lets links carry: addresses, neighbours, links up, routes; then it
// removes what is not wanted. With hold, which says why, links that are down stay
// so: what watches over them is not in place. Call it after a Prepare of the same
// state.
func (d *Driver) Commit(ctx context.Context, want linux.State, o apply.Options, hold error) (Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var r Result
	if d.closed {
		return r, errClosed
	}
	if d.shadow == nil || d.stale {
		if err := d.catchUp(false); err != nil {
			return r, err
		}
	}
	addresses := d.shadow.planAddresses(want)
	d.run(ctx, addresses, o, &r)
	d.raiseTunnel(want.Tunnel, hold, &r)
	d.run(ctx, d.shadow.planNeighbours(want, d.failed), o, &r)
	d.raisePorts(want, hold, &r)
	failed := map[intent.Ref]bool{}
	for _, p := range want.Ports {
		failed[p.Ref] = d.failed[p.HostName]
	}
	changes, failures, carriers := d.shadow.planRoutes(want.Routes, failed)
	near := d.shadow.near()
	for _, a := range want.Underlay {
		if i, ok := near[a]; ok {
			carriers[i] = true
		}
	}
	d.vital = vital{links: carriers, addrs: want.Underlay}
	for _, f := range failures {
		r.fail(f.Ref, f.Err)
	}
	d.run(ctx, changes, o, &r)
	if !o.AddOnly {
		for _, l := range d.unwanted(want) {
			d.remove(l, &r)
		}
	}
	d.awaitLocal(ctx, want, len(addresses) > 0)
	d.looked = d.looked && len(r.Changes) == 0
	return r, ctx.Err()
}

// remove hands a link over to be deleted.
func (d *Driver) remove(l link, r *Result) {
	d.remover.add(l)
	d.drop(l)
	r.say("remove link %s", l.name)
}

// run makes changes, those that remove after all others.
func (d *Driver) run(ctx context.Context, changes []change, o apply.Options, r *Result) {
	var rest, ports, removals []change
	for _, c := range changes {
		switch {
		case c.diff.Problem == unexpected:
			removals = append(removals, c)
		case o.AddOnly && c.diff.Problem != missing:
		case c.ref.Kind == portKind:
			ports = append(ports, c)
		default:
			rest = append(rest, c)
		}
	}
	for _, c := range rest {
		if ctx.Err() == nil {
			d.settle(c, c.do(d.conn), r)
		}
	}
	// Those of ports have nothing to do with one another.
	errs := make([]error, len(ports))
	if ctx.Err() == nil {
		d.spread(len(ports), func(c *conn, i int) { errs[i] = ports[i].do(c) })
		for i, c := range ports {
			d.settle(c, errs[i], r)
		}
	}
	for _, c := range removals {
		if !o.AddOnly && ctx.Err() == nil {
			d.settle(c, c.do(d.conn), r)
		}
	}
}

var portKind = intent.PortRef("").Kind

// settle notes what became of a change.
func (d *Driver) settle(c change, err error, r *Result) {
	if err != nil {
		d.failChange(c, err, r)
		return
	}
	c.done(d.shadow)
	r.Changes = append(r.Changes, c.text())
}

// atOnce bounds how many changes the kernel is asked for at once.
const atOnce = 8

// spread calls f for 0 to n-1, some at once, each time with a socket that no other call
// has. The kernel changes links and routes one at a time, those of all namespaces of the
// machine. Where it is busy each change waits long for its turn: those that wait together
// wait once.
func (d *Driver) spread(n int, f func(c *conn, i int)) {
	for len(d.spare) < min(n, atOnce)-1 {
		c, err := d.dial(d.ns, nil)
		if err != nil {
			d.log.Warn("changes are made with fewer sockets at once", "sockets", len(d.spare)+1, "err", err)
			break
		}
		d.spare = append(d.spare, c)
	}
	var next atomic.Int64
	work := func(c *conn) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(c, i)
		}
	}
	var others sync.WaitGroup
	for _, c := range d.spare[:max(0, min(n-1, len(d.spare)))] {
		others.Go(func() { work(c) })
	}
	work(d.conn) // one alone, as most often, needs no other goroutine
	others.Wait()
}
