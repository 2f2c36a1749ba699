package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// brokenFlow is a conversation that a change would end.
type brokenFlow struct {
	// From and To are pods, "node/NAME", or "outside".
	From      string          `json:"from"`
	To        string          `json:"to"`
	Src       netip.Addr      `json:"src"`
	SrcPort   uint16          `json:"srcPort,omitempty"`
	Dst       netip.Addr      `json:"dst"`
	DstPort   uint16          `json:"dstPort,omitempty"`
	Protocol  packet.Protocol `json:"protocol"`
	Policy    *whyPolicy      `json:"policy,omitempty"`
	Direction string          `json:"direction,omitempty"`
	Why       string          `json:"why"`
}

// findBroken asks every node for the flows of its pods, and judges those anew that go on.
func (a *app) findBroken(ctx context.Context, c *comparison, r *whatifReport) {
	agents, err := a.agents(ctx, nil)
	if err != nil {
		r.Unknown = append(r.Unknown, err.Error())
		return
	}
	for _, n := range agents {
		n.client.Close()
	}
	if len(agents) == 0 {
		r.Unknown = append(r.Unknown, "there is no node to ask")
		return
	}
	answers, err := ask[admin.Flows](ctx, a, nil, "/v1/flows")
	if err != nil {
		r.Unknown = append(r.Unknown, strings.Split(err.Error(), "\n")...)
	}
	seen := map[apply.Flow]bool{}
	at := map[netip.Addr]oracle.Place{}
	for _, both := range c.ends() {
		if both[0].Addr.IsValid() {
			at[both[0].Addr] = both[0].Place
		}
	}
	for _, x := range answers {
		if x.value.Truncated {
			r.Unknown = append(r.Unknown, fmt.Sprintf("node %s: only the first %d flows were listed", x.node, len(x.value.Flows)))
		}
		for _, f := range x.value.Flows {
			if !f.Cut && !f.Ended && !seen[f] {
				seen[f] = true
				c.flow(f, at, r)
			}
		}
	}
	slices.SortFunc(r.Flows, func(a, b brokenFlow) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.DstPort, b.DstPort), cmp.Compare(a.SrcPort, b.SrcPort))
	})
}

// flow judges a flow as if its first packet came now.
func (c *comparison) flow(f apply.Flow, at map[netip.Addr]oracle.Place, r *whatifReport) {
	from, to := at[f.Src], at[f.Dst]
	if from.Kind == oracle.Outside {
		from.Node = to.Node
	}
	probe := oracle.Probe{From: from, Packet: packet.Packet{
		Src: f.Src, Dst: f.Dst, Protocol: f.Protocol, SrcPort: f.SrcPort, DstPort: f.DstPort, SYN: f.Protocol == packet.TCP,
	}}
	v, gone := c.judgeGone(probe, to)
	if !gone {
		v = c.judgeWhole(probe)
	}
	if !v.allowed[0] || v.allowed[1] {
		return
	}
	d := c.by[v.by]
	b := brokenFlow{
		From: endName(from), To: endName(to), Src: f.Src, SrcPort: f.SrcPort, Dst: f.Dst, DstPort: f.DstPort, Protocol: f.Protocol, Why: d.why,
	}
	if d.has {
		b.Policy, b.Direction = &d.policy, d.direction
	}
	r.Flows = append(r.Flows, b)
}

func endName(p oracle.Place) string {
	switch p.Kind {
	case oracle.Pod:
		return p.Pod.String()
	case oracle.Node:
		return "node/" + p.Node
	}
	return "outside"
}
