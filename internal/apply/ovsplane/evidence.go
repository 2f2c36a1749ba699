package ovsplane

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// Explain walks the first packet of a flow through the pipeline that the intent renders to,
// and finds the flows that it meets in the switch. A step's Chain is a table, its Rule the
// place of the flow in that table by priority, its Handle the flow's cookie. It changes
// nothing.
func (p *Plane) Explain(ctx context.Context, n intent.Node, at apply.Passage) (apply.Walk, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	numbers, err := p.numbers(ctx)
	if err != nil {
		return apply.Walk{}, err
	}
	p.mu.Lock()
	pipe := ovs.RenderAfter(p.flows.pipe, n, numbers, ovs.Options{Adopting: p.flows.adopting})
	p.mu.Unlock()
	steps, verdict, err := follow(pipe, n, numbers, at)
	if err != nil {
		return apply.Walk{}, err
	}
	installed, err := p.conn.Flows(ctx, of.FlowFilter{Table: of.TableAll, Cookie: claims.OVSCookie, CookieMask: claims.OVSCookieMask})
	if err != nil {
		return apply.Walk{}, err
	}
	walk := apply.Walk{Verdict: verdict}
	byKey := make(map[of.Key]of.FlowDesc, len(installed))
	for _, f := range installed {
		byKey[f.Flow.Key()] = f
	}
	for _, s := range steps {
		if s.flow != nil {
			if got, there := byKey[s.flow.Key()]; there && got.Err == nil && got.Flow.Equal(*s.flow) {
				s.Handle, s.Packets = got.Flow.Cookie, &got.Packets
			} else {
				walk.Missing = append(walk.Missing, fmt.Sprintf("flow %s of table %s", s.Text, s.Chain))
			}
		}
		walk.Steps = append(walk.Steps, s.Step)
	}
	return walk, nil
}

// step is a flow that a packet meets, nil at the end of a table without one.
type step struct {
	apply.Step
	flow *of.Flow
}

// follow simulates the packet's way.
func follow(pipe *ovs.Pipeline, n intent.Node, numbers ovs.Numbers, at apply.Passage) ([]step, string, error) {
	flows := pipe.Flows()
	of.Sort(flows)
	pipeline, err := sim.New(flows, nil)
	if err != nil {
		return nil, "", fmt.Errorf("follow the packet through the pipeline: %w", err)
	}
	s := sim.Switch{Pipeline: pipeline, Trace: true, TableName: ovs.TableName}
	result, err := s.Receive(arriving(n, numbers, at))
	if err != nil {
		return nil, "", fmt.Errorf("follow the packet through the pipeline: %w", err)
	}
	verdict := "accept"
	if result.Dropped() {
		verdict = "drop"
	}
	var out []step
	for _, t := range result.Trace.Path() {
		found := step{Step: apply.Step{Hook: "bridge", Chain: ovs.TableName(t.Table), Rule: -1, Effect: "drop", Comment: t.Comment, Text: t.Flow}}
		first := slices.IndexFunc(flows, func(f of.Flow) bool { return f.Table == t.Table })
		i := slices.IndexFunc(flows, func(f of.Flow) bool { return f.Table == t.Table && described(f) == t.Flow })
		if t.Effect == sim.Matched && i >= 0 {
			found.flow, found.Rule, found.Effect = &flows[i], i-first, effect(flows[i])
		}
		out = append(out, found)
	}
	return out, verdict, nil
}

// described is a flow in the words of the simulator.
func described(f of.Flow) string {
	text := fmt.Sprintf("priority=%d", f.Priority)
	if len(f.Match) > 0 {
		text += "," + f.Match.String()
	}
	return text
}

// effect is what a flow does to the packet in the end.
func effect(f of.Flow) string {
	if len(f.Actions) == 0 {
		return "drop"
	}
	switch a := f.Actions[len(f.Actions)-1].(type) {
	case of.GotoTable:
		return "goto " + ovs.TableName(a.Table)
	case of.CT:
		return "goto " + ovs.TableName(a.Table)
	default:
		return of.FormatActions([]of.Action{a})
	}
}

// arriving is the packet as the bridge gets it.
func arriving(n intent.Node, numbers ovs.Numbers, at apply.Passage) sim.Packet {
	fromHost := sim.Link{InPort: numbers[claims.OVSHostPort], Src: n.VTEPMAC, Dst: claims.GatewayMAC}
	switch {
	case at.Sender != nil:
		return sim.Of(at.Packet, sim.Link{InPort: numbers[at.Sender.HostInterface], Src: at.Sender.MAC, Dst: claims.GatewayMAC})
	case at.FromNode:
		// The host gives what it sends itself its address in the Subnet.
		if own := tunnelAddress(n, at.Packet.Dst); own.IsValid() {
			at.Packet.Src = own
		}
		return sim.Of(at.Packet, fromHost)
	}
	peer, through := sender(n, at.Packet.Src)
	if !through {
		return sim.Of(at.Packet, fromHost)
	}
	p := sim.Of(at.Packet, sim.Link{InPort: numbers[claims.OVSTunnelPort], Src: peer.VTEPMAC, Dst: n.VTEPMAC})
	p.Set(of.TunID, of.Num(uint64(at.VNI)))
	src := of.TunSrc
	if peer.Outer.Is6() {
		src = of.TunIPv6Src
	}
	p.Set(src, of.AddrValue(peer.Outer))
	return p
}

// tunnelAddress is the node's own address in the Subnet around dst.
func tunnelAddress(n intent.Node, dst netip.Addr) netip.Addr {
	for _, s := range n.Subnets {
		if slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return c.Contains(dst) }) {
			return n.Source(s, dst.Is4())
		}
	}
	return netip.Addr{}
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
			Cut: cut[c.tuple()] || c.mark&claims.CTCut != 0,
		}
		if !yield(f) {
			return nil
		}
	}
	return nil
}
