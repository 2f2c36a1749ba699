package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

var epoch = time.Unix(1_800_000_000, 0)

// model is a datastore of the few kinds that a Plan writes, as far as it needs.
type model struct {
	world   *world.Store
	objects Objects
	record  Record
	memory  *Memory
	now     time.Time
}

func newModel(snap *world.Snapshot) *model {
	m := &model{world: world.NewStore(snap), now: epoch, objects: Objects{
		VPCs: map[string]*v1alpha1.VPC{}, Subnets: map[string]*v1alpha1.Subnet{}, NodeNetworks: map[string]*v1alpha1.NodeNetwork{},
		NetNamespaces: map[string]*v1alpha1.NetNamespace{}, Events: map[datastore.Key]*corev1.Event{},
		ClusterNetworkPolicies: map[string]*policyv1beta1.ClusterNetworkPolicy{},
	}}
	for _, k := range world.DatastoreKinds() {
		m.world.Apply(world.Change{Kind: k, Synced: true})
	}
	m.follow()
	return m
}

// follow makes whole objects of what the world holds without.
func (m *model) follow() {
	snap, _ := m.world.Snapshot()
	for k, o := range snap.VPCs.All() {
		if m.objects.VPCs[k.Name] == nil {
			m.objects.VPCs[k.Name] = &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: k.Name, UID: types.UID(o.UID), Generation: 1}, Status: v1alpha1.VPCStatus{VNI: int32(o.VNI)}}
		}
	}
	for k := range snap.Subnets.All() {
		if m.objects.Subnets[k.Name] == nil {
			m.objects.Subnets[k.Name] = &v1alpha1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: k.Name, Generation: 1}}
		}
	}
	for k := range snap.NodeNetworks.All() {
		if m.objects.NodeNetworks[k.Name] == nil {
			m.objects.NodeNetworks[k.Name] = &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: k.Name}}
		}
	}
	for k := range snap.ClusterNetworkPolicies.All() {
		if m.objects.ClusterNetworkPolicies[k.Name] == nil {
			foreign := metav1.Condition{Type: "example.org/Ready", Status: metav1.ConditionTrue, Reason: "Theirs"}
			m.objects.ClusterNetworkPolicies[k.Name] = &policyv1beta1.ClusterNetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: k.Name, Generation: 1},
				Status:     policyv1beta1.ClusterNetworkPolicyStatus{Conditions: []metav1.Condition{foreign}},
			}
		}
	}
	for k, o := range snap.NetNamespaces.All() {
		if m.objects.NetNamespaces[k.Name] == nil {
			m.objects.NetNamespaces[k.Name] = &v1alpha1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: k.Name}, Spec: v1alpha1.NetNamespaceSpec{VNI: int32(o.VNI)}}
		}
	}
}

func (m *model) input() Input {
	snap, _ := m.world.Snapshot()
	return Input{Config: Config{Grace: time.Minute, Identity: "test"}, Now: m.now, World: snap, Objects: m.objects, Record: m.record, Memory: m.memory}
}

// carryOut does what a Plan says.
func (m *model) carryOut(t interface{ Fatalf(string, ...any) }, p Plan) {
	m.record, m.memory = p.Record, p.Memory
	m.record.Stored = true
	for _, w := range p.Writes {
		key := world.Key{Namespace: w.Key.Namespace, Name: w.Key.Name}
		switch o := w.Object.(type) {
		case *v1alpha1.VPC:
			old, _ := m.current().VPCs.Get(key)
			next := world.VPC{Name: o.Name, Created: m.now}
			if old != nil {
				next = *old
			}
			next.VNI = packet.VNI(o.Status.VNI)
			m.world.Apply(world.Change{Kind: world.KindVPC, Key: key, Object: &next})
			m.objects.VPCs[o.Name] = o
		case *v1alpha1.Subnet:
			m.objects.Subnets[o.Name] = o
		case *v1alpha1.NetNamespace:
			m.world.Apply(world.Change{Kind: world.KindNetNamespace, Key: key, Object: &world.NetNamespace{Name: o.Name, VNI: packet.VNI(o.Spec.VNI), Global: o.Spec.Global}})
			m.objects.NetNamespaces[o.Name] = o
		case *policyv1beta1.ClusterNetworkPolicy:
			if c := o.Status.Conditions[0]; c.Type != "example.org/Ready" || c.Reason != "Theirs" {
				t.Fatalf("a condition of others was changed: %+v", c)
			}
			m.objects.ClusterNetworkPolicies[o.Name] = o
		case *corev1.Event:
			m.objects.Events[w.Key] = o
		case nil:
			if w.Action != Delete && w.Action != Release {
				t.Fatalf("%s of %s without an object", w.Action, w.Key)
			}
			delete(m.objects.Events, w.Key)
			if w.Kind != datastore.KindEvent {
				m.world.Apply(world.Change{Kind: world.Kind(w.Kind), Key: key})
			}
			switch w.Kind {
			case datastore.KindNetNamespace:
				delete(m.objects.NetNamespaces, w.Key.Name)
			case datastore.KindNodeNetwork:
				delete(m.objects.NodeNetworks, w.Key.Name)
			}
		}
	}
	m.follow()
}

func (m *model) current() *world.Snapshot {
	snap, _ := m.world.Snapshot()
	return snap
}

// Whatever the world: the same Input gives the same Plan, nothing panics, no write
// touches what it must not, and doing what is said leads to rest.
func TestAnyWorldComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(worldtest.DrawPolicies(t, worldtest.Draw(t)))
		for range rapid.IntRange(0, 30).Draw(t, "wild changes") {
			m.world.Apply(worldtest.Wild(t))
		}
		m.follow()
		for step := 0; ; step++ {
			in := m.input()
			p := Make(in)
			if diff := cmp.Diff(p, Make(in), cmp.AllowUnexported(Memory{}, objectRef{}), cmpopts.IgnoreFields(Memory{}, "decided", "counted")); diff != "" {
				t.Fatalf("the second plan of the same input differs (-first +second)\n%s", diff)
			}
			if in.Memory != nil { // What is remembered saves work and changes nothing.
				bare := *in.Memory
				bare.decided, bare.counted = nil, nil
				in.Memory = &bare
				if diff := cmp.Diff(p.Writes, Make(in).Writes); diff != "" {
					t.Fatalf("from scratch the plan differs (-kept +scratch)\n%s", diff)
				}
			}
			checkWrites(t, in, p)
			if len(p.Writes) == 0 && p.Record.Equal(m.record) && p.Again.IsZero() {
				break
			}
			if step == 50 {
				t.Fatalf("no rest after %d plans; the last: %d writes, again %s, first %+v", step, len(p.Writes), p.Again, slices.Collect(firstOf(p.Writes)))
			}
			m.carryOut(t, p)
			m.now = m.now.Add(time.Second)
			if !p.Again.IsZero() && p.Again.After(m.now) {
				m.now = p.Again
			}
		}
	})
}

func firstOf(writes []Write) func(func(string) bool) {
	return func(yield func(string) bool) {
		if len(writes) > 0 {
			yield(fmt.Sprintf("%s %s %s: %s", writes[0].Action, writes[0].Kind, writes[0].Key, writes[0].Why))
		}
	}
}

// checkWrites holds what every single Plan must obey.
func checkWrites(t *rapid.T, in Input, p Plan) {
	seen := map[Ref]bool{}
	vnis := map[int32]string{}
	for _, w := range p.Writes {
		if ref := (Ref{Kind: w.Kind, Key: w.Key}); seen[ref] {
			t.Fatalf("%s %s is written twice", w.Kind, w.Key)
		} else {
			seen[ref] = true
		}
		switch {
		case w.Action == Release || w.Kind == datastore.KindNodeNetwork:
			if w.Absent.Kind != datastore.KindNode {
				t.Fatalf("%s %s does not depend on a Node's absence", w.Action, w.Key)
			}
			if _, lives := in.World.Nodes.Get(world.Key{Name: w.Absent.Key.Name}); lives {
				t.Fatalf("%s %s: node %s exists", w.Action, w.Key, w.Absent.Key.Name)
			}
		case w.Kind == datastore.KindNetNamespace && w.Action == Create:
			n := w.Object.(*v1alpha1.NetNamespace)
			if other, dup := vnis[n.Spec.VNI]; dup || n.Spec.VNI <= 0 {
				t.Fatalf("%s gets VNI %d, which %q has", n.Name, n.Spec.VNI, other)
			}
			vnis[n.Spec.VNI] = n.Name
			for o := range in.World.NetNamespaces.Values() {
				if o.VNI == packet.VNI(n.Spec.VNI) {
					t.Fatalf("%s gets VNI %d, which %s has", n.Name, n.Spec.VNI, o.Name)
				}
			}
		case w.Kind == datastore.KindEvent && w.Action != Delete:
			if e := w.Object.(*corev1.Event); e.Reason == "" || e.Message == "" || e.Namespace == "" || len(e.Message) > maxMessage {
				t.Fatalf("event %+v", e)
			}
		}
	}
}

func TestNothingBeforeEverythingIsListed(t *testing.T) {
	in := newModel(worldtest.Large(3, 2)).input()
	if len(Make(in).Writes) == 0 {
		t.Fatal("nothing to do in this world")
	}
	for _, missing := range world.DatastoreKinds() {
		snap := *in.World
		snap.Synced = maps.Clone(snap.Synced)
		delete(snap.Synced, missing)
		late := in
		late.World = &snap
		if p := Make(late); len(p.Writes) > 0 || !p.Record.Equal(in.Record) {
			t.Errorf("without %s: %d writes", missing, len(p.Writes))
		}
	}
}

// The grace period does not begin again with a new leader, and a clock that is ahead
// does not end it at once.
func TestGraceSurvivesLeaders(t *testing.T) {
	m := newModel(worldtest.Large(4, 2))
	m.carryOut(t, Make(m.input()))
	m.world.Apply(world.Change{Kind: world.KindNode, Key: world.Key{Name: "node0001"}})
	gone := m.now
	released := func() bool {
		p := Make(m.input())
		m.carryOut(t, p)
		return slices.ContainsFunc(p.Writes, func(w Write) bool { return w.Action == Release })
	}
	for pod := range m.current().Pods.Values() {
		if pod.Node == "node0001" {
			m.world.Apply(world.Change{Kind: world.KindPod, Key: world.Key{Namespace: pod.Namespace, Name: pod.Name}})
		}
	}
	released()
	m.now = gone.Add(50 * time.Second)
	m.memory = nil // The next leader, whose clock is 20 minutes ahead.
	m.now = m.now.Add(20 * time.Minute)
	if released() {
		t.Error("released by a leader that has just begun")
	}
	m.now = m.now.Add(14 * time.Second)
	if released() {
		t.Error("released after 14 s of its own")
	}
	m.now = m.now.Add(time.Second)
	if !released() {
		t.Error("not released a quarter of the grace period after it began")
	}
}

// Writes that fail cost no VNI, however often they are tried.
func TestFailedWritesCostNoVNI(t *testing.T) {
	m := newModel(worldtest.Large(2, 100))
	vpc, _ := m.current().VPCs.Get(world.Key{Name: "default"})
	next := *vpc
	next.Tenant, next.VNI = true, 0
	m.world.Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: "default"}, Object: &next})
	m.world.Apply(world.Change{Kind: world.KindNetNamespace, Key: world.Key{Name: "ns0001"}})
	given := func() []int32 {
		p := Make(m.input())
		m.record, m.memory = p.Record, p.Memory // Stored; the writes are lost.
		m.record.Stored = true
		var out []int32
		for _, w := range p.Writes {
			switch o := w.Object.(type) {
			case *v1alpha1.NetNamespace:
				if w.Action == Create {
					out = append(out, o.Spec.VNI)
				}
			case *v1alpha1.VPC:
				out = append(out, o.Status.VNI)
			}
		}
		return out
	}
	want, place := given(), m.record.Next
	if len(want) != 2 {
		t.Fatalf("VNIs %v, want one for the VPC and one for ns0001", want)
	}
	for range 100 {
		if got := given(); !slices.Equal(got, want) || m.record.Next != place {
			t.Fatalf("VNIs %v at %d, first %v at %d", got, m.record.Next, want, place)
		}
	}
}

func BenchmarkMake(b *testing.B) {
	for _, tenant := range []bool{false, true} {
		b.Run(fmt.Sprintf("1000 nodes 50000 pods tenant=%v", tenant), func(b *testing.B) {
			m := newModel(worldtest.Large(1000, 50))
			vpc, _ := m.current().VPCs.Get(world.Key{Name: "default"})
			next := *vpc
			next.Tenant = tenant
			m.world.Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: "default"}, Object: &next})
			for range 2 {
				m.carryOut(b, Make(m.input()))
				m.now = m.now.Add(10 * time.Second)
			}
			in := m.input()
			if p := Make(in); len(p.Writes) > 0 {
				b.Fatalf("%d writes at rest", len(p.Writes))
			}
			for b.Loop() {
				Make(in)
			}
		})
	}
}

// P5: whatever is wrong with a policy is told by an Event or a condition that names the
// policy, the rule by its index, and the reason.
func TestFaultsOfPoliciesAreTold(t *testing.T) {
	never, broken := &world.Selector{}, &world.Selector{MatchExpressions: []world.Requirement{{Key: "a", Operator: "Foo"}}}
	network := func(p world.NetworkPolicy) world.Change {
		p.Namespace, p.Name, p.UID = "shop", "p", "u"
		return world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: "shop", Name: "p"}, Object: &p}
	}
	cluster := func(p world.ClusterNetworkPolicy) world.Change {
		p.Name, p.Tier, p.Subject = "p", "Admin", world.ClusterSubject{Namespaces: never}
		return world.Change{Kind: world.KindClusterNetworkPolicy, Key: world.Key{Name: "p"}, Object: &p}
	}
	other := world.Change{Kind: world.KindClusterNetworkPolicy, Key: world.Key{Name: "o"}, Object: &world.ClusterNetworkPolicy{Name: "o", Tier: "Admin", Subject: world.ClusterSubject{Namespaces: never}}}
	from := func(peers ...world.PolicyPeer) []world.PolicyRule {
		return []world.PolicyRule{{}, {Peers: peers}}
	}
	deny := func(p world.ClusterPeer) world.ClusterRule {
		return world.ClusterRule{Action: "Deny", Peers: []world.ClusterPeer{p}}
	}
	for _, tt := range []struct {
		name          string
		changes       []world.Change
		field, reason string
	}{
		{"invalid selector", []world.Change{network(world.NetworkPolicy{Ingress: from(world.PolicyPeer{Pods: broken})})}, "spec.ingress[1].from[0].podSelector", "InvalidSelector"},
		{"invalid subject", []world.Change{network(world.NetworkPolicy{Pods: *broken})}, "spec.podSelector", "InvalidSelector"},
		{"empty peer", []world.Change{network(world.NetworkPolicy{Ingress: from(world.PolicyPeer{})})}, "spec.ingress[1].from[0]", "InvalidPeer"},
		{"empty range", []world.Change{network(world.NetworkPolicy{Ingress: from(world.PolicyPeer{Range: &world.PolicyRange{CIDR: "10.0.0.0/24", Except: []string{"10.0.0.0/8"}}})})}, "spec.ingress[1].from[0].ipBlock", "EmptyRange"},
		{"cluster, invalid selector", []world.Change{cluster(world.ClusterNetworkPolicy{Ingress: []world.ClusterRule{deny(world.ClusterPeer{Namespaces: broken})}})}, "spec.ingress[0].from[0].namespaces", "InvalidSelector"},
		{"cluster, empty peer", []world.Change{cluster(world.ClusterNetworkPolicy{Egress: []world.ClusterRule{deny(world.ClusterPeer{})}})}, "spec.egress[0].to[0]", "InvalidPeer"},
		{"cluster, equal priorities", []world.Change{cluster(world.ClusterNetworkPolicy{}), other}, "spec.priority", "EqualPriority"},
		{"cluster, never reached", []world.Change{cluster(world.ClusterNetworkPolicy{Ingress: []world.ClusterRule{deny(world.ClusterPeer{Namespaces: never}), deny(world.ClusterPeer{Namespaces: never})}})}, "spec.ingress[1]", "RuleNeverReached"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newModel(world.NewStore(nil).Apply(tt.changes...))
			told := ""
			for _, w := range Make(m.input()).Writes {
				switch o := w.Object.(type) {
				case *corev1.Event:
					if o.InvolvedObject.Kind == "NetworkPolicy" && o.InvolvedObject.Namespace == "shop" && o.InvolvedObject.Name == "p" && o.Reason == tt.reason {
						told += o.Message
					}
				case *policyv1beta1.ClusterNetworkPolicy:
					for _, c := range o.Status.Conditions {
						if c.Type == PolicyConditions+"Warnings" && c.Reason == tt.reason && o.Name == "p" {
							told += c.Message
						}
					}
				}
			}
			if !strings.Contains(told, tt.field) {
				t.Errorf("told %q of %s, want that it names %s", told, tt.reason, tt.field)
			}
		})
	}
}
