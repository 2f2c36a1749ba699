package nft

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// encoder writes the statements of one rule as nf_tables expressions, with the
// protocol checks that the fields imply, as nft itself would.
type encoder struct {
	attrs
	// sets by name, to know the byte order of keys.
	sets map[string]nftables.Set
	// nf, l4 and ether are what the rule has checked already.
	nf, l4 uint8
	ether  bool
	// held is the field that register 0 holds as it is, or 0: a match of the same field
	// does not load it again.
	held nftables.Field
	err  error
}

// encodeRule is the content of NFTA_RULE_EXPRESSIONS.
func encodeRule(r nftables.Rule, sets map[string]nftables.Set) ([]byte, error) {
	e := encoder{sets: sets, attrs: attrs{b: make([]byte, 0, 512)}}
	for _, s := range r.Statements {
		e.statement(s)
	}
	if len(e.b) > maxAttrData {
		e.fail("%d bytes of expressions, at most %d", len(e.b), maxAttrData)
	}
	if e.err != nil {
		return nil, fmt.Errorf("%v: %w", r, e.err)
	}
	return e.b, nil
}

func (e *encoder) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf(format, args...)
	}
}

// expr writes one expression.
func (e *encoder) expr(name string, fill func()) {
	e.nest(unix.NFTA_LIST_ELEM, func() {
		e.str(unix.NFTA_EXPR_NAME, name)
		e.nest(unix.NFTA_EXPR_DATA, fill)
	})
}

func (e *encoder) statement(s nftables.Statement) {
	switch s := s.(type) {
	case nftables.Match:
		e.match(s)
		return
	case nftables.Lookup:
		e.key(s.Key, s.Set)
		e.lookup(s.Set, -1, s.Op == nftables.Neq)
	case nftables.VMap:
		e.key(s.Key, s.Map)
		e.lookup(s.Map, unix.NFT_REG_VERDICT, false)
	case nftables.Mangle:
		e.mangle(s)
	case nftables.Counter:
		e.expr("counter", func() {
			e.u64(unix.NFTA_COUNTER_BYTES, 0)
			e.u64(unix.NFTA_COUNTER_PACKETS, 0)
		})
	case nftables.Verdict:
		e.expr("immediate", func() {
			e.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
			e.nest(unix.NFTA_IMMEDIATE_DATA, func() { verdict(&e.attrs, s) })
		})
	case nftables.Reject:
		e.reject(s)
	case nftables.Masquerade:
		e.masquerade(s)
	case nftables.NAT:
		e.nat(s)
	case nftables.Notrack:
		e.expr("notrack", func() {})
	case nftables.Log:
		e.expr("log", func() {
			e.u16(unix.NFTA_LOG_GROUP, s.Group)
			if s.Prefix != "" {
				e.str(unix.NFTA_LOG_PREFIX, s.Prefix)
			}
			if s.Snaplen != 0 {
				e.u32(unix.NFTA_LOG_SNAPLEN, s.Snaplen)
			}
		})
	default:
		e.fail("unknown statement %T", s)
	}
	e.held = 0
}

// register is the number of the 32-bit register at an offset of four-byte units.
func register(offset int) uint32 { return unix.NFT_REG32_00 + uint32(offset) }

// units is how many 32-bit registers a size takes.
func units(size int) int { return (size + 3) / 4 }

// imply checks the protocols that a field needs, once per rule.
func (e *encoder) imply(f nftables.Field) {
	if f.Ether() && !e.ether {
		e.ether = true
		e.load(nftables.MetaIIFType, 0)
		e.compare(unix.NFT_CMP_EQ, hostBytes(nftables.IfTypeEther, nftables.IfTypeEther.Uint()))
	}
	if nf := f.NFProto(); nf != 0 && e.nf == 0 {
		e.nf = nf
		e.load(nftables.MetaNFProto, 0)
		e.compare(unix.NFT_CMP_EQ, []byte{nf})
	}
	if l4 := f.L4Proto(); l4 != 0 && e.l4 == 0 {
		e.l4 = l4
		e.load(nftables.MetaL4Proto, 0)
		e.compare(unix.NFT_CMP_EQ, []byte{l4})
	}
}

// compare compares register 0 with bytes.
func (e *encoder) compare(op uint32, data []byte) {
	e.expr("cmp", func() {
		e.u32(unix.NFTA_CMP_SREG, register(0))
		e.u32(unix.NFTA_CMP_OP, op)
		e.data(unix.NFTA_CMP_DATA, data)
	})
}

// bitwise computes register = register & mask ^ xor.
func (e *encoder) bitwise(reg uint32, mask, xor []byte) {
	e.held = 0
	e.expr("bitwise", func() {
		e.u32(unix.NFTA_BITWISE_SREG, reg)
		e.u32(unix.NFTA_BITWISE_DREG, reg)
		e.u32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		e.data(unix.NFTA_BITWISE_MASK, mask)
		e.data(unix.NFTA_BITWISE_XOR, xor)
	})
}

// hostBytes is n as the kernel keeps a number of v's type in a register.
func hostBytes(v nftables.Value, n uint32) []byte {
	switch v.Type.Size() {
	case 1:
		return []byte{byte(n)}
	case 2:
		return binary.NativeEndian.AppendUint16(nil, uint16(n))
	default:
		return binary.NativeEndian.AppendUint32(nil, n)
	}
}

// registerBytes is one bound of a value as a register holds it.
func registerBytes(v nftables.Value, bound [16]byte) []byte {
	if !v.Type.HostOrder() {
		return bound[:v.Type.Size()]
	}
	v.From = bound
	return hostBytes(v, v.Uint())
}

func (e *encoder) match(m nftables.Match) {
	e.imply(m.Field)
	if e.held != m.Field {
		e.load(m.Field, 0)
	}
	size := m.Field.Type().Size()
	op := uint32(unix.NFT_CMP_EQ)
	if m.Op == nftables.Neq {
		op = unix.NFT_CMP_NEQ
	}
	if m.Mask != 0 {
		e.bitwise(register(0), hostBytes(m.Value, m.Mask), make([]byte, size))
	}
	if m.Op == nftables.Eq && !m.Value.IsRange() {
		switch m.Field {
		case nftables.MetaNFProto:
			e.nf = uint8(m.Value.Uint())
		case nftables.MetaL4Proto:
			e.l4 = uint8(m.Value.Uint())
		}
	}
	from, to := registerBytes(m.Value, m.Value.From), registerBytes(m.Value, m.Value.To)
	bits, isPrefix := m.Value.PrefixBits()
	switch {
	case !m.Value.IsRange():
		e.compare(op, from)
	case m.Field.Type() == nftables.TypeIfName:
		e.compare(op, from[:bits/8]) // "prefix*"
	case isPrefix && (m.Value.Type == nftables.TypeIPv4Addr || m.Value.Type == nftables.TypeIPv6Addr):
		e.bitwise(register(0), prefixMask(size, bits), make([]byte, size))
		e.compare(op, from)
	case m.Op == nftables.Neq:
		e.expr("range", func() {
			e.u32(unix.NFTA_RANGE_SREG, register(0))
			e.u32(unix.NFTA_RANGE_OP, unix.NFT_RANGE_NEQ)
			e.data(unix.NFTA_RANGE_FROM_DATA, from)
			e.data(unix.NFTA_RANGE_TO_DATA, to)
		})
	default:
		e.compare(unix.NFT_CMP_GTE, from)
		e.compare(unix.NFT_CMP_LTE, to)
	}
}

func prefixMask(size, bits int) []byte {
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// key loads a key into the registers from 0 on.
func (e *encoder) key(key []nftables.Selector, set string) {
	for _, k := range key {
		e.imply(k.Field)
	}
	offset := 0
	for _, k := range key {
		e.load(k.Field, offset)
		if k.Mask != 0 {
			e.bitwise(register(offset), hostBytes(nftables.Value{Type: nftables.TypeMark}, k.Mask), make([]byte, 4))
		}
		if k.Field.Type() == nftables.TypeMark && e.sets[set].Interval {
			// Interval sets compare keys as bytes.
			e.expr("byteorder", func() {
				e.u32(unix.NFTA_BYTEORDER_SREG, register(offset))
				e.u32(unix.NFTA_BYTEORDER_DREG, register(offset))
				e.u32(unix.NFTA_BYTEORDER_OP, unix.NFT_BYTEORDER_HTON)
				e.u32(unix.NFTA_BYTEORDER_LEN, 4)
				e.u32(unix.NFTA_BYTEORDER_SIZE, 4)
			})
		}
		offset += units(k.Field.Type().Size())
	}
}

// lookup looks the key up; what a map holds goes to register dreg unless that is
// negative.
func (e *encoder) lookup(set string, dreg int, negate bool) {
	e.expr("lookup", func() {
		e.str(unix.NFTA_LOOKUP_SET, set)
		e.u32(unix.NFTA_LOOKUP_SREG, register(0))
		if dreg >= 0 {
			e.u32(unix.NFTA_LOOKUP_DREG, uint32(dreg))
		}
		if negate {
			e.u32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
	})
}

func (e *encoder) mangle(m nftables.Mangle) {
	value := nftables.Number(m.Field, 0)
	switch {
	case m.Map != "":
		e.key(m.From, m.Map)
		e.lookup(m.Map, int(register(0)), false)
	case len(m.From) > 0:
		e.load(m.From[0].Field, 0)
		if mask := m.From[0].Mask; mask != 0 {
			e.bitwise(register(0), hostBytes(value, mask), make([]byte, 4))
		}
	case m.Mask != 0 && m.Mask != ^uint32(0):
		e.load(m.Field, 0)
		e.bitwise(register(0), hostBytes(value, ^m.Mask), hostBytes(value, m.Value&m.Mask))
	default:
		e.expr("immediate", func() {
			e.u32(unix.NFTA_IMMEDIATE_DREG, register(0))
			e.data(unix.NFTA_IMMEDIATE_DATA, hostBytes(value, m.Value))
		})
	}
	if m.Field == nftables.MetaMark {
		e.expr("meta", func() {
			e.u32(unix.NFTA_META_KEY, unix.NFT_META_MARK)
			e.u32(unix.NFTA_META_SREG, register(0))
		})
		return
	}
	key := uint32(unix.NFT_CT_MARK)
	if m.Field == nftables.CTZone {
		key = unix.NFT_CT_ZONE
	}
	e.expr("ct", func() {
		e.u32(unix.NFTA_CT_KEY, key)
		e.u32(unix.NFTA_CT_SREG, register(0))
	})
}

// verdict writes the content of a verdict's data.
func verdict(a *attrs, v nftables.Verdict) {
	a.nest(unix.NFTA_DATA_VERDICT, func() {
		a.u32(unix.NFTA_VERDICT_CODE, verdictCode(v.Kind))
		if v.Chain != "" {
			a.str(unix.NFTA_VERDICT_CHAIN, v.Chain)
		}
	})
}

// verdictCode is the kernel's number (NF_ACCEPT, NFT_JUMP, …).
func verdictCode(k nftables.VerdictKind) uint32 {
	negative := func(n int32) uint32 { return uint32(n) }
	switch k {
	case nftables.Accept:
		return 1 // NF_ACCEPT
	case nftables.Return:
		return negative(unix.NFT_RETURN)
	case nftables.Continue:
		return negative(unix.NFT_CONTINUE)
	case nftables.Jump:
		return negative(unix.NFT_JUMP)
	case nftables.Goto:
		return negative(unix.NFT_GOTO)
	}
	return 0 // NF_DROP
}

func (e *encoder) reject(r nftables.Reject) {
	typ, code := uint32(unix.NFT_REJECT_ICMPX_UNREACH), uint8(unix.NFT_REJECT_ICMPX_PORT_UNREACH)
	switch r.With {
	case nftables.RejectNoRoute:
		code = unix.NFT_REJECT_ICMPX_NO_ROUTE
	case nftables.RejectHostUnreachable:
		code = unix.NFT_REJECT_ICMPX_HOST_UNREACH
	case nftables.RejectAdminProhibited:
		code = unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED
	case nftables.RejectTCPReset:
		typ, code = unix.NFT_REJECT_TCP_RST, 0
	}
	e.expr("reject", func() {
		e.u32(unix.NFTA_REJECT_TYPE, typ)
		e.u8(unix.NFTA_REJECT_ICMP_CODE, code)
	})
}

// immediate puts data into a register, by its offset.
func (e *encoder) immediate(offset int, data []byte) {
	e.expr("immediate", func() {
		e.u32(unix.NFTA_IMMEDIATE_DREG, register(offset))
		e.data(unix.NFTA_IMMEDIATE_DATA, data)
	})
}

// rangeProtoSpecified is NF_NAT_RANGE_PROTO_SPECIFIED (linux/netfilter/nf_nat.h): unlike
// that of nat, the kernel's masquerade does not set it itself.
const rangeProtoSpecified = 1 << 1

func (e *encoder) masquerade(m nftables.Masquerade) {
	flags, ports := uint32(m.Flags), m.Ports != (nftables.Value{})
	if ports {
		flags |= rangeProtoSpecified
		e.immediate(0, m.Ports.From[:2])
		if m.Ports.IsRange() {
			e.immediate(1, m.Ports.To[:2])
		}
	}
	e.expr("masq", func() {
		if ports {
			e.u32(unix.NFTA_MASQ_REG_PROTO_MIN, register(0))
			if m.Ports.IsRange() {
				e.u32(unix.NFTA_MASQ_REG_PROTO_MAX, register(1))
			}
		}
		if flags != 0 {
			e.u32(unix.NFTA_MASQ_FLAGS, flags)
		}
	})
}

func (e *encoder) nat(n nftables.NAT) {
	addr := n.Addr.AsSlice()
	family := uint32(unix.NFPROTO_IPV4)
	if n.Addr.Is6() {
		family = unix.NFPROTO_IPV6
	}
	e.immediate(0, addr)
	if n.Port != 0 {
		e.immediate(4, binary.BigEndian.AppendUint16(nil, n.Port))
	}
	typ := uint32(unix.NFT_NAT_SNAT)
	if n.Kind == nftables.DNAT {
		typ = unix.NFT_NAT_DNAT
	}
	e.expr("nat", func() {
		e.u32(unix.NFTA_NAT_TYPE, typ)
		e.u32(unix.NFTA_NAT_FAMILY, family)
		e.u32(unix.NFTA_NAT_REG_ADDR_MIN, register(0))
		if n.Port != 0 {
			e.u32(unix.NFTA_NAT_REG_PROTO_MIN, register(4))
		}
		if n.Flags != 0 {
			e.u32(unix.NFTA_NAT_FLAGS, uint32(n.Flags))
		}
	})
}
