package sim_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func newSwitch(t testing.TB, flows string, groups ...string) *sim.Switch {
	t.Helper()
	f, err := of.ParseFlows(flows)
	if err != nil {
		t.Fatal(err)
	}
	g, err := of.ParseGroups(strings.Join(groups, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := sim.New(f, g)
	if err != nil {
		t.Fatal(err)
	}
	return &sim.Switch{Pipeline: p, Trace: true}
}

func parse(t testing.TB, text string) sim.Packet {
	t.Helper()
	m, err := of.ParseMatch(text)
	if err != nil {
		t.Fatal(err)
	}
	return sim.Make(m)
}

// sent is the outputs, "2: nw_dst" of those fields.
func sent(r sim.Result, fields ...of.Field) []string {
	var out []string
	for _, o := range r.Outputs {
		s := o.Port.String()
		for _, f := range fields {
			s += fmt.Sprintf(" %s=%#x", f, o.Packet.Get(f).Lo)
		}
		out = append(out, s)
	}
	return out
}

func TestWalk(t *testing.T) {
	for _, c := range []struct {
		name, flows string
		groups      []string
		packet      string
		length      int
		fields      []of.Field
		want        []string
		why         string
	}{
		{name: "no table", packet: "in_port=1", why: "no flow in table 0"},
		{name: "drop", flows: "table=0 actions=drop", packet: "in_port=1", why: "dropped in table 0 by priority=32768"},
		{
			name: "resubmit comes back, goto does not", packet: "in_port=1",
			flows: "actions=resubmit(,2),output:3,goto_table:1\ntable=1 actions=output:4\ntable=2 actions=output:2,set_field:7->reg0",
			want:  []string{"2 reg0=0x0", "3 reg0=0x7", "4 reg0=0x7"}, fields: []of.Field{of.Reg0},
		},
		{
			name: "resubmit with another port is a search only", packet: "in_port=1",
			flows: "table=0 actions=resubmit(9,1)\ntable=1,in_port=9 actions=output:9,output:1,IN_PORT", want: []string{"9", "1"},
		},
		{name: "not back", packet: "in_port=1", flows: "actions=output:1", why: "it would go back to where it came from"},
		{name: "back after all", packet: "in_port=1", flows: "actions=set_field:0->in_port,output:1", want: []string{"1"}},
		{
			name: "the TTL is used up", packet: "ip,nw_ttl=1,in_port=1",
			flows: "ip actions=resubmit(,1),output:2\ntable=1,ip actions=dec_ttl,output:3", want: []string{"2"},
		},
		{
			name: "clone", packet: "in_port=1", fields: []of.Field{of.Reg1},
			flows: "actions=clone(set_field:1->reg1,output:2),output:3", want: []string{"2 reg1=0x1", "3 reg1=0x0"},
		},
		{
			name: "bucket", packet: "in_port=1", fields: []of.Field{of.Reg1}, groups: []string{"group_id=1,type=all,bucket=actions=output:2,set_field:1->reg1,bucket=actions=output:4,output:3"},
			flows: "actions=group:1,output:9", want: []string{"2 reg1=0x1", "3 reg1=0x0", "9 reg1=0x0"},
		},
		{
			name: "length", packet: "in_port=1", length: 1501, fields: []of.Field{of.Reg0},
			flows: "actions=resubmit(,1),output:3\ntable=1 actions=check_pkt_larger(1500)->NXM_NX_REG0[3],output:2",
			want:  []string{"2 reg0=0x8", "3 reg0=0x0"},
		},
		{
			name: "tunnel", packet: "in_port=1", fields: []of.Field{of.TunID, of.TunDst},
			flows: "actions=set_field:0x12345->reg1,move:NXM_NX_REG1[0..15]->NXM_NX_TUN_ID[0..15],set_field:10.0.0.2->tun_dst,output:2",
			want:  []string{"2 tun_id=0x2345 tun_dst=0xa000002"},
		},
		{
			name: "conjunction", packet: "tcp,in_port=1,nw_src=10.0.0.1,tp_dst=80",
			flows: `priority=10,ip,nw_src=10.0.0.1 actions=conjunction(5,1/2)
priority=10,ip,nw_src=10.0.0.2 actions=conjunction(5,1/2)
priority=10,tcp,tp_dst=80 actions=conjunction(5,2/2)
priority=3,conj_id=5 actions=output:2
priority=1 actions=output:3`, want: []string{"2"},
		},
		{
			name: "half a conjunction", packet: "tcp,in_port=1,nw_src=10.0.0.3,tp_dst=80",
			flows: `priority=10,ip,nw_src=10.0.0.1 actions=conjunction(5,1/2)
priority=10,tcp,tp_dst=80 actions=conjunction(5,2/2)
priority=3,conj_id=5 actions=output:2
priority=2,tcp,tp_dst=80 actions=output:4
priority=1 actions=output:3`, want: []string{"4"},
		},
		{name: "port in a register", packet: "in_port=1", flows: "actions=set_field:5->reg3,output:NXM_NX_REG3[]", want: []string{"5"}},
		{name: "no port", packet: "in_port=1", flows: "actions=set_field:0x10000->reg3,output:NXM_NX_REG3[]", why: "the number of the port is out of range"},
		{
			name: "untracked behind ct, sent as NAT left it", packet: "tcp,in_port=1,nw_src=10.0.0.1,nw_dst=10.0.0.2,tcp_flags=syn", fields: []of.Field{of.IPDst},
			flows: "ip actions=ct(commit,nat(dst=10.0.0.9)),output:2,goto_table:1\ntable=1,ct_state=-trk,ip,nw_dst=10.0.0.2 actions=output:3",
			want:  []string{"2 ip_dst=0xa000009", "3 ip_dst=0xa000009"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := parse(t, c.packet)
			p.Length = c.length
			r, err := newSwitch(t, c.flows, c.groups...).Receive(p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, sent(r, c.fields...)); diff != "" || r.Why != c.why {
				t.Errorf("-want +got: %s\nwhy %q, want %q\n%s", diff, r.Why, c.why, r.Trace)
			}
		})
	}
}

func TestNotSimulated(t *testing.T) {
	for name, c := range map[string]struct{ flows, packet, want string }{
		"NORMAL":    {"actions=NORMAL", "in_port=1", "sending to NORMAL is not simulated"},
		"learn":     {"actions=learn(table=1,reg1=7)", "in_port=1", "it is not simulated"},
		"alg":       {"tcp actions=ct(commit,alg=ftp)", "tcp", "helpers"},
		"fragments": {"ip actions=ct(table=1)", "ip,nw_frag=later", "fragments"},
		"loop":      {"actions=resubmit(,0)", "in_port=1", "a loop"},
		"ct loop":   {"ip actions=ct(table=0)", "ip", "a loop"},
		"fan":       {"actions=resubmit(,1),resubmit(,1),resubmit(,1)\ntable=1 actions=resubmit(,0),resubmit(,0)", "in_port=1", "table"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newSwitch(t, c.flows).Receive(parse(t, c.packet))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// TestConnection follows a connection whose destination NAT replaces, an error about it,
// and its marks.
func TestConnection(t *testing.T) {
	s := newSwitch(t, `table=0,priority=1,ip actions=ct(table=1,zone=NXM_NX_REG0[0..15],nat)
table=0,priority=1,ipv6 actions=ct(table=1,zone=7,nat)
table=1,priority=9,ct_state=+trk+inv actions=drop
table=1,priority=5,ct_state=+trk+new,tcp,in_port=1 actions=ct(commit,zone=0,nat(dst=10.0.0.9:8080),exec(set_field:0x5->ct_mark,set_field:0x1/0x1->ct_label)),output:2
table=1,priority=5,ct_state=+trk+new,tcp6,in_port=1 actions=ct(commit,zone=7,nat(dst=[fd00::9]:8080),exec(set_field:0x5->ct_mark)),output:2
table=1,priority=4,ct_state=+trk+est-rpl,ct_mark=5 actions=output:2
table=1,priority=4,ct_state=+trk+est+rpl,ct_mark=5 actions=output:1
table=1,priority=4,ct_state=+trk+rel+rpl,ct_mark=5 actions=output:1`)
	for _, family := range [][3]string{{"10.0.0.1", "10.0.0.2", "10.0.0.9"}, {"fd00::1", "fd00::2", "fd00::9"}} {
		pod, service, endpoint := netip.MustParseAddr(family[0]), netip.MustParseAddr(family[1]), netip.MustParseAddr(family[2])
		first := packet.Packet{Src: pod, Dst: service, Protocol: packet.TCP, SrcPort: 1000, DstPort: 80, SYN: true}
		receive := func(in of.Port, k packet.Packet, quoted *sim.Tuple) (of.Port, packet.Packet, *sim.Tuple) {
			t.Helper()
			p := sim.Of(k, sim.Link{InPort: in})
			if quoted != nil {
				p.Quoted = quoted
				if pod.Is4() {
					p.Set(of.ICMPType, of.Num(3))
				} else {
					p.Set(of.ICMPv6Type, of.Num(1))
				}
			}
			r, err := s.Receive(p)
			if err != nil || len(r.Outputs) != 1 {
				t.Fatalf("%v, %d outputs: %s\n%s", err, len(r.Outputs), r.Why, r.Trace)
			}
			o := r.Outputs[0].Packet
			return r.Outputs[0].Port, o.Plain(), o.Quoted
		}
		port, got, _ := receive(1, first, nil)
		arrived := packet.Packet{Src: pod, Dst: endpoint, Protocol: packet.TCP, SrcPort: 1000, DstPort: 8080, SYN: true}
		if port != 2 || got != arrived {
			t.Fatalf("the first packet leaves by %d as %s", port, got)
		}
		answer := arrived.Reverse()
		answer.SYN = false
		port, got, _ = receive(2, answer, nil)
		if want := first.Reverse(); port != 1 || got.Src != want.Src || got.SrcPort != want.SrcPort {
			t.Errorf("the answer leaves by %d as %s", port, got)
		}
		quoted := sim.TupleOf(arrived)
		icmp := packet.Packet{Src: endpoint, Dst: pod, Protocol: packet.ICMP}
		if !pod.Is4() {
			icmp.Protocol = packet.ICMPv6
		}
		port, got, about := receive(2, icmp, &quoted)
		if port != 1 || got.Src != service || *about != sim.TupleOf(first) {
			t.Errorf("the error leaves by %d as %s about %s", port, got, about)
		}
	}
	all := s.Conntrack.All()
	if len(all) != 2 || all[0].Mark != 5 || all[0].Label != of.Num(1) {
		t.Fatalf("connections %+v", all)
	}
	clone := s.Conntrack.Clone()
	all[0].Mark = 6
	if clone.All()[0].Mark != 5 {
		t.Error("a clone shares connections")
	}
	s.Conntrack.Delete(all[0])
	if _, _, ok := s.Conntrack.Find(all[0].Zone, all[0].Answer); ok || len(s.Conntrack.All()) != 1 {
		t.Error("a deleted connection is still known")
	}
}

func TestAlternatives(t *testing.T) {
	s := newSwitch(t, "actions=group:1,group:2", "group_id=1,type=select,bucket=weight:1,actions=output:2,bucket=weight:0,actions=output:9,bucket=weight:5,actions=output:3",
		"group_id=2,type=select,bucket=weight:1,actions=output:4,bucket=weight:1,actions=output:5")
	all, err := s.Alternatives(parse(t, "in_port=1"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range all {
		got = append(got, strings.Join(sent(r), " "))
	}
	if diff := cmp.Diff([]string{"2 4", "2 5", "3 4", "3 5"}, got); diff != "" {
		t.Error(diff)
	}
	s.Choose = func(_ of.Group, candidates []int, _ sim.Packet) int { return candidates[len(candidates)-1] }
	if r, err := s.Receive(parse(t, "in_port=1")); err != nil || strings.Join(sent(r), " ") != "3 5" {
		t.Errorf("%v %v", sent(r), err)
	}
}

func TestTrace(t *testing.T) {
	s := newSwitch(t, "table=0,ip actions=set_field:1->reg0,goto_table:2\ntable=2,priority=7,ip actions=ct(table=3)\ntable=3 actions=resubmit(,4),output:2")
	s.TableName = func(t uint8) string { return map[uint8]string{0: "classify", 3: "out"}[t] }
	r, err := s.Receive(parse(t, "udp,in_port=1,nw_src=10.0.0.1,nw_dst=10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	want := `table 0 (classify): priority=32768,ip
  set_field:0x1->reg0: changed
table 2: priority=7,ip
  ct(table=3): tracked, zone 0, new|trk
table 3 (out): priority=32768
  resubmit(,4): went, to table 4, and comes back
  table 4: no flow
  output:2: sent, by port 2`
	if diff := cmp.Diff(want, r.Trace.String()); diff != "" {
		t.Error(diff)
	}
}

// FuzzReceive walks any packet through any flows: there may be errors, but no panic and
// no walk without end.
func FuzzReceive(f *testing.F) {
	f.Add("table=0,ip actions=ct(commit,table=1,nat(src=10.0.0.1-10.0.0.9:5-9)),resubmit(,0)\ntable=1 actions=group:1,clone(dec_ttl)", "group_id=1,type=select,bucket=weight:1,actions=output:1", "tcp,tcp_flags=syn,nw_src=1.2.3.4")
	f.Add("priority=2,ct_state=+trk+new,ip actions=conjunction(1,1/2)\nconj_id=1 actions=move:NXM_NX_REG0[0..3]->NXM_NX_REG1[3..6],output:NXM_NX_REG1[]", "", "icmp6,icmp_type=135")
	f.Add("actions=resubmit(,0),resubmit(,0)", "", "arp")
	f.Fuzz(func(t *testing.T, flows, groups, match string) {
		parsed, err := of.ParseFlows(flows)
		if err != nil {
			return
		}
		g, err := of.ParseGroups(groups)
		if err != nil {
			return
		}
		m, err := of.ParseMatch(match)
		if err != nil {
			return
		}
		p, err := sim.New(parsed, g)
		if err != nil {
			return
		}
		s := &sim.Switch{Pipeline: p, Trace: len(flows)%2 == 0}
		k := sim.Make(m)
		_, _ = s.Receive(k)
		_, _ = s.Receive(k)
		_ = k.String() + k.Flow()
		s.Trace = false
		_, _ = s.Alternatives(k)
	})
}

// BenchmarkReceive walks through a table of many flows of few masks.
func BenchmarkReceive(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var flows []of.Flow
			for i := range n {
				a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
				flows = append(flows, of.Flow{Priority: uint16(10 + i%7), Match: of.NewMatch(of.Eq(of.EthType, of.EthTypeIPv4), of.Prefix(of.IPDst, netip.PrefixFrom(a, 32))), Actions: []of.Action{of.GotoTable{Table: 1}}})
			}
			flows = append(flows, of.Flow{Table: 1, Actions: []of.Action{of.Output{Port: 2}}})
			p, err := sim.New(flows, nil)
			if err != nil {
				b.Fatal(err)
			}
			s := &sim.Switch{Pipeline: p}
			k := sim.Of(packet.Packet{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.9"), Protocol: packet.UDP}, sim.Link{InPort: 1})
			for b.Loop() {
				if r, err := s.Receive(k); err != nil || r.Dropped() {
					b.Fatal(err, r.Why)
				}
			}
		})
	}
}
