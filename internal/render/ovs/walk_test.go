package ovs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// What became of a packet: "port 10" is the first pod's.
const (
	dropped    = "dropped"
	toHost     = "port 1"
	toPodA     = "port 10"
	toPodB     = "port 11"
	intoTunnel = "port 2"
	answered   = "answered"
)

// walked is a packet and what becomes of it. flow is in the words of ofproto/trace.
type walked struct {
	name string
	flow string
	// next is what connection tracking says of it, "trk,new" by itself; mark is that of its
	// flow.
	next string
	mark uint32
	want string
}

var (
	macA = packet.PodMAC("default", netip.MustParseAddr("10.1.0.5"))
	macB = packet.PodMAC("default", netip.MustParseAddr("10.1.0.6"))
	vtep = packet.VTEPMAC("n1")
	peer = packet.VTEPMAC("n2")
)

// frame is an IP packet between two addresses that comes in by a port.
func frame(in of.Port, src, dst packet.MAC, from, to, more string) string {
	proto, rest, _ := strings.Cut(more, ",")
	fields := "%s,nw_src=%s,nw_dst=%s,nw_ttl=64,%s"
	if netip.MustParseAddr(from).Is6() {
		fields = "%s,ipv6_src=%s,ipv6_dst=%s,nw_ttl=64,%s"
		proto = strings.TrimSuffix(proto, "6") + "6"
	}
	return fmt.Sprintf("in_port=%d,dl_src=%s,dl_dst=%s,"+fields, in, src, dst, proto, from, to, rest)
}

// fromA is a packet of the first pod.
func fromA(to, more string) string {
	from := "10.1.0.5"
	if netip.MustParseAddr(to).Is6() {
		from = "fd01::5"
	}
	return frame(10, macA, claims.GatewayMAC, from, to, more)
}

func fromB(to, more string) string {
	from := "10.1.0.6"
	if netip.MustParseAddr(to).Is6() {
		from = "fd01::6"
	}
	return frame(11, macB, claims.GatewayMAC, from, to, more)
}

func fromHost(from, to, more string) string {
	return frame(HostPortNumber, vtep, claims.GatewayMAC, from, to, more)
}

func fromTunnel(outer string, vni int, from, to, more string) string {
	return fmt.Sprintf("tun_id=%d,tun_src=%s,tun_dst=172.30.0.11,", vni, outer) + frame(TunnelPortNumber, peer, vtep, from, to, more)
}

const (
	syn  = "tcp,tcp_src=1000,tcp_dst=80,tcp_flags=syn"
	ack  = "tcp,tcp_src=1000,tcp_dst=80,tcp_flags=ack"
	echo = "icmp,icmp_type=8"
	dns  = "udp,udp_src=1000,udp_dst=53"
)

// judged are packets to and from the first pod of the example with policies, and what
// the intent says of them.
func judged() (out []walked) {
	n := restricted()
	a := n.Ports[0]
	for _, k := range []packet.Packet{
		{Protocol: packet.TCP, SrcPort: 1000, DstPort: 80, SYN: true},
		{Protocol: packet.TCP, SrcPort: 1000, DstPort: 443, SYN: true},
		{Protocol: packet.TCP, SrcPort: 1000, DstPort: 21, SYN: true},
		{Protocol: packet.TCP, SrcPort: 1000, DstPort: 22, SYN: true},
		{Protocol: packet.UDP, SrcPort: 1000, DstPort: 53},
		{Protocol: packet.UDP, SrcPort: 1000, DstPort: 80},
		{Protocol: packet.ICMP},
	} {
		more := echo
		switch k.Protocol {
		case packet.TCP:
			more = fmt.Sprintf("tcp,tcp_src=%d,tcp_dst=%d,tcp_flags=syn", k.SrcPort, k.DstPort)
		case packet.UDP:
			more = fmt.Sprintf("udp,udp_src=%d,udp_dst=%d", k.SrcPort, k.DstPort)
		}
		for _, to := range []struct{ addr, want string }{{"10.1.0.6", toPodB}, {"10.1.0.66", intoTunnel}, {"12.0.0.1", toHost}, {"172.30.0.11", toHost}, {"10.1.0.5", toPodA}} {
			k.Src, k.Dst = a.Addresses[0], netip.MustParseAddr(to.addr)
			w := walked{name: "egress " + k.String(), flow: fromA(to.addr, more), want: to.want}
			if allowed, _ := n.Judge(a, intent.Egress, k); !allowed && k.Dst != k.Src {
				w.want = dropped
			}
			out = append(out, w)
		}
		for _, from := range []string{"10.1.0.6", "10.1.0.64", "10.1.0.65", "12.0.0.1", "10.1.0.1"} {
			k.Src, k.Dst = netip.MustParseAddr(from), a.Addresses[0]
			w := walked{name: "ingress " + k.String(), flow: fromHost(from, "10.1.0.5", more), want: toPodA}
			switch from {
			case "10.1.0.6":
				w.flow = fromB("10.1.0.5", more)
			case "10.1.0.64", "10.1.0.65":
				w.flow = fromTunnel("172.30.0.12", 10, from, "10.1.0.5", more)
			}
			if allowed, _ := n.Judge(a, intent.Ingress, k); !allowed && from != "10.1.0.1" {
				w.want = dropped
			}
			out = append(out, w)
		}
	}
	return out
}

// walks are the packets by example.
func walks() map[string][]walked {
	return map[string][]walked{
		"policy": judged(),
		"cross-node": {
			{name: "to a pod here", flow: fromA("10.1.0.6", syn), want: toPodB},
			{name: "to a pod here, IPv6", flow: fromA("fd01::6", syn), want: toPodB},
			{name: "ping", flow: fromA("10.1.0.6", echo), want: toPodB},
			{name: "SCTP", flow: fromA("10.1.0.6", "sctp,sctp_src=1,sctp_dst=2"), want: toPodB},
			{name: "to itself", flow: fromA("10.1.0.5", syn), want: toPodA},
			{name: "to another node", flow: fromA("10.1.0.66", syn), want: intoTunnel},
			{name: "to another node, IPv6", flow: fromA("fd01::42", syn), want: intoTunnel},
			{name: "to an address lent elsewhere", flow: fromA("10.1.0.71", syn), want: intoTunnel},
			{name: "to a peer without the tunnel", flow: fromA("10.7.0.5", syn), want: toHost},
			{name: "to the outside", flow: fromA("8.8.8.8", dns), want: toHost},
			{name: "to the outside, IPv6", flow: fromA("2001:db8::1", syn), want: toHost},
			{name: "to the node", flow: fromA("172.30.0.11", syn), want: toHost},
			{name: "to the node's own address", flow: fromA("10.1.0.1", syn), want: toHost},
			{name: "to an address that no pod has", flow: fromA("10.1.0.9", syn), want: dropped},
			{name: "to an address that nobody has", flow: fromA("10.1.99.9", syn), want: dropped},
			{name: "spoofed address", flow: frame(10, macA, claims.GatewayMAC, "10.1.0.6", "10.1.0.66", syn), want: dropped},
			{name: "spoofed IPv6 address", flow: frame(10, macA, claims.GatewayMAC, "fd01::6", "fd01::42", syn), want: dropped},
			{name: "spoofed MAC address", flow: frame(10, macB, claims.GatewayMAC, "10.1.0.5", "10.1.0.66", syn), want: dropped},
			{name: "the node's address", flow: frame(10, macA, claims.GatewayMAC, "10.1.0.1", "10.1.0.6", syn), want: dropped},
			{name: "not to the gateway", flow: frame(10, macA, macB, "10.1.0.5", "10.1.0.6", syn), want: dropped},
			{name: "VLAN", flow: "dl_vlan=5," + fromA("10.1.0.6", syn), want: dropped},
			{name: "multicast", flow: fromA("224.0.0.5", dns), want: dropped},
			{name: "broadcast", flow: fromA("255.255.255.255", dns), want: dropped},
			{name: "multicast, IPv6", flow: fromA("ff02::1", dns), want: dropped},
			{name: "loopback", flow: fromA("127.0.0.1", syn), want: dropped},
			{name: "VXLAN to a node", flow: fromA("172.30.0.12", "udp,udp_src=1000,udp_dst=4789"), want: dropped},
			{name: "VXLAN to a node, IPv6", flow: fromA("fd30::12", "udp,udp_src=1000,udp_dst=4789"), want: dropped},
			{name: "VXLAN to a pod", flow: fromA("10.1.0.6", "udp,udp_src=1000,udp_dst=4789"), want: toPodB},
			{name: "DHCP server", flow: fromA("10.1.0.6", "udp,udp_src=67,udp_dst=68"), want: dropped},
			{name: "router advertisement", flow: fromA("fd01::6", "icmp6,icmpv6_type=134"), want: dropped},
			{name: "redirect", flow: fromA("fd01::6", "icmp6,icmpv6_type=137"), want: dropped},
			{name: "ARP", flow: arp(macA, "10.1.0.5", "169.254.1.1", 1), want: answered},
			{name: "ARP for another pod", flow: arp(macA, "10.1.0.5", "10.1.0.6", 1), want: dropped},
			{name: "ARP with another address", flow: arp(macA, "10.1.0.6", "169.254.1.1", 1), want: dropped},
			{name: "ARP with another MAC address", flow: strings.Replace(arp(macA, "10.1.0.5", "169.254.1.1", 1), "arp_sha="+macA.String(), "arp_sha="+macB.String(), 1), want: dropped},
			{name: "ARP answer", flow: arp(macA, "10.1.0.5", "169.254.1.1", 2), want: dropped},
			{name: "solicitation", flow: solicit("fd01::5", "fe80::1"), want: answered},
			{name: "solicitation for another pod", flow: solicit("fd01::5", "fd01::6"), want: dropped},
			{name: "solicitation with another address", flow: solicit("fd01::6", "fe80::1"), want: dropped},
			{name: "TCP without its beginning", flow: fromA("10.1.0.6", ack), want: dropped},
			{name: "TCP with SYN and ACK", flow: fromA("10.1.0.6", strings.Replace(syn, "=syn", "=syn|ack", 1)), want: dropped},
			{name: "judged flow", flow: fromA("10.1.0.6", ack), next: "trk,est", mark: claims.CTJudged, want: toPodB},
			{name: "answer of a judged flow", flow: fromB("10.1.0.5", ack), next: "trk,est,rpl", mark: claims.CTJudged, want: toPodA},
			{name: "foreign bits of a mark", flow: fromA("10.1.0.6", ack), next: "trk,est", mark: claims.CTJudged | 7, want: toPodB},
			{name: "cut flow", flow: fromA("10.1.0.6", ack), next: "trk,est", mark: claims.CTJudged | claims.CTCut, want: dropped},
			{name: "answer of a cut flow", flow: fromB("10.1.0.5", ack), next: "trk,est,rpl", mark: claims.CTJudged | claims.CTCut, want: dropped},
			{name: "answer of the node to a cut flow", flow: fromHost("10.1.0.1", "10.1.0.5", ack), next: "trk,est,rpl", mark: claims.CTCut, want: dropped},
			{name: "answer of an unjudged flow", flow: fromB("10.1.0.5", ack), next: "trk,est,rpl", want: dropped},
			{name: "unjudged flow that is established", flow: fromA("10.1.0.6", ack), next: "trk,est", want: toPodB},
			{name: "part of no flow", flow: fromA("10.1.0.6", ack), next: "trk,inv", want: dropped},
			{name: "ICMP error without a flow", flow: fromA("10.1.0.6", "icmp,icmp_type=3"), next: "trk,inv", want: dropped},
			{name: "ICMP error as a new flow", flow: fromA("10.1.0.6", "icmp,icmp_type=3"), want: dropped},
			{name: "fragment of an ICMP error", flow: fromA("10.1.0.6", "icmp,nw_frag=first"), next: "trk,rel", mark: claims.CTJudged, want: dropped},
			{name: "ICMP error about a flow that was not judged", flow: fromHost("8.8.8.8", "10.1.0.5", "icmp,icmp_type=3"), next: "trk,rel", want: dropped},
			{name: "ICMP error of the outside", flow: fromHost("8.8.8.8", "10.1.0.5", "icmp,icmp_type=3"), next: "trk,rel,rpl", mark: claims.CTJudged, want: toPodA},
			{name: "the node to a pod", flow: fromHost("10.1.0.1", "10.1.0.5", syn), want: toPodA},
			{name: "the node to a pod, IPv6", flow: fromHost("fd01::1", "fd01::5", syn), want: toPodA},
			{name: "the node in the middle of TCP", flow: fromHost("10.1.0.1", "10.1.0.5", ack), want: toPodA},
			{name: "the node to a pod elsewhere", flow: fromHost("10.1.0.1", "10.1.0.66", syn), want: intoTunnel},
			{name: "the node in the middle of TCP, to a pod elsewhere", flow: fromHost("10.1.0.1", "10.1.0.66", ack), want: intoTunnel},
			{name: "the node's answer to a pod elsewhere", flow: fromHost("10.1.0.1", "10.1.0.66", strings.Replace(syn, "=syn", "=syn|ack", 1)), want: intoTunnel},
			{name: "ICMP error of the node to a pod elsewhere", flow: fromHost("fd01::1", "fd01::42", "icmp6,icmpv6_type=1"), want: intoTunnel},
			{name: "ICMP error of the node to a pod", flow: fromHost("10.1.0.1", "10.1.0.5", "icmp,icmp_type=3"), next: "trk,inv", want: toPodA},
			{name: "half a flow of the node, to a pod elsewhere", flow: fromHost("10.1.0.1", "10.1.0.66", ack), next: "trk,est,rpl", want: intoTunnel},
			{name: "half a flow of the node, from another node", flow: fromTunnel("172.30.0.12", 10, "10.1.0.66", "10.1.0.1", ack), next: "trk,est,rpl", want: toHost},
			{name: "half a flow of a pod, from another node", flow: fromTunnel("172.30.0.12", 10, "10.1.0.66", "10.1.0.5", ack), next: "trk,est,rpl", want: dropped},
			{name: "the node to an address that no pod has", flow: fromHost("10.1.0.1", "10.1.0.9", syn), want: dropped},
			{name: "from outside", flow: fromHost("8.8.8.8", "10.1.0.5", syn), want: toPodA},
			{name: "from outside in the middle of TCP", flow: fromHost("8.8.8.8", "10.1.0.5", ack), want: dropped},
			{name: "from outside to a pod elsewhere", flow: fromHost("8.8.8.8", "10.1.0.66", syn), want: dropped},
			{name: "from outside with a pod's address", flow: fromHost("10.1.0.6", "10.1.0.5", syn), want: dropped},
			{name: "from a peer without the tunnel", flow: fromHost("10.7.0.5", "10.1.0.5", syn), want: toPodA},
			{name: "from another peer's address without the tunnel", flow: fromHost("10.7.1.5", "10.1.0.5", syn), want: dropped},
			{name: "from the host to no pod", flow: fromHost("10.1.0.1", "8.8.8.8", syn), want: dropped},
			{name: "ARP of the host", flow: strings.Replace(arp(vtep, "10.1.0.1", "169.254.1.1", 1), "in_port=10", "in_port=1", 1), want: answered},
			{name: "from another node", flow: fromTunnel("172.30.0.12", 10, "10.1.0.66", "10.1.0.5", syn), want: toPodA},
			{name: "from another node, IPv6", flow: fromTunnel("172.30.0.12", 10, "fd01::42", "fd01::5", syn), want: toPodA},
			{name: "from another node to this node", flow: fromTunnel("172.30.0.12", 10, "10.1.0.66", "10.1.0.1", syn), want: toHost},
			{name: "from another node to this node, in the middle of TCP", flow: fromTunnel("172.30.0.12", 10, "10.1.0.66", "10.1.0.1", ack), want: toHost},
			{name: "from another node to a pod, in the middle of TCP", flow: fromTunnel("172.30.0.12", 10, "10.1.0.66", "10.1.0.5", ack), want: dropped},
			{name: "ICMP error from another node to this node", flow: fromTunnel("172.30.0.12", 10, "fd01::42", "fd01::1", "icmp6,icmpv6_type=1"), want: toHost},
			{name: "spoofed, from another node to this node", flow: fromTunnel("172.30.0.13", 10, "10.1.0.66", "10.1.0.1", ack), want: dropped},
			{name: "from another node that has it plain", flow: fromTunnel("172.30.0.13", 10, "10.7.0.5", "10.1.0.5", syn), want: toPodA},
			{name: "lent address", flow: fromTunnel("172.30.0.13", 10, "10.1.0.71", "10.1.0.5", syn), want: toPodA},
			{name: "lent address from its lender", flow: fromTunnel("172.30.0.12", 10, "10.1.0.71", "10.1.0.5", syn), want: dropped},
			{name: "address lent to this node", flow: fromTunnel("172.30.0.12", 10, "10.1.0.70", "10.1.0.5", syn), want: dropped},
			{name: "unknown node", flow: fromTunnel("172.30.0.99", 10, "10.1.0.66", "10.1.0.5", syn), want: dropped},
			{name: "another node's address", flow: fromTunnel("172.30.0.13", 10, "10.1.0.66", "10.1.0.5", syn), want: dropped},
			{name: "this node's address", flow: fromTunnel("172.30.0.12", 10, "10.1.0.6", "10.1.0.5", syn), want: dropped},
			{name: "the node's own address by the tunnel", flow: fromTunnel("172.30.0.12", 10, "10.1.0.1", "10.1.0.5", syn), want: dropped},
			{name: "an IPv4 address in IPv6", flow: fromTunnel("172.30.0.12", 10, "::ffff:10.1.0.66", "fd01::5", syn), want: dropped},
			{name: "unknown VNI", flow: fromTunnel("172.30.0.12", 11, "10.1.0.66", "10.1.0.5", syn), want: dropped},
			{name: "not for this node", flow: fromTunnel("172.30.0.12", 10, "10.1.0.66", "10.1.0.71", syn), want: dropped},
			{name: "from the tunnel to the outside", flow: fromTunnel("172.30.0.12", 10, "10.1.0.66", "8.8.8.8", syn), want: dropped},
			{name: "another VTEP", flow: strings.Replace(fromTunnel("172.30.0.12", 10, "10.1.0.66", "10.1.0.5", syn), "dl_dst="+vtep.String(), "dl_dst="+peer.String(), 1), want: dropped},
			{name: "no hop left", flow: strings.Replace(fromA("10.1.0.6", echo), "nw_ttl=64", "nw_ttl=1", 1), want: toHost},
			{name: "unknown port", flow: strings.Replace(fromA("10.1.0.6", syn), "in_port=10", "in_port=99", 1), want: dropped},
		},
		"tenants": {
			{name: "same VPC", flow: fromA("10.1.0.6", syn), want: toPodB},
			{name: "another VPC", flow: fromA("10.2.0.7", syn), want: dropped},
			{name: "another VPC elsewhere", flow: fromA("10.2.0.66", syn), want: dropped},
			{name: "another VPC's free address", flow: fromA("10.2.9.9", syn), want: dropped},
			{name: "another tenant", flow: fromTenant("c", "10.2.0.6"), want: dropped},
			{name: "global tenant", flow: fromTenant("c", "10.2.0.7"), want: "port 14"},
			{name: "from a global tenant", flow: fromTenant("e", "10.2.0.5"), want: "port 12"},
			{name: "to a tenant elsewhere", flow: fromTenant("c", "10.2.0.66"), want: intoTunnel},
			{name: "same tenant elsewhere", flow: fromTunnel("172.30.0.12", 21, "10.2.0.66", "10.2.0.5", syn), want: "port 12"},
			{name: "another tenant elsewhere", flow: fromTunnel("172.30.0.12", 22, "10.2.0.66", "10.2.0.5", syn), want: dropped},
			{name: "global tenant elsewhere", flow: fromTunnel("172.30.0.12", 20, "10.2.0.66", "10.2.0.5", syn), want: "port 12"},
			{name: "a VNI of another VPC", flow: fromTunnel("172.30.0.12", 10, "10.2.0.66", "10.2.0.5", syn), want: dropped},
			{name: "a source of another VPC", flow: fromTunnel("172.30.0.12", 21, "10.1.0.66", "10.2.0.5", syn), want: dropped},
			{name: "the node to a tenant", flow: fromHost("10.2.0.1", "10.2.0.5", syn), want: "port 12"},
			{name: "the node with the address of another VPC", flow: fromHost("10.1.0.1", "10.2.0.5", syn), want: "port 12"},
			{name: "the outside to a tenant", flow: fromHost("8.8.8.8", "10.2.0.5", syn), want: "port 12"},
		},
		"adopting": {
			{name: "TCP without its beginning", flow: fromA("10.1.0.6", ack), want: toPodB},
			{name: "cut flow", flow: fromA("10.1.0.6", ack), next: "trk,est", mark: claims.CTCut, want: dropped},
		},
		"routed": {
			{name: "the node in the middle of TCP", flow: fromHost("172.30.0.11", "10.7.0.70", ack), want: toPodA},
			{name: "from outside in the middle of TCP", flow: fromHost("172.30.0.12", "10.7.0.70", ack), want: dropped},
			{name: "to a peer", flow: frame(10, macA, claims.GatewayMAC, "10.7.0.70", "10.7.0.5", syn), want: toHost},
			{name: "from a peer", flow: fromHost("10.7.0.5", "10.7.0.70", syn), want: toPodA},
		},
		"ipv6": {
			{name: "to another node", flow: fromA("fd01::42", syn), want: intoTunnel},
			{name: "from another node", flow: "tun_id=10,tun_ipv6_src=fd30::12,tun_ipv6_dst=fd30::11," + frame(2, peer, vtep, "fd01::42", "fd01::5", syn), want: toPodA},
			{name: "unknown node", flow: "tun_id=10,tun_ipv6_src=fd30::13,tun_ipv6_dst=fd30::11," + frame(2, peer, vtep, "fd01::42", "fd01::5", syn), want: dropped},
		},
	}
}

func fromTenant(name, to string) string {
	for i, p := range tenants().Ports {
		if p.ID == name+"/eth0" {
			return frame(of.Port(10+i), p.MAC, claims.GatewayMAC, p.Addresses[0].String(), to, syn)
		}
	}
	return ""
}

func arp(src packet.MAC, spa, tpa string, op int) string {
	return fmt.Sprintf("in_port=10,dl_src=%s,dl_dst=ff:ff:ff:ff:ff:ff,arp,arp_op=%d,arp_spa=%s,arp_tpa=%s,arp_sha=%s", src, op, spa, tpa, src)
}

func solicit(from, target string) string {
	return fmt.Sprintf("in_port=10,dl_src=%s,dl_dst=33:33:ff:00:00:01,icmp6,nw_ttl=255,ipv6_src=%s,ipv6_dst=ff02::1:ff00:1,icmpv6_type=135,icmpv6_code=0,nd_target=%s,nd_sll=%s",
		macA, from, target, macA)
}

// TestWalks walks the packets that are the first of a flow through the simulator.
func TestWalks(t *testing.T) {
	for name, list := range walks() {
		e := examples()[name]
		pipeline, err := sim.New(Render(e.node, numbersOf(e.node), e.options).Flows(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range list {
			if w.next != "" {
				continue
			}
			t.Run(name+"/"+w.name, func(t *testing.T) {
				f, err := of.ParseFlow(w.flow + ",actions=drop")
				if err != nil {
					t.Fatal(err)
				}
				s := sim.Switch{Pipeline: pipeline, Trace: true, TableName: TableName}
				r, err := s.Receive(sim.Make(f.Match))
				if err != nil {
					t.Fatal(err)
				}
				if got := became(r); got != w.want {
					t.Errorf("%s\nis %s (%s), want %s\n%s", w.flow, got, r.Why, w.want, r.Trace)
				}
			})
		}
	}
}

func became(r sim.Result) string {
	if r.Dropped() {
		return dropped
	}
	out := r.Outputs[0]
	switch {
	case len(r.Outputs) > 1:
		return fmt.Sprintf("sent %d times", len(r.Outputs))
	case out.Packet.Get(of.EthType).Lo == of.EthTypeARP || out.Packet.Get(of.ICMPv6Type).Lo == of.NeighborAdvert:
		return answered
	}
	return fmt.Sprintf("port %d", out.Port)
}

// TestWire holds what leaves the node against the wire contract.
func TestWire(t *testing.T) {
	e := examples()["tenants"]
	pipeline, err := sim.New(Render(e.node, numbersOf(e.node), e.options).Flows(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, flow string
		vni        uint64
	}{
		{"a pod", fromA("10.1.0.66", syn), 10},
		{"a pod of an isolated tenant", fromTenant("c", "10.2.0.66"), 21},
		{"a pod of a global tenant", fromTenant("e", "10.2.0.66"), 20},
		{"the node", fromHost("10.2.0.1", "10.2.0.66", syn), 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := of.ParseFlow(test.flow + ",actions=drop")
			if err != nil {
				t.Fatal(err)
			}
			s := sim.Switch{Pipeline: pipeline}
			r, err := s.Receive(sim.Make(f.Match))
			if err != nil || len(r.Outputs) != 1 {
				t.Fatalf("%v, %+v", err, r)
			}
			p := r.Outputs[0].Packet
			for _, want := range []of.Term{
				of.Eq(of.TunID, test.vni), of.Addr(of.TunDst, netip.MustParseAddr("172.30.0.12")), of.Addr(of.TunSrc, netip.MustParseAddr("172.30.0.11")),
				of.MAC(of.EthSrc, vtep), of.MAC(of.EthDst, peer),
			} {
				if got := p.Get(want.Field); got != want.Value {
					t.Errorf("%s is %x, want %x", want.Field, got, want.Value)
				}
			}
		})
	}
}

// A list that a port names and the intent lacks allows nothing, but what the node
// itself sends.
func TestMissingList(t *testing.T) {
	n := single()
	n.Ports[0].Ingress = "ingress-missing"
	pipeline, err := sim.New(Render(n, numbersOf(n), Options{}).Flows(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for flow, want := range map[string]string{
		fromB("10.1.0.5", syn): dropped, fromHost("8.8.8.8", "10.1.0.5", syn): dropped, fromHost("10.1.0.1", "10.1.0.5", syn): toPodA, fromA("10.1.0.5", syn): toPodA,
	} {
		f, err := of.ParseFlow(flow + ",actions=drop")
		if err != nil {
			t.Fatal(err)
		}
		s := sim.Switch{Pipeline: pipeline}
		r, err := s.Receive(sim.Make(f.Match))
		if err != nil || became(r) != want {
			t.Errorf("%s: %v, %s, want %s", flow, err, became(r), want)
		}
	}
}
