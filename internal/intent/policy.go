package intent

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Action is what a Rule does to a new flow.
type Action uint8

// The actions.
const (
	// Accept ends the list: the flow is allowed in this direction.
	Accept Action = iota + 1
	// Deny ends the list: the flow is dropped.
	Deny
	// Pass goes on with the first rule of a later tier.
	Pass
)

// Tier is a section of a RuleList.
type Tier uint8

// The tiers, in the order in which they are asked.
const (
	TierAdmin Tier = iota + 1
	TierNetworkPolicy
	TierBaseline
)

// Direction is which way packets go, as the pod sees it.
type Direction uint8

// The directions.
const (
	Ingress Direction = iota + 1
	Egress
)

// PortRange is a range of port numbers, both ends included.
type PortRange struct {
	First, Last uint16
}

// Match says which packets a Rule is about. Every field that is set must match.
type Match struct {
	// Sets are names of AddressSets of the list's VPC, sorted: the peer's address
	// lies in at least one. That is the source of what the pod receives, the
	// destination of what it sends. None: every address.
	Sets []string
	// Protocol is TCP, UDP or SCTP; zero is every protocol, those without ports too.
	Protocol packet.Protocol
	// Ports hold the destination port, sorted, disjoint, not adjoining. None: every
	// port. Only with a Protocol.
	Ports []PortRange
}

// RuleOrigin says which policy a Rule comes from.
type RuleOrigin struct {
	// Kind is NetworkPolicy or ClusterNetworkPolicy; the latter has no Namespace.
	Kind      string
	Namespace string
	Name      string
	// Index is that of the rule in the policy's list of the direction, or -1: the
	// policy isolates the pod, and no rule of any policy allows the flow.
	Index int
	// RuleName is the rule's own name, if it has one.
	RuleName string
}

// Rule is one step of a RuleList. The first that matches decides; several may come
// from one rule of a policy.
type Rule struct {
	Tier   Tier
	Action Action
	Match  Match
	Origin RuleOrigin
}

// RuleList is what is asked about the new flows of a port in one direction, rule
// by rule, tier by tier. What no rule matches, or what passes the last tier, is
// allowed.
//
// A port without a list is not restricted in that direction. No list is asked about
// packets that the node itself sends to its pods, whatever address they bear, nor
// about what a port sends to itself. Answers of allowed flows are allowed. Packets
// are judged with the addresses and ports that they have between client and endpoint:
// after a Service's address is replaced, before masquerading.
type RuleList struct {
	// ID is derived from all else: lists with one ID are the same.
	ID        string
	VPC       string
	Direction Direction
	// Rules, by tier.
	Rules []Rule
}

// NewRuleList returns a list with its ID.
func NewRuleList(vpc string, d Direction, rules []Rule) RuleList {
	return RuleList{ID: ruleListID(vpc, d, rules), VPC: vpc, Direction: d, Rules: rules}
}

// ruleListID hashes a list. Every text is preceded by its length, so that no two
// lists are written alike.
func ruleListID(vpc string, d Direction, rules []Rule) string {
	const hashed = 12 // bytes: nobody finds a second list with the ID of another's
	b := make([]byte, 0, 64+128*len(rules))
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	text(vpc)
	for _, r := range rules {
		b = append(b, byte(r.Tier), byte(r.Action), byte(r.Match.Protocol))
		b = binary.AppendUvarint(b, uint64(len(r.Match.Sets)))
		for _, s := range r.Match.Sets {
			text(s)
		}
		b = binary.AppendUvarint(b, uint64(len(r.Match.Ports)))
		for _, p := range r.Match.Ports {
			b = binary.BigEndian.AppendUint16(b, p.First)
			b = binary.BigEndian.AppendUint16(b, p.Last)
		}
		text(r.Origin.Kind)
		text(r.Origin.Namespace)
		text(r.Origin.Name)
		b = binary.AppendVarint(b, int64(r.Origin.Index))
		text(r.Origin.RuleName)
	}
	sum := sha256.Sum256(b)
	return d.String() + "-" + hex.EncodeToString(sum[:hashed])
}

// Contains reports whether an address lies in the set.
func (s AddressSet) Contains(a netip.Addr) bool {
	// Disjoint prefixes are sorted by their first address, and so by their last.
	i, found := slices.BinarySearchFunc(s.Prefixes, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && s.Prefixes[i-1].Contains(a)
}

// matches reports whether a packet, whose peer is the given one, is what a rule is
// about. in looks an address up in a set by name.
func (m Match) matches(p packet.Packet, peer netip.Addr, in func(string, netip.Addr) bool) bool {
	if m.Protocol != 0 && m.Protocol != p.Protocol {
		return false
	}
	if len(m.Ports) > 0 && !slices.ContainsFunc(m.Ports, func(r PortRange) bool { return r.First <= p.DstPort && p.DstPort <= r.Last }) {
		return false
	}
	return len(m.Sets) == 0 || slices.ContainsFunc(m.Sets, func(s string) bool { return in(s, peer) })
}

// Judge asks the list about the first packet of a flow and reports whether it is
// allowed, and the index of the rule that decided, -1 if none did. in looks an
// address up in a set of the list's VPC by name.
func (l RuleList) Judge(p packet.Packet, in func(set string, a netip.Addr) bool) (allowed bool, rule int) {
	peer := p.Src
	if l.Direction == Egress {
		peer = p.Dst
	}
	var passed Tier
	for i, r := range l.Rules {
		if r.Tier <= passed || !r.Match.matches(p, peer, in) {
			continue
		}
		if r.Action != Pass {
			return r.Action == Accept, i
		}
		passed = r.Tier
	}
	return true, -1
}

// Judge asks the list of a port of this node about the first packet of a flow. The
// rule that decided is nil if none did. A list that the intent lacks allows nothing.
func (n Node) Judge(port Port, d Direction, p packet.Packet) (allowed bool, by *Rule) {
	id := port.Ingress
	if d == Egress {
		id = port.Egress
	}
	if id == "" {
		return true, nil
	}
	i, found := slices.BinarySearchFunc(n.RuleLists, RuleList{ID: id}, RuleList.Compare)
	if !found {
		return false, nil
	}
	list := n.RuleLists[i]
	allowed, rule := list.Judge(p, func(set string, a netip.Addr) bool {
		i, found := slices.BinarySearchFunc(n.AddressSets, AddressSet{VPC: list.VPC, Name: set}, AddressSet.Compare)
		return found && n.AddressSets[i].Contains(a)
	})
	if rule < 0 {
		return allowed, nil
	}
	return allowed, &list.Rules[rule]
}
