package oracle

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// End is one address of a pod or a node, and where it is.
type End struct {
	Place Place
	Addr  netip.Addr
	// Known: the world has the very pod that holds the address, so its labels and ports
	// are known. Nodes are not.
	Known bool
}

// Ends are all addresses that exactly one pod or node has, sorted by address: those of
// Subnets in use that somebody holds, and the nodes' own on the underlay.
func (m *Model) Ends() []End {
	var out []End
	for a, holders := range m.owners {
		if len(holders) == 1 && m.subnetOf(a) != nil {
			out = append(out, End{holders[0].place, a, holders[0].pod != nil})
		}
	}
	for node, list := range m.underlay {
		for _, p := range list {
			out = append(out, End{Place: Place{Kind: Node, Node: node}, Addr: p.Addr()})
		}
	}
	slices.SortFunc(out, func(a, b End) int { return a.Addr.Compare(b.Addr) })
	return out
}

// PolicyAnswer is what the policies of both ends say about a packet: the stages of
// each direction, of which the last decides. A direction that no policy is asked about
// has one stage that says why.
type PolicyAnswer struct {
	Egress, Ingress []Stage
	// Arrives is the packet as the receiver's policies see it: the sender's node may have
	// put in another source.
	Arrives packet.Packet
}

// Allowed reports whether no direction denies.
func (a PolicyAnswer) Allowed() bool {
	return (len(a.Egress) == 0 || a.Egress[len(a.Egress)-1].Pass) && (len(a.Ingress) == 0 || a.Ingress[len(a.Ingress)-1].Pass)
}

// Policies asks the policies of both ends about a packet, whatever else may stop it,
// also where an end has no network. The answer is empty if nobody has one of the
// addresses, or several have.
func (m *Model) Policies(p Probe) PolicyAnswer {
	t := &trial{m: m, probe: p}
	if _, ok := t.ruleSource(); !ok && t.source.subnet == nil {
		return PolicyAnswer{}
	}
	if _, ok := t.ruleDestination(); !ok && t.target.subnet == nil {
		return PolicyAnswer{}
	}
	collect := func(name direction, rule func() (string, bool)) []Stage {
		t.stages, t.match = nil, nil
		why, pass := rule()
		return append(t.stages, Stage{Name: string(name), Pass: pass, Why: why, Match: t.match})
	}
	out := PolicyAnswer{Egress: collect(egress, t.ruleEgress)}
	t.ruleNAT()
	t.rulePath()
	out.Arrives = t.packet
	out.Ingress = collect(ingress, t.ruleIngress)
	return out
}

// VNI is the one that a packet bears on the wire, if it goes through the tunnel: that of
// the sender's tenant; the VPC's own of what has no tenant: global ones, nodes, and VPCs
// that do not isolate. Zero: no end is in a VPC.
func (m *Model) VNI(p Probe) packet.VNI {
	t := &trial{m: m, probe: p}
	t.ruleSource()
	t.ruleDestination()
	s := cmp.Or(t.source.subnet, t.target.subnet)
	if s == nil {
		return 0
	}
	v := m.vpc(s.VPC)
	if own, has := m.tenants[t.from.Pod.Namespace]; has && v.Tenant && t.from.Kind == Pod && !own.global {
		return own.vni
	}
	return v.VNI
}

// Selected are the pods that a policy is about, or may be about, sorted: those of the
// world that have a network of their own and have not finished.
func (m *Model) Selected(kind world.Kind, key world.Key) []world.Key {
	var selects func(party) answer
	switch kind {
	case world.KindNetworkPolicy:
		p, ok := m.snap.NetworkPolicies.Get(key)
		if !ok {
			return nil
		}
		selects = func(pod party) answer {
			return all(is(pod.place.Pod.Namespace == p.Namespace), pod.amongPods(&p.Pods))
		}
	case world.KindClusterNetworkPolicy:
		p, ok := m.snap.ClusterNetworkPolicies.Get(key)
		if !ok {
			return nil
		}
		selects = func(pod party) answer { return isSubject(p, pod) }
	default:
		return nil
	}
	var out []world.Key
	for k, p := range m.snap.Pods.All() {
		pod := party{m: m, place: Place{Kind: Pod, Node: p.Node, Pod: k}, pod: p}
		if !p.HostNetwork && !p.Finished && selects(pod) != no {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, world.Key.Compare)
	return out
}
