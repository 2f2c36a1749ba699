package worldtest

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Large returns a cluster of many nodes with podsPerNode pods each, at most 60: one
// dual-stack overlay Subnet, a block a family and a tunnel address on every node, a
// namespace for every hundred pods.
func Large(nodes, podsPerNode int) *world.Snapshot {
	var changes []world.Change
	set := func(kind world.Kind, key world.Key, object any) {
		changes = append(changes, world.Change{Kind: kind, Key: key, Object: object})
	}
	set(world.KindVPC, world.Key{Name: packet.DefaultVPC}, &world.VPC{Name: packet.DefaultVPC, Created: epoch, VNI: 1})
	set(world.KindSubnet, world.Key{Name: "default"}, &world.Subnet{
		Name: "default", Created: epoch.Add(time.Minute), VPC: packet.DefaultVPC, BlockBits4: 26, BlockBits6: 122, NATOutgoing: true,
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd10::/64")},
	})
	for i := range max(1, nodes*podsPerNode/100) {
		name := fmt.Sprintf("ns%04d", i)
		set(world.KindNamespace, world.Key{Name: name}, &world.Namespace{Name: name, UID: "uid-" + name, Labels: map[string]string{"kubernetes.io/metadata.name": name}})
		set(world.KindNetNamespace, world.Key{Name: name}, &world.NetNamespace{Name: name, VNI: packet.VNI(1000 + i)})
	}
	for i := range nodes {
		node := fmt.Sprintf("node%04d", i)
		underlay := netip.AddrFrom4([4]byte{172, byte(16 + i>>16), byte(i >> 8), byte(i)}).Next()
		set(world.KindNode, world.Key{Name: node}, &world.Node{Name: node, UID: "uid-" + node, Addresses: []netip.Addr{underlay}})
		set(world.KindNodeNetwork, world.Key{Name: node}, &world.NodeNetwork{Name: node, MTU: 1500, Plane: "linux", Addresses: []netip.Prefix{netip.PrefixFrom(underlay, 16)}})
		b4 := &world.Block{Subnet: "default", Node: node, CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + byte(i>>10), byte(i >> 2), byte(i << 6)}), 26)}
		b6 := &world.Block{Subnet: "default", Node: node, CIDR: netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 13: byte(i >> 10), 14: byte(i >> 2), 15: byte(i << 6)}), 122)}
		for _, b := range []*world.Block{b4, b6} {
			b.Name = fmt.Sprintf("default.%x-%d", b.CIDR.Addr().AsSlice(), b.CIDR.Bits())
			b.Allocations = append(b.Allocations, world.Allocation{Addr: b.CIDR.Addr().Next(), Owner: world.Owner{Name: "node/" + node + "/tunnel"}})
		}
		a4, a6 := b4.Allocations[0].Addr, b6.Allocations[0].Addr
		for j := range podsPerNode {
			k := i*podsPerNode + j
			p := &world.Pod{
				Namespace: fmt.Sprintf("ns%04d", k/100), Name: fmt.Sprintf("web-%05d", k), UID: fmt.Sprintf("b5e1f0d2-0000-4000-8000-%012d", k), Node: node,
				Labels: map[string]string{"app": "web", "tier": fmt.Sprintf("t%d", k%7), "pod-template-hash": "6d4cf56db6"},
				Ports:  []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: 8080}},
			}
			a4, a6 = a4.Next(), a6.Next()
			p.Addresses = []netip.Addr{a4, a6}
			owner := world.Owner{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
			b4.Allocations = append(b4.Allocations, world.Allocation{Addr: a4, Owner: owner})
			b6.Allocations = append(b6.Allocations, world.Allocation{Addr: a6, Owner: owner})
			set(world.KindPod, world.Key{Namespace: p.Namespace, Name: p.Name}, p)
		}
		set(world.KindBlock, world.Key{Name: b4.Name}, b4)
		set(world.KindBlock, world.Key{Name: b6.Name}, b6)
	}
	return world.NewStore(nil).Apply(changes...)
}
