package nftables_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	"pgregory.net/rapid"

	n "github.com/fairlead-sdn/fairlead/internal/nftables"
)

func addr(s string) n.Value   { return n.Addr(netip.MustParseAddr(s)) }
func prefix(s string) n.Value { return n.Prefix(netip.MustParsePrefix(s)) }

func key(values ...n.Value) []n.Value { return values }

func elements(keys ...[]n.Value) []n.Element {
	out := make([]n.Element, len(keys))
	for i, k := range keys {
		out[i].Key = k
	}
	return out
}

var drop = n.Verdict{Kind: n.Drop}

// TestValueText prints values as nft does. That the whole text is nft's is tested
// against the program where the kernel is at hand (internal/apply/nft).
func TestValueText(t *testing.T) {
	ports := n.PortRange(80, 90)
	for want, v := range map[string]n.Value{
		"10.0.0.1": addr("10.0.0.1"), "10.0.0.0/8": prefix("10.9.9.9/8"), "0.0.0.0/0": prefix("0.0.0.0/0"), "fd00::/64": prefix("fd00::1/64"),
		"10.0.0.1-10.0.0.3": n.AddrRange(netipx.MustParseIPRange("10.0.0.1-10.0.0.3")), "10.0.0.2/31": n.AddrRange(netipx.MustParseIPRange("10.0.0.2-10.0.0.3")),
		"1.2.3.4": addr("::ffff:1.2.3.4"), `"eth0"`: n.IfName("eth0"), `"flp*"`: n.IfNamePrefix("flp"), `"x\*"`: n.IfName("x*"), "0x00000010": n.Mark(0x10),
		"tcp": n.Proto(6), "200": n.Proto(200), "80": n.Port(80), "80-90": ports, "02:00:00:00:00:01": n.MAC([6]byte{2, 5: 1}),
		"missing": n.Missing, "local": n.FibLocal, "reply": n.DirReply, "echo-request": n.Number(n.ICMPType, 8), "nd-neighbor-advert": n.Number(n.ICMPv6Type, 136),
		"invalid": {},
	} {
		if got := v.String(); got != want {
			t.Errorf("text %q, want %q", got, want)
		}
	}
}

// TestNoValue refuses what the type cannot express.
func TestNoValue(t *testing.T) {
	for name, v := range map[string]n.Value{
		"no address": n.Addr(netip.Addr{}), "zone": addr("fe80::1%eth0"), "no prefix": n.Prefix(netip.Prefix{}), "no range": n.AddrRange(netipx.IPRange{}),
		"no name": n.IfName(""), "long name": n.IfName("sixteen-bytes-xx"), "long prefix": n.IfNamePrefix("fifteen-bytes-x"), "large number": n.Number(n.ICMPType, 256),
		"wide field": n.Number(n.IP6Saddr, 1), "no field": n.Number(0, 1),
	} {
		if v != (n.Value{}) {
			t.Errorf("%s: got %v, want no value", name, v)
		}
	}
}

// TestContains holds for values, prefixes and ranges of addresses.
func TestContains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")))
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "network"))), rapid.IntRange(0, 32).Draw(t, "bits"))
		v := n.Prefix(p)
		if got, want := v.Contains(n.Addr(a)), p.Contains(a); got != want {
			t.Fatalf("%s contains %s: %v, want %v", v, a, got, want)
		}
		if bits, ok := v.PrefixBits(); !ok || bits != p.Bits() {
			t.Fatalf("%s has %d bits, %v; want %d", v, bits, ok, p.Bits())
		}
	})
	if addr("10.0.0.1").Contains(n.Mark(0x0a000001)) {
		t.Error("an address contains a mark")
	}
}

// TestOverlap compares with the obvious way, on keys of one to three fields.
func TestOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fields := rapid.IntRange(1, 3).Draw(t, "fields")
		var all []n.Element
		for range rapid.IntRange(0, 8).Draw(t, "elements") {
			var k []n.Value
			for range fields {
				lo := rapid.Uint16Range(0, 12).Draw(t, "lo")
				k = append(k, n.PortRange(lo, lo+rapid.Uint16Range(0, 3).Draw(t, "more")))
			}
			all = append(all, n.Element{Key: k})
		}
		types := slices.Repeat([]n.Type{n.TypeInetService}, fields)
		table := n.Table{Name: "fairlead", Sets: []n.Set{{Name: "s", Key: types, Interval: true, Elements: all}}}
		err := table.Validate()
		if want := anyOverlap(all); (err != nil) != want {
			t.Fatalf("validate: %v, want an error: %v\n%s", err, want, table)
		}
	})
}

func anyOverlap(all []n.Element) bool {
	for i, a := range all {
		for _, b := range all[:i] {
			common := true
			for f := range a.Key {
				common = common && a.Key[f].Uint() <= b.Key[f].UintTo() && b.Key[f].Uint() <= a.Key[f].UintTo()
			}
			if common {
				return true
			}
		}
	}
	return false
}

// TestDeterministic prints the same text whatever the order of the elements.
func TestDeterministic(t *testing.T) {
	set := n.Set{Name: "s", Key: []n.Type{n.TypeIfName, n.TypeIPv4Addr}}
	for i := range 50 {
		set.Elements = append(set.Elements, n.Element{Key: key(n.IfName(string(rune('a'+i%7))), n.Addr(netip.AddrFrom4([4]byte{10, 0, byte(i % 5), byte(i)})))})
	}
	want := set.String()
	before := slices.Clone(set.Elements)
	_ = set.Sorted()
	if diff := cmp.Diff(before, set.Elements); diff != "" {
		t.Errorf("Sorted changed its set:\n%s", diff)
	}
	rand.Shuffle(len(set.Elements), func(i, j int) { set.Elements[i], set.Elements[j] = set.Elements[j], set.Elements[i] })
	if diff := cmp.Diff(want, set.String()); diff != "" {
		t.Errorf("text depends on the order of elements:\n%s", diff)
	}
}

// valid is a table without fault, which the cases of TestValidate damage.
func valid() n.Table {
	return n.Table{
		Name: "fairlead",
		Sets: []n.Set{
			{Name: "pods", Key: []n.Type{n.TypeIPv4Addr}, Interval: true, Elements: elements(key(prefix("10.0.0.0/24")), key(prefix("10.1.0.0/24")))},
			{Name: "from", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeVerdict}, Elements: []n.Element{{Key: key(n.IfName("eth0")), Verdict: n.Verdict{Kind: n.Jump, Chain: "sub"}}}},
			{Name: "port-mark", Key: []n.Type{n.TypeIfName}, Data: []n.Type{n.TypeMark}, Elements: []n.Element{{Key: key(n.IfName("eth0")), Data: key(n.Mark(1))}}},
		},
		Chains: []n.Chain{
			{Name: "forward", Base: &n.Base{Hook: n.HookForward}, Rules: []n.Rule{
				{Statements: []n.Statement{n.VMap{Key: n.Select(n.MetaIIFName), Map: "from"}}},
				{Statements: []n.Statement{n.Lookup{Key: n.Select(n.IPSaddr), Set: "pods"}, drop}, Comment: "pods"},
			}},
			{Name: "sub", Rules: []n.Rule{{Statements: []n.Statement{n.Verdict{Kind: n.Goto, Chain: "deep"}}}}},
			{Name: "deep", Rules: []n.Rule{{Statements: []n.Statement{n.Counter{}}}}},
		},
	}
}

func TestValidate(t *testing.T) {
	table := valid()
	if err := table.Validate(); err != nil {
		t.Fatalf("valid table: %v", err)
	}
	// rule puts a rule into the last chain, which runs at forward.
	rule := func(s ...n.Statement) func(*n.Table) {
		return func(t *n.Table) { t.Chains[2].Rules[0] = n.Rule{Statements: s} }
	}
	base := func(b n.Base) func(*n.Table) { return func(t *n.Table) { t.Chains[0].Base = &b } }
	element := func(set int, e n.Element) func(*n.Table) {
		return func(t *n.Table) { t.Sets[set].Elements = append(t.Sets[set].Elements, e) }
	}
	udp := n.Is(n.MetaL4Proto, n.Proto(17))
	for _, test := range []struct {
		name, want string
		damage     func(*n.Table)
	}{
		{"table name", `table: name ""`, func(t *n.Table) { t.Name = "" }},
		{"keyword", `chain: name "fwd" is a word of nft's own language`, func(t *n.Table) { t.Chains[2].Name = "fwd" }},
		{"odd name", `chain: name "1x"`, func(t *n.Table) { t.Chains[2].Name = "1x" }},
		{"long name", `want 1 to 255 bytes`, func(t *n.Table) { t.Chains[2].Name = strings.Repeat("x", 256) }},
		{"two chains", "chain sub: there are two chains of that name", func(t *n.Table) { t.Chains[2].Name = "sub" }},
		{"two sets", "set pods: there are two sets or maps of that name", func(t *n.Table) { t.Sets[1].Name = "pods" }},
		{"no key", "set pods: key:  has 0 bytes", func(t *n.Table) { t.Sets[0].Key = nil }},
		{"match type in set", "type ct_state cannot be held", func(t *n.Table) { t.Sets[0].Key = []n.Type{n.TypeCTState} }},
		{"wide key", "has 80 bytes, want 1 to 64", func(t *n.Table) { t.Sets[0].Key = slices.Repeat([]n.Type{n.TypeIPv6Addr}, 5) }},
		{"verdict in key", "type verdict cannot be held", func(t *n.Table) { t.Sets[0].Key = []n.Type{n.TypeVerdict} }},
		{"verdict with data", "map from: data: type verdict", func(t *n.Table) { t.Sets[1].Data = []n.Type{n.TypeVerdict, n.TypeMark} }},
		{"overlap", "set pods: elements 10.0.0.0/24 and 10.0.0.7 overlap", element(0, n.Element{Key: key(addr("10.0.0.7"))})},
		{"twice", `set from: elements "eth0" and "eth0" overlap`, element(1, n.Element{Key: key(n.IfName("eth0")), Verdict: drop})},
		{"wrong type", "value fd00::1 of type ipv6_addr, want ipv4_addr", element(0, n.Element{Key: key(addr("fd00::1"))})},
		{"wrong length", "2 values for ipv4_addr", element(0, n.Element{Key: key(addr("10.5.0.0"), addr("10.5.0.0"))})},
		{"range in exact set", "range \"e*\", want a single value", element(1, n.Element{Key: key(n.IfNamePrefix("e")), Verdict: drop})},
		{"no verdict", `set from: element "x": no verdict given`, element(1, n.Element{Key: key(n.IfName("x"))})},
		{"verdict in set", "only verdict maps hold verdicts", element(0, n.Element{Key: key(addr("10.5.0.0")), Verdict: drop})},
		{"data in set", "only maps hold data", element(0, n.Element{Key: key(addr("10.5.0.0")), Data: key(n.Mark(1))})},
		{"no data in map", `set port-mark: element "x": data: 0 values for mark`, element(2, n.Element{Key: key(n.IfName("x"))})},
		{"element to nowhere", `jump: there is no chain "gone"`, element(1, n.Element{Key: key(n.IfName("x")), Verdict: n.Verdict{Kind: n.Jump, Chain: "gone"}})},
		{"element to base", "jump forward: a base chain cannot be jumped to", element(1, n.Element{Key: key(n.IfName("x")), Verdict: n.Verdict{Kind: n.Jump, Chain: "forward"}})},
		{"accept with chain", `verdict accept leads to no chain, but names "sub"`, rule(n.Verdict{Kind: n.Accept, Chain: "sub"})},
		{"loop", "jumps in a circle: sub → deep → sub", rule(n.Verdict{Kind: n.Jump, Chain: "sub"})},
		{"loop through a map", "jumps in a circle", rule(n.VMap{Key: n.Select(n.MetaIIFName), Map: "from"})},
		{"route at forward", "type route runs at output only", base(n.Base{Type: n.TypeRoute, Hook: n.HookForward})},
		{"nat at forward", "type nat does not run at forward", base(n.Base{Type: n.TypeNAT, Hook: n.HookForward})},
		{"nat before conntrack", "a priority above -200, not -300", base(n.Base{Type: n.TypeNAT, Hook: n.HookPrerouting, Priority: -300})},
		{"unknown hook", "unknown hook 9", base(n.Base{Hook: 9})},
		{"unknown policy", "unknown policy 9", base(n.Base{Policy: 9})},
		{"unknown type", "unknown chain type 9", base(n.Base{Type: 9})},
		{"comment", "comment: 128 bytes are too many", func(t *n.Table) { t.Chains[2].Rules[0].Comment = strings.Repeat("x", 128) }},
		{"quote", "holds a quote or control character", func(t *n.Table) { t.Chains[2].Rules[0].Comment = `"` }},
		{"empty rule", "rule 1 of chain deep: a rule without statements", rule()},
		{"nil statement", "nil is no statement", rule(nil)},
		{"after the end", "drop ends the rule", rule(drop, n.Counter{})},
		{"no set", `there is no set or map "gone"`, rule(n.Lookup{Key: n.Select(n.IPSaddr), Set: "gone"})},
		{"map as set", "from is a map", rule(n.Lookup{Key: n.Select(n.MetaIIFName), Set: "from"})},
		{"set as map", "pods is no verdict map", rule(n.VMap{Key: n.Select(n.IPSaddr), Map: "pods"})},
		{"key of another type", "the key has type ifname, pods wants ipv4_addr", rule(n.Lookup{Key: n.Select(n.MetaIIFName), Set: "pods"})},
		{"masked address", "ip saddr takes no mask", rule(n.Lookup{Key: []n.Selector{{Field: n.IPSaddr, Mask: 1}}, Set: "pods"})},
		{"unknown field", "unknown field 200", rule(n.Match{Field: 200})},
		{"unknown comparison", "unknown comparison 7", rule(n.Match{Field: n.MetaMark, Op: 7, Value: n.Mark(1)})},
		{"value of another type", "value of type ipv6_addr, want ipv4_addr", rule(n.Is(n.IPSaddr, addr("fd00::1")))},
		{"both versions", "already asked for the other IP version", rule(n.Is(n.IPSaddr, addr("10.0.0.1")), n.Is(n.IP6Saddr, addr("fd00::1")))},
		{"both protocols", "already asked for another protocol", rule(n.Is(n.TCPDport, n.Port(1)), n.Is(n.UDPDport, n.Port(1)))},
		{"said twice", "implies meta l4proto; leave out", rule(udp, n.Is(n.UDPDport, n.Port(1)))},
		{"version said twice", "implies meta nfproto; leave out", rule(n.Is(n.MetaNFProto, n.IPv4), n.Is(n.IPSaddr, addr("10.0.0.1")))},
		{"th of a known protocol", `write tcp, udp or sctp instead of "th dport"`, rule(udp, n.Is(n.THDport, n.Port(1)))},
		{"masked port", "takes no mask", rule(n.Match{Field: n.TCPDport, Mask: 1, Value: n.Port(1)})},
		{"value outside of mask", "has bits outside of mask", rule(n.Masked(n.MetaMark, 0xff, 0x100))},
		{"unnamed flags", "bits 0x80 have no name", rule(n.AnyFlag(n.CTState, 0x80))},
		{"several flags", "compare several flags with a mask", rule(n.Is(n.CTState, n.Number(n.CTState, n.CTNew|n.CTRelated)))},
		{"set a field", "ip saddr cannot be set", rule(n.Mangle{Field: n.IPSaddr})},
		{"mangle outside of mask", "has bits outside of mask", rule(n.Mangle{Field: n.MetaMark, Value: 2, Mask: 1})},
		{"masked map", "a mark from a map or a field is written whole", rule(n.Mangle{Field: n.MetaMark, Mask: 1, From: n.Select(n.MetaIIFName), Map: "port-mark"})},
		{"mark from set", "pods is no map to marks", rule(n.Mangle{Field: n.MetaMark, From: n.Select(n.IPSaddr), Map: "pods"})},
		{"mark from itself", "can be copied from one other mark only", rule(n.Mangle{Field: n.MetaMark, From: n.Select(n.MetaMark)})},
		{"wide zone", "a zone is a constant of 16 bits", rule(n.Mangle{Field: n.CTZone, Value: 1 << 16})},
		{"unknown answer", "unknown answer 9", rule(n.Reject{With: 9})},
		{"reset without tcp", "needs a match on TCP", rule(n.Reject{With: n.RejectTCPReset})},
		{"masquerade at forward", "works in nat chains at postrouting, but the chain is reached from filter at forward", rule(n.Masquerade{})},
		{"masquerade flags", "unknown flags", rule(n.Masquerade{Flags: 1})},
		{"masquerade without protocol", "ports need a match on TCP", rule(n.Masquerade{Ports: n.Port(4000)})},
		{"masquerade to an address", "no range of ports", rule(udp, n.Masquerade{Ports: addr("10.0.0.1")})},
		{"masquerade to port 0", "no range of ports", rule(udp, n.Masquerade{Ports: n.PortRange(0, 5)})},
		{"masquerade backwards", "no range of ports", rule(udp, n.Masquerade{Ports: n.PortRange(5, 4)})},
		{"dnat at forward", "works in nat chains at prerouting and output", rule(n.NAT{Kind: n.DNAT, Addr: netip.MustParseAddr("10.0.0.1")})},
		{"nat to nothing", "is no address", rule(n.NAT{Kind: n.SNAT})},
		{"no kind of nat", "neither snat nor dnat", rule(n.NAT{Addr: netip.MustParseAddr("10.0.0.1")})},
		{"nat port", "a port needs a match", rule(n.NAT{Kind: n.SNAT, Addr: netip.MustParseAddr("10.0.0.1"), Port: 1})},
		{"nat of the other version", "the other IP version", rule(n.Is(n.IP6Saddr, addr("fd00::1")), n.NAT{Kind: n.SNAT, Addr: netip.MustParseAddr("10.0.0.1")})},
		{"notrack at forward", "works at prerouting and output", rule(n.Notrack{})},
		{"log prefix", "128 bytes are too many", rule(n.Log{Prefix: strings.Repeat("x", 128)})},
		{"fib at output", "works at prerouting, input and forward", func(t *n.Table) {
			t.Chains[0].Base.Hook = n.HookOutput
			rule(n.Is(n.FibSaddrIIF, n.Missing))(t)
		}},
		{"reject at prerouting", "works at input, forward and output", func(t *n.Table) {
			t.Chains[0].Base.Hook = n.HookPrerouting
			rule(n.Reject{})(t)
		}},
		{"too deep", "jumps are 17 deep, at most 15", func(t *n.Table) {
			for i := range 15 {
				name := "deep" + string(rune('a'+i))
				t.Chains[len(t.Chains)-1].Rules = []n.Rule{{Statements: []n.Statement{n.Verdict{Kind: n.Jump, Chain: name}}}}
				t.Chains = append(t.Chains, n.Chain{Name: name})
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := valid()
			test.damage(&table)
			err := table.Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			_ = table.String() // whatever the fault, it can be shown
		})
	}
}

// TestTableText is the shape of a whole table.
func TestTableText(t *testing.T) {
	table := valid()
	table.Chains[0].Base.Priority = 10
	const want = `table inet fairlead {
	set pods {
		type ipv4_addr
		flags interval
		elements = { 10.0.0.0/24, 10.1.0.0/24 }
	}

	map from {
		type ifname : verdict
		elements = { "eth0" : jump sub }
	}

	map port-mark {
		type ifname : mark
		elements = { "eth0" : 0x00000001 }
	}

	chain forward {
		type filter hook forward priority filter + 10; policy accept;
		iifname vmap @from
		ip saddr @pods drop comment "pods"
	}

	chain sub {
		goto deep
	}

	chain deep {
		counter
	}
}
`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if got, want := (n.Table{Name: "empty"}).String(), "table inet empty {\n}\n"; got != want {
		t.Errorf("empty table %q, want %q", got, want)
	}
}
