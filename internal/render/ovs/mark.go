package ovs

import (
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// MarkFlow changes the mark of one connection: the bits of mask from those of was to
// those of mark, with the next packet of either direction, which then meets the pipeline
// as any other. first is the connection's first packet, as it was before any destination
// NAT. So a connection is cut, or judged, where nobody but a flow can write its mark:
// connections of the datapath in userspace have no other door.
//
// There may be one such flow for a connection at a time: two that undo each other would
// do so without end. It matches the old mark only, so one that has done its work is idle,
// and can go when there is time; until the connection sends something it must stay.
func MarkFlow(zone uint16, first packet.Packet, was, mark, mask uint32) of.Flow {
	f := familyOf(first.Src)
	terms := []of.Term{
		f.ip, of.Masked(of.CTState, of.CTTracked, of.CTTracked|of.CTInvalid), of.Eq(of.CTZone, uint64(zone)),
		of.Masked(of.CTMark, uint64(was&mask), uint64(mask)),
		of.Addr(f.ctSrc, first.Src), of.Addr(f.ctDst, first.Dst), of.Eq(of.CTNwProto, uint64(first.Protocol)),
	}
	switch first.Protocol {
	case packet.TCP, packet.UDP, packet.SCTP:
		terms = append(terms, of.Eq(of.CTTpSrc, uint64(first.SrcPort)), of.Eq(of.CTTpDst, uint64(first.DstPort)))
	}
	set := of.SetField{Field: of.CTMark, Value: of.Num(uint64(mark & mask)), Mask: of.Num(uint64(mask))}
	return of.Flow{
		Table: TableFlows, Priority: 70, Cookie: claims.OVSCookie, Match: of.NewMatch(terms...),
		Actions: []of.Action{of.CT{Commit: true, Recirc: true, Table: TableFlows, Zone: zone, Exec: []of.Action{set}}},
		Comment: fmt.Sprintf("mark %#x of the flow %s", mark, first),
	}
}
