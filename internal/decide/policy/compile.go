package policy

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// compiler writes the lists of a class.
type compiler struct {
	*class
	collections *collections
	direction   intent.Direction
	rules       []intent.Rule
	out         *computed
}

// compile writes both lists of a class.
func (c *class) compile(all *collections) {
	out := computed{}
	for _, d := range []intent.Direction{intent.Ingress, intent.Egress} {
		k := &compiler{class: c, collections: all, direction: d, out: &out}
		list := c.ingress
		if d == intent.Egress {
			list = c.egress
		}
		if len(list) == 0 {
			continue
		}
		k.write(list)
		if len(k.rules) == 0 { // Nothing of them matches anything.
			continue
		}
		rl := intent.NewRuleList(c.vpc, d, k.rules)
		if d == intent.Ingress {
			out.ingress = &rl
		} else {
			out.egress = &rl
		}
	}
	slices.SortFunc(out.uses, use.compare)
	out.uses = slices.CompactFunc(out.uses, func(a, b use) bool { return a.compare(b) == 0 })
	slices.SortFunc(out.byName, compareKey)
	out.byName = slices.Compact(out.byName)
	c.computed = out
}

// write writes the rules of policies, tier by tier. The tier of NetworkPolicies has
// the last word about pods that one isolates: nothing is asked after it.
func (k *compiler) write(list []applied) {
	var isolates *parsed
	for _, a := range list {
		if isolates != nil && a.policy.tier > intent.TierNetworkPolicy {
			break
		}
		if a.policy.tier == intent.TierNetworkPolicy && isolates == nil {
			isolates = a.policy
		}
		rules := a.policy.rules[k.direction]
		for i := range rules {
			k.rule(a, &rules[i])
		}
	}
	if isolates == nil {
		return
	}
	deny := intent.Rule{
		Tier: intent.TierNetworkPolicy, Action: intent.Deny,
		Origin: intent.RuleOrigin{Kind: string(isolates.kind), Namespace: isolates.key.Namespace, Name: isolates.key.Name, Index: -1},
	}
	k.rules = append(k.rules, deny)
}

// rule writes one rule of a policy. An Accept is about those of whom it is sure that
// they are meant, a Deny about those too who may be; a Pass denies the latter. So
// nothing that is not known or cannot be read ever allows more.
func (k *compiler) rule(a applied, r *rule) {
	switch {
	case a.policy.kind == world.KindNetworkPolicy:
		if a.sure {
			k.emit(a.policy.tier, intent.Accept, r, false)
		}
	case (!a.sure || r.unreadable) && r.action == intent.Accept:
	case r.unreadable:
		k.rules = append(k.rules, intent.Rule{Tier: a.policy.tier, Action: intent.Deny, Origin: r.origin})
	case !a.sure, r.action == intent.Deny:
		k.emit(a.policy.tier, intent.Deny, r, true)
	default:
		k.emit(a.policy.tier, r.action, r, false)
		if r.action == intent.Pass && r.mayMeanMore() {
			k.emit(a.policy.tier, intent.Deny, r, true)
		}
	}
}

// mayMeanMore: whom an address belongs to, and what ports it declares, may not be known.
func (r *rule) mayMeanMore() bool {
	return len(r.named) > 0 || slices.ContainsFunc(r.peers, func(g group) bool { return g.kind != addresses })
}

// emit writes a rule for those who are meant for sure, or, if it is wide, for those
// too who may be.
func (k *compiler) emit(tier intent.Tier, action intent.Action, r *rule, wide bool) {
	ports := r.ports
	if k.direction == intent.Ingress && len(r.named) > 0 {
		ports = mergePorts(slices.Concat(ports, k.ownPorts(r.named, wide)))
	}
	write := func(m intent.Match) {
		k.rules = append(k.rules, intent.Rule{Tier: tier, Action: action, Match: m, Origin: r.origin})
	}
	if r.anyPeer || len(r.peers) > 0 {
		if r.anyPort {
			write(intent.Match{Sets: k.sets(r.peers, wide)})
		}
		for _, p := range ports {
			write(intent.Match{Sets: k.sets(r.peers, wide), Protocol: p.protocol, Ports: p.ranges})
		}
	}
	if k.direction == intent.Egress {
		for _, n := range r.named {
			for _, d := range r.among(n) {
				k.out.byName = append(k.out.byName, d.key)
				k.peerPorts(n, d, wide, write)
			}
		}
	}
}

// ownPorts resolves port names of ingress rules: the ports are the pod's own.
func (k *compiler) ownPorts(names []named, wide bool) []protocolPorts {
	var list []protocolPorts
	for _, n := range names {
		if !k.known {
			if wide {
				list = append(list, n.anyPort()...)
			}
			continue
		}
		for _, p := range k.ports {
			if p.Name == n.name && n.may(p.Protocol) && p.Port != 0 {
				list = append(list, protocolPorts{p.Protocol, []intent.PortRange{{First: p.Port, Last: p.Port}}})
			}
		}
	}
	return list
}

// may reports whether a port of a protocol may be meant.
func (n named) may(p packet.Protocol) bool {
	return slices.Contains(transports(), p) && (n.protocol == 0 || n.protocol == p)
}

// anyPort is what a name may mean on a pod that is not known.
func (n named) anyPort() []protocolPorts {
	var list []protocolPorts
	for _, t := range transports() {
		if n.may(t) {
			list = append(list, protocolPorts{protocol: t})
		}
	}
	return list
}

// sets returns the names of the AddressSets of peers, sorted, and notes their use.
func (k *compiler) sets(peers []group, wide bool) []string {
	var names []string
	for _, g := range peers {
		u := use{vpc: k.vpc, name: g.set, from: g, bucket: bucket{vpc: k.vpc}, wide: wide && g.kind != addresses}
		if g.kind == pods {
			u.key = collectionKey{query: g.key}
		}
		names = append(names, k.use(u))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (k *compiler) use(u use) string {
	if u.wide {
		u.name += "-wide"
	}
	k.out.uses = append(k.out.uses, u)
	return u.name
}

// peerPorts resolves a port name of an egress rule: one match for each port that
// some of the peers declare by that name.
func (k *compiler) peerPorts(n named, d declaring, wide bool, write func(intent.Match)) {
	c := k.collections.get(d.key)
	if c == nil {
		return
	}
	for _, b := range c.order() {
		in := c.buckets[b]
		unknown := b.protocol == 0
		if b.vpc != k.vpc || !wide && len(in.narrow) == 0 || !unknown && !n.may(b.protocol) {
			continue
		}
		name := k.use(use{
			vpc: k.vpc, name: setName(d.group.kind.String(), fmt.Sprintf("%s %s %d %d", d.group.set, n.name, b.protocol, b.port)),
			from: d.group, key: d.key, bucket: b, wide: wide,
		})
		if !unknown {
			write(intent.Match{Sets: []string{name}, Protocol: b.protocol, Ports: []intent.PortRange{{First: b.port, Last: b.port}}})
			continue
		}
		for _, p := range n.anyPort() {
			write(intent.Match{Sets: []string{name}, Protocol: p.protocol})
		}
	}
}
