package attach

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// pool is an Addresses that checks its callers: nothing is given twice, given back
// twice, or given before the kernel has dropped it. Each Subnet has a list.
type pool struct {
	t  testing.TB
	mu sync.Mutex
	// free addresses of each Subnet, given from the front.
	free    map[string][]netip.Addr
	owners  map[netip.Addr]world.Owner
	resting map[netip.Addr]rest
	err     error // of Allocate
	held    Held  // as last restored
	changed *sync.Cond
}

type rest struct {
	since   time.Time
	dropped bool
}

func newPool(t testing.TB, subnets ...*world.Subnet) *pool {
	p := &pool{t: t, free: map[string][]netip.Addr{}, owners: map[netip.Addr]world.Owner{}, resting: map[netip.Addr]rest{}}
	p.changed = sync.NewCond(&p.mu)
	for _, s := range subnets {
		for _, c := range s.CIDRs {
			a := c.Addr()
			for range 1024 {
				if a = a.Next(); !c.Contains(a) {
					break
				}
				p.free[s.Name] = append(p.free[s.Name], a)
			}
		}
	}
	return p
}

func (p *pool) Allocate(ctx context.Context, r AddressRequest) ([]netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.recycle()
	var got []netip.Addr
	for _, v4 := range []bool{true, false} {
		if v4 && !r.V4 || !v4 && !r.V6 {
			continue
		}
		i := slices.IndexFunc(p.free[r.Subnet], func(a netip.Addr) bool {
			return a.Is4() == v4 && (!slices.ContainsFunc(r.Want, func(w netip.Addr) bool { return w.Is4() == v4 }) || slices.Contains(r.Want, a))
		})
		if i < 0 {
			p.free[r.Subnet] = append(p.free[r.Subnet], got...)
			return nil, &ipam.Error{Err: ipam.ErrSubnetFull, Subnet: r.Subnet, Family: ipam.IPv4, Used: 1, Capacity: 1}
		}
		got = append(got, p.free[r.Subnet][i])
		p.free[r.Subnet] = slices.Delete(p.free[r.Subnet], i, i+1)
	}
	for _, a := range got {
		p.owners[a] = r.Owner
	}
	return got, nil
}

// recycle moves what has rested to the end of the queue.
func (p *pool) recycle() {
	for a, r := range p.resting {
		if r.dropped && time.Since(r.since) >= 30*time.Second {
			delete(p.resting, a)
			p.free["default"] = append(p.free["default"], a)
		}
	}
}

func (p *pool) take(what string, l Lease) {
	for _, a := range l.Addresses {
		if o, ok := p.owners[a]; !ok || o != l.Owner {
			p.t.Errorf("%s of %s by %v, but its owner is %v", what, a, l.Owner, o)
		}
		delete(p.owners, a)
	}
}

func (p *pool) Cancel(l Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take("Cancel", l)
	p.free[l.Subnet] = append(p.free[l.Subnet], l.Addresses...)
}

func (p *pool) Release(l Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take("Release", l)
	for _, a := range l.Addresses {
		p.resting[a] = rest{since: time.Now()}
	}
	p.changed.Broadcast()
}

func (p *pool) Dropped(l Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range l.Addresses {
		r, ok := p.resting[a]
		if !ok || r.dropped {
			p.t.Errorf("Dropped of %s, which is resting: %v, dropped: %v", a, ok, r.dropped)
		}
		r.dropped = true
		p.resting[a] = r
	}
}

func (p *pool) Restore(_ context.Context, h Held) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = h
	for _, l := range append(slices.Clone(h.Live), h.Blocked...) {
		for _, a := range l.Addresses {
			if o, taken := p.owners[a]; taken {
				p.t.Errorf("Restore: %s is held by %v and by %v", a, o, l.Owner)
			}
			p.owners[a] = l.Owner
			p.drop(l.Subnet, a)
		}
	}
	for _, l := range h.Resting {
		for _, a := range l.Addresses {
			p.resting[a] = rest{since: time.Now()}
			p.drop(l.Subnet, a)
		}
	}
	return nil
}

func (p *pool) drop(subnet string, a netip.Addr) {
	p.free[subnet] = slices.DeleteFunc(p.free[subnet], func(b netip.Addr) bool { return a == b })
}

// awaitOwned waits until so many addresses are owned.
func (p *pool) awaitOwned(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.owners) != n {
		p.changed.Wait()
	}
}

func (p *pool) counts() (owned, resting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.owners), len(p.resting)
}

// kernel is what survives the death of an agent: the ports that planes have made.
type kernel struct {
	t     testing.TB
	mu    sync.Mutex
	ports map[string]world.Attachment // by ID
	dead  map[string]bool             // paths of dead namespaces
	doubt error                       // of State
}

func newKernel(t testing.TB) *kernel {
	return &kernel{t: t, ports: map[string]world.Attachment{}, dead: map[string]bool{}}
}

// apply makes the ports equal to the world: additions first, as planes do.
func (k *kernel) apply(s *world.Snapshot) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.ports {
		if _, ok := s.Attachments.Get(world.Key{Name: key}); !ok {
			delete(k.ports, key)
		}
	}
	for a := range s.Attachments.Values() {
		if k.dead[a.Netns] {
			continue
		}
		for _, other := range k.ports {
			if other.ID == a.ID {
				continue
			}
			for _, addr := range a.Addresses {
				if slices.Contains(other.Addresses, addr) {
					k.t.Errorf("%s and %s both have %s", a.ID, other.ID, addr)
				}
			}
		}
		k.ports[a.ID] = *a
	}
}

func (k *kernel) State(path string) (NamespaceState, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case path == "/run/netns/host":
		return NamespaceHost, nil
	case k.doubt != nil:
		return NamespaceDead, k.doubt
	case k.dead[path]:
		return NamespaceDead, nil
	}
	return NamespaceAlive, nil
}

func (k *kernel) kill(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dead[path] = true
	for id, p := range k.ports {
		if p.Netns == path {
			delete(k.ports, id)
		}
	}
}

func (k *kernel) set(f func(*kernel)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k)
}

func (k *kernel) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.ports)
}

// loop is an Applied that applies the world to a kernel.
type loop struct {
	world   *world.Store
	kernel  *kernel
	mu      sync.Mutex
	applied uint64
	changed chan struct{}
	ready   error
	failing map[intent.Ref]error
	stuck   bool // applies nothing
}

func newLoop(w *world.Store, k *kernel) *loop {
	return &loop{world: w, kernel: k, changed: make(chan struct{}), failing: map[intent.Ref]error{}}
}

func (l *loop) Run(ctx context.Context) {
	for {
		snapshot, changed := l.world.Snapshot()
		l.mu.Lock()
		if !l.stuck {
			l.kernel.apply(snapshot)
			l.applied = snapshot.Revision
			close(l.changed)
			l.changed = make(chan struct{})
		}
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (l *loop) Wait(ctx context.Context, revision uint64, ref intent.Ref) error {
	for {
		l.mu.Lock()
		applied, changed, err := l.applied, l.changed, l.failing[ref]
		l.mu.Unlock()
		if applied >= revision {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *loop) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

func (l *loop) MTU() int { return 1450 }

func (l *loop) set(f func(*loop)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

// api is a Pods.
type api struct {
	mu   sync.Mutex
	pods map[string]*world.Pod
	err  error
	asks int
}

func (a *api) Pod(_ context.Context, namespace, name string) (*world.Pod, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asks++
	return a.pods[namespace+"/"+name], a.err
}
