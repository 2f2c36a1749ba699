package addresses

import (
	"cmp"
	"context"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// lenderKey is what one other node wants.
type lenderKey struct {
	node   string
	subnet string
	family ipam.Family
}

// considerLoans lends to nodes that want an address. It returns when to look again;
// zero if nothing is pending.
func (s *Service) considerLoans(snap *world.Snapshot, now time.Time) time.Time {
	if !s.restored {
		return time.Time{}
	}
	pending := map[lenderKey]bool{}
	again := time.Time{}
	later := func(t time.Time) {
		if again.IsZero() || t.Before(again) {
			again = t
		}
	}
	for n := range snap.NodeNetworks.Values() {
		if n.Name == s.Node {
			continue
		}
		for _, entry := range n.Wanted {
			subnet, fixed, isFixed := strings.Cut(entry, "/")
			sn, ok := s.subnetOf(subnet)
			if !ok {
				continue
			}
			if isFixed {
				if a, err := netip.ParseAddr(fixed); err == nil {
					s.lendFixed(subnet, a, n.Name, now, later)
				}
				continue
			}
			for _, f := range ipam.Families() {
				key := lenderKey{n.Name, subnet, f}
				if sn.Has(f) && s.needs(snap, sn, f, n) {
					pending[key] = true
					s.lendAny(snap, sn, key, now, later)
				}
			}
		}
	}
	for k := range s.wantSeen {
		if !pending[k] {
			delete(s.wantSeen, k)
		}
	}
	return again
}

func (s *Service) subnetOf(name string) (ipam.Subnet, bool) {
	w, ok := s.subnets[name]
	if !ok {
		return ipam.Subnet{}, false
	}
	return subnetFrom(w), true
}

// needs reports whether a node that wants an address of a Subnet can only have it as
// a loan, and has no unused one on its way.
func (s *Service) needs(snap *world.Snapshot, sn ipam.Subnet, f ipam.Family, n *world.NodeNetwork) bool {
	if _, free := ipam.NextBlock(sn, s.taken(snap, sn.Name, nil), n.Name, f); free {
		return false
	}
	for _, b := range s.subnetBlocks(snap, sn.Name) {
		for _, l := range b.Lent {
			if l.Node == n.Name && ipam.FamilyOf(l.Addr) == f && !usedBy(n, l.Addr) {
				return false
			}
		}
	}
	return true
}

// usedBy reports whether a node lists an address with a real owner.
func usedBy(n *world.NodeNetwork, a netip.Addr) bool {
	return slices.ContainsFunc(n.Borrowed, func(b world.Allocation) bool { return b.Addr == a && !ipam.IsUnused(b.Owner) })
}

func lists(n *world.NodeNetwork, a netip.Addr) bool {
	return slices.ContainsFunc(n.Borrowed, func(b world.Allocation) bool { return b.Addr == a })
}

// subnetBlocks are the blocks of a Subnet: own ones by the pool, others by the world.
func (s *Service) subnetBlocks(snap *world.Snapshot, subnet string) []*world.Block {
	var out []*world.Block
	for b := range snap.Blocks.Values() {
		if b.Subnet == subnet && b.Node != s.Node {
			out = append(out, b)
		}
	}
	for _, b := range s.pool.Blocks() {
		if b.Subnet == subnet && b.State == ipam.Open {
			out = append(out, &world.Block{Subnet: subnet, CIDR: b.CIDR, Node: s.Node, Allocations: b.Allocations, Lent: b.Lent})
		}
	}
	return out
}

// lendAny lends one address, in turn with the other nodes that could: the first at
// once, each of the others only if those before it did not.
func (s *Service) lendAny(snap *world.Snapshot, sn ipam.Subnet, key lenderKey, now time.Time, later func(time.Time)) {
	since, seen := s.wantSeen[key]
	if !seen {
		since = now
		s.wantSeen[key] = now
	}
	lenders := slices.DeleteFunc(ipam.Lenders(sn, key.family, s.subnetBlocks(snap, sn.Name)), func(n string) bool { return n == key.node })
	slices.SortFunc(lenders, func(a, b string) int {
		return cmp.Or(cmp.Compare(pairHash(key.node, a), pairHash(key.node, b)), cmp.Compare(a, b))
	})
	turn := slices.Index(lenders, s.Node)
	if turn < 0 {
		return
	}
	if at := since.Add(time.Duration(turn) * lenderStep); now.Before(at) {
		later(at)
		return
	}
	a, cidr, err := s.pool.Lend(sn.Name, key.family, key.node, now)
	if err != nil {
		later(now.Add(time.Second)) // What rests will be free.
		return
	}
	s.lent(sn.Name, cidr, a, key.node)
	delete(s.wantSeen, key)
}

// lendFixed lends one particular address.
func (s *Service) lendFixed(subnet string, a netip.Addr, to string, now time.Time, later func(time.Time)) {
	for _, b := range s.pool.Blocks() {
		if b.Subnet != subnet || !b.CIDR.Contains(a) {
			continue
		}
		if slices.ContainsFunc(b.Lent, func(l world.Loan) bool { return l.Addr == a }) {
			return
		}
		if cidr, err := s.pool.LendAddr(subnet, a, to, now); err == nil {
			s.lent(subnet, cidr, a, to)
		} else {
			later(now.Add(time.Second))
		}
	}
}

func (s *Service) lent(subnet string, cidr netip.Prefix, a netip.Addr, to string) {
	s.dirty[blockKey{subnet, cidr}] = true
	s.unsaved = true
	wake(s.kick)
	s.Logger.Info("address lent", "subnet", subnet, "address", a, "to", to)
}

func pairHash(a, b string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(a + "\x00" + b))
	v := h.Sum64()
	v ^= v >> 32
	v *= 0xd6e8feb86659fd93
	return v ^ v>>32
}

// findRecalls collects loans that the world says the borrower neither lists nor wants;
// recall makes sure.
func (s *Service) findRecalls(snap *world.Snapshot) {
	found := false
	for _, b := range s.pool.Outline() {
		if b.State != ipam.Open || len(b.Lent) == 0 {
			continue
		}
		key := blockKey{b.Subnet, b.CIDR}
		delete(s.recalls, key)
		for _, l := range b.Lent {
			n, ok := snap.NodeNetworks.Get(world.Key{Name: l.Node})
			_, lives := snap.Nodes.Get(world.Key{Name: l.Node})
			if ok && lives && (lists(n, l.Addr) || wants(n, b.Subnet, l.Addr)) {
				continue
			}
			if !ok && lives { // It has not said yet what it holds.
				continue
			}
			s.recalls[key] = append(s.recalls[key], l.Addr)
			found = true
		}
	}
	if found {
		wake(s.kick)
	}
}

func wants(n *world.NodeNetwork, subnet string, a netip.Addr) bool {
	return slices.Contains(n.Wanted, subnet) || slices.Contains(n.Wanted, wantKey{subnet, a}.String())
}

// protectListed marks as lent what a node has newly listed of this node's blocks: it
// has been lent by an earlier life of this node that left no trace here.
func (s *Service) protectListed(old, n *world.NodeNetwork) {
	if n.Name == s.Node {
		return
	}
	for _, a := range n.Borrowed {
		if ipam.IsUnused(a.Owner) || old != nil && lists(old, a.Addr) {
			continue
		}
		for _, b := range s.pool.Blocks() {
			if !b.CIDR.Contains(a.Addr) || b.State != ipam.Open {
				continue
			}
			if slices.ContainsFunc(b.Lent, func(l world.Loan) bool { return l.Addr == a.Addr }) {
				continue
			}
			if err := s.pool.MarkLent(b.Subnet, a.Addr, n.Name); err != nil {
				s.conflicts[subnetAddr{b.Subnet, a.Addr}] = "node " + n.Name + " says that it has borrowed it: " + err.Error()
				continue
			}
			s.lent(b.Subnet, b.CIDR, a.Addr, n.Name)
		}
	}
}

// recall takes loans back by the owner's half of the protocol: mark them in the block,
// then read what the borrower lists, then end those that it does not.
func (s *Service) recall(ctx context.Context, key blockKey, b ipam.Block, addrs []netip.Addr) error {
	o, fresh, err := s.current(ctx, key)
	if apierrors.IsNotFound(err) {
		return s.reclaim(ctx, key, b)
	}
	if err != nil {
		return err
	}
	if fresh || o.Spec.Node != s.Node { // Know it first; the recall comes round again.
		return s.syncBlock(ctx, key, b)
	}
	marked := s.desired(o, b)
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	if marked.Annotations == nil {
		marked.Annotations = map[string]string{}
	}
	marked.Annotations[v1alpha1.AnnotationRecall] = strings.Join(texts, ",")
	s.remember(key, nil)
	s.markDirty(key) // Whatever happens now, the mark is taken away.
	stored, err := s.update(ctx, marked)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	back, err := s.unlisted(ctx, b, addrs)
	if err != nil {
		return err
	}
	next := s.desired(stored, b)
	for _, a := range back {
		delete(next.Spec.Lent, a.String())
	}
	if len(next.Spec.Lent) == 0 {
		next.Spec.Lent = nil
	}
	stored, err = s.update(ctx, next)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	s.remember(key, stored)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range back {
		s.pool.TakeBack(key.subnet, a, time.Now())
		s.takenBack = append(s.takenBack, subnetAddr{key.subnet, a})
		delete(s.conflicts, subnetAddr{key.subnet, a})
		s.Logger.Info("address taken back", "subnet", key.subnet, "address", a)
	}
	s.unsaved = true
	s.roomAppeared()
	return nil
}

func (s *Service) markDirty(key blockKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty[key] = true
	wake(s.kick)
}

// unlisted reads the borrowers from the datastore, and returns those of addrs that
// their borrower does not list, or whose borrower's Node is gone.
func (s *Service) unlisted(ctx context.Context, b ipam.Block, addrs []netip.Addr) ([]netip.Addr, error) {
	listed := map[string]map[string]bool{} // by node; nil: keep all of it
	var out []netip.Addr
	for _, l := range b.Lent {
		if !slices.Contains(addrs, l.Addr) {
			continue
		}
		if _, known := listed[l.Node]; !known {
			set, err := s.listedBy(ctx, l.Node)
			if err != nil {
				return nil, err
			}
			listed[l.Node] = set
		}
		if set := listed[l.Node]; set != nil && !set[l.Addr.String()] {
			out = append(out, l.Addr)
		}
	}
	return out, nil
}

// listedBy is what a node's NodeNetwork lists as borrowed: nothing if its Node is gone,
// nil if it cannot be told.
func (s *Service) listedBy(ctx context.Context, node string) (map[string]bool, error) {
	gone, err := s.nodeGone(ctx, node)
	if err != nil || gone {
		return map[string]bool{}, err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := s.Store.Get(call, datastore.KindNodeNetwork, datastore.Key{Name: node})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n, ok := o.(*v1alpha1.NodeNetwork)
	if !ok {
		return nil, nil
	}
	set := map[string]bool{}
	for a := range n.Status.Borrowed {
		if addr, err := netip.ParseAddr(a); err == nil {
			set[addr.String()] = true
		}
	}
	return set, nil
}
