package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// sender is a place with an address.
type sender struct {
	place oracle.Place
	addr  netip.Addr
	port  string // of a pod
}

// decided is what every node of a world decides.
type decided struct {
	senders []sender
	states  map[string]*State
}

func decideAll(snap *world.Snapshot) decided {
	d := decided{states: map[string]*State{}}
	for n := range snap.NodeNetworks.Values() {
		local := worldtest.Local(snap, n.Name)
		s := new(stages)
		in := s.input(n.Name, local)
		d.states[n.Name] = Decide(nil, in)
		for _, p := range n.Addresses {
			d.senders = append(d.senders, sender{place: oracle.Place{Kind: oracle.Node, Node: n.Name}, addr: p.Addr()})
		}
		for t := range local.TunnelAddresses.Values() {
			if _, inUse := s.subnets.Get(t.Subnet); !inUse { // Its addresses may be another's too.
				continue
			}
			d.senders = append(d.senders, sender{place: oracle.Place{Kind: oracle.Node, Node: n.Name}, addr: t.Addr})
		}
		for a := range local.Attachments.Values() {
			if _, inUse := s.subnets.Get(a.Subnet); !inUse {
				continue
			}
			key := world.Key{Namespace: a.Pod.Namespace, Name: a.Pod.Name}
			if a.Pod.Name == "" {
				key = world.Key{Name: "container/" + strings.TrimPrefix(a.ContainerID, ".")}
			}
			for _, addr := range a.Addresses {
				d.senders = append(d.senders, sender{place: oracle.Place{Kind: oracle.Pod, Node: n.Name, Pod: key}, addr: addr, port: a.ID})
			}
		}
		for _, text := range []string{"203.0.113.7", "2001:db8::7", "172.30.1.99"} {
			d.senders = append(d.senders, sender{place: oracle.Place{Kind: oracle.Outside, Node: n.Name}, addr: netip.MustParseAddr(text)})
		}
	}
	return d
}

// judge asks the list of a port of a node.
func (d decided) judge(node, port string, dir intent.Direction, p packet.Packet) (bool, *intent.Rule) {
	s := d.states[node]
	n := intent.Node{AddressSets: s.AddressSets, RuleLists: s.RuleLists}
	return n.Judge(intent.Port{Ingress: s.Ports[port].Ingress, Egress: s.Ports[port].Egress}, dir, p)
}

// verdict of the oracle in one direction: asked reports whether the packet came so far.
func verdict(v oracle.Verdict, stage string) (asked, pass bool, match *oracle.PolicyMatch, why string) {
	for _, s := range v.Stages {
		if s.Name == stage {
			asked, pass, match, why = true, s.Pass, s.Match, s.Why
		}
	}
	return asked, pass, match, why
}

func drawPacket(t *rapid.T, from, to sender) packet.Packet {
	p := packet.Packet{Src: from.addr, Dst: to.addr, SrcPort: 40000, SYN: true}
	p.Protocol = rapid.SampledFrom([]packet.Protocol{packet.TCP, packet.TCP, packet.UDP, packet.SCTP, packet.ICMP}).Draw(t, "protocol")
	p.DstPort = rapid.SampledFrom([]uint16{80, 53, 79, 81, 1, 65535, 8080}).Draw(t, "port")
	if p.Protocol == packet.ICMP {
		p.SrcPort, p.DstPort, p.SYN = 0, 0, false
		if p.Src.Is6() {
			p.Protocol = packet.ICMPv6
		}
	}
	return p
}

// unsettle takes away what a node may not know yet: pods, namespaces, nodes' labels
// and blocks' allocations, and changes a pod's UID, as if it had been made anew.
func unsettle(t *rapid.T, snap *world.Snapshot) *world.Snapshot {
	store := world.NewStore(snap)
	once := func(label string) bool { return rapid.IntRange(1, 8).Draw(t, label) == 1 }
	for p := range snap.Pods.Values() {
		key := world.Key{Namespace: p.Namespace, Name: p.Name}
		switch {
		case once("pod is not known"):
			store.Apply(world.Change{Kind: world.KindPod, Key: key})
		case once("pod is another"):
			again := *p
			again.UID, again.Addresses = "again", nil
			store.Apply(world.Change{Kind: world.KindPod, Key: key, Object: &again})
		}
	}
	for ns := range snap.Namespaces.Values() {
		if once("namespace is not known") {
			store.Apply(world.Change{Kind: world.KindNamespace, Key: world.Key{Name: ns.Name}})
		}
	}
	now, _ := store.Snapshot()
	return now
}

// TestAgreesWithOracle compares every verdict on drawn packets in drawn worlds with
// that of an independent reading of the same objects, rule by rule.
func TestAgreesWithOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snap := worldtest.DrawPolicies(t, worldtest.Draw(t))
		if rapid.Bool().Draw(t, "unsettled") {
			snap = unsettle(t, snap)
		}
		model := oracle.Read(snap)
		d := decideAll(snap)
		for range 30 {
			from := rapid.SampledFrom(d.senders).Draw(t, "from")
			to := rapid.SampledFrom(d.senders).Draw(t, "to")
			if from.addr.BitLen() != to.addr.BitLen() {
				continue
			}
			p := drawPacket(t, from, to)
			v := model.Judge(nil, oracle.Probe{From: from.place, Packet: p})
			if asked, pass, match, why := verdict(v, "egress"); asked && from.place.Kind == oracle.Pod && from.place != to.place {
				allowed, rule := d.judge(from.place.Node, from.port, intent.Egress, p)
				compare(t, fmt.Sprintf("%s, egress of %s: %s", p, from.place, why), pass, match, allowed, rule)
			}
			asked, pass, match, why := verdict(v, "ingress")
			own := from.place.Kind == oracle.Node && from.place.Node == to.place.Node
			if !asked || to.place.Kind != oracle.Pod || own || from.place == to.place {
				continue
			}
			if from.place.Kind != oracle.Pod && from.place.Node != to.place.Node {
				// The tunnel put another address in.
				if !v.Allowed || len(v.Outcomes) != 1 {
					continue
				}
				p.Src = v.Outcomes[0].Packet.Src
			}
			allowed, rule := d.judge(to.place.Node, to.port, intent.Ingress, p)
			compare(t, fmt.Sprintf("%s, ingress of %s: %s", p, to.place, why), pass, match, allowed, rule)
		}
	})
}

func compare(t *rapid.T, what string, pass bool, match *oracle.PolicyMatch, allowed bool, rule *intent.Rule) {
	t.Helper()
	got := "no rule"
	if rule != nil {
		got = fmt.Sprintf("%s %s %s/%s %d %s", rule.Tier, rule.Origin.Kind, rule.Origin.Namespace, rule.Origin.Name, rule.Origin.Index, rule.Action)
	}
	want := "no rule"
	if match != nil && match.Action != "Pass" {
		want = fmt.Sprintf("%s %s %s/%s %d %s", match.Tier, match.Kind, match.Policy.Namespace, match.Policy.Name, match.Rule, match.Action)
	}
	if allowed != pass || got != want {
		t.Fatalf("%s\nthe oracle says %t by %s, decide %t by %s", what, pass, want, allowed, got)
	}
}

// TestReportsWhatTheOracleReports compares what both find wrong with policies: the
// object, the field, and the reason.
func TestReportsWhatTheOracleReports(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snap := worldtest.DrawPolicies(t, worldtest.Draw(t))
		faults := func(list []world.Problem) []string {
			set := map[string]bool{}
			for _, p := range list {
				if p.Message == "" || len(p.Message) > 500 {
					t.Fatalf("message %q", p.Message)
				}
				// Which of two is to blame is a matter of taste where a tier is unknown.
				if p.Reason != "UnresolvedPort" && p.Reason != "EqualPriority" {
					set[fmt.Sprintf("%s %s %s %s", p.Kind, p.Key, p.Field, p.Reason)] = true
				}
			}
			return slices.Sorted(maps.Keys(set))
		}
		got := Decide(nil, new(stages).input("n1", snap))
		if diff := cmp.Diff(faults(oracle.Read(snap).PolicyProblems()), faults(got.Problems), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-oracle +decide):\n%s", diff)
		}
	})
}
