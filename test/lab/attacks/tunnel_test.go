package attacks

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

const islandManifest = `
apiVersion: fairlead.dev/v1alpha1
kind: VPC
metadata: {name: attack-island}
spec: {namespaces: {matchLabels: {attack: island}}}
---
apiVersion: fairlead.dev/v1alpha1
kind: Subnet
metadata: {name: attack-island}
spec: {vpc: attack-island, cidrs: [10.98.0.0/16]}
`

// vtep is the MAC address of a node's tunnel device.
func (a *arena) vtep(node string) packet.MAC {
	a.t.Helper()
	n := labtest.Get[*v1alpha1.NodeNetwork](a.Lab, datastore.KindNodeNetwork, node)
	m, err := packet.ParseMAC(n.Spec.VTEPMAC)
	if err != nil {
		a.t.Fatalf("VTEP MAC of %s: %v", node, err)
	}
	return m
}

// tunnelled is what a forged VXLAN packet to node-1 says.
type tunnelled struct {
	outerSrc, outerDst netip.Addr
	vni                packet.VNI
	src, dst           netip.Addr
	toVTEP             packet.MAC
	// tag makes the inner frame one of VLAN 0.
	tag bool
	// fragments splits the outer packet.
	fragments bool
}

// packets are the outer IP packets.
func (x tunnelled) packets(k token) [][]byte {
	inner := ip(x.src, x.dst, protoUDP, udp(x.src, x.dst, 40000, forgedPort, []byte(k)))
	f := frame(x.toVTEP, evil, inner)
	if x.tag {
		f = ethernet(x.toVTEP, evil, etherVLAN, append([]byte{0, 0}, f[12:]...))
	}
	body := udp(x.outerSrc, x.outerDst, 50000, claims.VXLANPort, vxlan(x.vni, f))
	if !x.fragments {
		return [][]byte{ip(x.outerSrc, x.outerDst, protoUDP, body)}
	}
	const at = 24
	if x.outerSrc.Is4() {
		return [][]byte{
			ipv4(x.outerSrc, x.outerDst, protoUDP, 0x2000, body[:at]),
			ipv4(x.outerSrc, x.outerDst, protoUDP, at/8, body[at:]),
		}
	}
	return [][]byte{
		ip(x.outerSrc, x.outerDst, protoFragment, fragment6(protoUDP, 0, true, body[:at])),
		ip(x.outerSrc, x.outerDst, protoFragment, fragment6(protoUDP, at/8, false, body[at:])),
	}
}

func frames(dst, src packet.MAC, packets [][]byte) [][]byte {
	var out [][]byte
	for _, p := range packets {
		out = append(out, frame(dst, src, p))
	}
	return out
}

func TestScenarioS4Tunnel(t *testing.T) {
	a := newArena(t)
	a.Apply(islandManifest)
	t.Cleanup(func() {
		for _, kind := range []datastore.Kind{datastore.KindSubnet, datastore.KindVPC} {
			if err := a.Store.Delete(context.Background(), kind, datastore.Key{Name: "attack-island"}, datastore.Preconditions{}); err != nil {
				t.Errorf("delete %s attack-island: %v", kind, err)
			}
		}
	})
	var island packet.VNI
	labtest.Eventually(t, labtest.Patience, func() error {
		v, err := labtest.TryGet[*v1alpha1.VPC](a.Lab, datastore.KindVPC, "attack-island")
		if err != nil || v.Status.VNI == 0 {
			return fmt.Errorf("the VPC has no VNI yet: %w", err)
		}
		island = packet.VNI(v.Status.VNI)
		return nil
	})
	vni, vtep1 := a.vni(), a.vtep("node-1")
	node1 := a.place("node-1")
	to := func(outerSrc, outerDst netip.Addr, vni packet.VNI, src, dst netip.Addr) tunnelled {
		return tunnelled{outerSrc: outerSrc, outerDst: outerDst, vni: vni, src: src, dst: dst, toVTEP: vtep1}
	}

	t.Run("stranger", func(t *testing.T) {
		a := a.with(t)
		from := a.place("router").inject(t)
		var attacks []attack
		for _, outer4 := range []bool{true, false} {
			stranger := netip.MustParseAddr("172.30.0.66")
			if !outer4 {
				stranger = netip.MustParseAddr("fd00:30::66")
			}
			for _, inner4 := range []bool{true, false} {
				x := to(stranger, a.addr("node-1", outer4), vni, a.addr(far, inner4), a.addr(near, inner4))
				attacks = append(attacks, attack{
					name: fmt.Sprintf("right VNI from %s, inner %s", stranger, x.src), node: "node-1", reason: "wire in-bad-source",
					frames: func(k token) [][]byte { return frames(node1.mac, from.mac, x.packets(k)) },
				})
				split := x
				split.fragments = true
				// Open vSwitch in userspace knows no fragments of the tunnel: the host's own
				// stack drops what they were.
				attacks = append(attacks, attack{
					name: fmt.Sprintf("the same from %s in fragments", stranger), node: "node-1", reason: a.reasonOf("wire in-bad-source", ""),
					frames: func(k token) [][]byte { return frames(node1.mac, from.mac, split.packets(k)) },
				})
			}
		}
		// A peer's IPv6 address, while peers use IPv4 among them.
		x := to(a.addr("node-2", false), a.addr("node-1", false), vni, a.addr(far, true), a.addr(near, true))
		attacks = append(attacks, attack{
			name: "a peer's other address", node: "node-1", reason: "wire in-bad-source",
			frames: func(k token) [][]byte { return frames(node1.mac, from.mac, x.packets(k)) },
		})
		// As they are, with the address of a pod or of a node's tunnel.
		for _, is4 := range []bool{true, false} {
			for who, src := range map[string]netip.Addr{"a pod of another node": a.addr(far, is4), "a pod of the node": a.addr(mallory, is4), "a node's tunnel": a.tunnelAddr("node-2", is4)} {
				for _, dst := range []netip.Addr{a.addr(near, is4), a.addr("node-1", is4), a.tunnelAddr("node-1", is4)} {
					attacks = append(attacks, attack{
						name: fmt.Sprintf("plain packet from %s (%s) to %s", who, src, dst), node: "node-1", reason: reasonUnderlay,
						frames: func(k token) [][]byte {
							return [][]byte{frame(node1.mac, from.mac, ip(src, dst, protoUDP, udp(src, dst, 40000, forgedPort, []byte(k))))}
						},
					})
				}
			}
		}
		stranger := netip.MustParseAddr("172.30.0.66")
		a.repel(from, func(k token) []byte {
			dst := a.addr("node-1", true)
			return frame(node1.mac, from.mac, ip(stranger, dst, protoUDP, udp(stranger, dst, 40000, forgedPort, []byte(k))))
		}, "node-1", attacks)
	})

	t.Run("peer", func(t *testing.T) {
		a := a.with(t)
		from := a.place("node-2").inject(t)
		outerSrc, outerDst := a.addr("node-2", true), a.addr("node-1", true)
		good := to(outerSrc, outerDst, vni, a.addr(far, true), a.addr(near, true))
		good6 := to(outerSrc, outerDst, vni, a.addr(far, false), a.addr(near, false))
		send := func(x tunnelled) func(token) [][]byte {
			return func(k token) [][]byte { return frames(node1.mac, from.mac, x.packets(k)) }
		}
		vary := func(name, reason string, change func(*tunnelled)) []attack {
			var out []attack
			for _, x := range []tunnelled{good, good6} {
				change(&x)
				out = append(out, attack{name: fmt.Sprintf("%s (inner %s to %s)", name, x.src, x.dst), node: "node-1", reason: reason, frames: send(x)})
			}
			return out
		}
		var attacks []attack
		add := func(more []attack) { attacks = append(attacks, more...) }
		add(vary("an unknown VNI", "wire in-unknown-vni", func(x *tunnelled) { x.vni = 0xabcdef }))
		add(vary("VNI 0", "wire in-unknown-vni", func(x *tunnelled) { x.vni = 0 }))
		add(vary("the VNI of another VPC", "wire in-bad-source", func(x *tunnelled) { x.vni = island }))
		for who, name := range map[string]string{"the receiver's own pod": near, "the receiver itself": "node-1", "the sender's underlay address": "node-2"} {
			add(vary("inner source of "+who, "wire in-bad-source", func(x *tunnelled) { x.src = a.addr(name, x.src.Is4()) }))
		}
		add(vary("inner source of a third node's tunnel", "wire in-bad-source", func(x *tunnelled) { x.src = a.tunnelAddr("node-3", x.src.Is4()) }))
		add(vary("inner source of the receiver's tunnel", "wire in-bad-source", func(x *tunnelled) { x.src = a.tunnelAddr("node-1", x.src.Is4()) }))
		add(vary("inner destination on a third node", "wire in-not-local", func(x *tunnelled) { x.dst = a.tunnelAddr("node-3", x.dst.Is4()) }))
		add(vary("inner destination of the receiver's underlay", "wire in-not-local", func(x *tunnelled) { x.dst = a.addr("node-1", x.dst.Is4()) }))
		add(vary("loopback as inner destination", "wire in-not-local", func(x *tunnelled) {
			x.dst = netip.MustParseAddr("127.0.0.1")
			if x.src.Is6() {
				x.dst = netip.IPv6Loopback()
			}
		}))
		add(vary("inner source of nobody, in VLAN 0", a.reasonOf("wire in-bad-source", reasonVLAN), func(x *tunnelled) {
			x.src, x.tag = a.addr(near, x.src.Is4()), true
		}))
		mapped := good6
		mapped.src = netip.AddrFrom16(good.src.As16())
		attacks = append(attacks, attack{name: "an IPv4 source in IPv6", node: "node-1", reason: a.reasonOf("wire in-malformed", "wire in-bad-source"), frames: send(mapped)})
		alien := good
		alien.toVTEP = packet.MAC{0x02, 1, 2, 3, 4, 5}
		attacks = append(attacks, attack{name: "another inner destination MAC", frames: send(alien)})
		a.repel(from, func(k token) []byte { return send(good)(k)[0] }, near, attacks)
		taps := a.watchers()
		a.arrives(from, func(k token) []byte { return send(good6)(k)[0] }, taps[near], "a good IPv6 packet does not arrive")

		// docs/security.md: the outer source is believed. Whoever can forge it on the
		// underlay is believed, as far as that peer is.
		router := a.place("router").inject(t)
		a.arrives(router, func(k token) []byte { return frame(node1.mac, router.mac, good.packets(k)[0]) }, taps[near],
			"a stranger that forges a peer's outer source is not delivered any more: say so in docs/security.md")
	})

	t.Run("pod", func(t *testing.T) {
		a := a.with(t)
		// An address of node-2 that no object names.
		a.MustExec("node-2", "ip", "addr", "add", "172.30.0.99/24", "dev", "eth0")
		a.later("node-2", "ip", "addr", "del", "172.30.0.99/24", "dev", "eth0")
		from := a.place(mallory).inject(t)
		var attacks []attack
		for _, outer4 := range []bool{true, false} {
			targets := map[string]netip.Addr{
				"its node": a.addr("node-1", outer4), "another node": a.addr("node-2", outer4),
				"its node's tunnel address": a.tunnelAddr("node-1", outer4), "another node's tunnel address": a.tunnelAddr("node-2", outer4),
			}
			// With Open vSwitch nothing takes VXLAN at an address of the tunnel.
			reasons := map[string][2]string{"another node's tunnel address": {"node-2", a.reasonOf("wire in-bad-source", "")}}
			if outer4 {
				targets["an unknown address of another node"] = netip.MustParseAddr("172.30.0.99")
			}
			for who, dst := range targets {
				for _, split := range []bool{false, true} {
					node, victim := "node-2", far
					if who == "its node" {
						node, victim = "node-1", near
					}
					x := tunnelled{
						outerSrc: a.addr(mallory, outer4), outerDst: dst, vni: vni, toVTEP: a.vtep(node),
						src: a.tunnelAddr("node-1", true), dst: a.addr(victim, true), fragments: split,
					}
					counter := [2]string{"node-1", reasonVXLAN}
					if split { // Open vSwitch takes no fragments as small as these
						counter[1] = a.reasonOf(reasonVXLAN, "part of no flow")
					}
					if other, ok := reasons[who]; ok {
						counter = other
					}
					attacks = append(attacks, attack{
						name: fmt.Sprintf("VXLAN to %s (%s), fragments: %t", who, dst, split), node: counter[0], reason: counter[1],
						frames: func(k token) [][]byte { return frames(claims.GatewayMAC, from.mac, x.packets(k)) },
					})
				}
			}
		}
		// A Service, as kube-proxy would make one, whose endpoint is a node's tunnel.
		service := netip.MustParseAddr("10.96.0.99")
		a.MustExec("node-1", "nft", "add table ip attack; add chain ip attack services { type nat hook prerouting priority -100; }; "+
			"add rule ip attack services ip daddr "+service.String()+" udp dport 7777 dnat to "+a.addr("node-2", true).String()+":4789")
		a.later("node-1", "nft", "delete", "table", "ip", "attack")
		attacks = append(attacks, attack{name: "VXLAN through a Service", node: "node-1", reason: reasonVXLAN, frames: func(k token) [][]byte {
			src := a.addr(mallory, true)
			inner := ip(a.tunnelAddr("node-1", true), a.addr(far, true), protoUDP, udp(a.tunnelAddr("node-1", true), a.addr(far, true), 40000, forgedPort, []byte(k)))
			body := vxlan(vni, frame(a.vtep("node-2"), evil, inner))
			return [][]byte{frame(claims.GatewayMAC, from.mac, ip(src, service, protoUDP, udp(src, service, 50000, 7777, body)))}
		}})
		a.repel(from, func(k token) []byte { return from.fromPod(a.addr(mallory, true), a.addr(far, true), forgedPort, k) }, far, attacks)
	})

	t.Run("conntrack does not know the tunnel", func(t *testing.T) {
		a := a.with(t)
		from, taps := a.place(mallory).inject(t), a.watchers()
		a.arrives(from, func(k token) []byte { return from.fromPod(a.addr(mallory, true), a.addr(far, true), forgedPort, k) }, taps[far], "far is away")
		for _, node := range []string{"node-1", "node-2"} {
			for _, dir := range tunnelFlows(t, a.place(node)) {
				t.Errorf("%s tracks a flow of the tunnel, which a NAT could capture: %s", node, dir)
			}
		}
	})
}

// tunnelFlows are the conntrack entries of the tunnel's port between nodes.
func tunnelFlows(t *testing.T, p place) (out []string) {
	t.Helper()
	underlay := netip.MustParsePrefix("172.30.0.0/16")
	err := netspace.Do(p.ns, func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		flows, err := h.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		if len(flows) == 0 && err == nil {
			err = fmt.Errorf("no flow at all")
		}
		for _, f := range flows {
			tunnel := f.Forward.DstPort == claims.VXLANPort || f.Reverse.DstPort == claims.VXLANPort
			if src, ok := netip.AddrFromSlice(f.Forward.SrcIP); tunnel && ok && underlay.Contains(src.Unmap()) {
				out = append(out, f.String())
			}
		}
		return err
	})
	if err != nil {
		t.Fatalf("list the flows of %s: %v", p.name, err)
	}
	return out
}

// TestScenarioS5Loopback: what listens on a node's loopback is for the node.
func TestScenarioS5Loopback(t *testing.T) {
	for _, localnet := range []string{"0", "1"} {
		t.Run("route_localnet="+localnet, func(t *testing.T) {
			a := newArena(t)
			for _, node := range []string{"node-1", "node-2"} {
				const key = "/proc/sys/net/ipv4/conf/all/route_localnet"
				a.MustExec(node, "sh", "-c", "echo "+localnet+" > "+key)
				a.later(node, "sh", "-c", "echo 0 > "+key)
			}
			pod, neighbour, node1 := a.place(mallory).inject(t), a.place("router").inject(t), a.place("node-1")
			linkLocal := a.linkLocal("node-1")
			var fromPod, fromNeighbour []attack
			stranger := map[bool]netip.Addr{true: netip.MustParseAddr("172.30.0.66"), false: netip.MustParseAddr("fd00:30::66")}
			for _, dst := range []netip.Addr{
				netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.1.2.3"), netip.IPv6Loopback(),
				netip.MustParseAddr("::ffff:127.0.0.1"), linkLocal,
			} {
				x := attack{name: "pod to " + dst.String(), frames: func(k token) [][]byte {
					return [][]byte{pod.fromPod(a.addr(mallory, dst.Is4()), dst, forgedPort, k)}
				}}
				// The kernel itself drops what comes in for ::1 (ip6_rcv_core).
				if dst.Is4() {
					x.node, x.reason = "node-1", reasonLoopback
				}
				fromPod = append(fromPod, x)
				if dst == linkLocal {
					continue // that of a neighbour: it is in the same segment
				}
				src := stranger[dst.Is4()]
				x.name, x.frames = "neighbour to "+dst.String(), func(k token) [][]byte {
					return [][]byte{frame(node1.mac, neighbour.mac, ip(src, dst, protoUDP, udp(src, dst, 40000, forgedPort, []byte(k))))}
				}
				if dst.Is4() {
					x.reason = reasonLoopback2
				}
				fromNeighbour = append(fromNeighbour, x)
			}
			for _, src := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()} {
				x := attack{name: "neighbour as " + src.String(), frames: func(k token) [][]byte {
					dst := a.addr("node-1", src.Is4())
					return [][]byte{frame(node1.mac, neighbour.mac, ip(src, dst, protoUDP, udp(src, dst, 40000, forgedPort, []byte(k))))}
				}}
				if src.Is4() {
					x.node, x.reason = "node-1", reasonLoopback2
				}
				fromNeighbour = append(fromNeighbour, x)
			}
			a.repel(pod, func(k token) []byte { return pod.fromPod(a.addr(mallory, true), a.addr("node-1", true), forgedPort, k) }, "node-1", fromPod)
			a.repel(neighbour, func(k token) []byte {
				dst := a.addr("node-1", true)
				return frame(node1.mac, neighbour.mac, ip(stranger[true], dst, protoUDP, udp(stranger[true], dst, 40000, forgedPort, []byte(k))))
			}, "node-1", fromNeighbour)
		})
	}
}

// linkLocal is the link-local address of a place's interface.
func (a *arena) linkLocal(name string) netip.Addr {
	a.t.Helper()
	for _, x := range addresses(a.t, a.place(name)) {
		if x.IsLinkLocalUnicast() {
			return x
		}
	}
	a.t.Fatalf("%s has no link-local address", name)
	return netip.Addr{}
}

func addresses(t testing.TB, p place) (out []netip.Addr) {
	t.Helper()
	err := netspace.Do(p.ns, func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		link, err := h.LinkByName(p.dev)
		if err != nil {
			return err
		}
		list, err := h.AddrList(link, netlink.FAMILY_ALL)
		for _, x := range list {
			if addr, ok := netip.AddrFromSlice(x.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
		return err
	})
	if err != nil {
		t.Fatalf("list the addresses of %s: %v", p.name, err)
	}
	return out
}
