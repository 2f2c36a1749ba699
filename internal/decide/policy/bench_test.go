package policy

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// large is a cluster of 10,000 pods with two addresses each, 50 on most nodes and 100
// on node0050, in 300 namespaces of 30 teams, with 1,000 policies: 980 of namespaces, of every sort, and
// 20 of the cluster.
func large() *world.Snapshot {
	snap := worldtest.Large(200, 50)
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
		p := largePolicy(i)
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

func home(node string) string {
	if node == "node0051" {
		return "node0050"
	}
	return node
}

func largePolicy(i int) *world.NetworkPolicy {
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

func BenchmarkFromScratch(b *testing.B) {
	snap := worldtest.Local(large(), "node0050")
	in := new(stages).input("node0050", snap)
	var s *State
	b.ReportAllocs()
	start := cpu()
	for b.Loop() {
		s = Decide(nil, in)
	}
	b.ReportMetric(float64(cpu()-start)/1e6/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(len(s.RuleLists)), "lists")
	b.ReportMetric(float64(len(s.AddressSets)), "sets")
	// What the State keeps, beyond the world.
	s = nil
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s = Decide(nil, in)
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/1e6, "MB")
	runtime.KeepAlive(s)
	runtime.KeepAlive(in)
}

// cpu is the CPU time of the process so far, its garbage collector included: a busy
// machine does not change it much.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// oneChange measures what one change costs: flip returns the changes of a round, odd
// ones undo the even ones.
func oneChange(b *testing.B, flip func(snap *world.Snapshot, odd bool) []world.Change) {
	snap := worldtest.Local(large(), "node0050")
	var kept stages
	store := world.NewStore(snap)
	s := Decide(nil, kept.input("node0050", snap))
	b.ReportAllocs()
	var spent time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		in := kept.input("node0050", store.Apply(flip(snap, i%2 == 1)...))
		start := cpu()
		b.StartTimer()
		s = Decide(s, in)
		spent += cpu() - start
	}
	b.ReportMetric(float64(spent)/1e6/float64(b.N), "cpu-ms/op")
}

// somePod is a pod of another node.
func somePod(snap *world.Snapshot) *world.Pod {
	for p := range snap.Pods.Values() {
		if p.Node == "node0007" {
			return p
		}
	}
	panic("no pod on node0007")
}

func BenchmarkOneNewPod(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		p := somePod(snap)
		changes := []world.Change{{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}}}
		if odd {
			changes[0].Object = p
		}
		for block := range snap.Blocks.Values() {
			if block.Node != p.Node {
				continue
			}
			now := *block
			if !odd {
				now.Allocations = slices.DeleteFunc(slices.Clone(block.Allocations), func(a world.Allocation) bool { return a.Owner.UID == p.UID })
			}
			changes = append(changes, world.Change{Kind: world.KindBlock, Key: world.Key{Name: block.Name}, Object: &now})
		}
		return changes
	})
}

func BenchmarkOnePodRelabelled(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		p := *somePod(snap)
		if !odd {
			p.Labels = map[string]string{"app": "app3", "name": p.Name}
		}
		return []world.Change{{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}}
	})
}

func BenchmarkOneNetworkPolicy(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		var local *world.Attachment
		for a := range snap.Attachments.Values() {
			local = a
		}
		p := largePolicy(999)
		p.Namespace, p.Pods = local.Pod.Namespace, world.Selector{}
		c := world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: p}
		if odd {
			c.Object = nil
		}
		return []world.Change{c}
	})
}

func BenchmarkOneClusterNetworkPolicy(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		key := world.Key{Name: "cnp00"}
		old, _ := snap.ClusterNetworkPolicies.Get(key)
		p := *old
		if !odd {
			p.Subject.Namespaces = &world.Selector{}
		}
		return []world.Change{{Kind: world.KindClusterNetworkPolicy, Key: key, Object: &p}}
	})
}

func BenchmarkOneNamespaceRelabelled(b *testing.B) {
	oneChange(b, func(snap *world.Snapshot, odd bool) []world.Change {
		key := world.Key{Name: "ns0007"}
		old, _ := snap.Namespaces.Get(key)
		ns := *old
		if !odd {
			ns.Labels = map[string]string{"team": "t3"}
		}
		return []world.Change{{Kind: world.KindNamespace, Key: key, Object: &ns}}
	})
}
