package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/memory"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
)

const grace = time.Minute

// link is a controller's connection to the shared datastore. It counts writes, the
// election's apart, and can be bent.
type link struct {
	datastore.Store
	mu     sync.Mutex
	writes []string
	// before, if set, is asked before every call; its error is the call's.
	before func(ctx context.Context, verb string, kind datastore.Kind, key datastore.Key) error
	// list, if set, changes what a List returns.
	list func(datastore.Kind, datastore.List) datastore.List
	// watches of Nodes are ended by these; expired is how many begin with a lost history.
	watches []context.CancelFunc
	expired int
}

// forgetHistory ends the watches of Nodes; the next one finds its position forgotten.
func (l *link) forgetHistory() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expired = 1
	for _, end := range l.watches {
		end()
	}
	l.watches = nil
}

func (l *link) Watch(ctx context.Context, kind datastore.Kind, version string) (datastore.Watcher, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind != datastore.KindNode {
		return l.Store.Watch(ctx, kind, version)
	}
	if l.expired > 0 {
		l.expired--
		return nil, apierrors.NewResourceExpired("forgotten")
	}
	ctx, cancel := context.WithCancel(ctx)
	l.watches = append(l.watches, cancel)
	return l.Store.Watch(ctx, kind, version)
}

func (l *link) call(ctx context.Context, verb string, kind datastore.Kind, key datastore.Key) error {
	l.mu.Lock()
	before := l.before
	if verb != "get" && verb != "list" && key.Name != LeaseName {
		l.writes = append(l.writes, fmt.Sprintf("%s %s %s", verb, kind, key))
	}
	l.mu.Unlock()
	if before != nil {
		return before(ctx, verb, kind, key)
	}
	return nil
}

func (l *link) bend(before func(ctx context.Context, verb string, kind datastore.Kind, key datastore.Key) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = before
}

// written returns the writes since the last call.
func (l *link) written() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.writes
	l.writes = nil
	return out
}

func (l *link) Get(ctx context.Context, kind datastore.Kind, key datastore.Key) (datastore.Object, error) {
	if err := l.call(ctx, "get", kind, key); err != nil {
		return nil, err
	}
	return l.Store.Get(ctx, kind, key)
}

func (l *link) List(ctx context.Context, kind datastore.Kind) (datastore.List, error) {
	if err := l.call(ctx, "list", kind, datastore.Key{}); err != nil {
		return datastore.List{}, err
	}
	out, err := l.Store.List(ctx, kind)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list != nil && err == nil {
		out = l.list(kind, out)
	}
	return out, err
}

func (l *link) Create(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	kind, _ := datastore.KindOf(o)
	if err := l.call(ctx, "create", kind, datastore.KeyOf(o)); err != nil {
		return nil, err
	}
	return l.Store.Create(ctx, o)
}

func (l *link) Update(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	kind, _ := datastore.KindOf(o)
	if err := l.call(ctx, "update", kind, datastore.KeyOf(o)); err != nil {
		return nil, err
	}
	return l.Store.Update(ctx, o)
}

func (l *link) UpdateStatus(ctx context.Context, o datastore.Object) (datastore.Object, error) {
	kind, _ := datastore.KindOf(o)
	if err := l.call(ctx, "status", kind, datastore.KeyOf(o)); err != nil {
		return nil, err
	}
	return l.Store.UpdateStatus(ctx, o)
}

func (l *link) Delete(ctx context.Context, kind datastore.Kind, key datastore.Key, p datastore.Preconditions) error {
	if err := l.call(ctx, "delete", kind, key); err != nil {
		return err
	}
	return l.Store.Delete(ctx, kind, key, p)
}

// cluster is a datastore with what a test puts into it.
type cluster struct {
	t     *testing.T
	store *memory.Store
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	s := memory.New(memory.Config{})
	t.Cleanup(func() { _ = s.Close() })
	return &cluster{t, s}
}

// process is a running controller.
type process struct {
	t      *testing.T
	link   *link
	health *health.Registry
	ctl    *Controller
	cancel context.CancelFunc
	done   chan error
}

func (c *cluster) start(name string, change ...func(*Config)) *process {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	p := &process{t: c.t, link: &link{Store: c.store}, health: health.NewRegistry(time.Now), cancel: cancel, done: make(chan error, 1)}
	config := Config{
		Store: p.link, Identity: name, Grace: grace, Logger: slog.New(slog.DiscardHandler), Health: p.health,
		Metrics: NewMetrics(prometheus.NewRegistry()),
	}
	for _, f := range change {
		f(&config)
	}
	ctl, err := New(config)
	if err != nil {
		c.t.Fatal(err)
	}
	p.ctl = ctl
	go func() { p.done <- ctl.Run(ctx) }()
	c.t.Cleanup(p.stop)
	return p
}

// stop ends the process as SIGTERM does.
func (p *process) stop() {
	p.cancel()
	if err, ok := <-p.done; ok && err != nil {
		p.t.Errorf("Run: %v", err)
	} else if ok {
		close(p.done)
	}
}

// kill ends the process without its leaving a trace in the datastore.
func (p *process) kill() {
	p.link.bend(func(ctx context.Context, _ string, _ datastore.Kind, _ datastore.Key) error { return context.Canceled })
	p.stop()
}

func (p *process) component(name string) health.State {
	for _, s := range p.health.States() {
		if s.Component == name {
			return s
		}
	}
	return health.State{}
}

func get[P datastore.Object](c *cluster, key datastore.Key) P {
	c.t.Helper()
	var none P
	kind, err := datastore.KindOf(zeroOf(none))
	if err != nil {
		c.t.Fatal(err)
	}
	o, err := c.store.Get(c.t.Context(), kind, key)
	if err != nil {
		return none
	}
	return o.(P)
}

func zeroOf[P datastore.Object](P) datastore.Object {
	for _, kind := range datastore.Kinds() {
		if r, err := datastore.Lookup(kind); err == nil {
			if _, ok := r.New().(P); ok {
				return r.New()
			}
		}
	}
	return nil
}

func all[P datastore.Object](c *cluster) []P {
	c.t.Helper()
	var none P
	kind, err := datastore.KindOf(zeroOf(none))
	if err != nil {
		c.t.Fatal(err)
	}
	list, err := c.store.List(c.t.Context(), kind)
	if err != nil {
		c.t.Fatal(err)
	}
	var out []P
	for _, o := range list.Items {
		out = append(out, o.(P))
	}
	return out
}

func (c *cluster) create(objects ...datastore.Object) {
	c.t.Helper()
	for _, o := range objects {
		if _, err := c.store.Create(c.t.Context(), o); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) delete(kind datastore.Kind, key datastore.Key) {
	c.t.Helper()
	if err := c.store.Delete(c.t.Context(), kind, key, datastore.Preconditions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) update(o datastore.Object) {
	c.t.Helper()
	if _, err := c.store.Update(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) updateStatus(o datastore.Object) {
	c.t.Helper()
	if _, err := c.store.UpdateStatus(c.t.Context(), o); err != nil {
		c.t.Fatal(err)
	}
}

func named(name string) datastore.Key { return datastore.Key{Name: name} }

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func node(i int) *corev1.Node { return &corev1.Node{ObjectMeta: meta(nodeName(i))} }

func nodeName(i int) string { return fmt.Sprintf("n%03d", i) }

func nodeNetwork(i int) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{ObjectMeta: meta(nodeName(i)), Spec: v1alpha1.NodeNetworkSpec{
		Addresses: []string{fmt.Sprintf("172.30.%d.%d/16", i/250, i%250+1)}, MTU: 1500, Plane: v1alpha1.PlaneLinux,
	}}
}

func namespace(name string, labels ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: meta(name)}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		if ns.Labels == nil {
			ns.Labels = map[string]string{}
		}
		ns.Labels[k] = v
	}
	return ns
}

func subnet(name string, cidrs ...string) *v1alpha1.Subnet {
	return &v1alpha1.Subnet{ObjectMeta: meta(name), Spec: v1alpha1.SubnetSpec{CIDRs: cidrs}}
}

func pod(name, node string, addr netip.Addr) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	if addr.IsValid() {
		p.Status.PodIP, p.Status.PodIPs = addr.String(), []corev1.PodIP{{IP: addr.String()}}
	}
	return p
}

// createPod stores a pod and returns it with its UID.
func (c *cluster) createPod(p *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	o, err := c.store.Create(c.t.Context(), p)
	if err != nil {
		c.t.Fatal(err)
	}
	stored := o.(*corev1.Pod)
	stored.Status.PodIP, stored.Status.PodIPs = p.Status.PodIP, p.Status.PodIPs
	c.updateStatus(stored)
	return stored
}

func block(subnet, cidr, node string, allocations map[string]v1alpha1.AddressOwner) *v1alpha1.IPBlock {
	p := netip.MustParsePrefix(cidr)
	return &v1alpha1.IPBlock{ObjectMeta: meta(v1alpha1.BlockName(subnet, p)), Spec: v1alpha1.IPBlockSpec{
		Subnet: subnet, CIDR: cidr, Node: node, Allocations: allocations,
	}}
}

func ownerOf(p *corev1.Pod) v1alpha1.AddressOwner {
	return v1alpha1.AddressOwner{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

func tunnel(node string) v1alpha1.AddressOwner {
	return v1alpha1.AddressOwner{Name: "node/" + node + "/tunnel"}
}

func condition(list []metav1.Condition, kind string) metav1.Condition {
	for _, c := range list {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

func selector(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}
