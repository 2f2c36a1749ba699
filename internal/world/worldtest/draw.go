package worldtest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// epoch is when the oldest object of every drawn world was created.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// cluster is a world in the making.
type cluster struct {
	t       *rapid.T
	changes []world.Change
	nodes   []string
	vpcs    []string
	spaces  []string
	home    map[string]string // namespace → the VPC that it is meant for
	subnets []*world.Subnet
	blocks  []*world.Block
	nets    map[string]*world.NodeNetwork
	next    map[string]netip.Addr // block → next free address
	// overlaps holds Subnets that overlap an older one: nothing is lent out of them,
	// since a borrower does not say of which Subnet an address is.
	overlaps map[string]bool
}

// Draw returns a consistent cluster of a few nodes: dual stack or not, in one
// segment or several, with VPCs that isolate tenants or not, Subnets of every
// transport, lent addresses, pods of every sort, and, now and then, what a user
// may get wrong: overlapping Subnets, a VPC without a VNI, a namespace without a
// tenant or that has moved to another VPC. No two pods hold one address.
func Draw(t *rapid.T) *world.Snapshot {
	c := &cluster{t: t, nets: map[string]*world.NodeNetwork{}, next: map[string]netip.Addr{}, overlaps: map[string]bool{}, home: map[string]string{}}
	c.drawNodes()
	c.drawVPCs()
	c.drawNamespaces()
	c.drawSubnets()
	c.drawBlocks()
	c.drawTunnels()
	c.drawPods()
	for _, b := range c.blocks {
		c.set(world.KindBlock, world.Key{Name: b.Name}, b)
	}
	for name, n := range c.nets {
		c.set(world.KindNodeNetwork, world.Key{Name: name}, n)
	}
	return world.NewStore(nil).Apply(c.changes...)
}

func (c *cluster) set(kind world.Kind, key world.Key, object any) {
	c.changes = append(c.changes, world.Change{Kind: kind, Key: key, Object: object})
}

// once in n is true.
func (c *cluster) once(n int, label string) bool { return rapid.IntRange(1, n).Draw(c.t, label) == n }

func (c *cluster) drawNodes() {
	families := rapid.SampledFrom([]string{"4", "46", "6", "mixed"}).Draw(c.t, "underlay")
	segments := rapid.IntRange(1, 2).Draw(c.t, "segments")
	for i := range rapid.IntRange(2, 4).Draw(c.t, "nodes") {
		name := fmt.Sprintf("n%d", i+1)
		has := families
		if has == "mixed" {
			has = rapid.SampledFrom([]string{"4", "46", "6"}).Draw(c.t, name+" underlay")
		}
		segment := byte(rapid.IntRange(1, segments).Draw(c.t, name+" segment"))
		n := &world.NodeNetwork{Name: name, MTU: rapid.SampledFrom([]int{1500, 9000}).Draw(c.t, name+" MTU")}
		if has != "6" {
			n.Addresses = append(n.Addresses, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 30, segment, byte(10 + i)}), 24))
		}
		if has != "4" {
			a := [16]byte{0: 0xfd, 1: 0x30, 3: segment, 15: byte(10 + i)}
			n.Addresses = append(n.Addresses, netip.PrefixFrom(netip.AddrFrom16(a), 64))
		}
		c.nodes = append(c.nodes, name)
		c.nets[name] = n
		if !c.once(8, name+" is gone") {
			node := &world.Node{Name: name, Labels: map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(c.t, name+" zone")}}
			for _, p := range n.Addresses {
				node.Addresses = append(node.Addresses, p.Addr())
			}
			c.set(world.KindNode, world.Key{Name: name}, node)
		}
	}
}

func (c *cluster) drawVPCs() {
	for i, name := range []string{packet.DefaultVPC, "blue", "red"}[:rapid.SampledFrom([]int{2, 3, 1}).Draw(c.t, "VPCs")] {
		v := &world.VPC{Name: name, Created: epoch.Add(time.Duration(i) * time.Hour), VNI: packet.VNI(100 * (i + 1)), Tenant: rapid.Bool().Draw(c.t, name+" isolates")}
		if name != packet.DefaultVPC {
			v.Namespaces = &world.Selector{MatchExpressions: []world.Requirement{{
				Key: "vpc", Operator: "In", Values: rapid.SampledFrom([][]string{{name}, {name}, {"blue", "red"}}).Draw(c.t, name+" selects"),
			}}}
		}
		if c.once(12, name+" waits for a VNI") {
			v.VNI = 0
		}
		c.vpcs = append(c.vpcs, name)
		c.set(world.KindVPC, world.Key{Name: name}, v)
	}
}

func (c *cluster) drawNamespaces() {
	for i := range rapid.IntRange(2, 4).Draw(c.t, "namespaces") {
		name := fmt.Sprintf("ns%d", i+1)
		ns := &world.Namespace{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}}
		c.home[name] = rapid.SampledFrom(c.vpcs).Draw(c.t, name+" VPC")
		if c.home[name] != packet.DefaultVPC {
			ns.Labels["vpc"] = c.home[name]
		}
		c.spaces = append(c.spaces, name)
		c.set(world.KindNamespace, world.Key{Name: name}, ns)
		if !c.once(10, name+" waits for a tenant") {
			vni := packet.VNI(1001 + i)
			if c.once(3, name+" has joined the first") {
				vni = 1001
			}
			c.set(world.KindNetNamespace, world.Key{Name: name}, &world.NetNamespace{Name: name, VNI: vni, Global: c.once(4, name+" is global")})
		}
	}
}

func (c *cluster) drawSubnets() {
	for i := range rapid.IntRange(2, 4).Draw(c.t, "subnets") {
		sn := &world.Subnet{Name: fmt.Sprintf("s%d", i+1), Created: epoch.Add(time.Duration(i) * time.Minute), BlockBits4: 28, BlockBits6: 124}
		sn.VPC = rapid.SampledFrom(c.vpcs).Draw(c.t, sn.Name+" VPC")
		sn.NATOutgoing = !c.once(3, sn.Name+" without NAT")
		switch rapid.SampledFrom([]string{"VXLAN", "VXLAN", "CrossSubnet", "Routed", "Underlay"}).Draw(c.t, sn.Name+" transport") {
		case "CrossSubnet":
			sn.Encapsulation = world.CrossSubnet
		case "Routed":
			sn.Transport, sn.Encapsulation = world.Routed, world.NoEncapsulation
		case "Underlay":
			if c.once(4, sn.Name+" is underlay") {
				sn.Transport, sn.Encapsulation = world.Underlay, world.NoEncapsulation
			}
		}
		third := byte(i)
		if i > 0 && c.once(8, sn.Name+" overlaps") {
			third--
			c.overlaps[sn.Name] = true
		}
		has := rapid.SampledFrom([]string{"4", "46", "46", "6"}).Draw(c.t, sn.Name+" families")
		if has != "6" {
			sn.CIDRs = append(sn.CIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, third, 0}), 24))
		}
		if has != "4" {
			sn.CIDRs = append(sn.CIDRs, netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 7: third}), 64))
		}
		c.subnets = append(c.subnets, sn)
		c.set(world.KindSubnet, world.Key{Name: sn.Name}, sn)
	}
}

// drawBlocks gives every node, or nearly, a block of every CIDR.
func (c *cluster) drawBlocks() {
	for _, sn := range c.subnets {
		for _, cidr := range sn.CIDRs {
			for i, node := range c.nodes {
				if c.once(5, node+" has no block of "+cidr.String()) {
					continue
				}
				b := &world.Block{Subnet: sn.Name, Node: node, CIDR: slice(cidr, byte(16*i))}
				b.Name = fmt.Sprintf("%s.%x-%d", sn.Name, b.CIDR.Addr().AsSlice(), b.CIDR.Bits())
				c.blocks = append(c.blocks, b)
				c.next[b.Name] = b.CIDR.Addr().Next()
			}
		}
	}
}

// slice returns the block of 16 addresses whose last byte begins with low.
func slice(cidr netip.Prefix, low byte) netip.Prefix {
	raw := cidr.Addr().AsSlice()
	raw[len(raw)-1] = low
	a, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(a, a.BitLen()-4)
}

// take returns an address for a holder on a node, out of its own block of the
// family or borrowed, or nothing.
func (c *cluster) take(sn *world.Subnet, node string, family int, owner world.Owner) (netip.Addr, bool) {
	for _, b := range c.blocks {
		if b.Subnet != sn.Name || b.CIDR.Addr().BitLen() != family {
			continue
		}
		a := c.next[b.Name]
		if b.Node == node && !c.once(6, "borrow") {
			b.Allocations = append(b.Allocations, world.Allocation{Addr: a, Owner: owner})
		} else if b.Node != node && !c.overlaps[sn.Name] && c.once(3, "lend") {
			b.Lent = append(b.Lent, world.Loan{Addr: a, Node: node})
			c.nets[node].Borrowed = append(c.nets[node].Borrowed, world.Allocation{Addr: a, Owner: owner})
		} else {
			continue
		}
		c.next[b.Name] = a.Next()
		return a, true
	}
	return netip.Addr{}, false
}

func (c *cluster) drawTunnels() {
	for _, sn := range c.subnets {
		for _, node := range c.nodes {
			for _, family := range []int{32, 128} {
				if !c.once(6, "no tunnel address") {
					c.take(sn, node, family, world.Owner{Name: "node/" + node + "/tunnel"})
				}
			}
		}
	}
}

func (c *cluster) drawPods() {
	for i := range rapid.IntRange(4, 12).Draw(c.t, "pods") {
		p := &world.Pod{
			Namespace: rapid.SampledFrom(c.spaces).Draw(c.t, "namespace"), Name: fmt.Sprintf("p%d", i+1), UID: fmt.Sprintf("uid%d", i+1),
			Node:  rapid.SampledFrom(c.nodes).Draw(c.t, "node"),
			Ports: []world.ContainerPort{{Name: "http", Protocol: packet.TCP, Port: 80}, {Name: "dns", Protocol: packet.UDP, Port: 53}, {Protocol: packet.SCTP, Port: 80}},
		}
		if app := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(c.t, p.Name+" app"); app != "" {
			p.Labels = map[string]string{"app": app}
		}
		p.HostNetwork = c.once(6, p.Name+" in the host's network")
		p.Finished = c.once(10, p.Name+" has finished")
		owner := world.Owner{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
		if c.once(12, p.Name+" is standalone") {
			owner, p.HostNetwork = world.Owner{Name: "container/" + p.Name}, false
		}
		if owner.Namespace != "" {
			c.set(world.KindPod, world.Key{Namespace: p.Namespace, Name: p.Name}, p)
		}
		if p.HostNetwork {
			continue
		}
		sn := c.drawPodSubnet(p)
		for _, family := range []int{32, 128} {
			if a, ok := c.take(sn, p.Node, family, owner); ok {
				p.Addresses = append(p.Addresses, a)
			}
		}
	}
}

// drawPodSubnet returns a Subnet for a pod: mostly one of its namespace's VPC,
// sometimes one of another, as if the namespace had moved.
func (c *cluster) drawPodSubnet(p *world.Pod) *world.Subnet {
	home := slices.DeleteFunc(slices.Clone(c.subnets), func(s *world.Subnet) bool { return s.VPC != c.home[p.Namespace] })
	if len(home) == 0 || c.once(6, p.Name+" is of a VPC of before") {
		home = c.subnets
	}
	return rapid.SampledFrom(home).Draw(c.t, p.Name+" Subnet")
}
