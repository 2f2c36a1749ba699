package openflow_test

import (
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/openflow"
)

// client is just enough of a controller to ask one question at a time.
type client struct {
	t    *testing.T
	conn net.Conn
	xid  uint32
}

func dial(t *testing.T, socket string) *client {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &client{t: t, conn: conn}
	c.send(openflow.AppendHello(nil, 1))
	m := c.receive()
	if hello, ok := m.Body.(openflow.Hello); !ok || hello.Versions&(1<<openflow.Version) == 0 {
		t.Fatalf("the switch opens with %+v", m)
	}
	return c
}

func (c *client) send(b []byte) {
	c.t.Helper()
	c.conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.conn.Write(b); err != nil {
		c.t.Error(err)
	}
}

func (c *client) receive() openflow.Message {
	c.t.Helper()
	head := make([]byte, openflow.HeaderLen)
	if _, err := io.ReadFull(c.conn, head); err != nil {
		c.t.Fatal(err)
	}
	h, err := openflow.ParseHeader(head)
	if err != nil {
		c.t.Fatal(err)
	}
	msg := append(head, make([]byte, int(h.Length)-len(head))...)
	if _, err := io.ReadFull(c.conn, msg[len(head):]); err != nil {
		c.t.Fatal(err)
	}
	m, err := openflow.Decode(msg)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// ask sends messages and a barrier and gives the errors that come before its reply.
func (c *client) ask(b []byte) (errs []openflow.Error) {
	c.t.Helper()
	c.xid++
	// A switch that cannot send its errors stops to read.
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		c.send(openflow.AppendBarrierRequest(b, 1<<31|c.xid))
	}()
	defer func() { <-sent }()
	for {
		switch m := c.receive(); body := m.Body.(type) {
		case openflow.Error:
			errs = append(errs, body)
		case openflow.BarrierReply:
			return errs
		}
	}
}

// bundle changes everything at once.
func (c *client) bundle(id uint32, mods []openflow.FlowMod) []openflow.Error {
	c.t.Helper()
	const flags = openflow.BundleAtomic | openflow.BundleOrdered
	b := openflow.AppendBundleControl(nil, 1, id, openflow.BundleOpen, flags)
	for i, mod := range mods {
		b = openflow.AppendBundleAdd(b, uint32(i+2), id, flags, func(b []byte, xid uint32) []byte {
			return openflow.AppendFlowMod(b, xid, mod)
		})
	}
	return c.ask(openflow.AppendBundleControl(b, 1, id, openflow.BundleCommit, flags))
}

func (c *client) flows(f openflow.FlowFilter) (flows []openflow.FlowDesc) {
	c.t.Helper()
	c.send(openflow.AppendFlowDescRequest(nil, 9, f))
	for {
		m := c.receive()
		reply, ok := m.Body.(openflow.FlowDescReply)
		if !ok {
			c.t.Fatalf("got %+v, want flows", m)
		}
		flows = append(flows, reply.Flows...)
		if !reply.More {
			return flows
		}
	}
}

// addGroupsAndMeters adds what random flows refer to.
func (c *client) addGroupsAndMeters() {
	c.t.Helper()
	var b []byte
	for id := range uint32(3) {
		b = openflow.AppendGroupMod(b, 1, openflow.GroupAdd, openflow.Group{ID: id + 1})
		b = openflow.AppendMeterMod(b, 2, openflow.MeterAdd, openflow.Meter{ID: id + 1, Rate: 1000})
	}
	if errs := c.ask(b); errs != nil {
		c.t.Fatal(errs)
	}
}

// randomFlows gives n flows, no two with the same key.
func randomFlows(n int) []openflow.Flow {
	flows := make([]openflow.Flow, 0, n)
	seen := make(map[openflow.Key]bool)
	for seed := 0; len(flows) < n; seed++ {
		f := rapid.Custom(openflow.DrawFlow).Example(seed)
		if !seen[f.Key()] {
			seen[f.Key()] = true
			flows = append(flows, f)
		}
	}
	return flows
}

func dump(t *testing.T, s *ovs, bridge string) []string {
	t.Helper()
	out := s.ofctl(t, "", "--no-stats", "--no-names", "dump-flows", bridge)
	var lines []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "OFPST_FLOW") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

func texts(flows []openflow.Flow) []string {
	lines := make([]string, 0, len(flows))
	for _, f := range flows {
		lines = append(lines, f.String())
	}
	slices.Sort(lines)
	return lines
}

// TestSwitchAgrees sends random flows to a real switch in our encoding, and has
// it print them; it must print what we print, and what it prints must be what we
// read; and the same the other way round, through ovs-ofctl.
func TestSwitchAgrees(t *testing.T) {
	s := startOVS(t)
	n := 6000
	if testing.Short() {
		n = 500
	}
	want := randomFlows(n)
	c := dial(t, s.socket("br0"))
	c.addGroupsAndMeters()
	var mods []openflow.FlowMod
	for _, f := range want {
		mods = append(mods, openflow.FlowMod{Flow: f})
	}
	if errs := c.bundle(1, mods); errs != nil {
		for i, err := range errs[:min(len(errs), 10)] {
			h, _ := err.FailedHeader()
			t.Errorf("error %d: %v: %s", i, err, want[h.XID-2])
		}
		t.FailNow()
	}

	printed := dump(t, s, "br0")
	if diff := lineDiff(texts(want), printed); diff != "" {
		t.Errorf("the switch prints other flows (-want +got):\n%s", diff)
	}
	parsed, err := openflow.ParseFlows(strings.Join(printed, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	openflow.Sort(want)
	openflow.Sort(parsed)
	if diff := cmp.Diff(want, parsed, openflow.Compared); diff != "" {
		t.Errorf("we read other flows (-want +got):\n%s", clipDiff(diff))
	}

	var got []openflow.Flow
	for _, d := range c.flows(openflow.FlowFilter{Table: openflow.TableAll}) {
		if d.Err != nil {
			t.Errorf("%v", d.Err)
		}
		got = append(got, d.Flow)
	}
	openflow.Sort(got)
	if diff := cmp.Diff(want, got, openflow.Compared); diff != "" {
		t.Errorf("the switch describes other flows (-want +got):\n%s", clipDiff(diff))
	}

	c1 := dial(t, s.socket("br1"))
	c1.addGroupsAndMeters()
	s.ofctl(t, openflow.Text(want), "--bundle", "add-flows", "br1", "-")
	if diff := lineDiff(printed, dump(t, s, "br1")); diff != "" {
		t.Errorf("ovs-ofctl reads our text differently (-want +got):\n%s", diff)
	}
}

// lineDiff gives the first lines that only one side has.
func lineDiff(want, got []string) string {
	var b strings.Builder
	n := 0
	for _, side := range []struct {
		sign     string
		has, not []string
	}{{"-", want, got}, {"+", got, want}} {
		other := make(map[string]bool)
		for _, line := range side.not {
			other[line] = true
		}
		for _, line := range side.has {
			if !other[line] && n < 20 {
				n++
				b.WriteString(side.sign + " " + line + "\n")
			}
		}
	}
	return b.String()
}

// clipDiff shortens what thousands of differences would print.
func clipDiff(s string) string { return s[:min(len(s), 6000)] }
