package agreement

import (
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// outerPort is the source port of tunnel packets.
const outerPort = 50000

// tunnel carries a packet to another node as the two programs on the tunnel device do.
func (j *journey) tunnel(m *machine, p sim.Packet) {
	vni := claims.MarkVNI(p.Mark)
	to, ok := m.place(vni, p.Dst)
	switch {
	case !ok:
		j.drop("wire_out of node %s: VNI %d is of no VPC, or nobody there has %s", m.name, vni, p.Dst)
		return
	case to.Local():
		j.drop("wire_out of node %s: %s is on the node itself", m.name, p.Dst)
		return
	}
	own, _ := m.own(to.Outer)
	peer := j.cluster.owner(to.Outer)
	if peer == nil {
		j.drop("nobody on the underlay has %s", to.Outer)
		return
	}
	if !j.outer(m, peer, sim.Packet{Src: own, Dst: to.Outer, Protocol: packet.UDP, SrcPort: outerPort, DstPort: claims.VXLANPort, Mark: p.Mark&^claims.MarkChecked | claims.MarkTunnel}) {
		return
	}
	from, ok := peer.place(vni, p.Src)
	if !ok || from.Local() || from.Outer != own {
		j.drop("wire_in of node %s: in VNI %d %s is not at %s", peer.name, vni, p.Src, own)
		return
	}
	if at, ok := peer.place(vni, p.Dst); !ok || !at.Local() {
		j.drop("wire_in of node %s: in VNI %d %s is not here", peer.name, vni, p.Dst)
		return
	}
	p.In, p.Mark, p.CT = tunnelDevice, claims.Mark(vni)|claims.MarkChecked, sim.CT{}
	j.receive(peer, p)
}

// outer walks the tunnel's own packet, which conntrack must not see.
func (j *journey) outer(m, peer *machine, p sim.Packet) bool {
	m.node.Trace, peer.node.Trace = j.cluster.Trace, j.cluster.Trace
	went, err := m.node.Send(p)
	if !j.walk(m, went, err) {
		return false
	}
	p = went.Packet
	p.In, p.Mark, p.CT = nic, 0, sim.CT{}
	went, err = peer.node.Receive(p)
	if !j.walk(peer, went, err) {
		return false
	}
	if p.Src != went.Packet.Src || !went.Local {
		j.drop("the tunnel's packet arrives at node %s as %s", peer.name, went.Packet)
		return false
	}
	return true
}

// place finds where an address of the VPC of a VNI is.
func (m *machine) place(vni packet.VNI, a netip.Addr) (linux.WireEntry, bool) {
	var vpc packet.VNI
	for _, v := range m.wire.VNIs {
		if v.VNI == vni {
			vpc = v.VPC
		}
	}
	var best linux.WireEntry
	found := false
	for _, e := range m.wire.Entries {
		if e.VPC == vpc && e.Prefix.Contains(a) && (!found || e.Prefix.Bits() > best.Prefix.Bits()) {
			best, found = e, true
		}
	}
	return best, found && vpc != 0
}
