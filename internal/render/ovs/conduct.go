package ovs

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// transports are the protocols with ports, in the order of a conduct.
var transports = [...]struct {
	proto packet.Protocol
	dport of.Field
}{{packet.TCP, of.TCPDst}, {packet.UDP, of.UDPDst}, {packet.SCTP, of.SCTPDst}}

// onOthers is the place of all other protocols in a conduct.
const onOthers = len(transports)

// maxPort is the last port.
const maxPort = 0xffff

// span is a range of destination ports that have one fate.
type span struct {
	first, last uint16
	allow       bool
	// rules are the indices of those that decide, sorted; none: no rule matches.
	rules []int
}

// conduct is what a list does to the packets of one peer, by protocol: all its tiers
// taken together, for who passes a tier is decided by a later one or allowed. Spans are
// sorted and cover every port; neighbours differ.
type conduct [onOthers + 1][]span

// uniform is the fate of every packet, if they share one.
func (c conduct) uniform() (allow, ok bool) {
	for _, s := range c {
		if len(s) > 1 || s[0].allow != c[onOthers][0].allow {
			return false, false
		}
	}
	return c[onOthers][0].allow, true
}

// key identifies what a conduct does, by whichever rules.
func (c conduct) key() string {
	var b []byte
	for _, s := range c {
		b = binary.AppendUvarint(b, uint64(len(s)))
		for _, x := range s {
			fate := byte(0)
			if x.allow {
				fate = 1
			}
			b = binary.BigEndian.AppendUint16(append(b, fate), x.last)
		}
	}
	return string(b)
}

// clone has spans of its own.
func (c conduct) clone() conduct {
	for p := range c {
		c[p] = slices.Clone(c[p])
	}
	return c
}

// addRules adds the rules of another conduct with the same key.
func (c *conduct) addRules(o conduct) {
	for p := range c {
		for i := range c[p] {
			rules := slices.Concat(c[p][i].rules, o[p][i].rules)
			slices.Sort(rules)
			c[p][i].rules = slices.Compact(rules)
		}
	}
}

// rules are those that decide anything, sorted.
func (c conduct) rules() (out []int) {
	for _, s := range c {
		for _, x := range s {
			out = append(out, x.rules...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// painted is a range of ports that a rule has taken.
type painted struct {
	first, last uint16
	rule        int
}

// paint gives what is free of a range of ports to a rule. s is sorted and disjoint;
// the first to come keeps its ports.
func paint(s []painted, first, last uint16, rule int) []painted {
	i, _ := slices.BinarySearchFunc(s, first, func(x painted, first uint16) int { return int(x.last) - int(first) })
	if i == len(s) || s[i].first > last {
		return slices.Insert(s, i, painted{first, last, rule})
	}
	var fresh []painted
	next, end := int(first), i
	for ; end < len(s) && s[end].first <= last; end++ {
		if next < int(s[end].first) {
			fresh = append(fresh, painted{uint16(next), s[end].first - 1, rule})
		}
		fresh = append(fresh, s[end])
		next = int(s[end].last) + 1
	}
	if next <= int(last) {
		fresh = append(fresh, painted{uint16(next), last, rule})
	}
	return slices.Replace(s, i, end, fresh...)
}

// conductOf is what the given rules of a list, sorted, do to a peer that lies in the
// sets of all of them.
func conductOf(list []intent.Rule, rules []int) (c conduct) {
	for p := range c {
		var decided []painted
		for left := rules; len(left) > 0 && !full(decided); {
			n := 1
			for n < len(left) && list[left[n]].Tier == list[left[0]].Tier {
				n++
			}
			for _, x := range tierOf(list, left[:n], p) {
				if list[x.rule].Action != intent.Pass {
					decided = paint(decided, x.first, x.last, x.rule)
				}
			}
			left = left[n:]
		}
		c[p] = joined(list, paint(decided, 0, maxPort, -1))
	}
	return c
}

// full reports whether every port is decided: nothing is left for later tiers.
func full(s []painted) bool {
	next := 0
	for _, x := range s {
		if int(x.first) != next {
			return false
		}
		next = int(x.last) + 1
	}
	return next == maxPort+1
}

// tierOf is which rule of a tier matches first, by port of a protocol.
func tierOf(list []intent.Rule, rules []int, p int) (out []painted) {
	for _, i := range rules {
		m := list[i].Match
		if m.Protocol != 0 && (p == onOthers || transports[p].proto != m.Protocol) {
			continue
		}
		if len(m.Ports) == 0 {
			return paint(out, 0, maxPort, i) // nothing is left for later ones
		}
		for _, r := range m.Ports {
			out = paint(out, r.First, r.Last, i)
		}
	}
	return out
}

// joined makes one span of neighbours with the same fate.
func joined(list []intent.Rule, s []painted) (out []span) {
	for _, x := range s {
		allow := x.rule < 0 || list[x.rule].Action == intent.Accept
		if n := len(out); n == 0 || out[n-1].allow != allow {
			out = append(out, span{first: x.first, allow: allow})
		}
		last := &out[len(out)-1]
		if last.last = x.last; x.rule >= 0 {
			last.rules = append(last.rules, x.rule)
		}
	}
	for i := range out {
		slices.Sort(out[i].rules)
		out[i].rules = slices.Compact(out[i].rules)
	}
	return out
}

// masks are the fewest values and masks that cover a range of ports.
func masks(first, last uint16) (out []of.Value) {
	for at := int(first); at <= int(last); {
		size := 1 << 16
		if at != 0 {
			size = 1 << bits.TrailingZeros(uint(at))
		}
		for at+size-1 > int(last) {
			size >>= 1
		}
		out = append(out, of.Value{Hi: uint64(maxPort &^ (size - 1)), Lo: uint64(at)})
		at += size
	}
	return out
}
