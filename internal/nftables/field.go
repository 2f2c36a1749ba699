package nftables

// Field is what a rule can read from a packet, its conntrack entry or the
// routing table. Its String is nft's own words for it.
type Field uint8

// The fields, in nft's words.
const (
	MetaIIFName Field = iota + 1
	MetaOIFName
	MetaIIFType
	MetaNFProto
	MetaL4Proto
	MetaMark
	MetaPktType
	EtherSaddr
	EtherDaddr
	IPSaddr
	IPDaddr
	IP6Saddr
	IP6Daddr
	// THSport and THDport read the ports of whatever transport the packet has;
	// put a match or a lookup of MetaL4Proto before them.
	THSport
	THDport
	TCPSport
	TCPDport
	TCPFlags
	UDPSport
	UDPDport
	SCTPSport
	SCTPDport
	ICMPType
	ICMPv6Type
	CTState
	CTStatus
	CTDirection
	CTMark
	CTZone
	CTOriginalIPSaddr
	CTOriginalIPDaddr
	CTOriginalIP6Saddr
	CTOriginalIP6Daddr
	CTReplyIPSaddr
	CTReplyIPDaddr
	CTReplyIP6Saddr
	CTReplyIP6Daddr
	// FibDaddrType and FibSaddrType are the kinds of address that the routing
	// table holds the destination and the source for (local, broadcast, …).
	FibDaddrType
	FibSaddrType
	// FibSaddrIIF is "fib saddr . iif oif": whether the way back to the source
	// leads out of the interface that the packet came in by (Exists or Missing).
	FibSaddrIIF
	// FibSaddr is "fib saddr oif": whether there is any route to the source.
	FibSaddr
	fieldEnd
)

// Layer 2 to 4 protocols that a field implies; zero implies nothing.
const (
	nfIPv4 = 2  // NFPROTO_IPV4
	nfIPv6 = 10 // NFPROTO_IPV6

	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

type fieldInfo struct {
	name string
	typ  Type
	// nf and l4 are the protocols implied; ether that the interface is Ethernet.
	nf, l4 uint8
	ether  bool
}

func (f Field) info() fieldInfo {
	if f == 0 || f >= fieldEnd {
		return fieldInfo{name: "invalid field"}
	}
	return [...]fieldInfo{
		MetaIIFName:        {name: "iifname", typ: TypeIfName},
		MetaOIFName:        {name: "oifname", typ: TypeIfName},
		MetaIIFType:        {name: "meta iiftype", typ: TypeIfType},
		MetaNFProto:        {name: "meta nfproto", typ: TypeNFProto},
		MetaL4Proto:        {name: "meta l4proto", typ: TypeInetProto},
		MetaMark:           {name: "meta mark", typ: TypeMark},
		MetaPktType:        {name: "meta pkttype", typ: TypePktType},
		EtherSaddr:         {name: "ether saddr", typ: TypeEtherAddr, ether: true},
		EtherDaddr:         {name: "ether daddr", typ: TypeEtherAddr, ether: true},
		IPSaddr:            {name: "ip saddr", typ: TypeIPv4Addr, nf: nfIPv4},
		IPDaddr:            {name: "ip daddr", typ: TypeIPv4Addr, nf: nfIPv4},
		IP6Saddr:           {name: "ip6 saddr", typ: TypeIPv6Addr, nf: nfIPv6},
		IP6Daddr:           {name: "ip6 daddr", typ: TypeIPv6Addr, nf: nfIPv6},
		THSport:            {name: "th sport", typ: TypeInetService},
		THDport:            {name: "th dport", typ: TypeInetService},
		TCPSport:           {name: "tcp sport", typ: TypeInetService, l4: protoTCP},
		TCPDport:           {name: "tcp dport", typ: TypeInetService, l4: protoTCP},
		TCPFlags:           {name: "tcp flags", typ: TypeTCPFlags, l4: protoTCP},
		UDPSport:           {name: "udp sport", typ: TypeInetService, l4: protoUDP},
		UDPDport:           {name: "udp dport", typ: TypeInetService, l4: protoUDP},
		SCTPSport:          {name: "sctp sport", typ: TypeInetService, l4: protoSCTP},
		SCTPDport:          {name: "sctp dport", typ: TypeInetService, l4: protoSCTP},
		ICMPType:           {name: "icmp type", typ: TypeICMPType, nf: nfIPv4, l4: protoICMP},
		ICMPv6Type:         {name: "icmpv6 type", typ: TypeICMPv6Type, nf: nfIPv6, l4: protoICMPv6},
		CTState:            {name: "ct state", typ: TypeCTState},
		CTStatus:           {name: "ct status", typ: TypeCTStatus},
		CTDirection:        {name: "ct direction", typ: TypeCTDirection},
		CTMark:             {name: "ct mark", typ: TypeMark},
		CTZone:             {name: "ct zone", typ: TypeCTZone},
		CTOriginalIPSaddr:  {name: "ct original ip saddr", typ: TypeIPv4Addr},
		CTOriginalIPDaddr:  {name: "ct original ip daddr", typ: TypeIPv4Addr},
		CTOriginalIP6Saddr: {name: "ct original ip6 saddr", typ: TypeIPv6Addr},
		CTOriginalIP6Daddr: {name: "ct original ip6 daddr", typ: TypeIPv6Addr},
		CTReplyIPSaddr:     {name: "ct reply ip saddr", typ: TypeIPv4Addr},
		CTReplyIPDaddr:     {name: "ct reply ip daddr", typ: TypeIPv4Addr},
		CTReplyIP6Saddr:    {name: "ct reply ip6 saddr", typ: TypeIPv6Addr},
		CTReplyIP6Daddr:    {name: "ct reply ip6 daddr", typ: TypeIPv6Addr},
		FibDaddrType:       {name: "fib daddr type", typ: TypeFibAddrType},
		FibSaddrType:       {name: "fib saddr type", typ: TypeFibAddrType},
		FibSaddrIIF:        {name: "fib saddr . iif oif", typ: TypeBoolean},
		FibSaddr:           {name: "fib saddr oif", typ: TypeBoolean},
	}[f]
}

// String is what nft calls the field.
func (f Field) String() string { return f.info().name }

// Type is the type of the field's values; zero for an unknown field.
func (f Field) Type() Type { return f.info().typ }

// NFProto is the value of "meta nfproto" that the field implies, or zero. A rule
// that reads the field never matches a packet of another family.
func (f Field) NFProto() uint8 { return f.info().nf }

// L4Proto is the value of "meta l4proto" that the field implies, or zero.
func (f Field) L4Proto() uint8 { return f.info().l4 }

// Ether says whether the field implies that the packet came in by an Ethernet
// interface.
func (f Field) Ether() bool { return f.info().ether }

// flags says whether the type's values are sets of named bits, which nft prints
// as a list.
func (t Type) flags() bool {
	return t == TypeCTState || t == TypeCTStatus || t == TypeTCPFlags
}

// maskable says whether a Match or Selector may mask values of the type.
func (t Type) maskable() bool { return t == TypeMark || t.flags() }
