package nftables

import (
	"net/netip"
	"slices"
)

// Rule is a list of statements that run in order until one does not match or
// decides.
type Rule struct {
	Statements []Statement
	// Comment is shown by "nft list" and names the rule in counters, errors and
	// audits; at most 128 bytes with its end. It need not be unique.
	Comment string
}

// Equal says whether two rules are the same.
func (r Rule) Equal(o Rule) bool {
	return r.Comment == o.Comment && slices.EqualFunc(r.Statements, o.Statements, sameStatement)
}

// Sets are the names of the sets and maps that the rule looks into, in its order.
func (r Rule) Sets() []string {
	var names []string
	for _, s := range r.Statements {
		switch s := s.(type) {
		case Lookup:
			names = append(names, s.Set)
		case VMap:
			names = append(names, s.Map)
		case Mangle:
			if s.Map != "" {
				names = append(names, s.Map)
			}
		}
	}
	return names
}

func sameStatement(a, b Statement) bool {
	switch a := a.(type) {
	case Lookup:
		b, ok := b.(Lookup)
		return ok && a.Set == b.Set && a.Op == b.Op && slices.Equal(a.Key, b.Key)
	case VMap:
		b, ok := b.(VMap)
		return ok && a.Map == b.Map && slices.Equal(a.Key, b.Key)
	case Mangle:
		b, ok := b.(Mangle)
		return ok && a.Field == b.Field && a.Value == b.Value && a.Mask == b.Mask && a.Map == b.Map && slices.Equal(a.From, b.From)
	}
	switch b.(type) {
	case Lookup, VMap, Mangle:
		return false // they cannot be compared by ==
	}
	return a == b
}

// Statement is one of Match, Lookup, VMap, Mangle, Counter, Verdict, Reject,
// Masquerade, NAT, Notrack and Log.
type Statement interface{ statement() }

func (Match) statement()      {}
func (Lookup) statement()     {}
func (VMap) statement()       {}
func (Mangle) statement()     {}
func (Counter) statement()    {}
func (Verdict) statement()    {}
func (Reject) statement()     {}
func (Masquerade) statement() {}
func (NAT) statement()        {}
func (Notrack) statement()    {}
func (Log) statement()        {}

// Op compares.
type Op uint8

// The comparisons.
const (
	// Eq holds when the field equals the value or lies in its range.
	Eq Op = iota
	// Neq is the opposite.
	Neq
)

// Match compares a field, masked if Mask is not zero, with a value: the rule
// goes on if (field & Mask) Op Value holds, else the next rule runs.
//
// So "ct state established,related" (any of the bits) is Mask
// established|related, Op Neq, Value 0; AnyFlag writes it.
type Match struct {
	Field Field
	// Mask applies to marks and flags; zero is "all bits".
	Mask  uint32
	Op    Op
	Value Value
}

// Selector is a field of a key, masked (marks only) if Mask is not zero.
type Selector struct {
	Field Field
	Mask  uint32
}

// Select is the key made of the given fields without masks.
func Select(fields ...Field) []Selector {
	key := make([]Selector, len(fields))
	for i, f := range fields {
		key[i].Field = f
	}
	return key
}

// Lookup goes on if the key is in the set, or, with Op Neq, if it is not.
//
// Beware: a field that implies a protocol (ip saddr) implies it under Neq too:
// "ip saddr != @s" never matches an IPv6 packet.
type Lookup struct {
	Key []Selector
	Op  Op
	Set string
}

// VMap applies the verdict that a verdict map holds for the key. Without such an
// element the rule ends there, as with any map, and the next rule runs.
type VMap struct {
	Key []Selector
	Map string
}

// Mangle sets MetaMark, CTMark or CTZone (Field) from one of:
//   - a constant: Value, of which only the bits of Mask are written (zero is all
//     bits); the other bits are kept;
//   - a map: the value that Map holds for From; without such an element the next
//     rule runs. All bits are written: no kernel before 6.13 can combine two
//     registers, so Mask must be zero. Where foreign bits must survive, use a
//     verdict map to chains with constants;
//   - another field: From alone, masked by its own mask ("ct mark set meta mark
//     & 0xff").
type Mangle struct {
	Field Field
	Value uint32
	Mask  uint32
	From  []Selector
	Map   string
}

// Counter counts the packets and bytes that reach it.
type Counter struct{}

// VerdictKind is what a Verdict does.
type VerdictKind uint8

// The verdicts.
const (
	// Accept ends the base chain, also from a chain that it jumped to.
	Accept VerdictKind = iota + 1
	// Drop ends everything.
	Drop
	// Return goes back behind the jump, or to the policy in a base chain.
	Return
	// Continue goes to the next rule.
	Continue
	// Jump runs another chain and comes back.
	Jump
	// Goto runs another chain and comes back to where the present one would.
	Goto
)

// String is nft's word.
func (k VerdictKind) String() string {
	switch k {
	case Accept:
		return "accept"
	case Drop:
		return "drop"
	case Return:
		return "return"
	case Continue:
		return "continue"
	case Jump:
		return "jump"
	case Goto:
		return "goto"
	}
	return "invalid"
}

// Verdict decides. It is a statement, and the data of verdict maps.
type Verdict struct {
	Kind VerdictKind
	// Chain is where Jump and Goto lead.
	Chain string
}

// String is nft's text, "jump from-port".
func (v Verdict) String() string {
	if v.Chain == "" {
		return v.Kind.String()
	}
	return v.Kind.String() + " " + v.Chain
}

// RejectWith is what a refused sender gets.
type RejectWith uint8

// The refusals. The ICMP ones are ICMP or ICMPv6, as the packet is.
const (
	RejectPortUnreachable RejectWith = iota
	RejectNoRoute
	RejectHostUnreachable
	RejectAdminProhibited
	// RejectTCPReset needs a match on TCP before it in the rule.
	RejectTCPReset
)

// Reject drops the packet and tells the sender. Only in the hooks input, forward
// and output.
type Reject struct{ With RejectWith }

// NATFlags modify how ports are chosen; the numbers are the kernel's
// (NF_NAT_RANGE_*).
type NATFlags uint32

// The flags.
const (
	NATRandom      NATFlags = 1 << 2
	NATPersistent  NATFlags = 1 << 3
	NATFullyRandom NATFlags = 1 << 4
)

// Masquerade gives the packet the address of the interface it leaves by. Only in
// NAT chains at postrouting.
type Masquerade struct {
	// Ports are the source ports to choose from: a Port or PortRange, which needs a match
	// on the protocol first. The zero Value leaves the choice to the kernel: the port
	// that the packet has, or with a random flag any from 1024 on.
	Ports Value
	Flags NATFlags
}

// NATKind says which address a NAT statement rewrites.
type NATKind uint8

// The kinds.
const (
	SNAT NATKind = iota + 1
	DNAT
)

// NAT rewrites the source or destination of a flow.
type NAT struct {
	Kind NATKind
	Addr netip.Addr
	// Port is kept if zero; else the rule needs a match on the protocol first.
	Port  uint16
	Flags NATFlags
}

// Notrack keeps conntrack from seeing the packet; only before it, at priorities
// below -200 in prerouting and output.
type Notrack struct{}

// Log sends the packet's head to the nfnetlink_log group.
type Log struct {
	Group  uint16
	Prefix string
	// Snaplen is how many bytes of the packet are sent; zero is all.
	Snaplen uint32
}
