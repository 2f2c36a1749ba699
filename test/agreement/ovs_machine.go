package agreement

import (
	"errors"
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	ofsim "github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/flows"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// firstPod is the number of the first pod's port.
const firstPod of.Port = 10

// bridged is one node: a bridge with the rendered pipeline, and the host beside it with
// its table and routes, which is the machine.
type bridged struct {
	machine
	options  ovs.Options
	pipeline *ovs.Pipeline
	bridge   ofsim.Switch
	numbers  ovs.Numbers
	// byNumber are the pods' ports.
	byNumber map[of.Port]intent.Port
	next     of.Port
}

func (m *bridged) become(local *world.Snapshot, s ovs.Switch) error {
	desired, err := m.compile(local)
	if err != nil {
		return err
	}
	m.number(desired)
	pipeline := ovs.RenderAfter(m.pipeline, desired, m.numbers, m.options)
	if len(pipeline.Problems) > 0 {
		return fmt.Errorf("not rendered: %v", pipeline.Problems)
	}
	table := ovs.RenderTable(desired, s)
	if err := table.Validate(); err != nil {
		return fmt.Errorf("invalid table: %w\n%s", err, table)
	}
	indexed, err := ofsim.New(pipeline.Flows(), nil)
	if err != nil {
		return fmt.Errorf("invalid pipeline: %w", err)
	}
	var old *intent.Node
	if m.node == nil {
		m.node = &sim.Node{Routing: m, Addresses: m.fib}
		m.bridge.TableName = ovs.TableName
	} else {
		before := m.intent
		old = &before
	}
	m.intent, m.pipeline, m.bridge.Pipeline = desired, pipeline, indexed
	m.node.Rules = sim.New(table)
	m.state.Routes = ovs.RenderHost(desired).Routes
	m.follow(flows.Compare(old, desired, flows.Options{Adopting: m.options.Adopting || old == nil}))
	return nil
}

// number gives every port a number that it keeps.
func (m *bridged) number(n intent.Node) {
	if m.numbers == nil {
		m.numbers = ovs.Numbers{claims.OVSHostPort: ovs.HostPortNumber, claims.OVSTunnelPort: ovs.TunnelPortNumber}
		m.next = firstPod
	}
	m.byNumber = map[of.Port]intent.Port{}
	for _, p := range n.Ports {
		if m.numbers[p.HostInterface] == 0 {
			m.numbers[p.HostInterface] = m.next
			m.next++
		}
		m.byNumber[m.numbers[p.HostInterface]] = p
	}
}

// follow does to the connections of the bridge what the plane does.
func (m *bridged) follow(change *flows.Change) {
	decider := change.Decider(nil)
	for _, q := range change.Queries() {
		for _, c := range m.bridge.Conntrack.All() {
			if q.End.IsValid() && c.Original.Src != q.End && c.Answer.Src != q.End || q.Unjudged && c.Mark&(claims.CTJudged|claims.CTCut) != 0 || q.Cut && c.Mark&claims.CTCut == 0 {
				continue
			}
			first := packet.Packet{Src: c.Original.Src, Dst: c.Answer.Src, Protocol: c.Original.Protocol}
			if first.Protocol != packet.ICMP && first.Protocol != packet.ICMPv6 {
				first.SrcPort, first.DstPort = c.Original.SrcPort, c.Answer.SrcPort
			}
			v, _ := decider.Decide(flows.Flow{First: first, Mark: c.Mark})
			if v == flows.Forget {
				m.bridge.Conntrack.Delete(c)
				continue
			}
			mark, mask := v.Mark()
			c.Mark = c.Mark&^mask | mark&mask
		}
	}
}

var errFib = errors.New("the table asks the routing table something that is not answered here")

// fib answers what the table asks of an address: whether it is the node's own.
func (m *bridged) fib(p sim.Packet, f nftables.Field) (uint32, error) {
	a := p.Src
	switch f {
	case nftables.FibDaddrType:
		a = p.Dst
	case nftables.FibSaddrType:
	default:
		return 0, errFib
	}
	const unicast, local = 1, 2 // RTN_UNICAST, RTN_LOCAL
	if m.has(a) || a.IsLoopback() {
		return local, nil
	}
	return unicast, nil
}

// toBridge makes a packet of the kernel one that enters the bridge by a port.
func toBridge(p sim.Packet, from ofsim.Link) ofsim.Packet {
	out := ofsim.Of(p.Plain(), from)
	out.Set(of.IPProto, of.Num(uint64(p.Protocol)))
	out.ICMPID = p.ICMPID
	switch p.Protocol {
	case packet.TCP:
		out.Set(of.TCPFlags, of.Num(uint64(p.TCPFlags)))
	case packet.ICMP:
		out.Set(of.ICMPType, of.Num(uint64(p.ICMPType)))
	case packet.ICMPv6:
		out.Set(of.ICMPv6Type, of.Num(uint64(p.ICMPType)))
	}
	if q := p.Quoted; q != nil {
		quoted := ofsim.TupleOf(packet.Packet{Src: q.Src, Dst: q.Dst, Protocol: q.Protocol, SrcPort: q.SrcPort, DstPort: q.DstPort})
		out.Quoted = &quoted
	}
	return out
}

// fromBridge is the inverse of toBridge.
func fromBridge(p ofsim.Packet, in string) sim.Packet {
	out := sim.Of(p.Plain())
	out.In, out.ICMPID = in, p.ICMPID
	out.EtherSrc, out.EtherDst = p.Get(of.EthSrc).MAC(), p.Get(of.EthDst).MAC()
	switch out.Protocol {
	case packet.TCP:
		out.TCPFlags = uint32(p.Get(of.TCPFlags).Lo)
	case packet.ICMP:
		out.ICMPType = uint8(p.Get(of.ICMPType).Lo)
	case packet.ICMPv6:
		out.ICMPType = uint8(p.Get(of.ICMPv6Type).Lo)
	}
	if q := p.Quoted; q != nil {
		quoted := sim.Tuple{Src: q.Src, Dst: q.Dst, Protocol: q.Protocol, SrcPort: q.SrcPort, DstPort: q.DstPort}
		out.Quoted = &quoted
	}
	return out
}
