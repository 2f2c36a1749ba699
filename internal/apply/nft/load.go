package nft

import (
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// load reads a field into the registers from offset on.
func (e *encoder) load(f nftables.Field, offset int) {
	reg := register(offset)
	e.held = f
	if key, ok := metaKey(f); ok {
		e.expr("meta", func() {
			e.u32(unix.NFTA_META_KEY, key)
			e.u32(unix.NFTA_META_DREG, reg)
		})
		return
	}
	if base, at, ok := payloadPlace(f); ok {
		e.expr("payload", func() {
			e.u32(unix.NFTA_PAYLOAD_DREG, reg)
			e.u32(unix.NFTA_PAYLOAD_BASE, base)
			e.u32(unix.NFTA_PAYLOAD_OFFSET, at)
			e.u32(unix.NFTA_PAYLOAD_LEN, uint32(f.Type().Size()))
		})
		return
	}
	if key, dir, ok := ctKey(f); ok {
		e.expr("ct", func() {
			e.u32(unix.NFTA_CT_KEY, key)
			if dir >= 0 {
				e.u8(unix.NFTA_CT_DIRECTION, uint8(dir))
			}
			e.u32(unix.NFTA_CT_DREG, reg)
		})
		return
	}
	if result, flags, ok := fibQuery(f); ok {
		e.expr("fib", func() {
			e.u32(unix.NFTA_FIB_DREG, reg)
			e.u32(unix.NFTA_FIB_RESULT, result)
			e.u32(unix.NFTA_FIB_FLAGS, flags)
		})
		return
	}
	e.fail("field %s cannot be read", f)
}

func metaKey(f nftables.Field) (uint32, bool) {
	switch f {
	case nftables.MetaIIFName:
		return unix.NFT_META_IIFNAME, true
	case nftables.MetaOIFName:
		return unix.NFT_META_OIFNAME, true
	case nftables.MetaIIFType:
		return unix.NFT_META_IIFTYPE, true
	case nftables.MetaNFProto:
		return unix.NFT_META_NFPROTO, true
	case nftables.MetaL4Proto:
		return unix.NFT_META_L4PROTO, true
	case nftables.MetaMark:
		return unix.NFT_META_MARK, true
	case nftables.MetaPktType:
		return unix.NFT_META_PKTTYPE, true
	}
	return 0, false
}

// payloadPlace is the header and the offset in it (RFC 791, 8200, 9293, 768).
func payloadPlace(f nftables.Field) (base, offset uint32, ok bool) {
	switch f {
	case nftables.EtherDaddr:
		return unix.NFT_PAYLOAD_LL_HEADER, 0, true
	case nftables.EtherSaddr:
		return unix.NFT_PAYLOAD_LL_HEADER, 6, true
	case nftables.IPSaddr:
		return unix.NFT_PAYLOAD_NETWORK_HEADER, 12, true
	case nftables.IPDaddr:
		return unix.NFT_PAYLOAD_NETWORK_HEADER, 16, true
	case nftables.IP6Saddr:
		return unix.NFT_PAYLOAD_NETWORK_HEADER, 8, true
	case nftables.IP6Daddr:
		return unix.NFT_PAYLOAD_NETWORK_HEADER, 24, true
	case nftables.THSport, nftables.TCPSport, nftables.UDPSport, nftables.SCTPSport, nftables.ICMPType, nftables.ICMPv6Type:
		return unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, true
	case nftables.THDport, nftables.TCPDport, nftables.UDPDport, nftables.SCTPDport:
		return unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, true
	case nftables.TCPFlags:
		return unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, true
	}
	return 0, 0, false
}

// ctKey is the conntrack key and its direction, or -1 where it has none.
func ctKey(f nftables.Field) (key uint32, direction int, ok bool) {
	const original, reply = 0, 1
	switch f {
	case nftables.CTState:
		return unix.NFT_CT_STATE, -1, true
	case nftables.CTStatus:
		return unix.NFT_CT_STATUS, -1, true
	case nftables.CTDirection:
		return unix.NFT_CT_DIRECTION, -1, true
	case nftables.CTMark:
		return unix.NFT_CT_MARK, -1, true
	case nftables.CTZone:
		return unix.NFT_CT_ZONE, -1, true
	case nftables.CTOriginalIPSaddr:
		return unix.NFT_CT_SRC_IP, original, true
	case nftables.CTOriginalIPDaddr:
		return unix.NFT_CT_DST_IP, original, true
	case nftables.CTOriginalIP6Saddr:
		return unix.NFT_CT_SRC_IP6, original, true
	case nftables.CTOriginalIP6Daddr:
		return unix.NFT_CT_DST_IP6, original, true
	case nftables.CTReplyIPSaddr:
		return unix.NFT_CT_SRC_IP, reply, true
	case nftables.CTReplyIPDaddr:
		return unix.NFT_CT_DST_IP, reply, true
	case nftables.CTReplyIP6Saddr:
		return unix.NFT_CT_SRC_IP6, reply, true
	case nftables.CTReplyIP6Daddr:
		return unix.NFT_CT_DST_IP6, reply, true
	}
	return 0, 0, false
}

func fibQuery(f nftables.Field) (result, flags uint32, ok bool) {
	switch f {
	case nftables.FibDaddrType:
		return unix.NFT_FIB_RESULT_ADDRTYPE, unix.NFTA_FIB_F_DADDR, true
	case nftables.FibSaddrType:
		return unix.NFT_FIB_RESULT_ADDRTYPE, unix.NFTA_FIB_F_SADDR, true
	case nftables.FibSaddrIIF:
		return unix.NFT_FIB_RESULT_OIF, unix.NFTA_FIB_F_SADDR | unix.NFTA_FIB_F_IIF | unix.NFTA_FIB_F_PRESENT, true
	case nftables.FibSaddr:
		return unix.NFT_FIB_RESULT_OIF, unix.NFTA_FIB_F_SADDR | unix.NFTA_FIB_F_PRESENT, true
	}
	return 0, 0, false
}
