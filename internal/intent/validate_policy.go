package intent

import (
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// ruleLists checks that lists are what their ID says, sorted by tier, and refer to
// sets of their own VPC.
func (v *validator) ruleLists(lists []RuleList) {
	ordered(v, lists)
	for _, l := range lists {
		v.lists[l.ID] = l
		v.inVPC(l.Ref(), l.VPC)
		if l.Direction != Ingress && l.Direction != Egress {
			v.fault(l.Ref(), "%s is no direction", l.Direction)
		}
		if want := ruleListID(l.VPC, l.Direction, l.Rules); l.ID != want {
			v.fault(l.Ref(), "its content has the ID %s", want)
		}
		var tier Tier
		for i, r := range l.Rules {
			if r.Tier < TierAdmin || r.Tier > TierBaseline || r.Tier < tier {
				v.fault(l.Ref(), "rule %d is of tier %s, after one of tier %s", i, r.Tier, tier)
			}
			tier = r.Tier
			if r.Action < Accept || r.Action > Pass {
				v.fault(l.Ref(), "rule %d: %s is no action", i, r.Action)
			}
			if r.Origin.Name == "" {
				v.fault(l.Ref(), "rule %d comes from no policy", i)
			}
			v.match(l, i, r.Match)
		}
	}
}

func (v *validator) match(l RuleList, i int, m Match) {
	switch m.Protocol {
	case packet.TCP, packet.UDP, packet.SCTP:
	case 0:
		if len(m.Ports) > 0 {
			v.fault(l.Ref(), "rule %d has ports and no protocol", i)
		}
	default:
		v.fault(l.Ref(), "rule %d: protocol %s has no ports", i, m.Protocol)
	}
	for j, p := range m.Ports {
		if p.First > p.Last || j > 0 && int(m.Ports[j-1].Last)+1 >= int(p.First) {
			v.fault(l.Ref(), "rule %d: ports %s are not sorted, disjoint and apart", i, list(m.Ports))
			break
		}
	}
	if !slices.IsSorted(m.Sets) {
		v.fault(l.Ref(), "rule %d: sets %q are not sorted", i, m.Sets)
	}
	for _, s := range m.Sets {
		if !v.sets[AddressSet{VPC: l.VPC, Name: s}.Ref().Name] {
			v.fault(l.Ref(), "rule %d: the set %s of VPC %s is not in the intent", i, s, l.VPC)
		}
	}
}

// listOf checks that a port's list exists, and is of its VPC and direction.
func (v *validator) listOf(p Port, d Direction, id string) {
	if id == "" {
		return
	}
	l, ok := v.lists[id]
	if !ok {
		v.fault(p.Ref(), "its %s list %s is not in the intent", d, id)
	} else if l.VPC != p.VPC || l.Direction != d {
		v.fault(p.Ref(), "its %s list %s is of VPC %s, %s", d, id, l.VPC, l.Direction)
	}
}
