package plan

import (
	"cmp"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

const (
	vniBits  = 24
	vniCount = 1 << vniBits
	vniMask  = vniCount - 1
	// mixA and mixB are odd, so that multiplying by them modulo 2²⁴ can be undone; the
	// others are their inverses.
	mixA, unmixA = 0x9e3779, 0xb382c9
	mixB, unmixB = 0x85ebcb, 0xb861e3
	// maxReserved bounds the VNIs that are remembered because a user chose them.
	maxReserved = 1024
)

// scramble maps the numbers of 24 bits onto themselves, so that VNIs that are given one
// after the other look nothing alike.
func scramble(n uint32) packet.VNI {
	n &= vniMask
	n ^= n >> 12
	n = n * mixA & vniMask
	n ^= n >> 12
	n = n * mixB & vniMask
	n ^= n >> 12
	return packet.VNI(n)
}

// position is the inverse of scramble.
func position(v packet.VNI) uint32 {
	n := uint32(v) & vniMask
	n ^= n >> 12
	n = n * unmixB & vniMask
	n ^= n >> 12
	n = n * unmixA & vniMask
	n ^= n >> 12
	return n
}

// Sequence gives VNIs. It walks once through all of them in a fixed order that looks
// random, and its place is stored before a VNI is used: what was given comes round
// again only after 16 million others, which the controller cannot write in a day. So a
// VNI is not reused within 24 hours even if it was given back while no controller ran,
// and nobody needs to keep a list of the dead.
//
// VNIs that users chose may lie ahead. They are remembered when they are seen in use,
// until the sequence has passed them.
type Sequence struct {
	// Next is the place of the next VNI.
	Next uint32
	used map[packet.VNI]bool
	// ahead are VNIs that users chose.
	ahead map[packet.VNI]bool
}

// NewSequence goes on from a place. inUse are the VNIs that objects bear, reserved those
// that were seen earlier. first says that no place was ever stored: the sequence then
// begins behind everything in use.
func NewSequence(next uint32, first bool, inUse, reserved []packet.VNI) *Sequence {
	s := &Sequence{Next: next & vniMask, used: map[packet.VNI]bool{0: true}, ahead: map[packet.VNI]bool{}}
	for _, v := range inUse {
		if v == 0 || v > packet.MaxVNI {
			continue
		}
		s.used[v] = true
		if first {
			s.Next = max(s.Next, (position(v)+1)&vniMask)
		}
	}
	for _, list := range [][]packet.VNI{inUse, reserved} {
		for _, v := range list {
			if v != 0 && v <= packet.MaxVNI && s.distance(v) < vniCount/2 {
				s.ahead[v] = true
			}
		}
	}
	return s
}

// distance is how many VNIs are given before v.
func (s *Sequence) distance(v packet.VNI) uint32 { return (position(v) - s.Next) & vniMask }

// Take gives the next VNI; false if every one of them is in use.
func (s *Sequence) Take() (packet.VNI, bool) {
	for range vniCount {
		v := scramble(s.Next)
		s.Next = (s.Next + 1) & vniMask
		taken := s.used[v] || s.ahead[v]
		delete(s.ahead, v)
		if !taken {
			s.used[v] = true
			return v, true
		}
	}
	return 0, false
}

// reserved are the VNIs to remember, sorted: the next ones, if there are too many.
func (s *Sequence) reserved() []packet.VNI {
	var out []packet.VNI
	for v := range s.ahead {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b packet.VNI) int { return cmp.Compare(s.distance(a), s.distance(b)) })
	out = out[:min(len(out), maxReserved)]
	slices.Sort(out)
	return out
}

// sequence goes on where the Record says.
func (p *planner) sequence() *Sequence {
	var inUse []packet.VNI
	for v := range p.snap.VPCs.Values() {
		inUse = append(inUse, v.VNI)
	}
	for n := range p.snap.NetNamespaces.Values() {
		inUse = append(inUse, n.VNI)
	}
	return NewSequence(p.Record.Next, !p.Record.Stored, inUse, p.Record.Reserved)
}

// nameVPCs gives a VNI to every VPC that has none, or one that an older VPC has or that
// does not fit the wire. The status is written with the conditions.
func (p *planner) nameVPCs(vnis *Sequence) {
	byAge := slices.SortedFunc(p.snap.VPCs.Values(), func(a, b *world.VPC) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	owned := map[packet.VNI]bool{}
	for _, v := range byAge {
		if v.VNI != 0 && v.VNI <= packet.MaxVNI && !owned[v.VNI] {
			owned[v.VNI] = true
			continue
		}
		if p.Objects.VPCs[v.Name] == nil {
			continue
		}
		vni, ok := p.grant(vnis, objectRef{world.KindVPC, world.Key{Name: v.Name}})
		if !ok {
			return
		}
		named := *v
		named.VNI = vni
		owned[vni] = true
		p.snap.VPCs = p.snap.VPCs.With(world.Key{Name: v.Name}, &named)
	}
}

// grant gives a VNI to an object, the same one until the world shows it.
func (p *planner) grant(vnis *Sequence, to objectRef) (packet.VNI, bool) {
	vni, ok := p.old.granted[to]
	if !ok || vnis.used[vni] {
		if vni, ok = vnis.Take(); !ok {
			return 0, false
		}
	}
	vnis.used[vni] = true
	p.out.Memory.granted[to] = vni
	return vni, true
}
