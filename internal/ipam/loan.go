package ipam

import (
	"net/netip"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Lend marks one free address as lent to a node and returns it with its block. The
// loan holds once the block's object says so. Its error is an *Error.
func (p *Pool) Lend(subnet string, f Family, to string, now time.Time) (netip.Addr, netip.Prefix, error) {
	s := p.subnets[subnet]
	if s == nil || !s.known {
		return netip.Addr{}, netip.Prefix{}, &Error{Err: ErrUnknownSubnet, Subnet: subnet}
	}
	for _, b := range s.blocks {
		if FamilyOf(b.cidr.Addr()) != f {
			continue
		}
		if a, ok := b.peek(s, now); ok {
			b.lend(a, to)
			return a, b.cidr, nil
		}
	}
	return netip.Addr{}, netip.Prefix{}, s.none(f, now)
}

// LendAddr lends one particular address of an own block. Its error is an *Error.
func (p *Pool) LendAddr(subnet string, a netip.Addr, to string, now time.Time) (netip.Prefix, error) {
	s := p.subnets[subnet]
	if s == nil || !s.known {
		return netip.Prefix{}, &Error{Err: ErrUnknownSubnet, Subnet: subnet}
	}
	b := s.blockOf(a)
	if b == nil {
		return netip.Prefix{}, &Error{Err: ErrNotOwned, Subnet: subnet, Addr: a}
	}
	if err := s.canHave(a, now); err != nil {
		return netip.Prefix{}, err
	}
	b.lend(a, to)
	return b.cidr, nil
}

func (b *block) lend(a netip.Addr, to string) {
	b.lent[a] = to
	delete(b.freed, a)
}

// MarkLent records a loan that the borrower lists although the block does not say
// so. An address that is allocated here: ErrTaken.
func (p *Pool) MarkLent(subnet string, a netip.Addr, to string) error {
	s := p.subnets[subnet]
	if s == nil {
		return &Error{Err: ErrUnknownSubnet, Subnet: subnet}
	}
	b := s.blockOf(a)
	if b == nil {
		return &Error{Err: ErrNotOwned, Subnet: subnet, Addr: a}
	}
	if o, taken := b.alloc[a]; taken {
		return &Error{Err: ErrTaken, Subnet: subnet, Addr: a, Owner: o}
	}
	if n, lent := b.lent[a]; lent && n != to {
		return &Error{Err: ErrTaken, Subnet: subnet, Addr: a, Node: n}
	}
	b.lend(a, to)
	return nil
}

// TakeBack ends a loan: the borrower does not list the address and cannot any more.
// It rests, because peers may still route it to the borrower, and until the caller
// says by Dropped that the end of the loan is durable: a restart that lent the address
// again would find it given to somebody.
func (p *Pool) TakeBack(subnet string, a netip.Addr, now time.Time) {
	s := p.subnets[subnet]
	if s == nil {
		return
	}
	b := s.blockOf(a)
	if b == nil {
		return
	}
	if _, lent := b.lent[a]; !lent {
		return
	}
	delete(b.lent, a)
	if _, held := b.alloc[a]; !held {
		b.free(Freed{Addr: a, At: now})
	}
}

// Borrow takes an address that another node has lent to this one. A record that
// already holds it keeps it.
func (p *Pool) Borrow(subnet string, a netip.Addr, now time.Time) {
	s := p.subnet(subnet)
	if s.borrowed[a] != nil || s.blockOf(a) != nil {
		return
	}
	br := &borrowed{}
	if o, held := s.strays[a]; held {
		br.owner, br.used = o, true
		delete(s.strays, a)
	} else if f, was := s.homeless[a]; was { // We had it before: it rests on, and then goes back.
		br.freed, br.used = f, !f.ready(now)
		delete(s.homeless, a)
	}
	s.borrowed[a] = br
}

// Return forgets a borrowed address if nobody holds it and it does not rest any
// more, and reports whether it is gone.
func (p *Pool) Return(subnet string, a netip.Addr, now time.Time) bool {
	s := p.subnets[subnet]
	if s == nil {
		return true
	}
	br := s.borrowed[a]
	if br == nil {
		return true
	}
	if br.owner != (world.Owner{}) || br.used && !br.freed.ready(now) {
		return false
	}
	delete(s.borrowed, a)
	p.tidy(s)
	return true
}
