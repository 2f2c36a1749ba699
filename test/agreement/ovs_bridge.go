package agreement

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	ofsim "github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

func echoReply(p packet.Protocol) uint8 {
	if p == packet.ICMP {
		return 0
	}
	return 129
}

// entering makes a packet of a kernel one that enters a bridge.
func (j *journey) entering(p sim.Packet, from ofsim.Link) ofsim.Packet {
	out := toBridge(p, from)
	if q := out.Quoted; q != nil && j.aboutAnswer {
		q.ICMPType = echoReply(q.Protocol)
	}
	return out
}

// toBridge carries a packet of a kernel, or of a pod, into a bridge.
func (j *journey) toBridge(m *bridged, p sim.Packet, from ofsim.Link) {
	j.bridge(m, j.entering(p, from))
}

// bridge walks a packet through a bridge that it came to.
func (j *journey) bridge(m *bridged, p ofsim.Packet) {
	if j.looped() {
		return
	}
	m.bridge.Trace = j.cluster.Trace
	r, err := m.bridge.Receive(p)
	if err != nil {
		j.err = fmt.Errorf("bridge of node %s: %w", m.name, err)
		return
	}
	if j.cluster.Trace {
		j.result.Steps = append(j.result.Steps, fmt.Sprintf("bridge of node %s: %s\n%s", m.name, p, r.Trace))
	}
	switch len(r.Outputs) {
	case 0:
		j.drop("on node %s: %s", m.name, r.Why)
		j.result.Cut = r.Why == ovs.FlowCut
	case 1:
		j.sent(m, r.Outputs[0])
	default:
		j.err = fmt.Errorf("bridge of node %s: %s was sent %d times", m.name, p, len(r.Outputs))
	}
}

// sent carries a packet from a bridge to where a port leads.
func (j *journey) sent(m *bridged, o ofsim.Output) {
	to := packet.MAC(o.Packet.Get(of.EthDst).MAC())
	port, isPod := m.byNumber[o.Port]
	switch {
	case o.Port == m.numbers[claims.OVSHostPort] && to == m.intent.VTEPMAC:
		j.receive(&m.machine, fromBridge(o.Packet, claims.OVSHostPort))
	case o.Port == m.numbers[claims.OVSTunnelPort]:
		j.tunnelPort(m, o)
	case isPod && to == port.MAC:
		j.arrive(m.holder(port.HostInterface), fromBridge(o.Packet, ""))
	default:
		j.err = fmt.Errorf("bridge of node %s: sent by port %s to %s, who is not there", m.name, o.Port, to)
	}
}

// tunnelPort carries a packet over the wire as the tunnel port does. Where the kernel has the
// datapath, its own packet passes the hosts.
func (j *journey) tunnelPort(m *bridged, o ofsim.Output) {
	outer := sim.Packet{
		Src: tunnelEnd(o.Packet, of.TunSrc, of.TunIPv6Src), Dst: tunnelEnd(o.Packet, of.TunDst, of.TunIPv6Dst),
		Protocol: packet.UDP, SrcPort: outerPort, DstPort: claims.VXLANPort,
	}
	peer := j.cluster.bridges[j.cluster.ownerName(outer.Dst)]
	switch own, ok := m.own(outer.Dst); {
	case peer == nil:
		j.drop("nobody on the underlay has %s", outer.Dst)
		return
	case !ok || own != outer.Src:
		j.err = fmt.Errorf("bridge of node %s: the tunnel's packet is from %s to %s", m.name, outer.Src, outer.Dst)
		return
	}
	if j.cluster.kind.Datapath == ovs.System && !j.outer(&m.machine, &peer.machine, outer) {
		return
	}
	p := j.entering(fromBridge(o.Packet, ""), ofsim.Link{
		InPort: peer.numbers[claims.OVSTunnelPort], Src: o.Packet.Get(of.EthSrc).MAC(), Dst: o.Packet.Get(of.EthDst).MAC(),
	})
	for _, f := range []of.Field{of.TunSrc, of.TunDst, of.TunIPv6Src, of.TunIPv6Dst} {
		p.Set(f, o.Packet.Get(f))
	}
	p.Set(of.TunID, of.Num(o.TunnelKey()))
	j.bridge(peer, p)
}

func tunnelEnd(p ofsim.Packet, f4, f6 of.Field) netip.Addr {
	if v := p.Get(f4); !v.IsZero() {
		return v.Addr4()
	}
	return p.Get(f6).Addr6()
}
