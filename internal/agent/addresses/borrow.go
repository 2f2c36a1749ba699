package addresses

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
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

// maxWanted bounds NodeNetwork.status.wanted.
const maxWanted = 256

// Loans is what the node's NodeNetwork must say about addresses.
type Loans struct {
	// Version of this content, for LoansWritten.
	Version uint64
	// Wanted are names of Subnets that the node needs an address from, or
	// "SUBNET/ADDRESS" for a fixed address; sorted.
	Wanted []string
	// Borrowed are the addresses that the node holds from others' blocks, sorted.
	// Those that nobody uses have the owner "node/NAME/borrowed".
	Borrowed []world.Allocation
}

type wantKey struct {
	subnet string
	addr   netip.Addr // invalid: any
}

func (k wantKey) String() string {
	if !k.addr.IsValid() {
		return k.subnet
	}
	return k.subnet + "/" + k.addr.String()
}

type wish struct {
	waiters int
	until   time.Time // once nobody waits
}

// offer is an address that another node has lent to this one and that is not usable
// yet: it must be listed first, and then be lent still.
type offer struct {
	block blockKey
	// nonce makes this listing differ from every earlier one of the address, so that
	// the NodeNetwork is really written: a write of an older process or attempt that is
	// still under way then fails its compare-and-swap.
	nonce   string
	version uint64 // of the Loans that list it first
	listed  bool
}

type loans struct {
	version uint64
	changed chan struct{}
	wishes  map[wantKey]*wish
	offers  map[subnetAddr]*offer
}

func (l *loans) init() {
	l.version = 1
	l.changed, l.wishes, l.offers = make(chan struct{}), map[wantKey]*wish{}, map[subnetAddr]*offer{}
}

// bump says that the Loans differ from before.
func (l *loans) bump() {
	l.version++
	close(l.changed)
	l.changed = make(chan struct{})
}

// touched bumps if an address is none of an own block.
func (l *loans) touched(p *ipam.Pool, subnet string, a netip.Addr) {
	if _, own := p.BlockOf(subnet, a); !own {
		l.bump()
	}
}

// Loans returns what the NodeNetwork must say, and a channel that is closed when it
// changes. The writer must be one goroutine, which calls LoansWritten after each
// write that succeeded, before it begins the next.
func (s *Service) Loans() (Loans, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Loans{Version: s.loans.version, Borrowed: s.borrowedList()}
	for k := range s.loans.wishes {
		out.Wanted = append(out.Wanted, k.String())
	}
	slices.Sort(out.Wanted)
	out.Wanted = out.Wanted[:min(len(out.Wanted), maxWanted)]
	return out, s.loans.changed
}

// LoansWritten says that the datastore holds the Loans of this version in the node's
// NodeNetwork, and that no write of an older version can arrive any more.
func (s *Service) LoansWritten(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.loans.offers {
		if o.version <= version && !o.listed {
			o.listed = true
			wake(s.kick)
		}
	}
}

// borrowedList is what Loans lists.
func (s *Service) borrowedList() []world.Allocation {
	var out []world.Allocation
	for _, b := range s.pool.Borrowed() {
		a := world.Allocation{Addr: b.Addr, Owner: b.Owner}
		if a.Owner == (world.Owner{}) {
			a.Owner = ipam.UnusedOwner(s.Node)
		}
		out = append(out, a)
	}
	for k, o := range s.loans.offers {
		a := world.Allocation{Addr: k.addr, Owner: ipam.UnusedOwner(s.Node)}
		a.Owner.UID = o.nonce
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b world.Allocation) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Owner.Name, b.Owner.Name))
	})
	return slices.CompactFunc(out, func(a, b world.Allocation) bool { return a.Addr == b.Addr })
}

// want asks other nodes for an address.
func (s *Service) want(k wantKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.loans.wishes[k]
	if w == nil {
		w = &wish{}
		s.loans.wishes[k] = w
		s.loans.bump()
	}
	w.waiters++
	snap, _ := s.World.Snapshot()
	s.takeOffers(snap)
}

// unwant ends a caller's wishes. Unfulfilled ones linger, so that the address is here
// when the caller comes again.
func (s *Service) unwant(keys map[wantKey]bool, linger bool) {
	if len(keys) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range keys {
		w := s.loans.wishes[k]
		if w == nil {
			continue
		}
		w.waiters--
		if linger {
			w.until = time.Now().Add(wantLinger)
		}
		if w.waiters == 0 && !time.Now().Before(w.until) {
			delete(s.loans.wishes, k)
			s.loans.bump()
		}
	}
}

// wanted reports whether somebody here wants an address.
func (s *Service) wanted(subnet string, a netip.Addr) bool {
	return s.loans.wishes[wantKey{subnet, a}] != nil || s.loans.wishes[wantKey{subnet: subnet}] != nil
}

// takeOffers lists what other nodes have lent to this one and somebody wants.
func (s *Service) takeOffers(snap *world.Snapshot) {
	if len(s.loans.wishes) == 0 {
		return
	}
	have := map[subnetAddr]bool{}
	for _, b := range s.pool.Borrowed() {
		have[subnetAddr{b.Subnet, b.Addr}] = true
	}
	for b := range snap.Blocks.Values() {
		if b.Node == s.Node {
			continue
		}
		for _, l := range b.Lent {
			k := subnetAddr{b.Subnet, l.Addr}
			if l.Node != s.Node || have[k] || s.loans.offers[k] != nil || !s.wanted(b.Subnet, l.Addr) {
				continue
			}
			s.loans.bump()
			s.loans.offers[k] = &offer{block: blockKey{b.Subnet, b.CIDR}, version: s.loans.version, nonce: rand.Text()}
		}
	}
}

// tidyLoans forgets wishes that are over and returns addresses that nobody needs.
func (s *Service) tidyLoans(now time.Time) {
	before := s.loans.version
	bump := func() {
		if s.loans.version == before {
			s.loans.bump()
		}
	}
	for k, w := range s.loans.wishes {
		if w.waiters == 0 && !now.Before(w.until) {
			delete(s.loans.wishes, k)
			bump()
		}
	}
	for k := range s.loans.offers {
		if !s.wanted(k.subnet, k.addr) {
			delete(s.loans.offers, k)
			bump()
		}
	}
	for _, b := range s.pool.Borrowed() {
		if b.Stray || !b.Used && s.wanted(b.Subnet, b.Addr) {
			continue
		}
		if s.pool.Return(b.Subnet, b.Addr, now) {
			s.unsaved = true
			bump()
			wake(s.kick)
		}
	}
}

// confirmOffers begins to use what is listed and still lent.
func (s *Service) confirmOffers(ctx context.Context) error {
	s.mu.Lock()
	listed := map[subnetAddr]offer{}
	for k, o := range s.loans.offers {
		if o.listed {
			listed[k] = *o
		}
	}
	s.mu.Unlock()
	for _, k := range slices.SortedFunc(maps.Keys(listed), compareAddrs) {
		o, err := s.getBlock(ctx, listed[k].block)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		lent := err == nil && o.Spec.Node != s.Node && o.Spec.Lent[k.addr.String()] == s.Node && !recalled(o, k.addr)
		s.mu.Lock()
		if cur := s.loans.offers[k]; cur != nil && cur.version == listed[k].version {
			delete(s.loans.offers, k)
			if lent {
				s.pool.Borrow(k.subnet, k.addr, time.Now()) // Listed without a gap: the owner changes nothing in the list.
				s.unsaved = true
				s.roomAppeared()
				s.Logger.Info("address borrowed", "subnet", k.subnet, "address", k.addr, "node", o.Spec.Node)
			} else {
				s.loans.bump()
			}
		}
		s.mu.Unlock()
	}
	return nil
}

func compareAddrs(a, b subnetAddr) int {
	return cmp.Or(cmp.Compare(a.subnet, b.subnet), a.addr.Compare(b.addr))
}

// recalled reports whether the owner is taking an address back.
func recalled(o *v1alpha1.IPBlock, a netip.Addr) bool {
	return slices.Contains(strings.Split(o.Annotations[v1alpha1.AnnotationRecall], ","), a.String())
}

// getBlock reads an IPBlock from the datastore itself.
func (s *Service) getBlock(ctx context.Context, key blockKey) (*v1alpha1.IPBlock, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := s.Store.Get(ctx, datastore.KindIPBlock, datastore.Key{Name: key.name()})
	if err != nil {
		return nil, err
	}
	b, ok := o.(*v1alpha1.IPBlock)
	if !ok {
		return nil, apierrors.NewBadRequest("the datastore returned something that is no IPBlock")
	}
	return b, nil
}
