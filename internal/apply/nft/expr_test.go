package nft_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	n "github.com/fairlead-sdn/fairlead/internal/nftables"
)

func addr(s string) n.Value   { return n.Addr(netip.MustParseAddr(s)) }
func prefix(s string) n.Value { return n.Prefix(netip.MustParsePrefix(s)) }

func verdict(k n.VerdictKind, chain ...string) n.Verdict {
	v := n.Verdict{Kind: k}
	if len(chain) > 0 {
		v.Chain = chain[0]
	}
	return v
}

var accept = verdict(n.Accept)

func elements(keys ...[]n.Value) []n.Element {
	out := make([]n.Element, len(keys))
	for i, k := range keys {
		out[i].Key = k
	}
	return out
}

func key(values ...n.Value) []n.Value { return values }

func mac(last byte) n.Value { return n.MAC([6]byte{2, 0, 0, 0, 0, last}) }

// allSets has a set or map of every kind.
func allSets() []n.Set {
	return []n.Set{
		{Name: "empty", Key: []n.Type{n.TypeIPv4Addr}},
		{Name: "v4", Key: []n.Type{n.TypeIPv4Addr}, Elements: elements(key(addr("10.0.0.9")), key(addr("10.0.0.1")), key(addr("9.255.0.1")))},
		{Name: "v6", Key: []n.Type{n.TypeIPv6Addr}, Elements: elements(key(addr("fd00::2")), key(addr("fd00::1")))},
		{Name: "macs", Key: []n.Type{n.TypeEtherAddr}, Elements: elements(key(mac(9)), key(mac(1)))},
		{Name: "protos", Key: []n.Type{n.TypeInetProto}, Elements: elements(key(n.Proto(132)), key(n.Proto(6)), key(n.Proto(17)), key(n.Proto(1)), key(n.Proto(58)), key(n.Proto(200)))},
		{Name: "ports", Key: []n.Type{n.TypeInetService}, Elements: elements(key(n.Port(443)), key(n.Port(80)))},
		{Name: "names", Key: []n.Type{n.TypeIfName}, Elements: elements(key(n.IfName("flpbbbbbbbbbbbb")), key(n.IfName("eth1")), key(n.IfName("fwd")), key(n.IfName("eth0")))},
		{Name: "marks", Key: []n.Type{n.TypeMark}, Elements: elements(key(n.Mark(0x1000)), key(n.Mark(2)), key(n.Mark(0xfffffff0)))},
		{Name: "nets4", Key: []n.Type{n.TypeIPv4Addr}, Interval: true, Elements: elements(
			key(prefix("255.255.255.0/24")), key(prefix("0.0.0.0/8")), key(prefix("10.0.0.0/25")), key(prefix("10.0.0.128/25")),
			key(n.AddrRange(rng("10.1.0.1", "10.1.0.5"))), key(addr("10.1.0.6")))},
		{Name: "nets6", Key: []n.Type{n.TypeIPv6Addr}, Interval: true, Elements: elements(
			key(prefix("fd00::/64")), key(prefix("2001:db8::/32")), key(n.AddrRange(rng("fd01::1", "fd01::5"))), key(addr("::1")), key(prefix("ff00::/8")))},
		{Name: "all4", Key: []n.Type{n.TypeIPv4Addr}, Interval: true, Elements: elements(key(prefix("0.0.0.0/0")))},
		{Name: "portranges", Key: []n.Type{n.TypeInetService}, Interval: true, Constant: true, Elements: elements(
			key(n.PortRange(60000, 65535)), key(n.PortRange(0, 79)), key(n.Port(443)), key(n.PortRange(512, 1023)))},
		{Name: "markranges", Key: []n.Type{n.TypeMark}, Interval: true, Elements: elements(key(markRange(0x10, 0x1f)), key(n.Mark(0x25)), key(markRange(0x26, 0x29)))},
		{Name: "spoof4", Key: []n.Type{n.TypeIfName, n.TypeIPv4Addr}, Elements: elements(
			key(n.IfName("eth1"), addr("10.0.0.2")), key(n.IfName("eth0"), addr("10.0.0.3")), key(n.IfName("eth0"), addr("10.0.0.1")))},
		{Name: "spoof6", Key: []n.Type{n.TypeIfName, n.TypeIPv6Addr}, Elements: elements(key(n.IfName("eth1"), addr("fe80::1")))},
		{Name: "spoofmac", Key: []n.Type{n.TypeIfName, n.TypeEtherAddr, n.TypeIPv4Addr}, Elements: elements(key(n.IfName("eth1"), mac(1), addr("10.0.0.2")))},
		{Name: "marked4", Key: []n.Type{n.TypeMark, n.TypeIPv4Addr}, Elements: elements(key(n.Mark(5), addr("10.0.0.2")), key(n.Mark(0x10), addr("10.0.0.1")))},
		{Name: "peers4", Key: []n.Type{n.TypeMark, n.TypeIPv4Addr}, Interval: true, Counter: true, Elements: elements(
			key(n.Mark(5), prefix("10.0.0.0/24")), key(n.Mark(6), prefix("10.0.0.0/16")), key(n.Mark(5), addr("10.9.0.1")))},
		{Name: "services", Key: []n.Type{n.TypeIPv4Addr, n.TypeInetProto, n.TypeInetService}, Interval: true, Elements: elements(
			key(prefix("10.0.0.0/8"), n.Proto(6), n.PortRange(80, 90)), key(prefix("0.0.0.0/0"), n.Proto(6), n.Port(22)),
			key(addr("1.1.1.1"), n.Proto(17), n.PortRange(0, 65535)), key(n.AddrRange(rng("1.1.1.1", "1.1.1.5")), n.Proto(6), n.Port(443)))},
		{Name: "protoports", Key: []n.Type{n.TypeInetProto, n.TypeInetService}, Elements: elements(
			key(n.Proto(6), n.Port(80)), key(n.Proto(17), n.Port(53)), key(n.Proto(200), n.Port(5)))},
		{Name: "from-port", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeVerdict}, Elements: []n.Element{
			{Key: key(n.IfName("eth1")), Verdict: verdict(n.Jump, "sub")},
			{Key: key(n.IfName("eth0")), Verdict: accept},
			{Key: key(n.IfName("eth2")), Verdict: verdict(n.Goto, "sub")},
			{Key: key(n.IfName("eth3")), Verdict: verdict(n.Drop)},
			{Key: key(n.IfName("eth4")), Verdict: verdict(n.Return)},
			{Key: key(n.IfName("eth5")), Verdict: verdict(n.Continue)},
		}},
		{Name: "port-mark", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeMark}, Counter: true, Elements: []n.Element{
			{Key: key(n.IfName("eth1")), Data: key(n.Mark(0x20))}, {Key: key(n.IfName("eth0")), Data: key(n.Mark(0x10))},
		}},
		{Name: "vpc-of4", Key: []n.Type{n.TypeIPv4Addr}, Data: []n.Type{n.TypeMark}, Interval: true, Elements: []n.Element{
			{Key: key(prefix("10.0.0.0/8")), Data: key(n.Mark(5))},
			{Key: key(addr("1.2.3.4")), Data: key(n.Mark(7))},
			{Key: key(n.AddrRange(rng("11.0.0.1", "11.0.0.3"))), Data: key(n.Mark(6))},
		}},
		{Name: "vpc-of6", Key: []n.Type{n.TypeIPv6Addr}, Data: []n.Type{n.TypeMark}, Interval: true, Elements: []n.Element{
			{Key: key(prefix("fd00::/64")), Data: key(n.Mark(5))},
		}},
		{Name: "marked-verdict", Key: []n.Type{n.TypeMark}, Data: []n.Type{n.TypeVerdict}, Elements: []n.Element{
			{Key: key(n.Mark(0x100)), Verdict: verdict(n.Goto, "sub")}, {Key: key(n.Mark(5)), Verdict: verdict(n.Drop)},
		}},
		{Name: "dispatch", Key: []n.Type{n.TypeIfName, n.TypeInetProto, n.TypeInetService}, Data: []n.Type{n.TypeVerdict}, Elements: []n.Element{
			{Key: key(n.IfName("eth1"), n.Proto(6), n.Port(80)), Verdict: verdict(n.Jump, "sub")},
		}},
		{Name: "net-verdict", Key: []n.Type{n.TypeIPv4Addr}, Data: []n.Type{n.TypeVerdict}, Interval: true, Counter: true, Elements: []n.Element{
			{Key: key(prefix("10.0.0.0/8")), Verdict: verdict(n.Drop)}, {Key: key(prefix("11.0.0.0/8")), Verdict: verdict(n.Jump, "sub")},
		}},
		{Name: "to-addr", Key: []n.Type{n.TypeInetService}, Data: []n.Type{n.TypeIPv4Addr}, Elements: []n.Element{
			{Key: key(n.Port(80)), Data: key(addr("10.0.0.1"))},
		}},
		{Name: "to-pair", Key: []n.Type{n.TypeIPv4Addr}, Data: []n.Type{n.TypeIPv4Addr, n.TypeInetService}, Elements: []n.Element{
			{Key: key(addr("10.0.0.9")), Data: key(addr("10.0.0.1"), n.Port(8080))},
		}},
		{Name: "to-name", Key: []n.Type{n.TypeIPv4Addr}, Data: []n.Type{n.TypeIfName}, Elements: []n.Element{
			{Key: key(addr("10.0.0.9")), Data: key(n.IfName("eth0"))},
		}},
	}
}

// matchRules has a rule for every expression that works at prerouting.
func matchRules() [][]n.Statement {
	one := func(s ...n.Statement) []n.Statement { return append(s, accept) }
	masked := func(f n.Field, mask uint32, op n.Op, value uint32) n.Match {
		return n.Match{Field: f, Mask: mask, Op: op, Value: n.Number(f, value)}
	}
	rules := [][]n.Statement{
		one(n.Is(n.MetaIIFName, n.IfName("eth0"))), one(n.IsNot(n.MetaIIFName, n.IfName("eth0"))), one(n.Is(n.MetaOIFName, n.IfName("fwd"))),
		one(n.Is(n.MetaIIFName, n.IfNamePrefix("flp"))), one(n.IsNot(n.MetaOIFName, n.IfNamePrefix("flp"))), one(n.Is(n.MetaIIFName, n.IfName("flp*"))),
		one(n.IsNot(n.MetaIIFName, n.IfNamePrefix("flp")), n.IsNot(n.MetaIIFName, n.IfName("eth0")), n.Is(n.MetaOIFName, n.IfName("eth0")), n.IsNot(n.MetaIIFName, n.IfName("fwd"))),
		one(n.NoFlag(n.MetaMark, 1), n.AnyFlag(n.MetaMark, 2), n.IsNot(n.MetaMark, n.Mark(5)), n.Masked(n.MetaMark, 8, 8)),
		one(n.Is(n.IPDaddr, prefix("10.0.0.0/8")), n.IsNot(n.IPDaddr, addr("10.0.0.1")), n.IsNot(n.IPDaddr, addr("10.0.0.2"))),
		one(n.Is(n.MetaIIFType, n.IfTypeLoopback)), one(n.IsNot(n.MetaIIFType, n.IfTypeEther)), one(n.Is(n.MetaIIFType, n.Number(n.MetaIIFType, 65534))),
		one(n.Is(n.MetaNFProto, n.IPv4)), one(n.IsNot(n.MetaNFProto, n.IPv6)),
		one(n.Is(n.MetaL4Proto, n.Proto(6))), one(n.IsNot(n.MetaL4Proto, n.Proto(58))), one(n.Is(n.MetaL4Proto, n.Proto(200))),
		one(n.Is(n.MetaMark, n.Mark(0x10))), one(n.IsNot(n.MetaMark, n.Mark(0x10))), one(n.Masked(n.MetaMark, 0xff00, 0x1200)),
		one(masked(n.MetaMark, 0xff, n.Neq, 0)), one(masked(n.MetaMark, 1, n.Eq, 1)), one(n.NoFlag(n.MetaMark, 1)),
		one(n.Is(n.MetaPktType, n.PktHost)), one(n.IsNot(n.MetaPktType, n.PktOther)), one(n.Is(n.MetaPktType, n.PktBroadcast)), one(n.Is(n.MetaPktType, n.PktMulticast)),
		one(n.Is(n.EtherSaddr, mac(1))), one(n.IsNot(n.EtherDaddr, mac(1))), one(n.Is(n.EtherSaddr, mac(1)), n.Is(n.IPSaddr, addr("10.0.0.1"))),
		one(n.Is(n.IPSaddr, addr("10.0.0.1")), n.Is(n.EtherSaddr, mac(1))), one(n.Is(n.EtherSaddr, mac(1)), n.Is(n.IP6Saddr, addr("fd00::1"))),
		one(n.Is(n.IPSaddr, addr("10.0.0.1"))), one(n.Is(n.IPDaddr, prefix("10.0.0.0/8"))), one(n.IsNot(n.IPDaddr, prefix("10.16.0.0/12"))),
		one(n.Is(n.IPDaddr, prefix("0.0.0.0/0"))), one(n.Is(n.IPDaddr, prefix("128.0.0.0/1"))), one(n.Is(n.IPDaddr, prefix("10.0.0.1/32"))),
		one(n.Is(n.IPDaddr, n.AddrRange(rng("10.0.0.1", "10.0.0.5")))), one(n.IsNot(n.IPSaddr, n.AddrRange(rng("10.0.0.1", "10.0.0.5")))),
		one(n.Is(n.IP6Saddr, addr("fd00::1"))), one(n.IsNot(n.IP6Daddr, addr("fd00::1"))), one(n.Is(n.IP6Daddr, prefix("fe80::/10"))), one(n.Is(n.IP6Daddr, prefix("fd00::/64"))),
		one(n.Is(n.IP6Saddr, n.AddrRange(rng("fd00::1", "fd00::5")))),
		one(n.Is(n.THDport, n.Port(80))), one(n.IsNot(n.THSport, n.PortRange(80, 90))),
		one(n.Is(n.TCPDport, n.Port(80))), one(n.IsNot(n.TCPDport, n.Port(80))), one(n.Is(n.TCPSport, n.PortRange(1024, 65535))),
		one(n.Is(n.UDPDport, n.Port(53))), one(n.IsNot(n.UDPSport, n.PortRange(53, 60))), one(n.Is(n.SCTPDport, n.Port(80))), one(n.Is(n.SCTPSport, n.Port(80))),
		one(n.Is(n.IPSaddr, addr("10.0.0.1")), n.Is(n.IPDaddr, addr("10.0.0.2")), n.Is(n.TCPSport, n.Port(1)), n.Is(n.TCPDport, n.Port(80))),
		one(n.Is(n.TCPDport, n.Port(80)), n.Is(n.IPSaddr, addr("10.0.0.1"))),
		one(n.Is(n.ICMPType, n.Number(n.ICMPType, 8))), one(n.IsNot(n.ICMPType, n.Number(n.ICMPType, 8))), one(n.Is(n.ICMPType, n.Number(n.ICMPType, 19))),
		one(n.Is(n.ICMPv6Type, n.Number(n.ICMPv6Type, 135))), one(n.Is(n.ICMPv6Type, n.Number(n.ICMPv6Type, 200))),
		one(n.Is(n.IP6Saddr, addr("fd00::1")), n.Is(n.ICMPv6Type, n.Number(n.ICMPv6Type, 128))),
		one(n.AnyFlag(n.CTState, n.CTEstablished|n.CTRelated)), one(n.AnyFlag(n.CTState, n.CTNew)), one(n.AnyFlag(n.CTState, n.CTInvalid|n.CTUntracked|n.CTNew)),
		one(n.NoFlag(n.CTState, n.CTInvalid)), one(n.NoFlag(n.CTState, n.CTEstablished|n.CTRelated)), one(n.IsNot(n.CTState, n.Number(n.CTState, n.CTNew))),
		one(n.Is(n.CTState, n.Number(n.CTState, n.CTNew))), one(n.Masked(n.CTState, n.CTNew|n.CTRelated, n.CTNew)),
		one(n.AnyFlag(n.CTStatus, n.CTDNAT)), one(n.NoFlag(n.CTStatus, n.CTDNAT)), one(n.Masked(n.CTStatus, n.CTDNAT, n.CTDNAT)), one(n.Masked(n.CTStatus, n.CTDNAT|n.CTSNAT, n.CTSNAT)),
		one(masked(n.CTStatus, n.CTDNAT, n.Neq, n.CTDNAT)),
		one(n.Is(n.CTDirection, n.DirOriginal)), one(n.Is(n.CTDirection, n.DirReply)),
		one(n.Is(n.CTMark, n.Mark(0x10))), one(n.Masked(n.CTMark, 1<<28, 1<<28)), one(n.NoFlag(n.CTMark, 1<<28)), one(masked(n.CTMark, 1<<28, n.Neq, 0)),
		one(n.Is(n.CTZone, n.Number(n.CTZone, 5))), one(n.IsNot(n.CTZone, n.Number(n.CTZone, 5))),
		one(n.AnyFlag(n.TCPFlags, n.TCPSyn)), one(n.NoFlag(n.TCPFlags, n.TCPSyn)), one(n.AnyFlag(n.TCPFlags, n.TCPSyn|n.TCPAck)), one(n.NoFlag(n.TCPFlags, n.TCPSyn|n.TCPAck)),
		one(n.Masked(n.TCPFlags, n.TCPFin|n.TCPSyn|n.TCPRst|n.TCPAck, n.TCPSyn)), one(masked(n.TCPFlags, n.TCPFin|n.TCPSyn|n.TCPRst|n.TCPAck, n.Neq, n.TCPSyn)),
		one(n.Masked(n.TCPFlags, n.TCPSyn|n.TCPAck, n.TCPSyn|n.TCPAck)), one(n.Masked(n.TCPFlags, n.TCPSyn, n.TCPSyn)), one(n.Is(n.TCPFlags, n.Number(n.TCPFlags, n.TCPSyn))),
		one(n.Is(n.FibDaddrType, n.FibLocal)), one(n.IsNot(n.FibDaddrType, n.FibLocal)), one(n.Is(n.FibSaddrType, n.FibBroadcast)), one(n.Is(n.FibDaddrType, n.FibMulticast)),
		one(n.Is(n.FibSaddrIIF, n.Missing)), one(n.Is(n.FibSaddrIIF, n.Exists)), one(n.Is(n.FibSaddr, n.Missing)),
	}
	for _, f := range []n.Field{n.CTOriginalIPSaddr, n.CTOriginalIPDaddr, n.CTReplyIPSaddr, n.CTReplyIPDaddr} {
		rules = append(rules, one(n.Is(f, addr("10.0.0.1"))), one(n.Is(f, prefix("10.0.0.0/12"))), one(n.Is(f, n.AddrRange(rng("10.0.0.1", "10.0.0.3")))))
	}
	for _, f := range []n.Field{n.CTOriginalIP6Saddr, n.CTOriginalIP6Daddr, n.CTReplyIP6Saddr, n.CTReplyIP6Daddr} {
		rules = append(rules, one(n.Is(f, addr("fd00::1"))), one(n.IsNot(f, prefix("fe80::/10"))))
	}
	return rules
}

// actionRules has a rule for every lookup and action that works at prerouting.
func actionRules() [][]n.Statement {
	look := func(set string, fields ...n.Field) n.Lookup { return n.Lookup{Key: n.Select(fields...), Set: set} }
	not := func(l n.Lookup) n.Lookup { l.Op = n.Neq; return l }
	vmap := func(name string, fields ...n.Field) n.VMap { return n.VMap{Key: n.Select(fields...), Map: name} }
	return [][]n.Statement{
		{look("v4", n.IPSaddr), accept},
		{not(look("v4", n.IPDaddr)), accept},
		{look("v6", n.IP6Saddr), accept},
		{look("macs", n.EtherSaddr), accept},
		{look("protos", n.MetaL4Proto), accept},
		{look("ports", n.TCPDport), accept},
		{look("names", n.MetaIIFName), accept},
		{look("marks", n.MetaMark), accept},
		{look("marks", n.CTMark), accept},
		{look("nets4", n.IPSaddr), accept},
		{not(look("nets4", n.IPDaddr)), verdict(n.Drop)},
		{look("nets6", n.IP6Daddr), accept},
		{look("portranges", n.UDPDport), accept},
		{look("protos", n.MetaL4Proto), look("portranges", n.THDport), accept},
		{look("markranges", n.MetaMark), accept},
		{look("spoof4", n.MetaIIFName, n.IPSaddr), accept},
		{not(look("spoof4", n.MetaIIFName, n.IPSaddr)), verdict(n.Drop)},
		{look("spoof6", n.MetaIIFName, n.IP6Saddr), accept},
		{look("spoofmac", n.MetaIIFName, n.EtherSaddr, n.IPSaddr), accept},
		{look("marked4", n.MetaMark, n.IPDaddr), accept},
		{look("peers4", n.MetaMark, n.IPDaddr), accept},
		{look("services", n.IPDaddr, n.MetaL4Proto, n.THDport), accept},
		{look("protoports", n.MetaL4Proto, n.THDport), accept},
		{look("nets4", n.CTOriginalIPSaddr), accept},
		{n.Lookup{Key: []n.Selector{{Field: n.MetaMark, Mask: 0xff}}, Set: "marks"}, accept},
		{n.Lookup{Key: []n.Selector{{Field: n.CTMark, Mask: 0xff}}, Op: n.Neq, Set: "marks"}, accept},
		{n.Lookup{Key: []n.Selector{{Field: n.MetaMark, Mask: 0xff}, {Field: n.IPDaddr}}, Set: "marked4"}, accept},
		{n.Lookup{Key: []n.Selector{{Field: n.CTMark, Mask: 0xff}, {Field: n.IPDaddr}}, Set: "peers4"}, accept},
		{vmap("from-port", n.MetaIIFName)},
		{vmap("dispatch", n.MetaIIFName, n.MetaL4Proto, n.THDport)},
		{vmap("net-verdict", n.IPDaddr)},
		{n.VMap{Key: []n.Selector{{Field: n.MetaMark, Mask: 0x3ff3fff}}, Map: "marked-verdict"}},
		{n.Mangle{Field: n.MetaMark, Value: 0x10}},
		{n.Mangle{Field: n.MetaMark, Value: 0x1200, Mask: 0xff00}},
		{n.Mangle{Field: n.MetaMark, Mask: 1}},
		{n.Mangle{Field: n.MetaMark, Value: 1, Mask: 1}},
		{n.Mangle{Field: n.MetaMark, From: n.Select(n.MetaIIFName), Map: "port-mark"}},
		{n.Mangle{Field: n.MetaMark, From: n.Select(n.IPDaddr), Map: "vpc-of4"}},
		{n.Mangle{Field: n.MetaMark, From: n.Select(n.IP6Daddr), Map: "vpc-of6"}},
		{n.Mangle{Field: n.CTMark, From: n.Select(n.IPDaddr), Map: "vpc-of4"}},
		{n.Mangle{Field: n.MetaMark, From: n.Select(n.CTMark)}},
		{n.Mangle{Field: n.CTMark, From: []n.Selector{{Field: n.MetaMark, Mask: 0xff}}}},
		{n.Mangle{Field: n.CTMark, Value: 0x10}},
		{n.Mangle{Field: n.CTMark, Value: 1 << 28, Mask: 1 << 28}},
		{n.Mangle{Field: n.CTMark, Mask: 1 << 29}},
		{n.Mangle{Field: n.CTMark, Value: 0x1200, Mask: 0xff00}},
		{n.Mangle{Field: n.CTZone, Value: 5}},
		{n.Counter{}},
		{n.Counter{}, accept},
		{verdict(n.Drop)},
		{verdict(n.Return)},
		{verdict(n.Continue)},
		{verdict(n.Jump, "sub")},
		{verdict(n.Goto, "sub")},
		{n.Notrack{}},
		{n.Log{Group: 5, Prefix: "fairlead ", Snaplen: 64}},
		{n.Log{}},
		{n.Log{Group: 1}},
	}
}

func numbered(rules [][]n.Statement) []n.Rule {
	out := make([]n.Rule, len(rules))
	for i, r := range rules {
		out[i].Statements = r
	}
	return out
}

func fullTable() n.Table {
	base := func(t n.ChainType, h n.Hook, p int32) *n.Base { return &n.Base{Type: t, Hook: h, Priority: p} }
	hooks := []n.Chain{
		{Name: "i1", Base: base(n.TypeFilter, n.HookInput, -10)},
		{Name: "i2", Base: base(n.TypeFilter, n.HookInput, 60)},
		{Name: "i3", Base: base(n.TypeFilter, n.HookInput, 61)},
		{Name: "o1", Base: base(n.TypeRoute, n.HookOutput, -155)},
		{Name: "o2", Base: base(n.TypeNAT, n.HookOutput, -100)},
		{Name: "p1", Base: base(n.TypeFilter, n.HookPrerouting, -1<<31)},
		{Name: "p2", Base: base(n.TypeFilter, n.HookPrerouting, 1<<31-1)},
		{Name: "p3", Base: base(n.TypeFilter, n.HookPostrouting, 225)},
		{Name: "p4", Base: &n.Base{Type: n.TypeFilter, Hook: n.HookForward, Policy: n.PolicyDrop}},
	}
	return n.Table{Name: "fairlead", Sets: allSets(), Chains: append(hooks,
		n.Chain{Name: "sub", Rules: []n.Rule{{Statements: []n.Statement{n.Counter{}, verdict(n.Return)}, Comment: "the end of it"}}},
		n.Chain{Name: "matches", Base: base(n.TypeFilter, n.HookPrerouting, -310), Rules: numbered(matchRules())},
		n.Chain{Name: "actions", Base: base(n.TypeFilter, n.HookPrerouting, -300), Rules: numbered(actionRules())},
		n.Chain{Name: "refuse", Base: base(n.TypeFilter, n.HookForward, 10), Rules: numbered([][]n.Statement{
			{n.Reject{}},
			{n.Reject{With: n.RejectNoRoute}},
			{n.Reject{With: n.RejectHostUnreachable}},
			{n.Reject{With: n.RejectAdminProhibited}},
			{n.Is(n.MetaL4Proto, n.Proto(6)), n.Reject{With: n.RejectTCPReset}},
			{n.Is(n.TCPDport, n.Port(80)), n.Counter{}, n.Reject{With: n.RejectTCPReset}},
		})},
		n.Chain{Name: "post", Base: base(n.TypeNAT, n.HookPostrouting, 95), Rules: numbered([][]n.Statement{
			{n.Masquerade{}},
			{n.Masquerade{Flags: n.NATFullyRandom}},
			{n.Masquerade{Flags: n.NATRandom | n.NATPersistent}},
			{n.Is(n.MetaL4Proto, n.Proto(6)), n.Masquerade{Ports: n.PortRange(32768, 60999), Flags: n.NATFullyRandom}},
			{n.Is(n.UDPDport, n.Port(53)), n.Masquerade{Ports: n.Port(5353)}},
			{n.NAT{Kind: n.SNAT, Addr: netip.MustParseAddr("10.0.0.1")}},
			{n.NAT{Kind: n.SNAT, Addr: netip.MustParseAddr("fd00::1"), Flags: n.NATPersistent}},
			{n.Is(n.IPSaddr, prefix("10.0.0.0/8")), n.IsNot(n.MetaOIFName, n.IfName("eth0")), n.NAT{Kind: n.SNAT, Addr: netip.MustParseAddr("10.0.0.1")}},
		})},
		n.Chain{Name: "pre", Base: base(n.TypeNAT, n.HookPrerouting, -90), Rules: numbered([][]n.Statement{
			{n.NAT{Kind: n.DNAT, Addr: netip.MustParseAddr("10.0.0.1")}},
			{n.Is(n.TCPDport, n.Port(80)), n.NAT{Kind: n.DNAT, Addr: netip.MustParseAddr("10.0.0.1"), Port: 8080}},
			{n.Is(n.MetaL4Proto, n.Proto(17)), n.NAT{Kind: n.DNAT, Addr: netip.MustParseAddr("fd00::1"), Port: 53, Flags: n.NATRandom}},
		})},
	)}
}

// TestText compares, for every set, expression and statement, what nft prints of
// the kernel's table with our own text.
func TestText(t *testing.T) {
	needNFT(t)
	table := fullTable()
	for _, plain := range []bool{true, false} {
		ns := testNS(t)
		d := open(t, nft.Config{NetNS: ns, Plain: plain})
		apply(t, d, table)
		if diff := cmp.Diff(listed(t, ns), table.String()); diff != "" {
			t.Errorf("plain %v: text differs from nft's (-nft +ours):\n%s", plain, diff)
		}
		if again := apply(t, d, table); !again.Empty() {
			t.Errorf("plain %v: applied again: %+v, want nothing", plain, again)
		}
		if err := d.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if again := apply(t, d, table); !again.Empty() {
			t.Errorf("plain %v: applied after reading back: %+v, want nothing", plain, again)
		}
		if found, err := d.Audit(t.Context(), table); err != nil || len(found) > 0 {
			t.Errorf("plain %v: audit: %v %v, want nothing", plain, found, err)
		}
	}
}

// TestTextReadable feeds our text to nft, which must take it.
func TestTextReadable(t *testing.T) {
	needNFT(t)
	ns := testNS(t)
	file := t.TempDir() + "/table.nft"
	writeFile(t, file, fullTable().String())
	run(t, ns, "nft", "-f", file)
	if diff := cmp.Diff(listed(t, ns), fullTable().String()); diff != "" {
		t.Errorf("nft read our text otherwise (-nft +ours):\n%s", diff)
	}
}
