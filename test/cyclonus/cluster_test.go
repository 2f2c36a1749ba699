package cyclonus

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// cluster makes worlds of two nodes in one segment with one dual-stack overlay Subnet
// in a VPC that does not isolate tenants: only policies cut anything here.
type cluster struct {
	changes     []world.Change
	allocations map[string][]world.Allocation // node → of both families
	pods        int
}

var nodes = []string{"n1", "n2"}

func newCluster() *cluster {
	c := &cluster{allocations: map[string][]world.Allocation{}}
	c.set(world.KindVPC, world.Key{Name: packet.DefaultVPC}, &world.VPC{Name: packet.DefaultVPC, VNI: 1})
	c.set(world.KindSubnet, world.Key{Name: "default"}, &world.Subnet{
		Name: "default", VPC: packet.DefaultVPC, NATOutgoing: true, BlockBits4: 24, BlockBits6: 120,
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd10::/64")},
	})
	for i, name := range nodes {
		v4, v6 := underlay(i)[0], underlay(i)[1]
		c.set(world.KindNode, world.Key{Name: name}, &world.Node{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}, Addresses: []netip.Addr{v4, v6}})
		c.set(world.KindNodeNetwork, world.Key{Name: name}, &world.NodeNetwork{Name: name, Addresses: []netip.Prefix{netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64)}})
	}
	return c
}

// underlay returns the addresses of a node.
func underlay(i int) [2]netip.Addr {
	return [2]netip.Addr{netip.AddrFrom4([4]byte{172, 30, 0, byte(11 + i)}), netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x30, 15: byte(11 + i)})}
}

func (c *cluster) set(kind world.Kind, key world.Key, object any) {
	c.changes = append(c.changes, world.Change{Kind: kind, Key: key, Object: object})
}

// convert puts an object of the API into the world, the way an agent does, with the
// defaults of an API server.
func (c *cluster) convert(t *testing.T, kind world.Kind, o datastore.Object) {
	t.Helper()
	r, err := datastore.Lookup(datastore.Kind(kind))
	if err != nil {
		t.Error(err)
		return
	}
	r.Default(o)
	value, problems := feed.Convert(kind, o)
	if value == nil || len(problems) > 0 {
		t.Errorf("%s %s: %v", kind, o.GetName(), problems)
		return
	}
	c.set(kind, world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}, value)
}

func (c *cluster) namespace(t *testing.T, name string, labels map[string]string) {
	c.convert(t, world.KindNamespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

// pod adds a pod to the nodes in turn, with an address of each family, and returns
// the IPv4 and the IPv6 one.
func (c *cluster) pod(t *testing.T, namespace, name string, labels map[string]string, spec corev1.PodSpec) [2]netip.Addr {
	i := c.pods % len(nodes)
	c.pods++
	spec.NodeName = nodes[i]
	if spec.HostNetwork {
		c.convert(t, world.KindPod, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Spec: spec})
		return underlay(i)
	}
	addrs := [2]netip.Addr{
		netip.AddrFrom4([4]byte{10, 128, byte(i), byte(10 + c.pods)}),
		netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 14: byte(i), 15: byte(10 + c.pods)}),
	}
	uid := namespace + "-" + name
	for _, a := range addrs {
		c.allocations[spec.NodeName] = append(c.allocations[spec.NodeName], world.Allocation{Addr: a, Owner: world.Owner{Namespace: namespace, Name: name, UID: uid}})
	}
	c.convert(t, world.KindPod, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), Labels: labels}, Spec: spec})
	return addrs
}

// snapshot of all that was set.
func (c *cluster) snapshot() *world.Snapshot {
	for i, name := range nodes {
		for family, cidr := range []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, byte(i), 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 14: byte(i)}), 120),
		} {
			b := &world.Block{Name: fmt.Sprintf("%s-%d", name, family), Subnet: "default", Node: name, CIDR: cidr}
			for _, a := range c.allocations[name] {
				if cidr.Contains(a.Addr) {
					b.Allocations = append(b.Allocations, a)
				}
			}
			c.set(world.KindBlock, world.Key{Name: b.Name}, b)
		}
	}
	return world.NewStore(nil).Apply(c.changes...)
}

// say prints the way of a packet.
func say(v oracle.Verdict) string {
	text := ""
	for _, s := range v.Stages {
		text += "\n  " + s.String()
	}
	return text
}
