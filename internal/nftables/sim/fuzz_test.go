package sim_test

import (
	"net/netip"
	"testing"

	n "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// input makes whatever it is asked for of a fuzzer's bytes.
type input []byte

func (b *input) byte() byte {
	if len(*b) == 0 {
		return 0
	}
	x := (*b)[0]
	*b = (*b)[1:]
	return x
}

func (b *input) upTo(n int) int { return int(b.byte()) % (n + 1) }

func (b *input) name() string { return []string{"a", "b", "c", "d", ""}[b.upTo(4)] }

func (b *input) bytes16() (x [16]byte) {
	for i := range b.upTo(16) {
		x[i] = b.byte()
	}
	return x
}

func (b *input) addr() netip.Addr {
	switch b.upTo(3) {
	case 0:
		return netip.AddrFrom4([4]byte{10, 0, 0, b.byte()})
	case 1:
		return netip.AddrFrom16(b.bytes16())
	case 2:
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, 1})
}

func (b *input) types() (types []n.Type) {
	for range b.upTo(3) {
		types = append(types, n.Type(b.byte()%50))
	}
	return types
}

func (b *input) values() (values []n.Value) {
	for range b.upTo(3) {
		v := n.Value{Type: n.Type(b.byte() % 50), From: b.bytes16()}
		if v.To = v.From; b.upTo(1) == 1 {
			v.To = b.bytes16()
		}
		values = append(values, v)
	}
	return values
}

func (b *input) key() (key []n.Selector) {
	for range b.upTo(6) {
		key = append(key, n.Selector{Field: n.Field(b.byte() % 50), Mask: uint32(b.byte())})
	}
	return key
}

func (b *input) verdict() n.Verdict {
	return n.Verdict{Kind: n.VerdictKind(b.byte() % 8), Chain: b.name()}
}

func (b *input) statement() n.Statement {
	switch b.upTo(12) {
	case 0:
		m := n.Match{Field: n.Field(b.byte() % 50), Mask: uint32(b.byte()), Op: n.Op(b.byte() % 3)}
		if v := b.values(); len(v) > 0 {
			m.Value = v[0]
		}
		return m
	case 1:
		return n.Lookup{Key: b.key(), Op: n.Op(b.byte() % 3), Set: b.name()}
	case 2:
		return n.VMap{Key: b.key(), Map: b.name()}
	case 3:
		return n.Mangle{Field: n.Field(b.byte() % 50), Value: uint32(b.byte()), Mask: uint32(b.byte()), From: b.key(), Map: b.name()}
	case 4:
		return n.Counter{}
	case 5, 6:
		return b.verdict()
	case 7:
		return n.Reject{With: n.RejectWith(b.byte())}
	case 8:
		return n.Masquerade{}
	case 9:
		return n.NAT{Kind: n.NATKind(b.byte() % 4), Addr: b.addr(), Port: uint16(b.byte())}
	case 10:
		return n.Notrack{}
	case 11:
		return n.Log{}
	}
	return nil
}

func (b *input) table() n.Table {
	t := n.Table{Name: "t"}
	for range b.upTo(3) {
		s := n.Set{Name: b.name(), Key: b.types(), Interval: b.upTo(1) == 1}
		for range b.upTo(4) {
			s.Elements = append(s.Elements, n.Element{Key: b.values(), Data: b.values(), Verdict: b.verdict()})
		}
		t.Sets = append(t.Sets, s)
	}
	for range b.upTo(5) {
		c := n.Chain{Name: b.name()}
		if b.upTo(1) == 1 {
			c.Base = &n.Base{Type: n.ChainType(b.byte() % 4), Hook: n.Hook(b.byte() % 7), Priority: int32(int8(b.byte())) * 4, Policy: n.Policy(b.byte() % 3)}
		}
		for range b.upTo(4) {
			r := n.Rule{}
			for range b.upTo(4) {
				r.Statements = append(r.Statements, b.statement())
			}
			c.Rules = append(c.Rules, r)
		}
		t.Chains = append(t.Chains, c)
	}
	return t
}

func (b *input) packet() sim.Packet {
	p := sim.Packet{
		Src: b.addr(), Dst: b.addr(), SrcPort: uint16(b.byte()), DstPort: uint16(b.byte()), TCPFlags: uint32(b.byte()), ICMPType: b.byte(),
		Protocol: packet.Protocol([]byte{6, 17, 132, 1, 58, b.byte()}[b.upTo(5)]), In: b.name(), Mark: uint32(b.byte()),
	}
	if b.upTo(1) == 1 {
		p.Quoted = &sim.Tuple{Src: b.addr(), Dst: b.addr(), Protocol: packet.UDP, SrcPort: uint16(b.byte())}
	}
	if b.upTo(3) == 0 {
		p.CT = sim.CT{State: 1 << (b.byte() % 8), Reply: b.upTo(1) == 1, First: b.upTo(1) == 1, Mark: uint32(b.byte())}
	}
	return p
}

// anyRoute sends some packets to the machine itself, some on, and some nowhere.
type anyRoute struct{}

func (anyRoute) Route(p sim.Packet) sim.Route {
	switch p.Dst.AsSlice()[3] % 4 {
	case 0:
		return sim.Route{Local: true}
	case 1:
		return sim.Route{}
	}
	return sim.Route{Out: "b"}
}

func (anyRoute) Source(out string, is4 bool) (netip.Addr, bool) { return addr("10.0.0.9"), is4 }

// FuzzWalk: no table and no packet makes a walk panic or go on for ever.
func FuzzWalk(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x01\x00\x01\x01\x01\x01\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := input(data)
		table := in.table()
		rules := sim.New(table)
		node := &sim.Node{Rules: rules, Routing: anyRoute{}, Trace: true}
		for range 4 {
			p := in.packet()
			for h := range n.HookPostrouting + 1 {
				if r, err := rules.Hook(h, p, nil, true); err == nil {
					_ = r.Trace.Taken().String()
				}
			}
			for _, walk := range []func(sim.Packet) (sim.Journey, error){node.Receive, node.Send} {
				j, err := walk(p)
				if err == nil && table.Validate() == nil && j.Local && j.Packet.Out != "" && j.Packet.In == "" {
					t.Errorf("a packet that was sent is delivered: %+v", j)
				}
			}
			for _, f := range node.Flows.All() {
				f.Mark++
			}
		}
	})
}
