package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/oracle/lint"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// policyRef names a policy.
type policyRef struct {
	kind world.Kind
	key  world.Key
}

// String is "networkpolicy/shop/web".
func (r policyRef) String() string { return strings.ToLower(string(r.kind)) + "/" + r.key.String() }

// policyProblem is what is wrong with a policy, or surely not meant.
type policyProblem struct {
	Policy string `json:"policy"`
	// Field is its path, with the index of the rule.
	Field   string `json:"field,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// problemsOf says what is wrong with the given policies of a world: what cannot be read,
// priorities that are not clear, and rules that can never match. Sorted.
func problemsOf(snap *world.Snapshot, refs []policyRef) []policyProblem {
	var out []policyProblem
	for _, p := range worldProblems(snap, refs) {
		b := p.Brief()
		out = append(out, policyProblem{Policy: policyRef{p.Kind, p.Key}.String(), Field: b.Field, Reason: b.Reason, Message: b.Message})
	}
	slices.SortFunc(out, func(a, b policyProblem) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(out)
}

// worldProblems is problemsOf in the words of the world, unsorted.
func worldProblems(snap *world.Snapshot, refs []policyRef) []world.Problem {
	if len(refs) == 0 {
		return nil
	}
	m := oracle.Read(snap)
	found := append(m.PolicyProblems(), lint.Rules(snap)...)
	asked := map[policyRef]bool{}
	for _, r := range refs {
		if !asked[r] {
			asked[r] = true
			found = append(found, lint.Ports(m, snap, r.kind, r.key)...)
		}
	}
	return slices.DeleteFunc(found, func(p world.Problem) bool { return !asked[policyRef{p.Kind, p.Key}] })
}

// allPolicies are the policies of a world.
func allPolicies(snap *world.Snapshot) []policyRef {
	var out []policyRef
	for k := range snap.NetworkPolicies.All() {
		out = append(out, policyRef{world.KindNetworkPolicy, k})
	}
	for k := range snap.ClusterNetworkPolicies.All() {
		out = append(out, policyRef{world.KindClusterNetworkPolicy, k})
	}
	return out
}

// policyRefs are the policies among objects.
func policyRefs(objects []datastore.Object) []policyRef {
	var out []policyRef
	for _, o := range objects {
		kind, err := datastore.KindOf(o)
		if err == nil && (kind == datastore.KindNetworkPolicy || kind == datastore.KindClusterNetworkPolicy) {
			out = append(out, policyRef{world.Kind(kind), world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}})
		}
	}
	return out
}

// warnOfPolicies tells what is wrong with policies that were just written. That it cannot
// be told is no failure of the writing.
func (a *app) warnOfPolicies(ctx context.Context, s datastore.Store, refs []policyRef) {
	if len(refs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	snap, err := readWorld(ctx, s)
	if err != nil {
		fmt.Fprintf(a.err, "warning: whether something is wrong with the policies is not known: %v\n", err)
		return
	}
	a.warnProblems(problemsOf(snap, refs))
}

func (a *app) warnProblems(problems []policyProblem) {
	for _, p := range problems {
		field := ""
		if p.Field != "" {
			field = p.Field + ": "
		}
		fmt.Fprintf(a.err, "warning: %s: %s%s: %s\n", p.Policy, field, p.Reason, p.Message)
	}
}

// problemsAlone are those of policies that no datastore has seen: as far as the files
// themselves tell.
func problemsAlone(objects []datastore.Object) []policyProblem {
	store := world.NewStore(nil)
	for _, o := range objects {
		kind, err := datastore.KindOf(o)
		if err != nil || !slices.Contains(world.DatastoreKinds(), world.Kind(kind)) {
			continue
		}
		value, _ := feed.Convert(world.Kind(kind), o)
		store.Apply(world.Change{Kind: world.Kind(kind), Key: world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}, Object: value})
	}
	snap, _ := store.Snapshot()
	return problemsOf(snap, policyRefs(objects))
}

// podAddressesOf are the addresses that a pod's status tells.
func podAddressesOf(o datastore.Object) []netip.Addr {
	value, _ := feed.Convert(world.KindPod, o)
	if p, ok := value.(*world.Pod); ok && p != nil {
		return p.Addresses
	}
	return nil
}
