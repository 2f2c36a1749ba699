package lint

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Rules finds, in all policies of a world, what their text alone tells: rules of a
// direction that policyTypes leaves out, ipBlocks of which nothing is left, and rules
// behind one that decides about everything. Sorted.
func Rules(snap *world.Snapshot) []world.Problem {
	var out []world.Problem
	for p := range snap.NetworkPolicies.Values() {
		out = append(out, networkPolicy(p)...)
	}
	unreadable := map[world.Key]bool{}
	bare := &world.Snapshot{ClusterNetworkPolicies: snap.ClusterNetworkPolicies}
	for _, p := range oracle.Read(bare).PolicyProblems() {
		if p.Reason != "EqualPriority" {
			unreadable[p.Key] = true
		}
	}
	for p := range snap.ClusterNetworkPolicies.Values() {
		if !unreadable[world.Key{Name: p.Name}] { // Nobody can say what its rules match.
			out = append(out, clusterPolicy(p)...)
		}
	}
	slices.SortFunc(out, world.Problem.Compare)
	return out
}

// direction is one list of rules of a NetworkPolicy.
type direction struct {
	word, list, peers string
	rules             []world.PolicyRule
}

func directions(p *world.NetworkPolicy) []direction {
	return []direction{{"Ingress", "spec.ingress", ".from", p.Ingress}, {"Egress", "spec.egress", ".to", p.Egress}}
}

func networkPolicy(p *world.NetworkPolicy) []world.Problem {
	var out []world.Problem
	add := func(field, reason, format string, args ...any) {
		out = append(out, world.Problem{
			Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name},
			Field: field, Reason: reason, Message: fmt.Sprintf(format, args...),
		})
	}
	for _, d := range directions(p) {
		known := !slices.ContainsFunc(p.Types, func(t string) bool { return t != "Ingress" && t != "Egress" })
		if len(d.rules) > 0 && len(p.Types) > 0 && known && !slices.Contains(p.Types, d.word) {
			add(d.list, "RulesWithoutType", "policyTypes does not have %s: these rules allow nothing and restrict nothing", d.word)
		}
		for i, r := range d.rules {
			for j, peer := range r.Peers {
				if peer.Range != nil && coversItself(*peer.Range) {
					add(fmt.Sprintf("%s[%d]%s[%d].ipBlock.except", d.list, i, d.peers, j), "EmptyRange",
						"except covers all of %.80s: the peer matches nobody", peer.Range.CIDR)
				}
			}
		}
	}
	return out
}

// coversItself reports whether nothing is left of an ipBlock.
func coversItself(r world.PolicyRange) bool {
	cidr, err := netip.ParsePrefix(r.CIDR)
	if err != nil {
		return false
	}
	var b netipx.IPSetBuilder
	b.AddPrefix(cidr.Masked())
	for _, text := range r.Except {
		if e, err := netip.ParsePrefix(text); err == nil {
			b.RemovePrefix(e.Masked())
		}
	}
	set, err := b.IPSet()
	return err == nil && len(set.Ranges()) == 0
}

func clusterPolicy(p *world.ClusterNetworkPolicy) []world.Problem {
	var out []world.Problem
	for list, rules := range map[string][]world.ClusterRule{"spec.ingress": p.Ingress, "spec.egress": p.Egress} {
		final := slices.IndexFunc(rules, matchesEveryPod)
		for i, r := range rules {
			if final >= 0 && i > final && amongPods(r) {
				out = append(out, world.Problem{
					Kind: world.KindClusterNetworkPolicy, Key: world.Key{Name: p.Name}, Field: fmt.Sprintf("%s[%d]", list, i), Reason: "RuleNeverReached",
					Message: fmt.Sprintf("%s[%d] matches all traffic of every pod before: this rule never matches", list, final),
				})
			}
		}
	}
	return out
}

// amongPods reports whether a rule can match pods only.
func amongPods(r world.ClusterRule) bool {
	return len(r.Peers) > 0 && !slices.ContainsFunc(r.Peers, func(p world.ClusterPeer) bool {
		return p.Namespaces == nil && p.Pods == nil || p.Nodes != nil || len(p.Networks) > 0 || len(p.DomainNames) > 0
	})
}

// matchesEveryPod reports whether a rule decides about all traffic of all pods.
func matchesEveryPod(r world.ClusterRule) bool {
	all := func(s *world.Selector) bool {
		return s != nil && len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
	}
	every := func(p world.ClusterPeer) bool {
		if p.Pods == nil {
			return all(p.Namespaces)
		}
		return p.Namespaces == nil && all(&p.Pods.Namespaces) && all(&p.Pods.Pods)
	}
	decides := slices.Contains([]string{"Accept", "Deny", "Pass"}, r.Action)
	return decides && len(r.Protocols) == 0 && amongPods(r) && slices.ContainsFunc(r.Peers, every)
}
