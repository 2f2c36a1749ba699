package openflow

// Port is the number of a port of the switch, or one of the reserved ones.
type Port uint32

// Ports that are not ports (OpenFlow 1.5.1, 7.2.1).
const (
	// PortMax is the first number that no port can have.
	PortMax Port = 0xffffff00
	// PortInPort sends a packet out where it came in.
	PortInPort Port = 0xfffffff8
	PortTable  Port = 0xfffffff9
	// PortNormal is the switch's own learning switch.
	PortNormal     Port = 0xfffffffa
	PortFlood      Port = 0xfffffffb
	PortAll        Port = 0xfffffffc
	PortController Port = 0xfffffffd
	// PortLocal is the bridge's own interface.
	PortLocal Port = 0xfffffffe
	// PortAny stands for no particular port in requests.
	PortAny Port = 0xffffffff
)

// Bits of CTState (ovs-fields(7)).
const (
	CTNew         = 0x01
	CTEstablished = 0x02
	CTRelated     = 0x04
	CTReply       = 0x08
	CTInvalid     = 0x10
	CTTracked     = 0x20
	CTSNAT        = 0x40
	CTDNAT        = 0x80
)

// Bits of TCPFlags.
const (
	TCPFin = 0x001
	TCPSyn = 0x002
	TCPRst = 0x004
	TCPPsh = 0x008
	TCPAck = 0x010
	TCPUrg = 0x020
	TCPEce = 0x040
	TCPCwr = 0x080
	TCPNs  = 0x100
)

// Bits of IPFrag.
const (
	// FragAny is set in every fragment.
	FragAny = 0x1
	// FragLater is set in every fragment but the first.
	FragLater = 0x2
)

// TunOAM is the bit of TunFlags.
const TunOAM = 0x1

// Ethernet types that prerequisites name.
const (
	EthTypeIPv4 = 0x0800
	EthTypeARP  = 0x0806
	EthTypeRARP = 0x8035
	EthTypeIPv6 = 0x86dd
)

// IP protocols that prerequisites name.
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
	ProtoSCTP   = 132
)

// ICMPv6 types of neighbour discovery (RFC 4861).
const (
	NeighborSolicit = 135
	NeighborAdvert  = 136
)

// DefaultPriority is the priority of a flow whose text names none.
const DefaultPriority = 0x8000

// TableAll stands for every table in requests.
const TableAll uint8 = 0xff

type flagName struct {
	bit  uint64
	name string
}

// In the order in which ovs-ofctl prints them: from the lowest bit.
var (
	ctStateNames = []flagName{
		{CTNew, "new"},
		{CTEstablished, "est"},
		{CTRelated, "rel"},
		{CTReply, "rpl"},
		{CTInvalid, "inv"},
		{CTTracked, "trk"},
		{CTSNAT, "snat"},
		{CTDNAT, "dnat"},
	}
	tcpFlagNames = []flagName{
		{TCPFin, "fin"},
		{TCPSyn, "syn"},
		{TCPRst, "rst"},
		{TCPPsh, "psh"},
		{TCPAck, "ack"},
		{TCPUrg, "urg"},
		{TCPEce, "ece"},
		{TCPCwr, "cwr"},
		{TCPNs, "ns"},
		{0x200, "[200]"},
		{0x400, "[400]"},
		{0x800, "[800]"},
	}
	tunFlagNames = []flagName{{TunOAM, "oam"}}
)
