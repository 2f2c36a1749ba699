package openflowconn_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

const (
	patience  = 30 * time.Second
	bridge    = "br0"
	ourCookie = 0xfa1e << 48
	ourMask   = 0xffff << 48
	testProbe = 2 * time.Second
)

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// startBridge starts an Open vSwitch with an empty bridge.
func startBridge(t testing.TB) *ovstest.OVS {
	t.Helper()
	o := ovstest.Start(t, netnstest.New(t))
	o.Run("ovs-vsctl", "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15")
	return o
}

func config(o *ovstest.OVS) openflowconn.Config {
	return openflowconn.Config{
		Socket: o.Host.Management(bridge), Probe: testProbe,
		Owned: openflowconn.Owned{
			Cookie: ourCookie, Mask: ourMask, Groups: openflowconn.Range{First: 1, Last: 1000}, Meters: openflowconn.Range{First: 1, Last: 1000},
		},
	}
}

func run(t testing.TB, c openflowconn.Config) *openflowconn.Conn {
	t.Helper()
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	conn := openflowconn.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := conn.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return conn
}

func await(t testing.TB, c *openflowconn.Conn, condition func(openflowconn.State) bool) openflowconn.State {
	t.Helper()
	for ctx := patient(t); ; {
		s, changed := c.State()
		if condition(s) {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the state stays %+v", s)
		}
	}
}

func connected(s openflowconn.State) bool { return s.Connected }

func flows(t testing.TB, text string) []openflow.Flow {
	t.Helper()
	all, err := openflow.ParseFlows(text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i].Cookie |= ourCookie
	}
	return all
}

// makeSo brings the bridge to the rules and returns what was done.
func makeSo(t testing.TB, c *openflowconn.Conn, want openflowconn.Rules) openflowconn.Changes {
	t.Helper()
	await(t, c, connected)
	installed, err := c.Read(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	changes := openflowconn.Diff(installed, want)
	if err := c.Commit(patient(t), changes); err != nil {
		t.Fatal(err)
	}
	if installed, err = c.Read(patient(t)); err != nil {
		t.Fatal(err)
	}
	if rest := openflowconn.Diff(installed, want); !rest.Empty() {
		t.Fatalf("this is left: %+v", rest)
	}
	return changes
}

func dump(o *ovstest.OVS) []string {
	out := o.Run("ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "--no-names", "dump-flows", bridge)
	var all []string
	for _, line := range strings.Split(out, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

const foreign = "cookie=0x7,table=3,priority=9,tcp,actions=drop"

func TestRules(t *testing.T) {
	o := startBridge(t)
	o.Run("ovs-ofctl", "-O", "OpenFlow15", "add-flow", bridge, foreign)
	o.Run("ovs-ofctl", "-O", "OpenFlow15", "add-group", bridge, "group_id=5000,type=all,bucket=actions=drop")
	c := run(t, config(o))
	want := openflowconn.Rules{
		Flows: flows(t, `priority=100,arp actions=resubmit(,1)
table=1,priority=50,ip,nw_src=10.0.0.0/8 actions=ct(commit,zone=7,exec(load:0x1->NXM_NX_CT_MARK[]))
table=1,priority=50,ipv6,ipv6_src=fd00::/64 actions=group:7
table=2,priority=1,reg0=0x5/0xf actions=meter:3,load:0x9->NXM_NX_REG1[0..7],NORMAL
table=3,priority=9,udp actions=drop
`),
		Groups: []openflow.Group{{ID: 7, Type: openflow.GroupAll, Buckets: []openflow.Bucket{{ID: 0, Actions: []openflow.Action{openflow.Output{Port: openflow.PortNormal}}}}}},
		Meters: []openflow.Meter{{ID: 3, PerPacket: true, Rate: 100}},
	}
	changes := makeSo(t, c, want)
	if len(changes.Flows) != 5 || len(changes.Groups) != 1 || len(changes.Meters) != 1 {
		t.Errorf("changes are %+v", changes)
	}
	if got := dump(o); len(got) != 6 {
		t.Errorf("flows are %q", got)
	}

	// A changed action is a modification, a changed cookie a replacement, both in place.
	want.Flows[0].Actions = []openflow.Action{openflow.Output{Port: openflow.PortNormal}}
	want.Flows[1].Cookie++
	want.Groups[0].Buckets[0].Actions = nil
	want.Meters[0].Rate = 200
	changes = makeSo(t, c, want)
	var commands []openflow.FlowCommand
	for _, m := range changes.Flows {
		commands = append(commands, m.Command)
	}
	if diff := cmp.Diff([]openflow.FlowCommand{openflow.FlowModifyStrict, openflow.FlowAdd}, commands); diff != "" || len(changes.Groups) != 1 || len(changes.Meters) != 1 {
		t.Errorf("changes are %+v", changes)
	}

	// Nothing of ours is left in the end, and all of theirs.
	makeSo(t, c, openflowconn.Rules{})
	if diff := cmp.Diff([]string{"cookie=0x7, table=3, priority=9,tcp actions=drop"}, dump(o)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	groups, err := c.Groups(patient(t))
	if err != nil || len(groups) != 1 || groups[0].Group.ID != 5000 {
		t.Errorf("groups are %+v, %v", groups, err)
	}
	ports, err := c.Ports(patient(t))
	if err != nil || len(ports) != 1 || ports[0].Name != bridge || ports[0].Port != openflow.PortLocal {
		t.Errorf("ports are %+v, %v", ports, err)
	}
}

func TestRefusedFlow(t *testing.T) {
	o := startBridge(t)
	c := run(t, config(o))
	want := openflowconn.Rules{Flows: flows(t, "priority=1 actions=drop\n")}
	makeSo(t, c, want)
	before := dump(o)
	bad := openflowconn.Rules{Flows: flows(t, "priority=2,ip actions=drop\ntable=4,priority=3,ip actions=group:9\ntable=5,priority=3,arp actions=drop\n")}
	bad.Flows[1].Comment = "policy default/web"
	installed, err := c.Read(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	err = c.Commit(patient(t), openflowconn.Diff(installed, bad))
	var refused *openflowconn.RefusedError
	if !errors.As(err, &refused) || len(refused.Refused) != 1 || refused.Refused[0].Comment() != "policy default/web" {
		t.Fatalf("got %v", err)
	}
	if want := "the switch refuses flow cookie=0xfa1e000000000000, table=4, priority=3,ip actions=group:9 (policy default/web): OFPBAC_BAD_OUT_GROUP"; err.Error() != want {
		t.Errorf("want %q\n got %q", want, err)
	}
	if diff := cmp.Diff(before, dump(o)); diff != "" {
		t.Errorf("the bundle left something (-want +got)\n%s", diff)
	}
	// What is wrong in itself is not sent.
	invalid := openflowconn.Changes{Flows: []openflow.FlowMod{{Flow: openflow.Flow{Cookie: ourCookie, Actions: []openflow.Action{openflow.GotoTable{}}, Comment: "policy default/db"}}}}
	err = c.Commit(patient(t), invalid)
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "policy default/db") {
		t.Errorf("got %v", err)
	}
	// In a larger change what was committed before stays, and is told.
	small := config(o)
	small.MaxBundle = 2
	d := run(t, small)
	await(t, d, connected)
	err = d.Commit(patient(t), openflowconn.Diff(openflowconn.Rules{}, openflowconn.Rules{Flows: append(flows(t, "table=1 actions=drop\ntable=2 actions=drop\n"), bad.Flows[1])}))
	if !errors.As(err, &refused) || refused.Committed != 2 || len(dump(o)) != 3 {
		t.Errorf("got %v, flows are %q", err, dump(o))
	}
	// A meter that is refused is named too.
	err = c.Commit(patient(t), openflowconn.Changes{Meters: []openflowconn.MeterMod{{Command: openflow.MeterModify, Meter: openflow.Meter{ID: 77, Rate: 1, Comment: "pod default/a"}}}})
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "pod default/a") {
		t.Errorf("got %v", err)
	}
}

func TestTouched(t *testing.T) {
	o := startBridge(t)
	c := run(t, config(o))
	rules := openflowconn.Rules{Flows: flows(t, "priority=1 actions=drop\ntable=1,priority=2,ip actions=drop\n")}
	makeSo(t, c, rules)
	if s := await(t, c, connected); !s.Watching || s.Touched != 0 || s.DatapathID == 0 {
		t.Errorf("the state is %+v", s)
	}
	touched := func(n uint64) func(openflowconn.State) bool {
		return func(s openflowconn.State) bool { return s.Touched >= n }
	}
	o.Run("ovs-ofctl", "-O", "OpenFlow15", "add-flow", bridge, foreign)
	o.Run("ovs-ofctl", "-O", "OpenFlow15", "--strict", "del-flows", bridge, "table=1,priority=2,ip")
	if s := await(t, c, touched(1)); s.Touched != 1 || s.Foreign != 1 {
		t.Errorf("a flow of ours and a foreign one were changed: %+v", s)
	}
	o.Run("ovs-ofctl", "-O", "OpenFlow15", "mod-flows", bridge, "table=0,actions=NORMAL")
	await(t, c, touched(2))
	o.Run("ovs-ofctl", "-O", "OpenFlow15", "add-flow", bridge, fmt.Sprintf("cookie=%#x,table=9,actions=drop", uint64(ourCookie)))
	await(t, c, touched(3))
	if changes := makeSo(t, c, rules); len(changes.Flows) != 3 {
		t.Errorf("the repair is %+v", changes)
	}
	if s, _ := c.State(); s.Touched != 3 {
		t.Errorf("our own changes count: %+v", s)
	}
}

func TestFaults(t *testing.T) {
	o := startBridge(t)
	c := run(t, config(o))
	rules := openflowconn.Rules{Flows: flows(t, "priority=1 actions=drop\n")}
	makeSo(t, c, rules)
	t.Run("killed", func(t *testing.T) {
		before, _ := c.State()
		o.Switch.Kill()
		await(t, c, func(s openflowconn.State) bool { return !s.Connected && s.Err != nil })
		if err := c.Barrier(patient(t)); !errors.Is(err, openflowconn.ErrDisconnected) {
			t.Errorf("a barrier says %v", err)
		}
		o.Switch.Start()
		if after := await(t, c, connected); after.Connection <= before.Connection {
			t.Error("it is the same connection")
		}
		if changes := makeSo(t, c, rules); len(changes.Flows) != 1 {
			t.Errorf("the repair is %+v", changes)
		}
	})
	t.Run("frozen", func(t *testing.T) {
		began := time.Now()
		o.Switch.Signal(syscall.SIGSTOP)
		err := c.Commit(patient(t), openflowconn.Changes{Meters: []openflowconn.MeterMod{{Command: openflow.MeterAdd, Meter: openflow.Meter{ID: 1, Rate: 1}}}})
		noticed := time.Since(began)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := c.Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for a frozen switch says %v", err)
		}
		o.Switch.Signal(syscall.SIGCONT)
		if !errors.Is(err, openflowconn.ErrUncertain) {
			t.Errorf("a change of a frozen switch says %v", err)
		}
		if noticed > 2*testProbe {
			t.Errorf("noticed after %s", noticed)
		}
		makeSo(t, c, rules)
	})
	t.Run("given up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Barrier(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		makeSo(t, c, rules)
	})
	t.Run("other protocol", func(t *testing.T) {
		o.Run("ovs-vsctl", "set", "bridge", bridge, "protocols=OpenFlow13")
		s := await(t, run(t, config(o)), func(s openflowconn.State) bool { return s.Err != nil })
		if !strings.Contains(s.Err.Error(), "OpenFlow 1.5") {
			t.Errorf("got %v", s.Err)
		}
	})
}

func TestControl(t *testing.T) {
	o := startBridge(t)
	c := run(t, config(o))
	makeSo(t, c, openflowconn.Rules{Flows: flows(t, "priority=5,arp actions=resubmit(,7)\ntable=7,priority=6 actions=LOCAL\n")})
	control := openflowconn.Control{Run: o.Host.Run}
	const packet = "in_port=1,arp"
	got, err := control.Trace(patient(t), bridge, packet)
	if err != nil {
		t.Fatal(err)
	}
	if want := o.Run("ovs-appctl", "ofproto/trace", bridge, packet); got != want {
		t.Errorf("ovs-appctl differs (-want +got)\n%s", cmp.Diff(want, got))
	}
	if !strings.Contains(got, "priority 6") {
		t.Errorf("the trace is %s", got)
	}
	if _, err := control.Trace(patient(t), "none", packet); err == nil || !strings.Contains(err.Error(), "ofproto/trace of ovs-vswitchd: it says:") {
		t.Errorf("got %v", err)
	}
	if out, err := control.Call(patient(t), "ovsdb-server", "version"); err != nil || !strings.Contains(out, "ovsdb-server (Open vSwitch)") {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := control.Call(patient(t), "nobody", "version"); err == nil {
		t.Error("nobody answered")
	}
	o.Switch.Signal(syscall.SIGSTOP)
	defer o.Switch.Signal(syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := control.Trace(ctx, bridge, packet); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen daemon says %v", err)
	}
}

func many(n int, action openflow.Action, cookie uint64) []openflow.Flow {
	all := make([]openflow.Flow, n)
	for i := range all {
		all[i] = openflow.Flow{
			Table: uint8(1 + i%20), Priority: 100, Cookie: ourCookie | cookie,
			Match: openflow.NewMatch(openflow.Eq(openflow.EthType, openflow.EthTypeIPv4), openflow.Eq(openflow.IPDst, uint64(10<<24+i)),
				openflow.Eq(openflow.IPProto, openflow.ProtoTCP), openflow.Eq(openflow.TCPDst, uint64(1+i%60000))),
			Actions: []openflow.Action{openflow.Set(openflow.Reg0, uint64(i)), action},
		}
	}
	return all
}

// TestTenThousand replaces 10,000 flows in one atomic bundle.
func TestTenThousand(t *testing.T) {
	o := startBridge(t)
	large := config(o)
	large.MaxBundle = 20_000
	large.Probe = 20 * time.Second
	c := run(t, large)
	const n = 10_000
	old := openflowconn.Rules{Flows: many(n, openflow.Output{Port: openflow.PortNormal}, 1)}
	makeSo(t, c, old)
	next := openflowconn.Rules{Flows: many(n, openflow.Output{Port: openflow.PortLocal}, 2)}

	began := time.Now()
	installed, err := c.Read(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	read := time.Now()
	changes := openflowconn.Diff(installed, next)
	compared := time.Now()
	if len(changes.Flows) != n {
		t.Fatalf("%d changes", len(changes.Flows))
	}
	if err := c.Commit(patient(t), changes); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d flows: read %s, compared %s, replaced atomically %s", n, read.Sub(began), compared.Sub(read), time.Since(compared))
	ours := time.Since(compared)
	text := []byte(openflow.Text(next.Flows))
	began = time.Now()
	if out, err := o.Try(text, "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "add-flows", bridge, "-"); err != nil {
		t.Fatalf("ovs-ofctl: %v\n%s", err, out)
	}
	t.Logf("ovs-ofctl took %s, ratio %.2f", time.Since(began), float64(ours)/float64(time.Since(began)))
	if installed, err = c.Read(patient(t)); err != nil || !openflowconn.Diff(installed, next).Empty() {
		t.Fatalf("the flows are not what they should be, %v", err)
	}
	// With the last of them bad, the 9,999 others stay as they were.
	bad := openflowconn.Rules{Flows: many(n, openflow.Output{Port: openflow.PortNormal}, 3)}
	bad.Flows[n-1].Actions = []openflow.Action{openflow.GroupAction{ID: 9}}
	var refused *openflowconn.RefusedError
	if err := c.Commit(patient(t), openflowconn.Diff(installed, bad)); !errors.As(err, &refused) || len(refused.Refused) != 1 {
		t.Fatalf("got %v", err)
	}
	if installed, err = c.Read(patient(t)); err != nil || !openflowconn.Diff(installed, next).Empty() {
		t.Errorf("the bad bundle left something, %v", err)
	}
}

// TestPrepared holds that a bundle that is prepared changes nothing until it is committed,
// and that the switch says which ports it adds while it takes up its database.
func TestPrepared(t *testing.T) {
	o := startBridge(t)
	c := run(t, config(o))
	await(t, c, connected)
	ctx := patient(t)
	prepare := func(text string) *openflowconn.Prepared {
		t.Helper()
		p, err := c.Prepare(ctx, openflowconn.Diff(openflowconn.Rules{}, openflowconn.Rules{Flows: flows(t, text)}))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const flow = "cookie=0xfa1e000000000000,table=0,priority=1,in_port=77,actions=drop"
	p := prepare(flow)
	if got := dump(o); len(got) != 0 {
		t.Errorf("a prepared bundle made %v", got)
	}
	p.Discard(ctx)
	if err := p.Commit(ctx); err == nil {
		t.Error("a discarded bundle was committed")
	}
	p = prepare(flow)
	o.Run("ovs-vsctl", "--no-wait", "add-port", bridge, "p1", "--", "set", "interface", "p1", "type=internal", "ofport_request=77")
	if err := c.AwaitPorts(ctx, map[string]openflow.Port{"p1": 77}); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if got := dump(o); len(got) != 1 {
		t.Errorf("a committed bundle made %v", got)
	}
	if err := c.AwaitPorts(ctx, map[string]openflow.Port{"p1": 78}); !errors.Is(err, openflowconn.ErrOtherNumber) {
		t.Errorf("another number is told by %v", err)
	}
	o.Run("ovs-vsctl", "del-port", bridge, "p1")
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := c.AwaitPorts(short, map[string]openflow.Port{"p1": 77}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a port that was deleted is told by %v", err)
	}
}

// Many commands over one connection: more than are on their way at once, and which of them
// were refused.
func TestControlEach(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	control := openflowconn.Control{Run: o.Host.Run}
	refused, err := control.Each(t.Context(), "ovs-vswitchd", "version", make([][]string, 333))
	if err != nil || len(refused) > 0 {
		t.Errorf("refused: %v, %v", refused, err)
	}
	refused, err = control.Each(t.Context(), "ovs-vswitchd", "tnl/neigh/show", [][]string{{}, {"one", "too", "many"}, {}})
	if err != nil || len(refused) != 1 || refused[1] == nil {
		t.Errorf("refused: %v, %v; want the second", refused, err)
	}
	if _, err := control.Each(t.Context(), "ovs-nothing", "version", make([][]string, 1)); err == nil {
		t.Error("a daemon that is not there does what it is told")
	}
}
