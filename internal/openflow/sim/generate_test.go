package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// drawn is a small random pipeline, and packets that are likely to meet its flows.
type drawn struct {
	*rand.Rand
	flows   []of.Flow
	groups  []of.Group
	packets []Packet
	cookie  uint64
	// ct allows the connection tracker.
	ct bool
}

const (
	drawnTables = 5
	drawnPorts  = 4
)

// draw makes a pipeline of a seed. Of no two flows of a table that may match the same
// packet the priority is the same, unless they are choices of a conjunction.
func draw(seed uint64, ct bool) *drawn {
	d := &drawn{Rand: rand.New(rand.NewPCG(seed, 7)), ct: ct}
	for range 6 {
		d.packets = append(d.packets, d.packet())
	}
	for id := uint32(1); id <= 3; id++ {
		g := of.Group{ID: id, Type: of.GroupType(d.IntN(3))}
		if g.Type == of.GroupSelect { // With any other method a switch goes on in another round.
			g.Method, g.Fields = of.SelectHash, []of.Field{of.EthSrc}
		}
		n := 1
		if g.Type == of.GroupAll {
			n += d.IntN(3)
		}
		for i := range n {
			b := of.Bucket{ID: uint32(i), Actions: d.actions(nil, 1, id)}
			if g.Type == of.GroupSelect {
				b.Weight = 1
			}
			g.Buckets = append(g.Buckets, b)
		}
		if g.Validate() == nil {
			d.groups = append(d.groups, g)
		}
	}
	for t := range uint8(drawnTables) {
		for i := range 2 + d.IntN(6) {
			d.add(of.Flow{Table: t, Priority: uint16(10 * (i + 1)), Match: d.match(d.packets[d.IntN(len(d.packets))])})
		}
		if d.IntN(2) == 0 {
			d.conjunction(t)
		}
		if d.IntN(3) > 0 {
			d.add(of.Flow{Table: t})
		}
	}
	return d
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

func (d *drawn) add(f of.Flow) {
	if len(f.Actions) == 0 && d.IntN(8) > 0 {
		f.Actions = d.actions(f.Match, 0, 0)
		if f.Table+1 < drawnTables && d.IntN(2) == 0 {
			f.Actions = append(f.Actions, of.GotoTable{Table: f.Table + 1 + uint8(d.IntN(drawnTables-int(f.Table)-1))})
		}
	}
	d.cookie++
	f.Cookie = d.cookie
	f.Comment = fmt.Sprint("flow ", d.cookie)
	if f.Validate() == nil {
		d.flows = append(d.flows, f)
	}
}

// conjunction adds one of two dimensions, with its result at the same or another
// priority.
func (d *drawn) conjunction(t uint8) {
	p := uint16(5 + 10*d.IntN(7))
	for clause := range uint8(2) {
		for range 1 + d.IntN(2) {
			f := of.Flow{Table: t, Priority: p, Match: d.match(d.packets[d.IntN(len(d.packets))])}
			for id := range uint32(1 + d.IntN(2)) {
				f.Actions = append(f.Actions, of.Conjunction{ID: 7 + id, Clause: clause + 1, Clauses: 2})
			}
			if d.taken(f) {
				continue
			}
			d.add(f)
		}
	}
	// Only one ID has a flow: which of several is taken would be open.
	d.add(of.Flow{Table: t, Priority: pick(d.Rand, p, 1, 99), Match: of.NewMatch(of.Eq(of.ConjID, 7))})
}

func (d *drawn) taken(f of.Flow) bool {
	for _, o := range d.flows {
		if o.Key() == f.Key() {
			return true
		}
	}
	return false
}

// packet has small values, so that others match it too.
func (d *drawn) packet() Packet {
	var p Packet
	p.set(of.InPort, 1+d.Uint64N(drawnPorts))
	p.set(of.EthSrc, 0x020000000000|d.Uint64N(4))
	p.set(of.EthDst, 0x020000000000|d.Uint64N(4))
	switch d.IntN(6) {
	case 0:
		p.set(of.EthType, of.EthTypeARP)
		p.set(of.ARPOp, 1+d.Uint64N(2))
		p.set(of.ARPSPA, 0x0a000001+d.Uint64N(4))
		p.set(of.ARPTPA, 0x0a000001+d.Uint64N(4))
		p.set(of.ARPSHA, 0x020000000000|d.Uint64N(4))
		return p
	case 1, 2:
		p.set(of.EthType, of.EthTypeIPv6)
		p.Set(of.IPv6Src, of.Value{Hi: 0xfd00 << 48, Lo: 1 + d.Uint64N(4)})
		p.Set(of.IPv6Dst, of.Value{Hi: 0xfd00 << 48, Lo: 1 + d.Uint64N(4)})
	default:
		p.set(of.EthType, of.EthTypeIPv4)
		p.set(of.IPSrc, 0x0a000001+d.Uint64N(4))
		p.set(of.IPDst, 0x0a000001+d.Uint64N(4))
	}
	p.set(of.IPTTL, pick[uint64](d.Rand, 64, 64, 3, 2, 1))
	p.set(of.IPDSCP, d.Uint64N(3))
	p.set(of.IPProto, pick[uint64](d.Rand, of.ProtoTCP, of.ProtoTCP, of.ProtoUDP, of.ProtoSCTP, 89))
	if s, t, ok := p.ports(); ok {
		p.set(s, 1000+d.Uint64N(3))
		p.set(t, 80+d.Uint64N(3))
	}
	if p.has(of.TCPFlags) {
		p.set(of.TCPFlags, of.TCPSyn)
	}
	return p
}

// match demands some of what a packet has, and now and then something else.
func (d *drawn) match(p Packet) of.Match {
	terms := []of.Term{of.EqValue(of.EthType, p.Get(of.EthType))}
	if p.has(of.IPProto) {
		terms = append(terms, of.EqValue(of.IPProto, p.Get(of.IPProto)))
	}
	fields := []of.Field{
		of.InPort, of.EthSrc, of.EthDst, of.IPSrc, of.IPDst, of.IPv6Src, of.IPv6Dst, of.IPTTL, of.IPDSCP,
		of.TCPSrc, of.TCPDst, of.UDPSrc, of.UDPDst, of.SCTPDst, of.TCPFlags, of.ARPOp, of.ARPSPA, of.ARPTPA, of.ARPSHA,
		of.Reg0, of.Reg0, of.Reg1, of.XReg1, of.XXReg1, of.Metadata, of.PktMark,
	}
	for range d.IntN(4) {
		f := fields[d.IntN(len(fields))]
		if !p.has(f) {
			continue
		}
		v, mask := p.Get(f), of.Ones(f.Bits())
		if d.IntN(6) == 0 {
			v = v.Or(of.Num(1 << d.IntN(3)))
		}
		if f.Maskable() && d.IntN(2) == 0 {
			mask = mask.And(of.Ones(d.IntN(4)).Not())
			if d.IntN(3) == 0 {
				mask = of.Num(1 + d.Uint64N(7))
			}
		}
		terms = append(terms, of.Term{Field: f, Value: v.And(mask), Mask: mask})
	}
	if d.ct && d.IntN(3) == 0 {
		terms = append(terms, pick(d.Rand,
			of.Masked(of.CTState, of.CTTracked, of.CTTracked), of.Masked(of.CTState, 0, of.CTTracked),
			of.Masked(of.CTState, of.CTTracked|of.CTNew, of.CTTracked|of.CTNew), of.Eq(of.CTZone, 1+d.Uint64N(2)),
			of.Masked(of.CTMark, 1, 1), of.Eq(of.CTMark, 0)))
	}
	return of.NewMatch(terms...)
}

func (d *drawn) actions(m of.Match, depth int, group uint32) []of.Action {
	var out []of.Action
	for range 1 + d.IntN(4) {
		a := d.action(m, depth, group)
		if (of.Flow{Match: m, Actions: append(out[:len(out):len(out)], a)}).Validate() == nil || m == nil && depth > 0 {
			out = append(out, a)
		}
	}
	return out
}

func (d *drawn) action(m of.Match, depth int, group uint32) of.Action {
	fields := []of.Field{
		of.Reg0, of.Reg0, of.Reg1, of.XReg1, of.Metadata, of.EthDst, of.IPSrc, of.IPDst, of.IPv6Dst, of.IPTTL, of.TCPDst, of.UDPDst,
		of.ARPOp, of.ARPSPA, of.PktMark, of.InPort16,
	}
	f := fields[d.IntN(len(fields))]
	switch d.IntN(14) {
	case 0, 1:
		return of.Output{Port: of.Port(1 + d.IntN(drawnPorts))}
	case 2:
		return pick[of.Action](d.Rand, of.Output{Port: of.PortInPort}, of.Output{Port: of.PortLocal}, of.OutputField{Source: of.Range(of.Reg0, 0, uint8(3+d.IntN(29)))})
	case 3, 4:
		a := of.SetField{Field: f, Value: of.Num(d.Uint64N(8))}
		if f == of.InPort16 {
			a.Value = of.Num(d.Uint64N(5))
		}
		if f.Maskable() && d.IntN(2) == 0 {
			a.Mask = of.Num(1 + d.Uint64N(7))
			a.Value = a.Value.And(a.Mask)
		}
		return a
	case 5:
		to := fields[d.IntN(len(fields))]
		if f.Maskable() && to.Maskable() {
			w := uint8(1 + d.IntN(min(f.Bits(), to.Bits())))
			return of.Move{From: of.Subfield{Field: f, Bits: w}, To: of.Subfield{Field: to, Offset: uint8(to.Bits()) - w, Bits: w}}
		}
	case 6, 7:
		// Mostly to a later table than most flows': a loop is thousands of steps.
		a := of.Resubmit{Table: drawnTables - 1 - uint8(d.IntN(2)), InPort: of.PortInPort}
		if d.IntN(12) == 0 {
			a.Table = uint8(d.IntN(drawnTables))
		}
		if d.IntN(4) == 0 {
			a.InPort = of.Port(1 + d.IntN(drawnPorts))
		}
		return a
	case 8:
		if inner := d.actions(m, depth+1, group); depth < 2 && len(inner) > 0 && (m != nil || depth > 0) {
			return of.Clone{Actions: inner}
		}
	case 9:
		return of.DecTTL{}
	case 10:
		if id := 1 + uint32(d.IntN(3)); id > group && (group > 0 || depth == 0) {
			return of.GroupAction{ID: id}
		}
	case 11:
		return pick[of.Action](d.Rand, of.CTClear{}, of.Note{Data: []byte("abcdef")})
	case 12, 13:
		if d.ct && (m != nil || depth == 0) {
			return d.ctAction()
		}
	}
	return of.Set(of.Reg0, d.Uint64N(4))
}

func (d *drawn) ctAction() of.Action {
	a := of.CT{Recirc: d.IntN(4) > 0, Commit: d.IntN(2) == 0, Zone: uint16(1 + d.IntN(2))}
	if a.Recirc {
		a.Table = uint8(1 + d.IntN(drawnTables-1))
	}
	if d.IntN(3) == 0 {
		a.Zone, a.ZoneSource = 0, of.Range(of.Reg0, 0, 1)
	}
	if a.Commit && d.IntN(2) == 0 {
		a.Exec = []of.Action{pick[of.Action](d.Rand, of.Set(of.CTMark, d.Uint64N(4)),
			of.SetField{Field: of.CTMark, Value: of.Num(1), Mask: of.Num(1)},
			of.Move{From: of.Range(of.Reg0, 0, 3), To: of.Range(of.CTMark, 0, 3)})}
	}
	return a
}

// bundle is the pipeline as ovs-ofctl reads it, in place of what was there.
func (d *drawn) bundle() string {
	var b strings.Builder
	b.WriteString("flow delete\ngroup delete\n")
	for _, g := range d.groups {
		fmt.Fprintf(&b, "group add %s\n", g)
	}
	for _, f := range d.flows {
		fmt.Fprintf(&b, "flow add %s\n", f)
	}
	return b.String()
}
