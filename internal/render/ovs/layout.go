package ovs

import (
	"fmt"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// Version is that of the pipeline. It is raised whenever the flows of the same intent
// become others.
const Version = 5

// The tables. Packets only go forward. The gaps are for what comes later.
const (
	// TableClassify tells by its port who a packet is from.
	TableClassify uint8 = 0
	// TableSpoof lets in from a pod only what bears the pod's addresses.
	TableSpoof uint8 = 1
	// TableSent holds what no pod may send, whatever its policy.
	TableSent uint8 = 2
	// TableVXLAN keeps VXLAN of pods from nodes.
	TableVXLAN uint8 = 3
	// TableTunnelVNI finds the VPC of what arrives through the tunnel.
	TableTunnelVNI uint8 = 4
	// TableTunnelSource holds an inner source against the node that sent it.
	TableTunnelSource uint8 = 5
	// TableHostSource tells what the node itself sends from what it forwards.
	TableHostSource uint8 = 6
	// TableHostVPC finds the VPC of what the host sends, by the destination.
	TableHostVPC uint8 = 7
	// TableGateway answers questions for the gateway's hardware address.
	TableGateway uint8 = 8
	// TableAdvert makes the second half of the answer in IPv6.
	TableAdvert uint8 = 9
	// TableTrack looks the packet's flow up.
	TableTrack uint8 = 10
	// TableFlows tells flows that were judged, cut, or are new.
	TableFlows uint8 = 11
	// TableErrors holds the ICMP errors of pods against the flows that they speak of.
	TableErrors uint8 = 12
	// TableServices is where the first packet of a flow to a Service's address gets an
	// endpoint's: before route and policy. Nothing is there yet.
	TableServices uint8 = 20
	// TableRoute finds where the destination is: the longest prefix wins.
	TableRoute uint8 = 30
	// TableWays refuses combinations of source and destination that lead nowhere.
	TableWays uint8 = 31
	// TableTenants keeps tenants apart.
	TableTenants uint8 = 32
	// TableEgressPeer finds the class of the destination, for the sender's list.
	TableEgressPeer uint8 = 40
	// TableEgress is what the sender's list does to a class of peers.
	TableEgress uint8 = 41
	// TableEgressTransport finds protocol and port, of fragments too.
	TableEgressTransport uint8 = 42
	// TableEgressPorts is what the sender's list does where that depends on these.
	TableEgressPorts uint8 = 43
	// TableIngressPeer finds the class of the source, for the receiver's list.
	TableIngressPeer      uint8 = 50
	TableIngress          uint8 = 51
	TableIngressTransport uint8 = 52
	TableIngressPorts     uint8 = 53
	// TableCommit marks the flow as judged.
	TableCommit uint8 = 60
	// TableHop counts the hop.
	TableHop uint8 = 61
	// TableDeliver rewrites the hardware addresses and sends the packet off.
	TableDeliver uint8 = 62
	// TableVersion is one that no packet comes to: its flow says by which Version of the
	// pipeline the others were made.
	TableVersion uint8 = 63
)

var tableNames = map[uint8]string{
	TableClassify: "classify", TableSpoof: "spoof", TableSent: "sent", TableVXLAN: "vxlan",
	TableTunnelVNI: "tunnel-vni", TableTunnelSource: "tunnel-source", TableHostSource: "host-source", TableHostVPC: "host-vpc",
	TableGateway: "gateway", TableAdvert: "advert", TableTrack: "track", TableFlows: "flows", TableErrors: "errors",
	TableServices: "services", TableRoute: "route", TableWays: "ways", TableTenants: "tenants",
	TableEgressPeer: "egress-peer", TableEgress: "egress", TableEgressTransport: "egress-transport", TableEgressPorts: "egress-ports",
	TableIngressPeer: "ingress-peer", TableIngress: "ingress", TableIngressTransport: "ingress-transport", TableIngressPorts: "ingress-ports",
	TableCommit: "commit", TableHop: "hop", TableDeliver: "deliver",
	TableVersion: "version",
}

// TableName is the name of a table, for people; its number if it has none.
func TableName(table uint8) string {
	if name, ok := tableNames[table]; ok {
		return name
	}
	return fmt.Sprint(table)
}

// The registers. They are zero when a packet comes in and keep their values when it
// comes back from connection tracking.
//
//	reg0   0 1 2      | 3      | 4 5 6    | 7    | 8      | 9        | 10 .. 31
//	       Source     | free   | Target   | free | Judged | Gathered | free
//	reg1   0 .. 23 SourceTenant, a VNI; 0 is none: from outside
//	reg2   0 .. 23 VPC, by its own VNI
//	reg3   0 .. 15 Zone, of connection tracking
//	reg4   0 .. 31 SourcePort, the pod's port that the packet came from; 0 is none
//	reg5   0 .. 31 TargetPort, the pod's port that it goes to; 0 is none
//	reg6   0 .. 31 EgressList, that of the sender; 0 is none
//	reg7   0 .. 31 IngressList, that of the receiver; 0 is none
//	reg8   0 .. 31 PeerClass, of all peers that lie in the same AddressSets; 0 is none of them
//	reg9   0 .. 31 Conduct, what a list does to a class by protocol and port
//	reg10  0 .. 23 TargetTenant, the VNI of an isolated tenant that receives; 0 is none
//	reg11  0 .. 15 Port, the destination's, 16 .. 23 Protocol, of TCP, UDP and SCTP where a list asks for them
//	reg12 to reg15 are free.
var (
	Source       = of.Range(of.Reg0, 0, 2)
	Target       = of.Range(of.Reg0, 4, 6)
	Judged       = of.Range(of.Reg0, 8, 8)
	Gathered     = of.Range(of.Reg0, 9, 9)
	SourceTenant = of.Range(of.Reg1, 0, 23)
	VPC          = of.Range(of.Reg2, 0, 23)
	Zone         = of.Range(of.Reg3, 0, 15)
	SourcePort   = of.Whole(of.Reg4)
	TargetPort   = of.Whole(of.Reg5)
	EgressList   = of.Whole(of.Reg6)
	IngressList  = of.Whole(of.Reg7)
	PeerClass    = of.Whole(of.Reg8)
	Conduct      = of.Whole(of.Reg9)
	TargetTenant = of.Range(of.Reg10, 0, 23)
	Port         = of.Range(of.Reg11, 0, 15)
	Protocol     = of.Range(of.Reg11, 16, 23)
)

// Values of Source and Target. Those with the highest bit are behind fairlead-gw.
const (
	// Pod is a pod of this node.
	Pod uint64 = 1
	// Tunnel is another node, through the tunnel.
	Tunnel uint64 = 2
	// Node is the node itself, known by its tunnel addresses.
	Node uint64 = 5
	// Outside is all else that the host forwards.
	Outside uint64 = 6
)

// sourceSide and targetSide are that bit.
var (
	sourceSide = of.Range(of.Reg0, 2, 2)
	targetSide = of.Range(of.Reg0, 6, 6)
)

// Register is a part of a register and its name.
type Register struct {
	Name string
	Part of.Subfield
}

// Registers are the parts of registers that are in use, for people who read a trace.
func Registers() []Register {
	return []Register{
		{"Source", Source},
		{"Target", Target},
		{"Judged", Judged},
		{"Gathered", Gathered},
		{"SourceTenant", SourceTenant},
		{"VPC", VPC},
		{"Zone", Zone},
		{"SourcePort", SourcePort},
		{"TargetPort", TargetPort},
		{"EgressList", EgressList},
		{"IngressList", IngressList},
		{"PeerClass", PeerClass},
		{"Conduct", Conduct},
		{"TargetTenant", TargetTenant},
		{"Port", Port},
		{"Protocol", Protocol},
	}
}
