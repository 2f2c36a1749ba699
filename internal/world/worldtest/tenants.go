package worldtest

import (
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// DrawTenants changes who is kept apart from whom in a world that Draw returned: VPCs
// isolate their tenants or not, namespaces join others, leave them, or reach all. Some of
// that may take pods their network: two VPCs cannot share a tenant, and not every Subnet
// can be of a VPC that isolates.
func DrawTenants(t *rapid.T, snap *world.Snapshot) *world.Snapshot {
	var changes []world.Change
	for v := range snap.VPCs.Values() {
		changed := *v
		changed.Tenant = rapid.Bool().Draw(t, v.Name+" isolates now")
		changes = append(changes, world.Change{Kind: world.KindVPC, Key: world.Key{Name: v.Name}, Object: &changed})
	}
	for n := range snap.NetNamespaces.Values() {
		changed := *n
		changed.VNI = rapid.SampledFrom([]packet.VNI{n.VNI, 1001, 1002}).Draw(t, n.Name+" has the tenant")
		changed.Global = rapid.IntRange(0, 3).Draw(t, n.Name+" is global now") == 0
		changes = append(changes, world.Change{Kind: world.KindNetNamespace, Key: world.Key{Name: n.Name}, Object: &changed})
	}
	return world.NewStore(snap).Apply(changes...)
}
