package openflow

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// matchParser collects terms. Names that mean different fields under different
// protocols wait until all of the match is known.
type matchParser struct {
	terms   []Term
	waiting [][2]string
}

// item reads one part of a match.
func (p *matchParser) item(key, value string) error {
	for _, k := range keywords {
		if k.name == key && value == "" {
			p.terms = append(p.terms, Eq(EthType, k.ethType))
			if k.protocol != 0 {
				p.terms = append(p.terms, Eq(IPProto, k.protocol))
			}
			return nil
		}
	}
	if value == "" {
		return errors.New("not a property or a protocol, and no value")
	}
	switch key {
	case "tp_src", "tp_dst", "icmp_type", "icmp_code":
		p.waiting = append(p.waiting, [2]string{key, value})
		return nil
	case "dl_vlan":
		id, err := parseNum(value, 12)
		p.terms = append(p.terms, Eq(VLANVID, VLANPresent|id))
		return err
	case "vlan_tci":
		return p.vlanTCI(value)
	case "nw_tos":
		tos, err := parseNum(value, 8)
		if err == nil && tos&3 != 0 {
			err = fmt.Errorf("the lowest two bits of %d are not part of it", tos)
		}
		p.terms = append(p.terms, Eq(IPDSCP, tos>>2))
		return err
	}
	f, ok := fieldByName(key)
	if f == InPort16 {
		f = InPort
	}
	if !ok {
		return fmt.Errorf("%q is not a known field", key)
	}
	return p.term(f, value)
}

func (p *matchParser) term(f Field, value string) error {
	v, mask, err := parseFieldValue(f, value)
	if err != nil {
		return err
	}
	p.terms = append(p.terms, Term{f, v, mask})
	return nil
}

// vlanTCI takes what VLANVID can express: no demand on the priority.
func (p *matchParser) vlanTCI(s string) error {
	value, mask, masked := strings.Cut(s, "/")
	v, err := parseNum(value, 16)
	if err != nil {
		return err
	}
	m := uint64(0xffff)
	if masked {
		if m, err = parseNum(mask, 16); err != nil {
			return err
		}
	}
	if m&^(VLANPresent|0xfff) != 0 {
		return fmt.Errorf("a demand on the priority of a VLAN header is not known")
	}
	p.terms = append(p.terms, Masked(VLANVID, v, m))
	return nil
}

// match gives the canonical match.
func (p *matchParser) match() (Match, error) {
	m := NewMatch(p.terms...)
	for _, w := range p.waiting {
		f, err := m.resolve(w[0])
		if err == nil {
			err = p.term(f, w[1])
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", w[0]+"="+w[1], err)
		}
	}
	if len(p.waiting) == 0 {
		return m, nil
	}
	return NewMatch(p.terms...), nil
}

// resolve finds the field that a name means under the match's protocol.
func (m Match) resolve(name string) (Field, error) {
	protocol, _ := m.exact(IPProto)
	for _, c := range []struct {
		name     string
		protocol uint64
		field    Field
	}{
		{"tp_src", ProtoTCP, TCPSrc},
		{"tp_dst", ProtoTCP, TCPDst},
		{"tp_src", ProtoUDP, UDPSrc},
		{"tp_dst", ProtoUDP, UDPDst},
		{"tp_src", ProtoSCTP, SCTPSrc},
		{"tp_dst", ProtoSCTP, SCTPDst},
		{"icmp_type", ProtoICMP, ICMPType},
		{"icmp_code", ProtoICMP, ICMPCode},
		{"icmp_type", ProtoICMPv6, ICMPv6Type},
		{"icmp_code", ProtoICMPv6, ICMPv6Code},
	} {
		if c.name == name && c.protocol == protocol {
			return c.field, nil
		}
	}
	return fieldNone, fmt.Errorf("protocol %d has no %s", protocol, name)
}

// parseFieldValue reads a value, and the mask if there is one.
func parseFieldValue(f Field, s string) (v, mask Value, err error) {
	info := &fieldTable[f]
	switch info.kind {
	case kindCTState:
		return parseFlags(s, ctStateNames, f.full())
	case kindTCPFlags:
		return parseFlags(s, tcpFlagNames, f.full())
	case kindTunFlags:
		return parseFlags(s, tunFlagNames, f.full())
	case kindFrag:
		for _, n := range fragNames {
			if n.name == s {
				return Num(n.value), Num(n.mask), nil
			}
		}
	}
	value, maskText, masked := strings.Cut(s, "/")
	if v, err = parseOne(info.kind, value); err != nil {
		return v, mask, err
	}
	mask = f.full()
	if masked {
		if mask, err = parseMask(info, maskText); err != nil {
			return v, mask, err
		}
	}
	if f == InPort16 && v.Lo >= uint64(PortMax) {
		v.Lo &= 0xffff
	}
	if v.BitLen() > f.Bits() || mask.BitLen() > f.Bits() {
		return v, mask, fmt.Errorf("%s has only %d bits", f, f.Bits())
	}
	return v, mask, nil
}

func parseMask(info *fieldInfo, s string) (Value, error) {
	if info.kind == kindIP4 || info.kind == kindIP6 {
		if n, err := strconv.ParseUint(s, 10, 8); err == nil {
			if n > uint64(info.bits) {
				return Value{}, fmt.Errorf("a prefix of %d bits in a field of %d", n, info.bits)
			}
			return Ones(int(info.bits)).And(Ones(int(info.bits) - int(n)).Not()), nil
		}
	}
	return parseOne(info.kind, s)
}

// parseOne reads one value in the spelling of its kind.
func parseOne(kind valueKind, s string) (Value, error) {
	switch kind {
	case kindMAC:
		return parseMAC(s)
	case kindIP4, kindIP6:
		a, err := netip.ParseAddr(s)
		if err != nil || a.Is4() != (kind == kindIP4) || a.Zone() != "" {
			want := map[valueKind]string{kindIP4: "IPv4", kindIP6: "IPv6"}[kind]
			return Value{}, fmt.Errorf("%q is not an %s address", clip(s), want)
		}
		return AddrValue(a), nil
	case kindPort:
		p, err := parsePort(s)
		return Num(uint64(p)), err
	}
	return parseValue(s)
}

func parseMAC(s string) (Value, error) {
	var mac [6]byte
	parts := strings.Split(s, ":")
	if len(parts) != len(mac) {
		return Value{}, fmt.Errorf("%q is not an Ethernet address", clip(s))
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 8)
		if err != nil {
			return Value{}, fmt.Errorf("%q is not an Ethernet address", clip(s))
		}
		mac[i] = byte(n)
	}
	return MACValue(mac), nil
}

func parsePort(s string) (Port, error) {
	for _, n := range portNames {
		if strings.EqualFold(n.name, s) {
			return n.port, nil
		}
	}
	n, err := parseNum(s, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port's number or one of the names in capitals", clip(s))
	}
	// OpenFlow 1.0 spelled the reserved ports with 16 bits.
	if n >= 0xff00 && n <= 0xffff {
		n |= 0xffff0000
	}
	return Port(n), nil
}

// parseFlags reads +a-b, a|b, 0, and a number with or without a mask.
func parseFlags(s string, names []flagName, full Value) (v, mask Value, err error) {
	if s != "" && (s[0] == '+' || s[0] == '-') {
		for rest := s; rest != ""; {
			on := rest[0] == '+'
			name := rest[1:]
			if i := strings.IndexAny(name, "+-"); i >= 0 {
				name = name[:i]
			}
			rest = rest[1+len(name):]
			bit, err := flagBit(name, names)
			if err != nil {
				return v, mask, err
			}
			if mask.Lo&bit != 0 {
				return v, mask, fmt.Errorf("%q occurs twice", name)
			}
			mask.Lo |= bit
			if on {
				v.Lo |= bit
			}
		}
		return v, mask, nil
	}
	if s != "" && s[0] >= '0' && s[0] <= '9' {
		value, maskText, masked := strings.Cut(s, "/")
		mask = full
		if v.Lo, err = parseNum(value, full.BitLen()); err == nil && masked {
			mask.Lo, err = parseNum(maskText, full.BitLen())
		}
		return v, mask, err
	}
	for name := range strings.SplitSeq(s, "|") {
		bit, err := flagBit(name, names)
		if err != nil {
			return v, mask, err
		}
		v.Lo |= bit
	}
	return v, full, nil
}

func flagBit(name string, names []flagName) (uint64, error) {
	for _, n := range names {
		if n.name == name {
			return n.bit, nil
		}
	}
	return 0, fmt.Errorf("%q is not a known flag", clip(name))
}
