package openflow

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// examples are flows as a renderer writes them, and as a person reads them.
var examples = []struct {
	flow Flow
	text string
}{
	{Flow{Priority: DefaultPriority}, "actions=drop"},
	{Flow{Table: 1, Priority: 0, Actions: []Action{GotoTable{2}}}, "table=1, priority=0 actions=goto_table:2"},
	{
		Flow{
			Priority: 200, Cookie: 0xfa1e0001,
			Match: NewMatch(
				Eq(InPort, 7), MAC(EthSrc, [6]byte{2, 0, 0, 0, 0, 1}), Eq(EthType, EthTypeARP),
				Addr(ARPSPA, netip.MustParseAddr("10.1.2.3")), MAC(ARPSHA, [6]byte{2, 0, 0, 0, 0, 1}),
			),
			Actions: []Action{Load(Range(Reg0, 0, 15), 7), SetField{XXReg1, Value{1, 2}, Value{}}, Resubmit{Table: 10}},
		},
		"cookie=0xfa1e0001, priority=200,arp,in_port=7,dl_src=02:00:00:00:00:01,arp_spa=10.1.2.3,arp_sha=02:00:00:00:00:01 " +
			"actions=set_field:0x7/0xffff->reg0,set_field:0x10000000000000002->xxreg1,resubmit(,10)",
	},
	{
		Flow{
			Table: 20, Priority: 100,
			Match: NewMatch(
				Eq(EthType, EthTypeIPv6), Eq(IPProto, ProtoTCP), Prefix(IPv6Src, netip.MustParsePrefix("fd00:1::/64")),
				Masked(CTState, CTTracked|CTNew, CTTracked|CTNew|CTInvalid), Masked(TCPDst, 0x1f40, 0xfff8),
				Masked(TCPFlags, TCPSyn, TCPSyn|TCPAck), Eq(CTZone, 5), Masked(CTMark, 1<<28, 1<<28),
			),
			Actions: []Action{
				CT{
					Commit: true, Recirc: true, Table: 30, ZoneSource: Range(Reg6, 0, 15),
					NAT:  &NAT{Kind: NATSource, Min: netip.MustParseAddr("fd00::1"), PortMin: 1024, PortMax: 65535},
					Exec: []Action{Load(Range(CTMark, 28, 28), 1)},
				},
			},
		},
		"table=20, priority=100,ct_state=+new-inv+trk,ct_zone=5,ct_mark=0x10000000/0x10000000,tcp6,ipv6_src=fd00:1::/64," +
			"tp_dst=0x1f40/0xfff8,tcp_flags=+syn-ack " +
			"actions=ct(commit,table=30,zone=NXM_NX_REG6[0..15],nat(src=[fd00::1]:1024-65535),exec(set_field:0x10000000/0x10000000->ct_mark))",
	},
	{
		Flow{
			Table: 5, Priority: 10,
			Match:   NewMatch(EqValue(XReg(1), Num(0x1_0000_0002)), Addr(TunSrc, netip.MustParseAddr("192.0.2.1")), Eq(TunID, 4096), Eq(ConjID, 9)),
			Actions: []Action{Move{Whole(TunID), Whole(XReg(0))}, OutputField{Range(Reg1, 0, 15)}},
		},
		"table=5, priority=10,conj_id=9,reg2=0x1,reg3=0x2,tun_id=0x1000,tun_src=192.0.2.1 " +
			"actions=move:NXM_NX_TUN_ID[]->OXM_OF_PKT_REG0[],output:NXM_NX_REG1[0..15]",
	},
	{
		Flow{
			Table: 6, Priority: 3, Match: NewMatch(Eq(EthType, EthTypeIPv4), Eq(IPDSCP, 46), Eq(IPFrag, FragAny), Eq(VLANVID, 0)),
			Actions: []Action{DecTTL{}, Set(InPort16, 0), Output{PortLocal}, Output{PortInPort}, Output{9}},
		},
		"table=6, priority=3,ip,vlan_tci=0x0000/0x1fff,nw_tos=184,nw_frag=first actions=dec_ttl,set_field:0->in_port,LOCAL,IN_PORT,output:9",
	},
	{
		Flow{
			Table: 7, Priority: 3, IdleTimeout: 60,
			Match:   NewMatch(Eq(EthType, EthTypeIPv6), Eq(IPProto, ProtoICMPv6), Eq(ICMPv6Type, NeighborSolicit), Addr(NDTarget, netip.MustParseAddr("fe80::1"))),
			Actions: []Action{Conjunction{7, 1, 2}, Conjunction{9, 2, 3}},
		},
		"table=7, idle_timeout=60, priority=3,icmp6,icmp_type=135,nd_target=fe80::1 actions=conjunction(7,1/2),conjunction(9,2/3)",
	},
}

func TestExamples(t *testing.T) {
	for _, e := range examples {
		if err := e.flow.Validate(); err != nil {
			t.Error(err)
		}
		if got := e.flow.String(); got != e.text {
			t.Errorf("text:\n got %s\nwant %s", got, e.text)
		}
		got, err := ParseFlow(e.text)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(e.flow, got, compare); diff != "" {
			t.Errorf("%s (-want +got):\n%s", e.text, diff)
		}
	}
}

// TestSpellings reads what people write and what ovs-ofctl never prints.
func TestSpellings(t *testing.T) {
	for text, want := range map[string]string{
		"table=0, priority=5, ip, nw_dst=10.0.0.0/255.0.0.0, actions=output:1":                                   "priority=5,ip,nw_dst=10.0.0.0/8 actions=output:1",
		"tcp,tcp_dst=80,ip_src=10.0.0.1 action=2":                                                                "tcp,nw_src=10.0.0.1,tp_dst=80 actions=output:2",
		"tp_dst=53,udp,eth_dst=02:00:00:00:00:01/01:00:00:00:00:00 actions=local":                                "udp,dl_dst=00:00:00:00:00:00/01:00:00:00:00:00,tp_dst=53 actions=LOCAL",
		"icmp6,icmpv6_type=128,ct_state=trk actions=load:0x5->NXM_NX_REG0[4..7],drop2":                           "",
		"ip,ct_state=trk|est,reg1=4 actions=load:0x5->NXM_NX_REG0[4..7]":                                         "ct_state=est|trk,ip,reg1=0x4 actions=set_field:0x50/0xf0->reg0",
		"eth_type=0x0800,nw_proto=17 actions=goto_table(4)":                                                      "udp actions=goto_table:4",
		" cookie=0x5, duration=1.5s, table=3, n_packets=1, n_bytes=2, idle_age=3, priority=1,arp actions=NORMAL": "cookie=0x5, table=3, priority=1,arp actions=NORMAL",
		"in_port=LOCAL actions=resubmit(,5),resubmit:6,resubmit(7,8)":                                            "in_port=LOCAL actions=resubmit(,5),resubmit:6,resubmit(7,8)",
		"xreg0=0x100000002/0xffffffff00000000 actions=drop":                                                      "reg0=0x1 actions=drop",
		"ip actions=ct(nat),ct(),ct":                                                                             "ip actions=ct(nat),ct(),ct()",
	} {
		f, err := ParseFlow(text)
		if want == "" {
			if err == nil {
				t.Errorf("%q is read as %s, want an error", text, f)
			}
			continue
		}
		if err != nil {
			t.Error(err)
		} else if f.String() != want {
			t.Errorf("%q is read as\n%s, want\n%s", text, f, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"ip":                                   "no \"actions=\"",
		"ip actions=":                          "no actions",
		"ip,nonsense=4 actions=drop":           "not a known field",
		"ip,reg0=0x1ffffffff actions=drop":     "only 32 bits",
		"table=256 actions=drop":               "more than 8 bits",
		"priority=65536 actions=drop":          "more than 16 bits",
		"tp_dst=80 actions=drop":               "protocol 0 has no tp_dst",
		"nw_src=fe80::1 actions=drop":          "not an IPv4 address",
		"actions=ct(commit":                    "a ( without its )",
		"actions=ct(zap)":                      "not an argument of ct",
		"actions=CONTROLLER:65535":             "not known",
		"actions=set_field:1->eth_type":        "",
		"actions=conjunction(1,0/2)":           "count from 1",
		"actions=load:0x100->NXM_NX_REG0[0]":   "more than the 1 bits",
		"actions=move:NXM_NX_REG0[33]->reg1[]": "not a range of bits",
		"actions=" + strings.Repeat("clone(", 30) + "drop" + strings.Repeat(")", 30): "nested",
	} {
		_, err := ParseFlow(text)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got error %v, want one with %q", text, err, want)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	ip := NewMatch(Eq(EthType, EthTypeIPv4))
	for _, c := range []struct {
		flow Flow
		want string
	}{
		{Flow{Table: 255}, "table 255"},
		{Flow{Match: Match{Eq(TCPDst, 80)}}, "must demand tcp"},
		{Flow{Match: Match{Eq(IPProto, 6)}}, "must demand ip or ipv6"},
		{Flow{Match: Match{Eq(Reg1, 1), Eq(Reg0, 1)}}, "NewMatch"},
		{Flow{Match: Match{Eq(XReg0, 1)}}, "NewMatch"},
		{Flow{Match: NewMatch(Masked(InPort, 1, 3))}, "only the whole field"},
		{Flow{Match: NewMatch(Eq(InPort16, 1))}, "cannot be matched"},
		{Flow{Match: NewMatch(Eq(Reg(16), 1))}, "does not exist"},
		{Flow{Match: NewMatch(append(ip, Eq(IPDSCP, 64))...)}, "cannot hold"},
		{Flow{Match: NewMatch(Masked(Reg1, 1<<32, 1<<32))}, "cannot hold"},
		{Flow{Match: NewMatch(SubEq(Range(Reg1, 0, 3), 16))}, "cannot hold"},
		{Flow{Match: NewMatch(append(ip, Addr(IPSrc, netip.MustParseAddr("fe80::1")))...)}, "family"},
		{Flow{Match: NewMatch(append(ip, Prefix(IPSrc, netip.MustParsePrefix("fe80::/10")))...)}, "family"},
		{Flow{Match: NewMatch(append(ip, Prefix(IPSrc, netip.Prefix{}))...)}, "family"},
		{Flow{Match: ip, Actions: []Action{SetAddr(IPSrc, netip.MustParseAddr("fe80::1"))}}, "does not exist"},
		{Flow{Actions: []Action{Load(Range(Reg1, 0, 3), 16)}}, "outside of the mask"},
		{Flow{Actions: []Action{Load(Range(Reg1, 28, 31), 16)}}, "only 32 bits"},
		{Flow{Match: NewMatch(Masked(CTState, CTNew|CTEstablished, CTNew|CTEstablished))}, "both new and established"},
		{Flow{Match: NewMatch(append(ip, Eq(CTNwProto, 6))...)}, "ct_state"},
		{Flow{Actions: []Action{GotoTable{3}, Output{1}}}, "not the last"},
		{Flow{Table: 3, Actions: []Action{GotoTable{3}}}, "later table"},
		{Flow{Actions: []Action{CT{}}}, "must demand ip"},
		{Flow{Match: ip, Actions: []Action{CT{Exec: []Action{Set(CTMark, 1)}}}}, "exec without commit"},
		{Flow{Match: ip, Actions: []Action{CT{Commit: true, Exec: []Action{Set(Reg0, 1)}}}}, "ct_mark and ct_label"},
		{Flow{Match: ip, Actions: []Action{CT{Table: 4}}}, "without Recirc"},
		{Flow{Match: ip, Actions: []Action{CT{Commit: true, NAT: &NAT{Kind: NATSource, Min: netip.MustParseAddr("fe80::1")}}}}, "family"},
		{Flow{Actions: []Action{Set(CTMark, 1)}}, "exec of a ct"},
		{Flow{Actions: []Action{Set(EthType, 1)}}, "cannot be written"},
		{Flow{Actions: []Action{SetField{Reg0, Num(4), Num(3)}}}, "outside of the mask"},
		{Flow{Actions: []Action{Move{Whole(Reg0), Whole(XReg0)}}}, "32 bits to 64"},
		{Flow{Actions: []Action{Conjunction{1, 1, 1}}}, "2 to 64"},
		{Flow{Actions: []Action{Conjunction{1, 1, 2}, Output{1}}}, "beside a conjunction"},
		{Flow{Actions: []Action{nil}}, "nil"},
		{Flow{Actions: []Action{Output{0}}}, "port 0"},
		{Flow{Actions: []Action{Clone{[]Action{GotoTable{4}}}}}, "use resubmit"},
		{Flow{Comment: "pod ns/a", Actions: []Action{Output{0}}}, "(pod ns/a)"},
		{Flow{Actions: manyActions(9000)}, "more than a message"},
	} {
		if err := c.flow.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", clip(c.flow.String()), err, c.want)
		}
	}
}

func manyActions(n int) (list []Action) {
	for range n {
		list = append(list, Output{1})
	}
	return list
}

func TestTextKeepsComments(t *testing.T) {
	want := []Flow{
		{Table: 1, Priority: 5, Comment: "pod ns/web", Actions: []Action{Output{3}}},
		{Table: 2, Priority: 5},
	}
	text := Text(want)
	if text != "table=1, priority=5 actions=output:3 # pod ns/web\ntable=2, priority=5 actions=drop\n" {
		t.Errorf("got %q", text)
	}
	got, err := ParseFlows("# a heading\n\n" + text)
	if diff := cmp.Diff(want, got, compare); err != nil || diff != "" {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if _, err := ParseFlows("\n" + text + "what\n"); err == nil || !strings.Contains(err.Error(), "line 4") {
		t.Errorf("got error %v, want one that names line 4", err)
	}
}
