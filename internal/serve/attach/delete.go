package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// departure is an attachment on its way out. Its addresses are given back in
// order: the record is buried, then they are released, then the plane has dropped
// them; the grave stays for as long as they rest.
type departure struct {
	stem     string
	suffix   string // of the file, while it is not buried
	lease    Lease
	ref      intent.Ref // of the port; zero if the record does not tell
	revision uint64     // the first one without the attachment
	since    time.Time
	buried   bool
	dropped  bool
	err      error // why the last try failed
}

// Del removes an attachment. It needs neither the datastore nor the namespace, and
// succeeds if there is none. It does not wait for the plane: Run does.
func (s *Service) Del(ctx context.Context, containerID, ifname string) error {
	k := Key{containerID, ifname}
	if err := k.validate(); err != nil {
		return err
	}
	unlock, err := s.locks.forDelete(ctx, containerID)
	if err != nil {
		return failf(TryAgain, err, "delete %s: wait for another call for the same container", k.ID())
	}
	defer unlock()
	if err := s.isRestored(); err != nil {
		return err
	}
	// A record that cannot be buried (a read-only disk) is buried later; until then
	// the addresses stay blocked. For the runtime the attachment is gone.
	if r := s.lookup(k.ID()); r != nil {
		_ = s.detach(r, "DEL")
	}
	_ = s.detachTorn(claims.PortName(containerID, ifname))
	return nil
}

// detach removes an attachment; the caller holds the container's lock. The error
// says that the record is still on disk: it has been noted, and is tried again.
func (s *Service) detach(r *record, why string) error {
	d := &departure{stem: r.stem(), suffix: suffixLive, lease: r.lease(), ref: portRef(r), since: time.Now()}
	err := s.bury(d)
	_ = s.cfg.Step(StepBuried)
	s.mu.Lock()
	delete(s.held, r.ID)
	delete(s.kept, r.ID)
	d.revision = s.cfg.World.Apply(world.Change{Kind: world.KindAttachment, Key: key(r)}).Revision
	s.mu.Unlock()
	s.settle(d)
	s.cfg.Log.Info("detached", "attachment", r.ID, "pod", world.Key{Namespace: r.Pod.Namespace, Name: r.Pod.Name}.String(), "addresses", r.Addresses, "why", why)
	return err
}

// settle releases what is buried and hands the rest to Run.
func (s *Service) settle(d *departure) {
	_ = s.cfg.Step(StepWithdrawn)
	if d.buried {
		s.cfg.Addresses.Release(d.lease)
	}
	_ = s.cfg.Step(StepReleased)
	s.depart(d)
}

// detachTorn removes the unreadable records of a link, if there are any.
func (s *Service) detachTorn(link string) error {
	s.mu.Lock()
	var found []torn
	for name, t := range s.torn {
		if t.link == link {
			found = append(found, t)
			delete(s.torn, name)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, t := range found {
		stem, suffix := splitSuffix(t.name)
		snapshot, _ := s.cfg.World.Snapshot()
		d := &departure{stem: stem, suffix: suffix, lease: t.lease, revision: snapshot.Revision, since: time.Now()}
		errs = append(errs, s.bury(d))
		s.settle(d)
	}
	return errors.Join(errs...)
}

func splitSuffix(name string) (stem, suffix string) {
	i := len(name) - len(suffixTorn) // all suffixes have this length
	return name[:i], name[i:]
}

// bury is for a departure that has not been handed over.
func (s *Service) bury(d *departure) error {
	if err := s.dir.bury(d.stem, d.suffix); err != nil {
		d.err = fmt.Errorf("bury the record %s/%s%s: %w", s.dir.path, d.stem, d.suffix, err)
		return d.err
	}
	d.buried = true
	return nil
}

// depart hands a departure over to Run, which owns it from here on.
func (s *Service) depart(d *departure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = append(s.leaving, d)
	s.stir()
}

func (s *Service) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

const (
	// retryAfter is the time between two tries of what a departure needs.
	retryAfter = 2 * time.Second
	// roundTimeout bounds how long all departures together wait for the plane.
	roundTimeout = 10 * time.Second
)

// departLoop is the only one to change a departure once it has been handed over,
// and the only one to remove it from the list.
func (s *Service) departLoop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if next, any := s.departAll(ctx); any {
			timer.Reset(next)
		}
	}
}

// departAll advances every departure as far as it goes, and returns when to look
// again; false if none is left.
func (s *Service) departAll(ctx context.Context) (time.Duration, bool) {
	s.mu.Lock()
	pending := slices.Clone(s.leaving)
	s.mu.Unlock()
	round, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	next := s.cfg.Rest
	var done []*departure
	for _, d := range pending {
		if ctx.Err() != nil {
			break
		}
		again := s.advance(round, d)
		if again <= 0 {
			done = append(done, d)
			continue
		}
		next = min(next, again)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = slices.DeleteFunc(s.leaving, func(d *departure) bool { return slices.Contains(done, d) })
	return next, len(s.leaving) > 0
}

// advance takes the next steps of one departure. It returns when to look again,
// zero when nothing is left to do.
func (s *Service) advance(ctx context.Context, d *departure) time.Duration {
	buried, dropped, err := d.buried, d.dropped, error(nil)
	if !buried {
		if err = s.dir.bury(d.stem, d.suffix); err == nil {
			buried = true
			s.cfg.Addresses.Release(d.lease)
		} else {
			err = fmt.Errorf("bury the record %s/%s%s: %w", s.dir.path, d.stem, d.suffix, err)
		}
	}
	if buried && !dropped {
		if err = s.cfg.Applied.Wait(ctx, d.revision, d.ref); err == nil {
			dropped = true
			s.cfg.Addresses.Dropped(d.lease)
		} else {
			err = fmt.Errorf("wait for the data plane to drop %v: %w", d.lease.Addresses, err)
		}
	}
	rest := s.cfg.Rest - time.Since(d.since)
	if dropped && rest <= 0 {
		if err = s.dir.remove(d.stem); err == nil {
			return 0
		}
		err = fmt.Errorf("remove the grave %s/%s%s: %w", s.dir.path, d.stem, suffixGone, err)
	}
	s.mu.Lock()
	d.buried, d.dropped, d.err = buried, dropped, err
	s.mu.Unlock()
	if err != nil {
		return retryAfter
	}
	return rest
}
