package oracle

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// PlaceKind says what a Place is.
type PlaceKind uint8

// The kinds of places.
const (
	// Outside is everything that is neither a pod nor a node.
	Outside PlaceKind = iota
	// Pod is an interface of a pod, or of a container without one.
	Pod
	// Node is a node itself, with its hostNetwork pods.
	Node
)

// Place is where a packet comes from or ends.
type Place struct {
	Kind PlaceKind
	// Node where a Pod runs, or the Node itself. Of the Outside it is the node that
	// a packet to a pod enters at, or that a packet left from.
	Node string
	// Pod is the key of a Pod; without a namespace it is "container/ID".
	Pod world.Key
}

// String is "pod web/a on n1", "node n1" or "outside via n1".
func (p Place) String() string {
	switch p.Kind {
	case Pod:
		return "pod " + p.Pod.String() + " on " + p.Node
	case Node:
		return "node " + p.Node
	}
	if p.Node == "" {
		return "outside"
	}
	return "outside via " + p.Node
}

// Probe is a packet and who sends it.
type Probe struct {
	From   Place
	Packet packet.Packet
	// Embedded is the packet that an ICMP error quotes, nil for all else.
	Embedded *packet.Packet
}

// Outcome is one thing that may happen to a packet.
type Outcome struct {
	// Dropped: it is delivered nowhere, and the other fields are zero.
	Dropped bool
	// At is where it is delivered, Packet how it looks there.
	At     Place
	Packet packet.Packet
	// AnySrcPort: masquerading may have chosen another source port.
	AnySrcPort bool
}

// String is "dropped", or where and how it arrived.
func (o Outcome) String() string {
	if o.Dropped {
		return "dropped"
	}
	return fmt.Sprintf("delivered to %s as %s", o.At, o.Packet)
}

// Stage is one rule that a packet met.
type Stage struct {
	// Name is one of source, destination, vpc, tenant, egress, flow, nat, path,
	// ingress, delivery. egress and ingress come once for each tier of policies that
	// had a say.
	Name string
	// Pass is false for the stage that ends the packet's way.
	Pass bool
	// Why, for people.
	Why string
	// Match is the policy and rule that decided, nil where none did.
	Match *PolicyMatch
}

// String is "tenant: cut: …".
func (s Stage) String() string {
	word := "passes"
	if !s.Pass {
		word = "cut"
	}
	return s.Name + ": " + word + ": " + s.Why
}

// Verdict is what may happen to a packet.
type Verdict struct {
	// Allowed: it is delivered. Otherwise nobody who listens gets it.
	Allowed bool
	// Stages that the packet met, the last is the one that ended its way.
	Stages []Stage
	// Outcomes are all that is permitted.
	Outcomes []Outcome
}

// Permits reports whether what was observed is permitted.
func (v Verdict) Permits(observed Outcome) bool {
	return slices.ContainsFunc(v.Outcomes, func(o Outcome) bool {
		p := observed.Packet
		if o.AnySrcPort {
			p.SrcPort = o.Packet.SrcPort
		}
		return o.Dropped == observed.Dropped && samePlace(o.At, observed.At) && o.Packet == p
	})
}

// Why is the reason of the last stage.
func (v Verdict) Why() string {
	if len(v.Stages) == 0 {
		return ""
	}
	return v.Stages[len(v.Stages)-1].Why
}
