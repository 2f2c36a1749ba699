package attach

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// node is one life of an agent; reborn starts the next one from what is on disk and
// in the kernel.
type node struct {
	*Service
	t      testing.TB
	dir    string
	world  *world.Store
	pool   *pool
	loop   *loop
	kernel *kernel
	api    *api
	stop   func()
}

type options struct {
	subnets []*world.Subnet
	pods    int
	edit    func(*Config)
	world   []world.Change
	norun   bool
}

func cidrs(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

func defaultSubnet() *world.Subnet {
	return &world.Subnet{Name: "default", VPC: "default", CIDRs: cidrs("10.128.0.0/22", "fd00:10::/118")}
}

func object(kind world.Kind, namespace, name string, o any) world.Change {
	return world.Change{Kind: kind, Key: world.Key{Namespace: namespace, Name: name}, Object: o}
}

func podName(i int) string { return fmt.Sprintf("p%d", i) }

func podOf(i int) *world.Pod {
	return &world.Pod{Namespace: "ns", Name: podName(i), UID: fmt.Sprintf("uid-%d", i)}
}

func requestFor(i int) Request {
	return Request{
		ContainerID: fmt.Sprintf("c%d", i), Interface: "eth0", Netns: fmt.Sprintf("/run/netns/n%d", i), Network: "fairlead",
		Pod: world.Owner{Namespace: "ns", Name: podName(i), UID: fmt.Sprintf("uid-%d", i)},
	}
}

func baseWorld(o options) *world.Store {
	w := world.NewStore(nil)
	changes := []world.Change{
		object(world.KindVPC, "", "default", &world.VPC{Name: "default", VNI: 1}),
		object(world.KindNamespace, "", "ns", &world.Namespace{Name: "ns", Labels: map[string]string{"team": "a"}}),
	}
	for _, s := range o.subnets {
		changes = append(changes, object(world.KindSubnet, "", s.Name, s))
	}
	for i := range o.pods {
		p := podOf(i)
		changes = append(changes, object(world.KindPod, p.Namespace, p.Name, p))
	}
	for _, k := range world.DatastoreKinds() {
		changes = append(changes, world.Change{Kind: k, Synced: true, ResourceVersion: "1"})
	}
	w.Apply(append(changes, o.world...)...)
	return w
}

// start makes the first life of an agent, in a folder of its own.
func start(t testing.TB, o options) *node {
	t.Helper()
	if o.subnets == nil {
		o.subnets = []*world.Subnet{defaultSubnet()}
	}
	n := &node{t: t, dir: filepath.Join(t.TempDir(), "attachments"), kernel: newKernel(t)}
	n.boot(o)
	return n
}

func (n *node) boot(o options) {
	n.t.Helper()
	n.world, n.pool, n.api = baseWorld(o), newPool(n.t, o.subnets...), &api{}
	n.loop = newLoop(n.world, n.kernel)
	cfg := Config{
		Dir: n.dir, World: n.world, Addresses: n.pool, Applied: n.loop, Namespaces: n.kernel, Pods: n.api,
		Log: slog.New(slog.DiscardHandler),
	}
	if o.edit != nil {
		o.edit(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Service = s
	if err := s.Restore(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.loop.Run(ctx) })
	if !o.norun {
		wg.Go(func() {
			if err := s.Run(ctx); err != nil {
				n.t.Errorf("Run: %v", err)
			}
		})
	}
	n.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		_ = s.Close()
	})
	n.t.Cleanup(n.stop)
}

// reborn ends this life without any farewell and starts the next.
func (n *node) reborn(o options) {
	n.t.Helper()
	if o.subnets == nil {
		o.subnets = []*world.Subnet{defaultSubnet()}
	}
	n.stop()
	n.boot(o)
}

// files lists the names in the folder.
func (n *node) files() []string {
	n.t.Helper()
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (n *node) mustAdd(r Request) Result {
	n.t.Helper()
	got, err := n.Add(n.t.Context(), r)
	if err != nil {
		n.t.Fatal(err)
	}
	return got
}

func (n *node) mustDel(r Request) {
	n.t.Helper()
	if err := n.Del(n.t.Context(), r.ContainerID, r.Interface); err != nil {
		n.t.Fatal(err)
	}
}

// empty fails unless nothing is left anywhere once addresses have rested.
func (n *node) empty() {
	n.t.Helper()
	time.Sleep(2 * time.Minute) // a sweep and a rest, on synctest's clock
	if got := n.files(); len(got) != 0 {
		n.t.Errorf("files are left: %v", got)
	}
	if got := n.kernel.len(); got != 0 {
		n.t.Errorf("%d ports are left", got)
	}
	if got := n.List(); len(got) != 0 {
		n.t.Errorf("attachments are left: %v", got)
	}
	s, _ := n.world.Snapshot()
	if got := s.Attachments.Len(); got != 0 {
		n.t.Errorf("%d attachments are left in the world", got)
	}
	n.pool.mu.Lock()
	n.pool.recycle()
	n.pool.mu.Unlock()
	if owned, resting := n.pool.counts(); owned != 0 || resting != 0 {
		n.t.Errorf("%d addresses are owned and %d rest", owned, resting)
	}
	if got := n.Problems(); len(got) != 0 {
		n.t.Errorf("problems are left: %v", got)
	}
}
