package addresses

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// adoptBlock takes a block that the world shows as this node's: a claim whose answer
// was lost, or one of an earlier life of the node.
func (s *Service) adoptBlock(ctx context.Context, key blockKey) error {
	o, err := s.getBlock(ctx, key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, own := s.pool.Block(key.subnet, key.cidr); own || o.Spec.Node != s.Node {
		return nil
	}
	s.note(s.pool.AddBlock(ipam.Block{Subnet: key.subnet, CIDR: key.cidr, Node: s.Node, Lent: lentOf(o)}, time.Now()))
	if s.restored {
		s.settle(key.subnet, allocationsOf(o.Spec.Allocations), time.Now())
	}
	s.objects[key] = o
	s.dirty[key], s.unsaved = true, true
	s.roomAppeared()
	s.loans.bump()
	wake(s.kick)
	s.Logger.Info("block adopted", "subnet", key.subnet, "block", key.cidr)
	return nil
}

// reclaim deals with an own block whose object is gone: while the Node exists it is
// claimed again with all that it holds.
func (s *Service) reclaim(ctx context.Context, key blockKey, b ipam.Block) error {
	s.remember(key, nil)
	if len(b.Allocations) == 0 && len(b.Lent) == 0 {
		s.forget(key)
		return nil
	}
	gone, err := s.nodeGone(ctx, s.Node)
	if err != nil {
		return err
	}
	if gone {
		s.lose(key, "it is gone, and so is Node "+s.Node)
		return nil
	}
	o := &v1alpha1.IPBlock{Spec: v1alpha1.IPBlockSpec{Subnet: key.subnet, CIDR: key.cidr.String(), Node: s.Node}}
	o.Name = key.name()
	o = s.desired(o, b)
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stored, err := s.Store.Create(call, o)
	if apierrors.IsAlreadyExists(err) { // Read whose it is.
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dirty[key] = true
		wake(s.kick)
		return nil
	}
	if err != nil {
		return err
	}
	if o, ok := stored.(*v1alpha1.IPBlock); ok {
		s.remember(key, o)
		s.showBlock(o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.SetState(key.subnet, key.cidr, ipam.Open)
	s.unsaved = true
	s.roomAppeared()
	wake(s.kick)
	s.Logger.Warn("block was gone: claimed again", "subnet", key.subnet, "block", key.cidr, "addresses", len(b.Allocations))
	return nil
}

// lose ends the use of a block that is not ours any more.
func (s *Service) lose(key blockKey, why string) {
	s.remember(key, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.pool.Block(key.subnet, key.cidr)
	if !ok {
		return
	}
	if b.State != ipam.Lost {
		s.Logger.Error("block lost: no more addresses are given from it", "subnet", key.subnet, "block", key.cidr, "addresses", len(b.Allocations), "why", why)
	}
	s.pool.SetState(key.subnet, key.cidr, ipam.Lost)
	if len(b.Allocations) == 0 {
		s.pool.RemoveBlock(key.subnet, key.cidr)
		delete(s.emptySince, key)
	}
	s.unsaved = true
	s.roomAppeared()
	wake(s.kick)
}

// forget drops an own block that holds nothing.
func (s *Service) forget(key blockKey) {
	s.remember(key, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.RemoveBlock(key.subnet, key.cidr)
	delete(s.emptySince, key)
	s.unsaved = true
	s.roomAppeared()
	wake(s.kick)
}

// giveUp deletes a closing block's object. That it closes is in the state file: until
// it is certain what has become of it, nothing is given from it, not even by the
// next process.
func (s *Service) giveUp(ctx context.Context, key blockKey, b ipam.Block) error {
	o, err := s.getBlock(ctx, key)
	if apierrors.IsNotFound(err) {
		s.forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	if o.Spec.Node != s.Node {
		s.lose(key, "it belongs to node "+o.Spec.Node)
		return nil
	}
	if len(b.Allocations) > 0 || len(b.Lent) > 0 || len(o.Spec.Lent) > 0 {
		s.reopen(key)
		return nil
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = s.Store.Delete(call, datastore.KindIPBlock, datastore.Key{Name: key.name()},
		datastore.Preconditions{UID: o.UID, ResourceVersion: o.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	s.forget(key)
	s.World.Apply(world.Change{Kind: world.KindBlock, Key: world.Key{Name: key.name()}})
	s.Logger.Info("block given up", "subnet", key.subnet, "block", key.cidr)
	return nil
}

func (s *Service) reopen(key blockKey) {
	s.remember(key, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.SetState(key.subnet, key.cidr, ipam.Open)
	s.dirty[key], s.unsaved = true, true
	s.roomAppeared()
	wake(s.kick)
}

// closeEmpty closes blocks that have been empty for long enough.
func (s *Service) closeEmpty(now time.Time) {
	if !s.restored {
		return
	}
	blocks := s.pool.Blocks()
	for _, b := range blocks {
		key := blockKey{b.Subnet, b.CIDR}
		if b.State != ipam.Open || !empty(b, now) {
			delete(s.emptySince, key)
			continue
		}
		since, ok := s.emptySince[key]
		if !ok {
			s.emptySince[key] = now
			continue
		}
		wait := emptyLast
		for _, o := range blocks {
			if o.CIDR != b.CIDR && o.Subnet == b.Subnet && o.CIDR.Addr().Is4() == b.CIDR.Addr().Is4() && o.State == ipam.Open {
				wait = emptySpare
			}
		}
		if _, exists := s.subnets[b.Subnet]; !exists {
			wait = 0
		}
		if now.Sub(since) >= wait && s.pool.Close(b.Subnet, b.CIDR, now) {
			blocks = s.pool.Blocks() // Only one of two empty ones is a spare.
			s.unsaved = true
			delete(s.emptySince, key)
			wake(s.kick)
		}
	}
	for _, b := range blocks { // A lost block matters for as long as it holds something.
		if b.State == ipam.Lost && len(b.Allocations) == 0 {
			s.pool.RemoveBlock(b.Subnet, b.CIDR)
		}
	}
}

func empty(b ipam.Block, now time.Time) bool {
	if len(b.Allocations) > 0 || len(b.Lent) > 0 {
		return false
	}
	for _, f := range b.Freed {
		if !f.Dropped || now.Sub(f.At) < ipam.RestTime {
			return false
		}
	}
	return true
}
