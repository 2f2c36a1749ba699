package switchdb_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/switchdb"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

const patience = 30 * time.Second

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, o *ovstest.OVS, mark string) *switchdb.DB {
	t.Helper()
	d := switchdb.New(switchdb.Config{
		Socket: o.Host.Database(), Mark: switchdb.Mark{Key: "owner", Value: mark}, Probe: 2 * time.Second,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return d
}

func bridge(ports ...switchdb.Port) switchdb.Bridge {
	return switchdb.Bridge{
		Name: "br-int", DatapathType: "netdev", FailMode: "secure", Protocols: []string{"OpenFlow15"},
		OtherConfig: map[string]string{"disable-in-band": "true"}, ExternalIDs: map[string]string{"node": "n1"}, MTU: 1400, Ports: ports,
	}
}

func internal(name string) switchdb.Port {
	return switchdb.Port{Name: name, Type: "internal", ExternalIDs: map[string]string{"pod": name}}
}

// apply applies and fails the test if something was refused.
func apply(t *testing.T, d *switchdb.DB, bridges ...switchdb.Bridge) switchdb.Report {
	t.Helper()
	report, err := d.Apply(patient(t), bridges, switchdb.Options{})
	if err != nil || len(report.Failed) > 0 {
		t.Fatalf("apply: %v, failed %v", err, report.Failed)
	}
	return report
}

func lines(s string) []string { return strings.Fields(s) }

func TestApply(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	tunnel := switchdb.Port{Name: "tun", Type: "vxlan", Options: map[string]string{"remote_ip": "flow", "key": "flow"}, OFPort: 77}
	report := apply(t, d, bridge(internal("p1"), internal("p2"), tunnel))
	want := []string{"add bridge br-int", "add port p1 to bridge br-int", "add port p2 to bridge br-int", "add port tun to bridge br-int"}
	if diff := cmp.Diff(want, report.Changes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(report.Ports) != 4 || report.Ports["tun"] != 77 || report.Ports["br-int"] != 65534 {
		t.Errorf("ports are %v", report.Ports)
	}
	// ovs-vsctl is the reference for what is in the database.
	for _, test := range []struct{ table, row, column, want string }{
		{"Bridge", "br-int", "fail_mode", "secure"},
		{"Bridge", "br-int", "protocols", "[OpenFlow15]"},
		{"Bridge", "br-int", "datapath_type", "netdev"},
		{"Bridge", "br-int", "external_ids", `{node=n1, owner=us}`},
		{"Bridge", "br-int", "other_config", `{disable-in-band="true"}`},
		{"Port", "p1", "external_ids", `{owner=us, pod=p1}`},
		{"Interface", "p1", "ofport", fmt.Sprint(report.Ports["p1"])},
		{"Interface", "tun", "options", `{key=flow, remote_ip=flow}`},
		{"Interface", "br-int", "mtu", "1400"},
	} {
		if got := strings.TrimSpace(o.Run("ovs-vsctl", "get", test.table, test.row, test.column)); got != test.want {
			t.Errorf("%s of %s %s: want %s, got %s", test.column, test.table, test.row, test.want, got)
		}
	}
	if report := apply(t, d, bridge(internal("p1"), internal("p2"), tunnel)); report.Changes != nil || report.Ports["tun"] != 77 {
		t.Errorf("a second time does %v", report)
	}

	changed := internal("p2")
	changed.ExternalIDs = map[string]string{"pod": "other"}
	report = apply(t, d, bridge(changed, internal("p3"), tunnel))
	want = []string{
		"change external_ids of port p2 of bridge br-int", "change external_ids of port p2 of bridge br-int",
		"add port p3 to bridge br-int", "remove port p1 from bridge br-int",
	}
	if diff := cmp.Diff(want, report.Changes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"p2", "p3", "tun"}, lines(o.Run("ovs-vsctl", "list-ports", "br-int"))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	interfaces, err := d.Interfaces(patient(t), "tun", "none", "p2")
	if err != nil || len(interfaces) != 2 || interfaces[0].OFPort != 77 || interfaces[1].Type != "internal" || interfaces[1].LinkState == "" {
		t.Errorf("interfaces are %+v, %v", interfaces, err)
	}
	if s := d.Status(); !s.Connected || s.Behind || !strings.HasPrefix(s.Version, "3.") && s.Version != "" || !slices.Contains(s.DatapathTypes, "netdev") || !slices.Contains(s.InterfaceTypes, "vxlan") {
		t.Errorf("status is %+v", s)
	}
	apply(t, d)
	if got := o.Run("ovs-vsctl", "list-br"); got != "" {
		t.Errorf("the bridge is still there: %s", got)
	}
}

func TestForeign(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	o.Run("ovs-vsctl", "add-br", "theirs", "--", "set", "bridge", "theirs", "datapath_type=netdev", "external_ids:owner=them",
		"--", "add-port", "theirs", "t1", "--", "set", "interface", "t1", "type=internal")
	apply(t, d, bridge(internal("p1")))
	o.Run("ovs-vsctl", "add-port", "br-int", "hand", "--", "set", "interface", "hand", "type=internal", "--", "set-controller", "br-int", "tcp:127.0.0.1:1")
	before := o.Run("ovs-vsctl", "list", "bridge", "theirs") + o.Run("ovs-vsctl", "list", "port", "t1", "hand")

	theirs := bridge(internal("p9"))
	theirs.Name = "theirs"
	report, err := d.Apply(patient(t), []switchdb.Bridge{bridge(internal("p2"), internal("t1"), internal("hand")), theirs}, switchdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	for _, f := range report.Failed {
		failed = append(failed, f.Error())
		if !errors.Is(f, switchdb.ErrForeign) {
			t.Errorf("%v is not ErrForeign", f)
		}
	}
	want := []string{
		"port hand of bridge br-int: a port of this name is in the bridge: it belongs to somebody else",
		"port t1 of bridge br-int: a port of this name is in bridge theirs: it belongs to somebody else",
		"bridge theirs: a bridge of this name exists: it belongs to somebody else",
	}
	if diff := cmp.Diff(want, failed); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if after := o.Run("ovs-vsctl", "list", "bridge", "theirs") + o.Run("ovs-vsctl", "list", "port", "t1", "hand"); after != before {
		t.Errorf("what is theirs changed:\n%s", cmp.Diff(before, after))
	}
	if got := o.Run("ovs-vsctl", "get-controller", "br-int"); got != "" {
		t.Errorf("our bridge has the controller %s", got)
	}
	if diff := cmp.Diff([]string{"hand", "p2"}, lines(o.Run("ovs-vsctl", "list-ports", "br-int"))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBadPorts(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	large := internal("large")
	large.OFPort = 65280
	bad := []switchdb.Bridge{
		bridge(internal("p1"), switchdb.Port{Name: "missing"}, large, internal("p1"), internal("a/b"), internal("sixteen-letters-")),
		{Name: "a/b", FailMode: "secure"},
		bridge(),
		{Name: "lax", FailMode: "none"},
	}
	report, err := d.Apply(patient(t), bad, switchdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range report.Failed {
		got[f.Bridge+" "+f.Port] = f.Err.Error()
	}
	want := map[string]string{
		"br-int p1": "it is desired twice", "br-int missing": "could not open network device missing (No such device)",
		"br-int large": "no port can have the number 65280: the largest is 65279", "br-int a/b": `"a/b" is no name of a link`,
		"br-int sixteen-letters-": `"sixteen-letters-" is no name of a link`, "a/b ": `"a/b" is no name of a bridge`,
		"br-int ": "it is desired twice", "lax ": `the fail mode "none" is neither secure nor standalone`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := lines(o.Run("ovs-vsctl", "list-ports", "br-int")); !slices.Equal(got, []string{"missing", "p1"}) {
		t.Errorf("the bridge has the ports %v", got)
	}
}

func TestAddOnly(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	apply(t, d, bridge(internal("p1"), internal("p2")))
	changed := bridge(internal("p2"), internal("p3"))
	changed.Ports[0].ExternalIDs = nil
	changed.ExternalIDs = nil
	report, err := d.Apply(patient(t), []switchdb.Bridge{changed}, switchdb.Options{AddOnly: true})
	if err != nil || !slices.Equal(report.Changes, []string{"add port p3 to bridge br-int"}) {
		t.Errorf("got %v, %v", report, err)
	}
	changes, failed, err := d.Audit(patient(t), []switchdb.Bridge{changed})
	want := []string{
		"change external_ids of bridge br-int", "change external_ids of port p2 of bridge br-int",
		"change external_ids of port p2 of bridge br-int", "remove port p1 from bridge br-int",
	}
	if diff := cmp.Diff(want, changes); diff != "" || failed != nil || err != nil {
		t.Errorf("%v, %v, (-want +got)\n%s", failed, err, diff)
	}
}

func TestFaults(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	want := bridge(internal("p1"), internal("p2"))
	apply(t, d, want)
	t.Run("switch dead", func(t *testing.T) {
		o.Switch.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		report, err := d.Apply(ctx, []switchdb.Bridge{bridge(internal("p1"), internal("p2"), internal("p3"))}, switchdb.Options{})
		if !errors.Is(err, switchdb.ErrUnrealised) || len(report.Changes) != 1 || len(report.Failed) != 1 || report.Failed[0].Port != "p3" {
			t.Errorf("got %+v, %v", report, err)
		}
		if !d.Status().Behind {
			t.Error("the switch is not said to be behind")
		}
		o.Switch.Start()
		if report := apply(t, d, want); len(report.Ports) != 3 {
			t.Errorf("ports are %v", report.Ports)
		}
	})
	t.Run("wiped", func(t *testing.T) {
		changed := d.Changed()
		o.Wipe()
		<-changed
		began := time.Now()
		for {
			report, err := d.Apply(patient(t), []switchdb.Bridge{want}, switchdb.Options{})
			if err == nil && len(report.Ports) == 3 && len(lines(o.Run("ovs-vsctl", "list-ports", "br-int"))) == 2 {
				break
			}
			t.Logf("after %s: %+v, %v", time.Since(began), report, err)
		}
		t.Logf("all there %s after the empty database was served", time.Since(began))
	})
}

// TestRace holds that two owners and a person do not get into each other's way.
func TestRace(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	a, b := open(t, o, "a"), open(t, o, "b")
	var racers sync.WaitGroup
	for name, d := range map[string]*switchdb.DB{"a": a, "b": b} {
		ctx := patient(t)
		racers.Go(func() {
			for i := range 20 {
				want := switchdb.Bridge{Name: "br-" + name, DatapathType: "netdev", FailMode: "secure"}
				for n := range i % 4 {
					want.Ports = append(want.Ports, internal(fmt.Sprintf("%s%d", name, n)))
				}
				desired := []switchdb.Bridge{want}
				if i%5 == 4 {
					desired = nil
				}
				report, err := d.Apply(ctx, desired, switchdb.Options{})
				if err != nil || len(report.Failed) > 0 {
					t.Errorf("%s, round %d: %v, %v", name, i, report.Failed, err)
				}
			}
		})
	}
	for i := range 10 {
		br := fmt.Sprintf("man%d", i)
		o.Run("ovs-vsctl", "--no-wait", "add-br", br, "--", "set", "bridge", br, "datapath_type=netdev")
	}
	racers.Wait()
	if got := len(lines(o.Run("ovs-vsctl", "list-br"))); got != 10 {
		t.Errorf("%d bridges", got)
	}
}

func TestManyPorts(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	var many []switchdb.Port
	for i := range 200 {
		many = append(many, internal(fmt.Sprintf("p%d", i)))
	}
	began := time.Now()
	report := apply(t, d, bridge(many...))
	t.Logf("200 ports in one transaction: %s", time.Since(began))
	began = time.Now()
	apply(t, d, bridge(many...))
	t.Logf("nothing to do: %s", time.Since(began))
	many = append(many, internal("last"))
	began = time.Now()
	apply(t, d, bridge(many...))
	t.Logf("one more: %s", time.Since(began))
	numbers := map[uint32]bool{}
	for n := range maps.Values(report.Ports) {
		numbers[n] = true
	}
	if len(numbers) != 201 {
		t.Errorf("%d different numbers", len(numbers))
	}
}

func TestConfigure(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	apply(t, d, bridge())
	o.Run("ovs-vsctl", "set", "Open_vSwitch", ".", "other_config:theirs=1")
	for _, test := range []struct{ value, want string }{
		{"true", `{flow-restore-wait="true", theirs="1"}`},
		{"false", `{flow-restore-wait="false", theirs="1"}`},
		{"false", `{flow-restore-wait="false", theirs="1"}`},
		{"", `{theirs="1"}`},
		{"", `{theirs="1"}`},
	} {
		if err := d.Configure(patient(t), "flow-restore-wait", test.value); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(o.Run("ovs-vsctl", "get", "Open_vSwitch", ".", "other_config")); got != test.want {
			t.Errorf("want %s, got %s", test.want, got)
		}
	}
}

// TestNoDatapath holds that a bridge that ovs-vswitchd cannot make is named.
func TestNoDatapath(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	other := bridge(internal("p2"))
	other.Name, other.DatapathType = "br-sys", "warp"
	report, err := d.Apply(patient(t), []switchdb.Bridge{bridge(internal("p1")), other}, switchdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Failed) != 1 || report.Failed[0].Bridge != "br-sys" || report.Failed[0].Port != "" || !errors.Is(report.Failed[0], switchdb.ErrNoBridge) || len(report.Ports) != 2 {
		t.Errorf("got %+v", report)
	}
}

// TestRefused holds that what the database refuses is named, and leaves nothing.
func TestRefused(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := open(t, o, "us")
	bad := bridge(internal("p1"))
	bad.Protocols = []string{"OpenFlow99"}
	_, err := d.Apply(patient(t), []switchdb.Bridge{bad}, switchdb.Options{})
	if err == nil || !strings.Contains(err.Error(), "bridge br-int") || !strings.Contains(err.Error(), "OpenFlow99") {
		t.Errorf("got %v", err)
	}
	if got := o.Run("ovs-vsctl", "list-br"); got != "" {
		t.Errorf("this was left: %s", got)
	}
}
