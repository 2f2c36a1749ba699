package openflowconn

import (
	"errors"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/lab/ovshost/ovstest"
)

// TestRefusedWhileFilling holds that thousands of messages that the switch cannot read,
// which it refuses while more are on their way, neither block the connection nor leave
// anything behind, and that the first of them is named.
func TestRefusedWhileFilling(t *testing.T) {
	o := ovstest.Start(t, netnstest.New(t))
	o.Run("ovs-vsctl", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15")
	c := start(t, Config{Socket: o.Host.Management("br0"), Probe: 20 * time.Second})
	if _, err := c.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	unreadable := openflow.Unknown{Wire: []byte{0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0x3, 0xe7, 0, 0, 0, 0, 0, 0}}
	messages := []message{flowMessage(openflow.FlowMod{Flow: openflow.Flow{Table: 1}})}
	for i := range 5000 {
		messages = append(messages, flowMessage(openflow.FlowMod{Flow: openflow.Flow{
			Table: 2, Priority: uint16(i), Comment: "bad", Actions: []openflow.Action{unreadable},
		}}))
	}
	var refused *RefusedError
	err := c.commit(t.Context(), messages, 7)
	if !errors.As(err, &refused) || len(refused.Refused) != maxRefusals || refused.Committed != 7 || refused.Refused[0].Flow.Flow.Priority != 0 || refused.Refused[0].Comment() != "bad" {
		t.Fatalf("got %v", err)
	}
	r, err := c.Read(t.Context())
	if err != nil || len(r.Flows) != 0 {
		t.Errorf("flows are %v, %v", r.Flows, err)
	}
}
