package admin

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Explanation is what one node has decided about the first packet of a flow, and what
// its kernel holds for it.
type Explanation struct {
	Node string `json:"node"`
	// Plane is the node's data plane, "linux" or "ovs".
	Plane string `json:"plane,omitempty"`
	// AppliedRevision of the node's world, and the position of the datastore that it
	// stands for.
	AppliedRevision uint64            `json:"appliedRevision"`
	Position        map[string]string `json:"position,omitempty"`
	// VNI of the sender, if that is here: what the packet bears on the wire.
	VNI packet.VNI `json:"vni,omitempty"`
	// Egress is there if the packet's source is a port of this node, Ingress if its
	// destination is.
	Egress  *Judgement `json:"egress,omitempty"`
	Ingress *Judgement `json:"ingress,omitempty"`
	// Rules are the packet's way through the rules of the data plane.
	Rules *apply.Walk `json:"rules,omitempty"`
	// NoRules says why there is no such way.
	NoRules string `json:"noRules,omitempty"`
}

// Judgement is what the rule list of a port says.
type Judgement struct {
	// Port is the attachment's ID, Pod its pod.
	Port string `json:"port"`
	Pod  string `json:"pod"`
	// List is the ID of the RuleList; empty: the port is not restricted.
	List    string `json:"list,omitempty"`
	Allowed bool   `json:"allowed"`
	// Reason is set where no list is asked.
	Reason string `json:"reason,omitempty"`
	// Rule that decided; nil: none did, so the flow is allowed.
	Rule *Rule `json:"rule,omitempty"`
}

// Rule is one rule of a RuleList, and the policy that it comes from.
type Rule struct {
	// Index in the list.
	Index  int    `json:"index"`
	Tier   string `json:"tier"`
	Action string `json:"action"`
	Kind   string `json:"kind"`
	Policy string `json:"policy"`
	// PolicyRule is the index in the policy's list of the direction; -1: the policy
	// isolates the pod, and no rule allows the flow.
	PolicyRule int    `json:"policyRule"`
	Name       string `json:"name,omitempty"`
}

// Flows are the conversations of a node's pods that its kernel knows.
type Flows struct {
	Node  string       `json:"node"`
	Flows []apply.Flow `json:"flows"`
	// Truncated: there are more than are listed.
	Truncated bool `json:"truncated,omitempty"`
}

// Question is the packet that a node is asked to explain.
type Question struct {
	Packet packet.Packet
	// FromNode says that the node itself sends it, whatever the source address.
	FromNode bool
	// VNI that it bears when it comes by the tunnel.
	VNI packet.VNI
}

// Path is what a client asks for.
func (q Question) Path() string {
	v := url.Values{
		"src": {q.Packet.Src.String()}, "dst": {q.Packet.Dst.String()}, "protocol": {q.Packet.Protocol.String()},
		"sport": {strconv.Itoa(int(q.Packet.SrcPort))}, "dport": {strconv.Itoa(int(q.Packet.DstPort))},
	}
	if q.FromNode {
		v.Set("from", "node")
	}
	if q.VNI != 0 {
		v.Set("vni", strconv.Itoa(int(q.VNI)))
	}
	return "/v1/explain?" + v.Encode()
}

// ParseQuestion reads what Path wrote. The packet is the first of its flow.
func ParseQuestion(v url.Values) (Question, error) {
	var q Question
	var err error
	for name, into := range map[string]*netip.Addr{"src": &q.Packet.Src, "dst": &q.Packet.Dst} {
		if *into, err = netip.ParseAddr(v.Get(name)); err != nil {
			return Question{}, fmt.Errorf("%s: %q is no address", name, v.Get(name))
		}
		*into = into.Unmap()
	}
	if q.Packet.Src.BitLen() != q.Packet.Dst.BitLen() {
		return Question{}, fmt.Errorf("src %s and dst %s are of two families", q.Packet.Src, q.Packet.Dst)
	}
	if q.Packet.Protocol, err = packet.ParseProtocol(v.Get("protocol")); err != nil {
		return Question{}, fmt.Errorf("protocol: %w", err)
	}
	for name, into := range map[string]*uint16{"sport": &q.Packet.SrcPort, "dport": &q.Packet.DstPort} {
		if v.Get(name) == "" {
			continue
		}
		n, err := strconv.ParseUint(v.Get(name), 10, 16)
		if err != nil {
			return Question{}, fmt.Errorf("%s: %q is no port", name, v.Get(name))
		}
		*into = uint16(n)
	}
	if text := v.Get("vni"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || packet.VNI(n) > packet.MaxVNI {
			return Question{}, fmt.Errorf("vni: %q is no VNI", text)
		}
		q.VNI = packet.VNI(n)
	}
	switch v.Get("from") {
	case "":
	case "node":
		q.FromNode = true
	default:
		return Question{}, fmt.Errorf("from: %q is not \"node\"", v.Get("from"))
	}
	q.Packet.SYN = q.Packet.Protocol == packet.TCP
	return q, nil
}
