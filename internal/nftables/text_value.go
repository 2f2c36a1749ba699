package nftables

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
)

// String is the value as nft prints it in a set or a match.
func (v Value) String() string {
	if !v.valid() {
		return "invalid"
	}
	if v.Type == TypeIfName {
		return v.ifname()
	}
	if !v.IsRange() {
		return v.single(v.From, true)
	}
	if bits, ok := v.PrefixBits(); ok && v.Type.prefixes() {
		return fmt.Sprintf("%s/%d", v.single(v.From, false), bits)
	}
	return v.single(v.From, false) + "-" + v.single(v.To, false)
}

// prefixes says whether nft prints ranges of the type as prefixes where it can.
func (t Type) prefixes() bool {
	return t == TypeIPv4Addr || t == TypeIPv6Addr || t == TypeMark
}

// ifname prints the name of an interface, or "prefix*"; a real star is escaped.
func (v Value) ifname() string {
	name := string(bytes.TrimRight(v.From[:], "\x00"))
	if v.IsRange() {
		return `"` + name + `*"`
	}
	if strings.HasSuffix(name, "*") {
		name = strings.TrimSuffix(name, "*") + `\*`
	}
	return `"` + name + `"`
}

// single prints one bound. Names are used for single values only, not in ranges.
func (v Value) single(b [16]byte, named bool) string {
	n := v.uint(b)
	switch v.Type {
	case TypeIPv4Addr:
		return netip.AddrFrom4([4]byte(b[:4])).String()
	case TypeIPv6Addr:
		return netip.AddrFrom16(b).String()
	case TypeEtherAddr:
		return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5])
	case TypeMark:
		return fmt.Sprintf("0x%08x", n)
	case TypeCTState, TypeCTStatus, TypeTCPFlags:
		return flagNames(v.Type, n)
	}
	if name, ok := symbol(v.Type, n); named && ok {
		return name
	}
	return fmt.Sprint(n)
}

// flagNames prints the bits of n in nft's order, lowest first.
func flagNames(t Type, n uint32) string {
	var table []string
	switch t {
	case TypeCTState:
		table = []string{"invalid", "established", "related", "new", "", "", "untracked"}
	case TypeCTStatus:
		table = []string{"expected", "seen-reply", "assured", "confirmed", "snat", "dnat", "", "", "", "dying"}
	case TypeTCPFlags:
		table = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"}
	}
	var names []string
	for i, name := range table {
		if n&(1<<i) != 0 && name != "" {
			names = append(names, name)
			n &^= 1 << i
		}
	}
	if n != 0 || len(names) == 0 {
		names = append(names, fmt.Sprintf("0x%x", n))
	}
	return strings.Join(names, ",")
}

// knownFlags is the bits of a flag type that have names.
func knownFlags(t Type) uint32 {
	switch t {
	case TypeCTState:
		return CTInvalid | CTEstablished | CTRelated | CTNew | CTUntracked
	case TypeCTStatus:
		return CTExpected | CTSeenReply | CTAssured | CTConfirmed | CTSNAT | CTDNAT | CTDying
	case TypeTCPFlags:
		return 0xff
	}
	return 0
}

// symbol is nft's name for a number of the type, if it has one. Names of
// protocols are those of Debian's /etc/protocols, where nft looks.
func symbol(t Type, n uint32) (string, bool) {
	var name string
	switch t {
	case TypeInetProto:
		name = protoNames(n)
	case TypeNFProto:
		name = map[uint32]string{nfIPv4: "ipv4", nfIPv6: "ipv6"}[n]
	case TypeCTDirection:
		name = at(n, "original", "reply")
	case TypeBoolean:
		name = at(n, "missing", "exists")
	case TypePktType:
		name = at(n, "host", "broadcast", "multicast", "other")
	case TypeFibAddrType:
		name = at(n, "unspec", "unicast", "local", "broadcast", "anycast", "multicast", "blackhole", "unreachable", "prohibit")
	case TypeIfType:
		name = map[uint32]string{1: "ether", 512: "ppp", 768: "ipip", 772: "loopback", 776: "sit", 778: "ipgre"}[n]
	case TypeICMPType:
		name = at(n, "echo-reply", "", "", "destination-unreachable", "source-quench", "redirect", "", "", "echo-request",
			"router-advertisement", "router-solicitation", "time-exceeded", "parameter-problem", "timestamp-request",
			"timestamp-reply", "info-request", "info-reply", "address-mask-request", "address-mask-reply")
	case TypeICMPv6Type:
		name = icmpv6Name(n)
	}
	return name, name != ""
}

// at is names[n], or nothing.
func at(n uint32, names ...string) string {
	if int64(n) < int64(len(names)) {
		return names[n]
	}
	return ""
}

func icmpv6Name(n uint32) string {
	if n < 128 {
		return at(n, "", "destination-unreachable", "packet-too-big", "time-exceeded", "parameter-problem")
	}
	return at(n-128, "echo-request", "echo-reply", "mld-listener-query", "mld-listener-report", "mld-listener-done",
		"nd-router-solicit", "nd-router-advert", "nd-neighbor-solicit", "nd-neighbor-advert", "nd-redirect",
		"router-renumbering", "", "", "ind-neighbor-solicit", "ind-neighbor-advert", "mld2-listener-report")
}

func protoNames(n uint32) string {
	return map[uint32]string{
		0: "ip", protoICMP: "icmp", 2: "igmp", 3: "ggp", 4: "ipencap", 5: "st", protoTCP: "tcp", 8: "egp", 9: "igp", 12: "pup",
		protoUDP: "udp", 20: "hmp", 22: "xns-idp", 27: "rdp", 29: "iso-tp4", 33: "dccp", 36: "xtp", 37: "ddp", 38: "idpr-cmtp",
		41: "ipv6", 43: "ipv6-route", 44: "ipv6-frag", 45: "idrp", 46: "rsvp", 47: "gre", 50: "esp", 51: "ah", 57: "skip",
		protoICMPv6: "ipv6-icmp", 59: "ipv6-nonxt", 60: "ipv6-opts", 73: "rspf", 81: "vmtp", 88: "eigrp", 89: "ospf",
		93: "ax.25", 94: "ipip", 97: "etherip", 98: "encap", 103: "pim", 108: "ipcomp", 112: "vrrp", 115: "l2tp", 124: "isis",
		protoSCTP: "sctp", 133: "fc", 135: "mobility-header", 136: "udplite", 137: "mpls-in-ip", 138: "manet", 139: "hip",
		140: "shim6", 141: "wesp", 142: "rohc", 143: "ethernet",
	}[n]
}
