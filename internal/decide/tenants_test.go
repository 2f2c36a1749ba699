package decide

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/worldtest"
)

// Every node knows of each isolated tenant exactly the addresses that its ports have,
// wherever they are, also when tenants change.
func TestTenantSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snap := worldtest.Draw(t)
		states := map[string]*State{}
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			want, got := map[tenantOf][]netip.Addr{}, map[string][]intent.AddressSet{}
			for node := range snap.NodeNetworks.Values() {
				n, state, _ := New(Config{Node: node.Name}).Compile(states[node.Name], worldtest.Local(snap, node.Name))
				states[node.Name] = state
				got[node.Name] = state.tenants.sets
				for _, p := range n.Ports {
					own := n.VPCs[slices.IndexFunc(n.VPCs, func(v intent.VPC) bool { return v.Name == p.VPC })].VNI
					if of := (tenantOf{p.VPC, intent.SetTenant(p.VNI)}); p.VNI != own {
						want[of] = append(want[of], p.Addresses...)
					}
				}
			}
			var sets []intent.AddressSet
			for of, addrs := range want {
				s := intent.AddressSet{VPC: of.vpc, Name: of.set}
				for _, a := range addrs {
					s.Prefixes = append(s.Prefixes, netip.PrefixFrom(a, a.BitLen()))
				}
				sets = append(sets, s)
			}
			slices.SortFunc(sets, intent.AddressSet.Compare)
			for node, found := range got {
				checkTenantSets(t, node, sets, found)
			}
			snap = worldtest.DrawTenants(t, snap)
		}
	})
}

func checkTenantSets(t *rapid.T, node string, want, got []intent.AddressSet) {
	// A pod without a usable Subnet or with a fault in its record has no port, and its
	// address a block all the same: nobody sends with it.
	for _, w := range want {
		i, found := slices.BinarySearchFunc(got, w, intent.AddressSet.Compare)
		if !found {
			t.Fatalf("node %s: no set %s %s, want %v", node, w.VPC, w.Name, w.Prefixes)
		}
		for _, p := range w.Prefixes {
			if !got[i].Contains(p.Addr()) {
				t.Fatalf("node %s: %s is not in %s %s: %v", node, p, w.VPC, w.Name, got[i].Prefixes)
			}
		}
		for _, other := range got {
			if other.VPC == w.VPC && other.Name != w.Name && slices.ContainsFunc(w.Prefixes, func(p netip.Prefix) bool { return other.Contains(p.Addr()) }) {
				t.Fatalf("node %s: an address of %s %s is in %s too", node, w.VPC, w.Name, other.Name)
			}
		}
	}
}

// One pod that comes costs one block and one set; the others are shared, as is all where
// nothing of tenants changed.
func TestTenantSetsAreShared(t *testing.T) {
	snap := worldtest.Local(worldtest.Large(6, 50), "node0000")
	vpc, _ := snap.VPCs.Get(world.Key{Name: packet.DefaultVPC})
	isolating := *vpc
	isolating.Tenant = true
	store := world.NewStore(snap)
	compiler := New(Config{Node: "node0000"})
	_, open, _ := compiler.Compile(nil, snap)
	if len(open.tenants.sets) > 0 || open.tenants.blocks.Len() > 0 {
		t.Error("blocks were read though nobody is isolated")
	}
	_, before, _ := compiler.Compile(open, store.Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: vpc.Name}, Object: &isolating}))
	if len(before.tenants.sets) != 3 {
		t.Fatalf("sets %v, want one for each of three namespaces", before.tenants.sets)
	}
	var block *world.Block
	for b := range snap.Blocks.Values() {
		if b.Node == "node0001" && b.CIDR.Addr().Is4() {
			block = b
		}
	}
	smaller := *block
	smaller.Allocations = block.Allocations[:len(block.Allocations)-1]
	_, after, _ := compiler.Compile(before, store.Apply(world.Change{Kind: world.KindBlock, Key: world.Key{Name: block.Name}, Object: &smaller}))
	same := 0
	for i, s := range after.tenants.sets {
		if &s.Prefixes[0] == &before.tenants.sets[i].Prefixes[0] {
			same++
		}
	}
	if same != 2 {
		t.Errorf("%d of 3 sets are shared, want 2", same)
	}
	p := *getPod(snap, "web-00000")
	p.Labels = map[string]string{"new": "label"}
	_, idle, _ := compiler.Compile(after, store.Apply(world.Change{Kind: world.KindPod, Key: world.Key{Namespace: p.Namespace, Name: p.Name}, Object: &p}))
	if idle.tenants != after.tenants || slices.Contains(idle.computed, "tenants") {
		t.Error("a label was a reason to look for tenants")
	}
	restored, _, _ := compiler.Compile(idle, store.Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: vpc.Name}, Object: vpc}))
	for _, s := range restored.AddressSets {
		if _, is := s.Tenant(); is {
			t.Errorf("nobody is isolated, and there is %s", s.Name)
		}
	}
}

// BenchmarkTenants is what a pod that comes elsewhere costs, with 50,000 pods of 500
// isolated tenants.
func BenchmarkTenants(b *testing.B) {
	snap := worldtest.Local(worldtest.Large(1000, 50), "node0500")
	vpc, _ := snap.VPCs.Get(world.Key{Name: packet.DefaultVPC})
	isolating := *vpc
	isolating.Tenant = true
	store := world.NewStore(snap)
	snap = store.Apply(world.Change{Kind: world.KindVPC, Key: world.Key{Name: vpc.Name}, Object: &isolating})
	compiler := New(Config{Node: "node0500"})
	key := world.Key{Name: "default.0a800040-26"}
	block, _ := snap.Blocks.Get(key)
	smaller := *block
	smaller.Allocations = block.Allocations[:len(block.Allocations)-1]
	b.Run("scratch", func(b *testing.B) {
		for b.Loop() {
			compiler.Compile(nil, snap)
		}
	})
	b.Run("pod", func(b *testing.B) {
		_, state, _ := compiler.Compile(nil, snap)
		for i := 0; b.Loop(); i++ {
			c := world.Change{Kind: world.KindBlock, Key: key, Object: block}
			if i%2 == 0 {
				c.Object = &smaller
			}
			_, state, _ = compiler.Compile(state, store.Apply(c))
		}
	})
}

func TestTenantSetNames(t *testing.T) {
	for name, want := range map[string]packet.VNI{"tenant-7": 7, "tenant-07": 0, "tenant-": 0, "tenant-x": 0, "tenant-99999999999": 0, "subnets": 0} {
		got, is := intent.AddressSet{Name: name}.Tenant()
		if diff := cmp.Diff(want, got); diff != "" || is != (want != 0) {
			t.Errorf("%s: %v %s", name, is, diff)
		}
	}
}
