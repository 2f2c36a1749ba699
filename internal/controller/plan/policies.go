package plan

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/oracle/lint"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// PolicyConditions begins the types of our conditions on ClusterNetworkPolicies: the kind
// is shared, and others may write conditions of their own beside them.
const PolicyConditions = "fairlead.dev/"

// policyProblems is what is wrong with the policies of a world, as far as they tell it
// themselves. What only a node can know, as ports that no pod has, nodes report.
func policyProblems(snap *world.Snapshot) []world.Problem {
	bare := &world.Snapshot{NetworkPolicies: snap.NetworkPolicies, ClusterNetworkPolicies: snap.ClusterNetworkPolicies}
	return append(oracle.Read(bare).PolicyProblems(), lint.Rules(bare)...)
}

func (d *decided) samePolicies(now *world.Snapshot) bool {
	return d.from.NetworkPolicies == now.NetworkPolicies && d.from.ClusterNetworkPolicies == now.ClusterNetworkPolicies
}

// describePolicies writes our conditions of ClusterNetworkPolicies, and leaves those of
// others alone. A policy is always in force, with whatever is wrong with it: then it
// allows less.
func (p *planner) describePolicies() {
	nodes := p.onNodes(nil)
	for w := range p.snap.ClusterNetworkPolicies.Values() {
		o := p.Objects.ClusterNetworkPolicies[w.Name]
		if o == nil || datastore.Unreadable(o) != "" {
			continue
		}
		v := verdict{inUse: true, realised: nodes}
		for _, r := range p.reported[objectRef{world.KindClusterNetworkPolicy, world.Key{Name: w.Name}}] {
			v.warnings = append(v.warnings, r.Problem)
		}
		next := o.DeepCopy()
		p.ourConditions(v, &next.Status.Conditions, o.Generation)
		if !equality.Semantic.DeepEqual(next.Status, o.Status) {
			p.writeStatus(world.KindClusterNetworkPolicy, next, !sameStanding(o.Status.Conditions, next.Status.Conditions))
		}
	}
}

// ourConditions sets conditions whose types have our prefix.
func (p *planner) ourConditions(v verdict, conditions *[]metav1.Condition, generation int64) {
	var ours []metav1.Condition
	for _, c := range *conditions {
		if kind, is := strings.CutPrefix(c.Type, PolicyConditions); is {
			c.Type = kind
			ours = append(ours, c)
		}
	}
	p.conditions(v, &ours, generation)
	for _, c := range ours {
		c.Type = PolicyConditions + c.Type
		meta.SetStatusCondition(conditions, c)
	}
	if *conditions == nil {
		*conditions = []metav1.Condition{}
	}
	*conditions = slices.Clip(*conditions)
}
