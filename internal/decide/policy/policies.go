package policy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// policies are all of the cluster, read. It is immutable.
type policies struct {
	byNamespace world.Table[*policyList] // NetworkPolicies by name
	cluster     *policyList              // by priority, then name
	problems    []world.Problem
}

// update reads the policies that changed, and returns how many those were.
func (p *policies) update(was, now *world.Snapshot) (*policies, int) {
	if was.NetworkPolicies == now.NetworkPolicies && was.ClusterNetworkPolicies == now.ClusterNetworkPolicies {
		return p, 0
	}
	next := &policies{byNamespace: p.byNamespace, cluster: p.cluster}
	n := next.readNetwork(was, now) + next.readCluster(was, now)
	next.report()
	return next, n
}

func (p *policies) readNetwork(was, now *world.Snapshot) int {
	read := 0
	changed := map[string]map[world.Key]*parsed{} // nil: gone
	for d := range world.Diff(was.NetworkPolicies, now.NetworkPolicies) {
		in := changed[d.Key.Namespace]
		if in == nil {
			in = map[world.Key]*parsed{}
			changed[d.Key.Namespace] = in
		}
		in[d.Key] = nil
		if d.HasNew {
			in[d.Key] = readNetworkPolicy(d.New)
			read++
		}
	}
	for namespace, in := range changed {
		key := world.Key{Name: namespace}
		var list []*parsed
		if old, ok := p.byNamespace.Get(key); ok {
			for _, o := range old.policies {
				if _, replaced := in[o.key]; !replaced {
					list = append(list, o)
				}
			}
		}
		for _, n := range in {
			if n != nil {
				list = append(list, n)
			}
		}
		if len(list) == 0 {
			p.byNamespace = p.byNamespace.Without(key)
			continue
		}
		slices.SortFunc(list, func(a, b *parsed) int { return a.key.Compare(b.key) })
		p.byNamespace = p.byNamespace.With(key, &policyList{list})
	}
	return read
}

func (p *policies) readCluster(was, now *world.Snapshot) int {
	read := 0
	changed := map[world.Key]*parsed{}
	for d := range world.Diff(was.ClusterNetworkPolicies, now.ClusterNetworkPolicies) {
		changed[d.Key] = nil
		if d.HasNew {
			changed[d.Key] = readClusterNetworkPolicy(d.New)
			read++
		}
	}
	if len(changed) == 0 {
		return 0
	}
	var list []*parsed
	if p.cluster != nil {
		for _, o := range p.cluster.policies {
			if _, replaced := changed[o.key]; !replaced {
				list = append(list, o)
			}
		}
	}
	for _, n := range changed {
		if n != nil {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *parsed) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.priority, b.priority), a.key.Compare(b.key))
	})
	p.cluster = &policyList{list}
	return read
}

func (p *policies) report() {
	for list := range p.byNamespace.Values() {
		for _, o := range list.policies {
			p.problems = append(p.problems, o.problems...)
		}
	}
	if p.cluster == nil {
		return
	}
	for i, o := range p.cluster.policies {
		p.problems = append(p.problems, o.problems...)
		if i > 0 && p.cluster.policies[i-1].tier == o.tier && p.cluster.policies[i-1].priority == o.priority {
			p.problems = append(p.problems, world.Problem{
				Kind: o.kind, Key: o.key, Field: "spec.priority", Reason: "EqualPriority",
				Message: fmt.Sprintf("%s has priority %d in tier %s too: it is asked first, for its name", p.cluster.policies[i-1].key.Name, o.priority, o.tier),
			})
		}
	}
}
