package controller

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
)

const (
	// settle is how long a write that succeeded is not repeated while the watch has not
	// shown it.
	settle = 2 * time.Second
	// minPause and maxPause bound the pause after a failure.
	minPause = 200 * time.Millisecond
	maxPause = 30 * time.Second
)

// errRefused is why a removal was not carried out: the datastore itself says that what
// it depended on is not so.
var errRefused = errors.New("not done")

// pauseKey names a write.
type pauseKey struct {
	plan.Action
	plan.Ref
}

// pause holds a write back.
type pause struct {
	until time.Time
	// version of the object that was written; another one ends the pause.
	version string
	// length of the pause after a failure; zero after success.
	length time.Duration
}

// pass makes a plan and carries it out. It returns when to make the next one even if
// nothing changes.
func (t *term) pass(ctx context.Context, in plan.Input) time.Duration {
	begin := time.Now()
	p := plan.Make(in)
	t.Metrics.planned(p, time.Since(begin))
	level, message := collectionHealth(p)
	t.Health.Set(componentCollection, level, message)
	t.logVanished(p)
	if !p.Record.Equal(in.Record) {
		if err := t.storeRecord(ctx, p.Record); err != nil {
			if ctx.Err() == nil {
				t.Logger.Warn("the controller's record cannot be written: nothing is done until it can", "err", err)
				t.Health.Set(componentWrites, health.Degraded, err.Error())
			}
			return minPause * 5
		}
	}
	t.memory = p.Memory
	next := t.carryOut(ctx, p.Writes, begin)
	if !p.Again.IsZero() {
		next = min(next, time.Until(p.Again))
	}
	return next
}

// carryOut writes until the turn is over, and returns when to go on.
func (t *term) carryOut(ctx context.Context, writes []plan.Write, begin time.Time) time.Duration {
	next := time.Duration(math.MaxInt64)
	pauses := map[pauseKey]pause{}
	failing, failed := 0, ""
	for i, w := range writes {
		key := pauseKey{w.Action, w.Ref}
		held, paused := t.pauses[key]
		if paused && time.Now().Before(held.until) && held.version == version(w) {
			pauses[key] = held
			next = min(next, time.Until(held.until))
			if held.length > 0 {
				failing++
			}
			continue
		}
		if time.Since(begin) > turn || t.limiter.Wait(ctx) != nil {
			for _, later := range writes[i:] { // Their pauses still hold.
				if held, ok := t.pauses[pauseKey{later.Action, later.Ref}]; ok {
					pauses[pauseKey{later.Action, later.Ref}] = held
				}
			}
			next = 0
			break
		}
		t.alive()
		err := t.do(ctx, w)
		if ctx.Err() != nil {
			return 0
		}
		pauses[key] = t.outcome(w, held, err)
		next = min(next, time.Until(pauses[key].until))
		if err != nil && !apierrors.IsConflict(err) {
			failing, failed = failing+1, err.Error()
		}
	}
	t.pauses = pauses
	switch {
	case failing == 0:
		t.Health.Set(componentWrites, health.OK, "")
	case failed != "":
		t.Health.Set(componentWrites, health.Degraded, fmt.Sprintf("writes that fail: %d, the last: %s", failing, failed))
	}
	return next
}

// outcome logs and counts a write, and says how long it pauses now.
func (t *term) outcome(w plan.Write, before pause, err error) pause {
	log := t.Logger.With("kind", string(w.Kind), "object", w.Key.String(), "action", w.Action.String(), "why", w.Why)
	out := pause{version: version(w)}
	if err == nil {
		t.Metrics.wrote(w, "ok")
		if w.Action == plan.UpdateStatus || w.Kind == datastore.KindEvent {
			log.Debug("written")
		} else {
			log.Info("written")
		}
		out.until = time.Now().Add(settle)
		return out
	}
	out.length = min(max(2*before.length, minPause), maxPause)
	out.until = time.Now().Add(out.length)
	switch {
	case errors.Is(err, errRefused):
		t.Metrics.wrote(w, "refused")
		log.Info("not written", "because", err.Error())
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		t.Metrics.wrote(w, "conflict")
		log.Debug("somebody else was faster: trying again", "err", err)
	default:
		t.Metrics.wrote(w, "error")
		log.Warn("not written: trying again", "err", err, "in", out.length)
	}
	return out
}

func version(w plan.Write) string {
	if w.Object == nil {
		return ""
	}
	return w.Object.GetResourceVersion()
}

// do carries out one write.
func (t *term) do(ctx context.Context, w plan.Write) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if w.Absent.Kind != "" {
		if err := t.absent(ctx, w.Absent); err != nil {
			return err
		}
	}
	var stored datastore.Object
	var err error
	switch w.Action {
	case plan.Create:
		stored, err = t.Store.Create(ctx, w.Object)
	case plan.Update:
		stored, err = t.Store.Update(ctx, w.Object)
	case plan.UpdateStatus:
		stored, err = t.Store.UpdateStatus(ctx, w.Object)
	case plan.Delete:
		err = t.Store.Delete(ctx, w.Kind, w.Key, datastore.Preconditions{UID: w.UID})
	case plan.Release:
		err = t.release(ctx, w)
	case plan.SetCondition:
		err = t.setCondition(ctx, w)
	}
	if w.Kind == datastore.KindEvent {
		t.noteEvent(ctx, w, stored, err)
	}
	// What is gone needs no writing; where it should be there, the watch will tell.
	if apierrors.IsNotFound(err) && w.Action != plan.Create {
		return nil
	}
	return err
}

// noteEvent keeps the Events, which no watch follows.
func (t *term) noteEvent(ctx context.Context, w plan.Write, stored datastore.Object, err error) {
	switch {
	case err == nil && w.Action != plan.Delete:
		if e, ok := stored.(*corev1.Event); ok {
			t.events[w.Key] = e
		}
	case err == nil, apierrors.IsNotFound(err):
		delete(t.events, w.Key)
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		o, err := t.Store.Get(ctx, w.Kind, w.Key)
		if e, ok := o.(*corev1.Event); ok && err == nil {
			t.events[w.Key] = e
		} else if apierrors.IsNotFound(err) {
			delete(t.events, w.Key)
		}
	}
}

// absent makes sure that an object, or that life of it, does not exist.
func (t *term) absent(ctx context.Context, r plan.Ref) error {
	o, err := t.Store.Get(ctx, r.Kind, r.Key)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look whether %s %s exists: %w", r.Kind, r.Key, err)
	case r.UID != "" && o.GetUID() != r.UID && o.GetUID() != types.UID(""):
		return nil
	}
	return fmt.Errorf("%w: %s %s exists, although the watch does not show it", errRefused, r.Kind, r.Key)
}

// logVanished tells once of every node that is missing, and once of every one that is not
// any more.
func (t *term) logVanished(p plan.Plan) {
	now := map[string]bool{}
	for _, v := range p.Vanished {
		now[v.Node] = true
		if !t.vanished[v.Node] {
			t.Logger.Warn("node has no Node object", "node", v.Node, "blocks", v.Blocks, "pods", v.Pods, "freed", v.Due.UTC().Format(time.RFC3339))
		}
	}
	for node := range t.vanished {
		if !now[node] {
			t.Logger.Info("node is back, or nothing of it is left", "node", node)
		}
	}
	t.vanished = now
}
