package apply

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Passage is the first packet of a flow, as a node meets it.
type Passage struct {
	Packet packet.Packet
	// Sender and Receiver are ports of the node; nil: it comes from, or goes, elsewhere.
	Sender, Receiver *intent.Port
	// FromNode: the node itself sends it.
	FromNode bool
	// VNI that it bears on the wire, if it comes from another node by the tunnel.
	VNI packet.VNI
}

// The stages of a packet's way, in the oracle's words.
const (
	StageSource      = "source"
	StageDestination = "destination"
	StageVPC         = "vpc"
	StageTenant      = "tenant"
	StageEgress      = "egress"
	StageFlow        = "flow"
	StageNAT         = "nat"
	StagePath        = "path"
	StageIngress     = "ingress"
	StageDelivery    = "delivery"
)

// Step is one rule that a packet meets on its way through a node: of a table, of the
// bridge, of a program, or a route.
type Step struct {
	// Stage of the packet's way that the rule is about.
	Stage string `json:"stage,omitempty"`
	// Hook is where the packet is: "forward", "bridge", "route".
	Hook string `json:"hook"`
	// Chain is the chain, the bridge's table by name, or the program.
	Chain string `json:"chain"`
	// Rule is the index in the chain; -1: its end, where the chain's policy decides, or
	// what is no rule.
	Rule    int    `json:"rule"`
	Comment string `json:"comment,omitempty"`
	// Text is the rule as nft prints it, the flow as ovs-ofctl does, the route as ip does.
	Text string `json:"text,omitempty"`
	// Effect is what the rule does to the packet: "accept", "drop", "goto CHAIN", …
	Effect string `json:"effect"`
	// Handle of the rule in the kernel, the flow's cookie in the switch; zero if it is not
	// there as it should be.
	Handle uint64 `json:"handle,omitempty"`
	// Packets that the rule's counter has counted; nil: it has none.
	Packets *uint64 `json:"packets,omitempty"`
	// Live is what the node itself says of the step, for people.
	Live string `json:"live,omitempty"`
}

// Walk is the way of a packet through a node: as its rules say, and beside it what the
// node itself says.
type Walk struct {
	// Verdict is "accept" or "drop"; empty if the way was not followed, or leads nowhere.
	Verdict string `json:"verdict,omitempty"`
	// Live is the verdict of the node itself, where it can be asked: Open vSwitch traces
	// packets. Empty where the rules that it holds are all the evidence.
	Live string `json:"live,omitempty"`
	// Steps, in order: rules that match.
	Steps []Step `json:"steps"`
	// Missing are things on the way that the node does not hold as it should, or does in
	// another way, for people. Each begins with its stage.
	Missing []string `json:"missing,omitempty"`
}

// Packets is a number of packets, for people.
func Packets(n uint64) string {
	if n == 1 {
		return "1 packet"
	}
	return fmt.Sprintf("%d packets", n)
}

// Miss adds something that the node does not hold as it should.
func (w *Walk) Miss(stage, format string, args ...any) {
	w.Missing = append(w.Missing, stage+": "+fmt.Sprintf(format, args...))
}

// Flow is a conversation that the kernel knows (conntrack). Addresses and ports are
// those that policy judges: of the client as it sent, and of the endpoint.
type Flow struct {
	Src      netip.Addr      `json:"src"`
	Dst      netip.Addr      `json:"dst"`
	Protocol packet.Protocol `json:"protocol"`
	SrcPort  uint16          `json:"srcPort,omitempty"`
	DstPort  uint16          `json:"dstPort,omitempty"`
	// Cut: policy does not allow it any more, and it is silent.
	Cut bool `json:"cut,omitempty"`
	// Ended: a TCP connection that both ends have closed, or one has reset, and that the
	// kernel still remembers.
	Ended bool `json:"ended,omitempty"`
}
