package ovsplane

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

const tracedText = `Flow: tcp,in_port=3,nw_src=10.1.0.5

bridge("fairlead")
------------------
 0. in_port=3, priority 10, cookie 0x666c726400000000
    set_field:0x1/0x7->reg0
    goto_table:30
30. priority 1
    output:2
     -> output to native tunnel
     -> tunneling to 172.30.0.13 via fairlead-phy
     -> neighbor cache miss for 172.30.0.13 on bridge fairlead-phy, sending ARP request

bridge("fairlead-phy")
----------------------
 0. priority 0
    NORMAL
     -> no learned MAC for destination, flooding

bridge("fairlead")
------------------
    thaw
        Resuming from table 31
31. No match.
    drop
`

func TestParseTrace(t *testing.T) {
	got := parseTrace(tracedText, "fairlead")
	want := traced{
		path:  []met{{table: 0, match: "in_port=3", priority: 10}, {table: 30, priority: 1}, {table: 31, missed: true}},
		sent:  true,
		notes: []string{"output to native tunnel", "tunneling to 172.30.0.13 via fairlead-phy", "neighbor cache miss for 172.30.0.13 on bridge fairlead-phy, sending ARP request"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(traced{}, met{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	lost := parseTrace("    output:2\n     -> native tunnel routing failed\n", "fairlead")
	if !lost.sent || lost.lost != "native tunnel routing failed" {
		t.Errorf("%+v, want it to be lost", lost)
	}
}

func TestMet(t *testing.T) {
	flow := of.Flow{Table: 30, Priority: 7, Match: of.NewMatch(of.Eq(of.Reg6, 0), of.Eq(of.InPort, 3))}
	s := step{table: 30, flow: &flow}
	for _, tt := range []struct {
		m    met
		want bool
	}{
		{met{table: 30, match: "reg6=0,in_port=3", priority: 7}, true},
		{met{table: 30, match: "reg6=0,in_port=4", priority: 7}, false},
		{met{table: 30, match: "reg6=0,in_port=3", priority: 8}, false},
		{met{table: 31, match: "reg6=0,in_port=3", priority: 7}, false},
		{met{table: 30, missed: true}, false},
		{met{table: 30, match: "a field of a later version=1", priority: 7}, true},
	} {
		if got := tt.m.is(s); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.m, got, tt.want)
		}
	}
}
