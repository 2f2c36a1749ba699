package openflow_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/openflow"
)

var someGroups = []openflow.Group{
	{ID: 10},
	{ID: 11, Type: openflow.GroupIndirect, Buckets: []openflow.Bucket{
		{Actions: []openflow.Action{openflow.Set(openflow.Reg0, 7), openflow.Resubmit{Table: 30}}},
	}},
	{ID: 12, Type: openflow.GroupAll, Buckets: []openflow.Bucket{
		{ID: 4, Actions: []openflow.Action{openflow.Output{Port: 1}}},
		{ID: 9, Actions: []openflow.Action{openflow.Output{Port: openflow.PortLocal}}},
		{ID: 17},
	}},
	{ID: 13, Type: openflow.GroupSelect, Buckets: []openflow.Bucket{
		{ID: 0, Weight: 1, Actions: []openflow.Action{openflow.Resubmit{Table: 40}}},
		{ID: 1, Weight: 300, Actions: []openflow.Action{openflow.Resubmit{Table: 41}}},
		{ID: 2, Weight: 0, Actions: []openflow.Action{openflow.CT{Commit: true, Recirc: true, Table: 5, Zone: 3}}},
	}},
	{
		ID: 14, Type: openflow.GroupSelect, Method: openflow.SelectHash,
		Fields: []openflow.Field{openflow.IPSrc},
		Buckets: []openflow.Bucket{
			{Weight: 1, Actions: []openflow.Action{openflow.Resubmit{Table: 40}}},
		},
	},
	{ID: 15, Type: openflow.GroupSelect, Method: openflow.SelectDPHash, MethodParam: 3, Buckets: []openflow.Bucket{
		{Weight: 2, Actions: []openflow.Action{openflow.Output{Port: 3}}},
	}},
	{
		ID: 16, Type: openflow.GroupSelect, Method: openflow.SelectHash, MethodParam: 1,
		Fields:  []openflow.Field{openflow.IPSrc, openflow.IPDst},
		Buckets: []openflow.Bucket{{Weight: 1, Actions: []openflow.Action{openflow.Output{Port: 3}}}},
	},
}

func TestSwitchAgreesOnGroups(t *testing.T) {
	s := startOVS(t)
	c := dial(t, s.socket("br0"))
	var b []byte
	var file strings.Builder
	for _, g := range someGroups {
		if err := g.Validate(); err != nil {
			t.Error(err)
		}
		b = openflow.AppendGroupMod(b, g.ID, openflow.GroupAddOrModify, g)
		file.WriteString(g.String() + "\n")
	}
	if errs := c.ask(b); errs != nil {
		t.Fatal(errs)
	}
	var want []string
	for _, g := range someGroups {
		want = append(want, g.String())
	}
	printed := lines(s.ofctl(t, "", "dump-groups", "br0"))
	if diff := lineDiff(want, printed); diff != "" {
		t.Errorf("the switch prints other groups (-want +got):\n%s", diff)
	}
	parsed, err := openflow.ParseGroups(strings.Join(printed, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	byID := func(a, b openflow.Group) int { return int(a.ID) - int(b.ID) }
	slices.SortFunc(parsed, byID)
	if diff := cmp.Diff(someGroups, parsed, openflow.Compared); diff != "" {
		t.Errorf("we read other groups (-want +got):\n%s", diff)
	}

	c.send(openflow.AppendGroupDescRequest(nil, 3))
	var got []openflow.Group
	for more := true; more; {
		reply := c.receive().Body.(openflow.GroupDescReply)
		for _, d := range reply.Groups {
			if d.Err != nil {
				t.Error(d.Err)
			}
			got = append(got, d.Group)
		}
		more = reply.More
	}
	slices.SortFunc(got, byID)
	if diff := cmp.Diff(someGroups, got, openflow.Compared); diff != "" {
		t.Errorf("the switch describes other groups (-want +got):\n%s", diff)
	}

	s.ofctl(t, file.String(), "add-groups", "br1", "-")
	if diff := lineDiff(printed, lines(s.ofctl(t, "", "dump-groups", "br1"))); diff != "" {
		t.Errorf("ovs-ofctl reads our text differently (-want +got):\n%s", diff)
	}
	if errs := c.ask(openflow.AppendGroupMod(nil, 1, openflow.GroupDelete, openflow.Group{ID: openflow.GroupIDAll})); errs != nil {
		t.Error(errs)
	}
	if left := lines(s.ofctl(t, "", "dump-groups", "br0")); len(left) > 0 {
		t.Errorf("after deleting all groups there are %q", left)
	}
}

// lines gives the lines of a dump without its heading.
func lines(out string) (list []string) {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "OFPST_") {
			list = append(list, line)
		}
	}
	return list
}

func TestSwitchAgreesOnMeters(t *testing.T) {
	s := startOVS(t)
	c := dial(t, s.socket("br0"))
	want := []openflow.Meter{
		{ID: 1, Rate: 1000},
		{ID: 2, PerPacket: true, Rate: 50},
		{ID: 3, PerPacket: true, Rate: 50, Burst: 99},
	}
	var b []byte
	for i, m := range want {
		if err := m.Validate(); err != nil {
			t.Error(err)
		}
		b = openflow.AppendMeterMod(b, uint32(i), openflow.MeterAdd, m)
		s.ofctl(t, "", "add-meter", "br1", m.String())
	}
	if errs := c.ask(b); errs != nil {
		t.Fatal(errs)
	}
	printed := s.ofctl(t, "", "dump-meters", "br0")
	if other := s.ofctl(t, "", "dump-meters", "br1"); other != printed {
		t.Errorf("ovs-ofctl reads our text as\n%s, and our messages made\n%s", other, printed)
	}
	var parsed []openflow.Meter
	for _, text := range strings.Split(printed, "meter=")[1:] {
		m, err := openflow.ParseMeter("meter=" + text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, m)
	}
	if diff := cmp.Diff(want, parsed); diff != "" {
		t.Errorf("we read other meters (-want +got):\n%s", diff)
	}
	c.send(openflow.AppendMeterDescRequest(nil, 3))
	var got []openflow.Meter
	for _, d := range c.receive().Body.(openflow.MeterDescReply).Meters {
		if d.Err != nil {
			t.Error(d.Err)
		}
		got = append(got, d.Meter)
	}
	slices.SortFunc(got, func(a, b openflow.Meter) int { return int(a.ID) - int(b.ID) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the switch describes other meters (-want +got):\n%s", diff)
	}
	if errs := c.ask(openflow.AppendMeterMod(nil, 1, openflow.MeterDelete, openflow.Meter{ID: openflow.MeterIDAll})); errs != nil {
		t.Error(errs)
	}
}

func TestSwitchTalks(t *testing.T) {
	s := startOVS(t)
	c := dial(t, s.socket("br0"))
	c.send(openflow.AppendEchoRequest(nil, 3, []byte("hello")))
	if got := c.receive(); string(got.Body.(openflow.EchoReply).Data) != "hello" || got.Header.XID != 3 {
		t.Errorf("echo: got %+v", got)
	}
	c.send(openflow.AppendFeaturesRequest(nil, 4))
	if got := c.receive().Body.(openflow.FeaturesReply); got.DatapathID == 0 || got.Tables < 250 {
		t.Errorf("features: got %+v", got)
	}
	c.send(openflow.AppendPortDescRequest(nil, 5))
	ports := c.receive().Body.(openflow.PortDescReply).Ports
	if len(ports) != 1 || ports[0].Port != openflow.PortLocal || ports[0].Name != "br0" || ports[0].MAC == [6]byte{} || !ports[0].Down {
		t.Errorf("ports: got %+v", ports)
	}

	// An atomic bundle with one wrong flow changes nothing and names the flow.
	good := openflow.Flow{Table: 1, Priority: 5, Cookie: 0xa1, Actions: []openflow.Action{openflow.Output{Port: 1}}}
	bad := openflow.Flow{Table: 1, Priority: 6, Cookie: 0xb2, Actions: []openflow.Action{openflow.GroupAction{ID: 77}}}
	errs := c.bundle(7, []openflow.FlowMod{{Flow: good}, {Flow: bad}})
	if len(errs) == 0 {
		t.Fatal("a flow to a group that does not exist was taken")
	}
	if f, ok := errs[0].FailedFlow(); !ok || f.Cookie != bad.Cookie || errs[0].Name() != "OFPBAC_BAD_OUT_GROUP" {
		t.Errorf("got %v, flow %s; want OFPBAC_BAD_OUT_GROUP and cookie 0xb2", errs[0], f)
	}
	if got := c.flows(openflow.FlowFilter{Table: openflow.TableAll}); len(got) != 0 {
		t.Errorf("a refused bundle left %v", got)
	}

	// By cookie.
	other := openflow.Flow{Table: 2, Cookie: 0x1a1, Actions: []openflow.Action{openflow.Output{Port: 2}}}
	if errs := c.bundle(8, []openflow.FlowMod{{Flow: good}, {Flow: other}}); errs != nil {
		t.Fatal(errs)
	}
	if got := c.flows(openflow.FlowFilter{Table: openflow.TableAll, Cookie: 0x100, CookieMask: 0xf00}); len(got) != 1 || !got[0].Flow.Equal(other) {
		t.Errorf("flows by cookie: got %v, want %s", got, other)
	}
	del := openflow.FlowMod{Command: openflow.FlowDelete, CookieMask: 0xf00, Flow: openflow.Flow{Table: openflow.TableAll, Cookie: 0x100}}
	if errs := c.ask(openflow.AppendFlowMod(nil, 1, del)); errs != nil {
		t.Fatal(errs)
	}
	if got := c.flows(openflow.FlowFilter{Table: openflow.TableAll}); len(got) != 1 || !got[0].Flow.Equal(good) {
		t.Errorf("after a deletion by cookie: got %v, want %s", got, good)
	}
}

func TestSwitchTellsChanges(t *testing.T) {
	s := startOVS(t)
	c := dial(t, s.socket("br0"))
	mine := openflow.Flow{Table: 3, Priority: 9, Cookie: 5, Match: openflow.NewMatch(openflow.Eq(openflow.InPort, 4)), Actions: []openflow.Action{openflow.Output{Port: 1}}}
	if errs := c.ask(openflow.AppendFlowMod(nil, 1, openflow.FlowMod{Flow: mine})); errs != nil {
		t.Fatal(errs)
	}
	flags := openflow.MonitorInitial | openflow.MonitorAdded | openflow.MonitorRemoved | openflow.MonitorModified | openflow.MonitorActions
	c.send(openflow.AppendFlowMonitor(nil, 8, 1, openflow.FlowFilter{Table: openflow.TableAll}, flags))
	xid := uint32(8)
	next := func() openflow.FlowUpdate {
		t.Helper()
		m := c.receive()
		if m.Header.XID != xid {
			t.Errorf("an update has xid %d, want %d", m.Header.XID, xid)
		}
		xid = 0
		got, ok := m.Body.(openflow.FlowUpdates)
		if !ok || len(got.Updates) != 1 || got.Updates[0].Err != nil {
			t.Fatalf("got %+v, want one update", got)
		}
		return got.Updates[0]
	}
	if got := next(); got.Event != openflow.UpdateInitial || !got.Flow.Equal(mine) {
		t.Errorf("got %+v, want %s at first", got, mine)
	}
	own := mine
	own.Priority = 10
	c.send(openflow.AppendFlowMod(nil, 77, openflow.FlowMod{Flow: own}))
	if got := next(); got.Event != openflow.UpdateOwn || got.XID != 77 {
		t.Errorf("got %+v, want our own change", got)
	}
	s.ofctl(t, "", "add-flow", "br0", "table=4,actions=output:2")
	if got := next(); got.Event != openflow.UpdateAdded || got.Flow.String() != "table=4, actions=output:2" {
		t.Errorf("got %+v, want what another one added", got)
	}
	s.ofctl(t, "", "--strict", "del-flows", "br0", "table=3,priority=9,in_port=4")
	if got := next(); got.Event != openflow.UpdateRemoved || !got.Flow.Equal(mine) || got.Reason != 2 {
		t.Errorf("got %+v, want %s removed", got, mine)
	}
	if errs := c.ask(openflow.AppendFlowMonitorCancel(nil, 9, 1)); errs != nil {
		t.Errorf("cancel: %v", errs)
	}
}

// TestValidateIsNotTooKind breaks valid flows at random: whatever Validate still
// accepts, a switch takes.
func TestValidateIsNotTooKind(t *testing.T) {
	s := startOVS(t)
	c := dial(t, s.socket("br0"))
	c.addGroupsAndMeters()
	broken := rapid.Custom(func(t *rapid.T) openflow.Flow {
		f := rapid.Custom(openflow.DrawFlow).Draw(t, "flow")
		from := rapid.Custom(openflow.DrawFlow).Draw(t, "other")
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			f.Actions = from.Actions
		case 1:
			f.Actions = slices.Concat(f.Actions, from.Actions)
		}
		if n := len(f.Match); n > 0 {
			i := rapid.IntRange(0, n-1).Draw(t, "term")
			f.Match = slices.Delete(slices.Clone(f.Match), i, i+1)
		}
		return f
	})
	refused, kind := 0, map[uint32]openflow.Flow{}
	var b []byte
	for seed := range 4000 {
		f := broken.Example(seed)
		if f.Validate() != nil {
			refused++
			continue
		}
		kind[uint32(seed)] = f
		b = openflow.AppendFlowMod(b, uint32(seed), openflow.FlowMod{Flow: f})
	}
	for _, err := range c.ask(b) {
		h, _ := err.FailedHeader()
		t.Errorf("%s: %s", err.Name(), kind[h.XID])
	}
	if refused < 500 || len(kind) < 500 {
		t.Errorf("%d flows were refused and %d not: too few to say much", refused, len(kind))
	}
}
