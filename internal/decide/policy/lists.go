package policy

import (
	"cmp"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// applied is a policy that is about a pod, or, where sure is false, may be.
type applied struct {
	policy *parsed
	sure   bool
}

// class is what is the same for pods that no policy can tell apart. It is immutable.
type class struct {
	name      string // its key
	vpc       string
	namespace string
	known     bool
	labels    map[string]string
	ports     []world.ContainerPort

	// ns, network and cluster are what ingress and egress were computed from.
	ns       *world.Namespace
	network  *policyList
	cluster  *policyList
	ingress  []applied
	egress   []applied
	wants    []wanted
	computed computed
	done     bool // computed is up to date with ingress and egress
}

// computed is what the rules of a class come to.
type computed struct {
	ingress, egress *intent.RuleList // nil: not restricted
	uses            []use
	// byName are the collections in which egress rules look for port names.
	byName []collectionKey
}

// policyList is a list of policies in the order in which they are asked.
type policyList struct{ policies []*parsed }

// use is an AddressSet that a rule refers to, and where its content is.
type use struct {
	vpc, name string
	from      group
	key       collectionKey // where from is of pods, or, narrowed, of addresses
	bucket    bucket
	wide      bool
}

func (u use) compare(o use) int {
	return cmp.Or(cmp.Compare(u.vpc, o.vpc), cmp.Compare(u.name, o.name))
}

// apply finds the policies that are about a class's pods.
func (c *class) apply() {
	c.ingress, c.egress = nil, nil
	for _, list := range []*policyList{c.network, c.cluster} {
		if list == nil {
			continue
		}
		for _, p := range list.policies {
			selected := p.subject.ask(c.namespace, c.ns, c.labels, c.known)
			if in := min(selected, p.affects[intent.Ingress]); in != selector.No {
				c.ingress = append(c.ingress, applied{p, in == selector.Yes})
			}
			if out := min(selected, p.affects[intent.Egress]); out != selector.No {
				c.egress = append(c.egress, applied{p, out == selector.Yes})
			}
		}
	}
	slices.SortStableFunc(c.ingress, applied.compare)
	slices.SortStableFunc(c.egress, applied.compare)
}

// compare orders by tier only: within one the order is that of the list.
func (a applied) compare(o applied) int { return cmp.Compare(a.policy.tier, o.policy.tier) }

// want lists the collections that the rules need.
func (c *class) want() {
	c.wants = nil
	for _, a := range c.ingress {
		for _, n := range a.policy.named { // To tell whether anybody declares the port.
			c.wants = append(c.wants, wanted{collectionKey{n.query.Key(), n.named.name}, n.query})
		}
	}
	for d, list := range map[intent.Direction][]applied{intent.Ingress: c.ingress, intent.Egress: c.egress} {
		for _, a := range list {
			for _, r := range a.policy.rules[d] {
				c.wants = r.want(c.wants, d)
			}
		}
	}
	slices.SortFunc(c.wants, func(a, b wanted) int { return compareKey(a.key, b.key) })
	c.wants = slices.CompactFunc(c.wants, func(a, b wanted) bool { return a.key == b.key })
}

// everyPod is whom a rule's port names may be of, where its peers are no pods.
func everyPod() selector.Query {
	return selector.Query{Namespaces: selector.Everything(), Pods: selector.Everything()}
}

func (r *rule) want(list []wanted, d intent.Direction) []wanted {
	if r.unreadable {
		return list
	}
	for _, g := range r.peers {
		if g.kind == pods && (r.anyPort || len(r.ports) > 0 || d == intent.Ingress) {
			list = append(list, wanted{collectionKey{query: g.key}, g.query})
		}
	}
	if d == intent.Ingress {
		return list
	}
	for _, n := range r.named {
		for _, g := range r.among(n) {
			list = append(list, wanted{g.key, g.query})
		}
	}
	return list
}

// declaring is a group of pods that may declare a port.
type declaring struct {
	group group
	wanted
}

// among returns the groups of pods among which a port name of an egress rule is
// looked for. Nodes declare no ports.
func (r *rule) among(n named) []declaring {
	groups := r.peers
	if r.anyPeer {
		groups = []group{podGroup(everyPod())}
	}
	var list []declaring
	for _, g := range groups {
		switch g.kind {
		case pods:
			list = append(list, declaring{g, wanted{collectionKey{g.key, n.name}, g.query}})
		case addresses:
			q := everyPod()
			list = append(list, declaring{g, wanted{collectionKey{q.Key(), n.name}, q}})
		}
	}
	return list
}
