package sim

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	gocmp "github.com/google/go-cmp/cmp"
)

// trackerFlows tell by their counters what the tracker said of a packet and how NAT
// rewrote it, before and after it is committed.
func trackerFlows(t *testing.T) []of.Flow {
	t.Helper()
	var b strings.Builder
	b.WriteString("table=0,ip actions=ct(table=1,zone=5,nat)\n")
	for _, state := range []string{"new", "est", "est|rpl", "inv", "est|snat", "est|dnat", "est|rpl|snat", "est|rpl|dnat", "new|snat", "new|dnat", "new|rpl", "est|inv", "new|inv"} {
		terms := map[string]bool{}
		for _, bit := range strings.Split(state, "|") {
			terms[bit] = true
		}
		fmt.Fprintf(&b, "table=1,priority=10,ct_state=+trk")
		for _, bit := range []string{"new", "est", "rel", "rpl", "inv", "snat", "dnat"} {
			sign := "-"
			if terms[bit] {
				sign = "+"
			}
			b.WriteString(sign + bit)
		}
		b.WriteString(",ip actions=goto_table:2\n")
	}
	addrs := []string{"10.0.0.1", "10.0.0.2", "10.0.0.8", "10.0.0.9"}
	for i, table := range []int{2, 3, 5, 6} {
		field := []string{"nw_src", "nw_dst"}[i%2]
		next := fmt.Sprintf("goto_table:%d", table+1)
		if table == 6 {
			next = "drop"
		}
		for _, a := range addrs {
			fmt.Fprintf(&b, "table=%d,ip,%s=%s actions=%s\n", table, field, a, next)
		}
	}
	b.WriteString(`table=4,priority=30,ct_state=+new-rel,tcp,tp_dst=80 actions=ct(commit,table=5,zone=5,nat(dst=10.0.0.9:8080),exec(set_field:0x3->ct_mark))
table=4,priority=20,ct_state=+new-rel,tcp,tp_dst=81 actions=ct(commit,table=5,zone=5,nat(src=10.0.0.8),exec(set_field:0x2/0x2->ct_mark))
table=4,priority=20,ct_state=+new-rel,udp,tp_dst=81 actions=ct(commit,table=5,zone=5,nat(src=10.0.0.8))
table=4,priority=10,ct_state=+new,ip actions=ct(commit,table=5,zone=5)
table=4,priority=9,ct_mark=0x3,ip actions=drop
table=4,priority=8,ct_mark=0x2,ip actions=drop
table=4,priority=0 actions=drop
`)
	flows, err := of.ParseFlows(b.String())
	if err != nil {
		t.Fatal(err)
	}
	for i := range flows {
		flows[i].Cookie = uint64(i + 1)
		flows[i].Comment = fmt.Sprint("flow ", i+1)
	}
	return flows
}

// TestConntrackOfSwitch sends packets through the connection tracker of a real switch:
// the simulator must know the state of each, and what NAT makes of it.
func TestConntrackOfSwitch(t *testing.T) {
	s := startSwitch(t)
	d := &drawn{flows: trackerFlows(t)}
	pipeline, err := New(d.flows, nil)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]int{}
	sent := 0
	for seed := uint64(1); sent < 250; seed++ { // Each takes three programs.
		r := rand.New(rand.NewPCG(seed, 3))
		s.install(t, d)
		s.ovs.Run("ovs-appctl", "dpctl/flush-conntrack")
		sw := &Switch{Pipeline: pipeline, Trace: true}
		counters := map[string]string{}
		var history strings.Builder
		for range 1 + r.IntN(12) {
			sent++
			k := trackedPacket(r, &sw.Conntrack)
			fmt.Fprintln(&history, k)
			p := Of(packet.Packet{Src: k.Src, Dst: k.Dst, Protocol: k.Protocol, SrcPort: k.SrcPort, DstPort: k.DstPort}, Link{InPort: 1})
			if k.Protocol == packet.TCP {
				p.set(of.TCPFlags, k.flags)
			}
			result, err := sw.Receive(p)
			if err != nil {
				t.Fatal(err)
			}
			s.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "packet-out", "br0", "in_port=1,packet="+hex.EncodeToString(k.bytes())+",actions=resubmit(,0)")
			s.ovs.Run("ovs-appctl", "revalidator/purge")
			theirs := s.counted(counters)
			ours := path(d, result.Trace)
			slices.Sort(ours)
			if diff := gocmp.Diff(theirs, ours); diff != "" {
				t.Fatalf("flows (-switch +simulator) %s\n%s\n%s\n%s", diff, history.String(), result.Trace, s.ovs.Run("ovs-appctl", "dpctl/dump-conntrack"))
			}
			for _, step := range result.Trace {
				if step.Table == 1 && step.Effect == Matched {
					states[step.Flow]++
				}
			}
		}
	}
	t.Log(sent, "packets", states)
	if len(states) < 6 && !t.Failed() {
		t.Errorf("only the states %v occurred", states)
	}
}

// counted are the cookies of the flows whose counters have changed.
func (s *realSwitch) counted(before map[string]string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`cookie=(0x[0-9a-f]+).* n_packets=(\d+)`).FindAllStringSubmatch(s.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "dump-flows", "br0"), -1) {
		if m[2] != "0" && before[m[1]] != m[2] {
			out = append(out, m[1])
		}
		before[m[1]] = m[2]
	}
	slices.Sort(out)
	return out
}

type trackedSegment struct {
	Tuple
	flags uint64
}

// trackedPacket is new, or belongs to a connection that is known.
func trackedPacket(r *rand.Rand, known *Conntrack) trackedSegment {
	addr := func() netip.Addr { return netip.MustParseAddr(pick(r, "10.0.0.1", "10.0.0.2")) }
	k := trackedSegment{Tuple: Tuple{Src: addr(), Dst: addr(), Protocol: pick(r, packet.TCP, packet.TCP, packet.UDP), SrcPort: 1000, DstPort: pick[uint16](r, 80, 81, 82)}}
	k.flags = pick[uint64](r, of.TCPSyn, of.TCPSyn, of.TCPAck, of.TCPSyn|of.TCPAck, of.TCPFin, of.TCPRst)
	if all := known.All(); len(all) > 0 && r.IntN(5) > 0 {
		c := all[r.IntN(len(all))]
		k.Tuple = c.Original
		k.flags = pick[uint64](r, of.TCPAck, of.TCPAck|of.TCPPsh, of.TCPSyn, of.TCPFin|of.TCPAck, of.TCPRst)
		// Open vSwitch 3.1 takes the address of a connection that is over for taken.
		if c.nat != of.NATRestore && c.peers[0] >= tcpFinWait2 && c.peers[1] >= tcpFinWait2 && k.flags == of.TCPSyn {
			k.flags = of.TCPAck
		}
		if r.IntN(2) == 0 {
			k.Tuple = c.Answer
			k.flags = pick[uint64](r, of.TCPSyn|of.TCPAck, of.TCPAck, of.TCPAck, of.TCPFin|of.TCPAck)
		}
	}
	return k
}

func (k trackedSegment) String() string {
	return k.Tuple.String() + " flags " + strconv.FormatUint(k.flags, 2)
}

// bytes is the packet with right checksums (RFC 791, RFC 9293, RFC 768).
func (k trackedSegment) bytes() []byte {
	src, dst := k.Src.As4(), k.Dst.As4()
	l4 := binary.BigEndian.AppendUint16(nil, k.SrcPort)
	l4 = binary.BigEndian.AppendUint16(l4, k.DstPort)
	at := 6
	if k.Protocol == packet.TCP {
		at = 16
		l4 = append(l4, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, byte(k.flags), 0x20, 0, 0, 0, 0, 0)
	} else {
		l4 = append(l4, 0, 8, 0, 0)
	}
	pseudo := append(append(append([]byte{}, src[:]...), dst[:]...), 0, byte(k.Protocol), 0, byte(len(l4)))
	binary.BigEndian.PutUint16(l4[at:], checksum(append(pseudo, l4...)))
	ip := append([]byte{0x45, 0, 0, byte(20 + len(l4)), 0, 0, 0, 0, 64, byte(k.Protocol), 0, 0}, src[:]...)
	ip = append(ip, dst[:]...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	eth := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0}
	return append(append(eth, ip...), l4...)
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
