package ovsplane

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nftsim "github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// Explain walks the first packet of a flow through what the intent renders to, the bridge
// and, before or after it, the host's table and routes; finds what it meets in the switch
// and in the kernel; and lets the switch trace the packet itself. A step's Chain is a table
// of the bridge, its Rule the place of the flow in that table by priority, its Handle the
// flow's cookie. It changes nothing.
func (p *Plane) Explain(ctx context.Context, n intent.Node, at apply.Passage) (apply.Walk, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	numbers, err := p.numbers(ctx)
	if err != nil {
		return apply.Walk{}, err
	}
	t, err := p.trip(n, numbers)
	if err != nil {
		return apply.Walk{}, err
	}
	if err := t.follow(at); err != nil {
		return apply.Walk{}, err
	}
	walk := apply.Walk{Verdict: t.verdict, Steps: []apply.Step{}}
	if t.leg != nil {
		if err := t.host.Prove(ctx, t.leg, p.filter, p.links, &walk); err != nil {
			return apply.Walk{}, err
		}
	}
	if t.crossed {
		if err := p.proveFlows(ctx, t, &walk); err != nil {
			return apply.Walk{}, err
		}
		if err := p.trace(ctx, t, &walk); err != nil {
			return apply.Walk{}, err
		}
	}
	if t.leg != nil && t.hostFirst {
		walk.Steps = append(walk.Steps, t.leg.Steps...)
	}
	for _, s := range t.steps {
		walk.Steps = append(walk.Steps, s.Step)
	}
	if t.leg != nil && !t.hostFirst {
		walk.Steps = append(walk.Steps, t.leg.Steps...)
	}
	return walk, nil
}

// trip is a packet's way through a node.
type trip struct {
	node    intent.Node
	numbers ovs.Numbers
	host    linuxplane.Host
	flows   []of.Flow

	// leg is the host's part of the way, nil if there is none; hostFirst: before the bridge.
	leg       *linuxplane.Leg
	hostFirst bool
	// crossed: it came to the bridge, as entered, and met the flows of steps.
	crossed bool
	entered sim.Packet
	steps   []step
	// outputs are the ports that the bridge sends it to.
	outputs []of.Port
	verdict string
}

// step is a flow that a packet meets, nil at the end of a table without one.
type step struct {
	apply.Step
	table uint8
	flow  *of.Flow
}

// trip renders what packets meet.
func (p *Plane) trip(n intent.Node, numbers ovs.Numbers) (*trip, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	t := &trip{node: n, numbers: numbers}
	t.flows = ovs.RenderAfter(p.flows.pipe, n, numbers, ovs.Options{Adopting: p.flows.adopting}).Flows()
	of.Sort(t.flows)
	r := p.render(n)
	t.host = linuxplane.Host{Node: n, Table: ovs.RenderTable(n, p.datapath.switchOf(r.uplinkName())), Routes: r.state.Routes}
	return t, nil
}

// follow simulates the way.
func (t *trip) follow(at apply.Passage) error {
	host := nftsim.Of(at.Packet)
	switch peer, through := sender(t.node, at.Packet.Src); {
	case at.Sender != nil:
		return t.cross(sim.Of(at.Packet, sim.Link{InPort: t.numbers[at.Sender.HostInterface], Src: at.Sender.MAC, Dst: claims.GatewayMAC}))
	case at.FromNode:
		return t.fromHost(t.host.Send(host))
	case !through:
		host.In = linuxplane.Underlay
		return t.fromHost(t.host.Receive(host))
	default:
		pkt := sim.Of(at.Packet, sim.Link{InPort: t.numbers[claims.OVSTunnelPort], Src: peer.VTEPMAC, Dst: t.node.VTEPMAC})
		pkt.Set(of.TunID, of.Num(uint64(at.VNI)))
		src := of.TunSrc
		if peer.Outer.Is6() {
			src = of.TunIPv6Src
		}
		pkt.Set(src, of.AddrValue(peer.Outer))
		return t.cross(pkt)
	}
}

// fromHost goes on to the bridge, if the host's routes lead there.
func (t *trip) fromHost(leg linuxplane.Leg, err error) error {
	if err != nil {
		return err
	}
	t.leg, t.hostFirst, t.verdict = &leg, true, leg.Verdict
	if t.verdict != "accept" || leg.Local || leg.Packet.Out != claims.OVSHostPort {
		return nil
	}
	return t.cross(sim.Of(leg.Packet.Plain(), sim.Link{InPort: t.numbers[claims.OVSHostPort], Src: t.node.VTEPMAC, Dst: claims.GatewayMAC}))
}

// cross walks the packet through the bridge, and on into the host if that is where it goes.
func (t *trip) cross(pkt sim.Packet) error {
	pipeline, err := sim.New(t.flows, nil)
	if err != nil {
		return fmt.Errorf("follow the packet through the pipeline: %w", err)
	}
	s := sim.Switch{Pipeline: pipeline, Trace: true, TableName: ovs.TableName}
	result, err := s.Receive(pkt)
	if err != nil {
		return fmt.Errorf("follow the packet through the pipeline: %w", err)
	}
	t.crossed, t.entered = true, pkt
	for _, x := range result.Trace.Path() {
		t.steps = append(t.steps, t.stepOf(x))
	}
	t.verdict = "drop"
	for _, out := range result.Outputs {
		t.verdict = "accept"
		t.outputs = append(t.outputs, out.Port)
		if out.Port != t.numbers[claims.OVSHostPort] || t.hostFirst {
			continue
		}
		host := nftsim.Of(out.Packet.Plain())
		host.In, host.EtherSrc, host.EtherDst = claims.OVSHostPort, claims.GatewayMAC, t.node.VTEPMAC
		leg, err := t.host.Receive(host)
		if err != nil {
			return err
		}
		t.leg, t.verdict = &leg, leg.Verdict
	}
	return nil
}

// stepOf finds the flow of a step of the simulator.
func (t *trip) stepOf(x sim.Step) step {
	out := step{table: x.Table, Step: apply.Step{
		Stage: stageOf(x.Table), Hook: "bridge", Chain: ovs.TableName(x.Table), Rule: -1, Effect: "drop", Comment: x.Comment, Text: x.Flow,
	}}
	first := slices.IndexFunc(t.flows, func(f of.Flow) bool { return f.Table == x.Table })
	i := slices.IndexFunc(t.flows, func(f of.Flow) bool { return f.Table == x.Table && described(f) == x.Flow })
	if x.Effect == sim.Matched && i >= 0 {
		out.flow, out.Rule, out.Effect = &t.flows[i], i-first, t.effect(t.flows[i])
	}
	return out
}

// stageOf is what a table is about.
func stageOf(table uint8) string {
	switch table {
	case ovs.TableTunnelVNI, ovs.TableHostVPC:
		return apply.StageVPC
	case ovs.TableServices:
		return apply.StageDestination
	case ovs.TableTrack, ovs.TableFlows, ovs.TableErrors, ovs.TableCommit:
		return apply.StageFlow
	case ovs.TableRoute, ovs.TableWays, ovs.TableHop:
		return apply.StagePath
	case ovs.TableTenants:
		return apply.StageTenant
	case ovs.TableEgressPeer, ovs.TableEgress, ovs.TableEgressTransport, ovs.TableEgressPorts:
		return apply.StageEgress
	case ovs.TableIngressPeer, ovs.TableIngress, ovs.TableIngressTransport, ovs.TableIngressPorts:
		return apply.StageIngress
	case ovs.TableDeliver, ovs.TableGateway, ovs.TableAdvert:
		return apply.StageDelivery
	}
	return apply.StageSource
}

// described is a flow in the words of the simulator.
func described(f of.Flow) string {
	text := fmt.Sprintf("priority=%d", f.Priority)
	if len(f.Match) > 0 {
		text += "," + f.Match.String()
	}
	return text
}

// effect is what a flow does to the packet in the end. Ports have names.
func (t *trip) effect(f of.Flow) string {
	if len(f.Actions) == 0 {
		return "drop"
	}
	switch a := f.Actions[len(f.Actions)-1].(type) {
	case of.GotoTable:
		return "goto " + ovs.TableName(a.Table)
	case of.CT:
		return "goto " + ovs.TableName(a.Table)
	case of.Output:
		return "output to " + t.portName(a.Port)
	default:
		return of.FormatActions([]of.Action{a})
	}
}

func (t *trip) portName(number of.Port) string {
	for name, n := range t.numbers {
		if n == number {
			return name
		}
	}
	return fmt.Sprintf("port %d", number)
}

// proveFlows finds the flows of the steps in the switch.
func (p *Plane) proveFlows(ctx context.Context, t *trip, walk *apply.Walk) error {
	installed, err := p.conn.Flows(ctx, of.FlowFilter{Table: of.TableAll, Cookie: claims.OVSCookie, CookieMask: claims.OVSCookieMask})
	if err != nil {
		return err
	}
	byKey := make(map[of.Key]of.FlowDesc, len(installed))
	for _, f := range installed {
		byKey[f.Flow.Key()] = f
	}
	for i := range t.steps {
		s := &t.steps[i]
		if s.flow == nil {
			continue
		}
		got, there := byKey[s.flow.Key()]
		switch {
		case !there || got.Err != nil:
			s.Live = "MISSING"
			walk.Miss(s.Stage, "flow %s of table %s is not in the switch", s.Text, s.Chain)
		case !got.Flow.Equal(*s.flow):
			s.Live = "DIFFERS"
			walk.Miss(s.Stage, "flow %s of table %s has the actions %s, want %s", s.Text, s.Chain, dropping(got.Flow.Actions), dropping(s.flow.Actions))
		default:
			s.Handle, s.Packets = got.Flow.Cookie, &got.Packets
			s.Live = apply.Packets(got.Packets)
		}
	}
	return nil
}

func dropping(list []of.Action) string {
	if len(list) == 0 {
		return "drop"
	}
	return of.FormatActions(list)
}

// trace lets the switch itself follow the packet (ofproto/trace), and compares the way.
func (p *Plane) trace(ctx context.Context, t *trip, walk *apply.Walk) error {
	text, err := p.control.Trace(ctx, claims.OVSBridge, t.entered.Flow())
	if err != nil {
		return err
	}
	said := parseTrace(text, claims.OVSBridge)
	walk.Live = "drop"
	if said.sent && said.lost == "" {
		walk.Live = "accept"
	}
	switch parted := t.compare(said, walk); {
	case said.lost != "":
		walk.Miss(apply.StageDelivery, "Open vSwitch sends it nowhere: %s", said.lost)
	case !parted && said.sent != (len(t.outputs) > 0):
		walk.Miss(apply.StageDelivery, "ofproto/trace ends with %s by the same flows", walk.Live)
	}
	if len(t.steps) > 0 && len(said.notes) > 0 {
		last := &t.steps[len(t.steps)-1]
		last.Live = join(last.Live, strings.Join(said.notes, "; "))
	}
	return nil
}

// compare tells where the way of the switch parts from ours.
func (t *trip) compare(said traced, walk *apply.Walk) (parted bool) {
	for i := range max(len(said.path), len(t.steps)) {
		if i >= len(t.steps) {
			walk.Miss(stageOf(said.path[i].table), "ofproto/trace goes on, and meets %s", said.path[i])
			return true
		}
		s := &t.steps[i]
		word := "met"
		switch {
		case parted:
			word = "not reached"
		case i >= len(said.path):
			word, parted = "NOT MET", true
			walk.Miss(s.Stage, "ofproto/trace ends in place of flow %s of table %s", s.Text, s.Chain)
		case !said.path[i].is(*s):
			word, parted = "NOT MET", true
			walk.Miss(s.Stage, "ofproto/trace meets %s in place of flow %s of table %s", said.path[i], s.Text, s.Chain)
		}
		s.Live = join(word, s.Live)
		if parted && i == len(t.steps)-1 {
			return true
		}
	}
	return parted
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

// sender is the peer behind the tunnel that has an address.
func sender(n intent.Node, a netip.Addr) (intent.Peer, bool) {
	best := intent.Route{Dst: netip.Prefix{}}
	for _, r := range n.Routes {
		if r.Dst.Contains(a) && (!best.Dst.IsValid() || r.Dst.Bits() > best.Dst.Bits()) {
			best = r
		}
	}
	i := slices.IndexFunc(n.Peers, func(p intent.Peer) bool { return p.Name == best.NextHop.Peer })
	if i < 0 || !best.Encapsulate {
		return intent.Peer{}, false
	}
	return n.Peers[i], true
}

// Flows calls yield with every conversation that a port of the intent is an end of, until
// that returns false.
func (p *Plane) Flows(ctx context.Context, n intent.Node, yield func(apply.Flow) bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	text, err := p.control.Call(ctx, "ovs-vswitchd", "dpctl/dump-conntrack", p.datapath.name())
	if err != nil {
		return err
	}
	p.mu.Lock()
	cut := p.tracks.cut
	p.mu.Unlock()
	ports := map[netip.Addr]bool{}
	for _, port := range n.Ports {
		for _, a := range port.Addresses {
			ports[a] = true
		}
	}
	for _, c := range parseConnections(text) {
		if c.zone < claims.OVSZoneFirst || c.zone > claims.OVSZoneLast || !ports[c.src] && !ports[c.replySrc] {
			continue
		}
		f := apply.Flow{
			Src: c.src, Dst: c.replySrc, Protocol: c.protocol, SrcPort: c.srcPort, DstPort: c.replyPort,
			Cut:   cut[c.tuple()] || c.mark&claims.CTCut != 0,
			Ended: c.ended,
		}
		if !yield(f) {
			return nil
		}
	}
	return nil
}
