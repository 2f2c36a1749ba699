package agent

import (
	"context"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/linuxplane"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

var _ Witness = (*linuxplane.Plane)(nil)

func policed() intent.Node {
	origin := intent.RuleOrigin{Kind: "ClusterNetworkPolicy", Name: "cnp", Index: 2, RuleName: "web"}
	isolates := intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "shop", Name: "p", Index: -1}
	list := intent.NewRuleList("default", intent.Ingress, []intent.Rule{
		{Tier: intent.TierAdmin, Action: intent.Accept, Origin: origin, Match: intent.Match{Protocol: packet.TCP, Ports: []intent.PortRange{{First: 80, Last: 80}}}},
		{Tier: intent.TierNetworkPolicy, Action: intent.Deny, Origin: isolates, Match: intent.Match{Protocol: packet.UDP}},
	})
	port := func(id, addr, ingress string) intent.Port {
		return intent.Port{ID: id, VPC: "default", VNI: 4097, Pod: "shop/" + id, Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Ingress: ingress}
	}
	return intent.Node{
		Name: "n1", VPCs: []intent.VPC{{Name: "default", VNI: 4096, Tenants: []packet.VNI{4097}}},
		Subnets:   []intent.Subnet{{VPC: "default", Name: "s", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}},
		Ports:     []intent.Port{port("a", "10.0.0.2", ""), port("b", "10.0.0.3", list.ID), port("c", "10.0.0.4", "ingress-gone")},
		RuleLists: []intent.RuleList{list},
	}
}

func TestExplain(t *testing.T) {
	question := func(src, dst string, proto packet.Protocol, port uint16) admin.Question {
		return admin.Question{Packet: packet.Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Protocol: proto, DstPort: port}}
	}
	node := question("10.0.0.1", "10.0.0.3", packet.UDP, 80)
	node.FromNode = true
	for _, tt := range []struct {
		name    string
		q       admin.Question
		egress  bool
		ingress string // "" if no port receives it
		allowed bool
		vni     packet.VNI
	}{
		{"a rule allows", question("10.0.0.2", "10.0.0.3", packet.TCP, 80), true, "cnp", true, 4097},
		{"a rule denies", question("10.0.0.2", "10.0.0.3", packet.UDP, 80), true, "shop/p", false, 4097},
		{"no rule matches", question("10.0.0.9", "10.0.0.3", packet.TCP, 81), false, "no rule of the list matches", true, 0},
		{"no list", question("10.0.0.3", "10.0.0.2", packet.TCP, 81), true, "no policy selects", true, 4097},
		{"a list that is missing", question("10.0.0.3", "10.0.0.4", packet.TCP, 81), true, "not in the node's intent", false, 4097},
		{"the pod itself", question("10.0.0.3", "10.0.0.3", packet.UDP, 80), true, "did not leave", true, 4097},
		{"the own node", node, false, "own node", true, 4096},
		{"to elsewhere", question("10.0.0.3", "10.0.0.77", packet.UDP, 80), true, "", false, 4097},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x, at := Explain(policed(), tt.q)
			if (x.Egress != nil) != tt.egress || (x.Ingress != nil) != (tt.ingress != "") || x.VNI != tt.vni || at.FromNode != tt.q.FromNode {
				t.Fatalf("%+v", x)
			}
			if x.Ingress == nil {
				return
			}
			said := x.Ingress.Reason
			if x.Ingress.Rule != nil {
				said = x.Ingress.Rule.Policy
			}
			if x.Ingress.Allowed != tt.allowed || !strings.Contains(said, tt.ingress) {
				t.Errorf("allowed %t because of %q, want %t, %q", x.Ingress.Allowed, said, tt.allowed, tt.ingress)
			}
		})
	}
	x, _ := Explain(policed(), question("10.0.0.2", "10.0.0.3", packet.TCP, 80))
	if want := (admin.Rule{Index: 0, Tier: "Admin", Action: "Accept", Kind: "ClusterNetworkPolicy", Policy: "cnp", PolicyRule: 2, Name: "web"}); *x.Ingress.Rule != want {
		t.Errorf("rule %+v, want %+v", *x.Ingress.Rule, want)
	}
}

// seeing is a plane that tells what it does.
type seeing struct {
	*plane
	flows int
}

func (s *seeing) Explain(_ context.Context, n intent.Node, at apply.Passage) (apply.Walk, error) {
	return apply.Walk{Verdict: "accept", Steps: []apply.Step{{Chain: n.Name, Comment: at.Packet.String()}}}, nil
}

func (s *seeing) Flows(_ context.Context, _ intent.Node, yield func(apply.Flow) bool) error {
	for i := range s.flows {
		if !yield(apply.Flow{SrcPort: uint16(i)}) {
			return nil
		}
	}
	return nil
}

func TestServeExplainAndFlows(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	n.add("c1", "web")
	q := admin.Question{Packet: packet.Packet{Src: netip.MustParseAddr("10.128.0.1"), Dst: netip.MustParseAddr("10.128.0.2"), Protocol: packet.TCP, SrcPort: 1, DstPort: 2}}
	var x admin.Explanation
	if err := n.client.Get(t.Context(), q.Path(), &x); err != nil {
		t.Fatal(err)
	}
	if x.Node != "n1" || x.AppliedRevision == 0 || len(x.Position) == 0 || x.Rules != nil || x.NoRules == "" {
		t.Errorf("of a plane without rules: %+v", x)
	}
	if err := n.client.Get(t.Context(), "/v1/explain?src=x", &x); err == nil || !strings.Contains(err.Error(), "is no address") {
		t.Errorf("a bad question: %v", err)
	}
	if err := n.client.Get(t.Context(), "/v1/flows", &x); err == nil || !strings.Contains(err.Error(), "no list of flows") {
		t.Errorf("flows of a plane without: %v", err)
	}

	see := &Agent{Config: n.agent.Config, loop: n.agent.loop}
	see.Plane = &seeing{plane: n.plane, flows: maxFlows + 1}
	answer, err := see.serveFlows(t.Context(), nil)
	if f, ok := answer.(admin.Flows); err != nil || !ok || len(f.Flows) != maxFlows || !f.Truncated {
		t.Errorf("too many flows: %v", err)
	}
	see.Plane = &seeing{plane: n.plane, flows: 2}
	answer, err = see.serveFlows(t.Context(), nil)
	if f, ok := answer.(admin.Flows); err != nil || !ok || len(f.Flows) != 2 || f.Truncated || f.Node != "n1" {
		t.Errorf("flows: %+v, %v", answer, err)
	}
	u, err := url.Parse(q.Path())
	if err != nil {
		t.Fatal(err)
	}
	answer, err = see.serveExplain(t.Context(), u.Query())
	if x, ok := answer.(admin.Explanation); err != nil || !ok || x.Rules == nil || x.Rules.Steps[0].Comment != "10.128.0.1:1 > 10.128.0.2:2/TCP" || x.NoRules != "" {
		t.Errorf("rules: %+v, %v", answer, err)
	}
}
