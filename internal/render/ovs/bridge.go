package ovs

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// The kinds of datapath.
const (
	// System is the kernel's.
	System = "system"
	// Netdev is the one in userspace, for kernels without the module.
	Netdev = "netdev"
)

// Beginning is the first packet of a flow, as far as datapaths differ about it.
type Beginning struct {
	Is4      bool
	Protocol packet.Protocol
	// TCPFlags are those of TCP (RFC 9293 §3.1).
	TCPFlags uint8
	// Fragments are the lengths of the IP packets in bytes that it comes in, but the last;
	// none: it is whole.
	Fragments []int
}

// Refuses says why a kind of datapath begins no flow with a packet that policy allows and
// that the linux plane lets through; "" if it does. Such a packet is dropped. The names are
// those of Open vSwitch's source.
func Refuses(datapath string, b Beginning) string {
	if datapath != Netdev {
		return ""
	}
	least := 1280 // IPF_V6_FRAG_SIZE_MIN_DEF in lib/ipf.c
	if b.Is4 {
		least = 1200 // IPF_V4_FRAG_SIZE_MIN_DEF
	}
	if slices.ContainsFunc(b.Fragments, func(n int) bool { return n < least }) {
		return fmt.Sprintf("fragments of less than %d bytes are invalid to connection tracking in userspace", least)
	}
	const psh, ack, urg = 0x08, 0x10, 0x20
	switch {
	case b.Protocol != packet.TCP:
		return ""
	case len(b.Fragments) > 0:
		return "in userspace no flow sees the TCP flags of a fragment"
	case b.TCPFlags&ack == 0 && b.TCPFlags&(psh|urg) != 0: // tcp_invalid_flags in lib/conntrack-tcp.c
		return "PSH and URG without ACK are invalid to connection tracking in userspace"
	}
	return ""
}

// Switch says what of the bridges does not come from the intent.
type Switch struct {
	// Datapath is System or Netdev.
	Datapath string
	// Uplink is the NIC that bears the node's underlay addresses. With Netdev it becomes
	// a port of a bridge, and its addresses move to that bridge; with System it is left
	// alone.
	Uplink string
}

// Bridge is a bridge that OVSDB must hold. Its local port, of the same name, is implied.
type Bridge struct {
	Name     string
	Datapath string
	// FailMode is "secure" (no flow, no traffic) or "standalone" (a learning switch).
	FailMode  string
	Protocols []string
	Ports     []BridgePort
}

// BridgePort is a port with one interface of the same name.
type BridgePort struct {
	Name string
	// Type is "" for a link of the host, "internal" or "vxlan".
	Type    string
	Options map[string]string
	// Number is the OpenFlow number to ask for, 0 leaves the choice to the switch.
	Number of.Port
	// MTU to ask for, 0 leaves it.
	MTU uint16
	// ExternalIDs say whose port it is, for people.
	ExternalIDs map[string]string
	Ref         intent.Ref
}

// Numbers that the two ports of ours ask for, so that flows look alike on every node.
// What the switch really gives them is in Numbers.
const (
	HostPortNumber   of.Port = 1
	TunnelPortNumber of.Port = 2
)

// RenderBridges computes the bridges and their ports. Links of pods must exist before
// they are made ports. Nothing is said of the node's MTU: that of the underlay is its
// own business.
func RenderBridges(n intent.Node, s Switch) []Bridge {
	n = sorted(n)
	node := intent.Ref{Kind: "Node", Name: n.Name}
	b := Bridge{Name: claims.OVSBridge, Datapath: s.Datapath, FailMode: "secure", Protocols: []string{"OpenFlow15"}}
	b.Ports = append(b.Ports, BridgePort{Name: claims.OVSHostPort, Type: "internal", Number: HostPortNumber, MTU: uint16(min(n.MTU, 0xffff)), Ref: node})
	if overlay(n) {
		b.Ports = append(b.Ports, BridgePort{Name: claims.OVSTunnelPort, Type: "vxlan", Number: TunnelPortNumber, Options: tunnelOptions(), Ref: node})
	}
	for _, p := range n.Ports {
		b.Ports = append(b.Ports, BridgePort{
			Name: p.HostInterface, ExternalIDs: map[string]string{"attachment": p.ID, "pod": p.Pod}, Ref: p.Ref(),
		})
	}
	bridges := []Bridge{b}
	if s.Datapath == Netdev && s.Uplink != "" {
		bridges = append(bridges, Bridge{
			Name: claims.OVSUnderlayBridge, Datapath: Netdev, FailMode: "standalone", Protocols: []string{"OpenFlow15"},
			Ports: []BridgePort{{Name: s.Uplink, Ref: node}},
		})
	}
	return bridges
}
