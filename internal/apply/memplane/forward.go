package memplane

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// transit is a packet inside of one node.
type transit struct {
	packet packet.Packet
	// before is the packet as it came, before any translation.
	before packet.Packet
	// known: it belongs to a conversation of this node.
	known bool
	// sender and receiver are the ports of this node that it comes from and goes to.
	sender, receiver string
	// vpc of the sending port or of the tunnel packet; empty for what the node
	// itself sends and for what comes from the underlay.
	vpc string
	// vni of the sender's tenant, zero where there is none.
	vni packet.VNI
	// own: the node itself sends it.
	own bool
}

// begin looks up the conversation of a packet that this node sees for the first
// time on its way. It drops what belongs to one that is not allowed any more.
func (p *Plane) begin(j *journey, raw packet.Packet) (transit, bool) {
	t := transit{before: raw}
	var f *flow
	if t.packet, f = p.flows.translate(raw); f == nil {
		return t, true
	}
	t.known = true
	if why := p.refuses(f); why != "" {
		j.drop("it belongs to the flow %s, which is cut: %s", f.first, why)
		return t, false
	}
	return t, true
}

// midstream reports whether a packet would begin a TCP flow in its middle.
func (t transit) midstream() bool {
	return !t.known && t.packet.Protocol == packet.TCP && !t.packet.SYN
}

// fromPort takes a packet from a pod.
func (p *Plane) fromPort(j *journey, id string, raw packet.Packet) {
	port, found := p.port(id)
	if !found {
		j.drop("node %s has no port %s", p.name, id)
		return
	}
	if !slices.Contains(port.Addresses, raw.Src) {
		j.drop("port %s does not have the source address %s", id, raw.Src)
		return
	}
	t, ok := p.begin(j, raw)
	if !ok {
		return
	}
	if t.midstream() {
		j.drop("port %s begins a TCP flow in its middle", id)
		return
	}
	t.sender, t.vpc, t.vni = id, port.VPC, port.VNI
	if !t.known && !slices.Contains(port.Addresses, t.packet.Dst) { // To itself it may.
		if why := p.judge(port, intent.Egress, t.packet); why != "" {
			j.drop("%s", why)
			return
		}
	}
	p.route(j, t)
}

// fromSelf takes a packet that the node itself sends.
func (p *Plane) fromSelf(j *journey, raw packet.Packet) {
	if !p.has(raw.Src) && !p.hasTunnel(raw.Src) {
		j.drop("node %s does not have the source address %s", p.name, raw.Src)
		return
	}
	if t, ok := p.begin(j, raw); ok {
		t.own = true
		p.route(j, t)
	}
}

// fromUnderlay takes a packet that arrived as it is.
func (p *Plane) fromUnderlay(j *journey, raw packet.Packet) {
	if _, ok := p.underlay(raw.Dst); !ok {
		j.drop("node %s has no address of the family of %s on the underlay", p.name, raw.Dst)
		return
	}
	sn, fromPod := p.subnet(raw.Src)
	if fromPod && !p.inSet(sn.VPC, intent.SetDirect, raw.Src) {
		j.drop("node %s takes %s from the tunnel only", p.name, raw.Src)
		return
	}
	if r, ok := p.lookup(sn.VPC, raw.Dst); fromPod && ok && !r.NextHop.Local {
		j.drop("node %s passes no packets of other nodes' pods on", p.name)
		return
	}
	if t, ok := p.begin(j, raw); ok {
		p.route(j, t)
	}
}

// fromTunnel takes a tunnel packet, by the wire contract.
func (p *Plane) fromTunnel(j *journey, f Frame) {
	if f.DstMAC != p.actual.VTEPMAC {
		j.drop("the inner destination MAC address %s is not node %s's", f.DstMAC, p.name)
		return
	}
	i := slices.IndexFunc(p.actual.Peers, func(peer intent.Peer) bool { return peer.Outer == f.OuterSrc })
	if i < 0 || !f.OuterSrc.IsValid() {
		j.drop("the outer source %s is no node that %s knows", f.OuterSrc, p.name)
		return
	}
	v := slices.IndexFunc(p.actual.VPCs, func(v intent.VPC) bool { return v.VNI == f.VNI || slices.Contains(v.Tenants, f.VNI) })
	if v < 0 {
		j.drop("VNI %d belongs to no VPC that %s knows", f.VNI, p.name)
		return
	}
	vpc := p.actual.VPCs[v].Name
	if back, ok := p.lookup(vpc, f.Inner.Src); !ok || back.NextHop.Peer != p.actual.Peers[i].Name {
		j.drop("the inner source %s is not at node %s in VPC %s", f.Inner.Src, p.actual.Peers[i].Name, vpc)
		return
	}
	if r, ok := p.lookup(vpc, f.Inner.Dst); !ok || !r.NextHop.Local {
		j.drop("the inner destination %s is not on node %s in VPC %s", f.Inner.Dst, p.name, vpc)
		return
	}
	if t, ok := p.begin(j, f.Inner); ok {
		t.vpc, t.vni = vpc, f.VNI
		p.route(j, t)
	}
}

// route decides where a packet goes from here.
func (p *Plane) route(j *journey, t transit) {
	dst := t.packet.Dst
	if !forwarded(t.packet) {
		j.drop("node %s carries no packets from %s to %s", p.name, t.packet.Src, dst)
		return
	}
	if p.has(dst) {
		p.arrive(j, t, Place{Node: p.name})
		return
	}
	sn, inside := p.subnet(dst)
	if !inside {
		p.leave(j, t)
		return
	}
	if from, of := p.subnet(t.packet.Src); of && from.VPC != sn.VPC || t.vpc != "" && t.vpc != sn.VPC {
		j.drop("%s is in VPC %s, and the packet in %s", dst, sn.VPC, cmp.Or(t.vpc, from.VPC))
		return
	}
	r, ok := p.lookup(sn.VPC, dst)
	switch {
	case !ok:
		j.drop("node %s has no route to %s", p.name, dst)
	case r.NextHop.Local:
		p.deliver(j, t, sn)
	case r.Encapsulate:
		p.tunnel(j, t, sn, r.NextHop.Peer)
	default:
		p.forward(j, t, r.NextHop.Peer)
	}
}

// deliver hands a packet to the port, or to the node, that has its destination.
func (p *Plane) deliver(j *journey, t transit, sn intent.Subnet) {
	dst := t.packet.Dst
	if p.hasTunnel(dst) {
		p.arrive(j, t, Place{Node: p.name})
		return
	}
	i := slices.IndexFunc(p.actual.Ports, func(port intent.Port) bool {
		return port.VPC == sn.VPC && slices.Contains(port.Addresses, dst)
	})
	if i < 0 {
		j.drop("nobody on node %s has %s", p.name, dst)
		return
	}
	port := p.actual.Ports[i]
	own := p.ownVNI(sn.VPC)
	if port.VNI != own && t.vni != 0 && t.vni != own && t.vni != port.VNI {
		j.drop("the packet is of tenant %d, the port %s of %d", t.vni, port.ID, port.VNI)
		return
	}
	if !t.own && t.midstream() {
		j.drop("it would begin a TCP flow to port %s in its middle", port.ID)
		return
	}
	t.receiver = port.ID
	if !t.known && !t.own && t.sender != port.ID {
		if why := p.judge(port, intent.Ingress, t.packet); why != "" {
			j.drop("%s", why)
			return
		}
	}
	p.arrive(j, t, Place{Node: p.name, Port: port.ID})
}

func (p *Plane) arrive(j *journey, t transit, at Place) {
	p.remember(j, t)
	j.arrive(at, t.packet)
}

// leave sends a packet to the underlay, with the node's address if a NAT says so.
func (p *Plane) leave(j *journey, t transit) {
	own, ok := p.underlay(t.packet.Src)
	if !ok && (t.sender != "" || t.own) {
		j.drop("node %s has no address of the family of %s on the underlay", p.name, t.packet.Src)
		return
	}
	if !t.known && p.natted(t.packet) {
		t.packet = p.flows.masquerade(t.packet, own)
	}
	p.remember(j, t)
	if n := p.fabric.owner(t.packet.Dst); n != nil {
		j.transmit(Frame{NextHop: t.packet.Dst, Inner: t.packet})
		return
	}
	j.arrive(Place{Outside: true, Node: p.name}, t.packet)
}

// natted reports whether a packet that leaves gets the node's address.
func (p *Plane) natted(k packet.Packet) bool {
	return slices.ContainsFunc(p.actual.NATs, func(n intent.NAT) bool {
		from := slices.ContainsFunc(n.Sources, func(s netip.Prefix) bool { return s.Contains(k.Src) })
		return from && !p.inSet(n.VPC, n.Except, k.Dst)
	})
}

// tunnel sends a packet to a peer through the tunnel. What is not of a Subnet gets
// the node's own address in the destination's.
func (p *Plane) tunnel(j *journey, t transit, sn intent.Subnet, name string) {
	peer, ok := p.peer(name)
	own, has := p.underlay(peer.Outer)
	if !ok || !has {
		j.drop("node %s has no tunnel to %s", p.name, name)
		return
	}
	if _, inside := p.subnet(t.packet.Src); !inside && !t.known {
		i := slices.IndexFunc(p.actual.Tunnels, func(a intent.TunnelAddress) bool {
			return a.Subnet == sn.Name && a.Addr.BitLen() == t.packet.Src.BitLen()
		})
		if i < 0 {
			j.drop("node %s has no tunnel address in Subnet %s", p.name, sn.Name)
			return
		}
		t.packet = p.flows.masquerade(t.packet, p.actual.Tunnels[i].Addr)
	}
	vni := t.vni
	if vni == 0 {
		vni = p.ownVNI(sn.VPC)
	}
	p.remember(j, t)
	j.transmit(Frame{OuterSrc: own, OuterDst: peer.Outer, VNI: vni, SrcMAC: p.actual.VTEPMAC, DstMAC: peer.VTEPMAC, Inner: t.packet})
}

// forward sends a packet to a peer as it is.
func (p *Plane) forward(j *journey, t transit, name string) {
	peer, _ := p.peer(name)
	i := slices.IndexFunc(peer.Addrs, func(a netip.Addr) bool { return a.BitLen() == t.packet.Dst.BitLen() })
	if i < 0 {
		j.drop("node %s cannot reach %s without the tunnel", p.name, name)
		return
	}
	p.remember(j, t)
	j.transmit(Frame{NextHop: peer.Addrs[i], Inner: t.packet})
}

// remember notes the conversation of a packet that passed, if it arrives.
func (p *Plane) remember(j *journey, t transit) {
	if t.known {
		return
	}
	first := t.before
	first.Dst, first.DstPort = t.packet.Dst, t.packet.DstPort
	f := &flow{first: first, sender: t.sender, receiver: t.receiver, own: t.own}
	j.passed = append(j.passed, func() { p.flows.begin(t.before, t.packet, f) })
}
