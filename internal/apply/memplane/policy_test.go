package memplane

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// podA and podB are of one tenant on two nodes, podNear is beside podA and of another.
const (
	podA    = "10.128.0.2"
	podNear = "10.128.0.3"
	podB    = "10.128.0.18"
)

// closed is a list that denies everything but what the accepted match says.
func closed(d intent.Direction, accepted ...intent.Match) intent.RuleList {
	origin := intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "web", Name: "np", Index: -1}
	var rules []intent.Rule
	for i, m := range accepted {
		o := origin
		o.Index = i
		rules = append(rules, intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: m, Origin: o})
	}
	return intent.NewRuleList("default", d, append(rules, intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Deny, Origin: origin}))
}

// restrict applies the node's intent with a list for one of its ports.
func restrict(t *testing.T, f *Fabric, name, port string, l intent.RuleList) {
	t.Helper()
	n := node(name)
	n.RuleLists = []intent.RuleList{l}
	i := slices.IndexFunc(n.Ports, func(p intent.Port) bool { return p.ID == port })
	if l.Direction == intent.Ingress {
		n.Ports[i].Ingress = l.ID
	} else {
		n.Ports[i].Egress = l.ID
	}
	applyTo(t, f, n)
}

func applyTo(t *testing.T, f *Fabric, n intent.Node) {
	t.Helper()
	if faults := intent.Validate(n); len(faults) > 0 {
		t.Fatalf("the test's intent is invalid: %v", faults)
	}
	if _, err := f.Node(n.Name).Apply(t.Context(), n, apply.Options{}); err != nil {
		t.Fatal(err)
	}
}

func tcp(src, dst string, syn bool) packet.Packet {
	return packet.Packet{Src: addr(src), Dst: addr(dst), SrcPort: 1000, DstPort: 80, Protocol: packet.TCP, SYN: syn}
}

// passes wants a packet to arrive, or to be dropped for a reason.
func passes(t *testing.T, f *Fabric, from Place, p packet.Packet, reason string) {
	t.Helper()
	d := f.Send(from, p)
	if d.Dropped != (reason != "") || !strings.Contains(d.Why, reason) {
		t.Errorf("%s sends %s: dropped %v (%s), want %q", from, p, d.Dropped, d.Why, reason)
	}
}

func TestNewFlows(t *testing.T) {
	atA, atNear, atB := Place{Node: "n1", Port: podA}, Place{Node: "n1", Port: podNear}, Place{Node: "n2", Port: podB}
	n1, n2 := Place{Node: "n1"}, Place{Node: "n2"}
	for _, tt := range []struct {
		name string
		list intent.RuleList // of podA
		from Place
		send packet.Packet
		want string // part of the reason; empty if it passes
	}{
		{"egress to a peer", closed(intent.Egress), atA, udp(podA, podB), "egress of port 10.128.0.2: NetworkPolicy: Deny"},
		{"egress to the outside", closed(intent.Egress), atA, udp(podA, "203.0.113.1"), "egress of"},
		{"egress to the own node", closed(intent.Egress), atA, udp(podA, "172.30.0.11"), "egress of"},
		{"egress to the own node's tunnel address", closed(intent.Egress), atA, udp(podA, "10.128.0.1"), "egress of"},
		{"egress to itself", closed(intent.Egress), atA, udp(podA, podA), ""},
		{"egress to an allowed protocol", closed(intent.Egress, intent.Match{Protocol: packet.UDP}), atA, udp(podA, podB), ""},
		{"egress of another protocol", closed(intent.Egress, intent.Match{Protocol: packet.UDP}), atA, tcp(podA, podB, true), "egress of"},
		{"egress of another port", closed(intent.Egress), atNear, udp(podNear, "203.0.113.1"), ""},
		{"ingress to one that is closed for egress", closed(intent.Egress), atB, udp(podB, podA), ""},
		{"ingress from a peer", closed(intent.Ingress), atB, udp(podB, podA), "ingress of port 10.128.0.2: NetworkPolicy: Deny"},
		{"ingress from the own node", closed(intent.Ingress), n1, udp("172.30.0.11", podA), ""},
		{"ingress from the own node's tunnel address", closed(intent.Ingress), n1, udp("10.128.0.1", podA), ""},
		{"ingress from another node", closed(intent.Ingress), n2, udp("10.128.0.17", podA), "ingress of"},
		{"ingress from outside", closed(intent.Ingress), Place{Outside: true, Node: "n1"}, udp("203.0.113.1", podA), "ingress of"},
		{"ingress from itself", closed(intent.Ingress), atA, udp(podA, podA), ""},
		{"ingress from a set", closed(intent.Ingress, intent.Match{Sets: []string{intent.SetSubnets}}), atB, udp(podB, podA), ""},
		{"tenants first", closed(intent.Ingress, intent.Match{}), atNear, udp(podNear, podA), "of tenant 11"},
		{"in the middle of a TCP flow", closed(intent.Ingress, intent.Match{}), atB, tcp(podB, podA, false), "in its middle"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := applied(t)
			restrict(t, f, "n1", podA, tt.list)
			passes(t, f, tt.from, tt.send, tt.want)
		})
	}
}

// TestFlowsFollowPolicy changes the lists of one end while flows go on: those that
// could not begin any more are cut in both directions, and no others, and a change
// back lets them go on.
func TestFlowsFollowPolicy(t *testing.T) {
	atA, atB := Place{Node: "n1", Port: podA}, Place{Node: "n2", Port: podB}
	for _, tt := range []struct {
		name       string
		node, port string
		list       intent.RuleList
		cut        bool // the flow from podA to podB
	}{
		{"egress of the client", "n1", podA, closed(intent.Egress), true},
		{"egress of the client, another protocol", "n1", podA, closed(intent.Egress, intent.Match{Protocol: packet.TCP}), false},
		{"ingress of the client", "n1", podA, closed(intent.Ingress), false},
		{"ingress of the server", "n2", podB, closed(intent.Ingress), true},
		{"ingress of the server, another port", "n2", podB, closed(intent.Ingress, intent.Match{Protocol: packet.TCP, Ports: []intent.PortRange{{First: 80, Last: 80}}}), false},
		{"egress of the server", "n2", podB, closed(intent.Egress), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := applied(t)
			there, answer := tcp(podA, podB, false), tcp(podA, podB, false).Reverse()
			passes(t, f, atA, tcp(podA, podB, true), "")
			passes(t, f, atB, answer, "")
			restrict(t, f, tt.node, tt.port, tt.list)
			reason := ""
			if tt.cut {
				reason = "which is cut"
			}
			passes(t, f, atA, there, reason)
			passes(t, f, atB, answer, reason)
			applyTo(t, f, node(tt.node))
			passes(t, f, atA, there, "")
			passes(t, f, atB, answer, "")
		})
	}
}

// A cut flow is silent to the node itself too, and what the node began goes on.
func TestFlowsWithTheOwnNodeFollowPolicy(t *testing.T) {
	f := applied(t)
	atA, n1 := Place{Node: "n1", Port: podA}, Place{Node: "n1"}
	asks, checks := udp(podA, "172.30.0.11"), udp("10.128.0.1", podA)
	passes(t, f, atA, asks, "")
	passes(t, f, n1, asks.Reverse(), "")
	passes(t, f, n1, checks, "")
	restrict(t, f, "n1", podA, closed(intent.Egress))
	passes(t, f, atA, asks, "which is cut")
	passes(t, f, n1, asks.Reverse(), "which is cut")
	passes(t, f, n1, checks, "")
	passes(t, f, atA, checks.Reverse(), "")
}

// A flow that was refused at its end is known nowhere: what looks like an answer to it
// is judged like all else.
func TestRefusedFlowsAreNotKnown(t *testing.T) {
	f := applied(t)
	restrict(t, f, "n2", podB, closed(intent.Ingress))
	restrict(t, f, "n1", podA, closed(intent.Ingress))
	passes(t, f, Place{Node: "n1", Port: podA}, udp(podA, podB), "ingress of port 10.128.0.18")
	passes(t, f, Place{Node: "n2", Port: podB}, udp(podA, podB).Reverse(), "ingress of port 10.128.0.2")
}

// The next owner of an address inherits no flow.
func TestFlowsGoWithTheirPort(t *testing.T) {
	f := applied(t)
	atA := Place{Node: "n1", Port: podA}
	passes(t, f, atA, tcp(podA, podB, true), "")
	without := node("n2")
	heir := without.Ports[0]
	heir.ID, heir.HostInterface = "heir", "flpheir"
	without.Ports = without.Ports[1:]
	applyTo(t, f, without)
	with := without
	with.Ports = append(slices.Clone(without.Ports), heir)
	applyTo(t, f, with)
	passes(t, f, atA, tcp(podA, podB, false), "in its middle")
	passes(t, f, atA, tcp(podA, podB, true), "")
}

// What an outsider takes away never allows more.
func TestDamagedPolicy(t *testing.T) {
	f := applied(t)
	l := closed(intent.Ingress, intent.Match{Sets: []string{intent.SetSubnets}})
	restrict(t, f, "n1", podA, l)
	atB := Place{Node: "n2", Port: podB}
	passes(t, f, atB, udp(podB, podA), "")
	p := f.Node("n1")
	if !p.Damage(intent.AddressSet{VPC: "default", Name: intent.SetSubnets}.Ref()) {
		t.Error("the set was not there")
	}
	passes(t, f, atB, udp(podB, podA), "Deny")
	if !p.Damage(l.Ref()) {
		t.Error("the list was not there")
	}
	passes(t, f, atB, udp(podB, podA), "is not there")
	restrict(t, f, "n1", podA, l)
	passes(t, f, atB, udp(podB, podA), "")
}
