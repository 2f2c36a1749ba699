package addresses

import (
	"context"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// observe follows the world, and does every housekeeping interval what time alone
// makes necessary. It never calls the datastore.
func (s *Service) observe(ctx context.Context) {
	prev := &world.Snapshot{}
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		snap, changed := s.World.Snapshot()
		next := s.look(prev, snap)
		prev = snap
		tick.Reset(max(time.Until(next), time.Millisecond))
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look compares two snapshots of the world, and does what is due. It returns when to
// look again even if nothing changes.
func (s *Service) look(prev, snap *world.Snapshot) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	synced := snap.Synced[world.KindBlock]
	if snap.Subnets != prev.Subnets || snap.Synced[world.KindSubnet] != prev.Synced[world.KindSubnet] {
		s.takeSubnets(snap)
		wake(s.room)
	}
	blocks := snap.Blocks != prev.Blocks || synced && !prev.Synced[world.KindBlock]
	if blocks {
		if synced {
			s.compareBlocks(prev, snap)
		}
		s.takeOffers(snap)
		s.roomAppeared() // A block may be free now, or a fixed address.
	}
	networks := snap.NodeNetworks != prev.NodeNetworks || snap.Nodes != prev.Nodes
	if synced && networks {
		for d := range world.Diff(prev.NodeNetworks, snap.NodeNetworks) {
			if d.HasNew {
				s.protectListed(d.Old, d.New)
			}
		}
	}
	due := now.Sub(s.tidied) >= housekeeping
	if snap.AllSynced() && (blocks || networks || due || !s.lookAgain.IsZero() && !now.Before(s.lookAgain)) {
		s.lookAgain = s.considerLoans(snap, now)
		s.findRecalls(snap)
	}
	if due {
		s.tidied = now
		s.closeEmpty(now)
		s.tidyLoans(now)
		wake(s.room)
		if s.stale {
			wake(s.kick)
		}
	}
	next := s.tidied.Add(housekeeping)
	if !s.lookAgain.IsZero() && s.lookAgain.Before(next) {
		return s.lookAgain
	}
	return next
}

// compareBlocks finds own blocks that the world no longer shows as ours, and blocks
// that it shows as ours and that are not known here. The publisher asks the datastore
// which of it is true.
func (s *Service) compareBlocks(prev, snap *world.Snapshot) {
	for _, b := range s.pool.Outline() {
		key := blockKey{b.Subnet, b.CIDR}
		w, ok := snap.Blocks.Get(world.Key{Name: key.name()})
		if ok && w.Node == s.Node && b.State != ipam.Lost {
			continue
		}
		if old, had := prev.Blocks.Get(world.Key{Name: key.name()}); had == ok && old == w && prev.Synced[world.KindBlock] {
			continue // Asked already.
		}
		delete(s.objects, key)
		s.dirty[key] = true
		wake(s.kick)
	}
	for d := range world.Diff(prev.Blocks, snap.Blocks) {
		s.maybeAdopt(d.New)
	}
	if !prev.Synced[world.KindBlock] {
		for b := range snap.Blocks.Values() {
			s.maybeAdopt(b)
		}
	}
}

func (s *Service) maybeAdopt(b *world.Block) {
	if b == nil || b.Node != s.Node || !b.CIDR.IsValid() {
		return
	}
	if _, own := s.pool.Block(b.Subnet, b.CIDR.Masked()); !own {
		s.adopt[blockKey{b.Subnet, b.CIDR.Masked()}] = true
		wake(s.kick)
	}
}

// takeSubnets tells the pool which Subnets there are. One that a checkpoint lacks may
// still exist.
func (s *Service) takeSubnets(snap *world.Snapshot) {
	for key := range s.subnets {
		if _, ok := snap.Subnets.Get(world.Key{Name: key}); !ok && snap.Synced[world.KindSubnet] {
			s.pool.RemoveSubnet(key)
			delete(s.subnets, key)
		}
	}
	for w := range snap.Subnets.Values() {
		if s.subnets[w.Name] != w {
			s.subnets[w.Name] = w
			s.pool.SetSubnet(subnetFrom(w))
			s.roomAppeared()
		}
	}
}

func subnetFrom(w *world.Subnet) ipam.Subnet {
	return ipam.Subnet{
		Name: w.Name, VPC: w.VPC, CIDRs: w.CIDRs, BlockBits4: w.BlockBits4, BlockBits6: w.BlockBits6, Exclude: w.Exclude,
	}
}
