package linuxplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// Explain walks the first packet of a flow through what the intent renders to, programs,
// rules and routes, and finds what it meets in the kernel. It changes nothing.
func (p *Plane) Explain(ctx context.Context, n intent.Node, at apply.Passage) (apply.Walk, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return apply.Walk{}, ErrClosed
	}
	state := p.state(n)
	t := trip{host: Host{Node: n, Table: p.table(n, rendernft.Options{Adopting: p.adopting}), Routes: state.Routes, Ports: state.Ports}}
	if state.Tunnel != nil {
		t.wire = linux.RenderWire(n)
	}
	if err := t.follow(at); err != nil {
		return apply.Walk{}, err
	}
	walk := apply.Walk{Verdict: t.verdict, Steps: []apply.Step{}}
	if err := p.prove(ctx, state, &t, &walk); err != nil {
		return apply.Walk{}, err
	}
	walk.Steps = append(walk.Steps, t.arrival...)
	walk.Steps = append(walk.Steps, t.leg.Steps...)
	walk.Steps = append(walk.Steps, t.departure...)
	return walk, nil
}

// prove puts what the kernel holds to the steps.
func (p *Plane) prove(ctx context.Context, state linux.State, t *trip, walk *apply.Walk) error {
	if len(t.leg.Steps) > 0 {
		if err := t.host.Prove(ctx, &t.leg, p.filter, p.links, walk); err != nil {
			return err
		}
	}
	if t.guarded != "" {
		if err := p.proveGuard(state, t.guarded, &t.arrival[0], walk); err != nil {
			return err
		}
	}
	if len(t.entries) == 0 {
		return nil
	}
	steps := append(slices.Clone(t.arrival), t.departure...)
	different, err := p.wire.Audit(t.wire)
	if err != nil {
		return err
	}
	off, err := p.auditPrograms()
	if err != nil {
		return err
	}
	different = slices.DeleteFunc(different, func(d apply.Difference) bool { return !t.entries[d.Object] })
	for _, d := range append(different, off...) {
		missed(walk, steps[0].Stage, d)
		t.tell("DIFFERS")
	}
	t.tell("the maps hold it")
	return nil
}

func missed(walk *apply.Walk, stage string, d apply.Difference) {
	text := d.Object + " " + d.Problem
	if d.Want != "" {
		text += ", want " + d.Want
	}
	if d.Got != "" {
		text += ", got " + d.Got
	}
	walk.Miss(stage, "%s", text)
}

// proveGuard looks at the program on a pod's link and at what its map says of it.
func (p *Plane) proveGuard(state linux.State, link string, s *apply.Step, walk *apply.Walk) error {
	index, err := p.links.PortIndex()
	if err != nil {
		return err
	}
	s.Live = "the program is there, its map holds the port"
	guards := state.Guards(index)
	i := slices.IndexFunc(guards, func(g linux.Guard) bool { return g.Link == link })
	if i < 0 {
		s.Live = "MISSING"
		walk.Miss(s.Stage, "the kernel has no link %s", link)
		return nil
	}
	different, err := p.wire.AuditPorts(guards)
	if err != nil {
		return err
	}
	off, err := p.unguarded(guards[i])
	if err != nil {
		return err
	}
	different = slices.DeleteFunc(different, func(d apply.Difference) bool { return d.Object != "port "+link })
	for _, d := range append(different, off...) {
		s.Live = "DIFFERS"
		missed(walk, s.Stage, d)
	}
	return nil
}

// trip is a packet's way through a node.
type trip struct {
	host Host
	wire linux.Wire

	// arrival is what programs do before the host gets the packet, departure after it.
	arrival, departure []apply.Step
	leg                Leg
	verdict            string
	// guarded is the pod's link whose program sees the packet.
	guarded string
	// entries are what the tunnel programs look for in their maps, as an audit names it.
	entries map[string]bool
}

// follow simulates the way.
func (t *trip) follow(at apply.Passage) (err error) {
	pkt := sim.Of(at.Packet)
	pkt.EtherDst = claims.GatewayMAC
	switch n := t.host.Node; {
	case at.FromNode:
		t.leg, err = t.host.Send(pkt)
	case at.Sender != nil:
		mark, ok := t.guard(at)
		if !ok {
			return nil
		}
		pkt.In, pkt.EtherSrc, pkt.Mark = at.Sender.HostInterface, at.Sender.MAC, mark
		t.leg, err = t.host.Receive(pkt)
	case comesByTunnel(n, at.Packet.Src):
		if !t.wireIn(at) {
			return nil
		}
		pkt.In, pkt.Mark, pkt.EtherDst = claims.VXLANDevice, claims.Mark(at.VNI)|claims.MarkChecked, n.VTEPMAC
		t.leg, err = t.host.Receive(pkt)
	default:
		pkt.In = Underlay
		t.leg, err = t.host.Receive(pkt)
	}
	if err != nil {
		return err
	}
	if t.verdict = t.leg.Verdict; t.verdict == "accept" && !t.leg.Local && t.leg.Packet.Out == claims.VXLANDevice {
		t.wireOut(t.leg.Packet)
	}
	return nil
}

// guard is the program on the pod's link.
func (t *trip) guard(at apply.Passage) (mark uint32, ok bool) {
	t.guarded = at.Sender.HostInterface
	s := apply.Step{Stage: apply.StageSource, Hook: "ingress", Chain: "program port_in", Rule: -1, Effect: "drop", Text: "link " + at.Sender.HostInterface}
	mark, s.Comment = linux.Guard{Addresses: at.Sender.Addresses, VNI: at.Sender.VNI}.Judge(at.Packet.Src, at.Packet.Dst)
	if ok = s.Comment == ""; ok {
		s.Comment, s.Effect = "the pod's own address", fmt.Sprintf("pass as VNI %d", at.Sender.VNI)
	} else {
		t.verdict = "drop"
	}
	t.arrival = append(t.arrival, s)
	return mark, ok
}

// wireIn is the program that holds the wire contract on arrival.
func (t *trip) wireIn(at apply.Passage) bool {
	s := apply.Step{Stage: apply.StageSource, Hook: "tunnel", Chain: "program wire_in", Rule: -1, Effect: "drop"}
	vpc, known := t.vpcOf(at.VNI)
	src, hasSrc := t.place(vpc, at.Packet.Src)
	dst, hasDst := t.place(vpc, at.Packet.Dst)
	switch {
	case !known:
		s.Comment = fmt.Sprintf("VNI %d is of no VPC", at.VNI)
	case !hasSrc || src.Local():
		s.Comment = fmt.Sprintf("%s is at no other node", at.Packet.Src)
	case !hasDst || !dst.Local():
		s.Comment = fmt.Sprintf("%s is not on this node", at.Packet.Dst)
	default:
		s.Comment, s.Effect = fmt.Sprintf("%s is at %s", src.Prefix, src.Outer), fmt.Sprintf("pass as VNI %d", at.VNI)
	}
	t.arrival = append(t.arrival, s)
	if s.Effect == "drop" {
		t.verdict = "drop"
		return false
	}
	return true
}

// wireOut is the program that gives the tunnel device its key.
func (t *trip) wireOut(p sim.Packet) {
	vni := claims.MarkVNI(p.Mark)
	s := apply.Step{Stage: apply.StagePath, Hook: "tunnel", Chain: "program wire_out", Rule: -1, Effect: "drop"}
	vpc, known := t.vpcOf(vni)
	e, there := t.place(vpc, p.Dst)
	switch {
	case !known:
		s.Comment = fmt.Sprintf("VNI %d is of no VPC", vni)
	case !there || e.Local():
		s.Comment = fmt.Sprintf("%s is at no other node", p.Dst)
	default:
		s.Comment, s.Effect = fmt.Sprintf("%s is at %s, %s", e.Prefix, e.Outer, e.MAC), fmt.Sprintf("tunnel to %s, VNI %d", e.Outer, vni)
	}
	if s.Effect == "drop" {
		t.verdict = "drop"
	}
	t.departure = append(t.departure, s)
}

// vpcOf is the VPC, by its own VNI, of a VNI.
func (t *trip) vpcOf(vni packet.VNI) (packet.VNI, bool) {
	t.looksFor(fmt.Sprintf("VNI %d", vni))
	i := slices.IndexFunc(t.wire.VNIs, func(v linux.WireVNI) bool { return v.VNI == vni })
	if i < 0 {
		return 0, false
	}
	return t.wire.VNIs[i].VPC, true
}

// place is where the programs look for an address.
func (t *trip) place(vpc packet.VNI, a netip.Addr) (linux.WireEntry, bool) {
	best := -1
	for i, e := range t.wire.Entries {
		if e.VPC == vpc && e.Prefix.Contains(a) && (best < 0 || e.Prefix.Bits() > t.wire.Entries[best].Prefix.Bits()) {
			best = i
		}
	}
	if best < 0 {
		return linux.WireEntry{}, false
	}
	e := t.wire.Entries[best]
	t.looksFor(fmt.Sprintf("VPC %d %s", e.VPC, e.Prefix))
	return e, true
}

func (t *trip) looksFor(object string) {
	if t.entries == nil {
		t.entries = map[string]bool{}
	}
	t.entries[object] = true
}

// tell says something of the steps of programs of which nothing is said yet.
func (t *trip) tell(live string) {
	for _, steps := range [][]apply.Step{t.arrival, t.departure} {
		for i := range steps {
			if steps[i].Live == "" {
				steps[i].Live = live
			}
		}
	}
}

// comesByTunnel reports whether packets from an address come by the tunnel: pods of
// other nodes, where no plain path is known, and what other nodes send themselves.
func comesByTunnel(n intent.Node, a netip.Addr) bool {
	pods := slices.ContainsFunc(n.Subnets, func(s intent.Subnet) bool { return contains(s.CIDRs, a) })
	direct := slices.ContainsFunc(n.AddressSets, func(s intent.AddressSet) bool { return s.Name == intent.SetDirect && s.Contains(a) })
	return pods && !direct
}

// errEnough ends a walk over flows.
var errEnough = errors.New("enough")

// Flows calls yield with every flow that a port of the intent is an end of, each once,
// until that returns false. It changes nothing.
func (p *Plane) Flows(ctx context.Context, n intent.Node, yield func(apply.Flow) bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	ports := map[netip.Addr]bool{}
	for _, port := range n.Ports {
		for _, a := range port.Addresses {
			ports[a] = true
		}
	}
	seen := map[packet.Packet]bool{}
	ctx, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	_, err := p.flows.Walk(ctx, []conntrack.Query{{}}, func(f conntrack.Flow) conntrack.Decision {
		first := firstPacket(f)
		if (ports[first.Src] || ports[first.Dst]) && !seen[first] && ctx.Err() == nil {
			seen[first] = true
			if !yield(apply.Flow{
				Src: first.Src, Dst: first.Dst, Protocol: first.Protocol, SrcPort: first.SrcPort, DstPort: first.DstPort,
				Cut: f.Mark&claims.CTCut != 0, Ended: f.Ended,
			}) {
				enough(errEnough)
			}
		}
		return conntrack.Decision{}
	})
	if errors.Is(context.Cause(ctx), errEnough) {
		return nil
	}
	return err
}
