package linuxplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/apply/planetest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// translate makes a foreign table that leads a Service's UDP port to an endpoint.
func (c *cluster) translate(ns *netns.NS, service, to netip.AddrPort) {
	c.Helper()
	d, err := nft.Open(c.Context(), nft.Config{Table: "foreign", NetNS: ns.String(), Plain: true})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = d.Close() })
	_, err = d.Apply(c.Context(), nftables.Table{Name: "foreign", Chains: []nftables.Chain{{
		Name: "services", Base: &nftables.Base{Type: nftables.TypeNAT, Hook: nftables.HookPrerouting, Priority: -100},
		Rules: []nftables.Rule{{Statements: []nftables.Statement{
			nftables.Is(nftables.IPDaddr, nftables.Addr(service.Addr())), nftables.Is(nftables.UDPDport, nftables.Port(service.Port())),
			nftables.NAT{Kind: nftables.DNAT, Addr: to.Addr(), Port: to.Port()},
		}}},
	}}})
	if err != nil {
		c.Fatal(err)
	}
}

// reopen closes a node's plane and opens it again, as a restart of the agent does.
func (c *cluster) reopen(i int, between func()) {
	c.Helper()
	m := c.nodes[i]
	dir := filepath.Join(mountBPF(c.T), "fairlead")
	if err := m.plane.Close(); err != nil {
		c.Fatal(err)
	}
	between()
	var err error
	if m.plane, err = Open(c.Context(), Options{NS: m.ns, BPFDir: dir, FlowCache: true}); err != nil {
		c.Fatal(err)
	}
	p := m.plane
	c.Cleanup(func() { _ = p.Close() })
}

// What policy denied while no agent ran is cut when one is back.
func TestFlowsFollowPolicyOfTheTimeWithoutAnAgent(t *testing.T) {
	c := newCluster(t, false, false)
	here := c.nodes[0]
	at := eachAddr(here.intent.Ports[1], 9000)[0]
	s := c.flow("udp", here.pods[0], here.pods[1], at, at)
	other := c.flow("tcp", here.pods[0], here.pods[1], netip.AddrPortFrom(at.Addr(), 9001), netip.AddrPortFrom(at.Addr(), 9001))
	c.reopen(0, func() { s.runs() })
	if r := c.report(0, apply.Options{}); told(r, "flow") {
		t.Errorf("a restart without a change: %q", r.Changes)
	}
	here.list(1, intent.Ingress, intent.Match{Protocol: packet.UDP})
	c.reopen(0, func() { s.runs() })
	c.report(0, apply.Options{AddOnly: true})
	s.runs()
	c.report(0, apply.Options{})
	s.silent()
	other.runs()
	here.allow()
	c.reopen(0, func() {})
	c.report(0, apply.Options{})
	s.runs()
}

// Flows that began without our table go on if they are allowed.
func TestFlowsAreAdopted(t *testing.T) {
	c := newCluster(t, false, false)
	here := c.nodes[0]
	at := eachAddr(here.intent.Ports[1], 9000)[0]
	allowed, denied := c.flow("tcp", here.pods[0], here.pods[1], at, at), c.flow("udp", here.pods[0], here.pods[1], at, at)
	// The rules do not judge a flow by its answers.
	listener := c.flowOf("tcp", here.pods[0], here.pods[1], netip.AddrPortFrom(at.Addr(), 9001), netip.AddrPortFrom(at.Addr(), 9001), false)
	outward := c.flow("udp", here.pods[0], here.ns, netip.AddrPortFrom(underlay(0)[0].Addr(), 9000), netip.AddrPortFrom(underlay(0)[0].Addr(), 9000))
	c.reopen(0, func() {
		// As on a node that never had an agent.
		d, err := nft.Open(t.Context(), nft.Config{Table: claims.NFTTable, NetNS: here.ns.String()})
		if err == nil {
			err = errors.Join(d.Delete(t.Context()), d.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		c.unmark(0)
	})
	here.list(1, intent.Ingress, intent.Match{Protocol: packet.UDP})
	here.list(0, intent.Egress, intent.Match{Protocol: packet.UDP})
	r := c.report(0, apply.Options{AddOnly: true})
	if !told(r, "adopt ") {
		t.Errorf("nothing tells that flows were adopted: %q", r.Changes)
	}
	allowed.runs()
	listener.hears(0)
	c.report(0, apply.Options{})
	denied.silent()
	outward.silent()
	allowed.runs()
	listener.hears(0)
}

// unmark makes flows as they are where nobody has judged.
func (c *cluster) unmark(i int) {
	c.Helper()
	t, err := conntrack.Open(c.nodes[i].ns)
	if err != nil {
		c.Fatal(err)
	}
	defer t.Close()
	if _, err := t.Walk(c.Context(), []conntrack.Query{{}}, func(conntrack.Flow) conntrack.Decision {
		return conntrack.Decision{Mask: claims.CTJudged | claims.CTCut}
	}); err != nil {
		c.Fatal(err)
	}
}

// fakeFlows remember what they are asked for and decide about flows of the test's own.
type fakeFlows struct {
	flows  []conntrack.Flow
	walks  []conntrack.Query
	marked map[uint32]int
	err    error
}

func (f *fakeFlows) Walk(_ context.Context, q []conntrack.Query, decide func(conntrack.Flow) conntrack.Decision) (conntrack.Result, error) {
	f.walks = append(f.walks, q...)
	for _, flow := range f.flows {
		if d := decide(flow); d.Mask != 0 {
			f.marked[d.Mark]++
		}
	}
	return conntrack.Result{}, f.err
}
func (f *fakeFlows) Close() error { return nil }

// makerFilter is a Filter that tells whether it made the table anew.
type makerFilter struct {
	fakeFilter
	anew *bool
}

func (f makerFilter) Anew() bool { return *f.anew }

// newFlows is a Plane with a fake of everything but links; tables are the options that
// tables were rendered with.
func newFlows(t *testing.T, anew *bool, now func() time.Time) (p *Plane, f *fakeFlows, tables *[]bool) {
	t.Helper()
	n := newNode(t)
	fake := &fakes{out: n.out}
	f, tables = &fakeFlows{marked: map[uint32]int{}}, &[]bool{}
	p, err := New(Config{
		NS: n.ns, Filter: makerFilter{fakeFilter{fake}, anew}, Wire: fakeWire{fake}, Flows: f, Now: now,
		Table: func(_ intent.Node, o rendernft.Options) nftables.Table {
			*tables = append(*tables, o.Adopting)
			return nftables.Table{}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, f, tables
}

func TestAdoptsForThirtySeconds(t *testing.T) {
	now, anew := time.Unix(0, 0), true
	p, _, tables := newFlows(t, &anew, func() time.Time { return now })
	n := planetest.Node()
	n.NATs = nil
	run := func(after time.Duration, made bool, o apply.Options, again time.Duration) {
		t.Helper()
		now, anew = now.Add(after), made
		r, err := p.Apply(t.Context(), n, o)
		if err != nil || len(r.Failed) > 0 {
			t.Fatal(err, r.Failed)
		}
		if r.Again != again {
			t.Errorf("it wants to be asked again after %s, want %s", r.Again, again)
		}
	}
	run(time.Minute, true, apply.Options{}, adoptFor)          // made: the time begins now
	run(29*time.Second, false, apply.Options{}, time.Second)   // not over
	run(2*time.Second, false, apply.Options{AddOnly: true}, 0) // takes nothing away
	run(0, false, apply.Options{}, 0)                          // over
	run(time.Hour, true, apply.Options{}, adoptFor)            // found flushed, and made again
	run(time.Second, false, apply.Options{}, adoptFor-time.Second)
	run(time.Minute, false, apply.Options{}, 0)
	want := []bool{true, true, true, false, false, true, true, false}
	if diff := cmp.Diff(want, *tables); diff != "" {
		t.Errorf("adopting (-want +got):\n%s", diff)
	}
}

// In the usual case nothing is read; a failure is told, and all is read the next time.
func TestFlowsAreReadOnlyForAReason(t *testing.T) {
	anew := false
	p, f, _ := newFlows(t, &anew, nil)
	n := planetest.Node()
	run := func() apply.Report {
		t.Helper()
		r, err := p.Apply(t.Context(), n, apply.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	walks := func(want ...conntrack.Query) {
		t.Helper()
		if diff := cmp.Diff(want, f.walks, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("walks (-want +got):\n%s", diff)
		}
		f.walks = nil
	}
	run()
	walks(conntrack.Query{})
	port := planetest.Port(2, netnstest.New(t).String())
	n.Ports = []intent.Port{port}
	n.Routes = n.Routes[:len(n.Routes)-1]
	// A new port inherits no flow, and what is not known to be forgotten holds it up.
	f.err = errors.New("refused")
	if r, err := p.Apply(t.Context(), n, apply.Options{}); !errors.Is(err, f.err) || !errors.Is(r.Err(port.Ref()), f.err) {
		t.Errorf("apply: %v, failed %v; want both to say %q", err, r.Failed, f.err)
	}
	walks(conntrack.Query{})
	f.err = nil
	run()
	walks(conntrack.Query{})
	run()
	walks()
	// The next one of the same block need not look.
	another := planetest.Port(3, netnstest.New(t).String())
	n.Ports = []intent.Port{port, another}
	run()
	walks()
	// Nor does one that goes: who gets its address looks.
	n.Ports = n.Ports[:1]
	run()
	walks()
	n.Ports = []intent.Port{port, another}
	run()
	walks(conntrack.Query{})
	// A block that goes as well is nobody's to look after any more.
	n.Ports, n.Routes = nil, nil
	f.err = errors.New("refused")
	r := run()
	walks(conntrack.Query{End: port.Addresses[0]}, conntrack.Query{End: another.Addresses[0]},
		conntrack.Query{End: port.Addresses[1]}, conntrack.Query{End: another.Addresses[1]})
	if err := r.Err(intent.Ref{Kind: "Node", Name: n.Name}); !errors.Is(err, f.err) {
		t.Errorf("failed: %v, want the node with %q", r.Failed, f.err)
	}
	f.err = nil
	if r = run(); len(r.Failed) > 0 {
		t.Error(r.Failed)
	}
	walks(conntrack.Query{})
	run()
	walks()
}

// Whoever is accepted as well makes no flow forbidden: only those that were cut are read,
// and only if there may be one with that end.
func TestWhoJoinsIsNoReasonToReadFlows(t *testing.T) {
	anew := false
	p, f, _ := newFlows(t, &anew, nil)
	n := planetest.Node()
	accept := intent.Rule{
		Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"friends"}},
		Origin: intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "a", Name: "b", Index: 0},
	}
	deny := accept
	deny.Action, deny.Match, deny.Origin.Index = intent.Deny, intent.Match{}, -1
	list := intent.NewRuleList(packet.DefaultVPC, intent.Ingress, []intent.Rule{accept, deny})
	n.Ports = []intent.Port{planetest.Port(2, netnstest.New(t).String())}
	n.Ports[0].Ingress, n.RuleLists = list.ID, []intent.RuleList{list}
	friend := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, last}) }
	cut := conntrack.Query{Mark: claims.CTCut, Mask: claims.CTCut}
	flow := conntrack.Flow{Src: friend(2), SrcPort: 1, ReplySrc: n.Ports[0].Addresses[0], ReplySrcPort: 80, Protocol: packet.UDP, Mark: claims.CTJudged}
	sets := n.AddressSets
	for _, step := range []struct {
		name    string
		friends []byte
		walks   []conntrack.Query
	}{
		{"the first", []byte{1}, []conntrack.Query{{}, {}}}, // to adopt flows, and for the new port
		{"one joins", []byte{1, 2}, nil},
		{"it leaves", []byte{1}, []conntrack.Query{{End: friend(2)}}},
		{"another joins", []byte{1, 3}, nil},
		{"it comes back", []byte{1, 2, 3}, []conntrack.Query{cut}},
		{"one more joins", []byte{1, 2, 3, 4}, nil},
	} {
		friends := intent.AddressSet{VPC: packet.DefaultVPC, Name: "friends"}
		for _, last := range step.friends {
			friends.Prefixes = append(friends.Prefixes, netip.PrefixFrom(friend(last), 32))
		}
		n.AddressSets = append(slices.Clone(sets), friends)
		slices.SortFunc(n.AddressSets, intent.AddressSet.Compare)
		f.walks = nil
		if r, err := p.Apply(t.Context(), n, apply.Options{}); err != nil || len(r.Failed) > 0 {
			t.Fatal(step.name, err, r.Failed)
		}
		if diff := cmp.Diff(step.walks, f.walks, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s: walks (-want +got):\n%s", step.name, diff)
		}
		if !slices.Contains(step.friends, 2) && f.marked[claims.CTCut] > 0 {
			flow.Mark = claims.CTJudged | claims.CTCut
		}
		f.flows = []conntrack.Flow{flow} // there since the first step
	}
	if f.marked[claims.CTCut] != 1 || f.marked[claims.CTJudged] != 1 {
		t.Errorf("marked: %v, want one cut and one uncut", f.marked)
	}
}

// A Report names some flows and counts the rest.
func TestReportOfFlowsIsBounded(t *testing.T) {
	anew := false
	p, f, _ := newFlows(t, &anew, nil)
	n := planetest.Node()
	n.Ports = []intent.Port{planetest.Port(2, netnstest.New(t).String())}
	deny := intent.NewRuleList(packet.DefaultVPC, intent.Ingress, []intent.Rule{{
		Tier: intent.TierNetworkPolicy, Action: intent.Deny, Origin: intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "a", Name: "b", Index: -1},
	}})
	if _, err := p.Apply(t.Context(), n, apply.Options{}); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		f.flows = append(f.flows, conntrack.Flow{
			Src: netip.MustParseAddr("203.0.113.1"), SrcPort: uint16(i), ReplySrc: n.Ports[0].Addresses[0], ReplySrcPort: 80, Protocol: packet.TCP, Mark: claims.CTJudged,
		})
	}
	n.Ports = []intent.Port{n.Ports[0]}
	n.Ports[0].Ingress, n.RuleLists = deny.ID, []intent.RuleList{deny}
	r, err := p.Apply(t.Context(), n, apply.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range r.Changes {
		if strings.Contains(c, "flow") {
			lines = append(lines, c)
		}
	}
	first, last := fmt.Sprintf("cut flow 203.0.113.1:0 > %s:80/TCP (NetworkPolicy a/b isolates)", n.Ports[0].Addresses[0]), "980 more flows, 1000 cut and 0 uncut in all"
	if len(lines) != mostFlows+1 || lines[0] != first || lines[mostFlows] != last {
		t.Errorf("lines %q; want %d, %q to %q", lines, mostFlows+1, first, last)
	}
	if f.marked[claims.CTCut] != 1000 {
		t.Errorf("marked: %v", f.marked)
	}
}
