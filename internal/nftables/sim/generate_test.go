package sim_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	n "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// The machine of the random tables: two links, two neighbours behind each.
const (
	cli = "cli0"
	srv = "srv0"
)

var (
	ifnames = []string{cli, srv}
	ends    = map[string][]netip.Addr{
		cli: {addr("10.9.1.2"), addr("10.9.1.3"), addr("fd09:1::2"), addr("fd09:1::3")},
		srv: {addr("10.9.2.2"), addr("10.9.2.3"), addr("fd09:2::2"), addr("fd09:2::3")},
	}
	own = []netip.Addr{addr("10.9.1.1"), addr("10.9.2.1"), addr("fd09:1::1"), addr("fd09:2::1")}
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// draw makes random tables of statements that a packet can meet in any order.
type draw struct {
	*rand.Rand
	id    int
	chain []string
	ports uint16
	// hook and base chain type of the rules that are drawn; regular chains have none.
	base *n.Base
}

func (d *draw) address(is4 bool) netip.Addr {
	for {
		all := append(append(append([]netip.Addr{}, ends[cli]...), ends[srv]...), own...)
		if a := pick(d.Rand, all...); a.Is4() == is4 {
			return a
		}
	}
}

func (d *draw) addresses(is4 bool) n.Value {
	if d.IntN(3) == 0 {
		return n.Addr(d.address(is4))
	}
	bits := pick(d.Rand, 8, 16, 24, 30, 31)
	if !is4 {
		bits = pick(d.Rand, 16, 32, 64, 126, 127)
	}
	return n.Prefix(netip.PrefixFrom(d.address(is4), bits))
}

func (d *draw) port() uint16 { return d.ports + uint16(d.IntN(3)) }

func (d *draw) portRange() n.Value {
	first := d.port()
	return n.PortRange(first, first+uint16(d.IntN(2)))
}

func (d *draw) mark() uint32 { return uint32(d.IntN(4)) }

// elements draws until nothing overlaps: the table's own check says so.
func (d *draw) elements(s n.Set, key func() []n.Value, value func(*n.Element)) n.Set {
	for range d.IntN(5) {
		e := n.Element{Key: key()}
		if value != nil {
			value(&e)
		}
		more := s
		more.Elements = append(append([]n.Element{}, s.Elements...), e)
		// Chains that verdicts lead to are not there yet: only keys are tried.
		plain := n.Set{Name: "s", Key: s.Key, Interval: s.Interval}
		for _, x := range more.Elements {
			plain.Elements = append(plain.Elements, n.Element{Key: x.Key})
		}
		if (n.Table{Name: "t", Sets: []n.Set{plain}}).Validate() == nil {
			s = more
		}
	}
	return s
}

func (d *draw) sets() []n.Set {
	ifname := func() n.Value { return n.IfName(pick(d.Rand, ifnames...)) }
	verdict := func(e *n.Element) { e.Verdict = d.verdict(0) }
	toMark := func(e *n.Element) { e.Data = []n.Value{n.Mark(d.mark())} }
	proto := func() n.Value { return n.Proto(pick[uint8](d.Rand, 1, 6, 17)) }
	var sets []n.Set
	for _, f := range []struct {
		suffix string
		typ    n.Type
		is4    bool
	}{{"4", n.TypeIPv4Addr, true}, {"6", n.TypeIPv6Addr, false}} {
		one := func() n.Value { return n.Addr(d.address(f.is4)) }
		some := func() n.Value { return d.addresses(f.is4) }
		sets = append(sets,
			d.elements(n.Set{Name: "exact" + f.suffix, Key: []n.Type{f.typ}}, func() []n.Value { return []n.Value{one()} }, nil),
			d.elements(n.Set{Name: "interval" + f.suffix, Key: []n.Type{f.typ}, Interval: true}, func() []n.Value { return []n.Value{some()} }, nil),
			d.elements(n.Set{Name: "port" + f.suffix, Key: []n.Type{n.TypeIfName, f.typ}}, func() []n.Value { return []n.Value{ifname(), one()} }, nil),
			d.elements(n.Set{Name: "peer" + f.suffix, Key: []n.Type{f.typ, n.TypeInetProto, n.TypeInetService}, Interval: true},
				func() []n.Value { return []n.Value{some(), proto(), d.portRange()} }, nil),
			d.elements(n.Set{Name: "verdicts" + f.suffix, Key: []n.Type{f.typ}, Data: []n.Type{n.TypeVerdict}, Interval: true},
				func() []n.Value { return []n.Value{some()} }, verdict),
			d.elements(n.Set{Name: "marks" + f.suffix, Key: []n.Type{f.typ}, Data: []n.Type{n.TypeMark}, Interval: true},
				func() []n.Value { return []n.Value{some()} }, toMark),
		)
	}
	return append(sets,
		d.elements(n.Set{Name: "by-port", Key: []n.Type{n.TypeInetProto, n.TypeInetService}, Data: []n.Type{n.TypeVerdict}},
			func() []n.Value { return []n.Value{proto(), n.Port(d.port())} }, verdict),
		d.elements(n.Set{Name: "by-name", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeVerdict}},
			func() []n.Value { return []n.Value{ifname()} }, verdict),
		d.elements(n.Set{Name: "some-marks", Key: []n.Type{n.TypeMark}, Interval: true},
			func() []n.Value { return []n.Value{n.Mark(d.mark())} }, nil),
	)
}

// verdict leads to chains behind the one with the given number only, so nothing
// goes round.
func (d *draw) verdict(after int) n.Verdict {
	kind := pick(d.Rand, n.Accept, n.Drop, n.Return, n.Continue, n.Jump, n.Jump, n.Goto, n.Goto)
	v := n.Verdict{Kind: kind}
	if kind == n.Jump || kind == n.Goto {
		if after >= len(d.chain) {
			v.Kind = n.Return
			return v
		}
		v.Chain = d.chain[after+d.IntN(len(d.chain)-after)]
	}
	return v
}

func (d *draw) condition() n.Statement {
	op := pick(d.Rand, n.Eq, n.Eq, n.Neq)
	is4 := d.IntN(2) == 0
	suffix, src, dst := "4", n.IPSaddr, n.IPDaddr
	if !is4 {
		suffix, src, dst = "6", n.IP6Saddr, n.IP6Daddr
	}
	end := pick(d.Rand, src, dst)
	name := pick(d.Rand, n.MetaIIFName, n.MetaOIFName)
	th := pick(d.Rand, n.THSport, n.THDport)
	states := []uint32{n.CTInvalid, n.CTNew, n.CTEstablished, n.CTRelated, n.CTUntracked}
	conditions := []func() n.Statement{
		func() n.Statement { return n.Match{Field: end, Op: op, Value: d.addresses(is4)} },
		func() n.Statement { return n.Lookup{Key: n.Select(end), Op: op, Set: "exact" + suffix} },
		func() n.Statement { return n.Lookup{Key: n.Select(end), Op: op, Set: "interval" + suffix} },
		func() n.Statement { return n.Lookup{Key: n.Select(name, end), Op: op, Set: "port" + suffix} },
		func() n.Statement {
			return n.Lookup{Key: n.Select(end, n.MetaL4Proto, n.THDport), Op: op, Set: "peer" + suffix}
		},
		func() n.Statement { return n.Match{Field: name, Op: op, Value: n.IfName(pick(d.Rand, ifnames...))} },
		func() n.Statement {
			return n.Match{Field: name, Op: op, Value: n.IfNamePrefix(pick(d.Rand, "c", "sr", "x"))}
		},
		func() n.Statement {
			return n.Match{Field: n.MetaL4Proto, Op: op, Value: n.Proto(pick[uint8](d.Rand, 1, 6, 17))}
		},
		func() n.Statement { return n.Match{Field: n.MetaNFProto, Op: op, Value: pick(d.Rand, n.IPv4, n.IPv6)} },
		func() n.Statement {
			return n.Match{Field: pick(d.Rand, n.UDPDport, n.UDPSport), Op: op, Value: d.portRange()}
		},
		func() n.Statement {
			return n.Match{Field: pick(d.Rand, n.TCPDport, n.TCPSport), Op: op, Value: d.portRange()}
		},
		func() n.Statement { return n.Match{Field: th, Op: op, Value: d.portRange()} },
		func() n.Statement { return n.Masked(n.TCPFlags, n.TCPSyn|n.TCPAck|n.TCPRst|n.TCPFin, n.TCPSyn) },
		func() n.Statement { return n.NoFlag(n.TCPFlags, n.TCPAck) },
		func() n.Statement { return n.Is(n.ICMPType, n.Number(n.ICMPType, pick[uint32](d.Rand, 0, 3, 8))) },
		func() n.Statement { return n.AnyFlag(n.CTState, pick(d.Rand, states...)|n.CTNew) },
		func() n.Statement { return n.NoFlag(n.CTState, pick(d.Rand, states...)) },
		func() n.Statement { return n.AnyFlag(n.CTStatus, pick(d.Rand, n.CTSNAT, n.CTDNAT, n.CTSeenReply)) },
		func() n.Statement {
			return n.Match{Field: n.CTDirection, Op: op, Value: pick(d.Rand, n.DirOriginal, n.DirReply)}
		},
		func() n.Statement { return n.Masked(n.MetaMark, 3, d.mark()) },
		func() n.Statement { return n.Match{Field: n.MetaMark, Op: op, Value: n.Mark(d.mark())} },
		func() n.Statement { return n.Masked(n.CTMark, 1, d.mark()&1) },
		func() n.Statement { return n.Match{Field: n.CTMark, Op: op, Value: n.Mark(d.mark())} },
		func() n.Statement {
			return n.Lookup{Key: []n.Selector{{Field: n.MetaMark, Mask: 2}}, Op: op, Set: "some-marks"}
		},
		func() n.Statement {
			f := pick(d.Rand, n.CTOriginalIPSaddr, n.CTOriginalIPDaddr, n.CTReplyIPSaddr, n.CTReplyIPDaddr)
			return n.Match{Field: f, Op: op, Value: d.addresses(true)}
		},
		func() n.Statement {
			f := pick(d.Rand, n.CTOriginalIP6Saddr, n.CTOriginalIP6Daddr, n.CTReplyIP6Saddr, n.CTReplyIP6Daddr)
			return n.Match{Field: f, Op: op, Value: d.addresses(false)}
		},
		func() n.Statement { return n.Match{Field: n.MetaIIFType, Op: op, Value: n.IfTypeEther} },
		func() n.Statement { return n.Is(n.EtherSaddr, n.MAC(macs[pick(d.Rand, ifnames...)])) },
	}
	return pick(d.Rand, conditions...)()
}

// action ends a rule, or not.
func (d *draw) action(after int) []n.Statement {
	is4 := d.IntN(2) == 0
	suffix, end := "4", pick(d.Rand, n.IPSaddr, n.IPDaddr)
	if !is4 {
		suffix, end = "6", pick(d.Rand, n.IP6Saddr, n.IP6Daddr)
	}
	markField := pick(d.Rand, n.MetaMark, n.CTMark)
	actions := []func() n.Statement{
		func() n.Statement { return d.verdict(after) },
		func() n.Statement { return d.verdict(after) },
		func() n.Statement { return n.Mangle{Field: markField, Value: d.mark()} },
		func() n.Statement { return n.Mangle{Field: markField, Value: d.mark() & 1, Mask: 1} },
		func() n.Statement { return n.Mangle{Field: markField, From: n.Select(end), Map: "marks" + suffix} },
		func() n.Statement { return n.Mangle{Field: n.MetaMark, From: n.Select(n.CTMark)} },
		func() n.Statement { return n.Mangle{Field: n.CTMark, From: []n.Selector{{Field: n.MetaMark, Mask: 3}}} },
	}
	if after == 0 || d.base != nil {
		actions = append(actions,
			func() n.Statement { return n.VMap{Key: n.Select(end), Map: "verdicts" + suffix} },
			func() n.Statement { return n.VMap{Key: n.Select(n.MetaL4Proto, n.THDport), Map: "by-port"} },
			func() n.Statement {
				return n.VMap{Key: n.Select(pick(d.Rand, n.MetaIIFName, n.MetaOIFName)), Map: "by-name"}
			})
	}
	if b := d.base; b != nil && b.Type == n.TypeNAT {
		to := func(kind n.NATKind) n.Statement { return n.NAT{Kind: kind, Addr: d.address(is4)} }
		if b.Hook == n.HookPostrouting {
			actions = append(actions, func() n.Statement { return n.Masquerade{} }, func() n.Statement { return to(n.SNAT) }, func() n.Statement { return to(n.SNAT) })
		}
		if b.Hook == n.HookPrerouting {
			actions = append(actions, func() n.Statement { return to(n.DNAT) }, func() n.Statement { return to(n.DNAT) })
		}
	}
	if b := d.base; b != nil && b.Hook == n.HookPrerouting && b.Type == n.TypeFilter {
		actions = append(actions, func() n.Statement { return n.Notrack{} })
	}
	return []n.Statement{pick(d.Rand, actions...)()}
}

func (d *draw) rules(chain string, after int) []n.Rule {
	var rules []n.Rule
	if d.base != nil {
		// What the kernel says of itself is no part of the test.
		rules = append(rules, n.Rule{Statements: []n.Statement{n.Is(n.MetaL4Proto, n.Proto(58)), n.Verdict{Kind: n.Accept}}})
	}
	for i := range d.IntN(5) {
		r := n.Rule{Comment: fmt.Sprintf("%d %s %d", d.id, chain, i)}
		for range d.IntN(3) {
			r.Statements = append(r.Statements, d.condition())
		}
		r.Statements = append(r.Statements, n.Counter{})
		if d.IntN(4) > 0 {
			r.Statements = append(r.Statements, d.action(after)...)
			if _, ok := r.Statements[len(r.Statements)-1].(n.VMap); ok && d.IntN(3) == 0 {
				r.Statements = append(r.Statements, n.Mangle{Field: n.MetaMark, Value: 3})
			}
		}
		rules = append(rules, r)
	}
	return rules
}

// table draws a table that is valid; the ports of its rules are from the given one on.
func table(r *rand.Rand, id int, ports uint16) n.Table {
	for {
		d := &draw{Rand: r, id: id, ports: ports, chain: []string{"r0", "r1", "r2"}}
		t := n.Table{Name: "fairlead", Sets: d.sets()}
		// Maps lead to r0 and further; rules of r0 and further do not ask maps.
		for i, name := range d.chain {
			t.Chains = append(t.Chains, n.Chain{Name: name, Rules: d.rules(name, i+1)})
		}
		// Which of two chains of one priority runs first is a matter of their history.
		priorities := []int32{-310, -150, -101, -99, 0, 10, 99, 101}
		r.Shuffle(len(priorities), func(i, j int) { priorities[i], priorities[j] = priorities[j], priorities[i] })
		for i := range 2 + d.IntN(5) {
			d.base = &n.Base{
				Type: pick(r, n.TypeFilter, n.TypeFilter, n.TypeNAT), Hook: pick(r, n.HookPrerouting, n.HookForward, n.HookPostrouting, n.HookInput),
				Priority: priorities[i], Policy: pick(r, n.PolicyAccept, n.PolicyAccept, n.PolicyDrop),
			}
			name := fmt.Sprintf("base%d", i)
			t.Chains = append(t.Chains, n.Chain{Name: name, Base: d.base, Rules: d.rules(name, 0)})
		}
		// Nothing that is for the machine itself gets to its sockets, which would answer.
		t.Chains = append(t.Chains, n.Chain{Name: "last", Base: &n.Base{Hook: n.HookInput, Priority: 1 << 20}, Rules: []n.Rule{
			{Statements: []n.Statement{n.Is(n.MetaL4Proto, n.Proto(58)), n.Verdict{Kind: n.Accept}}},
			{Statements: []n.Statement{n.Counter{}, n.Verdict{Kind: n.Drop}}, Comment: fmt.Sprintf("%d last", id)},
		}})
		if t.Validate() == nil {
			return t
		}
	}
}

// flow is a script of packets of one flow: as it is sent, and at which end.
type sent struct {
	p sim.Packet
	// answers: it is the reverse of what became of the last packet that arrived.
	answers bool
}

// packets draws a script for one table.
func packets(r *rand.Rand, ports uint16) []sent {
	var script []sent
	for range 4 + r.IntN(5) {
		in := pick(r, ifnames...)
		src := pick(r, ends[in]...)
		dst := src
		for dst == src || dst.Is4() != src.Is4() {
			dst = pick(r, append(append(append([]netip.Addr{}, ends[cli]...), ends[srv]...), own...)...)
		}
		p := sim.Packet{Src: src, Dst: dst, In: in, EtherSrc: macs[in], EtherDst: macs["node "+in]}
		port := func() uint16 { return ports + uint16(r.IntN(3)) }
		p.SrcPort, p.DstPort = port(), port()
		switch r.IntN(5) {
		case 0, 1:
			p.Protocol = packet.UDP
		case 2, 3:
			p.Protocol = packet.TCP
			p.TCPFlags = pick(r, n.TCPSyn, n.TCPSyn, n.TCPSyn, n.TCPAck, n.TCPRst, n.TCPFin|n.TCPAck, n.TCPSyn|n.TCPAck, n.TCPSyn|n.TCPFin)
			p.SrcPort = ports + uint16(len(script))*3%90 + 3 // A fresh flow: its states are no matter of the simulator.
		default:
			if !src.Is4() {
				p.Protocol = packet.UDP
				break
			}
			p.Protocol = packet.ICMP
			p.ICMPType, p.ICMPID = pick[uint8](r, 8, 8, 0), port()
			p = icmpHeader(p)
		}
		script = append(script, sent{p: p})
		if p.Protocol != packet.TCP && r.IntN(3) == 0 {
			script = append(script, sent{p: p})
		}
		if r.IntN(2) == 0 {
			script = append(script, sent{answers: true})
			if r.IntN(3) == 0 && p.Protocol != packet.TCP {
				script = append(script, sent{p: p})
			}
		}
	}
	return script
}
