package agreement_test

import (
	"os"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/test/agreement"
)

// cluster is a world as a plane has it.
type cluster interface {
	Become(*world.Snapshot) error
	Send(p oracle.Probe, flags uint32) (agreement.Result, error)
	Intent(node string) (intent.Node, bool)
}

// plane is what is held against the oracle.
type plane struct {
	open func(*world.Snapshot) (cluster, error)
	// deviation names what the plane is known to do otherwise; nil if it is nothing.
	deviation func(shot, oracle.Verdict, agreement.Result) string
	// forgets says that the plane's connection tracking forgets what RST and FIN have
	// ended. The oracle does not, so there are none.
	forgets bool
}

// flags of the segment that a shot is.
func (p plane) flags(s shot) uint32 {
	const ends = of.TCPRst | of.TCPFin
	if p.forgets && s.flags&ends != 0 {
		return of.TCPAck
	}
	return s.flags
}

var linux = plane{
	open: func(s *world.Snapshot) (cluster, error) { return agreement.New(s) },
}

func openVSwitch(datapath string) plane {
	return plane{
		open: func(s *world.Snapshot) (cluster, error) {
			return agreement.NewOVS(s, ovs.Switch{Datapath: datapath, Uplink: "eth0"})
		},
		deviation: ovsDeviation,
		forgets:   true,
	}
}

// trace makes a cluster tell the steps of packets.
func trace(c cluster, on bool) {
	switch c := c.(type) {
	case *agreement.Cluster:
		c.Trace = on
	case *agreement.OVSCluster:
		c.Trace = on
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

// ovsDeviation names what the pipeline and the host's table are known to do otherwise. All
// of it concerns what nodes send themselves.
func ovsDeviation(s shot, v oracle.Verdict, observed agreement.Result) string {
	if to := v.Outcomes[0].At; (s.kind == "answer" || s.kind == "ICMP error") && (s.From.Kind == oracle.Node || to.Kind == oracle.Node) &&
		(strings.HasSuffix(observed.Why, ovs.MiddleOfTCP) || strings.HasSuffix(observed.Why, ovs.NoFlow)) {
		return "a bridge that has not seen what a node sent refuses the answer"
	}
	if s.From.Kind != oracle.Node {
		return ""
	}
	asSent := observed.Outcome
	asSent.Packet.Src, asSent.Packet.SrcPort = s.Packet.Src, s.Packet.SrcPort
	stage, to := v.Stages[len(v.Stages)-1], v.Outcomes[0].At.Kind
	switch {
	case !observed.Dropped && observed.Packet.Src != s.Packet.Src && (v.Permits(asSent) || stage.Name == "path"):
		return "what a node sends with its address in another Subnet of the VPC gets the one of the receiver's"
	case strings.HasSuffix(observed.Why, "wire in: the inner source is not of that node") && to == oracle.Node:
		return "what a node sends with its address in another Subnet of the VPC gets one that the receiver refuses"
	case strings.HasSuffix(observed.Why, "lo has no address to masquerade with"):
		return "what a node sends itself with its address in a Subnet is masqueraded"
	case strings.HasSuffix(observed.Why, ovs.MiddleOfTCP) && to == oracle.Node:
		return "TCP between nodes by their addresses in a Subnet does not go on where connections were forgotten"
	case strings.Contains(observed.Why, ": denied by ") && to == oracle.Pod:
		return "what a node without an address in the VPC's Subnets sends to its pods is judged"
	}
	return ""
}
