package linuxplane

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// explain asks a node about the first packet of a TCP flow between two ports of the
// cluster.
func (c *cluster) explain(node int, from, to intent.Port, port uint16) apply.Walk {
	c.Helper()
	m := c.nodes[node]
	at := apply.Passage{VNI: from.VNI, Packet: packet.Packet{
		Src: from.Addresses[0], Dst: to.Addresses[0], Protocol: packet.TCP, SrcPort: 49152, DstPort: port, SYN: true,
	}}
	for i, p := range m.intent.Ports {
		if p.ID == from.ID {
			at.Sender = &m.intent.Ports[i]
		}
		if p.ID == to.ID {
			at.Receiver = &m.intent.Ports[i]
		}
	}
	w, err := m.plane.Explain(c.Context(), m.intent, at)
	if err != nil {
		c.Fatal(err)
	}
	return w
}

// What a plane explains is what the kernel holds, and the flows that it lists are those
// that are there.
func TestExplainAndFlowsOfTheKernel(t *testing.T) {
	c := newCluster(t, true, false)
	here, there := c.nodes[0], c.nodes[1]
	to := here.intent.Ports[1]
	at := netip.AddrPortFrom(to.Addresses[0], 9000)
	s := c.flow("tcp", there.pods[0], here.pods[1], at, at)
	s.runs()
	flows := func() (out []apply.Flow) {
		err := here.plane.Flows(t.Context(), here.intent, func(f apply.Flow) bool {
			if f.Dst == at.Addr() && f.DstPort == at.Port() {
				out = append(out, f)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := flows(); len(got) != 1 || got[0].Src != there.intent.Ports[0].Addresses[0] || got[0].Protocol != packet.TCP || got[0].Cut {
		t.Errorf("flows %+v, want the one that runs", got)
	}
	n := 0
	if err := here.plane.Flows(t.Context(), here.intent, func(apply.Flow) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("a reader that has enough was called %d times: %v", n, err)
	}

	here.set("bad", there.intent.Ports[0].Addresses[0])
	here.list(1, intent.Ingress, intent.Match{Sets: []string{"bad"}})
	c.report(0, apply.Options{})
	s.silent()
	if got := flows(); len(got) != 1 || !got[0].Cut {
		t.Errorf("flows %+v, want one that is cut", got)
	}
	for _, tt := range []struct {
		from intent.Port
		want string
	}{{there.intent.Ports[0], "drop"}, {here.intent.Ports[0], "accept"}} {
		w := c.explain(0, tt.from, to, 9000)
		if w.Verdict != tt.want || len(w.Missing) > 0 {
			t.Errorf("from %s: %q, want %q; missing %q: %s", tt.from.ID, w.Verdict, tt.want, w.Missing, lines(w))
		}
		counted := false
		for _, s := range w.Steps {
			if s.Rule >= 0 && s.Handle == 0 {
				t.Errorf("a step without a handle: %+v", s)
			}
			counted = counted || s.Packets != nil
		}
		if tt.want == "drop" && !counted {
			t.Errorf("nothing is counted on the way: %s", lines(w))
		}
	}

	// Not applied: the rules that are asked for are not in the kernel.
	here.set("bad", here.intent.Ports[0].Addresses[0])
	w := c.explain(0, here.intent.Ports[0], to, 9000)
	if w.Verdict != "drop" || !slices.ContainsFunc(w.Missing, func(m string) bool { return m != "" }) {
		t.Errorf("an intent that is not applied: %q, missing %q", w.Verdict, w.Missing)
	}
}

// What others took from the kernel is missed, by stage.
func TestExplainMissesWhatIsGone(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	from, to := here.intent.Ports[0], here.intent.Ports[1]
	h := handle(t, here.ns)
	link, err := h.LinkByName(to.HostInterface)
	if err != nil {
		t.Fatal(err)
	}
	if w := c.explain(0, from, to, 80); w.Verdict != "accept" || len(w.Missing) > 0 {
		t.Fatalf("%q, missing %q: %s", w.Verdict, w.Missing, lines(w))
	}
	for _, fault := range []struct {
		want string
		do   func() error
	}{
		{"delivery: the kernel's neighbour for ", func() error {
			return h.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: to.Addresses[0].AsSlice()})
		}},
		{"path: the kernel's route to ", func() error {
			a := to.Addresses[0]
			return h.RouteDel(&netlink.Route{Scope: netlink.SCOPE_NOWHERE, LinkIndex: link.Attrs().Index, Dst: network(netip.PrefixFrom(a, a.BitLen()))})
		}},
		{"source: ", func() error {
			own, err := h.LinkByName(from.HostInterface)
			if err != nil {
				return err
			}
			return h.LinkDel(own)
		}},
	} {
		if err := fault.do(); err != nil {
			t.Fatal(err)
		}
		w := c.explain(0, from, to, 80)
		if !slices.ContainsFunc(w.Missing, func(m string) bool { return strings.HasPrefix(m, fault.want) }) {
			t.Errorf("missing %q, want %q: %s", w.Missing, fault.want, lines(w))
		}
	}
}
