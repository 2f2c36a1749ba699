package ovs

import (
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Comments of drops that are about flows; those of the linux plane say the same.
const (
	// FlowCut is said of packets of a flow that was allowed and is no longer.
	FlowCut = "flow cut by a change of policy"
	// AnswerUnjudged is said of answers to a flow that no policy has seen.
	AnswerUnjudged = "answer of a flow that was not judged"
	// MiddleOfTCP is said of TCP that begins with another packet than a SYN.
	MiddleOfTCP = "TCP flow without its beginning"
	// NoFlow is said of what connection tracking cannot make out.
	NoFlow = "part of no flow"
	// Leftover is said of a fragment whose others did not come in time.
	Leftover = "fragment whose packet never got whole"
)

// Comments of drops of what arrives through the tunnel, see docs/wire.md; those of the
// linux plane say the same.
const (
	// WireUnknownVNI is said of a VNI that is of no VPC of the node.
	WireUnknownVNI = "wire in-unknown-vni"
	// WireBadSource is said of an inner source that is not of the node that sent it.
	WireBadSource = "wire in-bad-source"
	// WireNotLocal is said of what is for no pod here, nor for the node.
	WireNotLocal = "wire in-not-local"
)

// fixed adds what does not depend on any object.
func (r *renderer) fixed() {
	var w writer
	r.entrance(&w)
	answerGateway(&w)
	sent(&w)
	r.flows(&w)
	ways(&w)
	afterPolicy(&w)
	r.hops(&w)
	r.deliver(&w)
	w = append(w, versionFlow())
	r.part("fixed", w)
}

func versionFlow() of.Flow {
	var w writer
	w.add(TableVersion, 1, "version of the pipeline", when(of.Eq(of.Reg0, Version)))
	return w[0]
}

// OfThisVersion reports whether flows that a switch has were made by this Version of the
// pipeline. Tables and registers of another one may mean something else: its flows are
// replaced all at once or not at all.
func OfThisVersion(installed []of.Flow) bool {
	return slices.ContainsFunc(installed, versionFlow().Equal)
}

// entrance tells ports that are not pods'.
func (r *renderer) entrance(w *writer) {
	w.add(TableClassify, 30, "frame with a VLAN header", when(of.Masked(of.VLANVID, of.VLANPresent, of.VLANPresent)))
	if r.gateway != 0 {
		w.add(TableClassify, 20, "from the host", when(of.Eq(of.InPort, uint64(r.gateway))), to(TableHostSource))
	}
	if r.tunnel != 0 {
		w.add(TableClassify, 20, "from the tunnel", when(of.Eq(of.InPort, uint64(r.tunnel)), of.MAC(of.EthDst, r.node.VTEPMAC)),
			load(Source, Tunnel), to(TableTunnelVNI))
	}
	w.add(TableClassify, 0, "from a port that nobody knows", nil)
	w.add(TableSpoof, 0, "spoofed source", nil)
	w.add(TableTunnelVNI, 0, WireUnknownVNI, nil)
	w.add(TableTunnelSource, 0, WireBadSource, nil)
	w.add(TableHostSource, 40, "question for the gateway", arpRequest(), to(TableGateway))
	w.add(TableHostSource, 40, "question for the gateway", solicitation(), to(TableGateway))
	for _, f := range families {
		w.add(TableHostSource, 10, "from outside, by the host", when(f.ip), load(Source, Outside), to(TableHostVPC))
	}
	w.add(TableHostSource, 0, "neither IPv4 nor IPv6 from the host", nil)
	w.add(TableHostVPC, 0, "not for a pod", nil)
}

func arpRequest() of.Match {
	return when(of.Eq(of.EthType, of.EthTypeARP), of.Eq(of.ARPOp, 1), of.Addr(of.ARPTPA, claims.Gateway4))
}

func neighbour(icmpType uint64) of.Match {
	return when(of.Eq(of.EthType, of.EthTypeIPv6), of.Eq(of.IPProto, of.ProtoICMPv6), of.Eq(of.ICMPv6Type, icmpType),
		of.Eq(of.ICMPv6Code, 0), of.Addr(of.NDTarget, claims.Gateway6))
}

func solicitation() of.Match { return neighbour(of.NeighborSolicit) }

// answerGateway answers for the gateway, which exists on no device. Pods and host have
// permanent neighbours, and ask only if somebody has removed them.
func answerGateway(w *writer) {
	back := []of.Action{
		of.Move{From: of.Whole(of.EthSrc), To: of.Whole(of.EthDst)},
		of.SetMAC(of.EthSrc, claims.GatewayMAC),
	}
	const arp = "ARP answer for the gateway"
	w.add(TableGateway, 10, arp, arpRequest(), append(back[:2:2],
		of.Set(of.ARPOp, 2),
		of.Move{From: of.Whole(of.ARPSHA), To: of.Whole(of.ARPTHA)},
		of.Move{From: of.Whole(of.ARPSPA), To: of.Whole(of.ARPTPA)},
		of.SetMAC(of.ARPSHA, claims.GatewayMAC),
		of.SetAddr(of.ARPSPA, claims.Gateway4),
		of.Output{Port: of.PortInPort})...)
	const (
		nd = "neighbour advertisement for the gateway"
		// targetLinkAddress is the option that an advertisement has where the
		// solicitation has its source's (RFC 4861 §4.6.1).
		targetLinkAddress = 2
		// Router, solicited, override (RFC 4861 §4.4).
		advertFlags = 0xe000_0000
	)
	w.add(TableGateway, 10, nd, solicitation(),
		of.Set(of.ICMPv6Type, of.NeighborAdvert), of.Set(of.NDOptionsType, targetLinkAddress), to(TableAdvert))
	w.add(TableAdvert, 10, nd, neighbour(of.NeighborAdvert), append(back[:2:2],
		of.SetMAC(of.NDTLL, claims.GatewayMAC),
		of.Set(of.NDReserved, advertFlags),
		of.Move{From: of.Whole(of.IPv6Src), To: of.Whole(of.IPv6Dst)},
		of.SetAddr(of.IPv6Src, claims.Gateway6),
		of.Output{Port: of.PortInPort})...)
	w.add(TableGateway, 0, "question for somebody else", nil)
	w.add(TableAdvert, 0, "question for somebody else", nil)
}

// sent drops what pods may not send to anybody.
func sent(w *writer) {
	for _, f := range families {
		for _, u := range f.never {
			w.add(TableSent, 30, u.why, when(f.ip, of.Prefix(f.dst, u.prefix)))
		}
		w.add(TableSent, 20, "VXLAN of a pod", when(f.ip, of.Eq(of.IPProto, of.ProtoUDP), of.Eq(of.UDPDst, uint64(claims.VXLANPort))), to(TableVXLAN))
	}
	for typ, what := range []string{"router solicitation", "router advertisement", "neighbour solicitation", "neighbour advertisement", "redirect"} {
		w.add(TableSent, 20, what+" from a pod", when(families[1].ip, families[1].icmp, of.Eq(of.ICMPv6Type, uint64(133+typ))))
	}
	for i, dhcp := range [][2]uint64{{67, 68}, {547, 546}} { // server to client: RFC 2131 §4.1, RFC 8415 §7.2
		w.add(TableSent, 20, "DHCP server in a pod", when(families[i].ip, of.Eq(of.IPProto, of.ProtoUDP), of.Eq(of.UDPSrc, dhcp[0]), of.Eq(of.UDPDst, dhcp[1])))
	}
	w.add(TableSent, 0, "all else", nil, to(TableTrack))
	w.add(TableVXLAN, 0, "not to a node", nil, to(TableTrack))
}

func ctState(on, off uint64) of.Term { return of.Masked(of.CTState, on, on|off) }

func judgedFlow() of.Term {
	return of.Masked(of.CTMark, uint64(claims.CTJudged), uint64(claims.CTJudged|claims.CTCut))
}

// lookUp finds a packet's flow.
func lookUp() of.Action { return of.CT{Recirc: true, Table: TableFlows, ZoneSource: Zone} }

// flows looks flows up and tells new ones from those that were judged. Only what has a
// pod of this node at one end has a flow here: what the node exchanges with the rest of
// its VPC is judged by the nodes of the pods, and may go by the tunnel in one direction
// and without it in the other.
func (r *renderer) flows(w *writer) {
	for _, f := range families {
		w.add(TableTrack, 20, "from the node itself, to no pod here", when(is(Source, Node), f.ip), load(Judged, 1), to(TableRoute))
		w.add(TableTrack, 10, "look the flow up", when(f.ip), lookUp())
	}
	w.add(TableTrack, 0, "neither IPv4 nor IPv6", nil)
	w.add(TableFlows, 100, Leftover, when(untracked))
	w.add(TableFlows, 60, FlowCut, when(of.Masked(of.CTMark, uint64(claims.CTCut), uint64(claims.CTCut))))
	// The flows that cut others know these by their ports, which later fragments have none of:
	// they come no further than here without the first.
	for _, f := range families {
		w.add(TableFlows, 55, "the node itself is not asked", when(f.ip, of.Masked(of.IPFrag, 0, of.FragAny|of.FragLater), ctState(of.CTTracked|of.CTInvalid, 0), is(Source, Node)), load(Judged, 1), to(TableRoute))
		w.add(TableFlows, 58, "fragment: waits for the others", when(f.ip, anyFragment, ctState(of.CTTracked, of.CTInvalid), is(Gathered, 0)), load(Gathered, 1), lookUp())
	}
	w.add(TableFlows, 50, NoFlow, when(ctState(of.CTTracked|of.CTInvalid, 0)))
	w.add(TableFlows, 30, "flow that was judged", when(judgedFlow()), load(Judged, 1), to(TableRoute))
	w.add(TableFlows, 25, AnswerUnjudged, when(ctState(of.CTTracked|of.CTReply, 0)))
	w.add(TableFlows, 25, "ICMP error about a flow that was not judged", when(ctState(of.CTTracked|of.CTRelated, 0)))
	w.add(TableFlows, 0, "new flow", nil, to(TableServices))
	w.add(TableErrors, 0, "ICMP error about a flow that is not the pod's", nil)
	w.add(TableServices, 0, "not to a Service", nil, to(TableRoute))
	// In fragments, which do not show the type of ICMP.
	w.add(TableFlows, 52, "ICMP error of a pod", when(ctState(of.CTTracked|of.CTRelated, 0), is(Source, Pod)), to(TableErrors))
	for _, f := range families {
		// Before NoFlow, which an error about no flow at all would be.
		for _, typ := range f.errors {
			w.add(TableFlows, 52, "ICMP error of a pod", when(is(Source, Pod), f.ip, f.icmp, of.Eq(f.icmpType, typ)), to(TableErrors))
		}
	}
	if r.options.Adopting {
		return
	}
	for _, f := range families {
		w.add(TableFlows, 22, MiddleOfTCP+", or whose beginning is in fragments", when(f.ip, anyFragment, ctState(of.CTTracked|of.CTNew, 0), of.Eq(of.CTNwProto, of.ProtoTCP)))
		const flags = of.TCPSyn | of.TCPAck | of.TCPRst | of.TCPFin
		tcp := []of.Term{f.ip, of.Eq(of.IPProto, of.ProtoTCP), ctState(of.CTTracked|of.CTNew, 0)}
		w.add(TableFlows, 20, "beginning of a TCP flow", when(append(tcp, of.Masked(of.TCPFlags, of.TCPSyn, flags))...), to(TableServices))
		w.add(TableFlows, 15, "the node itself is not asked", when(append(tcp, is(Source, Node))...), to(TableServices))
		w.add(TableFlows, 10, MiddleOfTCP, when(tcp...))
	}
}

// ways refuses what no packet may do, and lets flows past the policy that were judged.
func ways(w *writer) {
	for _, f := range families {
		w.add(TableRoute, 1, "to the outside", when(f.ip), load(Target, Outside), to(TableWays))
	}
	w.add(TableRoute, 0, "neither IPv4 nor IPv6", nil)
	w.add(TableWays, 30, WireNotLocal, when(is(Source, Tunnel), is(Target, Tunnel)))
	w.add(TableWays, 30, WireNotLocal, when(is(Source, Tunnel), is(Target, Outside)))
	w.add(TableWays, 30, "into the tunnel, neither from a pod here nor from the node", when(is(Source, Outside), is(Target, Tunnel)))
	w.add(TableWays, 30, "from the host back to the host", when(is(sourceSide, 1), is(targetSide, 1)))
	w.add(TableWays, 20, "judged before", when(is(Judged, 1)), to(TableHop))
	w.add(TableWays, 0, "to be judged", nil, to(TableTenants))
	w.add(TableTenants, 10, "the receiver is of no isolated tenant", when(is(TargetTenant, 0)), to(TableEgressPeer))
	w.add(TableTenants, 0, "another tenant", nil)
}

// afterPolicy are the ends of the lists' tables and what follows them.
func afterPolicy(w *writer) {
	const whole = 1000 // above the priority of every prefix
	w.add(TableEgressPeer, whole, "no policy of the sender", when(is(EgressList, 0)), to(TableIngressPeer))
	w.add(TableIngressPeer, whole+10, "the node itself is not asked", when(is(Source, Node)), to(TableCommit))
	w.add(TableIngressPeer, whole, "no policy of the receiver", when(is(IngressList, 0)), to(TableCommit))
	for _, lists := range []struct{ peer, out uint8 }{{TableEgressPeer, TableIngressPeer}, {TableIngressPeer, TableCommit}} {
		w.add(lists.peer, 0, "peer in no set", nil, load(PeerClass, 0), to(lists.peer+1))
		w.add(lists.peer+1, 0, "denied by a list that is missing", nil)
		transport(w, lists.peer+2, lists.out)
		w.add(lists.peer+3, 0, "denied by a list that is missing", nil)
	}
	mark := of.SetField{Field: of.CTMark, Value: of.Num(uint64(claims.CTJudged)), Mask: of.Num(uint64(claims.CTJudged))}
	for _, f := range families {
		w.add(TableCommit, 10, "judged", when(f.ip), of.CT{Commit: true, Recirc: true, Table: TableHop, ZoneSource: Zone, Exec: []of.Action{mark}})
	}
	w.add(TableCommit, 0, "neither IPv4 nor IPv6", nil)
}

// untracked is what no packet is behind connection tracking, but leftovers: in userspace it
// keeps fragments for 15 s, and then sends what has not got whole along with a packet of some
// other flow, whatever becomes of that (ipf_send_expired_frags in lib/ipf.c). So where
// packets come back from it, as they do after each time, such are dropped.
var untracked = ctState(0, of.CTTracked)

// anyFragment matches each packet of those that a larger one came in.
var anyFragment = of.Masked(of.IPFrag, of.FragAny, of.FragAny)

// transport finds protocol and port for the table behind it.
//
// In userspace fragments go on behind connection tracking as they came. The first one has
// its port only in what is known of the flow, whose first packet it is here, and later ones
// have none. These go on to where the flow is marked: there connection tracking keeps
// them until all of the packet has come, and the first has if its port is allowed.
func transport(w *writer, table, out uint8) {
	for _, f := range families {
		for _, t := range transports {
			proto := uint64(t.proto)
			w.add(table, 10, t.proto.String(), when(f.ip, of.Eq(of.IPProto, proto)), load(Protocol, proto), of.Move{From: of.Whole(t.dport), To: Port}, to(table+1))
			flow := []of.Term{f.ip, ctState(of.CTTracked, of.CTInvalid), of.Eq(of.CTNwProto, proto)}
			fragment := when(append(flow, anyFragment)...)
			if t.proto == packet.SCTP {
				w.add(table, 20, "fragment of SCTP: connection tracking may not know its port", fragment)
				continue
			}
			w.add(table, 20, "first fragment of "+t.proto.String(), fragment, load(Protocol, proto), of.Move{From: of.Whole(of.CTTpDst), To: Port}, to(table+1))
			w.add(table, 30, "later fragment of "+t.proto.String()+": waits for the first", when(append(flow, of.Masked(of.IPFrag, of.FragLater, of.FragLater))...), to(out))
		}
	}
	w.add(table, 0, "neither TCP nor UDP nor SCTP", nil, load(Protocol, 0), to(table+1))
}

// hops counts a hop, unless the host is at one end: it counts itself. It also gets what
// has no hop left, for it can say so to the sender.
func (r *renderer) hops(w *writer) {
	for _, f := range families {
		match := []of.Term{is(sourceSide, 0), is(targetSide, 0), f.ip}
		for ttl := uint64(0); ttl <= 1 && r.gateway != 0; ttl++ {
			w.add(TableHop, 20, "no hop left: the host says so", when(append(match, of.Eq(of.IPTTL, ttl))...), r.toHost()...)
		}
		w.add(TableHop, 10, "count the hop", when(match...), of.DecTTL{}, to(TableDeliver))
	}
	w.add(TableHop, 0, "the host counts", nil, to(TableDeliver))
	w.add(TableHop, 30, Leftover, when(is(Judged, 0), untracked))
	w.add(TableHop, 30, Leftover, when(is(Judged, 0), ctState(of.CTTracked|of.CTInvalid, 0)))
}

func (r *renderer) toHost() []of.Action {
	return []of.Action{of.SetMAC(of.EthSrc, claims.GatewayMAC), of.SetMAC(of.EthDst, r.node.VTEPMAC), of.Output{Port: r.gateway}}
}

func (r *renderer) deliver(w *writer) {
	if r.gateway != 0 {
		w.add(TableDeliver, 10, "to the host", when(is(targetSide, 1)), r.toHost()...)
	}
	if r.tunnel != 0 {
		w.add(TableDeliver, 10, "into the tunnel", when(is(Target, Tunnel)),
			of.SetMAC(of.EthSrc, r.node.VTEPMAC),
			of.Move{From: SourceTenant, To: of.Range(of.TunID, 0, 23)},
			of.Output{Port: r.tunnel})
	}
	w.add(TableDeliver, 0, "the port is gone", nil)
}
