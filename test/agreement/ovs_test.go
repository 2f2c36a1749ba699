package agreement_test

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
	"github.com/fairlead-sdn/fairlead/test/agreement"
)

// plane is what is held against the oracle.
type plane struct {
	open func(*world.Snapshot) (*agreement.Cluster, error)
	// deviation names what the plane is known to do otherwise; nil if it is nothing.
	deviation func(shot, oracle.Verdict, agreement.Result) string
	// forgets says that the plane's connection tracking forgets what RST and FIN have
	// ended.
	forgets bool
}

var linux = plane{
	open: agreement.New,
}

func openVSwitch(datapath string) plane {
	return plane{
		open: func(s *world.Snapshot) (*agreement.Cluster, error) {
			return agreement.NewOVS(s, ovs.Switch{Datapath: datapath, Uplink: "eth0"})
		},
		deviation: ovsDeviation,
		forgets:   true,
	}
}

// TestOVSAgreesWithOracle is the same proof for the pipeline of Open vSwitch, with the
// datapath in userspace and in the kernel.
func TestOVSAgreesWithOracle(t *testing.T) {
	for _, datapath := range []string{ovs.Netdev, ovs.System} {
		t.Run(datapath, func(t *testing.T) { prove(t, openVSwitch(datapath), 10_000, 40) })
	}
}

// TestOVSAgreesWithOracleLong sends 10⁶ packets, if FAIRLEAD_LONG is set.
func TestOVSAgreesWithOracleLong(t *testing.T) {
	if os.Getenv("FAIRLEAD_LONG") == "" {
		t.Skip("set FAIRLEAD_LONG=1 for 10⁶ packets")
	}
	prove(t, openVSwitch(ovs.Netdev), 1_000_000, 150)
}

// ovsDeviation names what the pipeline and the host's table do otherwise. The bridge knows
// the node itself by its address in the VPC, so what a node sends from another one to a pod
// of its own gets that one, and its port, if that is free. Else nothing is otherwise.
func ovsDeviation(s shot, v oracle.Verdict, observed agreement.Result) string {
	asSent := observed.Outcome
	asSent.Packet.Src, asSent.Packet.SrcPort = s.Packet.Src, s.Packet.SrcPort
	switch {
	case s.From.Kind != oracle.Node || observed.Dropped || !v.Permits(asSent):
		return ""
	case observed.Packet.Src == s.Packet.Src:
		return "what a node sends gets another port, for what it sends from another address has that one"
	case observed.At.Kind == oracle.Pod && observed.At.Node == s.From.Node:
		return "what a node sends a pod of its own from its underlay address gets the one in the VPC"
	}
	return ""
}

// TestOVSNodeReachesItsPods sends what a kubelet sends: with the address that the kernel
// takes, to every pod of the node, whatever policies say, and whether or not the node
// has an address in the pod's VPC. The pod's answer comes back.
func TestOVSNodeReachesItsPods(t *testing.T) {
	// Packets by whether the pod's policy would deny them, and the node has no address in the
	// VPC.
	sent := map[[2]bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		snap := worldtest.DrawPolicies(t, worldtest.Draw(t))
		c, err := agreement.NewOVS(snap, ovs.Switch{Datapath: ovs.Netdev, Uplink: "eth0"})
		if err != nil {
			t.Fatal(err)
		}
		c.Trace = true
		for network := range snap.NodeNetworks.Values() {
			n, _ := c.Intent(network.Name)
			for _, port := range n.Ports {
				for _, a := range port.Addresses {
					if from, ok := c.Source(n.Name, a); ok {
						denied, stranger := probe(t, c, n, port, from, a)
						sent[[2]bool{denied, stranger}]++
					}
				}
			}
		}
	})
	if testing.Short() {
		return // too few worlds to meet every kind
	}
	for _, kind := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
		if sent[kind] == 0 {
			t.Errorf("no probe was denied by policy (%v) from a node without an address in the VPC (%v)", kind[0], kind[1])
		}
	}
}

// probe sends one probe and its answer, and reports whether policy would deny the probe,
// and whether the node has no address in the pod's VPC.
func probe(t *rapid.T, c *agreement.Cluster, n intent.Node, port intent.Port, from, to netip.Addr) (denied, stranger bool) {
	node := oracle.Place{Kind: oracle.Node, Node: n.Name}
	k := packet.Packet{Src: from, Dst: to, Protocol: packet.TCP, SrcPort: 40000, DstPort: 8080, SYN: true}
	there, err := c.Send(oracle.Probe{From: node, Packet: k}, 0)
	if err != nil || there.Dropped || agreement.Port(there.At.Pod) != port.ID || there.Packet != k {
		t.Fatalf("%s sends %s: %s %s %v\n%s", node, k, there.Outcome, there.Why, err, strings.Join(there.Steps, "\n"))
	}
	back, err := c.Send(oracle.Probe{From: there.At, Packet: there.Packet.Reverse()}, nftables.TCPSyn|nftables.TCPAck)
	if err != nil || back.Dropped || back.At != node {
		t.Fatalf("%s answers %s: %s %s %v\n%s", there.At, there.Packet, back.Outcome, back.Why, err, strings.Join(back.Steps, "\n"))
	}
	allowed, _ := n.Judge(port, intent.Ingress, k)
	return !allowed, !slices.ContainsFunc(n.Tunnels, func(a intent.TunnelAddress) bool { return a.VPC == port.VPC && a.Addr.Is4() == to.Is4() })
}
