package agreement

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	ofsim "github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	"github.com/fairlead-sdn/fairlead/internal/render/nft"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// Cluster is a world as the kernels of its nodes have it, and on the plane of Open vSwitch
// the bridges. It is not safe for concurrent use.
type Cluster struct {
	nodes map[string]*machine
	// bridges stand beside the kernels of the nodes; nil on the linux plane.
	bridges map[string]*bridged
	kind    ovs.Switch
	// Trace makes Send tell the steps.
	Trace bool
	// echoes are the ICMP questions, as they were sent and as they arrived: what goes
	// back is an answer. Only bridges tell the one from the other.
	echoes map[packet.Packet]bool
}

// New compiles and renders a world for each of its nodes, for the linux plane.
func New(snap *world.Snapshot) (*Cluster, error) {
	c := &Cluster{nodes: map[string]*machine{}}
	return c, c.Become(snap)
}

// NewOVS does it for the plane of Open vSwitch.
func NewOVS(snap *world.Snapshot, kind ovs.Switch) (*Cluster, error) {
	c := &Cluster{nodes: map[string]*machine{}, bridges: map[string]*bridged{}, kind: kind, echoes: map[packet.Packet]bool{}}
	return c, c.Become(snap)
}

// Become makes another world of it, as the plane does: first the rules, then the
// flows that the change concerns are judged.
func (c *Cluster) Become(snap *world.Snapshot) error {
	var errs []error
	for n := range snap.NodeNetworks.Values() {
		if c.nodes[n.Name] == nil {
			c.add(n.Name)
		}
		if err := c.become(n.Name, worldtest.Local(snap, n.Name)); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (c *Cluster) add(node string) {
	m := machine{name: node, compiler: decide.New(decide.Config{Node: node})}
	if c.bridges == nil {
		c.nodes[node] = &m
		return
	}
	b := &bridged{machine: m}
	c.bridges[node], c.nodes[node] = b, &b.machine
}

func (c *Cluster) become(node string, local *world.Snapshot) error {
	if b := c.bridges[node]; b != nil {
		return b.become(local, c.kind)
	}
	return c.nodes[node].become(local)
}

// Adopt says whether rules are rendered for the time after they were made anew: then
// flows that are under way go on. It counts from the next Become on.
func (c *Cluster) Adopt(adopting bool) {
	for name, m := range c.nodes {
		m.options = nft.Options{Adopting: adopting}
		if b := c.bridges[name]; b != nil {
			b.options = ovs.Options{Adopting: adopting}
		}
	}
}

// Source is the address that a node's kernel takes for what its programs send to an
// address, if they do not choose one: that of the route, or the node's on the underlay.
func (c *Cluster) Source(node string, to netip.Addr) (netip.Addr, bool) {
	m, ok := c.nodes[node]
	if !ok {
		return netip.Addr{}, false
	}
	if r, found := m.lookup(to); found && r.Src.IsValid() {
		return r.Src, true
	}
	return m.own(to)
}

// Intent of a node.
func (c *Cluster) Intent(node string) (intent.Node, bool) {
	m, ok := c.nodes[node]
	if !ok {
		return intent.Node{}, false
	}
	return m.intent, true
}

// Table of a node's kernel.
func (c *Cluster) Table(node string) nftables.Table {
	if m, ok := c.nodes[node]; ok {
		return m.node.Rules.Table()
	}
	return nftables.Table{}
}

// Port is the ID of the port of a pod, as worldtest.Local gives it.
func Port(pod world.Key) string {
	return pod.Namespace + "." + strings.TrimPrefix(pod.Name, "container/") + "/eth0"
}

// Result is what became of a packet.
type Result struct {
	oracle.Outcome
	// Why it was dropped.
	Why string
	// Steps of the way, one text a hop.
	Steps []string
	// Cut: a rule for flows that were cut dropped it.
	Cut bool
}

// Send sends a packet. flags are those of a TCP segment that does not begin a flow; zero is
// SYN or ACK, as the packet says. An error is a fault of the rendered table.
func (c *Cluster) Send(p oracle.Probe, flags uint32) (Result, error) {
	raw := sim.Of(p.Packet)
	if flags != 0 && raw.Protocol == packet.TCP && !p.Packet.SYN {
		raw.TCPFlags = flags
	}
	echo := c.echoes != nil && (raw.Protocol == packet.ICMP || raw.Protocol == packet.ICMPv6)
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
	j := &journey{cluster: c, aboutAnswer: p.Embedded != nil && c.echoes[p.Embedded.Reverse()]}
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

// unreachable is the type of an ICMP error.
func unreachable(p packet.Protocol) uint8 {
	if p == packet.ICMP {
		return 3
	}
	return 1
}

// journey is a packet on its way through the cluster.
type journey struct {
	cluster *Cluster
	// aboutAnswer says that it is an error about an answer to an echo.
	aboutAnswer bool
	hops        int
	result      Result
	err         error
}

// maxHops ends loops, which a wrong intent may make. A bridge and the kernel beside it are
// one each.
const maxHops = 16

// looped ends what goes round.
func (j *journey) looped() bool {
	if j.hops++; j.hops > maxHops {
		j.drop("after %d hops: a loop", maxHops)
	}
	return j.hops > maxHops
}

func (j *journey) drop(format string, args ...any) {
	j.result.Outcome = oracle.Outcome{Dropped: true}
	j.result.Why = fmt.Sprintf(format, args...)
	j.result.Steps = append(j.result.Steps, "dropped: "+j.result.Why)
}

func (j *journey) arrive(at oracle.Place, p sim.Packet) {
	j.result.Outcome = oracle.Outcome{At: at, Packet: p.Plain()}
	j.result.Steps = append(j.result.Steps, "arrives at "+at.String())
}

// walk notes what a node's kernel did, and reports whether the packet goes on.
func (j *journey) walk(m *machine, went sim.Journey, err error) bool {
	if err != nil {
		j.err = fmt.Errorf("node %s: %w", m.name, err)
		return false
	}
	if j.cluster.Trace {
		j.result.Steps = append(j.result.Steps, fmt.Sprintf("node %s: %s\n%s", m.name, went.Packet, went.Trace))
	}
	if went.Dropped {
		j.drop("on node %s: %s", m.name, went.Why)
		j.result.Cut = went.Why == nft.FlowCut
	}
	return !went.Dropped
}

// fromOutside: what is for a node goes to it, what is for a pod to the node that
// routers hand it to.
func (j *journey) fromOutside(entry *machine, p sim.Packet) {
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

func (j *journey) fromPod(m *machine, pod world.Key, p sim.Packet) {
	i := slices.IndexFunc(m.intent.Ports, func(port intent.Port) bool { return port.ID == Port(pod) })
	if i < 0 {
		j.drop("node %s has no port of %s", m.name, pod)
		return
	}
	port := m.intent.Ports[i]
	if b := j.cluster.bridges[m.name]; b != nil {
		j.toBridge(b, p, ofsim.Link{InPort: b.numbers[port.HostInterface], Src: port.MAC, Dst: claims.GatewayMAC})
		return
	}
	p.In = port.HostInterface
	mark, why := linux.Guard{Addresses: port.Addresses, VNI: port.VNI}.Judge(p.Src, p.Dst)
	if why != "" {
		j.drop("port_in of %s on node %s: %s", p.In, m.name, why)
		return
	}
	p.Mark = mark
	j.receive(m, p)
}

// fromNode sends with an address that the node has: the kernel lets no program do
// otherwise.
func (j *journey) fromNode(m *machine, p sim.Packet) {
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

func (j *journey) underlay(m *machine, p sim.Packet) {
	if _, ok := m.own(p.Dst); !ok {
		j.drop("node %s has no address of the family of %s on the underlay", m.name, p.Dst)
		return
	}
	p.In, p.Mark, p.CT = nic, 0, sim.CT{}
	j.receive(m, p)
}

// receive walks a packet through the kernel of a node that it came to. A kernel beside a
// bridge knows nothing of the packet from before.
func (j *journey) receive(m *machine, p sim.Packet) {
	if j.looped() {
		return
	}
	if j.cluster.bridges != nil {
		p.Mark, p.CT = 0, sim.CT{}
	}
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

// leave carries a packet from a node to where its interface leads.
func (j *journey) leave(m *machine, p sim.Packet) {
	b := j.cluster.bridges[m.name]
	switch {
	case p.Out == sim.Loopback:
		p.In = sim.Loopback
		j.receive(m, p)
	case p.Out == nic:
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
	case b != nil && p.Out == claims.OVSHostPort:
		j.toBridge(b, p, ofsim.Link{InPort: b.numbers[claims.OVSHostPort], Src: m.intent.VTEPMAC, Dst: claims.GatewayMAC})
	case b != nil:
		j.drop("node %s sends it by %s, where nobody is", m.name, p.Out)
	case p.Out == tunnelDevice:
		j.tunnel(m, p)
	default:
		j.arrive(m.holder(p.Out), p)
	}
}

// forwarded reports whether both ends are single machines on some network, of one
// family: a kernel sends and routes nothing else.
func forwarded(p sim.Packet) bool {
	return unicast(p.Src) && unicast(p.Dst) && p.Src.BitLen() == p.Dst.BitLen()
}

func unicast(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsMulticast() && !a.IsUnspecified() && !a.IsLinkLocalUnicast()
}

// owner returns the node that has an underlay address.
func (c *Cluster) owner(a netip.Addr) *machine { return c.nodes[c.ownerName(a)] }

func (c *Cluster) ownerName(a netip.Addr) string {
	for name, m := range c.nodes {
		if own, ok := m.own(a); ok && own == a {
			return name
		}
	}
	return ""
}
