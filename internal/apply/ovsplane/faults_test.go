package ovsplane

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

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// repairing applies the intent whenever Watch tells of something, as the agent does.
func repairing(t *testing.T, p *Plane, n intent.Node) (told <-chan apply.Foreign) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	foreign, ended := make(chan apply.Foreign, 1000), make(chan error, 1)
	again := make(chan struct{}, 1)
	go func() {
		ended <- p.Watch(ctx, func(f apply.Foreign) {
			foreign <- f
			select {
			case again <- struct{}{}:
			default:
			}
		})
	}()
	applies := make(chan struct{})
	go func() {
		defer close(applies)
		for {
			select {
			case <-again:
				for r, err := p.Apply(ctx, n, apply.Options{}); (err != nil || len(r.Failed) > 0) && ctx.Err() == nil; r, err = p.Apply(ctx, n, apply.Options{}) {
					t.Logf("apply: %v %v", err, r.Failed)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch: %v", err)
		}
		<-applies
	})
	return foreign
}

// soon is how long what takes well under a second may take on a machine that does much
// else: every link that is made or removed anywhere on it waits for one lock of the kernel.
const soon = time.Minute

// TestRepairs: whatever happens to Open vSwitch is noticed and mended, and the pods talk.
func TestRepairs(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	t.Cleanup(func() { _ = p.Close() })
	desired := n.intentOf(t, 2)
	applied(t, p, desired, apply.Options{})
	told := repairing(t, p, desired)
	a, b := desired.Ports[0], desired.Ports[1]
	for _, fault := range []struct {
		name string
		do   func()
	}{
		{"ovs-vswitchd restarted", n.ovs.Switch.Restart},
		{"flows deleted", func() { n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", claims.OVSBridge) }},
		{"one flow deleted", func() { n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", claims.OVSBridge, "table=62") }},
		{"port removed", func() { n.ovs.Run("ovs-vsctl", "del-port", a.HostInterface) }},
		{"bridge removed", func() { n.ovs.Run("ovs-vsctl", "del-br", claims.OVSBridge) }},
		{"bridge around the NIC: flows deleted", func() { n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", claims.OVSUnderlayBridge) }},
		{"bridge around the NIC: removed", func() { n.ovs.Run("ovs-vsctl", "del-br", claims.OVSUnderlayBridge) }},
		{"controller set", func() { n.ovs.Run("ovs-vsctl", "set-controller", claims.OVSBridge, "tcp:127.0.0.1:1") }},
		{"database wiped", n.ovs.Wipe},
	} {
		for len(told) > 0 {
			<-told
		}
		fault.do()
		select {
		case <-told:
		case <-time.After(soon):
			t.Fatalf("%s: nothing was told", fault.name)
		}
		began := time.Now()
		for !n.reaches(t, a, b) {
			if time.Since(began) > soon {
				t.Fatalf("%s: %s does not reach %s again", fault.name, a.Pod, b.Pod)
			}
		}
		for diffs := p.differences(t, desired); len(diffs) > 0; diffs = p.differences(t, desired) {
			if time.Since(began) > soon {
				t.Fatalf("%s: %d differences, the first: %+v", fault.name, len(diffs), diffs[0])
			}
		}
	}
}

func (n *node) reaches(t *testing.T, a, b intent.Port) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := netnstest.Probe(ctx, n.pods[a.Netns], "tcp", netip.AddrPortFrom(b.Addresses[0], 8080))
	return err == nil
}

func (p *Plane) differences(t *testing.T, desired intent.Node) []apply.Difference {
	t.Helper()
	diffs, err := p.Audit(t.Context(), desired)
	if err != nil {
		return []apply.Difference{{Object: err.Error()}}
	}
	return diffs
}

// TestNoOpenvswitch: without Open vSwitch an Apply ends soon, with a sentence that says
// what is missing, and nothing carries.
func TestNoOpenvswitch(t *testing.T) {
	n := &node{ns: netnstest.New(t)}
	dir := t.TempDir()
	p, err := Open(t.Context(), Options{NS: n.ns, RunDir: dir, Patience: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.Apply(t.Context(), intent.Node{Name: "n1", MTU: 1430}, apply.Options{})
	if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "db.sock")) || !strings.Contains(err.Error(), "is Open vSwitch installed and running?") {
		t.Errorf("apply without Open vSwitch: %v", err)
	}
	if got := strings.Join(p.Features(), "\n"); !strings.Contains(got, "Open vSwitch is away") {
		t.Errorf("features: %s", got)
	}
}

// TestAway: that a daemon is away is told at once, and an Apply says so until it is back.
func TestAway(t *testing.T) {
	n := newNode(t)
	p, err := Open(t.Context(), Options{NS: n.ns, RunDir: n.ovs.Host.Run, Patience: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	desired := n.intentOf(t, 1)
	for _, err := p.Apply(t.Context(), desired, apply.Options{}); err != nil; _, err = p.Apply(t.Context(), desired, apply.Options{}) {
		t.Logf("apply: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan apply.Foreign, 1000), make(chan error, 1)
	go func() { ended <- p.Watch(ctx, func(f apply.Foreign) { told <- f }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch: %v", err)
		}
	}()
	for _, fault := range []struct {
		daemon interface{ Kill() }
		told   string
		fails  string
		drops  bool
	}{
		{n.ovs.Switch, "the bridge " + claims.OVSBridge + " is away", "does ovs-vswitchd run?", true},
		{n.ovs.Server, "the database of Open vSwitch is away", "is Open vSwitch installed and running?", false},
	} {
		fault.daemon.Kill()
		for deadline := time.After(soon); ; {
			var f apply.Foreign
			select {
			case f = <-told:
			case <-deadline:
				t.Fatalf("nobody tells that %s", fault.told)
			}
			if strings.HasPrefix(f.What, fault.told) {
				if want := "found: " + f.What; f.Text() != want {
					t.Errorf("%s, want %s: nobody is known to have changed anything", f.Text(), want)
				}
				break
			}
		}
		if _, err := p.Apply(t.Context(), desired, apply.Options{}); err == nil || !strings.Contains(err.Error(), fault.fails) {
			t.Errorf("%s: apply: %v", fault.told, err)
		}
		if _, err := p.Drops(t.Context()); fault.drops && !errors.Is(err, openflowconn.ErrDisconnected) {
			t.Errorf("%s: drops: %v", fault.told, err)
		}
	}
}

// TestForeignBridge: somebody else's bridge of our name is left alone, and named.
func TestForeignBridge(t *testing.T) {
	n := newNode(t)
	n.ovs.Run("ovs-vsctl", "add-br", claims.OVSBridge, "--", "set", "bridge", claims.OVSBridge, "datapath_type=netdev")
	before := n.ovs.Run("ovs-ofctl", "dump-flows", "--no-stats", claims.OVSBridge)
	p := n.open(t)
	defer p.Close()
	desired := n.intentOf(t, 1)
	r, err := p.Apply(t.Context(), desired, apply.Options{})
	if err == nil || !strings.Contains(err.Error(), "belongs to somebody else") {
		t.Errorf("apply: %v", err)
	}
	if r.Err(desired.Ports[0].Ref()) == nil {
		t.Error("a port of a bridge that cannot be had did not fail")
	}
	if after := n.ovs.Run("ovs-ofctl", "dump-flows", "--no-stats", claims.OVSBridge); after != before {
		t.Errorf("the foreign bridge's flows were %s and are %s", before, after)
	}
	n.ovs.Run("ovs-vsctl", "del-br", claims.OVSBridge)
	applied(t, p, desired, apply.Options{})
}

// TestRefusedFlow: a flow that the switch refuses is said of the object that it came from,
// and all else goes on.
func TestRefusedFlow(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	defer p.Close()
	desired := n.intentOf(t, 2)
	applied(t, p, desired, apply.Options{})
	a, b := desired.Ports[0], desired.Ports[1]
	n.ovs.Run("ovs-vsctl", "--", "--id=@full", "create", "flow_table", "flow_limit=1", "overflow_policy=refuse",
		"--", "set", "bridge", claims.OVSBridge, fmt.Sprintf("flow_tables:%d=@full", ovs.TableIngress))
	denied := desired
	denied.RuleLists = []intent.RuleList{{
		ID: "deny", Direction: intent.Ingress, VPC: packet.DefaultVPC, Rules: []intent.Rule{{Tier: intent.TierNetworkPolicy, Action: intent.Deny}},
	}}
	denied.Ports = append([]intent.Port{}, desired.Ports...)
	denied.Ports[1].Ingress = "deny"
	list := denied.RuleLists[0].Ref()
	r, err := p.Apply(t.Context(), denied, apply.Options{})
	if err != nil {
		t.Errorf("apply: %v", err)
	}
	if err := r.Err(list); err == nil || !strings.Contains(err.Error(), "the switch refuses flow") {
		t.Errorf("%s: %v; failed %v", list, err, r.Failed)
	}
	if n.reaches(t, a, b) {
		t.Errorf("%s, whose list cannot be had, is reached", b.Pod)
	}
	if !n.reaches(t, b, a) {
		t.Errorf("%s, which has no list, is not reached", a.Pod)
	}
	n.ovs.Run("ovs-vsctl", "clear", "bridge", claims.OVSBridge, "flow_tables")
	applied(t, p, denied, apply.Options{})
}

// TestWatchOutlivesLostNotifications: the kernel tells more than is taken in time, and
// still what happens then is noticed.
func TestWatchOutlivesLostNotifications(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	defer p.Close()
	desired := n.intentOf(t, 0)
	applied(t, p, desired, apply.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told, ended := make(chan apply.Foreign, 1000), make(chan error, 1)
	go func() { ended <- p.watchHost(ctx, func(f apply.Foreign) { told <- f }) }()
	gateway, err := n.out.LinkByName(claims.OVSHostPort)
	if err != nil {
		t.Fatal(err)
	}
	damage := func() {
		t.Helper()
		if err := n.out.LinkSetARPOff(gateway); err != nil {
			t.Fatal(err)
		}
		if err := n.out.LinkSetDown(gateway); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
		case err := <-ended:
			t.Fatalf("the watch has ended: %v", err)
		case <-time.After(soon):
			t.Fatal("nothing was told")
		}
	}
	damage()
	// While nobody looks, more is told than the socket holds.
	p.mu.Lock()
	for range listenBuffer / 256 {
		err = errors.Join(err, n.out.LinkSetARPOn(gateway), n.out.LinkSetARPOff(gateway))
	}
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	// More than once: what is told first may be of before.
	for range 5 {
		applied(t, p, desired, apply.Options{Refresh: true})
		for len(told) > 0 {
			<-told
		}
		damage()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("watch: %v", err)
	}
}

// TestTables: what is shown for people has the flows as they should be and as they are.
func TestTables(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	defer p.Close()
	desired := n.intentOf(t, 1)
	applied(t, p, desired, apply.Options{})
	const lost = ": not in the switch"
	text := p.Tables(desired)
	for _, want := range []string{fmt.Sprintf("pipeline version %d", ovs.Version), "=== 62 deliver", "Port container02/eth0 of test/pod02: ", " packets\n", "table inet " + claims.NFTTable} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, lost) {
		t.Errorf("a flow is missing:\n%s", text)
	}
	n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", claims.OVSBridge, "table=62")
	n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "add-flow", claims.OVSBridge, fmt.Sprintf("cookie=%#x,table=40,priority=77,actions=drop", claims.OVSCookie))
	if text := p.Tables(desired); !strings.Contains(text, lost) || !strings.Contains(text, "# should not be there: 0 packets") {
		t.Errorf("the changed bridge is shown as\n%s", text)
	}
}

// TestStalePorts: what was not wanted while no agent ran is swept.
func TestStalePorts(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	desired := n.intentOf(t, 2)
	applied(t, p, desired, apply.Options{})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = n.open(t)
	defer p.Close()
	gone := desired.Ports[0]
	desired.Ports = desired.Ports[1:]
	applied(t, p, desired, apply.Options{})
	if got := n.ovs.Run("ovs-vsctl", "list-ports", claims.OVSBridge); strings.Contains(got, gone.HostInterface) {
		t.Errorf("the port of %s is still there: %s", gone.Pod, got)
	}
}

// TestCutOutlivesTheAgent: a flow that policy has cut stays silent when the agent is
// restarted, and goes on when policy allows it again.
func TestCutOutlivesTheAgent(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	desired := n.intentOf(t, 2)
	applied(t, p, desired, apply.Options{})
	a, b := desired.Ports[0], desired.Ports[1]
	send := n.converse(t, a, b, b.Addresses[0], packet.UDP)
	denied := desired
	denied.RuleLists = []intent.RuleList{{ID: "deny", Direction: intent.Ingress, VPC: packet.DefaultVPC}}
	denied.RuleLists[0].Rules = []intent.Rule{{Tier: intent.TierNetworkPolicy, Action: intent.Deny}}
	denied.Ports = append([]intent.Port{}, desired.Ports...)
	denied.Ports[1].Ingress = "deny"
	if r := applied(t, p, denied, apply.Options{}); !strings.Contains(fmt.Sprint(r.Changes), "cut flow") {
		t.Errorf("the report does not tell of the flow: %v", r.Changes)
	}
	silent := func(when string) {
		t.Helper()
		for _, back := range []bool{false, true} {
			if send(back) {
				t.Errorf("%s: the flow goes on, back %v", when, back)
			}
		}
	}
	silent("cut")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = n.open(t)
	defer p.Close()
	if r := applied(t, p, denied, apply.Options{AddOnly: true}); len(r.Changes) > 0 {
		t.Errorf("the restart changed: %v", r.Changes)
	}
	silent("restarted")
	applied(t, p, denied, apply.Options{})
	silent("applied anew")
	n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", claims.OVSBridge)
	applied(t, p, denied, apply.Options{Refresh: true})
	silent("flows deleted and mended")
	applied(t, p, desired, apply.Options{})
	for _, back := range []bool{false, true} {
		if !send(back) {
			t.Errorf("allowed again: the flow is silent, back %v", back)
		}
	}
}

func TestParseConnection(t *testing.T) {
	for _, tc := range []struct {
		line string
		want connection
		ok   bool
	}{
		{
			"tcp,orig=(src=10.128.0.2,dst=10.128.0.3,sport=1234,dport=8080),reply=(src=10.128.0.3,dst=10.128.0.2,sport=8080,dport=1234),zone=16394,mark=268435456,protoinfo=(state=ESTABLISHED)",
			connection{zone: 16394, protocol: packet.TCP, src: addr("10.128.0.2"), dst: addr("10.128.0.3"), srcPort: 1234, dstPort: 8080, replySrc: addr("10.128.0.3"), replyPort: 8080, mark: 1 << 28},
			true,
		},
		{
			"tcp,orig=(src=10.128.0.2,dst=10.128.0.3,sport=1,dport=2),reply=(src=10.128.0.3,dst=10.128.0.2,sport=2,dport=1),zone=1,protoinfo=(state=TIME_WAIT)",
			connection{zone: 1, protocol: packet.TCP, src: addr("10.128.0.2"), dst: addr("10.128.0.3"), srcPort: 1, dstPort: 2, replySrc: addr("10.128.0.3"), replyPort: 2, ended: true},
			true,
		},
		{
			"tcp,orig=(src=10.128.0.2,dst=10.128.0.3,sport=1,dport=2),reply=(src=10.128.0.3,dst=10.128.0.2,sport=2,dport=1),protoinfo=(state_orig=CLOSING,state_reply=ESTABLISHED)",
			connection{protocol: packet.TCP, src: addr("10.128.0.2"), dst: addr("10.128.0.3"), srcPort: 1, dstPort: 2, replySrc: addr("10.128.0.3"), replyPort: 2},
			true,
		},
		{
			"icmpv6,orig=(src=fd00::2,dst=fd00::3,id=7,type=128,code=0),reply=(src=fd00::3,dst=fd00::2,id=7,type=129,code=0),zone=5",
			connection{zone: 5, protocol: packet.ICMPv6, src: addr("fd00::2"), dst: addr("fd00::3"), replySrc: addr("fd00::3"), id: 7, typ: 128},
			true,
		},
		{"udp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1,dport=99999),reply=(src=10.0.0.2,dst=10.0.0.1,sport=2,dport=1)", connection{}, false},
		{"tcp,orig=(src=10.0.0.1,dst=10.0.0.2", connection{}, false},
		{"gre,orig=(src=10.0.0.1,dst=10.0.0.2),reply=(src=10.0.0.2,dst=10.0.0.1)", connection{}, false},
		{"", connection{}, false},
	} {
		got, ok := parseConnection(tc.line)
		if ok != tc.ok || ok && got != tc.want {
			t.Errorf("%s\nis %+v, %v, want %+v, %v", tc.line, got, ok, tc.want, tc.ok)
		}
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func FuzzParseConnection(f *testing.F) {
	f.Add("tcp,orig=(src=10.128.0.2,dst=10.128.0.3,sport=1234,dport=8080),reply=(src=10.128.0.3,dst=10.128.0.2,sport=8080,dport=1234),zone=1,mark=5,protoinfo=(state=ESTABLISHED)")
	f.Add("icmp,orig=(src=1.1.1.1,dst=2.2.2.2,id=1,type=8,code=0),reply=(src=2.2.2.2,dst=1.1.1.1,id=1,type=0,code=0)")
	f.Fuzz(func(t *testing.T, line string) {
		c, ok := parseConnection(line)
		if !ok {
			return
		}
		if err := cutFlow(c.tuple()).Validate(); err != nil {
			t.Errorf("%q cannot be cut: %v", line, err)
		}
		_ = c.text()
	})
}

func TestParseTunnelRoutes(t *testing.T) {
	text := `Route Table:
Cached: 127.0.0.1/32 dev lo SRC 127.0.0.1 local
User: 192.0.2.2/32 dev fairlead-phy SRC 192.0.2.1
User: 192.0.2.9/32 dev other SRC 192.0.2.1
User: 2001:db8::2/128 dev fairlead-phy GW 2001:db8::9 SRC 2001:db8::1
User: 10.0.0.0/8 dev fairlead-phy SRC 192.0.2.1
User: nonsense dev fairlead-phy
`
	got := parseTunnelRoutes(text)
	if len(got) != 2 || got[addr("192.0.2.2")].IsValid() || got[addr("2001:db8::2")] != addr("2001:db8::9") {
		t.Errorf("got %v", got)
	}
}

func FuzzParseTunnelRoutes(f *testing.F) {
	f.Add("User: 192.0.2.2/32 dev fairlead-phy GW 192.0.2.9 SRC 192.0.2.1")
	f.Fuzz(func(_ *testing.T, text string) { parseTunnelRoutes(text) })
}

// TestObjectOf: a refused flow is said of the object that its comment names.
func TestObjectOf(t *testing.T) {
	n := intent.Node{Name: "n1", Ports: []intent.Port{{ID: "a/eth0"}, {ID: "a/eth01"}}}
	for comment, want := range map[string]intent.Ref{
		"Port a/eth01 of test/pod": intent.PortRef("a/eth01"),
		"Port a/eth0 of test/pod":  intent.PortRef("a/eth0"),
		"new flow":                 {Kind: "Node", Name: "n1"},
	} {
		if got := objectOf(n, comment); got != want {
			t.Errorf("%q is of %s, want %s", comment, got, want)
		}
	}
}

// TestOnlyAdditions: lists of a direction are added to as a whole, or not at all. Else what
// is new would be asked by what is old, and the number of a class may mean something else.
func TestOnlyAdditions(t *testing.T) {
	mod := func(command of.FlowCommand, table uint8) of.FlowMod {
		return of.FlowMod{Command: command, Flow: of.Flow{Table: table, Priority: 1, Match: of.NewMatch(of.Eq(of.Reg8, uint64(command)))}}
	}
	add, change, remove := of.FlowAdd, of.FlowModifyStrict, of.FlowDeleteStrict
	replaced := mod(add, ovs.TableEgressPeer)
	itself := func(command of.FlowCommand, port uint64) of.FlowMod {
		m := mod(command, ovs.TableEgressPeer)
		m.Flow.Match = of.NewMatch(of.SubEq(ovs.SourcePort, port), of.SubEq(ovs.TargetPort, port))
		return m
	}
	for _, c := range []struct {
		name string
		mods []of.FlowMod
		want []uint8 // tables
	}{
		{"additions", []of.FlowMod{mod(add, ovs.TableRoute), mod(add, ovs.TableEgressPeer), mod(add, ovs.TableIngress)}, []uint8{30, 40, 51}},
		{"a peer changes", []of.FlowMod{mod(add, ovs.TableRoute), mod(add, ovs.TableIngress), mod(change, ovs.TableIngressPeer)}, []uint8{30}},
		{"a peer changes its cookie", []of.FlowMod{replaced, mod(add, ovs.TableEgressPorts), mod(add, ovs.TableIngress)}, []uint8{51}},
		{"a list goes", []of.FlowMod{mod(remove, ovs.TableEgressPorts), mod(add, ovs.TableEgress), mod(add, ovs.TableIngressPeer)}, []uint8{50}},
		{"a port comes for another", []of.FlowMod{mod(add, ovs.TableEgress), itself(add, 11), itself(remove, 10)}, []uint8{41, 40}},
		{"a route changes", []of.FlowMod{mod(change, ovs.TableRoute), mod(add, ovs.TableRoute), mod(add, ovs.TableEgress)}, []uint8{30, 41}},
	} {
		var installed []of.Flow
		if c.mods[0].Flow.Table == ovs.TableEgressPeer {
			installed = append(installed, replaced.Flow)
		}
		var got []uint8
		for _, m := range onlyAdditions(slices.Clone(c.mods), installed) {
			if m.Command != add {
				t.Errorf("%s: %v is no addition", c.name, m)
			}
			got = append(got, m.Flow.Table)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: additions to the tables %v, want %v", c.name, got, c.want)
		}
	}
}
