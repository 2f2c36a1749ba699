package ovsplane

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/switchdb"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
)

// TestNumber holds which numbers ports of pods ask for.
func TestNumber(t *testing.T) {
	p := &Plane{}
	ask := func(known map[string]switchdb.Numbered, names ...string) (out []uint16) {
		b := switchdb.Bridge{Name: claims.OVSBridge, Ports: []switchdb.Port{{Name: claims.OVSHostPort, OFPort: 1}}}
		for _, name := range names {
			b.Ports = append(b.Ports, switchdb.Port{Name: name})
		}
		wanted := []switchdb.Bridge{b}
		p.number(wanted, known)
		for _, port := range wanted[0].Ports {
			out = append(out, port.OFPort)
		}
		return out
	}
	for _, tc := range []struct {
		what  string
		known map[string]switchdb.Numbered
		names []string
		want  []uint16
	}{
		{"new ones, beside another's", map[string]switchdb.Numbered{"x": {OFPort: 0x8001}, "y": {Request: 0x8002}}, []string{"flpa", "flpb"}, []uint16{1, 0x8000, 0x8003}},
		{"remembered, and of an earlier agent", map[string]switchdb.Numbered{"flpc": {OFPort: 9}, "flpd": {OFPort: 0x9000, Request: 0x9000}}, []string{"flpa", "flpb", "flpc", "flpd"}, []uint16{1, 0x8000, 0x8003, 0, 0x9000}},
		{"one that was given up is not the next", nil, []string{"flpe"}, []uint16{1, 0x8004}},
	} {
		if got := ask(tc.known, tc.names...); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.what, got, tc.want)
		}
	}
	p.nextNumber = lastPodPort
	if got, want := ask(nil, "flpe", "flpf", "flpg"), []uint16{1, 0x8004, uint16(lastPodPort), 0x8000}; !slices.Equal(got, want) {
		t.Errorf("at the end: got %v, want %v", got, want)
	}
}

// TestFlowsComeWithTheirPort holds that the flows of a new port are there when the switch has
// it, and those of a port that gets another number than it asked for are never for that one.
func TestFlowsComeWithTheirPort(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	t.Cleanup(func() { _ = p.Close() })
	desired := n.intentOf(t, 4)
	first := desired
	first.Ports = desired.Ports[:1]
	applied(t, p, first, apply.Options{})
	committed := func() int {
		flows := n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "--names", "dump-flows", claims.OVSBridge, "table=0")
		return strings.Count(strings.ReplaceAll(flows, `"`, ""), "in_port="+claims.PortPrefix)
	}
	numberOf := func(port intent.Port) string {
		return strings.TrimSpace(n.ovs.Run("ovs-vsctl", "get", "Interface", port.HostInterface, "ofport"))
	}
	second := desired
	second.Ports = desired.Ports[:2]
	together := func(r apply.Report) bool {
		return slices.ContainsFunc(r.Changes, func(c string) bool { return strings.HasSuffix(c, withPortsNote) })
	}
	r := applied(t, p, second, apply.Options{})
	if got := committed(); got != 2 || !together(r) {
		t.Errorf("%d ports have flows; %q", got, r.Changes)
	}
	if got, want := numberOf(second.Ports[1]), fmt.Sprint(p.asked[second.Ports[1].HostInterface]); got != want {
		t.Errorf("the port has the number %s, asked for %s", got, want)
	}
	if !n.reaches(t, second.Ports[0], second.Ports[1]) {
		t.Error("the second pod is not reached")
	}
	// Somebody else's port has the number that the third asks for.
	const taken = 0x9999
	n.ovs.Run("ovs-vsctl", "add-port", claims.OVSBridge, "theirs", "--", "set", "Interface", "theirs", "type=internal", fmt.Sprintf("ofport_request=%d", taken))
	third := desired
	third.Ports = desired.Ports[:3]
	p.mu.Lock()
	p.asked[third.Ports[2].HostInterface] = taken
	p.mu.Unlock()
	r = applied(t, p, third, apply.Options{})
	if got := committed(); got != 3 || together(r) {
		t.Errorf("%d ports have flows; %q", got, r.Changes)
	}
	if flows := n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "--no-names", "dump-flows", claims.OVSBridge); strings.Contains(flows, fmt.Sprintf("in_port=%d", taken)) {
		t.Errorf("a foreign port has flows of a pod:\n%s", flows)
	}
	if !n.reaches(t, third.Ports[0], third.Ports[2]) {
		t.Error("the third pod is not reached")
	}
	if r = applied(t, p, desired, apply.Options{}); !together(r) {
		t.Errorf("flows come after their port again: %q", r.Changes)
	}
	if !n.reaches(t, desired.Ports[2], desired.Ports[3]) {
		t.Error("the last pod is not reached")
	}
	// A port that was taken out has its flows already, and comes back to its number.
	n.ovs.Run("ovs-vsctl", "del-port", claims.OVSBridge, second.Ports[1].HostInterface)
	applied(t, p, desired, apply.Options{})
	// What the datapath has cached of the time before, it looks over by itself.
	for try := 1; !n.reaches(t, second.Ports[0], second.Ports[1]); try++ {
		if try == 10 {
			t.Fatal("the second pod is not reached any more")
		}
	}
	if got := p.differences(t, desired); len(got) > 0 {
		t.Errorf("there are differences: %v", got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known, err := p.db.Numbers(t.Context())
	if what := p.renumbered(known); what != "" || err != nil {
		t.Errorf("%s, %v", what, err)
	}
	p.flows.numbers[third.Ports[2].HostInterface] = of.Port(taken)
	if p.renumbered(known) == "" {
		t.Error("a port that was renumbered is not noticed")
	}
}
