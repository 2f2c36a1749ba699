package lint

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// named is where a policy names a port. Protocol zero is any.
type named struct {
	field    string
	name     string
	protocol packet.Protocol
	ingress  bool
}

// Ports finds the port names of one policy that nobody has: of ingress rules, no pod that
// the policy is about; of egress rules, whose peers may be anybody, no pod at all. Where
// there are no such pods yet nothing can be said. The model is that of the world.
func Ports(m *oracle.Model, snap *world.Snapshot, kind world.Kind, key world.Key) []world.Problem {
	names := portNames(snap, kind, key)
	if len(names) == 0 {
		return nil
	}
	var selected, all []*world.Pod
	for _, k := range m.Selected(kind, key) {
		if p, ok := snap.Pods.Get(k); ok {
			selected = append(selected, p)
		}
	}
	for p := range snap.Pods.Values() {
		if !p.HostNetwork && !p.Finished {
			all = append(all, p)
		}
	}
	var out []world.Problem
	for _, n := range names {
		who, pods := "no pod at all", all
		if n.ingress {
			who, pods = fmt.Sprintf("no pod that the policy selects (%d)", len(selected)), selected
		}
		if text := n.missing(pods); text != "" {
			out = append(out, world.Problem{Kind: kind, Key: key, Field: n.field, Reason: "UnresolvedPort", Message: who + text})
		}
	}
	return out
}

// missing says that no pod has a port; empty if one has, or there are none.
func (n named) missing(pods []*world.Pod) string {
	other := packet.Protocol(0)
	for _, p := range pods {
		for _, c := range p.Ports {
			switch {
			case c.Name != n.name:
			case n.protocol == 0 || c.Protocol == n.protocol:
				return ""
			default:
				other = c.Protocol
			}
		}
	}
	if len(pods) == 0 {
		return ""
	}
	text := fmt.Sprintf(" has a container port named %.80q", n.name)
	if n.protocol != 0 {
		text += " of protocol " + n.protocol.String()
	}
	if other != 0 {
		text += fmt.Sprintf("; there is one of protocol %s", other)
	}
	return text + ": the name matches nothing until one has"
}

func portNames(snap *world.Snapshot, kind world.Kind, key world.Key) []named {
	var out []named
	switch kind {
	case world.KindNetworkPolicy:
		p, ok := snap.NetworkPolicies.Get(key)
		if !ok {
			return nil
		}
		for _, d := range directions(p) {
			for i, r := range d.rules {
				for j, port := range r.Ports {
					if n, ok := nameOf(port); ok {
						n.field, n.ingress = fmt.Sprintf("%s[%d].ports[%d]", d.list, i, j), d.word == "Ingress"
						out = append(out, n)
					}
				}
			}
		}
	case world.KindClusterNetworkPolicy:
		p, ok := snap.ClusterNetworkPolicies.Get(key)
		if !ok {
			return nil
		}
		out = slices.Concat(clusterNames("spec.ingress", p.Ingress, true), clusterNames("spec.egress", p.Egress, false))
	}
	return out
}

// nameOf reads a port by name; one that cannot be read is another's to tell.
func nameOf(p world.PolicyPort) (named, bool) {
	if p.Port == nil || p.Port.By != world.ByName || p.Port.Name == "" || p.EndPort != nil {
		return named{}, false
	}
	n := named{name: p.Port.Name, protocol: packet.TCP}
	if p.Protocol != nil {
		var err error
		if n.protocol, err = packet.ParseProtocol(*p.Protocol); err != nil {
			return named{}, false
		}
	}
	return n, true
}

func clusterNames(list string, rules []world.ClusterRule, ingress bool) []named {
	var out []named
	for i, r := range rules {
		for j, p := range r.Protocols {
			if p.NamedPort != "" {
				out = append(out, named{field: fmt.Sprintf("%s[%d].protocols[%d].destinationNamedPort", list, i, j), name: p.NamedPort, ingress: ingress})
			}
		}
	}
	return out
}
