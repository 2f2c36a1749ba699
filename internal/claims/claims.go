// Package claims is the one list of every number and name on a host that
// belongs to Fairlead. Whatever bears one of them is ours: we may change and
// remove it. All else is foreign and is left alone.
//
// The package holds constants and the few pure functions that compute names
// from them. It never looks at a host.
package claims

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Packet mark (fwmark, skb->mark), 32 bits:
//
//	bit 31   | 30 29 | 28    | 27     | 26      | 25 .. 16        | 15 14      | 13 .. 0
//	    free | try   | learn | tunnel | checked | VNI bits 23..14 | kube-proxy | VNI bits 13..0
//
// kube-proxy owns 0x4000 (masquerade) and 0x8000 (drop), so the 24 bits of the
// VNI lie around them. What comes from a pod or from the wire has all our bits from
// our own programs, whatever it bore before.
const (
	// MarkVNIMask covers the bits that carry the source tenant's VNI.
	MarkVNIMask uint32 = 0x03ff_3fff
	// MarkChecked is set by the programs on ports and on the tunnel device: what comes
	// from there without it has not met them.
	MarkChecked uint32 = 1 << 26
	// MarkTunnel is set by the program on the tunnel device for the packets around what
	// leaves by it.
	MarkTunnel uint32 = 1 << 27
	// MarkLearn is set by the filter for packets that the flow cache may learn from, of
	// those with a bit of MarkTry, by which the programs ask it to.
	MarkLearn uint32 = 1 << 28
	MarkTry   uint32 = 3 << 29
	// MarkKubeProxy are the bits that are never ours.
	MarkKubeProxy uint32 = 0x0000_c000
)

// Mark spreads a VNI over the bits of MarkVNIMask.
func Mark(vni packet.VNI) uint32 {
	v := uint32(vni)
	return v&0x3fff | v&0xff_c000<<2
}

// MarkVNI is the inverse of Mark; foreign bits are ignored.
func MarkVNI(mark uint32) packet.VNI {
	return packet.VNI(mark&0x3fff | mark>>2&0xff_c000)
}

// Conntrack mark bits. The others are foreign.
const (
	// CTJudged marks a flow that our policy has seen and accepted. An
	// "established" flow without it was born in a gap and is judged again.
	CTJudged uint32 = 1 << 28
	// CTCut marks a flow that a later change denied, tested before "established".
	CTCut uint32 = 1 << 29
)

// Netlink numbers.
const (
	// RouteProtocol is the rtm_protocol of every route of ours
	// (rtnetlink(7): values above RTPROT_STATIC are free for daemons).
	RouteProtocol = 97
	// LinkGroup is the group (ip link show group) of links of ours that are about
	// to be deleted, all by one request. In decimal: 1718382180, "flrd" in ASCII.
	LinkGroup = 0x666c7264
	// RouteTable is where our routes live until VPCs have tables of their own.
	RouteTable = 254
)

// The VXLAN wire (RFC 7348).
const (
	// VXLANPort is the UDP port assigned by IANA.
	VXLANPort uint16 = 4789
	// VXLANDevice is the one external-mode tunnel device of a node.
	VXLANDevice = "fl.vxlan"
	// VXLANOverhead4 and VXLANOverhead6 are the bytes that the outer headers
	// add over an IPv4 and an IPv6 underlay: inner Ethernet 14, VXLAN 8, UDP 8,
	// IP 20 or 40.
	VXLANOverhead4 = 50
	VXLANOverhead6 = 70
)

// nftables.
const (
	// NFTTable is our one table, family inet.
	NFTTable = "fairlead"
	// Hook priorities. Anti-spoofing runs before conntrack (-200), filtering
	// after foreign filters at 0, source NAT right before foreign ones at 100.
	NFTPriorityRaw     = -310
	NFTPriorityMangle  = -155
	NFTPriorityForward = 10
	NFTPriorityInput   = 10
	NFTPrioritySrcNAT  = 95
)

// Open vSwitch.
const (
	// OVSBridge is the bridge that joins pods, tunnel and host.
	OVSBridge = "fairlead"
	// OVSHostPort is the host's own interface in it: what the node itself and the
	// outside exchange with pods goes there.
	OVSHostPort = "fairlead-gw"
	// OVSTunnelPort is the one VXLAN port, for all peers and VNIs.
	OVSTunnelPort = "fairlead-tun"
	// OVSUnderlayBridge holds the NIC and the node's underlay addresses where the
	// datapath is in userspace: such a one finds the way of tunnel packets only there.
	OVSUnderlayBridge = "fairlead-phy"
	// OVSIDKey and OVSIDValue are the external_ids of every row of ours.
	OVSIDKey   = "fairlead.dev/owner"
	OVSIDValue = "agent"
	// OVSCookie, under OVSCookieMask, marks every flow of ours: "flrd" in ASCII. The
	// lower half is free, and zero until there is a use for it.
	OVSCookie     uint64 = 0x666c_7264_0000_0000
	OVSCookieMask uint64 = 0xffff_ffff_0000_0000
	// Groups and meters of ours, both ends included.
	OVSGroupFirst uint32 = 0x0100_0000
	OVSGroupLast  uint32 = 0x01ff_ffff
	OVSMeterFirst uint32 = 0x0001_0000
	OVSMeterLast  uint32 = 0x0001_ffff
	// Conntrack zones of ours, both ends included: one per VPC. Zone 0 is the host's.
	OVSZoneFirst uint16 = 0x4000
	OVSZoneLast  uint16 = 0x7fff
)

// The pod's side, the same on every plane.
var (
	// GatewayMAC is the hardware address of the host's end of every pod's link.
	GatewayMAC = packet.MAC{0x02, 0x66, 0x61, 0x69, 0x72, 0x01}
	// Gateway4 and Gateway6 are the next hops that every pod uses. They exist
	// on no device; permanent neighbour entries in the pod resolve them.
	Gateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	Gateway6 = netip.MustParseAddr("fe80::1")
)

// Files and sockets, relative to the node's own view of the file system.
const (
	RunDir         = "/run/fairlead"
	StateDir       = "/var/lib/fairlead"
	AdminSocket    = RunDir + "/admin.sock"
	BPFPinDir      = "/sys/fs/bpf/fairlead"
	PortPrefix     = "flp"
	TemporaryLinks = "flt"
)

// PortName is the name of the host's end of an attachment's link, at most 15
// bytes (IFNAMSIZ - 1), derived from the container and its interface so that a
// retried ADD finds the link of the first try.
func PortName(containerID, ifname string) string {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifname))
	return PortPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])[:12])
}
