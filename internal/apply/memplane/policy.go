package memplane

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// judge asks the list of a port about the first packet of a flow, and says why it is
// refused, or nothing.
func (p *Plane) judge(port intent.Port, d intent.Direction, first packet.Packet) string {
	allowed, by := p.actual.Judge(port, d, first)
	switch {
	case allowed:
		return ""
	case by == nil:
		return fmt.Sprintf("the %s list of port %s is not there", d, port.ID)
	}
	return fmt.Sprintf("%s of port %s: %s", d, port.ID, by)
}

// refuses judges a flow again, by the rules of now, and says why it is refused, or
// nothing. So a change of policy cuts flows in both directions, and only those that
// could not begin any more; a change back lets them go on.
func (p *Plane) refuses(f *flow) string {
	if f.sender != "" && f.sender == f.receiver {
		return "" // What a port sends to itself is nobody's to judge.
	}
	if port, ok := p.port(f.sender); ok {
		if why := p.judge(port, intent.Egress, f.first); why != "" {
			return why
		}
	}
	if port, ok := p.port(f.receiver); ok && !f.own {
		return p.judge(port, intent.Ingress, f.first)
	}
	return ""
}

// forgetPorts forgets the flows of ports that are gone, so that the next owner of an
// address inherits none.
func (p *Plane) forgetPorts() {
	p.flows.forget(func(f *flow) bool {
		sender, sends := p.port(f.sender)
		receiver, receives := p.port(f.receiver)
		return f.sender != "" && !(sends && slices.Contains(sender.Addresses, f.first.Src)) ||
			f.receiver != "" && !(receives && slices.Contains(receiver.Addresses, f.first.Dst))
	})
}
