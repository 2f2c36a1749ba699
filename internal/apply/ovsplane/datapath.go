package ovsplane

import (
	"github.com/fairlead-sdn/fairlead/internal/apply/ovsdb/switchdb"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
)

// datapath is where packets are forwarded, and why there.
type datapath struct {
	// kind is ovs.System or ovs.Netdev.
	kind   string
	reason string
}

// name is the datapath's in dpctl's words.
func (d datapath) name() string { return d.kind + "@ovs-" + d.kind }

// chooseDatapath takes what was asked for, or the kernel's where it has one.
func (h *host) chooseDatapath(asked string) datapath {
	if asked != "" && asked != "auto" {
		return datapath{asked, "configured"}
	}
	// Asking for the family loads the module where there is one.
	if _, err := h.h.GenlFamilyGet("ovs_datapath"); err == nil {
		return datapath{ovs.System, "the kernel has the module openvswitch"}
	}
	return datapath{ovs.Netdev, "the kernel has no module openvswitch"}
}

// describe is for people who read the status.
func (d datapath) describe() string {
	if d.kind == ovs.System {
		return "Open vSwitch datapath system (" + d.reason + ")"
	}
	return "Open vSwitch datapath netdev, in userspace (" + d.reason +
		"): transmit offloads of pods are off, oversize tunnel packets are dropped without ICMP, flows and connection tracking are lost when ovs-vswitchd restarts"
}

// switchOf is what of the bridges does not come from the intent. uplink is empty unless
// the NIC must be a port of ours.
func (d datapath) switchOf(uplink string) ovs.Switch {
	return ovs.Switch{Datapath: d.kind, Uplink: uplink}
}

// bridges are those of an intent in the words of the database. hwaddr is the NIC's: its
// bridge speaks with the same, or neighbours would see the node's address move.
func bridges(n intent.Node, s ovs.Switch, hwaddr string) []switchdb.Bridge {
	var out []switchdb.Bridge
	for _, b := range ovs.RenderBridges(n, s) {
		bridge := switchdb.Bridge{Name: b.Name, DatapathType: b.Datapath, FailMode: b.FailMode, Protocols: b.Protocols}
		if b.Name == claims.OVSUnderlayBridge {
			bridge.OtherConfig = map[string]string{"hwaddr": hwaddr}
		}
		for _, p := range b.Ports {
			bridge.Ports = append(bridge.Ports, switchdb.Port{
				Name: p.Name, Type: p.Type, Options: p.Options, ExternalIDs: p.ExternalIDs, OFPort: uint16(p.Number), MTU: p.MTU,
			})
		}
		out = append(out, bridge)
	}
	return out
}
