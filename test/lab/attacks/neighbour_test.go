package attacks

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// evil is a MAC address of nobody.
var evil = packet.MAC{0x02, 0xba, 0xdb, 0xad, 0xba, 0xd1}

// neighbours are the neighbour entries of a place with a MAC address, as "ADDRESS dev
// LINK lladdr MAC": without their states, which change by themselves.
func neighbours(l *labtest.Lab, where string) []string {
	var out []string
	for line := range strings.Lines(l.MustExec(where, "ip", "neigh", "show")) {
		if f := strings.Fields(line); len(f) >= 5 && f[3] == "lladdr" {
			out = append(out, strings.Join(f[:5], " "))
		}
	}
	slices.Sort(out)
	return out
}

// onPorts leaves the entries on the links of pods, and all those of an address in
// only.
func onPorts(entries []string, only ...netip.Addr) []string {
	return slices.DeleteFunc(slices.Clone(entries), func(e string) bool {
		known := slices.ContainsFunc(only, func(a netip.Addr) bool { return strings.HasPrefix(e, a.String()+" ") })
		return !known && !strings.Contains(e, " dev "+claims.PortPrefix)
	})
}

func TestScenarioS2Poisoning(t *testing.T) {
	a := newArena(t)
	from := a.place(mallory).inject(t)
	router4, router6 := netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:30::1")
	// The node's entry of its own router is there, so that it could be poisoned.
	a.MustExec("node-1", "ping", "-c1", "-W2", router4.String())
	a.MustExec("node-1", "ping", "-c1", "-W2", router6.String())
	node := func() []string { return onPorts(neighbours(a.Lab, "node-1"), router4, router6) }
	before := map[string][]string{"node-1": node(), near: neighbours(a.Lab, near)}
	if len(before["node-1"]) < 6 || len(before[near]) < 2 {
		t.Fatalf("neighbours: %v: want two of each pod and the routers", before)
	}

	victims := []netip.Addr{
		a.addr(near, true), a.addr(near, false), claims.Gateway4, claims.Gateway6, router4, router6,
		a.addr("node-1", true), a.addr("node-1", false), a.addr(mallory, true), a.addr(mallory, false),
	}
	for _, v := range victims {
		for _, to := range []packet.MAC{broadcast, claims.GatewayMAC} {
			if v.Is4() {
				for _, tpa := range []netip.Addr{v, a.addr("node-1", true), claims.Gateway4} {
					from.Send(t,
						ethernet(to, evil, etherARP, arp(1, evil, v, packet.MAC{}, tpa)),
						ethernet(to, evil, etherARP, arp(2, evil, v, claims.GatewayMAC, tpa)))
				}
				continue
			}
			for _, src := range []netip.Addr{v, a.addr(mallory, false), netip.MustParseAddr("fe80::bad")} {
				for _, dst := range []netip.Addr{netip.MustParseAddr("ff02::1"), solicitedNode(v), a.addr("node-1", false), v} {
					if src == dst {
						continue
					}
					from.Send(t, frame(to, evil, advertisement(src, dst, v)), frame(to, evil, solicitation(src, dst, v)))
				}
			}
		}
	}
	// A flood that would fill the node's neighbour table, which all links share.
	for i := range 512 {
		src := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		from.Send(t, ethernet(broadcast, evil, etherARP, arp(1, evil, src, packet.MAC{}, a.addr("node-1", true))))
	}
	a.anotherMAC(from)
	if diff := cmp.Diff(before, map[string][]string{"node-1": node(), near: neighbours(a.Lab, near)}); diff != "" {
		t.Errorf("neighbour tables were changed (-before +after):\n%s", diff)
	}
	for _, is4 := range []bool{true, false} {
		for _, who := range []string{"node-1", near, far} {
			if who == far && !is4 {
				continue
			}
			a.MustExec(who, "ping", "-c1", "-W2", a.addr(mallory, is4).String())
		}
	}
}

// anotherMAC sends the pod's own packets under another MAC address. It means nothing to the
// linux plane, and is spoofed on the ovs plane.
func (a *arena) anotherMAC(from *injector) {
	a.t.Helper()
	taps := a.watchers()
	for _, is4 := range []bool{true, false} {
		src, dst := a.addr(mallory, is4), a.addr(near, is4)
		under := func(mac packet.MAC) func(token) []byte {
			return func(k token) []byte {
				return frame(claims.GatewayMAC, mac, ip(src, dst, protoUDP, udp(src, dst, 40000, forgedPort, []byte(k))))
			}
		}
		if a.OVS() {
			a.repel(from, under(from.mac), near, []attack{{
				name: "another MAC address", node: "node-1", reason: reasonSpoofed,
				frames: func(k token) [][]byte { return [][]byte{under(evil)(k)} },
			}})
			continue
		}
		a.arrives(from, under(evil), taps[near], "the pod's own packets do not arrive")
	}
}

// solicitedNode is the multicast address of RFC 4291 section 2.7.1.
func solicitedNode(a netip.Addr) netip.Addr {
	m := netip.MustParseAddr("ff02::1:ff00:0").As16()
	b := a.As16()
	copy(m[13:], b[13:])
	return netip.AddrFrom16(m)
}

// advertisement says, with the flags solicited and override, that target is at evil.
func advertisement(src, dst, target netip.Addr) []byte {
	body := append(target.AsSlice(), append([]byte{2, 1}, evil[:]...)...)
	return ip(src, dst, protoICMPv6, icmp(src, dst, 136, 0, 0x60000000, body))
}

// solicitation asks for target and says that src is at evil.
func solicitation(src, dst, target netip.Addr) []byte {
	body := append(target.AsSlice(), append([]byte{1, 1}, evil[:]...)...)
	return ip(src, dst, protoICMPv6, icmp(src, dst, 135, 0, 0, body))
}

// routing is what routers and DHCP servers could change at a place.
func routing(l *labtest.Lab, where string) map[string]string {
	out := map[string]string{}
	for _, args := range []string{"-4 route show table all", "-6 route show table all", "-4 addr", "-6 addr", "-6 rule"} {
		out[args] = steady(l.MustExec(where, append([]string{"ip"}, strings.Fields(args)...)...))
	}
	return out
}

// steady leaves out what changes by itself: entries of the route cache that the
// kernel made are not among them, since nothing here may make any.
func steady(s string) string {
	var out []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestScenarioS3FalseRouters(t *testing.T) {
	a := newArena(t)
	from := a.place(mallory).inject(t)
	taps := a.watchers()
	before := map[string]map[string]string{}
	places := []string{"node-1", near, far}
	for _, p := range places {
		before[p] = routing(a.Lab, p)
	}
	all := netip.MustParseAddr("ff02::1")
	var offers []token
	for _, src := range []netip.Addr{netip.MustParseAddr("fe80::bad"), claims.Gateway6, a.addr(mallory, false)} {
		for _, to := range []packet.MAC{{0x33, 0x33, 0, 0, 0, 1}, broadcast, claims.GatewayMAC} {
			from.Send(t,
				frame(to, evil, routerAdvertisement(src, all)),
				frame(to, evil, routerAdvertisement(src, a.addr("node-1", false))),
				frame(to, evil, routerAdvertisement(src, a.addr(near, false))),
				frame(to, evil, redirect6(src, a.addr("node-1", false))),
				frame(to, evil, redirect6(src, a.addr(near, false))))
		}
	}
	for _, src := range []netip.Addr{claims.Gateway4, a.addr(mallory, true), a.addr("node-1", true), netip.MustParseAddr("172.30.0.1")} {
		for _, victim := range []string{"node-1", near, far} {
			from.Send(t, frame(claims.GatewayMAC, evil, redirect4(src, a.addr(victim, true))))
		}
		k := a.mint.Next()
		offers = append(offers, k)
		everybody := netip.AddrFrom4([4]byte{255, 255, 255, 255})
		from.Send(t, frame(broadcast, evil, ip(src, everybody, protoUDP, udp(src, everybody, 67, 68, offer(k)))))
	}
	for _, is4 := range []bool{true, false} {
		a.arrives(from, func(k token) []byte { return from.fromPod(a.addr(mallory, is4), a.addr(near, is4), forgedPort, k) },
			taps[near], "the control packet does not arrive")
	}
	for _, p := range places {
		if diff := cmp.Diff(before[p], routing(a.Lab, p)); diff != "" {
			t.Errorf("addresses or routes of %s were changed (-before +after):\n%s", p, diff)
		}
	}
	for _, k := range offers {
		for where, ts := range taps {
			if count(ts, k) != 0 {
				t.Errorf("%s got a DHCP offer of the pod", where)
			}
		}
	}
	for _, key := range []string{"accept_ra", "accept_redirects", "autoconf"} {
		for _, p := range []string{near, far, mallory} {
			if v := strings.TrimSpace(a.MustExec(p, "cat", "/proc/sys/net/ipv6/conf/eth0/"+key)); v != "0" {
				t.Errorf("%s of %s is %s, want 0", key, p, v)
			}
		}
	}
}

// routerAdvertisement offers itself as the default router, and a prefix.
func routerAdvertisement(src, dst netip.Addr) []byte {
	body := make([]byte, 8) // reachable and retransmission times
	body = append(body, append([]byte{1, 1}, evil[:]...)...)
	body = append(body, 3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0)
	body = append(body, netip.MustParseAddr("2001:db8:bad::").AsSlice()...)
	return ip(src, dst, protoICMPv6, icmp(src, dst, 134, 0, 0x40001c20, body))
}

// redirect6 says that the outside is at evil's address.
func redirect6(src, dst netip.Addr) []byte {
	outside := netip.MustParseAddr("2001:db8:113::10")
	inner := ip(dst, outside, protoUDP, udp(dst, outside, 1, 2, nil))
	body := append(netip.MustParseAddr("fe80::bad").AsSlice(), outside.AsSlice()...)
	body = append(body, append([]byte{2, 1}, evil[:]...)...)
	body = append(body, 4, byte((8+len(inner))/8), 0, 0, 0, 0, 0, 0)
	return ip(src, dst, protoICMPv6, icmp(src, dst, 137, 0, 0, append(body, inner...)))
}

// redirect4 says that the outside is behind the attacker.
func redirect4(src, dst netip.Addr) []byte {
	outside := netip.MustParseAddr("203.0.113.10")
	gateway := netip.MustParseAddr("10.128.0.66").As4()
	rest := uint32(gateway[0])<<24 | uint32(gateway[1])<<16 | uint32(gateway[2])<<8 | uint32(gateway[3])
	return ip(src, dst, protoICMP, icmp(src, dst, 5, 1, rest, ip(dst, outside, protoUDP, udp(dst, outside, 1, 2, nil))))
}

// offer is a DHCP offer of a wrong address and router, marked in its server name.
func offer(k token) []byte {
	b := make([]byte, 236)
	b[0], b[1], b[2] = 2, 1, 6
	copy(b[16:], []byte{10, 6, 6, 6})
	copy(b[44:], k)
	return append(b, 99, 130, 83, 99, 53, 1, 2, 3, 4, 10, 6, 6, 1, 255)
}
