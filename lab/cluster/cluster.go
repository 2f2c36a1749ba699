package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/lab/machine"
)

const (
	// quiet is how long a round waits for further changes.
	quiet = 5 * time.Millisecond
	// again is when a round whose writes failed is repeated.
	again = 500 * time.Millisecond
	// writers is how many writes are under way at the same time.
	writers = 16
	// writeTimeout bounds one write.
	writeTimeout = 5 * time.Second
)

// Nodes are the machines of the lab, as the Cluster needs them.
type Nodes interface {
	// Addresses of a node on the underlay; nil for a node the lab does not have.
	Addresses(node string) []netip.Addr
	// State is what a node last told; nil while it is off.
	State(node string) *machine.State
	// SetPods makes pods the ones that run on the node, soon.
	SetPods(node string, pods []*corev1.Pod)
	// PowerOff ends a node whose Node object was deleted.
	PowerOff(node string)
}

// Cluster keeps the cluster's objects and the lab's machines together.
type Cluster struct {
	store datastore.Store
	nodes Nodes
	log   *slog.Logger

	namespaces, nodeObjects, pods, deployments *cache
	wake                                       chan struct{}

	mu sync.Mutex
	// registered are the nodes whose Node object has been seen.
	registered map[string]bool
	// populated are the namespaces that have been seen and not been cleared since; only
	// rounds use it.
	populated map[string]bool
	problems  map[string]string
}

// New makes a Cluster.
func New(store datastore.Store, nodes Nodes, log *slog.Logger) *Cluster {
	c := &Cluster{
		store: store, nodes: nodes, log: log, wake: make(chan struct{}, 1),
		registered: map[string]bool{}, populated: map[string]bool{}, problems: map[string]string{},
	}
	follow := func(k datastore.Kind) *cache {
		return &cache{store: store, kind: k, changed: c.Wake, problem: c.problem, objects: map[datastore.Key]datastore.Object{}}
	}
	c.namespaces, c.nodeObjects = follow(datastore.KindNamespace), follow(datastore.KindNode)
	c.pods, c.deployments = follow(datastore.KindPod), follow(datastore.KindDeployment)
	return c
}

// Wake makes a new round begin: something of the nodes has changed.
func (c *Cluster) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Problems are what the Cluster could not do of late, sorted.
func (c *Cluster) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(c.problems)) {
		out = append(out, k+": "+c.problems[k])
	}
	return out
}

// problem notes the state of one thing that may fail, and logs when it changes.
func (c *Cluster) problem(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, had := c.problems[key]
	switch {
	case err == nil && had:
		delete(c.problems, key)
		c.log.Info("repaired", "what", key)
	case err != nil && old != err.Error():
		c.problems[key] = err.Error()
		c.log.Warn("failed", "what", key, "err", err)
	}
}

// Run works until ctx ends.
func (c *Cluster) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, k := range []*cache{c.namespaces, c.nodeObjects, c.pods, c.deployments} {
		group.Go(func() error { return k.run(ctx) })
	}
	group.Go(func() error {
		c.loop(ctx)
		return nil
	})
	return group.Wait()
}

func (c *Cluster) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.wake:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(quiet)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-c.wake:
		default:
		}
		// The timer is for what failed; a round that did all waits for changes.
		timer.Reset(time.Hour)
		if !c.round(ctx) {
			timer.Reset(again)
		}
	}
}

// round plans, writes and tells the nodes. It reports whether all writes succeeded.
func (c *Cluster) round(ctx context.Context) bool {
	for _, k := range []*cache{c.namespaces, c.nodeObjects, c.pods, c.deployments} {
		if !k.ready() {
			return true // the list wakes us
		}
	}
	v := View{
		Nodes: snapshot[*corev1.Node](c.nodeObjects),
		Pods:  snapshot[*corev1.Pod](c.pods), Deployments: snapshot[*appsv1.Deployment](c.deployments),
	}
	v.GoneNamespaces = c.goneNamespaces(ctx, v)
	c.watchNodes(v)
	c.tellNodes(v)
	w := c.newWriter(ctx)
	c.writePlan(w, Plan(v))
	c.writeStatus(w, v)
	return w.wait()
}

// goneNamespaces are the namespaces that were there, are not any more, as the
// datastore itself says, and still hold something.
func (c *Cluster) goneNamespaces(ctx context.Context, v View) map[string]bool {
	inUse := map[string]bool{}
	for k := range v.Pods {
		inUse[k.Namespace] = true
	}
	for k := range v.Deployments {
		inUse[k.Namespace] = true
	}
	present := snapshot[*corev1.Namespace](c.namespaces)
	for k := range present {
		c.populated[k.Name] = true
	}
	gone := map[string]bool{}
	for name := range c.populated {
		key := datastore.Key{Name: name}
		switch {
		case present[key] != nil:
		case !inUse[name]:
			delete(c.populated, name)
		default:
			ctx, cancel := context.WithTimeout(ctx, writeTimeout)
			_, err := c.store.Get(ctx, datastore.KindNamespace, key)
			cancel()
			gone[name] = apierrors.IsNotFound(err)
		}
	}
	return gone
}

// watchNodes powers off the machines whose Node object was deleted.
func (c *Cluster) watchNodes(v View) {
	c.mu.Lock()
	var deleted []string
	for name := range c.registered {
		if v.Nodes[datastore.Key{Name: name}] == nil {
			deleted = append(deleted, name)
			delete(c.registered, name)
		}
	}
	for k := range v.Nodes {
		c.registered[k.Name] = true
	}
	c.mu.Unlock()
	for _, name := range deleted {
		c.log.Info("Node object deleted: powering off", "node", name)
		c.nodes.PowerOff(name)
	}
}

// tellNodes hands every node its pods.
func (c *Cluster) tellNodes(v View) {
	perNode := map[string][]*corev1.Pod{}
	for _, p := range sorted(v.Pods) {
		if p.Spec.NodeName != "" {
			perNode[p.Spec.NodeName] = append(perNode[p.Spec.NodeName], p)
		}
	}
	for k := range v.Nodes {
		if c.nodes.Addresses(k.Name) != nil {
			c.nodes.SetPods(k.Name, perNode[k.Name])
		}
	}
}

func (c *Cluster) writePlan(w *writer, p Writes) {
	for _, o := range p.DeleteDeployments {
		w.delete(c.deployments, o)
	}
	for _, o := range p.DeletePods {
		w.delete(c.pods, o)
	}
	for _, o := range p.CreatePods {
		w.do(c.pods, o, "create", c.store.Create)
	}
	for _, o := range p.BindPods {
		w.do(c.pods, o, "bind", c.store.Update)
	}
}

func (c *Cluster) writeStatus(w *writer, v View) {
	for _, n := range v.Nodes {
		addresses := c.nodes.Addresses(n.Name)
		if addresses == nil {
			continue // somebody's Node, not a machine of the lab
		}
		status := nodeStatus(n, c.nodes.State(n.Name), addresses)
		if !equality.Semantic.DeepEqual(status, n.Status) {
			out := n.DeepCopy()
			out.Status = status
			w.do(c.nodeObjects, out, "status of", c.store.UpdateStatus)
		}
		c.writePodStatus(w, v, n.Name, addresses)
	}
	for _, d := range v.Deployments {
		if status := deploymentStatus(v, d); !equality.Semantic.DeepEqual(status, d.Status) {
			out := d.DeepCopy()
			out.Status = status
			w.do(c.deployments, out, "status of", c.store.UpdateStatus)
		}
	}
}

// writePodStatus writes the status of the pods of a node. Those that the node does
// not know, since it is off or has just booted, do not run.
func (c *Cluster) writePodStatus(w *writer, v View, node string, host []netip.Addr) {
	known := map[string]machine.PodState{}
	if state := c.nodes.State(node); state != nil {
		for _, s := range state.Pods {
			known[s.UID] = s
		}
	}
	for _, p := range v.Pods {
		if p.Spec.NodeName != node {
			continue
		}
		status := lostStatus(p)
		if s, ok := known[string(p.UID)]; ok {
			status = podStatus(p, s, host)
		}
		if !equality.Semantic.DeepEqual(status, p.Status) {
			out := p.DeepCopy()
			out.Status = status
			w.do(c.pods, out, "status of", c.store.UpdateStatus)
		}
	}
}

// writer runs the writes of one round.
type writer struct {
	c     *Cluster
	ctx   context.Context
	group errgroup.Group
	mu    sync.Mutex
	first error
}

func (c *Cluster) newWriter(ctx context.Context) *writer {
	w := &writer{c: c, ctx: ctx}
	w.group.SetLimit(writers)
	return w
}

func (w *writer) do(k *cache, o datastore.Object, verb string, f func(context.Context, datastore.Object) (datastore.Object, error)) {
	w.group.Go(func() error {
		ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
		defer cancel()
		created := o.GetUID() == ""
		got, err := f(ctx, o)
		switch {
		case err == nil:
			k.wrote(got, created)
		case apierrors.IsNotFound(err) && !created:
			k.remove(o) // The watch was slower, or its news was lost.
			err = nil
		}
		w.done(verb, k, o, err)
		return nil
	})
}

func (w *writer) delete(k *cache, o datastore.Object) {
	w.group.Go(func() error {
		ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
		defer cancel()
		err := w.c.store.Delete(ctx, k.kind, datastore.KeyOf(o), datastore.Preconditions{UID: o.GetUID()})
		if err == nil || apierrors.IsNotFound(err) {
			k.remove(o)
			err = nil
		}
		w.done("delete", k, o, err)
		return nil
	})
}

// done notes a failure. That somebody else was faster is none: the watch brings
// what they wrote, and with it the next round.
func (w *writer) done(verb string, k *cache, o datastore.Object, err error) {
	if err == nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || w.ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first == nil {
		w.first = fmt.Errorf("%s %s %s: %w", verb, k.kind, datastore.KeyOf(o), err)
	}
}

func (w *writer) wait() bool {
	_ = w.group.Wait() // its functions return nil
	w.c.problem("write to the datastore", w.first)
	return w.first == nil
}
