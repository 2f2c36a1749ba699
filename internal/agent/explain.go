package agent

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// Witness is a Plane that can tell what it does with packets, and which flows it knows.
type Witness interface {
	// Explain follows the first packet of a flow through all that an intent renders to, and
	// finds that in the node.
	Explain(context.Context, intent.Node, apply.Passage) (apply.Walk, error)
	// Flows calls yield with every flow that a port of the intent is an end of, until
	// that returns false.
	Flows(ctx context.Context, n intent.Node, yield func(apply.Flow) bool) error
}

// maxFlows bounds an answer.
const maxFlows = 200_000

// serveExplain answers from the intent that was applied last, and from the kernel.
func (a *Agent) serveExplain(ctx context.Context, v url.Values) (any, error) {
	q, err := admin.ParseQuestion(v)
	if err != nil {
		return nil, err
	}
	last := a.loop.Last()
	if last.Snapshot == nil {
		return nil, fmt.Errorf("node %s has applied nothing yet", a.Node)
	}
	out, at := Explain(last.Intent, q)
	out.Plane = a.Config.Agent.Plane
	out.AppliedRevision, out.Position = last.Snapshot.Revision, map[string]string{}
	for kind, rv := range last.Snapshot.Position {
		out.Position[string(kind)] = rv
	}
	w, ok := a.Plane.(Witness)
	if !ok {
		return out, nil
	}
	walk, err := w.Explain(ctx, last.Intent, at)
	if err != nil {
		return nil, fmt.Errorf("explain %s on node %s: %w", q.Packet, a.Node, err)
	}
	out.Rules, out.NoRules = &walk, ""
	return out, nil
}

// Explain says what the rule lists of an intent say about a packet, and where in the
// node it passes.
func Explain(n intent.Node, q admin.Question) (admin.Explanation, apply.Passage) {
	out := admin.Explanation{Node: n.Name, NoRules: "this data plane has no rules to show"}
	at := apply.Passage{Packet: q.Packet, FromNode: q.FromNode, VNI: q.VNI, Receiver: portOf(n, q.Packet.Dst)}
	if !q.FromNode {
		at.Sender = portOf(n, q.Packet.Src)
	}
	if at.Sender != nil {
		out.Egress = judge(n, *at.Sender, intent.Egress, q.Packet)
		out.VNI = at.Sender.VNI
	}
	if at.Receiver != nil {
		out.Ingress = judge(n, *at.Receiver, intent.Ingress, q.Packet)
	}
	switch {
	case at.Sender != nil && at.Receiver != nil && at.Sender.ID == at.Receiver.ID:
		spare(out.Egress, "it does not leave the pod")
		spare(out.Ingress, "it did not leave the pod")
	case q.FromNode && at.Receiver != nil:
		spare(out.Ingress, "what the own node sends to a pod is allowed by origin")
	}
	if q.FromNode {
		out.VNI = vniTowards(n, q.Packet.Dst)
	}
	return out, at
}

// vniTowards is the VNI of the VPC that an address is in: what the node itself sends
// bears it.
func vniTowards(n intent.Node, a netip.Addr) packet.VNI {
	for _, s := range n.Subnets {
		if !slices.ContainsFunc(s.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			continue
		}
		for _, v := range n.VPCs {
			if v.Name == s.VPC {
				return v.VNI
			}
		}
	}
	return 0
}

// spare says that no list is asked.
func spare(j *admin.Judgement, why string) { j.Allowed, j.Reason, j.Rule = true, why, nil }

// portOf returns the port that has an address.
func portOf(n intent.Node, a netip.Addr) *intent.Port {
	i := slices.IndexFunc(n.Ports, func(p intent.Port) bool { return slices.Contains(p.Addresses, a) })
	if i < 0 {
		return nil
	}
	return &n.Ports[i]
}

func judge(n intent.Node, port intent.Port, d intent.Direction, p packet.Packet) *admin.Judgement {
	j := &admin.Judgement{Port: port.ID, Pod: port.Pod, List: port.Ingress}
	if d == intent.Egress {
		j.List = port.Egress
	}
	var rule *intent.Rule
	j.Allowed, rule = n.Judge(port, d, p)
	switch {
	case j.List == "":
		j.Reason = "no policy selects the pod in this direction"
	case rule == nil && j.Allowed:
		j.Reason = "no rule of the list matches"
	case rule == nil:
		j.Reason = "the list is not in the node's intent: nothing is allowed"
	default:
		j.Rule = ruleOf(n, j.List, rule)
	}
	return j
}

func ruleOf(n intent.Node, list string, r *intent.Rule) *admin.Rule {
	policy := r.Origin.Name
	if r.Origin.Namespace != "" {
		policy = r.Origin.Namespace + "/" + policy
	}
	out := &admin.Rule{
		Index: -1, Tier: r.Tier.String(), Action: r.Action.String(), Kind: r.Origin.Kind,
		Policy: policy, PolicyRule: r.Origin.Index, Name: r.Origin.RuleName,
	}
	if i, found := slices.BinarySearchFunc(n.RuleLists, intent.RuleList{ID: list}, intent.RuleList.Compare); found {
		rules := n.RuleLists[i].Rules
		for k := range rules {
			if &rules[k] == r {
				out.Index = k
			}
		}
	}
	return out
}

// serveFlows lists the conversations of this node's pods.
func (a *Agent) serveFlows(ctx context.Context, _ url.Values) (any, error) {
	w, ok := a.Plane.(Witness)
	if !ok {
		return nil, fmt.Errorf("node %s: this data plane keeps no list of flows", a.Node)
	}
	out := admin.Flows{Node: a.Node, Flows: []apply.Flow{}}
	err := w.Flows(ctx, a.loop.Last().Intent, func(f apply.Flow) bool {
		out.Truncated = len(out.Flows) == maxFlows
		if !out.Truncated {
			out.Flows = append(out.Flows, f)
		}
		return !out.Truncated
	})
	if err != nil {
		return nil, fmt.Errorf("list the flows of node %s: %w", a.Node, err)
	}
	return out, nil
}
