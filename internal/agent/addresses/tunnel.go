package addresses

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// tunnelRetry is how long the loop waits before it tries again for a tunnel address
// that could not be had.
const tunnelRetry = 2 * time.Second

type tunnelKey struct {
	subnet string
	family ipam.Family
}

// tunnel is an address of this node itself. It is shown to the plane once it is saved.
type tunnel struct {
	addr         netip.Addr
	saved, shown bool
}

func sortedTunnels(m map[tunnelKey]*tunnel) []tunnelKey {
	return slices.SortedFunc(maps.Keys(m), compareTunnels)
}

func compareTunnels(a, b tunnelKey) int {
	return cmp.Or(cmp.Compare(a.subnet, b.subnet), cmp.Compare(a.family, b.family))
}

func worldKey(subnet string, a netip.Addr) world.Key {
	return world.Key{Namespace: subnet, Name: a.String()}
}

// restoreTunnel takes a tunnel address of an earlier process.
func (s *Service) restoreTunnel(subnet string, a netip.Addr) {
	conflicts := s.pool.Restore([]ipam.Record{{Subnet: subnet, Addr: a, Owner: ipam.TunnelOwner(s.Node)}})
	s.note(conflicts)
	if len(conflicts) == 0 {
		s.tunnels[tunnelKey{subnet, ipam.FamilyOf(a)}] = &tunnel{addr: a}
		s.unsaved = true
		wake(s.kick)
	}
}

// needsTunnel reports whether this node needs an address of its own in a Subnet: it
// has a block of it with pods, or the Subnet is the oldest Overlay Subnet of its VPC,
// so that a node without pods can reach the VPC too. coming: a pod is about to get an
// address there.
func (s *Service) needsTunnel(k tunnelKey, coming bool) bool {
	w, ok := s.subnets[k.subnet]
	if !ok || w.Transport != world.Overlay || !subnetFrom(w).Has(k.family) {
		return false
	}
	if s.home(w.VPC, k.family) == k.subnet {
		return true
	}
	u := s.pool.Usage(k.subnet, k.family, time.Now())
	if u.Blocks == 0 {
		return false
	}
	last, had := s.lastPod[k.subnet]
	return coming || u.Used > 0 || had && time.Since(last) < emptySpare
}

// home is the oldest Overlay Subnet of a VPC that has a family.
func (s *Service) home(vpc string, f ipam.Family) string {
	var oldest *world.Subnet
	for _, w := range s.subnets {
		if w.VPC != vpc || w.Transport != world.Overlay || !subnetFrom(w).Has(f) {
			continue
		}
		if oldest == nil || cmp.Or(w.Created.Compare(oldest.Created), cmp.Compare(w.Name, oldest.Name)) < 0 {
			oldest = w
		}
	}
	if oldest == nil {
		return ""
	}
	return oldest.Name
}

// reserveTunnels takes this node's own addresses before a pod of the Subnet gets the
// last ones.
func (s *Service) reserveTunnels(subnet string) {
	for _, f := range ipam.Families() {
		if k := (tunnelKey{subnet, f}); s.tunnels[k] == nil && s.needsTunnel(k, true) {
			_ = s.takeTunnel(k) // Without room the pod's own request says so.
		}
	}
}

// takeTunnel allocates a tunnel address from memory.
func (s *Service) takeTunnel(k tunnelKey) error {
	addrs, err := s.pool.Allocate(ipam.Request{
		Subnet: k.subnet, V4: k.family == ipam.IPv4, V6: k.family == ipam.IPv6, Owner: ipam.TunnelOwner(s.Node),
	}, time.Now())
	if err != nil {
		return err
	}
	s.tunnels[k] = &tunnel{addr: addrs[0]}
	s.unsaved = true
	s.touch(k.subnet, addrs[0])
	s.loans.touched(s.pool, k.subnet, addrs[0])
	return nil
}

// tunnelsSaved are those that the state being saved now holds for the first time.
func (s *Service) tunnelsSaved() []*tunnel {
	var out []*tunnel
	for _, t := range s.tunnels {
		if !t.saved {
			out = append(out, t)
		}
	}
	return out
}

// showTunnels puts saved tunnel addresses into the world.
func (s *Service) showTunnels() {
	s.mu.Lock()
	var changes []world.Change
	for _, k := range sortedTunnels(s.tunnels) {
		if t := s.tunnels[k]; t.saved && !t.shown {
			t.shown = true
			changes = append(changes, world.Change{
				Kind: world.KindTunnelAddress, Key: worldKey(k.subnet, t.addr),
				Object: &world.TunnelAddress{Subnet: k.subnet, Addr: t.addr},
			})
		}
	}
	s.mu.Unlock()
	if len(changes) > 0 {
		s.World.Apply(changes...)
	}
}

// keepTunnels sees to it that the node has the tunnel addresses it needs, and no other.
func (s *Service) keepTunnels(ctx context.Context, g *errgroup.Group) {
	for {
		missing, ended := s.reviewTunnels()
		for _, e := range ended {
			g.Go(func() error { s.endTunnel(ctx, e); return nil })
		}
		failed := false
		for _, k := range missing {
			failed = s.obtainTunnel(ctx, k) != nil || failed
		}
		if failed {
			if !pause(ctx, tunnelRetry) {
				return
			}
			continue
		}
		select {
		case <-s.room:
		case <-ctx.Done():
			return
		}
	}
}

// endedTunnel is a tunnel address that is not needed any more.
type endedTunnel struct {
	vpc, subnet string
	addr        netip.Addr
}

// reviewTunnels releases tunnel addresses that are not needed, and returns them and the
// keys of those that are missing.
func (s *Service) reviewTunnels() (missing []tunnelKey, ended []endedTunnel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.restored {
		return nil, nil
	}
	snap, _ := s.World.Snapshot()
	for _, k := range sortedTunnels(s.tunnels) {
		if !snap.Synced[world.KindSubnet] || s.needsTunnel(k, false) {
			continue
		}
		e := endedTunnel{subnet: k.subnet, addr: s.tunnels[k].addr}
		if w := s.subnets[k.subnet]; w != nil {
			e.vpc = w.VPC
		}
		delete(s.tunnels, k)
		s.pool.Release(k.subnet, e.addr, ipam.TunnelOwner(s.Node), time.Now())
		s.touch(k.subnet, e.addr)
		s.loans.touched(s.pool, k.subnet, e.addr)
		s.unsaved = true
		ended = append(ended, e)
	}
	for name := range s.subnets {
		for _, f := range ipam.Families() {
			if k := (tunnelKey{name, f}); s.tunnels[k] == nil && s.needsTunnel(k, false) {
				missing = append(missing, k)
			}
		}
	}
	slices.SortFunc(missing, compareTunnels)
	return missing, ended
}

// endTunnel takes a tunnel address from the plane; it rests until the plane has
// dropped it.
func (s *Service) endTunnel(ctx context.Context, e endedTunnel) {
	after := s.World.Apply(world.Change{Kind: world.KindTunnelAddress, Key: worldKey(e.subnet, e.addr)})
	if s.Applied != nil {
		err := s.Applied.Wait(ctx, after.Revision, intent.TunnelAddress{VPC: e.vpc, Subnet: e.subnet, Addr: e.addr}.Ref())
		if err != nil && ctx.Err() == nil {
			s.Logger.Warn("the plane has not let go of a tunnel address: it stays reserved until the agent restarts",
				"subnet", e.subnet, "address", e.addr, "err", err)
		}
		if err != nil {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.Dropped(e.subnet, e.addr)
}

// obtainTunnel gets a tunnel address as a pod would.
func (s *Service) obtainTunnel(ctx context.Context, k tunnelKey) error {
	ctx, cancel := context.WithTimeout(ctx, lendWait)
	defer cancel()
	wishes := map[wantKey]bool{}
	deadline := time.Now().Add(lendWait)
	for {
		s.mu.Lock()
		var err error
		if s.tunnels[k] == nil {
			err = s.takeTunnel(k)
		}
		changed := s.changed
		s.mu.Unlock()
		if err == nil {
			s.unwant(wishes, false)
			return nil
		}
		var e *ipam.Error
		if !errors.As(err, &e) {
			return err
		}
		again, err := s.makeRoom(ctx, e, changed)
		if err == nil && !again {
			err = s.await(ctx, e, changed, deadline, wishes)
		}
		if err != nil {
			s.unwant(wishes, true)
			s.Logger.Debug("no tunnel address yet", "subnet", k.subnet, "family", k.family, "err", err)
			return err
		}
	}
}
