package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// The tiers, in the order in which they are asked.
const (
	TierAdmin         = "Admin"
	TierNetworkPolicy = "NetworkPolicy"
	TierBaseline      = "Baseline"
)

// PolicyMatch is what decided in a tier.
type PolicyMatch struct {
	// Kind is KindNetworkPolicy or KindClusterNetworkPolicy.
	Kind   world.Kind
	Policy world.Key
	Tier   string
	// Rule is the index in the policy's list of the direction, or -1: the policy
	// isolates the pod, and no rule of any policy allows the packet.
	Rule int
	// Name of the rule, if it has one.
	Name string
	// Action is Accept, Deny or Pass.
	Action string
}

// direction is which of a pod's policies are asked.
type direction string

const (
	egress  direction = "egress"
	ingress direction = "ingress"
)

// connection is what policies judge: a packet as it looks where it is judged, its
// two ends, and which of them is the pod that the policies are of. A Service's
// address has become the endpoint's by then, and the client's address is as it came.
type connection struct {
	direction     direction
	subject, peer party
	packet        packet.Packet
}

// destination is the end that ports belong to.
func (c connection) destination() party {
	if c.direction == ingress {
		return c.subject
	}
	return c.peer
}

// peerAddr is the address that the peer has in the packet.
func (c connection) peerAddr() netip.Addr {
	if c.direction == ingress {
		return c.packet.Src
	}
	return c.packet.Dst
}

// ruling is a tier's last word; the zero value is none.
type ruling struct {
	action string // "" if nothing matched
	why    string
	match  *PolicyMatch
}

// ruleEgress: the policies of the pod that sends, before its address is masqueraded.
func (t *trial) ruleEgress() (string, bool) {
	switch {
	case t.from.Kind != Pod:
		return "the source is no pod", true
	case t.to == t.from:
		return "it does not leave the pod", true
	}
	c := connection{direction: egress, subject: t.party(t.from, t.source), peer: t.party(t.to, t.target), packet: t.packet}
	stages := t.m.judgePolicies(c)
	return t.lastOf(stages)
}

// ruleIngress: the policies of the pod that receives, of the packet as it comes.
func (t *trial) ruleIngress() (string, bool) {
	switch {
	case t.to.Kind != Pod:
		return "the destination is no pod", true
	case t.to == t.from:
		return "it did not leave the pod", true
	case t.from.Kind == Node && t.from.Node == t.to.Node:
		// "OR if the traffic source is the pod's local node" (networking/v1
		// NetworkPolicySpec.ingress); by origin, whatever address it bears.
		return "what the own node sends to a pod is allowed by origin", true
	}
	var passed []netip.Addr
	var stages, refused []Stage
	for _, src := range append([]netip.Addr{t.packet.Src}, t.others...) {
		p := t.packet
		p.Src = src
		c := connection{direction: ingress, subject: t.party(t.to, t.target), peer: t.party(t.from, t.source), packet: p}
		s := t.m.judgePolicies(c)
		if s[len(s)-1].Pass {
			passed = append(passed, src)
			stages = s
		} else {
			refused = s
		}
	}
	if len(passed) == 0 {
		return t.lastOf(refused)
	}
	if refused != nil {
		t.unsure = "with another of the node's addresses: " + refused[len(refused)-1].Why
	}
	t.packet.Src, t.others = passed[0], passed[1:]
	return t.lastOf(stages)
}

func (t *trial) party(at Place, h holding) party { return party{m: t.m, place: at, pod: h.pod} }

// lastOf notes the stages of the tiers but the last, which the caller notes.
func (t *trial) lastOf(stages []Stage) (string, bool) {
	last := stages[len(stages)-1]
	t.stages = append(t.stages, stages[:len(stages)-1]...)
	t.match = last.Match
	return last.Why, last.Pass
}

// judgePolicies asks the tiers in order: "Admin tier, NetworkPolicy tier, Baseline
// tier. If a given connection wasn't allowed or denied by any of the tiers, the
// default kubernetes policy is applied, which says that all pods can communicate
// with each other" (v1beta1 ClusterNetworkPolicySpec.Tier). There is at least one
// stage, and the last one decides.
func (m *Model) judgePolicies(c connection) []Stage {
	var stages []Stage
	for _, tier := range []struct {
		name string
		ask  func(connection) ruling
	}{
		{TierAdmin, func(c connection) ruling { return m.clusterTier(TierAdmin, c) }},
		{TierNetworkPolicy, m.networkPolicyTier},
		{TierBaseline, func(c connection) ruling { return m.clusterTier(TierBaseline, c) }},
	} {
		r := tier.ask(c)
		if r.action == "" {
			continue
		}
		stages = append(stages, Stage{Name: string(c.direction), Pass: r.action != actionDeny, Why: tier.name + ": " + r.why, Match: r.match})
		if r.action != actionPass {
			return stages
		}
	}
	return append(stages, Stage{Name: string(c.direction), Pass: true, Why: "no policy says otherwise"})
}

// networkPolicyTier: "Traffic is allowed to a pod if there are no NetworkPolicies
// selecting the pod, […] OR if the traffic matches at least one ingress rule across
// all of the NetworkPolicy objects whose podSelector matches the pod", and likewise
// for egress (networking/v1 NetworkPolicySpec). Policies "always make a final
// decision for selected pods" (v1beta1 ClusterNetworkPolicySpec.Tier). Both ends
// are judged, each by its own policies.
func (m *Model) networkPolicyTier(c connection) ruling {
	var isolating []*world.NetworkPolicy
	var names []string
	for p := range m.snap.NetworkPolicies.Values() {
		if p.Namespace != c.subject.place.Pod.Namespace {
			continue // It is about pods of its own namespace.
		}
		selected := all(is(c.subject.selectable()), c.subject.amongPods(&p.Pods), affects(p, c.direction))
		if selected == no {
			continue
		}
		isolating = append(isolating, p)
		names = append(names, p.Namespace+"/"+p.Name)
		if selected != yes {
			continue
		}
		for i, r := range rulesOf(p, c.direction) {
			if all(anyPeer(p, r, c), anyPort(r, c)) == yes {
				match := &PolicyMatch{Kind: world.KindNetworkPolicy, Policy: world.Key{Namespace: p.Namespace, Name: p.Name}, Tier: TierNetworkPolicy, Rule: i, Action: actionAccept}
				return ruling{actionAccept, fmt.Sprintf("%s rule %d of %s/%s allows it", c.direction, i, p.Namespace, p.Name), match}
			}
		}
	}
	if len(isolating) == 0 {
		return ruling{}
	}
	match := &PolicyMatch{
		Kind: world.KindNetworkPolicy, Policy: world.Key{Namespace: isolating[0].Namespace, Name: isolating[0].Name},
		Tier: TierNetworkPolicy, Rule: -1, Action: actionDeny,
	}
	return ruling{actionDeny, fmt.Sprintf("the pod is isolated for %s by %s, and no rule allows it", c.direction, strings.Join(names, ", ")), match}
}

// affects: "If this field is not specified, it will default based on the existence
// of ingress or egress rules; policies that contain an egress section are assumed to
// affect egress, and all policies are assumed to affect ingress"
// (NetworkPolicySpec.policyTypes). The API server takes an empty list for an absent
// one, for both fields. A type that the API does not know may be either.
func affects(p *world.NetworkPolicy, d direction) answer {
	word := map[direction]string{ingress: "Ingress", egress: "Egress"}[d]
	switch {
	case len(p.Types) == 0:
		return is(d == ingress || len(p.Egress) > 0)
	case slices.Contains(p.Types, word):
		return yes
	case slices.ContainsFunc(p.Types, isUnknownType):
		return maybe
	}
	return no
}

func isUnknownType(s string) bool { return s != "Ingress" && s != "Egress" }

func rulesOf(p *world.NetworkPolicy, d direction) []world.PolicyRule {
	if d == ingress {
		return p.Ingress
	}
	return p.Egress
}

// anyPeer: "If this field is empty or missing, this rule matches all sources […] If
// this field is present and contains at least one item, this rule allows traffic only
// if the traffic matches at least one item in the from list" (NetworkPolicyIngressRule.from).
func anyPeer(p *world.NetworkPolicy, r world.PolicyRule, c connection) answer {
	if len(r.Peers) == 0 {
		return yes
	}
	return anyOf(r.Peers, func(peer world.PolicyPeer) answer { return isPeer(p, peer, c) })
}

// isPeer reads one NetworkPolicyPeer.
func isPeer(p *world.NetworkPolicy, peer world.PolicyPeer, c connection) answer {
	switch {
	case peer.Range != nil && peer.Pods == nil && peer.Namespaces == nil:
		return inRange(*peer.Range, c.peerAddr())
	case peer.Range != nil: // "If this field is set then neither of the other fields can be."
		return maybe
	case peer.Pods != nil && peer.Namespaces != nil:
		// "the pods matching podSelector in the Namespaces selected by NamespaceSelector"
		return all(c.peer.inNamespaces(peer.Namespaces), c.peer.amongPods(peer.Pods))
	case peer.Pods != nil: // "the pods matching podSelector in the policy's own namespace"
		return all(is(c.peer.selectable() && c.peer.place.Pod.Namespace == p.Namespace), c.peer.amongPods(peer.Pods))
	case peer.Namespaces != nil: // "all pods in the namespaces selected by namespaceSelector"
		return c.peer.inNamespaces(peer.Namespaces)
	}
	return maybe // A field that this version does not know.
}

// inRange: an IPBlock is about addresses, whoever has them; "the except entry
// describes CIDRs that should not be included".
func inRange(r world.PolicyRange, a netip.Addr) answer {
	cidr, ok := parseCIDR(r.CIDR)
	if !ok {
		return maybe
	}
	inside := is(cidr.Contains(a))
	for _, text := range r.Except {
		except, ok := parseCIDR(text)
		switch {
		case !ok:
			inside = min(inside, maybe)
		case except.Contains(a):
			return no
		}
	}
	return inside
}

// parseCIDR reads a CIDR; bits beyond the prefix mean nothing.
func parseCIDR(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err == nil && !p.Addr().Is4In6()
}

// anyPort: an absent or empty list matches all traffic, of every protocol
// (NetworkPolicyIngressRule.ports).
func anyPort(r world.PolicyRule, c connection) answer {
	if len(r.Ports) == 0 {
		return yes
	}
	return anyOf(r.Ports, func(p world.PolicyPort) answer { return isPort(p, c) })
}

// isPort reads one NetworkPolicyPort: "only traffic on the specified protocol AND
// port will be matched".
func isPort(p world.PolicyPort, c connection) answer {
	protocol := packet.TCP // "If not specified, this field defaults to TCP."
	if p.Protocol != nil {
		known, ok := transport(*p.Protocol)
		if !ok {
			return maybe
		}
		protocol = known
	}
	if protocol != c.packet.Protocol {
		return no
	}
	switch {
	case p.Port == nil && p.EndPort == nil: // "this matches all port names and numbers"
		return yes
	case p.Port == nil, p.Port.By == world.ByName && p.EndPort != nil:
		// endPort "cannot be defined if the port field is not defined or if the port
		// field is defined as a named (string) port".
		return maybe
	case p.Port.By == world.ByName:
		return c.destination().namesPort(p.Port.Name, protocol, c.packet.DstPort)
	}
	last := p.Port.Number
	if p.EndPort != nil {
		last = *p.EndPort
	}
	return inPorts(p.Port.Number, last, c.packet.DstPort)
}

// transport reads a protocol of the API, which knows three and their exact names.
func transport(s string) (packet.Protocol, bool) {
	for _, p := range []packet.Protocol{packet.TCP, packet.UDP, packet.SCTP} {
		if s == p.String() {
			return p, true
		}
	}
	return 0, false
}

// inPorts: a range of ports that the API would refuse may have meant anything.
func inPorts(first, last int32, port uint16) answer {
	if first < 1 || last > 65535 || first > last {
		return maybe
	}
	return is(int32(port) >= first && int32(port) <= last)
}

// namesPort: a name is that of a port that a container of the destination declares
// with the protocol. Who is no pod has no named ports.
func (p party) namesPort(name string, protocol packet.Protocol, port uint16) answer {
	switch {
	case p.place.Kind != Pod || p.place.Pod.Namespace == "" || name == "":
		return no
	case p.pod == nil:
		return maybe
	}
	return is(slices.Contains(p.pod.Ports, world.ContainerPort{Name: name, Protocol: protocol, Port: port}))
}
