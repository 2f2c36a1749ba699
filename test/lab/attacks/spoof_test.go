package attacks

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// forgedPort is where forged packets go: nobody listens there, taps see them all the
// same.
const forgedPort = 4444

// The reasons of counters, as the rules' comments say them.
const (
	reasonSpoofed   = "spoofed source"
	reasonLoopback  = "loopback address from a pod"
	reasonVXLAN     = "VXLAN from a pod"
	reasonICMP      = "ICMP error about a flow that is not the pod's"
	reasonUnderlay  = "pod address from the underlay"
	reasonVLAN      = "frame with a VLAN header"
	reasonLoopback2 = "loopback address from the underlay"
)

func TestScenarioS1SpoofedSources(t *testing.T) {
	a := newArena(t)
	from := a.place(mallory).inject(t)
	for _, is4 := range []bool{true, false} {
		own := a.addr(mallory, is4)
		spoofed := map[string]netip.Addr{
			"a pod of this node":        a.addr(near, is4),
			"a pod of another node":     a.addr(far, is4),
			"this node":                 a.addr("node-1", is4),
			"another node":              a.addr("node-2", is4),
			"this node's tunnel":        a.tunnelAddr("node-1", is4),
			"the outside":               netip.MustParseAddr("203.0.113.10"),
			"the service range":         netip.MustParseAddr("10.96.0.1"),
			"loopback":                  netip.MustParseAddr("127.0.0.1"),
			"a link-local address":      netip.MustParseAddr("169.254.1.1"),
			"the unspecified address":   netip.MustParseAddr("0.0.0.0"),
			"the address after its own": own.Next(),
		}
		if !is4 {
			spoofed["the outside"] = netip.MustParseAddr("2001:db8:113::10")
			spoofed["the service range"] = netip.MustParseAddr("fd00:10:96::1")
			spoofed["loopback"] = netip.MustParseAddr("::1")
			spoofed["a link-local address"] = netip.MustParseAddr("fe80::1")
			spoofed["the unspecified address"] = netip.MustParseAddr("::")
			spoofed["an IPv4 address as IPv6"] = netip.AddrFrom16(a.addr(near, true).As16())
		}
		victims := map[string]netip.Addr{
			"a pod of the same node": a.addr(near, is4), "a pod of another node": a.addr(far, is4),
			"the node itself": a.addr("node-1", is4), "another node": a.addr("node-2", is4),
			"the node's tunnel address": a.tunnelAddr("node-1", is4),
		}
		var attacks []attack
		for who, src := range spoofed {
			for whom, dst := range victims {
				x := attack{name: fmt.Sprintf("from %s (%s) to %s (%s)", who, src, whom, dst), node: "node-1", reason: reasonSpoofed}
				if kernelDrops(src) || src == dst {
					x.reason = "" // before our rules, or not told which
				}
				x.frames = func(k token) [][]byte { return [][]byte{from.fromPod(src, dst, forgedPort, k)} }
				attacks = append(attacks, x)
			}
		}
		a.repel(from, func(k token) []byte { return from.fromPod(own, a.addr(near, is4), forgedPort, k) }, near, attacks)
		taps := a.watchers()
		for _, whom := range []string{near, far, "node-1", "node-2"} {
			dst := a.addr(whom, is4)
			a.arrives(from, func(k token) []byte { return from.fromPod(own, dst, forgedPort, k) }, taps[whom], "with its own address the pod does not reach "+whom)
		}
	}
}

// kernelDrops says whether the kernel drops an IPv6 packet with the source before
// any filter (ip6_rcv_core).
func kernelDrops(src netip.Addr) bool {
	return src.Is6() && (src.IsLoopback() || src.Is4In6())
}

// TestScenarioS1Disguises tries the ways around a filter that looks at plain packets
// only.
func TestScenarioS1Disguises(t *testing.T) {
	a := newArena(t)
	from := a.place(mallory).inject(t)
	for _, is4 := range []bool{true, false} {
		own, src, dst := a.addr(mallory, is4), a.addr(far, is4), a.addr(near, is4)
		payload := func(k token) []byte { return udp(src, dst, 40000, forgedPort, []byte(k)) }
		typ := uint16(etherIPv4)
		if !is4 {
			typ = etherIPv6
		}
		attacks := []attack{
			{name: "priority tag (VLAN 0)", node: "node-1", reason: a.reasonOf(reasonSpoofed, reasonVLAN), frames: func(k token) [][]byte {
				return [][]byte{ethernet(claims.GatewayMAC, from.mac, etherVLAN, vlan(0, typ, ip(src, dst, protoUDP, payload(k))))}
			}},
			{name: "VLAN 1", node: "node-1", reason: a.reasonOf("", reasonVLAN), frames: func(k token) [][]byte {
				return [][]byte{ethernet(claims.GatewayMAC, from.mac, etherVLAN, vlan(1, typ, ip(src, dst, protoUDP, payload(k))))}
			}},
			{name: "QinQ", node: "node-1", reason: a.reasonOf("", reasonVLAN), frames: func(k token) [][]byte {
				return [][]byte{ethernet(claims.GatewayMAC, from.mac, etherQinQ, vlan(0, etherVLAN, vlan(0, typ, ip(src, dst, protoUDP, payload(k)))))}
			}},
			{name: "broadcast frame", node: "node-1", reason: reasonSpoofed, frames: func(k token) [][]byte {
				return [][]byte{frame(broadcast, from.mac, ip(src, dst, protoUDP, payload(k)))}
			}},
			{name: "the victim's MAC addresses", node: "node-1", reason: reasonSpoofed, frames: func(k token) [][]byte {
				return [][]byte{frame(claims.GatewayMAC, a.place(near).mac, ip(src, dst, protoUDP, payload(k)))}
			}},
		}
		if is4 {
			attacks = append(attacks, attack{name: "fragments", frames: func(k token) [][]byte {
				// The token is in both, so that either is noticed.
				body := append(payload(k), make([]byte, (8-len(payload(k))%8)%8)...)
				tail := append([]byte(k), make([]byte, 8)...)
				return [][]byte{
					frame(claims.GatewayMAC, from.mac, ipv4(src, dst, protoUDP, 0x2000, body)),
					frame(claims.GatewayMAC, from.mac, ipv4(src, dst, protoUDP, uint16(len(body)/8), tail)),
				}
			}})
		} else {
			attacks = append(attacks,
				attack{name: "hop-by-hop and destination options", node: "node-1", reason: reasonSpoofed, frames: func(k token) [][]byte {
					return [][]byte{frame(claims.GatewayMAC, from.mac, ip(src, dst, protoHopByHop, extension(protoDestOpts, extension(protoUDP, payload(k)))))}
				}},
				attack{name: "a lone fragment", frames: func(k token) [][]byte {
					return [][]byte{frame(claims.GatewayMAC, from.mac, ip(src, dst, protoFragment, fragment6(protoUDP, 0, false, payload(k))))}
				}})
		}
		a.repel(from, func(k token) []byte { return from.fromPod(own, dst, forgedPort, k) }, near, attacks)
	}
}
