package ovsplane

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// TestExplain: the plane shows the flows that decide, with the switch's counters, and
// misses those that are not there.
func TestExplain(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	defer p.Close()
	desired := n.intentOf(t, 2)
	desired.RuleLists = []intent.RuleList{{ID: "deny", Direction: intent.Ingress, VPC: packet.DefaultVPC, Rules: []intent.Rule{{Tier: intent.TierNetworkPolicy, Action: intent.Deny}}}}
	desired.Ports[1].Ingress = "deny"
	applied(t, p, desired, apply.Options{})
	a, b := &desired.Ports[0], &desired.Ports[1]
	at := func(from, to *intent.Port) apply.Passage {
		return apply.Passage{Packet: packet.Packet{Src: from.Addresses[0], Dst: to.Addresses[0], Protocol: packet.TCP, SrcPort: 999, DstPort: 80, SYN: true}, Sender: from, Receiver: to}
	}
	elsewhere := at(a, a)
	elsewhere.Sender, elsewhere.VNI, elsewhere.Packet.Src = nil, 10, addr("10.128.1.9")
	node := at(a, b)
	node.Sender, node.FromNode, node.Packet.Src = nil, true, addr("192.0.2.1")
	group, outside, own := at(a, b), at(b, a), at(b, a)
	group.Receiver, group.Packet.Dst = nil, addr("224.0.0.1")
	outside.Receiver, outside.Packet.Dst = nil, addr("192.0.2.77")
	own.Receiver, own.Packet.Dst = nil, addr("192.0.2.1")
	for name, tc := range map[string]struct {
		at      apply.Passage
		verdict string
		// hooks that the packet passes, in order.
		hooks string
	}{
		"denied":         {at(a, b), "drop", "bridge"},
		"allowed":        {at(b, a), "accept", "bridge"},
		"from a peer":    {elsewhere, "accept", "bridge"},
		"from the node":  {node, "accept", "route postrouting bridge"},
		"to everybody":   {group, "drop", "bridge"},
		"to the outside": {outside, "accept", "bridge prerouting route forward postrouting"},
		"to the node":    {own, "accept", "bridge prerouting route"},
	} {
		w, err := p.Explain(t.Context(), desired, tc.at)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if w.Verdict != tc.verdict || len(w.Steps) < 3 || len(w.Missing) > 0 {
			t.Errorf("%s: %s, want %s: %+v, missing %v", name, w.Verdict, tc.verdict, w.Steps, w.Missing)
		}
		var hooks []string
		for _, s := range w.Steps {
			if s.Stage == "" || s.Rule >= 0 && (s.Handle == 0 || s.Live == "") || s.Hook == "bridge" && (s.Packets == nil || !strings.HasPrefix(s.Live, "met, ")) {
				t.Errorf("%s: nothing shows that the node has %+v", name, s)
			}
			hooks = append(hooks, s.Hook)
		}
		if got := strings.Join(slices.Compact(hooks), " "); got != tc.hooks {
			t.Errorf("%s: by %s, want %s", name, got, tc.hooks)
		}
		if want := tc.verdict; name != "to the outside" && name != "to the node" && w.Live != want {
			t.Errorf("%s: the switch says %q, want %q", name, w.Live, want)
		}
	}
	n.converse(t, *b, *a, a.Addresses[0], packet.UDP)
	found := false
	err := p.Flows(t.Context(), desired, func(f apply.Flow) bool {
		found = found || f.Src == b.Addresses[0] && f.Dst == a.Addresses[0]
		return true
	})
	if err != nil || !found {
		t.Errorf("flows: found %v, %v", found, err)
	}
	for _, fault := range []struct {
		name string
		do   []string
		want []string
	}{
		{"a flow that takes packets away", []string{"add-flow", claims.OVSBridge, "table=30,priority=60000,actions=drop"}, []string{"path: ofproto/trace meets flow priority=60000 of table route in place of "}},
		{"a changed flow", []string{"mod-flows", "--strict", claims.OVSBridge, "table=31,priority=0,actions=drop"}, []string{"path: flow priority=0 of table ways has the actions drop, want "}},
		{"a flow deleted", []string{"del-flows", claims.OVSBridge, "table=62"}, []string{"delivery: flow "}},
	} {
		n.ovs.Run("ovs-ofctl", append([]string{"-O", "OpenFlow15"}, fault.do...)...)
		w, err := p.Explain(t.Context(), desired, at(b, a))
		for _, want := range fault.want {
			if err != nil || w.Live != "drop" || !slices.ContainsFunc(w.Missing, func(m string) bool { return strings.HasPrefix(m, want) }) {
				t.Errorf("%s: %v, %s, missing %q, want %q", fault.name, err, w.Live, w.Missing, want)
			}
		}
	}
}

// TestForeignFlows: flows of others in our bridges stay, an audit names those that take packets
// from ours, and what is shown for people has them all.
func TestForeignFlows(t *testing.T) {
	n := newNode(t)
	p := n.open(t)
	defer p.Close()
	desired := n.intentOf(t, 2)
	applied(t, p, desired, apply.Options{})
	for bridge, flows := range map[string][]string{
		claims.OVSBridge: {
			"cookie=0x42,table=0,priority=60000,ip,actions=drop",
			"cookie=0x42,table=30,priority=100,ip,nw_dst=10.128.0.0/14,actions=drop",
			"cookie=0x42,table=200,priority=1,actions=drop", // nothing of ours is there
		},
		claims.OVSUnderlayBridge: {"cookie=0x43,priority=1,udp,actions=drop"},
	} {
		for _, f := range flows {
			n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "add-flow", bridge, f)
		}
	}
	applied(t, p, desired, apply.Options{Refresh: true})
	var got []string
	for _, d := range p.differences(t, desired) {
		if d.Problem != "shadowing" || d.Want == "" || d.Got != "0 packets" {
			t.Errorf("difference %+v", d)
		}
		got = append(got, d.Object)
		if d.Object == "flow cookie=0x42, priority=60000,ip actions=drop" && !strings.HasPrefix(d.Want, "table classify: ") {
			t.Errorf("%s takes packets from %q", d.Object, d.Want)
		}
	}
	want := []string{
		"flow cookie=0x42, priority=60000,ip actions=drop",
		"flow cookie=0x42, table=30, priority=100,ip,nw_dst=10.128.0.0/14 actions=drop",
		"flow cookie=0x43, priority=1,udp actions=drop of bridge fairlead-phy",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit (-want +got): %s", diff)
	}
	told := func(gone ...string) func() bool {
		return func() bool {
			found, err := p.Shadowing(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range found {
				got = append(got, d.Object)
			}
			return slices.Equal(got, slices.DeleteFunc(slices.Clone(want), func(w string) bool { return slices.Contains(gone, w) }))
		}
	}
	until(t, "the foreign flows are told without an audit", told())
	n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", claims.OVSBridge, "cookie=0x42/-1,table=0")
	until(t, "one that is gone is not", told(want[0]))
	n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", claims.OVSUnderlayBridge, "cookie=0x43/-1")
	until(t, "nor in the other bridge", told(want[0], want[2]))
	n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "add-flow", claims.OVSBridge, "cookie=0x42,table=0,priority=60000,ip,actions=drop")
	if text := p.Tables(desired); strings.Count(text, "somebody else's, cookie 0x42: 0 packets") != 3 {
		t.Errorf("the tables lack foreign flows:\n%s", text)
	}
}
