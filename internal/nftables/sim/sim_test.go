package sim_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	n "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

var (
	count  = n.Counter{}
	accept = n.Verdict{Kind: n.Accept}
	drop   = n.Verdict{Kind: n.Drop}
	back   = n.Verdict{Kind: n.Return}
)

func jump(to string) n.Verdict         { return n.Verdict{Kind: n.Jump, Chain: to} }
func goTo(to string) n.Verdict         { return n.Verdict{Kind: n.Goto, Chain: to} }
func setMark(m uint32) n.Mangle        { return n.Mangle{Field: n.MetaMark, Value: m} }
func addMark(m uint32) n.Mangle        { return n.Mangle{Field: n.MetaMark, Value: m, Mask: m} }
func filter(h n.Hook, p int32) *n.Base { return &n.Base{Hook: h, Priority: p} }

func chain(name string, base *n.Base, rules ...[]n.Statement) n.Chain {
	c := n.Chain{Name: name, Base: base}
	for _, s := range rules {
		c.Rules = append(c.Rules, n.Rule{Statements: s, Comment: name})
	}
	return c
}

func rule(s ...n.Statement) []n.Statement { return s }

func udp(src, dst string) sim.Packet {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return sim.Packet{Src: s.Addr(), Dst: d.Addr(), SrcPort: s.Port(), DstPort: d.Port(), Protocol: packet.UDP, In: "in0"}
}

// TestVerdicts holds how chains end: what is in the mark has run.
func TestVerdicts(t *testing.T) {
	forward := n.HookForward
	for _, tt := range []struct {
		name    string
		chains  []n.Chain
		dropped bool
		mark    uint32
	}{
		{"no chain", nil, false, 0},
		{"by priority", []n.Chain{chain("b", filter(forward, 1), rule(setMark(2))), chain("a", filter(forward, -1), rule(setMark(1)))}, false, 2},
		{"other hook", []n.Chain{chain("a", filter(n.HookInput, 0), rule(drop))}, false, 0},
		{"accept ends its base chain", []n.Chain{
			chain("a", filter(forward, 0), rule(accept), rule(addMark(1))), chain("b", filter(forward, 1), rule(addMark(2))),
		}, false, 2},
		{"accept in a jump ends the base chain", []n.Chain{
			chain("a", filter(forward, 0), rule(jump("r")), rule(addMark(1))), chain("r", nil, rule(accept)), chain("b", filter(forward, 1), rule(addMark(2))),
		}, false, 2},
		{"drop is final", []n.Chain{
			chain("a", filter(forward, 0), rule(drop), rule(addMark(1))), chain("b", filter(forward, 1), rule(addMark(2)), rule(accept)),
		}, true, 0},
		{"jump comes back", []n.Chain{chain("a", filter(forward, 0), rule(jump("r")), rule(addMark(1))), chain("r", nil, rule(addMark(2)))}, false, 3},
		{"return comes back", []n.Chain{
			chain("a", filter(forward, 0), rule(jump("r")), rule(addMark(1))), chain("r", nil, rule(back), rule(addMark(2))),
		}, false, 1},
		{"goto does not", []n.Chain{chain("a", filter(forward, 0), rule(goTo("r")), rule(addMark(1))), chain("r", nil, rule(addMark(2)))}, false, 2},
		{"goto in a jump comes back behind the jump", []n.Chain{
			chain("a", filter(forward, 0), rule(jump("r")), rule(addMark(1))), chain("r", nil, rule(goTo("s")), rule(addMark(2))), chain("s", nil, rule(addMark(4))),
		}, false, 5},
		{"return in a base chain is its policy", []n.Chain{
			{Name: "a", Base: &n.Base{Hook: forward, Policy: n.PolicyDrop}, Rules: []n.Rule{{Statements: rule(back)}, {Statements: rule(accept)}}},
		}, true, 0},
		{"policy at the end of a goto", []n.Chain{
			{Name: "a", Base: &n.Base{Hook: forward, Policy: n.PolicyDrop}, Rules: []n.Rule{{Statements: rule(goTo("r"))}}}, chain("r", nil, rule(addMark(1))),
		}, true, 1},
		{"continue goes on", []n.Chain{chain("a", filter(forward, 0), rule(n.Verdict{Kind: n.Continue}, addMark(1)), rule(addMark(2)))}, false, 3},
		{"what does not hold ends the rule only", []n.Chain{
			chain("a", filter(forward, 0), rule(n.Is(n.TCPDport, n.Port(80)), addMark(1)), rule(addMark(2))),
		}, false, 2},
		{"a family that is not the packet's, under !=", []n.Chain{
			chain("a", filter(forward, 0), rule(n.IsNot(n.IP6Saddr, n.Addr(addr("fd00::1"))), drop)),
		}, false, 0},
		{"reject drops", []n.Chain{chain("a", filter(forward, 0), rule(n.Reject{}))}, true, 0},
		{"log goes on", []n.Chain{chain("a", filter(forward, 0), rule(n.Log{Group: 1}, addMark(1)))}, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := sim.New(n.Table{Name: "t", Chains: tt.chains}).Hook(forward, udp("10.0.0.1:1", "10.0.0.2:2"), nil, true)
			if err != nil {
				t.Fatal(err)
			}
			if r.Dropped != tt.dropped || r.Packet.Mark != tt.mark {
				t.Errorf("dropped %v with mark %#x, want %v and %#x\n%s", r.Dropped, r.Packet.Mark, tt.dropped, tt.mark, r.Trace)
			}
		})
	}
}

// TestBroken has tables that the kernel refuses: an error, which names the place.
func TestBroken(t *testing.T) {
	for want, c := range map[string][]n.Chain{
		`no chain "x"`:        {chain("a", filter(n.HookForward, 0), rule(jump("x")))},
		"base chain cannot":   {chain("a", filter(n.HookForward, 0), rule(jump("a")))},
		"in a circle":         {chain("a", filter(n.HookForward, 0), rule(goTo("r"))), chain("r", nil, rule(goTo("r")))},
		"more than 16 deep":   {chain("a", filter(n.HookForward, 0), rule(jump("r"))), chain("r", nil, rule(jump("r")))},
		`no set or map "x"`:   {chain("a", filter(n.HookForward, 0), rule(n.Lookup{Key: n.Select(n.IPSaddr), Set: "x"}))},
		"holds ipv4_addr":     {chain("a", filter(n.HookForward, 0), rule(n.Lookup{Key: n.Select(n.MetaMark), Set: "s"}))},
		"key of 2 fields":     {chain("a", filter(n.HookForward, 0), rule(n.Lookup{Key: n.Select(n.MetaMark, n.IPSaddr), Set: "s"}))},
		"is no verdict":       {chain("a", filter(n.HookForward, 0), rule(n.Verdict{}))},
		"cannot be set":       {chain("a", filter(n.HookForward, 0), rule(n.Mangle{Field: n.IPSaddr}))},
		"not known":           {chain("a", filter(n.HookForward, 0), rule(nil))},
		"not of type nat":     {chain("a", filter(n.HookForward, 0), rule(n.Masquerade{}))},
		"no routing table":    {chain("a", filter(n.HookForward, 0), rule(n.Is(n.FibSaddr, n.Exists)))},
		"translates to nothi": {chain("a", filter(n.HookForward, 0), rule(n.NAT{}))},
	} {
		table := n.Table{Name: "t", Sets: []n.Set{{Name: "s", Key: []n.Type{n.TypeIPv4Addr}}}, Chains: c}
		_, err := sim.New(table).Hook(n.HookForward, udp("10.0.0.1:1", "10.0.0.2:2"), nil, false)
		if want = strings.Replace(want, "no routing table", "asks the routing table", 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if _, err := sim.New(n.Table{}).Hook(9, udp("10.0.0.1:1", "10.0.0.2:2"), nil, false); err == nil {
		t.Error("there is no hook 9")
	}
	if _, err := sim.New(n.Table{}).Hook(0, sim.Packet{}, nil, false); err == nil {
		t.Error("a packet without addresses passed")
	}
}

// router has a NAT chain, and routes everything by out0 but for its own address.
func router(chains ...n.Chain) *sim.Node {
	return &sim.Node{Rules: sim.New(n.Table{Name: "t", Chains: chains}), Routing: out0{}, Trace: true}
}

type out0 struct{}

func (out0) Route(p sim.Packet) sim.Route {
	switch p.Dst {
	case addr("192.0.2.1"), addr("10.0.0.254"):
		return sim.Route{Local: true}
	case addr("10.9.9.9"):
		return sim.Route{Why: "unreachable"}
	case addr("10.0.0.1"):
		return sim.Route{Out: "in0"}
	}
	return sim.Route{Out: "out0"}
}

func (out0) Source(out string, is4 bool) (netip.Addr, bool) {
	return addr("192.0.2.1"), out == "out0" && is4
}

func receive(t *testing.T, node *sim.Node, p sim.Packet) sim.Journey {
	t.Helper()
	j, err := node.Receive(p)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func masquerade() n.Chain {
	return chain("nat", &n.Base{Type: n.TypeNAT, Hook: n.HookPostrouting, Priority: 95}, rule(count, n.Masquerade{}))
}

// Masquerading to ports keeps one of them, and takes another where it must.
func TestMasqueradePorts(t *testing.T) {
	isUDP := n.Is(n.MetaL4Proto, n.Proto(17))
	for _, tt := range []struct {
		flags n.NATFlags
		want  [3]string
	}{
		{0, [3]string{"192.0.2.1:4000", "192.0.2.1:4001", "192.0.2.1:4002"}},
		{n.NATFullyRandom, [3]string{"192.0.2.1:4001", "192.0.2.1:4002", "192.0.2.1:4000"}},
	} {
		node := router(chain("nat", &n.Base{Type: n.TypeNAT, Hook: n.HookPostrouting, Priority: 95},
			rule(isUDP, n.Masquerade{Ports: n.PortRange(4000, 4002), Flags: tt.flags})))
		for i, from := range []string{"10.0.0.1:5000", "10.0.0.1:4001", "10.0.0.2:5000"} {
			if got := receive(t, node, udp(from, "203.0.113.1:53")).Packet.Tuple().String(); got != tt.want[i]+" > 203.0.113.1:53/UDP" {
				t.Errorf("flags %s: %s leaves as %s, want %s", tt.flags, from, got, tt.want[i])
			}
		}
	}
}

// TestMasquerade follows a flow: its first packet, a second one, the answer, an ICMP
// error about it, and a flow of another client with the same ports.
func TestMasquerade(t *testing.T) {
	node := router(masquerade())
	first := receive(t, node, udp("10.0.0.1:5000", "203.0.113.1:53"))
	if got := first.Packet.Tuple().String(); got != "192.0.2.1:5000 > 203.0.113.1:53/UDP" || first.Packet.Out != "out0" {
		t.Fatalf("it leaves as %s\n%s", got, first.Trace)
	}
	if again := receive(t, node, udp("10.0.0.1:5000", "203.0.113.1:53")); again.Packet.Tuple() != first.Packet.Tuple() || strings.Contains(again.Trace.String(), "masquerade") {
		t.Errorf("the second packet leaves as %s, and asks rules:\n%s", again.Packet, again.Trace)
	}
	other := receive(t, node, udp("10.0.0.2:5000", "203.0.113.1:53"))
	if got := other.Packet.Tuple().String(); got != "192.0.2.1:5001 > 203.0.113.1:53/UDP" {
		t.Errorf("another client leaves as %s", got)
	}
	answer := udp("203.0.113.1:53", "192.0.2.1:5000")
	answer.In = "out0"
	j := receive(t, node, answer)
	if got := j.Packet.Tuple().String(); got != "203.0.113.1:53 > 10.0.0.1:5000/UDP" || j.Local || j.Packet.CT.State != n.CTEstablished || !j.Packet.CT.Reply {
		t.Errorf("the answer arrives as %s, local %v, %s", got, j.Local, j.Packet.CT)
	}
	seen := first.Packet.Tuple()
	e := sim.Packet{Src: addr("198.51.100.1"), Dst: addr("192.0.2.1"), Protocol: packet.ICMP, ICMPType: 3, Quoted: &seen, In: "out0"}
	j = receive(t, node, e)
	if j.Packet.CT.State != n.CTRelated || j.Packet.Dst != addr("10.0.0.1") || j.Packet.Quoted.String() != "10.0.0.1:5000 > 203.0.113.1:53/UDP" {
		t.Errorf("the error arrives as %s about %s, %s", j.Packet, j.Packet.Quoted, j.Packet.CT)
	}
	e.Dst = addr("10.0.0.254")
	if j = receive(t, node, e); j.Packet.CT.State != n.CTInvalid {
		t.Errorf("an error that goes to nobody of the flow is %s", j.Packet.CT)
	}
	if flows := node.Flows.All(); len(flows) != 2 {
		t.Errorf("%d flows, want 2", len(flows))
	}
}

// TestFlows holds what conntrack keeps and what it says.
func TestFlows(t *testing.T) {
	node := router(chain("f", filter(n.HookForward, 0), rule(n.Is(n.UDPDport, n.Port(1)), drop), rule(n.Mangle{Field: n.CTMark, Value: 7})))
	if j := receive(t, node, udp("10.0.0.1:1", "10.0.0.2:1")); !j.Dropped || j.Why != "f" || len(node.Flows.All()) != 0 {
		t.Errorf("a flow that was dropped is known: %+v", j)
	}
	p := udp("10.0.0.1:1", "10.0.0.2:2")
	receive(t, node, p)
	flow, reply, ok := node.Flows.Find(p.Tuple().Reverse())
	if !ok || !reply || flow.Mark != 7 || flow.Status&n.CTSeenReply != 0 {
		t.Fatalf("found %+v, reply %v, %v", flow, reply, ok)
	}
	flow.Mark = 8
	j := receive(t, node, p)
	if j.Packet.CT.State != n.CTNew || j.Packet.CT.First {
		t.Errorf("without an answer the second packet is %s", j.Packet.CT)
	}
	node.Flows.Delete(flow)
	if _, _, ok := node.Flows.Find(p.Tuple()); ok {
		t.Error("it is still known")
	}
	for _, tt := range []struct {
		p    sim.Packet
		want uint32
	}{
		{sim.Packet{Protocol: packet.TCP, TCPFlags: n.TCPSyn}, n.CTNew},
		{sim.Packet{Protocol: packet.TCP, TCPFlags: n.TCPAck}, n.CTNew},
		{sim.Packet{Protocol: packet.TCP, TCPFlags: n.TCPAck | n.TCPSyn}, n.CTInvalid},
		{sim.Packet{Protocol: packet.TCP, TCPFlags: n.TCPAck | n.TCPFin}, n.CTInvalid},
		{sim.Packet{Protocol: packet.TCP, TCPFlags: n.TCPRst}, n.CTInvalid},
		{sim.Packet{Protocol: packet.TCP}, n.CTInvalid},
		{sim.Packet{Protocol: packet.ICMP, ICMPType: 8}, n.CTNew},
		{sim.Packet{Protocol: packet.ICMP, ICMPType: 0}, n.CTInvalid},
		{sim.Packet{Protocol: packet.ICMP, ICMPType: 3}, n.CTInvalid},
		{sim.Packet{Protocol: packet.SCTP}, n.CTNew},
	} {
		tt.p.Src, tt.p.Dst, tt.p.SrcPort, tt.p.In = addr("10.1.0.1"), addr("10.1.0.2"), 9, "in0"
		if j := receive(t, router(), tt.p); max(j.Packet.CT.State, n.CTInvalid) != tt.want {
			t.Errorf("%s, flags %#x, type %d: %s", tt.p, tt.p.TCPFlags, tt.p.ICMPType, j.Packet.CT)
		}
	}
	nd := sim.Packet{Src: addr("fe80::1"), Dst: addr("ff02::1"), Protocol: packet.ICMPv6, ICMPType: 135, In: "in0"}
	if j := receive(t, router(), nd); j.Packet.CT.State != n.CTUntracked {
		t.Errorf("neighbour discovery is %s", j.Packet.CT)
	}
}

// TestUntracked: notrack works before conntrack, and then neither marks nor NAT do.
func TestUntracked(t *testing.T) {
	early := chain("raw", filter(n.HookPrerouting, -300), rule(n.AnyFlag(n.CTState, n.CTInvalid), addMark(1)), rule(n.Notrack{}), rule(n.AnyFlag(n.CTState, n.CTUntracked), addMark(2)))
	late := chain("f", filter(n.HookForward, 0), rule(n.Mangle{Field: n.CTMark, Value: 7}, addMark(4)), rule(n.Mangle{Field: n.CTMark, Value: 1, Mask: 1}, addMark(8)), rule(n.Is(n.CTMark, n.Mark(7)), drop))
	node := router(early, late, masquerade())
	j := receive(t, node, udp("10.0.0.1:1", "10.0.0.2:2"))
	if j.Packet.Mark != 7 || j.Packet.Src != addr("10.0.0.1") || len(node.Flows.All()) > 0 {
		t.Errorf("got %s, %d flows\n%s", j.Packet, len(node.Flows.All()), j.Trace)
	}
}

// TestSend walks what the machine sends: to others, to itself, and where DNAT leads.
func TestSend(t *testing.T) {
	dnat := chain("dnat", &n.Base{Type: n.TypeNAT, Hook: n.HookOutput, Priority: -100}, rule(n.Is(n.IPDaddr, n.Addr(addr("10.96.0.1"))), n.NAT{Kind: n.DNAT, Addr: addr("10.0.0.1")}))
	node := router(dnat)
	send := func(to string) sim.Journey {
		t.Helper()
		p := udp("192.0.2.1:1", to)
		j, err := node.Send(p)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	if j := send("203.0.113.1:2"); j.Dropped || j.Packet.Out != "out0" || j.Packet.In != "" {
		t.Errorf("%+v", j)
	}
	if j := send("10.9.9.9:2"); !j.Dropped || j.Why != "unreachable" {
		t.Errorf("%+v", j)
	}
	if j := send("10.96.0.1:2"); j.Packet.Out != "in0" || j.Packet.Dst != addr("10.0.0.1") {
		t.Errorf("%+v", j)
	}
	j := send("10.0.0.254:2")
	if j.Packet.Out != sim.Loopback {
		t.Fatalf("%+v", j)
	}
	j.Packet.In = sim.Loopback
	if j = receive(t, node, j.Packet); !j.Local || j.Packet.CT.State != n.CTNew {
		t.Errorf("%+v", j)
	}
	if _, err := node.Receive(sim.Packet{Src: addr("10.0.0.1"), Dst: addr("10.0.0.2")}); err == nil {
		t.Error("received by no interface")
	}
}

// TestZones: a zone keeps flows apart.
func TestZones(t *testing.T) {
	node := router(chain("raw", filter(n.HookPrerouting, -300), rule(n.Is(n.MetaIIFName, n.IfName("in1")), n.Mangle{Field: n.CTZone, Value: 5})), masquerade())
	node.Rules = sim.New(n.Table{Name: "t", Chains: node.Rules.Table().Chains[:1]})
	p := udp("10.0.0.1:1", "10.0.0.2:2")
	receive(t, node, p)
	p.In = "in1"
	if j := receive(t, node, p); !strings.Contains(j.Trace.String(), "new") || j.Packet.CT.Zone != 5 || len(node.Flows.All()) != 2 {
		t.Errorf("%s, %d flows", j.Packet.CT, len(node.Flows.All()))
	}
}

// TestFib asks the machine.
func TestFib(t *testing.T) {
	node := router(chain("f", filter(n.HookForward, 0), rule(n.Is(n.FibDaddrType, n.FibLocal), drop)))
	if _, err := node.Receive(udp("10.0.0.1:1", "10.0.0.2:2")); err == nil {
		t.Error("nobody could answer")
	}
	node.Addresses = func(sim.Packet, n.Field) (uint32, error) { return n.FibLocal.Uint(), nil }
	if j := receive(t, node, udp("10.0.0.1:1", "10.0.0.2:2")); !j.Dropped {
		t.Errorf("%+v", j)
	}
}

// TestTrace is what a person reads, and what finds the rule in the kernel.
func TestTrace(t *testing.T) {
	table := n.Table{
		Name: "t",
		Sets: []n.Set{{Name: "m", Key: []n.Type{n.TypeIPv4Addr}, Data: []n.Type{n.TypeVerdict}, Elements: []n.Element{{Key: []n.Value{n.Addr(addr("10.0.0.1"))}, Verdict: goTo("r")}}}},
		Chains: []n.Chain{
			chain("forward", filter(n.HookForward, 0), rule(n.Is(n.TCPDport, n.Port(1)), drop), rule(n.VMap{Key: n.Select(n.IPSaddr), Map: "m"})),
			chain("r", nil, rule(n.Is(n.UDPDport, n.Port(2)), count, drop)),
		},
	}
	r, err := sim.New(table).Hook(n.HookForward, udp("10.0.0.1:1", "10.0.0.2:2"), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"forward rule 0 (forward): tcp dport 1: failed, the packet has none",
		"forward rule 1 (forward): ip saddr vmap @m: decided, it is 10.0.0.1: goto r",
		"forward/r rule 0 (r): udp dport 2: passed, it is 2",
		"forward/r rule 0 (r): counter: counted",
		"forward/r rule 0 (r): drop: decided",
	}, "\n")
	if diff := cmp.Diff(want, r.Trace.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if taken := r.Trace.Taken(); len(taken) != 4 || taken[0].Rule != 1 || taken[3].Chain != "r" {
		t.Errorf("taken:\n%s", taken)
	}
	if r.Why != "r" {
		t.Errorf("why: %q", r.Why)
	}
}
