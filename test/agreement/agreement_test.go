package agreement_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
	"github.com/fairlead-sdn/fairlead/test/agreement"
)

// TestAgreesWithOracle is the proof of what is rendered: in random worlds with
// VPCs, tenants and policies, random packets meet what the oracle permits.
func TestAgreesWithOracle(t *testing.T) { prove(t, linux, 20_000, 40) }

// TestAgreesWithOracleLong sends 10⁶ packets, if FAIRLEAD_LONG is set.
func TestAgreesWithOracleLong(t *testing.T) {
	if os.Getenv("FAIRLEAD_LONG") == "" {
		t.Skip("set FAIRLEAD_LONG=1 for 10⁶ packets")
	}
	prove(t, linux, 1_000_000, 150)
}

// statistics say what was proved.
type statistics struct {
	packets, worlds int
	// tenancies counts the times that other tenants were kept apart under running flows.
	tenancies int
	// stages counts packets by the stage of the oracle that ended their way, kinds by
	// what sort of packet they were, and whether they arrived.
	stages, kinds, deviations map[string]int
}

func prove(t *testing.T, p plane, packets, most int) {
	s := &statistics{stages: map[string]int{}, kinds: map[string]int{}, deviations: map[string]int{}}
	for s.packets < packets && !t.Failed() {
		rapid.Check(t, func(t *rapid.T) { agree(t, p, s, most) })
	}
	if t.Failed() {
		return
	}
	t.Logf("%d packets in %d worlds\nby the stage that ended their way: %v\nby kind: %v\ndeviations: %v", s.packets, s.worlds, s.stages, s.kinds, s.deviations)
	for _, stage := range []string{"source", "destination", "vpc", "tenant", "egress", "flow", "nat", "path", "ingress", "delivery", "cut", "cut answer"} {
		if s.stages[stage] == 0 {
			t.Errorf("no packet ended at the stage %s: the drawn worlds prove nothing about it", stage)
		}
	}
	if s.tenancies == 0 {
		t.Error("tenants never changed")
	}
	for _, kind := range []string{"new", "again", "answer", "mid-stream", "spoofed", "ICMP error"} {
		if s.kinds[kind+" dropped"] == 0 || s.kinds[kind+" delivered"] == 0 && kind != "spoofed" {
			t.Errorf("of the kind %q packets were not both dropped and delivered", kind)
		}
	}
}

// trial is one drawn world, whose policies change, and the packets in it.
type trial struct {
	*rapid.T
	statistics *statistics
	people     *people
	model      *oracle.Model
	plane      plane
	cluster    *agreement.Cluster
	flows      oracle.Flows
	sent       []oracle.Flow
	// history is what was sent before, to be sent again with a trace.
	history []func(*agreement.Cluster) (agreement.Result, error)
	first   *world.Snapshot
	now     *world.Snapshot
	// ended are the packets of flows that RST or FIN has ended, in either direction: what
	// comes after them is nobody's promise.
	ended map[packet.Packet]bool
}

func agree(t *rapid.T, p plane, s *statistics, most int) {
	plain := worldtest.Draw(t)
	c := &trial{T: t, plane: p, statistics: s, people: meet(t, plain), ended: map[packet.Packet]bool{}}
	s.worlds++
	for i := range rapid.IntRange(1, 3).Draw(t, "times of policy") {
		if i > 0 && rapid.Bool().Draw(t, "tenants change") {
			if other := worldtest.DrawTenants(t, plain); samePaths(plain, other) {
				plain = other
				s.tenancies++
			}
		}
		c.become(worldtest.DrawPolicies(t, plain), i == 0)
		for _, seed := range rapid.SliceOfN(rapid.Uint64(), most/4, most).Draw(t, "packets") {
			shot := c.people.packet(seed, c.sent, len(c.history) == 0)
			if !c.people.outOfScope(c.cluster, shot) {
				c.fire(shot)
			}
		}
	}
}

func (c *trial) become(snap *world.Snapshot, first bool) {
	c.now, c.model = snap, oracle.Read(snap)
	var err error
	if first {
		c.first = snap
		c.cluster, err = c.plane.open(snap)
	} else {
		err = c.cluster.Become(snap)
		c.history = append(c.history, func(c *agreement.Cluster) (agreement.Result, error) { return agreement.Result{}, c.Become(snap) })
	}
	if err != nil {
		c.Fatalf("%v\n%s", err, text(snap))
	}
}

// fire sends one packet and holds what was observed against the oracle.
func (c *trial) fire(s shot) {
	verdict := c.model.Judge(&c.flows, s.Probe)
	if unpromised(s, verdict) || c.ends(s) {
		return
	}
	send := func(cluster *agreement.Cluster) (agreement.Result, error) { return cluster.Send(s.Probe, s.flags) }
	observed, err := send(c.cluster)
	c.history = append(c.history, send)
	outcome := observed.Outcome
	if s.Embedded != nil && !outcome.Dropped {
		outcome.Packet.Src = s.Packet.Src // That of an error is masqueraded as its flow is.
	}
	if err != nil || !verdict.Permits(outcome) && !s.indifferent(verdict, outcome) {
		why := ""
		if c.plane.deviation != nil && err == nil {
			why = c.plane.deviation(s, verdict, observed)
		}
		if why == "" {
			c.Fatal(c.explain(s, verdict, err))
		}
		c.statistics.deviations[why]++
	}
	c.count(s, verdict, observed)
	if s.Embedded != nil {
		return
	}
	c.flows.Begin(s.Probe, observed.Outcome)
	if !observed.Dropped {
		c.sent = append(c.sent, oracle.Flow{Probe: s.Probe, At: observed.At, Packet: observed.Packet})
	}
}

// unpromised reports what the oracle refuses and a plane need not: a node without a
// tunnel address in a Subnet takes that of another one of the VPC (intent.Node.Source), a
// node that sends with its address in another VPC reaches what nodes reach, an
// error about a flow that cannot be answered comes as far as the flow, and an answer that
// routers bring by another node is a flow of its own there, with the same ends.
func unpromised(s shot, v oracle.Verdict) bool {
	last := v.Stages[len(v.Stages)-1]
	oneWay := func(stage oracle.Stage) bool { return strings.Contains(stage.Why, "would have to be tunnelled") }
	return s.detour || strings.Contains(last.Why, "has no tunnel address in Subnet") || s.From.Kind == oracle.Node && last.Name == "vpc" ||
		s.Embedded != nil && slices.ContainsFunc(v.Stages, oneWay)
}

// indifferent reports what the model leaves to others. The middle of an unknown TCP flow from
// outside, for another node, is refused by the node that would forward it, whoever is
// its end. An ICMP error to a node itself is judged by the node's own stack, by what it
// quotes; one from outside about what the node has sent for somebody outside is that one's.
func (s shot) indifferent(v oracle.Verdict, observed oracle.Outcome) bool {
	if s.From.Kind == oracle.Pod {
		return false
	}
	forwarded := v.Outcomes[0].At.Kind == oracle.Node && v.Outcomes[0].At.Node != s.From.Node
	middle := s.From.Kind == oracle.Outside && s.Packet.Protocol == packet.TCP && !s.Packet.SYN
	outside := s.From.Kind == oracle.Outside && observed.At.Kind == oracle.Outside
	return observed.Dropped && forwarded && middle || s.Embedded != nil && (observed.At.Kind == oracle.Node || outside)
}

// ends reports whether a packet belongs to a flow that was ended before, and notes that a
// flow ends by it. It matters where the plane's connection tracking forgets what has
// ended, which the oracle does not.
func (c *trial) ends(s shot) bool {
	if !c.plane.forgets || s.Packet.Protocol != packet.TCP {
		return false
	}
	k := s.Packet
	k.SYN = false
	if c.ended[k] {
		return true
	}
	if s.flags&(nftables.TCPRst|nftables.TCPFin) == 0 || s.Packet.SYN {
		return false
	}
	for _, f := range c.sent {
		there, arrived := f.Probe.Packet, f.Packet
		there.SYN, arrived.SYN = false, false
		if k == there || k == arrived.Reverse() {
			c.ended[there], c.ended[arrived.Reverse()] = true, true
		}
	}
	return false
}

func (c *trial) count(s shot, v oracle.Verdict, observed agreement.Result) {
	c.statistics.packets++
	stage := v.Stages[len(v.Stages)-1].Name
	switch {
	case observed.Cut && stage == "flow":
		stage = "cut answer"
	case observed.Cut:
		stage = "cut"
	}
	c.statistics.stages[stage]++
	word := " delivered"
	if observed.Dropped {
		word = " dropped"
	}
	c.statistics.kinds[s.kind+word]++
}

// explain plays a counterexample again, with its steps, and prints it with its world
// for people.
func (c *trial) explain(s shot, v oracle.Verdict, err error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s): %s sends %s, SYN %v, flags %#x", err, s.kind, s.From, s.Packet, s.Packet.SYN, s.flags)
	if s.Embedded != nil {
		fmt.Fprintf(&b, " about %s", s.Embedded)
	}
	again, fault := c.plane.open(c.first)
	var got agreement.Result
	for i, send := range c.history {
		again.Trace = i == len(c.history)-1
		if fault == nil {
			got, fault = send(again)
		}
	}
	fmt.Fprintf(&b, "\nobserved: %s %s %v\npermitted: %v\n", got.Outcome, got.Why, fault, v.Outcomes)
	for _, stage := range v.Stages {
		fmt.Fprintf(&b, "  %s\n", stage)
	}
	fmt.Fprintf(&b, "%s\nflows before:\n", strings.Join(got.Steps, "\n"))
	for _, f := range c.sent {
		fmt.Fprintf(&b, "  %s sent %s; it came to %s as %s\n", f.Probe.From, f.Probe.Packet, f.At, f.Packet)
	}
	b.WriteString(text(c.now))
	return b.String()
}

// text is a world as YAML.
func text(s *world.Snapshot) string {
	objects := map[string][]any{}
	list(objects, "nodes", s.Nodes)
	list(objects, "namespaces", s.Namespaces)
	list(objects, "pods", s.Pods)
	list(objects, "vpcs", s.VPCs)
	list(objects, "subnets", s.Subnets)
	list(objects, "blocks", s.Blocks)
	list(objects, "nodeNetworks", s.NodeNetworks)
	list(objects, "netNamespaces", s.NetNamespaces)
	list(objects, "networkPolicies", s.NetworkPolicies)
	list(objects, "clusterNetworkPolicies", s.ClusterNetworkPolicies)
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(objects)) {
		raw, err := yaml.Marshal(map[string]any{kind: objects[kind]})
		if err != nil {
			return err.Error()
		}
		b.Write(raw)
	}
	return b.String()
}

func list[T comparable](to map[string][]any, kind string, table world.Table[T]) {
	for o := range table.Values() {
		to[kind] = append(to[kind], o)
	}
}
