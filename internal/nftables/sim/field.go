package sim

import (
	"encoding/binary"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

const (
	nfIPv4 = 2  // NFPROTO_IPV4
	nfIPv6 = 10 // NFPROTO_IPV6

	ifTypeEther = 1 // ARPHRD_ETHER
)

func (p *Packet) nfProto() uint32 {
	if p.Src.Is4() {
		return nfIPv4
	}
	return nfIPv6
}

// number is a value of a field of at most four bytes.
func number(t nftables.Type, n uint32) nftables.Value {
	v := nftables.Value{Type: t}
	size := t.Size()
	if size > 4 {
		return v
	}
	var wide [4]byte
	binary.BigEndian.PutUint32(wide[:], n)
	copy(v.From[:], wide[4-size:])
	v.To = v.From
	return v
}

func raw(t nftables.Type, b []byte) nftables.Value {
	v := nftables.Value{Type: t}
	copy(v.From[:], b)
	v.To = v.From
	return v
}

// addr is an address if it is of the field's family.
func addr(t nftables.Type, a netip.Addr) (nftables.Value, bool) {
	if a.Is4() != (t == nftables.TypeIPv4Addr) || !a.IsValid() {
		return nftables.Value{}, false
	}
	return raw(t, a.AsSlice()), true
}

// read returns the value of a field. ok is false where the packet does not have it:
// the kernel then ends the rule (NFT_BREAK).
func (w *walk) read(f nftables.Field) (v nftables.Value, ok bool) {
	p := &w.p
	t := f.Type()
	if n := f.NFProto(); n != 0 && uint32(n) != p.nfProto() {
		return v, false
	}
	if l4 := f.L4Proto(); l4 != 0 && packet.Protocol(l4) != p.Protocol {
		return v, false
	}
	if f.Ether() && (p.In == "" || p.inType() != ifTypeEther) {
		return v, false
	}
	switch {
	case f >= nftables.CTState && f <= nftables.CTReplyIP6Daddr:
		return w.readCT(f)
	case f >= nftables.FibDaddrType && f <= nftables.FibSaddr:
		return w.readFib(f)
	}
	switch f {
	case nftables.MetaIIFName:
		return raw(t, []byte(p.In)), true
	case nftables.MetaOIFName:
		return raw(t, []byte(p.Out)), true
	case nftables.MetaIIFType:
		return number(t, uint32(p.inType())), p.In != ""
	case nftables.MetaNFProto:
		return number(t, p.nfProto()), true
	case nftables.MetaL4Proto:
		return number(t, uint32(p.Protocol)), true
	case nftables.MetaMark:
		return number(t, p.Mark), true
	case nftables.MetaPktType:
		return number(t, uint32(p.PktType)), true
	case nftables.EtherSaddr:
		return raw(t, p.EtherSrc[:]), true
	case nftables.EtherDaddr:
		return raw(t, p.EtherDst[:]), true
	case nftables.IPSaddr, nftables.IP6Saddr:
		return addr(t, p.Src)
	case nftables.IPDaddr, nftables.IP6Daddr:
		return addr(t, p.Dst)
	case nftables.THSport, nftables.TCPSport, nftables.UDPSport, nftables.SCTPSport:
		return number(t, uint32(p.SrcPort)), true
	case nftables.THDport, nftables.TCPDport, nftables.UDPDport, nftables.SCTPDport:
		return number(t, uint32(p.DstPort)), true
	case nftables.TCPFlags:
		return number(t, p.TCPFlags&0xff), true
	case nftables.ICMPType, nftables.ICMPv6Type:
		return number(t, uint32(p.ICMPType)), true
	}
	return v, false
}

func (p *Packet) inType() uint16 {
	if p.InType == 0 {
		return ifTypeEther
	}
	return p.InType
}

// readCT reads conntrack's fields. Only the state can be asked of a packet without
// an entry, and addresses only of a flow of their family (nft_ct_get_eval).
func (w *walk) readCT(f nftables.Field) (v nftables.Value, ok bool) {
	c, t := w.ct(), f.Type()
	if f == nftables.CTState {
		switch {
		case c.tracked(), c.State == nftables.CTUntracked:
			return number(t, c.State), true
		}
		return number(t, nftables.CTInvalid), true
	}
	if !c.tracked() {
		return v, false
	}
	switch f {
	case nftables.CTStatus:
		return number(t, c.Status), true
	case nftables.CTDirection:
		if c.Reply {
			return number(t, 1), true
		}
		return number(t, 0), true
	case nftables.CTMark:
		return number(t, c.Mark), true
	case nftables.CTZone:
		return number(t, uint32(c.Zone)), true
	case nftables.CTOriginalIPSaddr, nftables.CTOriginalIP6Saddr:
		return addr(t, c.Original.Src)
	case nftables.CTOriginalIPDaddr, nftables.CTOriginalIP6Daddr:
		return addr(t, c.Original.Dst)
	case nftables.CTReplyIPSaddr, nftables.CTReplyIP6Saddr:
		return addr(t, c.Answer.Src)
	case nftables.CTReplyIPDaddr, nftables.CTReplyIP6Daddr:
		return addr(t, c.Answer.Dst)
	}
	return v, false
}

// readFib asks the host's routing table.
func (w *walk) readFib(f nftables.Field) (v nftables.Value, ok bool) {
	n, err := w.host.Fib(w.p, f)
	if err != nil {
		w.fail("%s: %w", f, err)
		return v, false
	}
	return number(f.Type(), n), true
}

// masked is a numeric value with only the bits of mask; zero is all bits.
func masked(v nftables.Value, mask uint32) nftables.Value {
	if mask == 0 || v.Type.Size() > 4 {
		return v
	}
	return number(v.Type, v.Uint()&mask)
}
