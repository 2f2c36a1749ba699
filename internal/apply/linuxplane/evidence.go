package linuxplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// Readable is what a Filter may be beside: it finds the rules of a table in the kernel,
// by chain, in the order of each chain's rules.
type Readable interface {
	Rules(ctx context.Context, want nftables.Table) (map[string][]nft.KernelRule, error)
}

// Rules implements Readable.
func (f *nftFilter) Rules(ctx context.Context, want nftables.Table) (map[string][]nft.KernelRule, error) {
	return f.driver.Rules(ctx, want)
}

// Explain walks the first packet of a flow through the rules that the intent renders to,
// and finds those that it meets in the kernel. It changes nothing.
func (p *Plane) Explain(ctx context.Context, n intent.Node, at apply.Passage) (apply.Walk, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return apply.Walk{}, ErrClosed
	}
	table := p.table(n, rendernft.Options{Adopting: p.adopting})
	walk, looks, err := follow(table, n, at)
	if err != nil {
		return apply.Walk{}, err
	}
	if r, ok := p.filter.(Readable); ok {
		rules, err := r.Rules(ctx, table)
		if err != nil {
			return apply.Walk{}, err
		}
		prove(&walk, rules)
	}
	different, err := p.filter.Audit(ctx, table)
	if err != nil {
		return apply.Walk{}, err
	}
	for _, d := range different {
		if set, ok := strings.CutPrefix(d.Object, "set "); ok && looks[set] {
			walk.Missing = append(walk.Missing, strings.TrimSpace(fmt.Sprintf("%s %s %s%s", d.Object, d.Problem, d.Want, d.Got)))
		}
	}
	return walk, nil
}

// prove puts handles and counters to the steps of a walk.
func prove(walk *apply.Walk, rules map[string][]nft.KernelRule) {
	for i := range walk.Steps {
		s := &walk.Steps[i]
		if s.Rule < 0 {
			continue
		}
		list := rules[s.Chain]
		if s.Rule >= len(list) || list[s.Rule].Handle == 0 {
			walk.Missing = append(walk.Missing, fmt.Sprintf("rule %d of chain %s: %s", s.Rule, s.Chain, s.Text))
			continue
		}
		s.Handle = list[s.Rule].Handle
		if list[s.Rule].Counted {
			s.Packets = &list[s.Rule].Packets
		}
	}
}

// underlayDevice stands for the node's device on the underlay, which no rule names.
const underlayDevice = "underlay"

// follow simulates the packet's way. looks are the sets that the rules on it look into.
func follow(table nftables.Table, n intent.Node, at apply.Passage) (walk apply.Walk, looks map[string]bool, err error) {
	routes := &routing{node: n, receiver: at.Receiver}
	host := sim.Node{Rules: sim.New(table), Routing: routes, Trace: true}
	pkt := sim.Of(at.Packet)
	pkt.EtherDst = claims.GatewayMAC
	var j sim.Journey
	switch {
	case at.FromNode:
		j, err = host.Send(pkt)
	case at.Sender != nil:
		pkt.In, pkt.EtherSrc = at.Sender.HostInterface, at.Sender.MAC
		var why string
		pkt.Mark, why = linux.Guard{Addresses: at.Sender.Addresses, VNI: at.Sender.VNI}.Judge(pkt.Src, pkt.Dst)
		if why != "" {
			walk.Verdict = "drop"
			walk.Steps = []apply.Step{{Hook: "ingress", Chain: "program port_in", Rule: -1, Comment: why, Effect: "drop"}}
			return walk, nil, nil
		}
		j, err = host.Receive(pkt)
	default:
		if pkt.In = underlayDevice; comesByTunnel(n, at.Packet.Src) {
			pkt.In, pkt.Mark, pkt.EtherDst = claims.VXLANDevice, claims.Mark(at.VNI)|claims.MarkChecked, n.VTEPMAC
		}
		j, err = host.Receive(pkt)
	}
	if err != nil {
		return walk, nil, fmt.Errorf("follow the packet through the rules: %w", err)
	}
	walk.Verdict = "accept"
	switch {
	case routes.nowhere: // Not for rules to say.
		walk.Verdict = ""
	case j.Dropped:
		walk.Verdict = "drop"
	}
	walk.Steps, looks = stepsOf(table, j.Trace.Taken())
	return walk, looks, nil
}

// comesByTunnel reports whether packets from an address come by the tunnel: pods of
// other nodes, where no plain path is known, and what other nodes send themselves.
func comesByTunnel(n intent.Node, a netip.Addr) bool {
	pods := slices.ContainsFunc(n.Subnets, func(s intent.Subnet) bool { return contains(s.CIDRs, a) })
	direct := slices.ContainsFunc(n.AddressSets, func(s intent.AddressSet) bool { return s.Name == intent.SetDirect && s.Contains(a) })
	return pods && !direct
}

// stepsOf makes one step of all that a rule did.
func stepsOf(table nftables.Table, trace sim.Trace) ([]apply.Step, map[string]bool) {
	steps := []apply.Step{}
	looks := map[string]bool{}
	for i, s := range trace {
		if s.Chain == "" && s.Effect == sim.Tracked {
			continue // Always a new flow.
		}
		effect := effectOf(s)
		if i > 0 && s.Rule != sim.NoRule && trace[i-1].Hook == s.Hook && trace[i-1].Chain == s.Chain && trace[i-1].Rule == s.Rule && len(steps) > 0 {
			if effect != "" {
				steps[len(steps)-1].Effect = effect
			}
			continue
		}
		step := apply.Step{Hook: s.Hook.String(), Chain: s.Chain, Rule: s.Rule, Comment: s.Comment, Effect: effect, Text: s.Statement}
		if r, ok := ruleAt(table, s.Chain, s.Rule); ok {
			step.Text = r.String()
			for _, name := range setsIn(r) {
				looks[name] = true
			}
		}
		steps = append(steps, step)
	}
	return steps, looks
}

// effectOf is what a statement did, for people; empty if it only matched or counted.
func effectOf(s sim.Step) string {
	switch s.Effect {
	case sim.Passed, sim.Failed, sim.Counted:
		return ""
	case sim.Decided:
		if s.Detail != "" {
			return s.Detail
		}
		return s.Statement
	}
	if s.Detail != "" {
		return s.Statement + ": " + s.Detail
	}
	return s.Statement
}

func ruleAt(table nftables.Table, chain string, i int) (nftables.Rule, bool) {
	for _, c := range table.Chains {
		if c.Name == chain && i >= 0 && i < len(c.Rules) {
			return c.Rules[i], true
		}
	}
	return nftables.Rule{}, false
}

// setsIn are the sets and maps that a rule looks into.
func setsIn(r nftables.Rule) []string {
	var out []string
	for _, s := range r.Statements {
		switch s := s.(type) {
		case nftables.Lookup:
			out = append(out, s.Set)
		case nftables.VMap:
			out = append(out, s.Map)
		case nftables.Mangle:
			if s.Map != "" {
				out = append(out, s.Map)
			}
		}
	}
	return out
}

// routing is the node's routing table, as the intent has it.
type routing struct {
	node     intent.Node
	receiver *intent.Port
	nowhere  bool
}

// Route implements sim.Routing.
func (r *routing) Route(p sim.Packet) sim.Route {
	if ownAddress(r.node, p.Dst) {
		return sim.Route{Local: true}
	}
	if r.receiver != nil && slices.Contains(r.receiver.Addresses, p.Dst) {
		return sim.Route{Out: r.receiver.HostInterface}
	}
	var best *intent.Route
	for i, x := range r.node.Routes {
		if x.Dst.Contains(p.Dst) && (best == nil || x.Dst.Bits() > best.Dst.Bits()) {
			best = &r.node.Routes[i]
		}
	}
	switch {
	case best == nil:
		return sim.Route{Out: underlayDevice}
	case best.NextHop.Local:
		r.nowhere = true
		return sim.Route{Why: "no port has the address"}
	case best.Encapsulate:
		return sim.Route{Out: claims.VXLANDevice}
	}
	return sim.Route{Out: underlayDevice}
}

// Source implements sim.Routing.
func (r *routing) Source(_ string, is4 bool) (netip.Addr, bool) {
	for _, p := range r.node.Underlay {
		if p.Addr().Is4() == is4 {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
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
				Src: first.Src, Dst: first.Dst, Protocol: first.Protocol, SrcPort: first.SrcPort, DstPort: first.DstPort, Cut: f.Mark&claims.CTCut != 0,
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
