package attach

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Check compares an attachment with what the runtime believes (CHECK), and waits
// for the plane to have applied it. It does not look at the kernel.
func (s *Service) Check(ctx context.Context, req Request, want Attached) error {
	id := Key{req.ContainerID, req.Interface}.ID()
	if err := s.isRestored(); err != nil {
		return err
	}
	r := s.lookup(id)
	if r == nil {
		return failf(UnknownAttachment, nil, "check %s: there is no such attachment on this node; delete the container and create it anew", id)
	}
	if !r.answers(req) {
		return failf(Differs, nil, "check %s: it belongs to %s in the network namespace %s, not to %s in %s", id, r.Pod.Name, r.Netns, describe(req), req.Netns)
	}
	for _, a := range r.Addresses {
		if !slices.Contains(want.Addresses, a) {
			return failf(Differs, nil, "check %s: it has the addresses %s, and the runtime's previous result %s", id, join(r.Addresses), join(want.Addresses))
		}
	}
	if want.MAC != "" && want.MAC != r.MAC.String() {
		return failf(Differs, nil, "check %s: it has the MAC address %s, and the runtime's previous result %s", id, r.MAC, want.MAC)
	}
	if err := s.checkNetns(r.Netns); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.PodTimeout, errors.New("the data plane is behind"))
	defer cancel()
	snapshot, _ := s.cfg.World.Snapshot()
	if err := s.cfg.Applied.Wait(ctx, snapshot.Revision, portRef(r)); err != nil {
		reason := Differs
		if ctx.Err() != nil {
			reason = TryAgain
		}
		return failf(reason, cause(ctx, err), "check %s: the data plane cannot apply it", id)
	}
	return nil
}

// Attached is what a runtime believes that an interface has. Addresses may hold
// more than ours: other plugins add theirs.
type Attached struct {
	Addresses []netip.Addr
	MAC       string
}

// Collect removes the attachments of a network that the runtime's list does not
// name and whose network namespace is dead (GC). One whose namespace lives is kept
// and reported: the list may be incomplete, and a living pod never loses its
// network to that.
func (s *Service) Collect(ctx context.Context, network string, valid []Key) error {
	if err := s.isRestored(); err != nil {
		return err
	}
	named := make(map[string]bool, len(valid))
	for _, k := range valid {
		named[k.ID()] = true
	}
	var errs []error
	for _, r := range s.records() {
		switch {
		case r.Network != network:
		case named[r.ID]:
			s.keep(r, "")
		default:
			errs = append(errs, s.collect(ctx, r, "GC does not name it and its network namespace is dead",
				"the runtime does not name it, but its network namespace "+r.Netns+" lives: if the pod is gone, find out who holds the namespace"))
		}
	}
	if err := oneLine(errs...); err != nil {
		return failf(TryAgain, err, "collect attachments of the network %s", network)
	}
	return nil
}

// records returns what is held, sorted by ID.
func (s *Service) records() []*record {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*record, 0, len(s.held))
	for _, id := range slices.Sorted(maps.Keys(s.held)) {
		list = append(list, s.held[id])
	}
	return list
}

// collect removes a record if its namespace is dead, and otherwise notes why it
// stays; an empty keepWhy notes nothing.
func (s *Service) collect(ctx context.Context, r *record, why, keepWhy string) error {
	state, err := s.cfg.Namespaces.State(r.Netns)
	if err != nil {
		s.keep(r, "whether its network namespace "+r.Netns+" lives cannot be told: "+err.Error())
		return nil
	}
	if state != NamespaceDead {
		if keepWhy != "" {
			s.keep(r, keepWhy)
		}
		return nil
	}
	unlock, err := s.locks.forCollect(ctx, r.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	// Between the two looks the container may have been deleted or attached anew.
	if s.lookup(r.ID) != r {
		return nil
	}
	return s.detach(r, why)
}

// keep notes why a collection left a record, or, with no reason, that there is
// nothing to say about it.
func (s *Service) keep(r *record, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[r.ID] != r || s.kept[r.ID] == why {
		return
	}
	if why == "" {
		delete(s.kept, r.ID)
		return
	}
	s.kept[r.ID] = why
	s.cfg.Log.Warn("attachment not collected", "attachment", r.ID, "why", why)
}

// sweepLoop collects what has a dead namespace, because no runtime can be trusted
// to call GC: after a power loss none does.
func (s *Service) sweepLoop(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	for {
		s.sweep(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Service) sweep(ctx context.Context) {
	if s.isRestored() != nil {
		return
	}
	for _, r := range s.records() {
		if ctx.Err() != nil {
			return
		}
		// The error is a Problem of the departure.
		_ = s.collect(ctx, r, "its network namespace is dead", "")
	}
}
