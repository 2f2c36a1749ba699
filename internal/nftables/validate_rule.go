package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// implied gathers what the statements of a rule have said about the packet.
type implied struct {
	nf, l4 uint8
	// explicitly said by a match on meta nfproto or l4proto.
	saidNF, saidL4 bool
}

func (v *validator) rule(r Rule) error {
	if err := validText(r.Comment, maxComment); err != nil {
		return fmt.Errorf("comment: %w", err)
	}
	if len(r.Statements) == 0 {
		return errors.New("a rule without statements does nothing")
	}
	if len(r.Statements) > maxStatements {
		return fmt.Errorf("%d statements are too many, at most %d", len(r.Statements), maxStatements)
	}
	var ctx implied
	for i, s := range r.Statements {
		if err := v.statement(&ctx, s); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
		if terminal(s) && i < len(r.Statements)-1 {
			return fmt.Errorf("%v ends the rule, what follows would never run", s)
		}
	}
	return nil
}

func validText(s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%d bytes are too many, at most %d", len(s), limit)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r == '"' || r < ' ' || r == 0x7f }) {
		return fmt.Errorf("%q holds a quote or control character", s)
	}
	return nil
}

// terminal says whether no statement runs after s.
func terminal(s Statement) bool {
	switch s := s.(type) {
	case Verdict:
		return s.Kind != Continue
	case Reject, Masquerade, NAT:
		return true
	}
	return false
}

func (v *validator) statement(ctx *implied, s Statement) error {
	switch s := s.(type) {
	case Match:
		return ctx.match(s)
	case Lookup:
		return v.lookup(ctx, s)
	case VMap:
		set, err := v.keyed(ctx, s.Key, s.Map)
		if err == nil && !set.IsVerdictMap() {
			err = fmt.Errorf("%s is no verdict map", s.Map)
		}
		return err
	case Mangle:
		return v.mangle(ctx, s)
	case Verdict:
		return v.verdict(s)
	case Reject:
		if s.With > RejectTCPReset {
			return fmt.Errorf("unknown answer %d", s.With)
		}
		if s.With == RejectTCPReset && ctx.l4 != protoTCP {
			return errors.New("needs a match on TCP before it")
		}
	case Masquerade:
		return s.validate(ctx)
	case NAT:
		return s.validate(ctx)
	case Log:
		return validText(s.Prefix, maxLogPrefix)
	case Counter, Notrack:
	default:
		return errors.New("nil is no statement")
	}
	return nil
}

// read notes what reading a field implies and refuses what can never be.
func (ctx *implied) read(f Field) error {
	if f.Type() == 0 {
		return fmt.Errorf("unknown field %d", f)
	}
	if nf := f.NFProto(); nf != 0 {
		switch {
		case ctx.nf != 0 && ctx.nf != nf:
			return fmt.Errorf("%s cannot hold: the rule has already asked for the other IP version", f)
		case ctx.saidNF:
			return fmt.Errorf("%s implies meta nfproto; leave out the match before it (nft would not print it)", f)
		}
		ctx.nf = nf
	}
	if l4 := f.L4Proto(); l4 != 0 {
		switch {
		case ctx.l4 != 0 && ctx.l4 != l4:
			return fmt.Errorf("%s cannot hold: the rule has already asked for another protocol", f)
		case ctx.saidL4:
			return fmt.Errorf("%s implies meta l4proto; leave out the match before it (nft would not print it)", f)
		}
		ctx.l4 = l4
	}
	if (f == THSport || f == THDport) && ctx.l4 != 0 {
		return fmt.Errorf("the protocol is known here: write tcp, udp or sctp instead of %q", f)
	}
	return nil
}

func (ctx *implied) match(m Match) error {
	if err := ctx.read(m.Field); err != nil {
		return err
	}
	t := m.Field.Type()
	switch {
	case !m.Value.valid() || m.Value.Type != t:
		return fmt.Errorf("value of type %s, want %s", m.Value.Type, t)
	case m.Op > Neq:
		return fmt.Errorf("unknown comparison %d", m.Op)
	case m.Mask != 0 && !t.maskable():
		return fmt.Errorf("a field of type %s takes no mask", t)
	case m.Value.IsRange() && (t.HostOrder() || t.flags()):
		return fmt.Errorf("a field of type %s takes no range; use an interval set", t)
	case m.Mask != 0 && m.Value.Uint()&^m.Mask != 0:
		return fmt.Errorf("value 0x%x has bits outside of mask 0x%x", m.Value.Uint(), m.Mask)
	case t.flags() && (m.Mask|m.Value.Uint())&^knownFlags(t) != 0:
		return fmt.Errorf("bits 0x%x have no name", (m.Mask|m.Value.Uint())&^knownFlags(t))
	case t.flags() && m.Mask == 0 && !singleBit(m.Value.Uint()):
		return errors.New("compare several flags with a mask (AnyFlag, NoFlag, Masked)")
	}
	if m.Op == Eq && !m.Value.IsRange() {
		n := uint8(m.Value.Uint())
		switch m.Field {
		case MetaNFProto:
			ctx.nf, ctx.saidNF = n, ctx.nf == 0
		case MetaL4Proto:
			ctx.l4, ctx.saidL4 = n, ctx.l4 == 0
		}
	}
	return nil
}

// keyed checks a key against the set that it is looked up in.
func (v *validator) keyed(ctx *implied, key []Selector, name string) (Set, error) {
	set, ok := v.sets[name]
	if !ok {
		return Set{}, fmt.Errorf("there is no set or map %q", name)
	}
	types := make([]Type, len(key))
	for i, k := range key {
		if err := ctx.read(k.Field); err != nil {
			return Set{}, err
		}
		types[i] = k.Field.Type()
		if k.Mask != 0 && types[i] != TypeMark {
			return Set{}, fmt.Errorf("%s takes no mask in a key", k.Field)
		}
	}
	if !slices.Equal(types, set.Key) {
		return Set{}, fmt.Errorf("the key has type %s, %s wants %s", joinTypes(types), name, joinTypes(set.Key))
	}
	return set, nil
}

func (v *validator) lookup(ctx *implied, l Lookup) error {
	set, err := v.keyed(ctx, l.Key, l.Set)
	switch {
	case err != nil:
		return err
	case set.IsMap():
		return fmt.Errorf("%s is a map; only sets can be asked for membership", l.Set)
	case l.Op > Neq:
		return fmt.Errorf("unknown comparison %d", l.Op)
	}
	return nil
}

func (v *validator) mangle(ctx *implied, m Mangle) error {
	switch m.Field {
	case MetaMark, CTMark:
	case CTZone:
		if m.Mask != 0 || len(m.From) > 0 || m.Map != "" || m.Value > 0xffff {
			return errors.New("a zone is a constant of 16 bits without mask")
		}
		return nil
	default:
		return fmt.Errorf("%s cannot be set, only %s, %s and %s", m.Field, MetaMark, CTMark, CTZone)
	}
	if len(m.From) == 0 && m.Map == "" {
		if m.Mask != 0 && m.Value&^m.Mask != 0 {
			return fmt.Errorf("value 0x%x has bits outside of mask 0x%x", m.Value, m.Mask)
		}
		return nil
	}
	if m.Value != 0 || m.Mask != 0 {
		return errors.New("a mark from a map or a field is written whole; Value and Mask must be zero")
	}
	if m.Map == "" {
		if len(m.From) != 1 || m.From[0].Field.Type() != TypeMark || m.From[0] == (Selector{Field: m.Field}) {
			return errors.New("a mark can be copied from one other mark only")
		}
		return nil
	}
	set, err := v.keyed(ctx, m.From, m.Map)
	if err == nil && !slices.Equal(set.Data, []Type{TypeMark}) {
		return fmt.Errorf("%s is no map to marks", m.Map)
	}
	return err
}

func (f NATFlags) validate() error {
	if f&^(NATRandom|NATPersistent|NATFullyRandom) != 0 {
		return fmt.Errorf("unknown flags 0x%x", uint32(f))
	}
	return nil
}

func (m Masquerade) validate(ctx *implied) error {
	switch {
	case m.Ports == Value{}:
	case !m.Ports.valid() || m.Ports.Type != TypeInetService || m.Ports.Uint() == 0:
		return errors.New("its ports are no range of ports")
	case !ctx.hasPorts():
		return errors.New("ports need a match on TCP, UDP or SCTP before them")
	}
	return m.Flags.validate()
}

// hasPorts says whether the rule has asked for a protocol with ports.
func (ctx *implied) hasPorts() bool {
	return ctx.l4 == protoTCP || ctx.l4 == protoUDP || ctx.l4 == protoSCTP
}

func (n NAT) validate(ctx *implied) error {
	family := uint8(nfIPv4)
	if n.Addr.Is6() {
		family = nfIPv6
	}
	switch {
	case n.Kind != SNAT && n.Kind != DNAT:
		return errors.New("neither snat nor dnat")
	case n.Addr == netip.Addr{} || n.Addr.Zone() != "" || n.Addr.Is4In6():
		return fmt.Errorf("%s is no address to translate to", n.Addr)
	case ctx.nf != 0 && ctx.nf != family:
		return errors.New("the rule has asked for the other IP version")
	case n.Port != 0 && !ctx.hasPorts():
		return errors.New("a port needs a match on TCP, UDP or SCTP before it")
	}
	return n.Flags.validate()
}
