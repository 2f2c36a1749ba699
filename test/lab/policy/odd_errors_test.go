package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
	"github.com/fairlead-sdn/fairlead/test/lab/wire"
)

// icmpScene is where errors of a victim are about flows of mallory's.
type icmpScene struct {
	*cluster
	pair
	mallory, victim *sender
	// tap is mallory's, taps are the victim's and a third pod's by address.
	tap   *wire.Tap
	taps  map[netip.Addr]*wire.Tap
	model *oracle.Model
	flows *oracle.Flows
}

// S6: an ICMP error arrives if it is about a flow that is allowed, and of its sender's.
func TestScenarioS6Errors(t *testing.T) {
	c := newCluster(t)
	members := c.scene(oddScene + "---" + oddPolicies(2999))
	c.agree(members, labtest.Patience)
	from, near, far := members["odd/mallory"], members["odd/near"], members["odd/far"]
	mallory, tap, mint, sport := from.sender(t), wire.Listen(t, from.ns, "mallory"), &wire.Mint{}, uint16(30000)
	senders := map[*member]*sender{near: near.sender(t), far: far.sender(t)}
	taps := map[netip.Addr]*wire.Tap{}
	for _, m := range []*member{near, far} {
		heard := wire.Listen(t, m.ns, m.key.String())
		taps[m.addr(true)], taps[m.addr(false)] = heard, heard
	}
	limit := labtest.Limit(t, enforced)
	for _, end := range [][2]*member{{near, far}, {far, near}} {
		to, third := end[0], end[1]
		for _, is4 := range []bool{true, false} {
			s := icmpScene{
				cluster: c, pair: pair{from: from, to: to, src: from.addr(is4), dst: to.addr(is4), mint: mint, sport: &sport},
				mallory: mallory, victim: senders[to], tap: tap, taps: taps, model: c.model(), flows: &oracle.Flows{},
			}
			s.run(t, third.addr(is4), limit)
			c.Apply(oddPolicies(2999))
		}
	}
}

// run sends errors about flows to the victim and to third.
func (s *icmpScene) run(t *testing.T, third netip.Addr, limit time.Duration) {
	// Flows: one that runs, one of others, one that is refused, one that never was.
	runs, others := s.next(packet.UDP, portAllowed), s.next(packet.UDP, portAllowed)
	others.Dst = third
	refused, never := s.next(packet.UDP, portNoIngress), s.next(packet.UDP, portAllowed)
	s.begin(t, runs)
	s.begin(t, others)
	s.mallory.packets(t, wire.IP(refused.Src, refused.Dst, wire.ProtoUDP, datagram(refused, s.mint.Next())))
	s.control(s.mallory, s.pair, s.taps[s.dst])
	for _, pieces := range []bool{false, true} {
		s.errorAbout(t, "which runs", runs, pieces)
		s.errorAbout(t, "of others", others, pieces)
		s.errorAbout(t, "which was refused", refused, pieces)
		s.errorAbout(t, "which never was", never, pieces)
	}
	s.Apply(oddPolicies(1400))
	s.model = s.cluster.model()
	labtest.Eventually(t, limit, func() error {
		k := s.mint.Next()
		s.mallory.packets(t, wire.IP(runs.Src, runs.Dst, wire.ProtoUDP, datagram(runs, k)))
		s.control(s.mallory, s.pair, s.taps[s.dst])
		if s.taps[s.dst].Got(k) > 0 {
			return errors.New("the flow is not cut")
		}
		// A datapath that caches what it does to packets takes this for another one.
		if got, _, _ := s.try(t, runs, false); got {
			return errors.New("errors about the flow are delivered though it is cut")
		}
		return nil
	})
	for _, pieces := range []bool{false, true} {
		s.errorAbout(t, "which is cut", runs, pieces)
	}
	k := s.mint.Next()
	parts := wire.Split(runs.Src, runs.Dst, wire.ProtoUDP, wire.UDP(runs.Src, runs.Dst, runs.SrcPort, runs.DstPort, long(k)), large, *s.sport)
	s.mallory.packets(t, parts[:]...)
	s.control(s.mallory, s.pair, s.taps[s.dst])
	if s.taps[s.dst].Got(k) > 0 {
		t.Errorf("fragments of %s arrive, which is cut", runs)
	}
}

// begin sends the first packet of a flow that is allowed, until it arrives.
func (s *icmpScene) begin(t *testing.T, is packet.Packet) {
	t.Helper()
	probe := oracle.Probe{From: s.from.place(), Packet: is}
	v := s.model.Judge(s.flows, probe)
	if !v.Allowed {
		t.Fatalf("%s is not allowed: %s", is, v.Why())
	}
	labtest.Eventually(t, labtest.Patience, func() error {
		k := s.mint.Next()
		s.mallory.packets(t, wire.IP(is.Src, is.Dst, wire.ProtoUDP, datagram(is, k)))
		s.control(s.mallory, s.pair, s.taps[s.dst])
		if s.taps[is.Dst].Got(k) == 0 {
			return fmt.Errorf("%s does not arrive", is)
		}
		return nil
	})
	s.flows.Begin(probe, v.Outcomes[0])
}

// try lets the victim send an error about a packet of mallory's, in large pieces if it is to
// be so. It tells whether that arrives, and what the oracle says.
func (s *icmpScene) try(t *testing.T, is packet.Packet, pieces bool) (got, want bool, why string) {
	t.Helper()
	k := s.mint.Next()
	payload := thrice(k)
	if pieces {
		payload = long(k)
	}
	quoted := wire.IP(is.Src, is.Dst, wire.ProtoUDP, wire.UDP(is.Src, is.Dst, is.SrcPort, is.DstPort, payload))
	proto, kind, body := packet.ICMP, uint8(wire.ProtoICMP), wire.ICMP(s.dst, s.src, 3, 3, 0, quoted)
	if s.src.Is6() {
		proto, kind, body = packet.ICMPv6, wire.ProtoICMPv6, wire.ICMP(s.dst, s.src, 1, 4, 0, quoted)
	}
	if *s.sport++; pieces {
		parts := wire.Split(s.dst, s.src, kind, body, large, *s.sport)
		s.victim.packets(t, parts[:]...)
	} else {
		s.victim.packets(t, wire.IP(s.dst, s.src, kind, body))
	}
	v := s.model.Judge(s.flows, oracle.Probe{From: s.to.place(), Packet: packet.Packet{Src: s.dst, Dst: s.src, Protocol: proto}, Embedded: &is})
	s.answerBehind(s.victim, s.pair, s.tap)
	return s.tap.Got(k) > 0, v.Allowed, v.Why()
}

// errorAbout is try, and must be as the oracle says.
func (s *icmpScene) errorAbout(t *testing.T, which string, is packet.Packet, pieces bool) {
	t.Helper()
	if got, want, why := s.try(t, is, pieces); got != want {
		t.Errorf("an error about %s, %s, in pieces %t: delivered is %t, want %t: %s", is, which, pieces, got, want, why)
	}
}
