package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/agent/addresses"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

const (
	// maxProblems is how many problems a NodeNetwork lists; all are counted.
	maxProblems = 50
	// announceGather is how long a change waits for others before it is written.
	announceGather = 20 * time.Millisecond
	// announcePatience is how long a pass that changed nothing of what the loop knows of
	// itself waits for more of them: every pod that comes or goes makes a few.
	announcePatience = 500 * time.Millisecond
	announceRetry    = 2 * time.Second
	// announceTrust is how long the datastore is believed to hold what was written to
	// it, when it does not tell otherwise.
	announceTrust = time.Minute
)

// facts are everything that this node says about itself.
type facts struct {
	underlay underlay
	plane    string
	podMTU   int
	loans    addresses.Loans
	problems []world.Problem
	worst    health.State
}

const kindNodeNetwork datastore.Kind = "NodeNetwork"

// spec is what peers need.
func (f facts) spec(node string) v1alpha1.NodeNetworkSpec {
	s := v1alpha1.NodeNetworkSpec{
		VTEPMAC: packet.VTEPMAC(node).String(), MTU: int32(f.underlay.mtu), Plane: v1alpha1.Plane(f.plane),
	}
	for _, p := range f.underlay.addresses {
		s.Addresses = append(s.Addresses, p.String())
	}
	return s
}

// status is what people and owners of blocks need. Conditions keep the time of
// their last transition from old.
func (f facts) status(old v1alpha1.NodeNetworkStatus) v1alpha1.NodeNetworkStatus {
	s := v1alpha1.NodeNetworkStatus{
		PodMTU: int32(f.podMTU), Wanted: f.loans.Wanted, ProblemCount: int32(len(f.problems)),
		Conditions: slices.Clone(old.Conditions),
	}
	for _, b := range f.loans.Borrowed {
		if s.Borrowed == nil {
			s.Borrowed = map[string]v1alpha1.AddressOwner{}
		}
		s.Borrowed[b.Addr.String()] = v1alpha1.AddressOwner{Namespace: b.Owner.Namespace, Name: b.Owner.Name, UID: types.UID(b.Owner.UID)}
	}
	for _, p := range f.problems[:min(len(f.problems), maxProblems)] {
		p = p.Brief()
		s.Problems = append(s.Problems, v1alpha1.ObjectProblem{
			Kind: string(p.Kind), Namespace: p.Key.Namespace, Name: p.Key.Name, Field: p.Field, Reason: p.Reason, Message: p.Message,
		})
	}
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", Message: "all components are well"}
	switch f.worst.Level {
	case health.Degraded:
		c.Reason, c.Message = "Degraded", f.worst.Component+": "+f.worst.Message
	case health.Failed:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Failed", f.worst.Component+": "+f.worst.Message
	}
	meta.SetStatusCondition(&s.Conditions, c)
	return s
}

// announcer keeps this node's NodeNetwork equal to the facts. It writes only what
// differs: there is no heartbeat.
type announcer struct {
	node  string
	store datastore.Store
	facts func() facts
	// seen is this node's NodeNetwork as the world has it, nil if it has none.
	seen func() *world.NodeNetwork
	// written is told of the version of the loans that the datastore holds.
	written func(version uint64)
	// failed is told why the last attempt failed, nil when it did not.
	failed func(error)
	// kick wakes the announcer at once, nudge within announcePatience.
	kick, nudge chan struct{}
	// last is what is known to be in the datastore; run's goroutine alone uses it.
	last announced
}

// announced is what the datastore held at some time, while the world had seen.
type announced struct {
	spec   v1alpha1.NodeNetworkSpec
	status v1alpha1.NodeNetworkStatus
	seen   *world.NodeNetwork
	at     time.Time
}

// holds reports whether nothing has to be written, nor read to know that. Most passes
// change nothing of what a node says about itself.
func (l announced) holds(f facts, node string, seen *world.NodeNetwork) bool {
	return seen != nil && seen == l.seen && time.Since(l.at) < announceTrust &&
		equalSpec(l.spec, f.spec(node)) && equalStatus(l.status, f.status(l.status))
}

// run announces until ctx ends.
func (a *announcer) run(ctx context.Context) error {
	for {
		err := a.announce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		a.failed(err)
		if err != nil {
			// Half to whole of the delay, so that nodes do not come back as one.
			wait(ctx, announceRetry/2+rand.N(announceRetry/2))
			continue
		}
		if !a.await(ctx) {
			return nil
		}
		wait(ctx, announceGather)
	}
}

// await returns when there may be something to announce, and reports false if ctx ended.
func (a *announcer) await(ctx context.Context) bool {
	select {
	case <-a.kick:
		return true
	case <-a.nudge:
	case <-ctx.Done():
		return false
	}
	patience := time.NewTimer(announcePatience)
	defer patience.Stop()
	select {
	case <-a.kick:
	case <-patience.C:
	case <-ctx.Done():
		return false
	}
	return true
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// poke says that something has changed.
func (a *announcer) poke() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// pokeLater says that something may have changed.
func (a *announcer) pokeLater() {
	select {
	case a.nudge <- struct{}{}:
	default:
	}
}

func (a *announcer) announce(ctx context.Context) error {
	f, seen := a.facts(), a.seen()
	if a.last.holds(f, a.node, seen) {
		a.written(f.loans.Version)
		return nil
	}
	a.last = announced{}
	have, err := a.have(ctx, f)
	if err != nil {
		return err
	}
	if want := f.spec(a.node); !equalSpec(have.Spec, want) {
		have.Spec = want
		if have, err = asNodeNetwork(a.store.Update(ctx, have)); err != nil {
			return fmt.Errorf("update NodeNetwork %s: %w", a.node, err)
		}
	}
	if want := f.status(have.Status); !equalStatus(have.Status, want) {
		have.Status = want
		if have, err = asNodeNetwork(a.store.UpdateStatus(ctx, have)); err != nil {
			return fmt.Errorf("update the status of NodeNetwork %s: %w", a.node, err)
		}
	}
	a.last = announced{spec: have.Spec, status: have.Status, seen: seen, at: time.Now()}
	a.written(f.loans.Version)
	return nil
}

// have reads the object, and creates it if it is not there.
func (a *announcer) have(ctx context.Context, f facts) (*v1alpha1.NodeNetwork, error) {
	have, err := asNodeNetwork(a.store.Get(ctx, kindNodeNetwork, datastore.Key{Name: a.node}))
	if apierrors.IsNotFound(err) {
		have, err = asNodeNetwork(a.store.Create(ctx, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: a.node}, Spec: f.spec(a.node)}))
	}
	if err != nil {
		return nil, fmt.Errorf("read or create NodeNetwork %s: %w", a.node, err)
	}
	return have, nil
}

func asNodeNetwork(o datastore.Object, err error) (*v1alpha1.NodeNetwork, error) {
	if err != nil {
		return nil, err
	}
	n, ok := o.(*v1alpha1.NodeNetwork)
	if !ok {
		return nil, errors.New("the datastore answered with an object of another kind")
	}
	return n, nil
}

func equalSpec(a, b v1alpha1.NodeNetworkSpec) bool {
	return a.VTEPMAC == b.VTEPMAC && a.MTU == b.MTU && a.Plane == b.Plane && slices.Equal(a.Addresses, b.Addresses)
}

func equalStatus(a, b v1alpha1.NodeNetworkStatus) bool {
	return a.PodMTU == b.PodMTU && a.ProblemCount == b.ProblemCount && slices.Equal(a.Wanted, b.Wanted) &&
		maps.Equal(a.Borrowed, b.Borrowed) && slices.Equal(a.Problems, b.Problems) && slices.Equal(a.Conditions, b.Conditions)
}
