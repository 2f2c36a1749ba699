package addresses_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/agent/addresses"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// link is a node's connection to the datastore, which can be cut, and which can
// lose answers of writes that arrived.
type link struct {
	datastore.Store
	mu     sync.Mutex
	down   bool
	lose   func() bool                                 // the write arrives, its answer does not
	before func(verb string, o datastore.Object) error // called before a write arrives
	downed context.CancelFunc
	up     context.Context
}

func newLink(s datastore.Store) *link {
	l := &link{Store: s}
	l.up, l.downed = context.WithCancel(context.Background())
	return l
}

func (l *link) set(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if down && !l.down {
		l.downed()
	} else if !down && l.down {
		l.up, l.downed = context.WithCancel(context.Background())
	}
	l.down = down
}

var errAway = apierrors.NewServiceUnavailable("the datastore is away")

func (l *link) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return errAway
	}
	return nil
}

// hook runs before a write.
func (l *link) hook(verb string, o datastore.Object) error {
	if err := l.check(); err != nil {
		return err
	}
	l.mu.Lock()
	before := l.before
	l.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(verb, o)
}

func (l *link) answer(o datastore.Object, err error) (datastore.Object, error) {
	l.mu.Lock()
	lost := l.lose != nil && l.lose()
	l.mu.Unlock()
	if lost || l.check() != nil {
		return nil, apierrors.NewTimeoutError("no answer", 1)
	}
	return o, err
}

func (l *link) Get(ctx context.Context, kind datastore.Kind, key datastore.Key) (datastore.Object, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	return l.Store.Get(ctx, kind, key)
}

func (l *link) List(ctx context.Context, kind datastore.Kind) (datastore.List, error) {
	if err := l.check(); err != nil {
		return datastore.List{}, err
	}
	return l.Store.List(ctx, kind)
}

func (l *link) Create(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	if err := l.hook("Create", o); err != nil {
		return nil, err
	}
	return l.answer(l.Store.Create(ctx, o))
}

func (l *link) Update(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	if err := l.hook("Update", o); err != nil {
		return nil, err
	}
	return l.answer(l.Store.Update(ctx, o))
}

func (l *link) UpdateStatus(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	if err := l.hook("UpdateStatus", o); err != nil {
		return nil, err
	}
	return l.answer(l.Store.UpdateStatus(ctx, o))
}

func (l *link) Delete(ctx context.Context, kind datastore.Kind, key datastore.Key, p datastore.Preconditions) error {
	if err := l.hook("Delete", nil); err != nil {
		return err
	}
	_, err := l.answer(nil, l.Store.Delete(ctx, kind, key, p))
	return err
}

// cutWatch ends with an error when the link is cut.
type cutWatch struct {
	datastore.Watcher
	cut context.Context
}

func (w cutWatch) Err() error {
	if w.cut.Err() != nil {
		return errAway
	}
	return w.Watcher.Err()
}

func (l *link) Watch(ctx context.Context, kind datastore.Kind, rv string) (datastore.Watcher, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	up := l.up
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(up, cancel)
	w, err := l.Store.Watch(ctx, kind, rv)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	return cutWatch{w, up}, nil
}

// disk is the state file and the attachments' records of a node.
type disk struct {
	mu    sync.Mutex
	state addresses.State
	fail  error
	dead  bool                    // the machine is off
	live  map[string]attach.Lease // by owner
	stuck chan struct{}           // a Save waits until it is closed
}

func (d *disk) Load() (addresses.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state, nil
}

func (d *disk) Save(s addresses.State) error {
	d.mu.Lock()
	stuck := d.stuck
	d.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return errors.New("the machine is off")
	}
	if d.fail != nil {
		return d.fail
	}
	d.state = s
	return nil
}

func (d *disk) held() attach.Held {
	d.mu.Lock()
	defer d.mu.Unlock()
	var h attach.Held
	for _, l := range d.live {
		h.Live = append(h.Live, l)
	}
	slices.SortFunc(h.Live, func(a, b attach.Lease) int { return a.Addresses[0].Compare(b.Addresses[0]) })
	return h
}

// node is an agent as far as addresses go.
type node struct {
	t       *testing.T
	name    string
	link    *link
	disk    *disk
	world   *world.Store
	svc     *addresses.Service
	stop    context.CancelFunc
	stopped chan struct{}
}

// cluster is a datastore with nodes, inside a synctest bubble.
type cluster struct {
	t     *testing.T
	store *memory.Store
	nodes map[string]*node
}

func newCluster(t *testing.T, nodes ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, store: memory.New(memory.Config{}), nodes: map[string]*node{}}
	for _, name := range nodes {
		c.add(name)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.kill()
		}
		if err := c.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// oneNode is a cluster with a Subnet, and the node "a" running.
func oneNode(t *testing.T, subnet string, transport v1alpha1.Transport, cidrs ...string) (*cluster, *node) {
	t.Helper()
	c := newCluster(t, "a")
	c.subnet(subnet, transport, cidrs...)
	c.start("a")
	return c, c.nodes["a"]
}

func (c *cluster) add(name string) *node {
	c.t.Helper()
	n := &corev1.Node{}
	n.Name = name
	nn := &v1alpha1.NodeNetwork{}
	nn.Name = name
	c.create(n)
	c.create(nn)
	c.nodes[name] = &node{t: c.t, name: name, link: newLink(c.store), disk: &disk{live: map[string]attach.Lease{}}}
	return c.nodes[name]
}

func (c *cluster) create(o datastore.Object) datastore.Object {
	c.t.Helper()
	out, err := c.store.Create(c.t.Context(), o)
	if err != nil {
		c.t.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
	return out
}

func (c *cluster) subnet(name string, transport v1alpha1.Transport, cidrs ...string) {
	c.t.Helper()
	s := &v1alpha1.Subnet{Spec: v1alpha1.SubnetSpec{CIDRs: cidrs, Transport: transport}}
	s.Name = name
	for _, text := range cidrs { // A block may not be larger than a CIDR.
		p := netip.MustParsePrefix(text)
		if p.Addr().Is4() && p.Bits() > 26 {
			s.Spec.BlockSize.V4 = int32(p.Bits())
		} else if p.Addr().Is6() && p.Bits() > 122 {
			s.Spec.BlockSize.V6 = int32(p.Bits())
		}
	}
	c.create(s)
}

// start boots the agents, from the given world or an empty one.
func (c *cluster) start(names ...string) {
	for _, name := range names {
		c.nodes[name].boot(nil)
	}
	synctest.Wait()
	c.settle()
}

// settle lets loops and watches come to rest.
func (c *cluster) settle() {
	time.Sleep(500 * time.Millisecond) // Time of the bubble, not of the clock.
	synctest.Wait()
}

func (c *cluster) blocks() map[string]*v1alpha1.IPBlock {
	c.t.Helper()
	l, err := c.store.List(context.Background(), datastore.KindIPBlock)
	if err != nil {
		c.t.Fatal(err)
	}
	out := map[string]*v1alpha1.IPBlock{}
	for _, o := range l.Items {
		out[o.GetName()] = o.(*v1alpha1.IPBlock)
	}
	return out
}

func (n *node) boot(checkpoint *world.Snapshot) {
	n.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(n.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", n.name)
	}
	n.world = world.NewStore(checkpoint)
	f, err := feed.New(feed.Config{Store: n.link, World: n.world, Logger: log})
	if err != nil {
		n.t.Fatal(err)
	}
	svc, err := addresses.New(addresses.Config{Node: n.name, Store: n.link, World: n.world, Records: n.disk, Logger: log})
	if err != nil {
		n.t.Fatal(err)
	}
	n.svc = svc
	if err := svc.Restore(n.t.Context(), n.disk.held()); err != nil {
		n.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop, n.stopped = stop, make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { _ = f.Run(ctx) })
	wg.Go(func() { _ = svc.Run(ctx) })
	wg.Go(func() { n.writeLoans(ctx, svc) })
	go func() { wg.Wait(); close(n.stopped) }()
}

// writeLoans is what the agent's writer of its NodeNetwork does with Loans.
func (n *node) writeLoans(ctx context.Context, svc *addresses.Service) {
	for ctx.Err() == nil {
		loans, changed := svc.Loans()
		err := n.writeStatus(ctx, loans)
		if err == nil {
			svc.LoansWritten(loans.Version)
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (n *node) writeStatus(ctx context.Context, loans addresses.Loans) error {
	o, err := n.link.Get(ctx, datastore.KindNodeNetwork, datastore.Key{Name: n.name})
	if err != nil {
		return err
	}
	nn := o.(*v1alpha1.NodeNetwork)
	nn.Status.Wanted = loans.Wanted
	nn.Status.Borrowed = map[string]v1alpha1.AddressOwner{}
	for _, b := range loans.Borrowed {
		nn.Status.Borrowed[b.Addr.String()] = v1alpha1.AddressOwner{Namespace: b.Owner.Namespace, Name: b.Owner.Name, UID: types.UID(b.Owner.UID)}
	}
	_, err = n.link.UpdateStatus(ctx, nn)
	return err
}

// kill ends the agent as kill -9 does: nothing is said to anybody.
func (n *node) kill() {
	if n.stop == nil {
		return
	}
	n.disk.power(false)
	defer n.disk.power(true)
	n.stop()
	<-n.stopped
	n.stop = nil
}

// end ends the agent in good order.
func (n *node) end() {
	n.stop()
	<-n.stopped
	n.stop = nil
}

func (d *disk) power(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = !on
}

// add gives a pod its addresses and records them.
func (n *node) add(pod, subnet string, want ...string) ([]netip.Addr, error) {
	r := attach.AddressRequest{Subnet: subnet, Owner: owner(pod)}
	for _, w := range want {
		r.Want = append(r.Want, netip.MustParseAddr(w))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	addrs, err := n.svc.Allocate(ctx, r)
	if err != nil {
		return nil, err
	}
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	n.disk.live[pod] = attach.Lease{Subnet: subnet, Owner: r.Owner, Addresses: addrs}
	return addrs, nil
}

func (n *node) mustAdd(pod, subnet string, want ...string) []netip.Addr {
	n.t.Helper()
	addrs, err := n.add(pod, subnet, want...)
	if err != nil {
		n.t.Fatalf("node %s: add %s: %v", n.name, pod, err)
	}
	return addrs
}

// del removes a pod; the plane drops it at once.
func (n *node) del(pod string) {
	n.disk.mu.Lock()
	l := n.disk.live[pod]
	delete(n.disk.live, pod)
	n.disk.mu.Unlock()
	n.svc.Release(l)
	n.svc.Dropped(l)
}

func owner(pod string) world.Owner {
	return world.Owner{Namespace: "web", Name: pod, UID: "uid-" + pod}
}

// noDuplicates fails if two pods, or a pod and a tunnel, have one address.
func (c *cluster) noDuplicates() {
	c.t.Helper()
	seen := map[netip.Addr]string{}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for k := range c.nodes {
			if !yield(k) {
				return
			}
		}
	}) {
		n := c.nodes[name]
		n.disk.mu.Lock()
		for pod, l := range n.disk.live {
			for _, a := range l.Addresses {
				if other, dup := seen[a]; dup {
					c.t.Errorf("address %s: %s and %s/%s", a, other, name, pod)
				}
				seen[a] = name + "/" + pod
			}
		}
		if n.stop != nil {
			snap, _ := n.world.Snapshot()
			for tn := range snap.TunnelAddresses.Values() {
				if other, dup := seen[tn.Addr]; dup {
					c.t.Errorf("address %s: %s and the tunnel of %s", tn.Addr, other, name)
				}
				seen[tn.Addr] = name + " tunnel"
			}
		}
		n.disk.mu.Unlock()
	}
}

func wantErr(t *testing.T, err, want error) *ipam.Error {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
	var e *ipam.Error
	errors.As(err, &e)
	return e
}

func name(format string, args ...any) string { return fmt.Sprintf(format, args...) }
