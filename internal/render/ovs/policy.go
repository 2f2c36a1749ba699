package ovs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// Comments of the flows that decide about new flows begin so, and name the policies.
const (
	// AllowedBy begins the comment of a flow that lets through what a policy allows.
	AllowedBy = "allowed by "
	// DeniedBy begins the comment of a flow that drops what one denies.
	DeniedBy = "denied by "
)

// listed is a rendered RuleList and all that it was made of.
type listed struct {
	list   intent.RuleList
	number uint32
	// used are the names of its sets, sorted.
	used []string
	// classes are the numbers of those that have an address in a set of the list, sorted, and
	// fates what the list does to each.
	classes []uint32
	fates   []fate
	// decisions are those of the fates, in order, and groups those who meet the same conduct;
	// rest are strangers. most is the place of the group whose members have no flow of their
	// own, but one for all, -1: those are the strangers.
	decisions []*decided
	groups    []treated
	rest      treated
	most      int
	// strangers are the classes that are treated like those in no set of the list, if they
	// have flows of their own.
	strangers []stranger
	// numbers are those of conducts, by key.
	numbers map[string]uint32
	flows   []of.Flow
	// tail is where the flows begin that are not about one class.
	tail int
}

// fate is what a list does to a class of peers, and the place of the flow that says so among
// the list's, counted from 1; 0: the one for all that no other flow names.
type fate struct {
	*decided
	flow int32
}

// stranger is a class by number, and the place of its flow.
type stranger struct {
	class uint32
	flow  int32
}

// decided is what certain rules do to those whom they are about.
type decided struct {
	id      string // of all rules that are about them
	conduct conduct
	key     string // of the conduct
	rules   []int  // those that decide
}

// listNumbers gives every list a number that follows from its ID.
func (r *renderer) listNumbers() map[string]uint32 {
	out, taken := make(map[string]uint32, len(r.node.RuleLists)), map[uint32]bool{0: true, missingList: true}
	for _, l := range r.node.RuleLists {
		if _, twice := out[l.ID]; !twice {
			out[l.ID] = free(taken, l.ID)
		}
	}
	return out
}

// listNumber is that of a port's list, 0 for a port without one. One that the intent
// lacks has the reserved number, which no flow knows: it allows nothing.
func (r *renderer) listNumber(id string) uint32 {
	if id == "" {
		return 0
	}
	if l, ok := r.next.lists[id]; ok {
		return l.number
	}
	return missingList
}

// missingList is a number that no list gets.
const missingList = 0xffff_ffff

// policies adds the tables of peers and the lists.
func (r *renderer) policies() {
	numbers := r.listNumbers()
	uses := map[peersKey]map[string]bool{}
	for _, l := range r.node.RuleLists {
		if _, known := r.vpcs[l.VPC]; !known {
			r.problem(l.Ref(), "VPC %q is not among the VPCs", l.VPC)
			continue
		}
		if r.next.lists[l.ID] != nil {
			r.problem(l.Ref(), "the list is there twice")
			continue
		}
		next := &listed{list: l, number: numbers[l.ID]}
		if old := r.prev.lists[l.ID]; old != nil && (&old.list == &l || old.list.Equal(l)) {
			next.used = old.used
		} else {
			next.used = setsOf(l)
		}
		r.next.lists[l.ID] = next
		key := peersKey{l.VPC, l.Direction}
		if uses[key] == nil {
			uses[key] = map[string]bool{}
		}
		for _, s := range next.used {
			uses[key][s] = true
		}
	}
	tables := map[peersKey]*renewed{}
	for key, used := range uses {
		tables[key] = newPeers(r.prev.peers[key], key, r.vpcs[key.vpc], r.addressSets(key.vpc, used))
		r.next.peers[key] = tables[key].peers
	}
	for key, p := range r.next.peers {
		for n, flows := range p.flows {
			r.part(fmt.Sprintf("peers %s %s %02d", key.vpc, key.direction, n), flows)
		}
	}
	for id, l := range r.next.lists {
		key := peersKey{l.list.VPC, l.list.Direction}
		l.render(r.prev.lists[id], tables[key])
		r.part("list "+id, l.flows)
	}
}

func setsOf(l intent.RuleList) []string {
	names := map[string]bool{}
	for _, r := range l.Rules {
		for _, s := range r.Match.Sets {
			names[s] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// addressSets are the used ones of a VPC, sorted by name.
func (r *renderer) addressSets(vpc string, used map[string]bool) []intent.AddressSet {
	first, _ := slices.BinarySearchFunc(r.node.AddressSets, vpc, func(s intent.AddressSet, vpc string) int { return cmp.Compare(s.VPC, vpc) })
	out := make([]intent.AddressSet, 0, len(used))
	for _, s := range r.node.AddressSets[first:] {
		if s.VPC != vpc {
			break
		}
		if used[s.Name] && (len(out) == 0 || out[len(out)-1].Name != s.Name) {
			out = append(out, s)
		}
	}
	return out
}

// render makes the flows, or takes those of old if nothing differs that they depend on.
func (l *listed) render(old *listed, p *renewed) {
	same := p.after && old != nil && old.number == l.number && old.list.Equal(l.list)
	if !same {
		old = nil
	} else if p.as(l.used) && (old.most < 0 || !p.renumbered) {
		list := l.list
		*l = *old
		l.list = list
		return
	}
	w := listWriter{listed: l, old: old, named: map[*int]string{}, out: TableIngressPeer, table: TableEgress, register: EgressList}
	if l.list.Direction == intent.Ingress {
		w.out, w.table, w.register = TableCommit, TableIngress, IngressList
	}
	w.write(p)
}
