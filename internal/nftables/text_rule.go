package nftables

import (
	"fmt"
	"net/netip"
	"strings"
)

// String is the rule as nft prints it, with its comment.
func (r Rule) String() string {
	parts := make([]string, 0, len(r.Statements)+1)
	for _, s := range r.Statements {
		parts = append(parts, fmt.Sprint(s))
	}
	if r.Comment != "" {
		parts = append(parts, `comment "`+r.Comment+`"`)
	}
	return strings.Join(parts, " ")
}

// String is nft's text.
func (m Match) String() string {
	if m.Field.Type().flags() {
		return m.flagsText()
	}
	left := Selector{Field: m.Field, Mask: m.Mask}.String()
	switch {
	case m.Op == Neq:
		left += " !="
	case m.Mask != 0:
		left += " =="
	}
	return left + " " + m.Value.String()
}

// flagsText is the text of a match on a set of bits, for which nft has several
// short forms.
func (m Match) flagsText() string {
	field, v := m.Field.String(), m.Value.Uint()
	value, mask := flagNames(m.Value.Type, v), flagNames(m.Value.Type, m.Mask)
	op := ""
	if m.Op == Neq {
		op = "!= "
	}
	switch {
	case m.Mask == 0 && m.Op == Eq:
		return field + " == " + value
	case m.Mask == 0:
		return field + " != " + value
	case v == 0 && m.Op == Neq:
		return field + " " + mask
	case v == 0:
		return field + " ! " + mask
	case v == m.Mask && singleBit(v):
		if op == "" {
			op = "== "
		}
		return field + " & " + mask + " " + op + value
	}
	return field + " " + op + value + " / " + mask
}

func singleBit(n uint32) bool { return n != 0 && n&(n-1) == 0 }

// String is nft's text.
func (s Selector) String() string {
	if s.Mask == 0 {
		return s.Field.String()
	}
	return fmt.Sprintf("%s & 0x%08x", s.Field, s.Mask)
}

func joinKey(key []Selector) string {
	parts := make([]string, len(key))
	for i, s := range key {
		parts[i] = s.String()
	}
	return strings.Join(parts, " . ")
}

// String is nft's text.
func (l Lookup) String() string {
	switch {
	case l.Op == Neq:
		return joinKey(l.Key) + " != @" + l.Set
	case len(l.Key) == 1 && l.Key[0].Mask != 0:
		return joinKey(l.Key) + " == @" + l.Set
	}
	return joinKey(l.Key) + " @" + l.Set
}

// String is nft's text.
func (m VMap) String() string { return joinKey(m.Key) + " vmap @" + m.Map }

// String is nft's text.
func (m Mangle) String() string {
	field := m.Field.String()
	switch {
	case m.Map != "":
		return fmt.Sprintf("%s set %s map @%s", field, joinKey(m.From), m.Map)
	case len(m.From) > 0:
		return fmt.Sprintf("%s set %s", field, joinKey(m.From))
	case m.Field == CTZone:
		return fmt.Sprintf("%s set %d", field, m.Value)
	case m.Mask == 0 || m.Mask == ^uint32(0):
		return fmt.Sprintf("%s set 0x%08x", field, m.Value)
	}
	keep, value := ^m.Mask, m.Value&m.Mask
	switch value {
	case 0:
		return fmt.Sprintf("%s set %s & 0x%08x", field, field, keep)
	case m.Mask:
		return fmt.Sprintf("%s set %s | 0x%08x", field, field, value)
	}
	return fmt.Sprintf("%s set %s & 0x%08x | 0x%08x", field, field, keep|value, value)
}

// String is nft's text.
func (Counter) String() string { return "counter" }

// String is nft's text.
func (r Reject) String() string {
	switch r.With {
	case RejectPortUnreachable:
		return "reject"
	case RejectNoRoute:
		return "reject with icmpx no-route"
	case RejectHostUnreachable:
		return "reject with icmpx host-unreachable"
	case RejectAdminProhibited:
		return "reject with icmpx admin-prohibited"
	case RejectTCPReset:
		return "reject with tcp reset"
	}
	return "reject with invalid"
}

// String is nft's text, "random,fully-random,persistent".
func (f NATFlags) String() string {
	var names []string
	if f&NATRandom != 0 {
		names = append(names, "random")
	}
	if f&NATFullyRandom != 0 {
		names = append(names, "fully-random")
	}
	if f&NATPersistent != 0 {
		names = append(names, "persistent")
	}
	return strings.Join(names, ",")
}

// String is nft's text.
func (m Masquerade) String() string {
	text := "masquerade"
	if m.Ports != (Value{}) {
		text += " to :" + m.Ports.String()
	}
	return strings.TrimSuffix(text+" "+m.Flags.String(), " ")
}

// String is nft's text.
func (n NAT) String() string {
	kind, family := "snat", "ip"
	if n.Kind == DNAT {
		kind = "dnat"
	}
	to := n.Addr.String()
	if n.Addr.Is6() {
		family = "ip6"
	}
	if n.Port != 0 {
		to = netip.AddrPortFrom(n.Addr, n.Port).String()
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s to %s %s", kind, family, to, n.Flags), " ")
}

// String is nft's text.
func (Notrack) String() string { return "notrack" }

// String is nft's text.
func (l Log) String() string {
	text := "log"
	if l.Prefix != "" {
		text += ` prefix "` + l.Prefix + `"`
	}
	text += fmt.Sprintf(" group %d", l.Group)
	if l.Snaplen != 0 {
		text += fmt.Sprintf(" snaplen %d", l.Snaplen)
	}
	return text
}
