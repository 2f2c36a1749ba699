package apply

import (
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

// Step is one rule that a packet meets on its way through the rules of a node.
type Step struct {
	// Hook is where in the kernel's path the packet is: "forward".
	Hook  string `json:"hook"`
	Chain string `json:"chain"`
	// Rule is the index in the chain; -1: its end, where the chain's policy decides.
	Rule    int    `json:"rule"`
	Comment string `json:"comment,omitempty"`
	// Text is the rule as nft prints it.
	Text string `json:"text,omitempty"`
	// Effect is what the rule does to the packet: "accept", "drop", "goto CHAIN", …
	Effect string `json:"effect"`
	// Handle of the rule in the kernel, zero if it is not there as it should be.
	Handle uint64 `json:"handle,omitempty"`
	// Packets that the rule's counter has counted; nil: it has none.
	Packets *uint64 `json:"packets,omitempty"`
}

// Walk is the way of a packet through the rules of a node.
type Walk struct {
	// Verdict is "accept" or "drop"; empty if the way was not followed.
	Verdict string `json:"verdict,omitempty"`
	// Steps, in order: rules that match. If the way was not followed, all rules of the
	// chains that it is known to lead through.
	Steps []Step `json:"steps"`
	// Missing are steps whose rule the kernel does not hold as it should, for people.
	Missing []string `json:"missing,omitempty"`
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
}
