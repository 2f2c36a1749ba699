package openflowconn_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/openflowconn"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/switchdb"
	"github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

const flowsPerPort = 20

func portFlows(port uint32) []openflow.Flow {
	all := many(flowsPerPort, openflow.Output{Port: openflow.Port(port)}, uint64(port)<<16)
	for i := range all {
		all[i].Match = openflow.NewMatch(append(all[i].Match, openflow.Eq(openflow.InPort, uint64(port)))...)
	}
	return all
}

// attacher attaches ports in two ways to two bridges of one switch.
type attacher struct {
	o     *ovstest.OVS
	db    *switchdb.DB
	conn  *openflowconn.Conn
	ports []switchdb.Port
}

func newAttacher(t testing.TB) *attacher {
	t.Helper()
	a := &attacher{o: ovstest.Start(t, netnstest.New(t))}
	a.o.Run("ovs-vsctl", "add-br", "theirs", "--", "set", "bridge", "theirs", "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15")
	a.db = switchdb.New(switchdb.Config{Socket: a.o.Host.Database(), Mark: switchdb.Mark{Key: "owner", Value: "us"}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = a.db.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	a.apply(t)
	a.conn = run(t, config(a.o))
	await(t, a.conn, connected)
	return a
}

func (a *attacher) apply(t testing.TB) switchdb.Report {
	t.Helper()
	report, err := a.db.Apply(patient(t), []switchdb.Bridge{{
		Name: bridge, DatapathType: "netdev", FailMode: "secure", Protocols: []string{"OpenFlow15"}, Ports: a.ports,
	}}, switchdb.Options{})
	if err != nil || len(report.Failed) > 0 {
		t.Fatalf("apply: %v, %v", err, report.Failed)
	}
	return report
}

// natively makes a port and its flows, and returns when both are realised.
func (a *attacher) natively(t testing.TB, name string) {
	a.ports = append(a.ports, switchdb.Port{Name: name, Type: "internal"})
	report := a.apply(t)
	changes := openflowconn.Diff(openflowconn.Rules{}, openflowconn.Rules{Flows: portFlows(report.Ports[name])})
	if err := a.conn.Commit(patient(t), changes); err != nil {
		t.Fatal(err)
	}
}

// byProgram does the same with the programs of Open vSwitch.
func (a *attacher) byProgram(t testing.TB, name string) {
	number := a.o.Run("ovs-vsctl", "add-port", "theirs", name, "--", "set", "interface", name, "type=internal", "external_ids:owner=them", "--", "get", "interface", name, "ofport")
	if strings.TrimSpace(number) == "[]" {
		number = a.o.Run("ovs-vsctl", "get", "interface", name, "ofport")
	}
	var port uint32
	if _, err := fmt.Sscan(number, &port); err != nil {
		t.Fatalf("ofport is %q", number)
	}
	if out, err := a.o.Try([]byte(openflow.Text(portFlows(port))), "ovs-ofctl", "-O", "OpenFlow15", "--bundle", "add-flows", "theirs", "-"); err != nil {
		t.Fatalf("ovs-ofctl: %v\n%s", err, out)
	}
}

// TestAttachRatio attaches ports with 20 flows each in turns natively and with
// ovs-vsctl and ovs-ofctl, and holds that the native way takes at most 0.3 of the other.
func TestAttachRatio(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement")
	}
	a := newAttacher(t)
	const rounds = 15
	var ours, theirs []time.Duration
	for i := range rounds {
		began := time.Now()
		a.natively(t, fmt.Sprintf("n%d", i))
		between := time.Now()
		a.byProgram(t, fmt.Sprintf("t%d", i))
		ours, theirs = append(ours, between.Sub(began)), append(theirs, time.Since(between))
	}
	if got := len(dump(a.o)); got != rounds*flowsPerPort {
		t.Errorf("%d flows natively", got)
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	ratio := float64(ours[rounds/2]) / float64(theirs[rounds/2])
	t.Logf("attach of one port with %d flows: natively p50 %s (%s to %s), ovs-vsctl and ovs-ofctl p50 %s (%s to %s), ratio %.2f",
		flowsPerPort, ours[rounds/2], ours[0], ours[rounds-1], theirs[rounds/2], theirs[0], theirs[rounds-1], ratio)
	if ratio > 0.3 {
		t.Errorf("the ratio is %.2f", ratio)
	}
}
