package attacks

import (
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/test/lab/wire"
)

// The packets of the attacks are made by package wire.
type (
	token = wire.Token
	mint  = wire.Mint
	tap   = wire.Tap
)

const (
	etherIPv4 = wire.EtherIPv4
	etherARP  = wire.EtherARP
	etherVLAN = wire.EtherVLAN
	etherQinQ = wire.EtherQinQ
	etherIPv6 = wire.EtherIPv6

	protoHopByHop = wire.ProtoHopByHop
	protoICMP     = wire.ProtoICMP
	protoUDP      = wire.ProtoUDP
	protoFragment = wire.ProtoFragment
	protoICMPv6   = wire.ProtoICMPv6
	protoDestOpts = wire.ProtoDestOpts
)

var (
	broadcast = packet.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

	ethernet  = wire.Ethernet
	vlan      = wire.VLAN
	frame     = wire.Frame
	ip        = wire.IP
	ipv4      = wire.IPv4
	extension = wire.Extension
	fragment6 = wire.Fragment6
	udp       = wire.UDP
	icmp      = wire.ICMP
	vxlan     = wire.VXLAN
	arp       = wire.ARP
)
