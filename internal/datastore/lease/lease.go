package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// The defaults of Elector.
const (
	DefaultNamespace     = "kube-system"
	DefaultDuration      = 15 * time.Second
	DefaultRenewDeadline = 10 * time.Second
	DefaultRetry         = 2 * time.Second
)

// ErrLost is what Run returns when leadership was lost: somebody else has the
// Lease, or it could not be renewed in time. Run may be called again.
var ErrLost = errors.New("leadership lost")

// Elector is one candidate for one Lease. Its fields are not changed while Run
// runs.
type Elector struct {
	Store datastore.Store
	// Namespace and Name of the Lease; an empty namespace means DefaultNamespace.
	Namespace, Name string
	// Identity of this process, different from every other candidate's and from that
	// of its own former life.
	Identity string
	// Duration that the others wait for a leader that is silent, RenewDeadline after
	// which a leader that cannot renew gives up, Retry the pause between attempts;
	// 0 means the defaults. Duration > RenewDeadline > Retry; Duration is whole
	// seconds.
	Duration, RenewDeadline, Retry time.Duration
	// Logger is told of leadership won and lost; nil means silence.
	Logger *slog.Logger
}

// term is what a candidate has seen of the Lease, by its own clock.
type term struct {
	lease *coordinationv1.Lease
	// since is when this version of the Lease was first seen.
	since time.Time
}

// Run waits until this candidate leads, then calls work and renews meanwhile.
// It returns what work returned, having given the Lease up; ErrLost if leadership
// was lost, after work's context was cancelled and work has returned; or ctx's
// error. Leadership ends no later than RenewDeadline after the last renewal.
func (e *Elector) Run(ctx context.Context, work func(ctx context.Context) error) error {
	c := *e
	if err := c.setDefaults(); err != nil {
		return err
	}
	held, renewed, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	c.Logger.Info("leading", "lease", c.key().String(), "identity", c.Identity)
	held, err = c.lead(ctx, held, renewed, work)
	if errors.Is(err, ErrLost) {
		c.Logger.Warn("leadership lost", "lease", c.key().String(), "identity", c.Identity, "err", err)
		return err
	}
	c.release(ctx, held)
	return err
}

func (e *Elector) setDefaults() error {
	if e.Namespace == "" {
		e.Namespace = DefaultNamespace
	}
	if e.Duration == 0 {
		e.Duration = DefaultDuration
	}
	if e.RenewDeadline == 0 {
		e.RenewDeadline = DefaultRenewDeadline
	}
	if e.Retry == 0 {
		e.Retry = DefaultRetry
	}
	if e.Logger == nil {
		e.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case e.Store == nil || e.Name == "" || e.Identity == "":
		return errors.New("lease: Store, Name and Identity are needed")
	case e.Duration <= e.RenewDeadline || e.RenewDeadline <= e.Retry || e.Retry <= 0:
		return fmt.Errorf("lease: want duration (%s) > renew deadline (%s) > retry (%s) > 0", e.Duration, e.RenewDeadline, e.Retry)
	case e.Duration%time.Second != 0:
		return fmt.Errorf("lease: duration %s: want whole seconds", e.Duration)
	}
	return nil
}

func (e *Elector) key() datastore.Key {
	return datastore.Key{Namespace: e.Namespace, Name: e.Name}
}

// acquire tries until the Lease is ours.
func (e *Elector) acquire(ctx context.Context) (*coordinationv1.Lease, time.Time, error) {
	var seen term
	for {
		begin := time.Now()
		if held := e.tryAcquire(ctx, &seen); held != nil {
			return held, begin, nil
		}
		// Jitter, so that candidates do not keep colliding.
		pause := e.Retry + rand.N(e.Retry/4+1)
		select {
		case <-ctx.Done():
			return nil, time.Time{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// tryAcquire takes the Lease if it is free, and nil if it is not, or the datastore
// does not answer.
func (e *Elector) tryAcquire(ctx context.Context, seen *term) *coordinationv1.Lease {
	ctx, cancel := context.WithTimeout(ctx, e.Retry)
	defer cancel()
	o, err := e.Store.Get(ctx, datastore.KindLease, e.key())
	if apierrors.IsNotFound(err) {
		created, err := e.Store.Create(ctx, e.newLease())
		return e.outcome(created, err)
	}
	current, ok := o.(*coordinationv1.Lease)
	if err != nil || !ok {
		if err != nil {
			e.Logger.Debug("lease not read", "lease", e.key().String(), "err", err)
		}
		return nil
	}
	if seen.lease == nil || seen.lease.ResourceVersion != current.ResourceVersion || seen.lease.UID != current.UID {
		*seen = term{lease: current, since: time.Now()}
	}
	holder := ptr.Deref(current.Spec.HolderIdentity, "")
	duration := time.Duration(ptr.Deref(current.Spec.LeaseDurationSeconds, int32(e.Duration/time.Second))) * time.Second
	if holder != "" && holder != e.Identity && time.Since(seen.since) < duration {
		return nil
	}
	taken := current.DeepCopy()
	e.fill(&taken.Spec)
	taken.Spec.AcquireTime = taken.Spec.RenewTime
	if holder != e.Identity {
		taken.Spec.LeaseTransitions = ptr.To(ptr.Deref(taken.Spec.LeaseTransitions, 0) + 1)
	}
	updated, err := e.Store.Update(ctx, taken)
	return e.outcome(updated, err)
}

func (e *Elector) outcome(o datastore.Object, err error) *coordinationv1.Lease {
	if err != nil {
		e.Logger.Debug("lease not taken", "lease", e.key().String(), "err", err)
		return nil
	}
	held, _ := o.(*coordinationv1.Lease)
	return held
}

func (e *Elector) newLease() *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
	e.fill(&l.Spec)
	l.Spec.AcquireTime = l.Spec.RenewTime
	l.Spec.LeaseTransitions = new(int32)
	return l
}

func (e *Elector) fill(s *coordinationv1.LeaseSpec) {
	s.HolderIdentity = ptr.To(e.Identity)
	s.LeaseDurationSeconds = ptr.To(int32(e.Duration / time.Second))
	s.RenewTime = ptr.To(metav1.NowMicro())
}

// lead runs work and renews until one of them ends; it returns only when both have.
func (e *Elector) lead(ctx context.Context, held *coordinationv1.Lease, renewed time.Time, work func(context.Context) error) (*coordinationv1.Lease, error) {
	workCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- work(workCtx) }()

	var last error
	for {
		pause := min(e.Retry, e.RenewDeadline-time.Since(renewed))
		timer := time.NewTimer(max(pause, 0))
		select {
		case err := <-done:
			timer.Stop()
			return held, err
		case <-ctx.Done():
			timer.Stop()
			return held, <-done
		case <-timer.C:
		}
		left := e.RenewDeadline - time.Since(renewed)
		if left > 0 {
			begin := time.Now()
			var updated *coordinationv1.Lease
			if updated, last = e.renew(ctx, held, min(left, e.Retry)); last == nil {
				held, renewed = updated, begin
				continue
			}
			left = e.RenewDeadline - time.Since(renewed)
		}
		if left <= 0 || errors.Is(last, ErrLost) {
			cancel()
			<-done
			return held, lost(last, time.Since(renewed))
		}
	}
}

func lost(err error, silent time.Duration) error {
	switch {
	case errors.Is(err, ErrLost):
		return err
	case err == nil:
		return fmt.Errorf("%w: not renewed for %s", ErrLost, silent)
	}
	return fmt.Errorf("%w: not renewed for %s: %w", ErrLost, silent, err)
}

// renew writes a new time. A conflict is no loss by itself: an earlier renewal may
// have been stored without an answer, or somebody labelled the Lease.
func (e *Elector) renew(ctx context.Context, held *coordinationv1.Lease, timeout time.Duration) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		next := held.DeepCopy()
		e.fill(&next.Spec)
		o, err := e.Store.Update(ctx, next)
		if err == nil {
			return asLease(o)
		}
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("%w: the Lease was deleted", ErrLost)
		}
		if !apierrors.IsConflict(err) {
			return nil, err
		}
		if o, err = e.Store.Get(ctx, datastore.KindLease, e.key()); err != nil {
			return nil, err
		}
		current, err := asLease(o)
		if err != nil {
			return nil, err
		}
		if holder := ptr.Deref(current.Spec.HolderIdentity, ""); holder != e.Identity || current.UID != held.UID {
			return nil, fmt.Errorf("%w: %q holds the Lease", ErrLost, holder)
		}
		held = current
	}
}

func asLease(o datastore.Object) (*coordinationv1.Lease, error) {
	l, ok := o.(*coordinationv1.Lease)
	if !ok {
		return nil, fmt.Errorf("lease: the datastore answered with a %T", o)
	}
	return l, nil
}

// release gives the Lease up, so that a successor need not wait for its end. It is
// a courtesy: an error is only logged.
func (e *Elector) release(ctx context.Context, held *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.Retry)
	defer cancel()
	next := held.DeepCopy()
	next.Spec.HolderIdentity = ptr.To("")
	next.Spec.RenewTime = ptr.To(metav1.NowMicro())
	if _, err := e.Store.Update(ctx, next); err != nil {
		e.Logger.Debug("lease not released", "lease", e.key().String(), "err", err)
		return
	}
	e.Logger.Info("leadership given up", "lease", e.key().String(), "identity", e.Identity)
}
