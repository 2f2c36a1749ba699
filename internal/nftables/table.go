package nftables

import "slices"

// Table is one table of family inet.
type Table struct {
	Name string
	// Sets holds the sets and the maps: they share one namespace.
	Sets   []Set
	Chains []Chain
}

// Set is a set, or a map when Data is not nil.
type Set struct {
	Name string
	// Key holds the types of the key's fields; more than one is a concatenation.
	Key []Type
	// Data is nil for a set. A map has the types of its values here; a verdict
	// map has TypeVerdict alone.
	Data []Type
	// Interval allows ranges and prefixes in keys. They must not overlap.
	Interval bool
	// Constant refuses later changes of the elements. The driver rebuilds such a
	// set when they change.
	Constant bool
	// Counter counts packets per element.
	Counter bool
	// Whole says that a part of the elements, or more of them, could let through what
	// must not pass: who only adds to a table takes such a set whole or leaves the one
	// that is there.
	Whole bool
	// Elements may have any order.
	Elements []Element
}

// IsMap says whether s maps keys to values or verdicts.
func (s Set) IsMap() bool { return len(s.Data) > 0 }

// IsVerdictMap says whether s maps keys to verdicts.
func (s Set) IsVerdictMap() bool { return len(s.Data) == 1 && s.Data[0] == TypeVerdict }

// Equal says whether two sets are the same, elements in the same order included.
func (s Set) Equal(o Set) bool {
	if s.Name != o.Name || s.Interval != o.Interval || s.Constant != o.Constant || s.Counter != o.Counter || s.Whole != o.Whole ||
		!slices.Equal(s.Key, o.Key) || !slices.Equal(s.Data, o.Data) || len(s.Elements) != len(o.Elements) {
		return false
	}
	if len(s.Elements) == 0 || &s.Elements[0] == &o.Elements[0] {
		return true
	}
	return slices.EqualFunc(s.Elements, o.Elements, func(a, b Element) bool {
		return a.Verdict == b.Verdict && slices.Equal(a.Key, b.Key) && slices.Equal(a.Data, b.Data)
	})
}

// Element is one element of a set or map.
type Element struct {
	// Key has one value per type of the set's Key.
	Key []Value
	// Data has one single value per type of a map's Data. It is nil in sets and
	// verdict maps.
	Data []Value
	// Verdict is what an element of a verdict map decides.
	Verdict Verdict
}

// Chain is a chain. Without Base it runs only when a rule or a verdict map leads
// to it.
type Chain struct {
	Name string
	// Base makes it run by itself.
	Base *Base
	// Whole is as in Set.
	Whole bool
	Rules []Rule
}

// Equal says whether two chains are the same.
func (c Chain) Equal(o Chain) bool {
	if c.Name != o.Name || c.Whole != o.Whole || len(c.Rules) != len(o.Rules) || (c.Base == nil) != (o.Base == nil) || c.Base != nil && *c.Base != *o.Base {
		return false
	}
	return len(c.Rules) == 0 || &c.Rules[0] == &o.Rules[0] || slices.EqualFunc(c.Rules, o.Rules, Rule.Equal)
}

// Base says where in the kernel's path, and when there, a chain runs.
type Base struct {
	Type ChainType
	Hook Hook
	// Priority orders the chains of a hook; the lowest runs first.
	Priority int32
	// Policy is the verdict at the end of the chain.
	Policy Policy
}

// ChainType is the type of a base chain.
type ChainType uint8

// The chain types.
const (
	TypeFilter ChainType = iota
	TypeNAT
	// TypeRoute routes the packet again when its mark or addresses changed; only
	// at HookOutput.
	TypeRoute
)

// String is nft's word.
func (t ChainType) String() string {
	switch t {
	case TypeFilter:
		return "filter"
	case TypeNAT:
		return "nat"
	case TypeRoute:
		return "route"
	}
	return "invalid"
}

// Hook is a place in the kernel's path; the numbers are the kernel's
// (NF_INET_PRE_ROUTING and so on).
type Hook uint8

// The hooks.
const (
	HookPrerouting Hook = iota
	HookInput
	HookForward
	HookOutput
	HookPostrouting
)

// String is nft's word.
func (h Hook) String() string {
	switch h {
	case HookPrerouting:
		return "prerouting"
	case HookInput:
		return "input"
	case HookForward:
		return "forward"
	case HookOutput:
		return "output"
	case HookPostrouting:
		return "postrouting"
	}
	return "invalid"
}

// Policy is the verdict at the end of a base chain.
type Policy uint8

// The policies.
const (
	PolicyAccept Policy = iota
	PolicyDrop
)

// String is nft's word.
func (p Policy) String() string {
	switch p {
	case PolicyAccept:
		return "accept"
	case PolicyDrop:
		return "drop"
	}
	return "invalid"
}
