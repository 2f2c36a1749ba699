package ovsplane

import (
	"testing"

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
	for name, tc := range map[string]struct {
		at      apply.Passage
		verdict string
	}{
		"denied":        {at(a, b), "drop"},
		"allowed":       {at(b, a), "accept"},
		"from a peer":   {elsewhere, "accept"},
		"from the node": {node, "accept"},
	} {
		w, err := p.Explain(t.Context(), desired, tc.at)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if w.Verdict != tc.verdict || len(w.Steps) < 4 || len(w.Missing) > 0 {
			t.Errorf("%s: %s, want %s: %+v, missing %v", name, w.Verdict, tc.verdict, w.Steps, w.Missing)
		}
		for _, s := range w.Steps {
			if s.Handle == 0 || s.Packets == nil {
				t.Errorf("%s: nothing shows that the switch has %+v", name, s)
			}
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
	n.ovs.Run("ovs-ofctl", "-O", "OpenFlow15", "del-flows", claims.OVSBridge, "table=62")
	if w, err := p.Explain(t.Context(), desired, at(b, a)); err != nil || len(w.Missing) == 0 {
		t.Errorf("a flow was deleted and is not missed: %+v, %v", w, err)
	}
}
