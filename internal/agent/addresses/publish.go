package addresses

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// softSave is how often the state file follows changes that need not survive.
const softSave = time.Second

// publish is the one goroutine that writes IPBlocks.
func (s *Service) publish(ctx context.Context) {
	backoff := minBackoff
	for {
		select {
		case <-s.kick:
		case <-ctx.Done():
			return
		}
		if !pause(ctx, gather) {
			return
		}
		for {
			err := s.cycle(ctx)
			if ctx.Err() != nil {
				return
			}
			s.report(err)
			if err == nil {
				backoff = minBackoff
				break
			}
			if !pause(ctx, backoff/2+rand.N(backoff/2)) {
				return
			}
			backoff = min(2*backoff, maxBackoff)
		}
	}
}

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// report keeps the state of publication, and logs when it changes.
func (s *Service) report(err error) {
	s.mu.Lock()
	before := s.lastErr
	s.lastErr = err
	s.wrote()
	s.mu.Unlock()
	switch {
	case err != nil && before == nil:
		s.Logger.Warn("address blocks cannot be published: retrying", "err", err)
	case err == nil && before != nil:
		s.Logger.Info("address blocks are published again")
	}
}

// work is what one cycle does, as of the moment it began. Lent addresses in it are in
// the state file.
type work struct {
	blocks  map[blockKey]ipam.Block // those of which something is to be done
	dirty   map[blockKey]bool
	adopt   map[blockKey]bool
	recalls map[blockKey][]netip.Addr
}

// cycle brings the state file and then the datastore up to date.
func (s *Service) cycle(ctx context.Context) error {
	w, err := s.begin()
	if err != nil {
		return err
	}
	s.showTunnels()
	for _, key := range sortedKeys(w.adopt) {
		if err := s.adoptBlock(ctx, key); err != nil {
			s.redo(w)
			return fmt.Errorf("read block %s of Subnet %s: %w", key.cidr, key.subnet, err)
		}
	}
	if err := s.write(ctx, w); err != nil {
		return err
	}
	if err := s.confirmOffers(ctx); err != nil {
		return fmt.Errorf("read a lent address's block: %w", err)
	}
	wake(s.keeping)
	return nil
}

// keep saves what need not survive, beside the publisher: peers do not wait for the disk. If
// that fails, the publisher tries again and reports.
func (s *Service) keep(ctx context.Context) {
	for {
		select {
		case <-s.keeping:
		case <-ctx.Done():
			return
		}
		if s.save(softSave, func() {}) != nil {
			wake(s.kick)
		}
	}
}

// mostWrites bounds the blocks that are written at once.
const mostWrites = 8

// write brings the blocks into the datastore: together, as a dual-stack pod is waited for
// in one of each family.
func (s *Service) write(ctx context.Context, w work) error {
	keys := sortedKeys(w.blocks)
	errs := make([]error, len(keys))
	var todo []func()
	for i, key := range keys {
		b, recalls := w.blocks[key], w.recalls[key]
		switch {
		case b.State == ipam.Closing:
			todo = append(todo, func() { errs[i] = s.giveUp(ctx, key, b) })
		case len(recalls) > 0:
			todo = append(todo, func() { errs[i] = s.recall(ctx, key, b, recalls) })
		case w.dirty[key]:
			todo = append(todo, func() { errs[i] = s.syncBlock(ctx, key, b) })
		}
	}
	together(todo)
	if errors.Join(errs...) == nil {
		return nil
	}
	var first error
	for i, key := range keys {
		if errs[i] == nil {
			delete(w.dirty, key)
		} else if first == nil {
			first = fmt.Errorf("publish block %s of Subnet %s: %w", key.cidr, key.subnet, errs[i])
		}
	}
	s.redo(w)
	return first
}

// together does what is to be done side by side, and a single thing, as most often, without
// waking another thread.
func together(todo []func()) {
	if len(todo) == 1 {
		todo[0]()
		return
	}
	var g errgroup.Group
	g.SetLimit(mostWrites)
	for _, f := range todo {
		g.Go(func() error { f(); return nil })
	}
	_ = g.Wait() // the functions keep their errors
}

// begin takes the work that has gathered, and saves what others may come to rely on.
func (s *Service) begin() (work, error) {
	w := work{blocks: map[blockKey]ipam.Block{}}
	err := s.save(math.MaxInt64, func() {
		w.dirty, w.adopt, w.recalls = s.dirty, s.adopt, s.recalls
		s.dirty, s.adopt, s.recalls = map[blockKey]bool{}, map[blockKey]bool{}, map[blockKey][]netip.Addr{}
		for _, b := range s.pool.Outline() {
			key := blockKey{b.Subnet, b.CIDR}
			if b.State == ipam.Closing || w.dirty[key] || len(w.recalls[key]) > 0 {
				w.blocks[key], _ = s.pool.Block(b.Subnet, b.CIDR)
			}
		}
	})
	if err != nil {
		s.redo(w)
		return work{}, err
	}
	return w, nil
}

// save brings the state file up to date where it must not be behind, and where it is
// stale and that old. with is called in the moment whose state is saved. Nobody waits for
// the disk for what another caller saves only because it is stale.
func (s *Service) save(old time.Duration, with func()) error {
	if s.saved(old, with) {
		return nil
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	with()
	now := time.Now()
	if !s.behind(old) {
		s.mu.Unlock()
		return nil
	}
	state := snapshotState(s.Node, s.pool, s.tunnels, now)
	s.securing = s.unsaved
	s.unsaved, s.stale, s.savedAt = false, false, now
	pending, taken := s.tunnelsSaved(), s.takenBack
	s.takenBack = nil
	s.mu.Unlock()
	err := s.Records.Save(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.securing = false
	if err != nil {
		s.unsaved, s.takenBack = true, append(s.takenBack, taken...)
		return err
	}
	for _, t := range pending {
		t.saved = true
	}
	for _, a := range taken {
		s.pool.Dropped(a.subnet, a.addr)
	}
	return nil
}

// saved calls with and reports true if the state file need not be written before.
func (s *Service) saved(old time.Duration, with func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.securing || s.behind(old) {
		return false
	}
	with()
	return true
}

// behind tells whether the state file must be written, or is stale and that old.
func (s *Service) behind(old time.Duration) bool {
	return s.unsaved || s.stale && time.Since(s.savedAt) >= old
}

// secure saves what the caller's addresses may rest on: a block just claimed or
// adopted, an address just borrowed. A node that starts without the datastore would
// know nothing of it. If the file cannot be written the addresses are given all the
// same: the block is ours, publish tries again and reports.
func (s *Service) secure() {
	s.mu.Lock()
	behind := s.unsaved || s.securing
	s.mu.Unlock()
	if !behind {
		return
	}
	if err := s.save(softSave, func() {}); err != nil {
		s.Logger.Error("an address is given while the address state cannot be saved", "err", err)
		wake(s.kick)
	}
}

// redo puts work back that was not done.
func (s *Service) redo(w work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.dirty, w.dirty)
	maps.Copy(s.adopt, w.adopt)
	wake(s.kick)
}

func sortedKeys[V any](m map[blockKey]V) []blockKey {
	return slices.SortedFunc(maps.Keys(m), compareBlocks)
}

// current is an own block's object: as last written, or read anew.
func (s *Service) current(ctx context.Context, key blockKey) (o *v1alpha1.IPBlock, fresh bool, err error) {
	s.mu.Lock()
	o = s.objects[key]
	s.mu.Unlock()
	if o != nil {
		return o, false, nil
	}
	o, err = s.getBlock(ctx, key)
	return o, true, err
}

func (s *Service) remember(key blockKey, o *v1alpha1.IPBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o == nil {
		delete(s.objects, key)
	} else {
		s.objects[key] = o
	}
	s.wrote()
}

// syncBlock makes an own block's object say what the pool says.
func (s *Service) syncBlock(ctx context.Context, key blockKey, b ipam.Block) error {
	for range 5 {
		o, fresh, err := s.current(ctx, key)
		switch {
		case apierrors.IsNotFound(err):
			return s.reclaim(ctx, key, b)
		case err != nil:
			return err
		case o.Spec.Node != s.Node:
			s.lose(key, "it belongs to node "+o.Spec.Node)
			return nil
		}
		if fresh {
			s.remember(key, o)
			if s.learn(key, o, b) {
				return nil // The pool has changed: published with the next cycle.
			}
		}
		next := s.desired(o, b)
		if reflect.DeepEqual(next, o) {
			return nil
		}
		stored, err := s.update(ctx, next)
		switch {
		case err == nil:
			s.remember(key, stored)
			return nil
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			s.remember(key, nil)
		default:
			s.remember(key, nil) // It may have arrived.
			return err
		}
	}
	return fmt.Errorf("somebody else keeps changing IPBlock %s", key.name())
}

func (s *Service) update(ctx context.Context, o *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stored, err := s.Store.Update(ctx, o)
	if err != nil {
		return nil, err
	}
	b, ok := stored.(*v1alpha1.IPBlock)
	if !ok {
		return nil, apierrors.NewBadRequest("the datastore returned something that is no IPBlock")
	}
	return b, nil
}

// learn takes from an own block's object what an earlier process of this node has
// published and this one does not know. It reports whether the pool has changed.
func (s *Service) learn(key blockKey, o *v1alpha1.IPBlock, b ipam.Block) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[netip.Addr]bool{}
	for _, l := range b.Lent {
		known[l.Addr] = true
	}
	loans := slices.DeleteFunc(lentOf(o), func(l world.Loan) bool { return known[l.Addr] })
	regained := b.State == ipam.Lost
	if regained {
		s.pool.SetState(key.subnet, key.cidr, ipam.Open)
		s.Logger.Info("block regained", "subnet", key.subnet, "block", key.cidr)
		s.roomAppeared()
	}
	if len(loans) > 0 {
		s.note(s.pool.AddBlock(ipam.Block{Subnet: key.subnet, CIDR: key.cidr, Node: s.Node, Lent: loans}, time.Now()))
	}
	before := len(s.tunnels)
	if s.restored {
		s.settle(key.subnet, allocationsOf(o.Spec.Allocations), time.Now())
	}
	if len(loans) == 0 && !regained && len(s.tunnels) == before && !s.incomplete {
		return false
	}
	s.unsaved = true
	s.dirty[key] = true
	wake(s.kick)
	return true
}

// desired is an object with what the pool says. An address that is both lent and held
// by a record here (a conflict, reported) stays lent: that is where peers send to.
func (s *Service) desired(o *v1alpha1.IPBlock, b ipam.Block) *v1alpha1.IPBlock {
	next := o.DeepCopy()
	delete(next.Annotations, v1alpha1.AnnotationRecall)
	if len(next.Annotations) == 0 {
		next.Annotations = o.Annotations
		if _, had := o.Annotations[v1alpha1.AnnotationRecall]; had {
			next.Annotations = nil
		}
	}
	next.Spec.Allocations, next.Spec.Lent = nil, nil
	for _, l := range b.Lent {
		if next.Spec.Lent == nil {
			next.Spec.Lent = map[string]string{}
		}
		next.Spec.Lent[l.Addr.String()] = l.Node
	}
	for _, a := range b.Allocations {
		if _, lent := next.Spec.Lent[a.Addr.String()]; lent {
			continue
		}
		if next.Spec.Allocations == nil {
			next.Spec.Allocations = map[string]v1alpha1.AddressOwner{}
		}
		next.Spec.Allocations[a.Addr.String()] = v1alpha1.AddressOwner{
			Namespace: a.Owner.Namespace, Name: a.Owner.Name, UID: types.UID(a.Owner.UID),
		}
	}
	return next
}

func lentOf(o *v1alpha1.IPBlock) []world.Loan {
	var out []world.Loan
	for a, n := range o.Spec.Lent {
		if addr, err := netip.ParseAddr(a); err == nil {
			out = append(out, world.Loan{Addr: addr, Node: n})
		}
	}
	slices.SortFunc(out, func(a, b world.Loan) int { return a.Addr.Compare(b.Addr) })
	return out
}

func allocationsOf(m map[string]v1alpha1.AddressOwner) []world.Allocation {
	var out []world.Allocation
	for a, o := range m {
		if addr, err := netip.ParseAddr(a); err == nil {
			out = append(out, world.Allocation{Addr: addr, Owner: world.Owner{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID)}})
		}
	}
	slices.SortFunc(out, func(a, b world.Allocation) int { return a.Addr.Compare(b.Addr) })
	return out
}

// showBlock puts a block into the world before the watch does.
func (s *Service) showBlock(o *v1alpha1.IPBlock) {
	cidr, err := netip.ParsePrefix(o.Spec.CIDR)
	if err != nil {
		return
	}
	s.World.Apply(world.Change{Kind: world.KindBlock, Key: world.Key{Name: o.Name}, Object: &world.Block{
		Name: o.Name, UID: string(o.UID), Subnet: o.Spec.Subnet, CIDR: cidr, Node: o.Spec.Node,
		Allocations: allocationsOf(o.Spec.Allocations), Lent: lentOf(o),
	}})
}

// nodeGone asks the datastore whether a Node object is gone.
func (s *Service) nodeGone(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.Store.Get(ctx, datastore.KindNode, datastore.Key{Name: name})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}
