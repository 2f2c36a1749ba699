package switchdb

import (
	"context"
	"sync"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

// TestStalePlan holds that a transaction that was made for a database that has changed
// since is refused whole, in a way that Apply takes for a reason to look again.
func TestStalePlan(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	d := New(Config{Socket: o.Host.Database(), Mark: Mark{"owner", "us"}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	bridge := Bridge{Name: "br-int", DatapathType: "netdev", FailMode: "secure"}
	larger := bridge
	larger.Ports = []Port{{Name: "p1", Type: "internal"}}
	snapshot := func() *ovsdb.Snapshot {
		s, err := d.client.Await(t.Context(), synced)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, test := range []struct {
		name      string
		have      []Bridge
		want      Bridge
		meanwhile []string
		left      string
	}{
		{"the bridge vanished", []Bridge{bridge}, larger, []string{"del-br", "br-int"}, ""},
		{"the bridge was made", nil, larger, []string{"add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev"}, "br-int\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := d.Apply(t.Context(), test.have, Options{}); err != nil {
				t.Fatal(err)
			}
			p := planFor(snapshot(), d.mark, []Bridge{test.want}, Options{})
			o.Run("ovs-vsctl", test.meanwhile...)
			if _, err := d.client.Transact(t.Context(), p.ops...); !raced(err) {
				t.Errorf("got %v", err)
			}
			if got := o.Run("ovs-vsctl", "list-br"); got != test.left {
				t.Errorf("bridges are %q", got)
			}
			if got := o.Run("ovs-vsctl", "--bare", "--columns=name", "find", "port", "name=p1"); got != "" {
				t.Errorf("ports are %q", got)
			}
		})
	}
}
