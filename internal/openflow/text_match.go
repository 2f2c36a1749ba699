package openflow

import (
	"fmt"
	"strconv"
)

// String prints the match as ovs-ofctl does; the empty match is "".
func (m Match) String() string { return string(m.appendText(nil)) }

func (m Match) appendText(b []byte) []byte {
	keyword, skipType, skipProto := m.keyword()
	sep := ""
	for _, t := range m {
		if keyword != "" && (t.Field >= Reg0 || !t.Field.valid()) {
			b = append(append(b, sep...), keyword...)
			sep, keyword = ",", ""
		}
		if t.Field == EthType && skipType || t.Field == IPProto && skipProto {
			continue
		}
		b = t.appendText(append(b, sep...))
		sep = ","
	}
	return b
}

// keywords are the types and protocols that have names.
var keywords = []struct {
	name     string
	ethType  uint64
	protocol uint64 // 0: none
}{
	{"icmp", EthTypeIPv4, ProtoICMP},
	{"tcp", EthTypeIPv4, ProtoTCP},
	{"udp", EthTypeIPv4, ProtoUDP},
	{"sctp", EthTypeIPv4, ProtoSCTP},
	{"ip", EthTypeIPv4, 0},
	{"icmp6", EthTypeIPv6, ProtoICMPv6},
	{"tcp6", EthTypeIPv6, ProtoTCP},
	{"udp6", EthTypeIPv6, ProtoUDP},
	{"sctp6", EthTypeIPv6, ProtoSCTP},
	{"ipv6", EthTypeIPv6, 0},
	{"arp", EthTypeARP, 0},
	{"rarp", EthTypeRARP, 0},
	{"mpls", 0x8847, 0},
	{"mplsm", 0x8848, 0},
}

func (m Match) keyword() (name string, skipType, skipProto bool) {
	ethType, ok := m.exact(EthType)
	if !ok {
		return "", false, false
	}
	protocol, hasProtocol := m.exact(IPProto)
	for _, k := range keywords {
		switch {
		case k.ethType != ethType:
		case k.protocol == 0:
			return k.name, true, false
		case hasProtocol && k.protocol == protocol:
			return k.name, true, true
		}
	}
	return "", false, false
}

// appendText spells one term in the way that its field has in a match.
func (t Term) appendText(b []byte) []byte {
	name := t.Field.String()
	if t.Field.valid() && fieldTable[t.Field].match != "" {
		name = fieldTable[t.Field].match
	}
	switch t.Field {
	case VLANVID:
		return t.appendVLAN(b)
	case IPDSCP:
		return strconv.AppendUint(append(b, "nw_tos="...), t.Value.Lo<<2, 10)
	case CTZone:
		b = append(append(b, name...), '=')
		return strconv.AppendUint(b, t.Value.Lo, 10)
	}
	b = append(append(b, name...), '=')
	return appendValue(b, t.Field, t.Value, t.Mask)
}

// appendVLAN spells what is demanded of a VLAN header: an id, or the bits.
func (t Term) appendVLAN(b []byte) []byte {
	const id = VLANPresent - 1
	if t.Mask.Lo == VLANPresent|id && t.Value.Lo&VLANPresent != 0 {
		return strconv.AppendUint(append(b, "dl_vlan="...), t.Value.Lo&id, 10)
	}
	return fmt.Appendf(b, "vlan_tci=0x%04x/0x%04x", t.Value.Lo, t.Mask.Lo)
}

// appendValue spells a value, and a mask unless that is full.
func appendValue(b []byte, f Field, v, mask Value) []byte {
	if !f.valid() {
		return append(b, '?')
	}
	info := &fieldTable[f]
	exact := mask == f.full()
	switch info.kind {
	case kindMAC:
		b = appendMAC(b, v.MAC())
		if !exact {
			b = appendMAC(append(b, '/'), mask.MAC())
		}
		return b
	case kindIP4, kindIP6:
		return appendAddr(b, v, mask, int(info.bits))
	case kindPort:
		p := Port(v.Lo)
		if f == InPort16 && p >= 0xff00 {
			p |= 0xffff0000
		}
		return p.appendText(b)
	case kindCTState:
		return appendFlags(b, ctStateNames, v.Lo, mask.Lo, 0xff)
	case kindTCPFlags:
		return appendFlags(b, tcpFlagNames, v.Lo, mask.Lo, 0xfff)
	case kindTunFlags:
		return appendFlags(b, tunFlagNames, v.Lo, mask.Lo, 0) // never as a list
	case kindFrag:
		return append(b, fragName(v.Lo, mask.Lo)...)
	case kindHex4:
		return fmt.Appendf(b, "0x%04x", v.Lo)
	case kindDec, kindVLAN:
		if exact {
			return strconv.AppendUint(b, v.Lo, 10)
		}
		return fmt.Appendf(b, "0x%x/0x%x", v.Lo, mask.Lo)
	}
	b = appendHex(b, v)
	if !exact {
		b = appendHex(append(b, '/'), mask)
	}
	return b
}

// fragNames are the demands on fragments that have names.
var fragNames = []struct {
	name        string
	value, mask uint64
}{
	{"no", 0, FragAny | FragLater},
	{"first", FragAny, FragAny | FragLater},
	{"later", FragAny | FragLater, FragAny | FragLater},
	{"yes", FragAny, FragAny},
	{"not_later", 0, FragLater},
}

func fragName(v, mask uint64) string {
	for _, n := range fragNames {
		if n.value == v && n.mask == mask {
			return n.name
		}
	}
	return fmt.Sprintf("%#x/%#x", v, mask)
}
