package worldtest

import (
	"fmt"
	"net/netip"
	"time"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Wild draws one arbitrary change: an object of any kind, good or bad, set or
// removed, with names, addresses and numbers from pools so small that they collide.
func Wild(t *rapid.T) world.Change {
	kinds := append(world.DatastoreKinds(), world.KindAttachment, world.KindTunnelAddress)
	w := wild{t}
	c := world.Change{Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	c.Key, c.Object = w.object(c.Kind)
	if rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
		c.Object = nil
	}
	return c
}

type wild struct{ t *rapid.T }

var (
	wildPrefixes = prefixes("10.128.0.0/24", "10.128.0.0/25", "10.128.1.0/24", "10.128.0.0/28", "10.128.0.16/28", "10.128.0.7/32",
		"10.128.0.5/28", "fd10::/64", "fd10::/124", "fd10::10/124", "fd10:0:0:1::/64", "172.30.0.0/16", "0.0.0.0/0", "::/0", "::ffff:10.128.0.0/120")
	wildAddresses = addresses("10.128.0.1", "10.128.0.2", "10.128.0.7", "10.128.0.17", "10.128.1.1", "fd10::1", "fd10::12", "fd10:0:0:1::1",
		"172.30.0.1", "::ffff:10.128.0.1", "127.0.0.1", "fe80::1%eth0", "0.0.0.0")
	wildUnderlay = prefixes("172.30.0.1/24", "172.30.0.2/24", "172.30.1.1/24", "fd30::1/64", "fd30::2/64", "10.128.1.9/24", "127.0.0.1/8", "172.30.0.9/0", "::ffff:1.2.3.4/120")
)

func prefixes(texts ...string) []netip.Prefix {
	list := []netip.Prefix{{}}
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

func addresses(texts ...string) []netip.Addr {
	list := []netip.Addr{{}}
	for _, s := range texts {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

func (w wild) name(prefix string, n int) string {
	return fmt.Sprintf("%s%d", prefix, rapid.IntRange(1, n).Draw(w.t, prefix))
}

func (w wild) vpc() string {
	return rapid.SampledFrom([]string{packet.DefaultVPC, "red", "blue", "lost"}).Draw(w.t, "VPC")
}

func (w wild) vni() packet.VNI {
	return rapid.SampledFrom([]packet.VNI{0, 1, 2, 3, 4, packet.MaxVNI, packet.MaxVNI + 1}).Draw(w.t, "VNI")
}

func (w wild) created() time.Time {
	return epoch.Add(time.Duration(rapid.IntRange(0, 2).Draw(w.t, "age")) * time.Hour)
}

func (w wild) labels() map[string]string {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"", "x", "y"}), 0, 2).Draw(w.t, "labels")
}

func (w wild) selector() *world.Selector {
	if rapid.IntRange(0, 3).Draw(w.t, "no selector") == 0 {
		return nil
	}
	s := &world.Selector{}
	for range rapid.IntRange(0, 2).Draw(w.t, "requirements") {
		s.MatchExpressions = append(s.MatchExpressions, world.Requirement{
			Key:      rapid.SampledFrom([]string{"a", "b", "a b", "x/", ""}).Draw(w.t, "label"),
			Operator: rapid.SampledFrom([]string{"In", "NotIn", "Exists", "DoesNotExist", "in"}).Draw(w.t, "operator"),
			Values:   rapid.SliceOfN(rapid.SampledFrom([]string{"", "x", "y", "!"}), 0, 2).Draw(w.t, "values"),
		})
	}
	if rapid.Bool().Draw(w.t, "has labels") {
		s.MatchLabels = w.labels()
	}
	return s
}

func (w wild) prefixes(pool []netip.Prefix, n int) []netip.Prefix {
	return rapid.SliceOfN(rapid.SampledFrom(pool), 0, n).Draw(w.t, "prefixes")
}

func (w wild) address() netip.Addr { return rapid.SampledFrom(wildAddresses).Draw(w.t, "address") }

func (w wild) owner() world.Owner {
	o := world.Owner{Name: rapid.SampledFrom([]string{"p1", "p2", "node/n1/tunnel", "container/c1", ""}).Draw(w.t, "owner")}
	if rapid.Bool().Draw(w.t, "of a namespace") {
		o.Namespace = w.name("ns", 3)
	}
	return o
}

func (w wild) allocations() []world.Allocation {
	var list []world.Allocation
	for range rapid.IntRange(0, 2).Draw(w.t, "allocations") {
		list = append(list, world.Allocation{Addr: w.address(), Owner: w.owner()})
	}
	return list
}

func (w wild) object(kind world.Kind) (world.Key, any) {
	switch kind {
	case world.KindNode:
		n := w.name("n", 4)
		return world.Key{Name: n}, &world.Node{Name: n}
	case world.KindNamespace:
		n := w.name("ns", 3)
		return world.Key{Name: n}, &world.Namespace{Name: n, Labels: w.labels()}
	case world.KindPod:
		p := &world.Pod{Namespace: w.name("ns", 3), Name: w.name("p", 2), Node: w.name("n", 4), Labels: w.labels(), Addresses: []netip.Addr{w.address()}}
		p.HostNetwork, p.Finished = rapid.Bool().Draw(w.t, "host network"), rapid.Bool().Draw(w.t, "finished")
		return world.Key{Namespace: p.Namespace, Name: p.Name}, p
	case world.KindVPC:
		v := &world.VPC{Name: w.vpc(), Created: w.created(), Namespaces: w.selector(), VNI: w.vni(), Tenant: rapid.Bool().Draw(w.t, "isolates")}
		return world.Key{Name: v.Name}, v
	case world.KindNetNamespace:
		n := &world.NetNamespace{Name: w.name("ns", 3), VNI: w.vni(), Global: rapid.Bool().Draw(w.t, "global")}
		return world.Key{Name: n.Name}, n
	}
	return w.addressObject(kind)
}

func (w wild) addressObject(kind world.Kind) (world.Key, any) {
	switch kind {
	case world.KindSubnet:
		sn := &world.Subnet{Name: w.name("s", 4), Created: w.created(), VPC: w.vpc(), CIDRs: w.prefixes(wildPrefixes, 3), NATOutgoing: rapid.Bool().Draw(w.t, "NAT")}
		sn.Transport = world.Transport(rapid.IntRange(0, 3).Draw(w.t, "transport"))
		sn.Encapsulation = world.Encapsulation(rapid.IntRange(0, 3).Draw(w.t, "encapsulation"))
		sn.BadCIDRs = rapid.SliceOfN(rapid.SampledFrom([]string{"", "10.0.0.0/33"}), 0, 1).Draw(w.t, "bad CIDRs")
		return world.Key{Name: sn.Name}, sn
	case world.KindBlock:
		b := &world.Block{Name: w.name("b", 5), Subnet: w.name("s", 5), CIDR: rapid.SampledFrom(wildPrefixes).Draw(w.t, "CIDR"), Node: w.name("n", 5), Allocations: w.allocations()}
		for range rapid.IntRange(0, 2).Draw(w.t, "loans") {
			b.Lent = append(b.Lent, world.Loan{Addr: w.address(), Node: w.name("n", 5)})
		}
		return world.Key{Name: b.Name}, b
	case world.KindNodeNetwork:
		n := &world.NodeNetwork{Name: w.name("n", 4), Addresses: w.prefixes(wildUnderlay, 3), MTU: rapid.SampledFrom([]int{-1, 0, 500, 1300, 1500, 9000, 70000}).Draw(w.t, "MTU"), Borrowed: w.allocations()}
		return world.Key{Name: n.Name}, n
	case world.KindNetworkPolicy:
		p := policies{t: w.t, bad: 4}.network(w.name("np", 3))
		return world.Key{Namespace: p.Namespace, Name: p.Name}, p
	case world.KindClusterNetworkPolicy:
		p := policies{t: w.t, bad: 4}.cluster(w.name("cnp", 3))
		return world.Key{Name: p.Name}, p
	case world.KindAttachment:
		a := &world.Attachment{ID: w.name("c", 3) + "/eth0", ContainerID: "c", Interface: "eth0", Subnet: w.name("s", 5), Pod: w.owner()}
		a.HostInterface = rapid.SampledFrom([]string{"", "flp1", "flp2"}).Draw(w.t, "link")
		a.VPC = rapid.SampledFrom([]string{"", packet.DefaultVPC, "red", "blue", "lost"}).Draw(w.t, "record's VPC")
		a.Addresses = rapid.SliceOfN(rapid.SampledFrom(wildAddresses), 0, 3).Draw(w.t, "addresses")
		return world.Key{Name: a.ID}, a
	}
	tn := &world.TunnelAddress{Subnet: w.name("s", 5), Addr: w.address()}
	return world.Key{Namespace: tn.Subnet, Name: tn.Addr.String()}, tn
}
