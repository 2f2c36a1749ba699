package nft_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// TestPolicyMidstream refuses a TCP flow without its beginning, unless the table is
// being adopted.
func TestPolicyMidstream(t *testing.T) {
	c := newCluster(t)
	d := open(t, nft.Config{NetNS: c.node})
	for i, adopting := range []bool{false, true} {
		apply(t, d, rendernft.Render(c.intent, rendernft.Options{Adopting: adopting}))
		segment := tcpSegment(netip.MustParseAddr(podAddr("a", "4")), netip.MustParseAddr(podAddr("b", "4")), uint16(1000+i), 80)
		// Who hears it, hears a segment of no flow.
		got := inside(t, c.pods["b"], func() (int, error) {
			return unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		})
		_ = unix.SetsockoptTimeval(got, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300000})
		inside(t, c.pods["a"], func() (struct{}, error) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
			if err != nil {
				return struct{}{}, err
			}
			defer func() { _ = unix.Close(fd) }()
			return struct{}{}, unix.Sendto(fd, segment, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(podAddr("b", "4")).As4()})
		})
		n, _, err := unix.Recvfrom(got, make([]byte, 100), 0)
		_ = unix.Close(got)
		if heard := err == nil && n > 0; heard != adopting {
			t.Errorf("adopting %v: the segment came through: %v", adopting, heard)
		}
	}
	counters, err := d.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range counters {
		if x.Comment == rendernft.MiddleOfTCP {
			t.Errorf("a table that is being adopted has the rule %q", x.Comment)
		}
	}
}

// tcpSegment is one that bears ACK alone.
func tcpSegment(src, dst netip.Addr, sport, dport uint16) []byte {
	b := make([]byte, 20)
	b[0], b[1], b[2], b[3] = byte(sport>>8), byte(sport), byte(dport>>8), byte(dport)
	b[7], b[11] = 1, 1 // sequence, acknowledgement
	b[12], b[13], b[14] = 5<<4, 0x10, 0x10
	sum := uint32(packet.TCP) + uint32(len(b))
	for _, part := range [][]byte{src.AsSlice(), dst.AsSlice(), b} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(part[i])<<8 | uint32(part[i+1])
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	b[16], b[17] = byte(^sum>>8), byte(^sum)
	return b
}

// TestPolicySteps changes the peers of a list with many kinds of them at random, which
// moves, joins and splits intervals of both sorts of sets, and compares with the kernel
// after every step.
func TestPolicySteps(t *testing.T) {
	ns := testNS(t)
	d := open(t, nft.Config{NetNS: ns})
	random := rand.New(rand.NewPCG(1, 2))
	base := intent.Node{
		Name: "n1", MTU: 1450, VTEPMAC: packet.VTEPMAC("n1"), VPCs: []intent.VPC{{Name: "default", VNI: 10}},
		Ports: []intent.Port{{ID: "a/eth0", VPC: "default", VNI: 10, HostInterface: "flpaaa", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.5")}}},
	}
	c := cluster{intent: base}
	var rules []intent.Rule
	const kinds = 14
	for i := range kinds {
		r := intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{fmt.Sprintf("s%02d", i)}}}
		if i%4 != 3 {
			r.Match.Protocol, r.Match.Ports = packet.TCP, []intent.PortRange{{First: uint16(i), Last: uint16(i * 3)}, {First: 1000, Last: uint16(1000 + i)}}
		}
		if i%5 == 4 {
			r.Action = intent.Deny
		}
		rules = append(rules, r)
	}
	c.restrict("a", intent.Ingress, append(rules, intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Deny})...)
	var state *rendernft.State
	concatenated := false
	for range 40 {
		n := c.intent
		n.AddressSets = nil
		for i := range kinds {
			var peers netipx.IPSetBuilder
			for range random.IntN(5) {
				a := netip.AddrFrom4([4]byte{10, 1, 0, byte(random.IntN(16))})
				if random.IntN(2) == 0 {
					a = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(random.IntN(16))})
				}
				peers.AddPrefix(netip.PrefixFrom(a, a.BitLen()-random.IntN(3)).Masked())
			}
			if random.IntN(40) == 0 {
				peers.AddPrefix(netip.MustParsePrefix("::/0"))
				peers.AddPrefix(netip.MustParsePrefix("0.0.0.0/0"))
			}
			set, err := peers.IPSet()
			if err != nil {
				t.Fatal(err)
			}
			n.AddressSets = append(n.AddressSets, intent.AddressSet{VPC: "default", Name: fmt.Sprintf("s%02d", i), Prefixes: set.Prefixes()})
		}
		var table nftables.Table
		table, state = rendernft.RenderAfter(state, n, rendernft.Options{})
		concatenated = concatenated || slices.ContainsFunc(table.Sets, func(s nftables.Set) bool { return len(s.Key) == 3 && len(s.Elements) > 0 })
		apply(t, d, table)
		if diff, err := d.Audit(t.Context(), table); err != nil || len(diff) > 0 {
			t.Fatalf("the kernel differs: %v, %v", diff, err)
		}
	}
	if !concatenated {
		t.Error("no table had a concatenated set")
	}
}
