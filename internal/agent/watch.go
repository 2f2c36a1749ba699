package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/run/observe"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

const (
	foreignKept    = 100
	foreignFor     = time.Hour
	underlayPeriod = time.Second
	// lookPeriod is how often it is asked what shadows ours, and whether the disk can be
	// written. After a look for shadows there is rest for lookShare times what it took, at least.
	lookPeriod = 5 * time.Second
	lookShare  = 200
)

// foreignLog keeps what others changed, bounded.
type foreignLog struct {
	mu     sync.Mutex
	recent []apply.Foreign
	fresh  []apply.Foreign
}

// add reports whether the change is worth a line in the log: somebody who flushes
// a table makes thousands.
func (l *foreignLog) add(f apply.Foreign) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fresh) < foreignKept {
		l.fresh = append(l.fresh, f)
	}
	l.recent = append(l.recent, f)
	if len(l.recent) > foreignKept {
		l.recent = slices.Delete(l.recent, 0, len(l.recent)-foreignKept)
	}
	return len(l.fresh) < 10
}

// take returns what came since the last take, for the journal.
func (l *foreignLog) take() []apply.Foreign {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.fresh
	l.fresh = nil
	return out
}

// list returns what came in the last hour.
func (l *foreignLog) list(now time.Time) []apply.Foreign {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []apply.Foreign{}
	for _, f := range l.recent {
		if now.Sub(f.Time) < foreignFor {
			out = append(out, f)
		}
	}
	return out
}

// underlayWatch looks at the underlay interface now and then: addresses and MTU of
// a NIC change rarely, and peers need to know when they do.
type underlayWatch struct {
	name string
	find func(name string) (underlay, error)

	mu      sync.Mutex
	current underlay
}

func newUnderlayWatch(name string, find func(string) (underlay, error)) (*underlayWatch, error) {
	u, err := find(name)
	if err != nil {
		return nil, err
	}
	return &underlayWatch{name: name, find: find, current: u}, nil
}

func (w *underlayWatch) get() underlay {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

// look returns whether the underlay changed. An interface that is gone or bare
// keeps its last facts.
func (w *underlayWatch) look() (bool, error) {
	u, err := w.find(w.name)
	if err != nil {
		return false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := !reflect.DeepEqual(u, w.current)
	w.current = u
	return changed, nil
}

func (a *Agent) watchUnderlay(ctx context.Context) error {
	tick := time.NewTicker(underlayPeriod)
	defer tick.Stop()
	for {
		changed, err := a.underlay.look()
		a.report("underlay", health.Degraded, err)
		if changed {
			a.note("the underlay's addresses or MTU changed")
			a.announcer.poke()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// watchShadows keeps what is known of foreign routes, rules and flows that take packets from
// ours: nothing of ours is missing then, and traffic goes elsewhere.
func (a *Agent) watchShadows(ctx context.Context) error {
	period := cmp.Or(a.lookPeriod, lookPeriod)
	for ctx.Err() == nil {
		begin := time.Now()
		found, err := a.Plane.Shadowing(ctx)
		if err != nil {
			// What keeps it from looking keeps it from applying too, which tells.
			a.Logger.Debug("cannot look for what shadows ours", "err", err)
		} else {
			a.tellShadows(a.shadows(found))
		}
		wait(ctx, max(period, lookShare*time.Since(begin)))
	}
	return nil
}

// tellShadows keeps the problems, and tells of those that are new.
func (a *Agent) tellShadows(problems []world.Problem) {
	before := *a.shadowed.Swap(&problems)
	if slices.Equal(problems, before) {
		return
	}
	for _, p := range problems {
		if !slices.Contains(before, p) {
			a.Logger.Warn("shadowed", "problem", p.Message)
			a.note(p.Message)
		}
	}
	if len(problems) == 0 {
		a.note("nothing foreign takes packets from Fairlead's routes, rules and flows any more")
	}
	a.announcer.poke()
}

// watchDisk tries now and then whether the state directory can be written, as pods and nodes
// need it when they come: before one needs it, and fails. It tries as well when a component is
// not what it was: the disk may be why.
func (a *Agent) watchDisk(ctx context.Context) error {
	well := true
	period := time.NewTicker(cmp.Or(a.lookPeriod, lookPeriod))
	defer period.Stop()
	for ctx.Err() == nil {
		changed := a.health.Changed()
		err := tryWrite(a.StateDir)
		a.report("disk", health.Degraded, err)
		switch {
		case err == nil && !well:
			a.note("the state directory can be written again")
			select {
			case a.writable <- struct{}{}:
			default:
			}
		case err != nil && well:
			a.Logger.Error("no pod can be started here", "err", err)
		}
		well = err == nil
		select {
		case <-period.C:
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

// shadows are the problems that tell of what takes packets from ours. They do not count
// packets: a NodeNetwork would be written all the time.
func (a *Agent) shadows(found []apply.Difference) []world.Problem {
	var out []world.Problem
	found = slices.CompactFunc(slices.Clone(found), func(x, y apply.Difference) bool { return x.Text() == y.Text() })
	for i, d := range found {
		message := d.Text()
		if i == maxProblems {
			message = fmt.Sprintf("%d more routes, rules or flows that are not Fairlead's take packets from its own: fairlead audit %s", len(found)-i, a.Node)
		}
		out = append(out, world.Problem{Kind: world.KindNode, Key: world.Key{Name: a.Node}, Reason: "Shadowed", Message: message})
		if i == maxProblems {
			break
		}
	}
	return out
}

// watchHealth turns the state of the feed and of the addresses into health, and
// announces what changes.
func (a *Agent) watchHealth(ctx context.Context) error {
	for {
		kinds, feedChanged := a.feed.Status()
		a.health.Set("datastore", datastoreLevel(kinds), datastoreMessage(kinds))
		a.report("addresses", health.Degraded, a.addresses.Err())
		_, loansChanged := a.addresses.Loans()
		changed := a.health.Changed()
		a.announcer.poke()
		select {
		case <-feedChanged:
		case <-loansChanged:
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func datastoreLevel(kinds []feed.KindStatus) health.Level {
	if datastoreMessage(kinds) == "" {
		return health.OK
	}
	return health.Degraded
}

// datastoreMessage says in one line what is wrong with the datastore.
func datastoreMessage(kinds []feed.KindStatus) string {
	for _, k := range kinds {
		switch {
		case k.Suspicious != "":
			return fmt.Sprintf("the list of %ss is not trusted: %s", k.Kind, k.Suspicious)
		case k.Phase == feed.Disconnected:
			return "lost: " + k.LastError
		case k.Phase == feed.Syncing && k.LastError != "":
			return "not reached yet: " + k.LastError
		}
	}
	return ""
}

// facts gathers what the NodeNetwork says.
func (a *Agent) facts() facts {
	loans, _ := a.addresses.Loans()
	return facts{
		underlay: a.underlay.get(), plane: a.Config.Agent.Plane, podMTU: a.loop.MTU(),
		loans: loans, problems: a.problems(), worst: a.worst(),
	}
}

func (a *Agent) ownNodeNetwork() *world.NodeNetwork {
	s, _ := a.world.Snapshot()
	n, _ := s.NodeNetworks.Get(world.Key{Name: a.Node})
	return n
}

// worst leaves out what the announcer itself reports: its status would follow its
// own success. A disk that cannot be written comes before what could not be written to it.
func (a *Agent) worst() health.State {
	states := slices.DeleteFunc(a.health.States(), func(s health.State) bool { return s.Component == "nodenetwork" || s.Component == "datastore" })
	if len(states) == 0 {
		return health.State{Component: "plane", Level: health.Failed, Message: "nothing is applied yet"}
	}
	rank := map[health.Level]int{health.OK: 0, health.Degraded: 1, health.Failed: 2}
	return slices.MaxFunc(states, func(x, y health.State) int {
		return cmp.Or(cmp.Compare(rank[x.Level], rank[y.Level]), cause(x)-cause(y), cmp.Compare(y.Component, x.Component))
	})
}

// cause is 1 for what others fail of.
func cause(s health.State) int {
	if s.Component == "disk" {
		return 1
	}
	return 0
}

// problems of objects as this node sees them, sorted and without doubles.
func (a *Agent) problems() []world.Problem {
	last := a.loop.Last()
	all := slices.Concat(last.Problems, a.feed.Problems(), a.addresses.Problems(), a.attachments.Problems(), *a.shadowed.Load())
	for _, f := range last.Report.Failed {
		all = append(all, world.Problem{Kind: world.Kind(f.Ref.Kind), Key: world.Key{Name: f.Ref.Name}, Reason: "NotApplied", Message: f.Err.Error()})
	}
	slices.SortFunc(all, world.Problem.Compare)
	return slices.Compact(all)
}

// portChecker implements cni.PortChecker.
type portChecker struct{ *Agent }

// CheckPort compares the kernel with the port of the last intent.
func (c portChecker) CheckPort(ctx context.Context, id string) ([]apply.Difference, error) {
	n := c.loop.Last().Intent
	i := slices.IndexFunc(n.Ports, func(p intent.Port) bool { return p.ID == id })
	if i < 0 {
		return []apply.Difference{{Subsystem: "link", Object: "port " + id, Problem: "missing", Want: "a port of the node's intent"}}, nil
	}
	return c.Plane.CheckPort(ctx, n.Ports[i], n.MTU)
}

// pods asks the datastore for one pod directly.
type pods struct{ store datastore.Store }

// Pod implements attach.Pods.
func (p pods) Pod(ctx context.Context, namespace, name string) (*world.Pod, error) {
	o, err := p.store.Get(ctx, "Pod", datastore.Key{Namespace: namespace, Name: name})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pod, problems := feed.Convert(world.KindPod, o)
	w, ok := pod.(*world.Pod)
	if !ok {
		return nil, fmt.Errorf("the datastore's Pod %s/%s cannot be read: %v", namespace, name, problems)
	}
	return w, nil
}

func (a *Agent) observeCNI(command cniapi.Command, code cniapi.Code, took time.Duration) {
	a.metrics.CNI(string(command), strconv.Itoa(int(code)), took)
}

// registerValues adds the metrics that are read when somebody asks.
func (a *Agent) registerValues() {
	observe.Values{
		Name: "fairlead_plane_dropped_packets_total", Help: "Packets dropped by our rules by reason.", Label: "reason", Counter: true,
		Read: func() (map[string]float64, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			drops, err := a.Plane.Drops(ctx)
			return floats(drops), err
		},
	}.Register(a.registry)
	observe.Values{
		Name: "fairlead_ipam_used_ratio", Help: "Share of this node's addresses of a Subnet that pods use.", Label: "subnet",
		Read: func() (map[string]float64, error) {
			out := map[string]float64{}
			for _, u := range a.addresses.Usage() {
				if u.Capacity > 0 {
					out[u.Subnet+" "+u.Family.String()] = float64(u.Used) / float64(u.Capacity)
				}
			}
			return out, nil
		},
	}.Register(a.registry)
	observe.Values{
		Name: "fairlead_health_component_failed", Help: "1 for a component that is degraded, 2 for one that has failed, else 0.", Label: "component",
		Read: func() (map[string]float64, error) {
			out := map[string]float64{}
			for _, s := range a.health.States() {
				out[s.Component] = map[health.Level]float64{health.Degraded: 1, health.Failed: 2}[s.Level]
			}
			return out, nil
		},
	}.Register(a.registry)
}

func floats(in map[string]uint64) map[string]float64 {
	out := make(map[string]float64, len(in))
	for k, v := range in {
		out[k] = float64(v)
	}
	return out
}

// serveMetrics serves metrics and health, if an address is configured.
func (a *Agent) serveMetrics(ctx context.Context) error {
	if a.Metrics.Listen == "" {
		return nil
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", a.Metrics.Listen)
	if err != nil {
		// Metrics are not worth the node's network.
		a.health.Set("metrics", health.Degraded, err.Error())
		a.Logger.Error("metrics are not served; choose another metrics.listen", "err", err)
		return nil
	}
	server := &http.Server{Handler: observe.Handler(a.registry, a.health, a.ready), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve metrics on %s: %w", a.Metrics.Listen, err)
	case <-ctx.Done():
	}
	err = server.Close()
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}
