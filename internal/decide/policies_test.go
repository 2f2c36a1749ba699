package decide

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// restricted is a node of a cluster of 50 pods in one namespace: pods of tier t1 take
// nothing but from t2.
func restricted() *world.Snapshot {
	snap := worldtest.Local(worldtest.Large(5, 10), "node0000")
	return world.NewStore(snap).Apply(allow("t1", "t2"))
}

// allow is the policy that lets pods of one tier reach those of another, and nobody
// else.
func allow(to, from string) world.Change {
	p := &world.NetworkPolicy{
		Namespace: "ns0000", Name: "to-" + to, Pods: *tier(to), Types: []string{"Ingress"},
		Ingress: []world.PolicyRule{{Peers: []world.PolicyPeer{{Pods: tier(from)}}}},
	}
	return world.Change{Kind: world.KindNetworkPolicy, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: p}
}

func tier(name string) *world.Selector {
	return &world.Selector{MatchLabels: map[string]string{"tier": name}}
}

// TestPoliciesReachTheIntent: lists go to the ports that they are of, sets beside
// those of the other stages, problems to the problems.
func TestPoliciesReachTheIntent(t *testing.T) {
	snap := restricted()
	broken := allow("t3", "t4")
	broken.Object.(*world.NetworkPolicy).Ingress[0].Peers[0] = world.PolicyPeer{Range: &world.PolicyRange{CIDR: "nonsense"}}
	n, _, problems := New(Config{Node: "node0000"}).Compile(nil, world.NewStore(snap).Apply(broken))
	if faults := intent.Validate(n); len(faults) > 0 {
		t.Fatalf("invalid intent: %v\n%s", faults, n)
	}
	got := map[string]string{} // pod → the list's first rule
	for _, p := range n.Ports {
		if p.Egress != "" {
			t.Errorf("%s is restricted in what it sends: %s", p.Pod, p)
		}
		if i, found := slices.BinarySearchFunc(n.RuleLists, intent.RuleList{ID: p.Ingress}, intent.RuleList.Compare); found {
			got[p.Pod] = fmt.Sprint(n.RuleLists[i].Rules[0].Action, " ", n.RuleLists[i].Rules[0].Origin.Name)
		}
	}
	want := map[string]string{
		"ns0000/web-00001": "Accept to-t1", "ns0000/web-00008": "Accept to-t1",
		"ns0000/web-00003": "Deny to-t3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
	if len(n.AddressSets) != 2 || !slices.IsSortedFunc(n.AddressSets, intent.AddressSet.Compare) {
		t.Errorf("sets %v, want that of the Subnets and that of t2", n.AddressSets)
	}
	if len(problems) != 1 || problems[0].Reason != "InvalidCIDR" {
		t.Errorf("problems %v", problems)
	}
}

// TestUnrelatedChangesRecompileNothing counts, where there are policies, the stages
// that each change costs, the sorts of pods whose lists are written, and what of the intent is
// not the same memory as before.
func TestUnrelatedChangesRecompileNothing(t *testing.T) {
	store := world.NewStore(restricted())
	snap, _ := store.Snapshot()
	compiler := New(Config{Node: "node0000"})
	old, state, _ := compiler.Compile(nil, snap)
	relabel := func(name, to string) world.Change {
		p := *getPod(snap, name)
		p.Labels = map[string]string{"tier": to}
		return world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}
	}
	attachment := first(snap.Attachments)
	block := *get(snap.Blocks, "default.0a800040-26")
	block.Allocations = block.Allocations[1:]
	elsewhere := allow("t1", "t3")
	elsewhere.Key.Namespace = "ns0001"
	elsewhere.Object.(*world.NetworkPolicy).Namespace = "ns0001"
	policies := []string{"policies"}
	for _, tt := range []struct {
		name     string
		change   world.Change
		computed []string
		compiled int
		// made anew: "ports", "sets", "lists"
		anew []string
	}{
		{"nothing", world.Change{}, nil, 0, nil},
		{"a tunnel address", world.Change{Kind: world.KindTunnelAddress, Key: world.Key{Name: "x"}, Object: &world.TunnelAddress{Subnet: "default"}}, []string{"tunnels"}, 0, nil},
		{"a label that nobody asks for", relabel("web-00046", "t9"), policies, 0, nil},
		{"a pod that is a peer now", relabel("web-00046", "t2"), policies, 0, []string{"sets"}},
		{"a tunnel address of another node", world.Change{Kind: world.KindBlock, Key: world.Key{Name: block.Name}, Object: &block}, policies, 0, nil},
		{"a node's labels", world.Change{Kind: world.KindNode, Key: world.Key{Name: "node0001"}, Object: &world.Node{Name: "node0001"}}, policies, 0, nil},
		{"a namespace's labels", world.Change{Kind: world.KindNamespace, Key: world.Key{Name: "ns0007"}, Object: &world.Namespace{Name: "ns0007"}}, []string{"tenancy", "subnets", "routes", "tunnels", "ports", "policies"}, 0, nil},
		{"a policy of another namespace", elsewhere, policies, 0, nil},
		{"a pod of ours that the policy selects now", relabel("web-00002", "t1"), policies, 1, []string{"ports", "sets"}},
		{"a policy of ours", allow("t3", "t2"), policies, 1, []string{"ports", "lists"}},
		{"an attachment less", world.Change{Kind: world.KindAttachment, Key: world.Key{Name: attachment.ID}}, []string{"ports", "policies"}, 0, []string{"ports"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, next, _ := compiler.Compile(state, store.Apply(tt.change))
			if diff := cmp.Diff(tt.computed, next.computed, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("stages (-want +got):\n%s", diff)
			}
			compiled := 0
			if next.policies != state.policies {
				compiled = next.policies.state.Compiled()
			}
			if compiled != tt.compiled {
				t.Errorf("the lists of %d sorts of pods were written, want %d", compiled, tt.compiled)
			}
			if diff := cmp.Diff(tt.anew, anew(old, n), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("made anew (-want +got):\n%s", diff)
			}
			old, state = n, next
		})
	}
}

// anew names the lists that two intents do not share.
func anew(old, now intent.Node) []string {
	var out []string
	if !shared(old.Ports, now.Ports) {
		out = append(out, "ports")
	}
	if !shared(old.AddressSets, now.AddressSets) {
		out = append(out, "sets")
	}
	if !shared(old.RuleLists, now.RuleLists) {
		out = append(out, "lists")
	}
	return out
}

func shared[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func getPod(snap *world.Snapshot, name string) *world.Pod {
	p, ok := snap.Pods.Get(world.Key{Namespace: "ns0000", Name: name})
	if !ok {
		panic("the world lacks " + name)
	}
	return p
}

// TestTheLastPolicyGoes: then the intent is that of a cluster without any.
func TestTheLastPolicyGoes(t *testing.T) {
	store := world.NewStore(restricted())
	snap, _ := store.Snapshot()
	compiler := New(Config{Node: "node0000"})
	_, state, _ := compiler.Compile(nil, snap)
	gone := allow("t1", "t2")
	gone.Object = nil
	snap = store.Apply(gone)
	got, _, _ := compiler.Compile(state, snap)
	want, _, _ := compiler.Compile(nil, snap)
	if diff := cmp.Diff(want, got, asValues); diff != "" || len(got.RuleLists) > 0 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
