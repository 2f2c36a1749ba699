package worldtest

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Local returns the world as one node sees it: with the attachments and tunnel
// addresses that its allocations stand for. The VPC of each record is that of its
// Subnet.
func Local(snap *world.Snapshot, node string) *world.Snapshot {
	local := *snap
	type record struct {
		owner  world.Owner
		subnet string
	}
	addresses := map[record][]netip.Addr{}
	hold := func(subnet string, a world.Allocation) {
		if strings.HasPrefix(a.Owner.Name, "node/") {
			t := &world.TunnelAddress{Subnet: subnet, Addr: a.Addr}
			local.TunnelAddresses = local.TunnelAddresses.With(world.Key{Namespace: subnet, Name: a.Addr.String()}, t)
			return
		}
		r := record{owner: a.Owner, subnet: subnet}
		addresses[r] = append(addresses[r], a.Addr)
	}
	var borrowed []world.Allocation
	if n, ok := snap.NodeNetworks.Get(world.Key{Name: node}); ok {
		borrowed = n.Borrowed
	}
	for b := range snap.Blocks.Values() {
		for _, a := range b.Allocations {
			if b.Node == node {
				hold(b.Subnet, a)
			}
		}
		for _, l := range b.Lent {
			i := slices.IndexFunc(borrowed, func(a world.Allocation) bool { return a.Addr == l.Addr })
			if l.Node == node && i >= 0 {
				hold(b.Subnet, borrowed[i])
			}
		}
	}
	for r, addrs := range addresses {
		slices.SortFunc(addrs, func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b)) })
		vpc := ""
		if sn, ok := snap.Subnets.Get(world.Key{Name: r.subnet}); ok {
			vpc = sn.VPC
		}
		container := r.owner.Namespace + "." + strings.TrimPrefix(r.owner.Name, "container/")
		a := &world.Attachment{
			ID: container + "/eth0", ContainerID: container, Interface: "eth0", HostInterface: claims.PortName(container, "eth0"),
			Netns: "/run/netns/" + container, VPC: vpc, Subnet: r.subnet, Addresses: addrs,
		}
		if r.owner.Namespace != "" {
			a.Pod = r.owner
		}
		local.Attachments = local.Attachments.With(world.Key{Name: a.ID}, a)
	}
	return &local
}
