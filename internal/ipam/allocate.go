package ipam

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Request asks for the addresses of one attachment.
type Request struct {
	Subnet string
	// V4 and V6 choose the families; neither means every family of the Subnet.
	V4, V6 bool
	// Want are fixed addresses, at most one a family.
	Want  []netip.Addr
	Owner world.Owner
}

// Record is an address that a durable record holds.
type Record struct {
	Subnet string
	Addr   netip.Addr
	Owner  world.Owner
}

// Restore takes what the durable records hold; they are the truth. A record for an
// address that another record has, or that is lent away, is returned with
// ErrTaken; the first record (in the order given) keeps it, and nobody else can get it.
func (p *Pool) Restore(records []Record) []*Error {
	var conflicts []*Error
	for _, r := range records {
		s := p.subnet(r.Subnet)
		if o, ok := s.holder(r.Addr); ok {
			if o != r.Owner {
				conflicts = append(conflicts, &Error{Err: ErrTaken, Subnet: r.Subnet, Addr: r.Addr, Owner: o})
			}
			continue
		}
		b := s.blockOf(r.Addr)
		if br := s.borrowed[r.Addr]; b == nil && br != nil {
			br.owner, br.used = r.Owner, true
			continue
		}
		if b == nil {
			s.strays[r.Addr] = r.Owner
			continue
		}
		if n, lent := b.lent[r.Addr]; lent {
			conflicts = append(conflicts, &Error{Err: ErrTaken, Subnet: r.Subnet, Addr: r.Addr, Node: n})
		}
		b.alloc[r.Addr] = r.Owner
		delete(b.freed, r.Addr)
	}
	return conflicts
}

// holder is who has an address here.
func (s *subnetState) holder(a netip.Addr) (world.Owner, bool) {
	if b := s.blockOf(a); b != nil {
		o, ok := b.alloc[a]
		return o, ok
	}
	if br := s.borrowed[a]; br != nil && br.owner != (world.Owner{}) {
		return br.owner, true
	}
	o, ok := s.strays[a]
	return o, ok
}

// Allocate gives one address a family, IPv4 first: all of them or none. Its error is
// an *Error.
func (p *Pool) Allocate(r Request, now time.Time) ([]netip.Addr, error) {
	s := p.subnets[r.Subnet]
	if s == nil || !s.known {
		return nil, &Error{Err: ErrUnknownSubnet, Subnet: r.Subnet}
	}
	wants, err := s.families(r)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, w := range wants {
		a := w.addr
		var err *Error
		if a.IsValid() {
			err = s.canHave(a, now)
		} else {
			a, err = s.any(w.family, now)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	for _, a := range out {
		s.give(a, r.Owner)
	}
	return out, nil
}

type want struct {
	family Family
	addr   netip.Addr // invalid: any
}

// families lists what a request asks for.
func (s *subnetState) families(r Request) ([]want, *Error) {
	bad := func(why string) ([]want, *Error) {
		return nil, &Error{Err: ErrInvalid, Subnet: r.Subnet, Detail: why}
	}
	if r.Owner.Name == "" {
		return bad("the owner has no name")
	}
	fixed := map[Family]netip.Addr{}
	for _, a := range r.Want {
		f := FamilyOf(a)
		if fixed[f].IsValid() {
			return bad("more than one fixed " + f.String() + " address is asked for")
		}
		if _, ok := s.CIDROf(a); !ok {
			return nil, &Error{Err: ErrOutside, Subnet: r.Subnet, Addr: a}
		}
		fixed[f] = a
	}
	var out []want
	for _, f := range Families() {
		asked := r.V4 && f == IPv4 || r.V6 && f == IPv6
		if asked && !s.Has(f) {
			return bad("it has no " + f.String() + " CIDR")
		}
		if asked || fixed[f].IsValid() || !r.V4 && !r.V6 && s.Has(f) {
			out = append(out, want{f, fixed[f]})
		}
	}
	if len(out) == 0 {
		return bad("it has no valid CIDR")
	}
	return out, nil
}

// any finds the next free address: own blocks in their order, then unused loans.
func (s *subnetState) any(f Family, now time.Time) (netip.Addr, *Error) {
	for _, b := range s.blocks {
		if FamilyOf(b.cidr.Addr()) != f {
			continue
		}
		if a, ok := b.peek(s, now); ok {
			return a, nil
		}
	}
	for _, a := range sortedAddrs(s.borrowed) {
		if br := s.borrowed[a]; FamilyOf(a) == f && !br.used && s.usableAddr(a) {
			return a, nil
		}
	}
	return netip.Addr{}, s.none(f, now)
}

// none says why no address of a family can be had.
func (s *subnetState) none(f Family, now time.Time) *Error {
	resting, until := false, time.Time{}
	var lost *block
	for _, b := range s.blocks {
		if FamilyOf(b.cidr.Addr()) != f {
			continue
		}
		if b.state == Lost {
			lost = b
		}
		if b.state != Open || len(b.alloc)+len(b.lent) >= MaxPerBlock {
			continue
		}
		for _, fr := range b.freed {
			if fr.ready(now) || !s.usableAddr(fr.Addr) {
				continue
			}
			resting = true
			if at := fr.At.Add(RestTime); fr.Dropped && (until.IsZero() || at.Before(until)) {
				until = at
			}
		}
	}
	switch {
	case resting:
		return &Error{Err: ErrResting, Subnet: s.Name, Family: f, Until: until}
	case lost != nil:
		return &Error{Err: ErrLost, Subnet: s.Name, Family: f, Block: lost.cidr}
	}
	return &Error{Err: ErrNoRoom, Subnet: s.Name, Family: f}
}

// canHave says why one address cannot be given: nil if it can.
func (s *subnetState) canHave(a netip.Addr, now time.Time) *Error {
	e := &Error{Subnet: s.Name, Addr: a, Family: FamilyOf(a)}
	if _, ok := s.CIDROf(a); !ok {
		e.Err = ErrOutside
		return e
	}
	if e.Detail = s.Excluded(a); e.Detail != "" {
		e.Err = ErrExcluded
		return e
	}
	if o, ok := s.holder(a); ok {
		e.Err, e.Owner = ErrTaken, o
		return e
	}
	if s.barred[a] {
		e.Err, e.Owner = ErrTaken, world.Owner{Name: "a record that cannot be read"}
		return e
	}
	b := s.blockOf(a)
	if b == nil {
		br := s.borrowed[a]
		switch {
		case br == nil:
			e.Err = ErrNotOwned
		case br.used:
			e.Err = ErrResting
			if br.freed.Dropped {
				e.Until = br.freed.At.Add(RestTime)
			}
		default:
			return nil
		}
		return e
	}
	if n, lent := b.lent[a]; lent {
		e.Err, e.Node = ErrTaken, n
		return e
	}
	if f, ok := b.freed[a]; ok && !f.ready(now) && b.state == Open {
		e.Err = ErrResting
		if f.Dropped {
			e.Until = f.At.Add(RestTime)
		}
		return e
	}
	switch {
	case b.state == Lost:
		e.Err, e.Block = ErrLost, b.cidr
	case b.state == Closing, len(b.alloc)+len(b.lent) >= MaxPerBlock:
		e.Err = ErrNoRoom
	default:
		return nil
	}
	return e
}

// give allocates an address that any or canHave has found.
func (s *subnetState) give(a netip.Addr, o world.Owner) {
	if b := s.blockOf(a); b != nil {
		b.alloc[a] = o
		delete(b.freed, a)
		if b.left == 0 && !b.last.Less(a) { // A restart goes on from here.
			b.cursor = b.after(a)
		}
		return
	}
	br := s.borrowed[a]
	br.owner, br.used = o, true
}

// Release frees an address that the owner holds, and reports whether it did. It may
// be repeated.
func (p *Pool) Release(subnet string, a netip.Addr, o world.Owner, now time.Time) bool {
	s := p.subnets[subnet]
	if s == nil {
		return false
	}
	if held, ok := s.holder(a); !ok || held != o {
		return false
	}
	freed := Freed{Addr: a, At: now}
	if b := s.blockOf(a); b != nil {
		delete(b.alloc, a)
		if _, lent := b.lent[a]; !lent {
			b.free(freed)
		}
	} else if br := s.borrowed[a]; br != nil {
		br.owner, br.freed = world.Owner{}, freed
	} else {
		delete(s.strays, a)
		maps.DeleteFunc(s.homeless, func(_ netip.Addr, f Freed) bool { return f.ready(now) })
		s.homeless[a] = freed
		p.tidy(s)
	}
	return true
}

// Cancel gives back an address that was allocated and never used: it need not rest.
// It reports whether the owner held it.
func (p *Pool) Cancel(subnet string, a netip.Addr, o world.Owner, now time.Time) bool {
	s := p.subnets[subnet]
	if s == nil {
		return false
	}
	if br := s.borrowed[a]; br != nil && br.owner == o {
		br.owner, br.used = world.Owner{}, false
		return true
	}
	if !p.Release(subnet, a, o, now) {
		return false
	}
	if b := s.blockOf(a); b != nil {
		if f, ok := b.freed[a]; ok {
			f.At, f.Dropped = now.Add(-RestTime), true
			b.freed[a] = f
		}
	}
	return true
}

// Rest puts an address of an own block to rest from now, unless somebody holds it: its
// last user is gone, and the data plane may still know it.
func (p *Pool) Rest(subnet string, a netip.Addr, now time.Time) {
	s := p.subnets[subnet]
	if s == nil {
		return
	}
	if b := s.blockOf(a); b != nil {
		_, held := b.alloc[a]
		_, lent := b.lent[a]
		if !held && !lent {
			b.free(Freed{Addr: a, At: now})
		}
	}
}

// Dropped says that the data plane no longer knows a freed address.
func (p *Pool) Dropped(subnet string, a netip.Addr) {
	s := p.subnets[subnet]
	if s == nil {
		return
	}
	if b := s.blockOf(a); b != nil {
		if f, ok := b.freed[a]; ok {
			f.Dropped = true
			b.freed[a] = f
		}
	} else if br := s.borrowed[a]; br != nil {
		br.freed.Dropped = true
	} else if f, ok := s.homeless[a]; ok {
		f.Dropped = true
		s.homeless[a] = f
	}
}

func sortedAddrs[V any](m map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
