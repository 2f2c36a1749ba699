package agreement

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	ofsim "github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// OVSCluster is a world as the bridges and kernels of its nodes have it. It is not safe
// for concurrent use.
type OVSCluster struct {
	nodes map[string]*bridged
	kind  ovs.Switch
	// Trace makes Send tell the steps.
	Trace bool
	// echoes are the ICMP questions, as they were sent and as they arrived: what goes
	// back is an answer.
	echoes map[packet.Packet]bool
}

// NewOVS compiles and renders a world for each of its nodes.
func NewOVS(snap *world.Snapshot, kind ovs.Switch) (*OVSCluster, error) {
	c := &OVSCluster{nodes: map[string]*bridged{}, kind: kind, echoes: map[packet.Packet]bool{}}
	return c, c.Become(snap)
}

// Become makes another world of it, as the plane does: first the flows, then the
// connections that the change concerns are judged.
func (c *OVSCluster) Become(snap *world.Snapshot) error {
	var errs []error
	for n := range snap.NodeNetworks.Values() {
		m := c.nodes[n.Name]
		if m == nil {
			m = &bridged{machine: machine{name: n.Name, compiler: decide.New(decide.Config{Node: n.Name})}}
			c.nodes[n.Name] = m
		}
		if err := m.become(worldtest.Local(snap, n.Name), c.kind); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Adopt says whether flows are rendered for the time after they were made anew. It
// counts from the next Become on.
func (c *OVSCluster) Adopt(adopting bool) {
	for _, m := range c.nodes {
		m.options = ovs.Options{Adopting: adopting}
	}
}

// Intent of a node.
func (c *OVSCluster) Intent(node string) (intent.Node, bool) {
	m, ok := c.nodes[node]
	if !ok {
		return intent.Node{}, false
	}
	return m.intent, true
}

// Source is the address that a node's kernel takes for what its programs send to an
// address, if they do not choose one: that of the route, or the node's on the underlay.
func (c *OVSCluster) Source(node string, to netip.Addr) (netip.Addr, bool) {
	m, ok := c.nodes[node]
	if !ok {
		return netip.Addr{}, false
	}
	if r, found := m.lookup(to); found && r.Src.IsValid() {
		return r.Src, true
	}
	return m.own(to)
}

// Send sends a packet, see Cluster.Send.
func (c *OVSCluster) Send(p oracle.Probe, flags uint32) (Result, error) {
	raw := sim.Of(p.Packet)
	if flags != 0 && raw.Protocol == packet.TCP && !p.Packet.SYN {
		raw.TCPFlags = flags
	}
	echo := raw.Protocol == packet.ICMP || raw.Protocol == packet.ICMPv6
	switch {
	case p.Embedded != nil:
		quoted := sim.Of(*p.Embedded).Tuple()
		raw.Quoted = &quoted
		raw.ICMPType = unreachable(raw.Protocol)
		echo = false
	case echo && c.echoes[p.Packet.Reverse()]:
		raw.ICMPType = echoReply(raw.Protocol)
		echo = false
	}
	j := &ovsJourney{cluster: c, aboutAnswer: p.Embedded != nil && c.echoes[p.Embedded.Reverse()]}
	from := c.nodes[p.From.Node]
	switch {
	case !raw.Src.IsValid() || raw.Src.BitLen() != raw.Dst.BitLen():
		j.drop("there is no packet from %s to %s", raw.Src, raw.Dst)
	case p.From.Kind == oracle.Outside:
		j.fromOutside(from, raw)
	case from == nil:
		j.drop("there is no node %s", p.From.Node)
	case p.From.Kind == oracle.Pod:
		j.fromPod(from, p.From.Pod, raw)
	default:
		j.fromNode(from, raw)
	}
	if j.err != nil {
		return Result{}, j.err
	}
	if echo && !j.result.Dropped {
		c.echoes[p.Packet], c.echoes[j.result.Packet] = true, true
	}
	return j.result, nil
}

func echoReply(p packet.Protocol) uint8 {
	if p == packet.ICMP {
		return 0
	}
	return 129
}

// ovsJourney is a packet on its way through the cluster.
type ovsJourney struct {
	cluster *OVSCluster
	// aboutAnswer says that it is an error about an answer to an echo.
	aboutAnswer bool
	hops        int
	result      Result
	err         error
}

// toBridge makes a packet of the kernel one that enters a bridge.
func (j *ovsJourney) toBridge(p sim.Packet, from ofsim.Link) ofsim.Packet {
	out := toBridge(p, from)
	if q := out.Quoted; q != nil && j.aboutAnswer {
		q.ICMPType = echoReply(q.Protocol)
	}
	return out
}

func (j *ovsJourney) drop(format string, args ...any) {
	j.result.Outcome = oracle.Outcome{Dropped: true}
	j.result.Why = fmt.Sprintf(format, args...)
	j.result.Steps = append(j.result.Steps, "dropped: "+j.result.Why)
}

func (j *ovsJourney) arrive(at oracle.Place, p sim.Packet) {
	j.result.Outcome = oracle.Outcome{At: at, Packet: p.Plain()}
	j.result.Steps = append(j.result.Steps, "arrives at "+at.String())
}

// looped ends what goes round.
func (j *ovsJourney) looped() bool {
	if j.hops++; j.hops > 2*maxHops {
		j.drop("after %d hops: a loop", 2*maxHops)
	}
	return j.hops > 2*maxHops
}

// walk notes what one host did, and reports whether the packet goes on.
func (j *ovsJourney) walk(m *bridged, went sim.Journey, err error) bool {
	if err != nil {
		j.err = fmt.Errorf("host of node %s: %w", m.name, err)
		return false
	}
	if j.cluster.Trace {
		j.result.Steps = append(j.result.Steps, fmt.Sprintf("host of node %s: %s\n%s", m.name, went.Packet, went.Trace))
	}
	if went.Dropped {
		j.drop("by the host of node %s: %s", m.name, went.Why)
	}
	return !went.Dropped
}

func (j *ovsJourney) fromOutside(entry *bridged, p sim.Packet) {
	if !forwarded(p) {
		j.drop("nobody carries packets from %s to %s", p.Src, p.Dst)
		return
	}
	to := j.cluster.owner(p.Dst)
	if to == nil && entry != nil && entry.inSubnet(p.Dst) {
		to = entry
	}
	if to == nil {
		j.arrive(oracle.Place{Kind: oracle.Outside}, p)
		return
	}
	j.underlay(to, p)
}

func (j *ovsJourney) fromPod(m *bridged, pod world.Key, p sim.Packet) {
	i := slices.IndexFunc(m.intent.Ports, func(port intent.Port) bool { return port.ID == Port(pod) })
	if i < 0 {
		j.drop("node %s has no port of %s", m.name, pod)
		return
	}
	port := m.intent.Ports[i]
	j.bridge(m, j.toBridge(p, ofsim.Link{InPort: m.numbers[port.HostInterface], Src: port.MAC, Dst: claims.GatewayMAC}))
}

// fromNode sends with an address that the node has: the kernel lets no program do
// otherwise.
func (j *ovsJourney) fromNode(m *bridged, p sim.Packet) {
	if !m.has(p.Src) || !forwarded(p) {
		j.drop("node %s cannot send from %s to %s", m.name, p.Src, p.Dst)
		return
	}
	m.node.Trace = j.cluster.Trace
	went, err := m.node.Send(p)
	if j.walk(m, went, err) {
		j.leave(m, went.Packet)
	}
}

func (j *ovsJourney) underlay(m *bridged, p sim.Packet) {
	if _, ok := m.own(p.Dst); !ok {
		j.drop("node %s has no address of the family of %s on the underlay", m.name, p.Dst)
		return
	}
	p.In = nic
	j.host(m, p)
}

// host walks a packet through the host that it came to.
func (j *ovsJourney) host(m *bridged, p sim.Packet) {
	if j.looped() {
		return
	}
	p.Mark, p.CT = 0, sim.CT{}
	m.node.Trace = j.cluster.Trace
	went, err := m.node.Receive(p)
	if !j.walk(m, went, err) {
		return
	}
	if went.Local {
		j.arrive(oracle.Place{Kind: oracle.Node, Node: m.name}, went.Packet)
		return
	}
	j.leave(m, went.Packet)
}

// leave carries a packet from a host to where its interface leads.
func (j *ovsJourney) leave(m *bridged, p sim.Packet) {
	switch p.Out {
	case sim.Loopback:
		p.In = sim.Loopback
		j.host(m, p)
	case claims.OVSHostPort:
		j.bridge(m, j.toBridge(p, ofsim.Link{InPort: m.numbers[claims.OVSHostPort], Src: m.intent.VTEPMAC, Dst: claims.GatewayMAC}))
	case nic:
		to := m.gateway(p.Dst)
		switch n := j.cluster.owner(to); {
		case n != nil:
			j.underlay(n, p)
		case to != p.Dst:
			j.drop("nobody on the underlay has %s", to)
		case m.inSubnet(p.Dst):
			j.drop("no router takes %s back to a node", p.Dst)
		default:
			j.arrive(oracle.Place{Kind: oracle.Outside, Node: m.name}, p)
		}
	default:
		j.drop("the host of node %s sends it by %s, where nobody is", m.name, p.Out)
	}
}

// bridge walks a packet through a bridge that it came to.
func (j *ovsJourney) bridge(m *bridged, p ofsim.Packet) {
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
func (j *ovsJourney) sent(m *bridged, o ofsim.Output) {
	to := packet.MAC(o.Packet.Get(of.EthDst).MAC())
	port, isPod := m.byNumber[o.Port]
	switch {
	case o.Port == m.numbers[claims.OVSHostPort] && to == m.intent.VTEPMAC:
		j.host(m, fromBridge(o.Packet, claims.OVSHostPort))
	case o.Port == m.numbers[claims.OVSTunnelPort]:
		j.tunnel(m, o)
	case isPod && to == port.MAC:
		j.arrive(m.holder(port.HostInterface), fromBridge(o.Packet, ""))
	default:
		j.err = fmt.Errorf("bridge of node %s: sent by port %s to %s, who is not there", m.name, o.Port, to)
	}
}

// tunnel carries a packet over the wire as the tunnel port does. Where the kernel has the
// datapath, its own packet passes the hosts.
func (j *ovsJourney) tunnel(m *bridged, o ofsim.Output) {
	outer := sim.Packet{
		Src: tunnelEnd(o.Packet, of.TunSrc, of.TunIPv6Src), Dst: tunnelEnd(o.Packet, of.TunDst, of.TunIPv6Dst),
		Protocol: packet.UDP, SrcPort: outerPort, DstPort: claims.VXLANPort,
	}
	peer := j.cluster.owner(outer.Dst)
	switch own, ok := m.own(outer.Dst); {
	case peer == nil:
		j.drop("nobody on the underlay has %s", outer.Dst)
		return
	case !ok || own != outer.Src:
		j.err = fmt.Errorf("bridge of node %s: the tunnel's packet is from %s to %s", m.name, outer.Src, outer.Dst)
		return
	}
	if j.cluster.kind.Datapath == ovs.System && !j.outer(m, peer, outer) {
		return
	}
	p := j.toBridge(fromBridge(o.Packet, ""), ofsim.Link{
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

// outer walks the tunnel's own packet, which conntrack must not see.
func (j *ovsJourney) outer(m, peer *bridged, p sim.Packet) bool {
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

// owner returns the node that has an underlay address.
func (c *OVSCluster) owner(a netip.Addr) *bridged {
	for _, m := range c.nodes {
		if own, ok := m.own(a); ok && own == a {
			return m
		}
	}
	return nil
}
