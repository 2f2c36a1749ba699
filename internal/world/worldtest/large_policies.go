package worldtest

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// LargePolicies returns a cluster of 10,000 pods with two addresses each, 50 on most
// nodes and 100 on node0050, in 300 namespaces of 30 teams, with 1,000 policies: 980
// of namespaces, of every sort, and 20 of the cluster.
func LargePolicies() *world.Snapshot {
	snap := Large(200, 50)
	var changes []world.Change
	set := func(kind world.Kind, key world.Key, object any) {
		changes = append(changes, world.Change{Kind: kind, Key: key, Object: object})
	}
	for i := range 300 {
		name := fmt.Sprintf("ns%04d", i)
		labels := map[string]string{"kubernetes.io/metadata.name": name, "team": fmt.Sprintf("t%d", i%30)}
		set(world.KindNamespace, world.Key{Name: name}, &world.Namespace{Name: name, Labels: labels})
	}
	// Every node has pods of many namespaces.
	owners := map[string]world.Owner{}
	k := 0
	for p := range snap.Pods.Values() {
		moved := *p
		moved.Node = home(p.Node)
		moved.Namespace = fmt.Sprintf("ns%04d", k*7%300)
		moved.Labels = map[string]string{"app": fmt.Sprintf("app%d", k%20), "tier": p.Labels["tier"], "pod-template-hash": fmt.Sprintf("hash%d", k/10)}
		if k%5 == 0 {
			moved.Labels["statefulset.kubernetes.io/pod-name"] = p.Name
		}
		owners[p.UID] = world.Owner{Namespace: moved.Namespace, Name: p.Name, UID: p.UID}
		set(world.KindPod, world.Key{Namespace: p.Namespace, Name: p.Name}, nil)
		set(world.KindPod, world.Key{Namespace: moved.Namespace, Name: p.Name}, &moved)
		k++
	}
	for b := range snap.Blocks.Values() {
		moved := *b
		moved.Node = home(b.Node)
		moved.Allocations = slices.Clone(b.Allocations)
		for i, a := range moved.Allocations {
			if o, ok := owners[a.Owner.UID]; ok {
				moved.Allocations[i].Owner = o
			}
		}
		set(world.KindBlock, world.Key{Name: b.Name}, &moved)
	}
	for i := range 980 {
		p := LargePolicy(i)
		set(world.KindNetworkPolicy, world.Key{Namespace: p.Namespace, Name: p.Name}, p)
	}
	for i := range 20 {
		name := fmt.Sprintf("cnp%02d", i)
		set(world.KindClusterNetworkPolicy, world.Key{Name: name}, &world.ClusterNetworkPolicy{
			Name: name, Tier: []string{"Admin", "Baseline"}[i%2], Priority: int32(i),
			Subject: world.ClusterSubject{Namespaces: &world.Selector{MatchLabels: map[string]string{"team": fmt.Sprintf("t%d", i)}}},
			Ingress: []world.ClusterRule{
				{Action: "Deny", Peers: []world.ClusterPeer{{Namespaces: &world.Selector{MatchExpressions: []world.Requirement{{Key: "team", Operator: "NotIn", Values: []string{"t0", fmt.Sprintf("t%d", i)}}}}}}},
				{Action: "Pass", Peers: []world.ClusterPeer{{Namespaces: &world.Selector{}}}},
			},
			Egress: []world.ClusterRule{{Action: "Deny", Peers: []world.ClusterPeer{{Networks: []string{fmt.Sprintf("192.0.2.%d/32", i)}}, {Nodes: &world.Selector{}}}}},
		})
	}
	return world.NewStore(snap).Apply(changes...)
}

// home puts the pods of two nodes on one.
func home(node string) string {
	if node == "node0051" {
		return "node0050"
	}
	return node
}

// LargePolicy is a NetworkPolicy of such a cluster, the one of that number.
func LargePolicy(i int) *world.NetworkPolicy {
	app := func(n int) *world.Selector {
		return &world.Selector{MatchLabels: map[string]string{"app": fmt.Sprintf("app%d", n%20)}}
	}
	p := &world.NetworkPolicy{Namespace: fmt.Sprintf("ns%04d", i%300), Name: fmt.Sprintf("np%04d", i), Types: []string{"Ingress", "Egress"}}
	if i%3 > 0 {
		p.Pods = *app(i)
	}
	http, last := world.PortRef{By: world.ByName, Name: "http"}, int32(9000)
	p.Ingress = []world.PolicyRule{
		{Peers: []world.PolicyPeer{{Pods: app(i + 1)}, {Namespaces: &world.Selector{MatchLabels: map[string]string{"team": fmt.Sprintf("t%d", i%30)}}}}, Ports: []world.PolicyPort{{Port: &http}}},
		{Peers: []world.PolicyPeer{{Pods: app(i), Namespaces: &world.Selector{}}}, Ports: []world.PolicyPort{{Port: &world.PortRef{Number: 8000}, EndPort: &last}}},
	}
	p.Egress = []world.PolicyRule{
		{Peers: []world.PolicyPeer{{Range: &world.PolicyRange{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8", fmt.Sprintf("198.51.%d.0/24", i%200)}}}}},
		{Peers: []world.PolicyPeer{{Pods: &world.Selector{}}}, Ports: []world.PolicyPort{{Port: &http}}},
	}
	return p
}
