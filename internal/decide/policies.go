package decide

import (
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/decide/policy"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// policies is what policies come to, and what of the stages before they go into. It
// is immutable.
type policies struct {
	state    *policy.State       // nil until there is a policy
	ports    []intent.Port       // with their lists
	lists    []intent.RuleList   // sorted
	sets     []intent.AddressSet // of all stages, sorted
	problems []world.Problem
}

// updatePolicies decides policies, unless nothing changed that they are decided from.
// What comes to the same is taken over, so that whoever compares two intents need not
// look at it. In a cluster that has no policy, and had none, nobody reads its pods.
func (s *State) updatePolicies(prev *State) {
	before := s.policies
	if before == nil {
		before = &policies{}
	}
	snap := s.world // A copy: the next State must not keep this one.
	idle := before.state == nil && snap.NetworkPolicies.Len()+snap.ClusterNetworkPolicies.Len() == 0
	same := s.policies != nil && s.subnets == prev.subnets && s.routes == prev.routes && s.ports == prev.ports && s.tenants.sameSets(prev.tenants)
	if same && (idle || s.underlay == prev.underlay && samePolicies(&prev.world, &snap)) {
		return
	}
	p := &policies{}
	found := &policy.State{}
	if !idle {
		p.state = policy.Decide(before.state, policy.Input{World: &snap, Underlay: s.underlay, Routes: s.routes, Endpoints: s.ports.endpoints})
		found = p.state
	}
	sets := slices.Concat(s.subnets.AddressSets, s.routes.AddressSets, s.tenants.sets, found.AddressSets)
	slices.SortFunc(sets, intent.AddressSet.Compare)
	p.sets = share(before.sets, sets, intent.AddressSet.Equal)
	p.lists = share(before.lists, found.RuleLists, intent.RuleList.Equal)
	p.ports = share(before.ports, restrict(s.ports.list, found.Ports), intent.Port.Equal)
	p.problems = found.Problems
	s.policies = p
	s.computed = append(s.computed, "policies")
}

// samePolicies reports whether two worlds have the same of all that policies are
// decided from.
func samePolicies(old, now *world.Snapshot) bool {
	return old.NetworkPolicies == now.NetworkPolicies && old.ClusterNetworkPolicies == now.ClusterNetworkPolicies &&
		old.Pods == now.Pods && old.Namespaces == now.Namespaces && old.Blocks == now.Blocks &&
		old.Nodes == now.Nodes && old.NodeNetworks == now.NodeNetworks
}

// restrict returns the ports with their lists.
func restrict(ports []intent.Port, lists map[string]policy.Lists) []intent.Port {
	if len(lists) == 0 {
		return ports
	}
	ports = slices.Clone(ports)
	for i, port := range ports {
		of := lists[port.ID]
		ports[i].Ingress, ports[i].Egress = of.Ingress, of.Egress
	}
	return ports
}

// share returns the old one of two lists that say the same.
func share[T any](old, now []T, equal func(a, b T) bool) []T {
	if slices.EqualFunc(old, now, equal) {
		return old
	}
	return now
}
