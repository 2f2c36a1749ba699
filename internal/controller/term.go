package controller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/datastore/lease"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
)

const (
	// RecordName is the Lease whose annotations hold the plan.Record, in
	// lease.DefaultNamespace. Nobody stands for it: the datastore has no kind that
	// is meant for notes, and agents do not watch Leases.
	RecordName = "fairlead-controller-record"

	// gather is how long a change waits for others, and the least time between plans.
	gather = 100 * time.Millisecond
	// turn bounds how long one plan is carried out before a new one is made.
	turn = 2 * time.Second
	// callTimeout bounds every call of the datastore.
	callTimeout = 10 * time.Second
	// stuckAfter is how long a leader may go without progress.
	stuckAfter = 2 * time.Minute
	// writesPerSecond and writeBurst bound the writes.
	writesPerSecond = 50
	writeBurst      = 100
)

// errStuck ends the process.
var errStuck = fmt.Errorf("controller: the leader has made no progress for %s: restart it", stuckAfter)

// term is one time as leader.
type term struct {
	*Controller
	limiter *rate.Limiter
	// progress is the time of the last sign of life, in nanoseconds since 1970.
	progress atomic.Int64

	lease  *coordinationv1.Lease // that holds the record; nil: there is none
	record plan.Record
	memory *plan.Memory
	events map[datastore.Key]*corev1.Event
	// pauses of writes that failed, or that the watch has not shown yet.
	pauses map[pauseKey]pause
	// vanished are the nodes that were logged as such.
	vanished map[string]bool
}

// lead works as leader until ctx ends.
func (c *Controller) lead(ctx context.Context) error {
	c.Metrics.leader.Set(1)
	defer c.Metrics.leader.Set(0)
	c.Health.Set(componentLeader, health.OK, "leading")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &term{
		Controller: c, limiter: rate.NewLimiter(writesPerSecond, writeBurst),
		pauses: map[pauseKey]pause{}, vanished: map[string]bool{},
	}
	t.alive()
	done := make(chan error, 1)
	go func() { done <- t.run(ctx) }()
	tick := time.NewTicker(stuckAfter / 8)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			if time.Since(time.Unix(0, t.progress.Load())) > stuckAfter {
				c.Health.Set(componentLeader, health.Failed, errStuck.Error())
				return errStuck
			}
		}
	}
}

func (t *term) alive() { t.progress.Store(time.Now().UnixNano()) }

func (t *term) run(ctx context.Context) error {
	for pause := gather; ; pause = min(2*pause, callTimeout) {
		err := t.load(ctx)
		if err == nil {
			break
		}
		t.Logger.Warn("the controller's record cannot be read: nothing is done until it can", "err", err)
		t.Health.Set(componentWrites, health.Degraded, err.Error())
		if !t.wait(ctx, pause, nil, nil) {
			return ctx.Err()
		}
	}
	for {
		objects, objectsChanged := t.cache.objects()
		snap, worldChanged := t.world.Snapshot()
		t.cache.forget(objects, snap)
		objects.Events = t.events
		again := t.pass(ctx, plan.Input{
			Config: plan.Config{Grace: t.Grace, DefaultSubnet: t.DefaultSubnet, Identity: t.Identity},
			Now:    time.Now(), World: snap, Objects: objects, Record: t.record, Memory: t.memory, Unreadable: t.feed.Problems(),
		})
		if !t.wait(ctx, gather, nil, nil) || !t.wait(ctx, again-gather, worldChanged, objectsChanged) {
			return ctx.Err()
		}
	}
}

// wait ends after d, or at the first of the changes; false if ctx has ended. It is a
// sign of life: a quiet world is no reason to be called stuck.
func (t *term) wait(ctx context.Context, d time.Duration, changed ...<-chan struct{}) bool {
	const sign = stuckAfter / 4
	for {
		t.alive()
		timer := time.NewTimer(max(min(d, sign), 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-first(changed, 0):
			timer.Stop()
			return true
		case <-first(changed, 1):
			timer.Stop()
			return true
		case <-timer.C:
			if d -= sign; d <= 0 {
				return true
			}
		}
	}
}

// first is the i-th channel; nil, which never answers, if there is none.
func first(channels []<-chan struct{}, i int) <-chan struct{} {
	if i < len(channels) {
		return channels[i]
	}
	return nil
}

// load reads what the leader before has left.
func (t *term) load(ctx context.Context) error {
	if err := t.loadRecord(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := t.ownEvents(ctx)
	if err != nil {
		return fmt.Errorf("list Events: %w", err)
	}
	t.events = map[datastore.Key]*corev1.Event{}
	for _, o := range list.Items {
		if e, ok := o.(*corev1.Event); ok && plan.OurEvent(e) {
			t.events[datastore.KeyOf(e)] = e
		}
	}
	return nil
}

// ownEvents lists the controller's Events. A cluster has many of others, which are not read
// where the datastore can tell them apart.
func (t *term) ownEvents(ctx context.Context) (datastore.List, error) {
	if s, ok := t.Store.(datastore.Selective); ok {
		return s.ListWhere(ctx, datastore.KindEvent, "source", plan.Component)
	}
	return t.Store.List(ctx, datastore.KindEvent)
}

func (t *term) loadRecord(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := t.Store.Get(ctx, datastore.KindLease, datastore.Key{Namespace: lease.DefaultNamespace, Name: RecordName})
	switch l, ok := o.(*coordinationv1.Lease); {
	case apierrors.IsNotFound(err):
		t.lease, t.record = nil, plan.Record{}
		return nil
	case err != nil:
		return fmt.Errorf("read Lease %s/%s: %w", lease.DefaultNamespace, RecordName, err)
	case !ok:
		return fmt.Errorf("read Lease %s/%s: the datastore answered with a %T", lease.DefaultNamespace, RecordName, o)
	default:
		t.lease, t.record = l, plan.ParseRecord(l.Annotations)
		return nil
	}
}

// storeRecord stores a new Record before anything is done that relies on it.
func (t *term) storeRecord(ctx context.Context, r plan.Record) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var stored datastore.Object
	var err error
	if t.lease == nil {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.DefaultNamespace, Name: RecordName, Annotations: r.Annotations()}}
		stored, err = t.Store.Create(ctx, l)
	} else {
		l := t.lease.DeepCopy()
		l.Annotations = r.SetAnnotations(l.Annotations)
		stored, err = t.Store.Update(ctx, l)
	}
	if err != nil {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			err = errors.Join(err, t.loadRecord(ctx))
		}
		return fmt.Errorf("write Lease %s/%s: %w", lease.DefaultNamespace, RecordName, err)
	}
	l, ok := stored.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("write Lease %s/%s: the datastore answered with a %T", lease.DefaultNamespace, RecordName, stored)
	}
	t.lease, t.record = l, r
	t.record.Stored = true
	return nil
}
