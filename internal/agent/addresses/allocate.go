package addresses

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Allocate implements attach.Addresses. Its error wraps an *ipam.Error where one says
// why. A full Subnet wraps attach.ErrSubnetFull; what no later attempt can change is
// an *attach.Error with Refused; all else may succeed later.
func (s *Service) Allocate(ctx context.Context, r attach.AddressRequest) ([]netip.Addr, error) {
	deadline := time.Now().Add(lendWait)
	wishes := map[wantKey]bool{}
	for {
		addrs, changed, err := s.try(r)
		if err == nil {
			s.unwant(wishes, false)
			s.secure()
			return addrs, nil
		}
		var e *ipam.Error
		if !errors.As(err, &e) {
			return nil, err
		}
		again, err := s.makeRoom(ctx, e, changed)
		if err == nil && !again {
			err = s.await(ctx, e, changed, deadline, wishes)
		}
		if err != nil {
			s.unwant(wishes, true)
			return nil, err
		}
	}
}

// try allocates from memory. The channel is closed when it is worth another try.
func (s *Service) try(r attach.AddressRequest) ([]netip.Addr, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.restored {
		return nil, nil, errors.New("allocate an address: the node's records are not read yet")
	}
	// The caller may have seen a Subnet that the service has not come to yet.
	snap, _ := s.World.Snapshot()
	if w, ok := snap.Subnets.Get(world.Key{Name: r.Subnet}); ok && s.subnets[r.Subnet] != w {
		s.takeSubnets(snap)
		wake(s.room)
	}
	s.reserveTunnels(r.Subnet)
	addrs, err := s.pool.Allocate(r, time.Now())
	if err != nil {
		return nil, s.changed, err
	}
	s.lastPod[r.Subnet] = time.Now()
	for _, a := range addrs {
		s.touch(r.Subnet, a)
		s.loans.touched(s.pool, r.Subnet, a)
	}
	return addrs, nil, nil
}

// makeRoom does what may help against an error of the pool: it claims a block. True:
// try again at once. An error: nothing helps.
func (s *Service) makeRoom(ctx context.Context, e *ipam.Error, changed <-chan struct{}) (bool, error) {
	switch {
	case errors.Is(e, ipam.ErrNoRoom) && !e.Addr.IsValid(), errors.Is(e, ipam.ErrLost) && !e.Addr.IsValid(),
		errors.Is(e, ipam.ErrResting) && !e.Addr.IsValid():
		return s.claim(ctx, poolKey{e.Subnet, e.Family}, netip.Addr{}, changed)
	case errors.Is(e, ipam.ErrNotOwned):
		return s.claim(ctx, poolKey{e.Subnet, e.Family}, e.Addr, changed)
	case errors.Is(e, ipam.ErrResting): // One address: only time helps.
		return false, nil
	case errors.Is(e, ipam.ErrOutside), errors.Is(e, ipam.ErrExcluded), errors.Is(e, ipam.ErrInvalid):
		return false, &attach.Error{Reason: attach.Refused, Message: "allocate an address", Err: e}
	}
	return false, fmt.Errorf("allocate an address: %w", e)
}

// await waits until room may have appeared. It returns an error when waiting is over
// or useless.
func (s *Service) await(ctx context.Context, e *ipam.Error, changed <-chan struct{}, deadline time.Time, wishes map[wantKey]bool) error {
	if err := s.hopeless(e); err != nil {
		return err
	}
	if key := (wantKey{e.Subnet, e.Addr}); !wishes[key] {
		wishes[key] = true
		s.want(key)
	}
	wait := time.Until(deadline)
	if !e.Until.IsZero() {
		if ready := time.Until(e.Until); ready < wait {
			wait = max(ready, 0) + time.Millisecond
		}
	}
	if !time.Now().Before(deadline) {
		return s.tooLong(e)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return errors.Join(s.tooLong(e), ctx.Err())
	}
	return nil
}

func (s *Service) tooLong(e *ipam.Error) error {
	if errors.Is(e, ipam.ErrResting) {
		return fmt.Errorf("allocate an address: %w", e)
	}
	return fmt.Errorf("allocate an address: no node has lent one in time: %w", e)
}

// hopeless says why waiting cannot help: the address has another holder, or every
// address of the Subnet is in use.
func (s *Service) hopeless(e *ipam.Error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, _ := s.World.Snapshot()
	if e.Addr.IsValid() {
		for b := range snap.Blocks.Values() {
			if b.Subnet != e.Subnet || !b.CIDR.Contains(e.Addr) {
				continue
			}
			for _, a := range b.Allocations {
				if a.Addr == e.Addr && b.Node != s.Node {
					return fmt.Errorf("allocate an address: %w", &ipam.Error{Err: ipam.ErrTaken, Subnet: e.Subnet, Addr: e.Addr, Owner: a.Owner})
				}
			}
			for _, l := range b.Lent {
				if l.Addr == e.Addr && l.Node != s.Node {
					return fmt.Errorf("allocate an address: %w", &ipam.Error{Err: ipam.ErrTaken, Subnet: e.Subnet, Addr: e.Addr, Node: l.Node})
				}
			}
		}
		return nil
	}
	for _, sn := range s.pool.Subnets() {
		if sn.Name != e.Subnet {
			continue
		}
		own := s.pool.Usage(sn.Name, e.Family, time.Now())
		if u := s.subnetUsage(snap, sn, e.Family); u.Free == 0 && own.Resting == 0 {
			return fmt.Errorf("allocate an address: %w: %w", attach.ErrSubnetFull, u.Full())
		}
	}
	return nil
}

// claim makes a block of a Subnet this node's: that of a fixed address, or any. One
// claim a Subnet and family is under way at a time. It reports whether the pool may
// have room now; false if there is no free block.
func (s *Service) claim(ctx context.Context, key poolKey, fixed netip.Addr, changed <-chan struct{}) (bool, error) {
	release, err := s.claimTurn(ctx, key)
	if err != nil {
		return false, err
	}
	defer release()
	select {
	case <-changed: // Somebody else may have claimed meanwhile.
		return true, nil
	default:
	}
	var tried []netip.Prefix
	for {
		cidr, ok := s.candidate(key, fixed, tried)
		if !ok {
			return false, nil
		}
		o := &v1alpha1.IPBlock{Spec: v1alpha1.IPBlockSpec{Subnet: key.subnet, CIDR: cidr.String(), Node: s.Node}}
		o.Name = v1alpha1.BlockName(key.subnet, cidr)
		call, cancel := context.WithTimeout(ctx, callTimeout)
		stored, err := s.Store.Create(call, o)
		cancel()
		switch {
		case err == nil:
			s.claimed(blockKey{key.subnet, cidr}, stored)
			return true, nil
		case apierrors.IsAlreadyExists(err):
			s.mu.Lock()
			s.adopt[blockKey{key.subnet, cidr}] = true // An earlier claim of ours may have arrived unseen.
			s.mu.Unlock()
			wake(s.kick)
			tried = append(tried, cidr)
		default:
			return false, fmt.Errorf("claim block %s of Subnet %s: the datastore does not answer as needed, try again later: %w", cidr, key.subnet, err)
		}
	}
}

// claimTurn waits until no other claim for the key is under way.
func (s *Service) claimTurn(ctx context.Context, key poolKey) (func(), error) {
	s.mu.Lock()
	turn := s.claiming[key]
	if turn == nil {
		turn = make(chan struct{}, 1)
		s.claiming[key] = turn
	}
	s.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("claim a block of Subnet %s: another claim is under way: %w", key.subnet, ctx.Err())
	}
}

// candidate is the block to claim next.
func (s *Service) candidate(key poolKey, fixed netip.Addr, taken []netip.Prefix) (netip.Prefix, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, _ := s.World.Snapshot()
	taken = s.taken(snap, key.subnet, taken)
	for _, sn := range s.pool.Subnets() {
		switch {
		case sn.Name != key.subnet:
		case fixed.IsValid():
			cidr, ok := sn.BlockOf(fixed)
			for _, t := range taken {
				ok = ok && !t.Overlaps(cidr)
			}
			return cidr, ok
		default:
			return ipam.NextBlock(sn, taken, s.Node, key.family)
		}
	}
	return netip.Prefix{}, false
}

// taken are the blocks of a Subnet that have an owner.
func (s *Service) taken(snap *world.Snapshot, subnet string, more []netip.Prefix) []netip.Prefix {
	for b := range snap.Blocks.Values() {
		if b.Subnet == subnet {
			more = append(more, b.CIDR)
		}
	}
	for _, b := range s.pool.Blocks() {
		if b.Subnet == subnet {
			more = append(more, b.CIDR)
		}
	}
	return more
}

// claimed takes a block that the datastore has just given to this node, and shows it
// to the plane at once.
func (s *Service) claimed(key blockKey, stored datastore.Object) {
	o, ok := stored.(*v1alpha1.IPBlock)
	if !ok {
		return
	}
	s.mu.Lock()
	s.note(s.pool.AddBlock(ipam.Block{Subnet: key.subnet, CIDR: key.cidr, Node: s.Node}, time.Now()))
	s.objects[key] = o
	s.unsaved = true
	s.roomAppeared()
	s.mu.Unlock()
	s.showBlock(o)
	s.Logger.Info("block claimed", "subnet", key.subnet, "block", key.cidr)
	wake(s.kick)
	wake(s.room)
}

// Cancel implements attach.Addresses.
func (s *Service) Cancel(l attach.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each(l, func(subnet string, a netip.Addr) bool { return s.pool.Cancel(subnet, a, l.Owner, time.Now()) })
	s.roomAppeared()
}

// Release implements attach.Addresses.
func (s *Service) Release(l attach.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each(l, func(subnet string, a netip.Addr) bool { return s.pool.Release(subnet, a, l.Owner, time.Now()) })
}

// Dropped implements attach.Addresses.
func (s *Service) Dropped(l attach.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each(l, func(subnet string, a netip.Addr) bool {
		s.pool.Dropped(subnet, a)
		return false
	})
	s.roomAppeared() // Waiters look again, and learn how long it rests.
}

// each calls f for every address of a lease, in every Subnet if the lease names none,
// and marks for publication where f says that something changed.
func (s *Service) each(l attach.Lease, f func(subnet string, a netip.Addr) bool) {
	subnets := []string{l.Subnet}
	if l.Subnet == "" {
		subnets = nil
		for _, sn := range s.pool.Subnets() {
			subnets = append(subnets, sn.Name)
		}
	}
	for _, a := range l.Addresses {
		if l.Subnet == "" {
			s.pool.Unbar(a, time.Now())
		}
		for _, subnet := range subnets {
			delete(s.conflicts, subnetAddr{subnet, a})
			if f(subnet, a) {
				s.touch(subnet, a)
				s.loans.touched(s.pool, subnet, a)
			}
		}
	}
}
