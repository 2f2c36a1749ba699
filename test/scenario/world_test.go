package scenario

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
	"github.com/fairlead-sdn/fairlead/internal/world/feed"
)

// object is one line: words, options with a value, and flags.
type object struct {
	words   []string
	options map[string]string
}

// parseLine sorts "KEY=VALUE" from words. Flags are words that the kinds ask for.
func parseLine(line string) object {
	o := object{options: map[string]string{}}
	for _, w := range strings.Fields(line) {
		if k, v, ok := strings.Cut(w, "="); ok {
			o.options[k] = v
		} else {
			o.words = append(o.words, w)
		}
	}
	return o
}

// flag takes a word out of the line, and reports whether it was there.
func (o *object) flag(name string) bool {
	i := slices.Index(o.words, name)
	if i >= 0 {
		o.words = slices.Delete(o.words, i, i+1)
	}
	return i >= 0
}

func (o *object) number(name string) int {
	n, _ := strconv.Atoi(o.options[name])
	delete(o.options, name)
	return n
}

// age in hours after an arbitrary moment.
func (o *object) age() time.Time {
	return time.Unix(1767225600, 0).UTC().Add(time.Duration(o.number("age")) * time.Hour)
}

func (o *object) text(name, otherwise string) string {
	v := cmp.Or(o.options[name], otherwise)
	delete(o.options, name)
	return v
}

// builder applies lines to a store.
type builder struct {
	store *world.Store
}

func (b *builder) snapshot() *world.Snapshot {
	s, _ := b.store.Snapshot()
	return s
}

func (b *builder) set(kind world.Kind, key world.Key, v any) {
	b.store.Apply(world.Change{Kind: kind, Key: key, Object: v})
}

// apply reads lines; the error names the one that is wrong.
func (b *builder) apply(text string) (err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := b.line(line); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	return nil
}

func (b *builder) line(line string) (err error) {
	defer func() { // Must… of netip and missing words.
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	o := parseLine(line)
	kind := o.words[0]
	o.words = o.words[1:]
	switch kind {
	case "-":
		return b.remove(o.words[0], o.words[1])
	case "node":
		b.node(o)
	case "vpc":
		b.vpc(o)
	case "namespace":
		b.set(world.KindNamespace, world.Key{Name: o.words[0]}, &world.Namespace{Name: o.words[0], Labels: o.options})
	case "tenant":
		global := o.flag("global")
		vni, _ := strconv.Atoi(o.words[1])
		b.set(world.KindNetNamespace, world.Key{Name: o.words[0]}, &world.NetNamespace{Name: o.words[0], VNI: packet.VNI(vni), Global: global})
	case "subnet":
		b.subnet(o)
	case "block":
		name := o.words[0] + "." + o.words[1]
		b.set(world.KindBlock, world.Key{Name: name}, &world.Block{Name: name, Subnet: o.words[0], CIDR: netip.MustParsePrefix(o.words[1]), Node: o.words[2]})
	case "lend":
		return b.lend(o.words[0], netip.MustParseAddr(o.words[1]), o.words[2])
	case "tunnel":
		return b.allocate(o.words[0], o.words[1], o.words[2:], world.Owner{Name: "node/" + o.words[0] + "/tunnel"})
	case "pod", "hostpod":
		return b.pod(kind, o)
	default:
		return fmt.Errorf("unknown kind %q", kind)
	}
	return nil
}

func (b *builder) remove(kind, name string) error {
	key := world.Key{Name: name}
	if ns, n, ok := strings.Cut(name, "/"); ok && (kind == "pod" || kind == "networkpolicy") {
		key = world.Key{Namespace: ns, Name: n}
	}
	kinds := map[string][]world.Kind{
		"node": {world.KindNode}, "nodenetwork": {world.KindNodeNetwork}, "vpc": {world.KindVPC}, "namespace": {world.KindNamespace},
		"tenant": {world.KindNetNamespace}, "subnet": {world.KindSubnet}, "block": {world.KindBlock}, "pod": {world.KindPod},
		"networkpolicy": {world.KindNetworkPolicy}, "clusternetworkpolicy": {world.KindClusterNetworkPolicy},
	}
	before := b.snapshot()
	for _, k := range kinds[kind] {
		b.set(k, key, nil)
	}
	if b.snapshot() == before {
		return fmt.Errorf("there is no %s %s", kind, name)
	}
	return nil
}

func (b *builder) node(o object) {
	gone := o.flag("gone")
	name := o.words[0]
	n := &world.NodeNetwork{Name: name, MTU: cmp.Or(o.number("mtu"), 1500)}
	for _, w := range o.words[1:] {
		n.Addresses = append(n.Addresses, netip.MustParsePrefix(w))
	}
	b.set(world.KindNodeNetwork, world.Key{Name: name}, n)
	if !gone {
		b.set(world.KindNode, world.Key{Name: name}, &world.Node{Name: name})
	}
}

func (b *builder) vpc(o object) {
	v := &world.VPC{Tenant: o.flag("tenant"), VNI: packet.VNI(o.number("vni")), Created: o.age()}
	if s, ok := o.options["select"]; ok {
		key, values, _ := strings.Cut(s, "=")
		v.Namespaces = &world.Selector{MatchExpressions: []world.Requirement{{Key: key, Operator: "In", Values: strings.Split(values, "|")}}}
	}
	v.Name = o.words[0]
	b.set(world.KindVPC, world.Key{Name: v.Name}, v)
}

func (b *builder) subnet(o object) {
	s := &world.Subnet{VPC: o.text("vpc", packet.DefaultVPC), Created: o.age(), NATOutgoing: !o.flag("nonat")}
	switch {
	case o.flag("routed"):
		s.Transport, s.Encapsulation = world.Routed, world.NoEncapsulation
	case o.flag("underlay"):
		s.Transport, s.Encapsulation = world.Underlay, world.NoEncapsulation
	case o.flag("crosssubnet"):
		s.Encapsulation = world.CrossSubnet
	}
	s.Name = o.words[0]
	for _, w := range o.words[1:] {
		if c, err := netip.ParsePrefix(w); err == nil {
			s.CIDRs = append(s.CIDRs, c)
		} else {
			s.BadCIDRs = append(s.BadCIDRs, w)
		}
	}
	b.set(world.KindSubnet, world.Key{Name: s.Name}, s)
}

// blockOf returns a copy of the block of a Subnet that holds an address.
func (b *builder) blockOf(subnet string, a netip.Addr) (*world.Block, error) {
	for block := range b.snapshot().Blocks.Values() {
		if block.Subnet == subnet && block.CIDR.Contains(a) {
			c := *block
			c.Allocations, c.Lent = slices.Clone(c.Allocations), slices.Clone(c.Lent)
			return &c, nil
		}
	}
	return nil, fmt.Errorf("no block of Subnet %s holds %s", subnet, a)
}

func (b *builder) lend(subnet string, a netip.Addr, node string) error {
	block, err := b.blockOf(subnet, a)
	if err != nil {
		return err
	}
	block.Lent = append(block.Lent, world.Loan{Addr: a, Node: node})
	b.set(world.KindBlock, world.Key{Name: block.Name}, block)
	return nil
}

// allocate writes addresses into their blocks, or, if they are lent to the node,
// into what it has borrowed.
func (b *builder) allocate(node, subnet string, addrs []string, owner world.Owner) error {
	for _, w := range addrs {
		a := netip.MustParseAddr(w)
		block, err := b.blockOf(subnet, a)
		if err != nil {
			return err
		}
		if slices.Contains(block.Lent, world.Loan{Addr: a, Node: node}) {
			n, _ := b.snapshot().NodeNetworks.Get(world.Key{Name: node})
			c := *n
			c.Borrowed = append(slices.Clone(c.Borrowed), world.Allocation{Addr: a, Owner: owner})
			b.set(world.KindNodeNetwork, world.Key{Name: node}, &c)
			continue
		}
		block.Allocations = append(block.Allocations, world.Allocation{Addr: a, Owner: owner})
		b.set(world.KindBlock, world.Key{Name: block.Name}, block)
	}
	return nil
}

func (b *builder) pod(kind string, o object) error {
	ns, name, _ := strings.Cut(o.words[0], "/")
	p := &world.Pod{Namespace: ns, Name: name, UID: ns + "-" + name, Node: o.words[1], HostNetwork: kind == "hostpod"}
	for _, text := range strings.Split(o.text("ports", "80"), ",") {
		port, err := parsePort(text)
		if err != nil {
			return err
		}
		p.Ports = append(p.Ports, port)
	}
	p.Labels = o.options
	b.set(world.KindPod, world.Key{Namespace: ns, Name: name}, p)
	if p.HostNetwork {
		return nil
	}
	return b.allocate(p.Node, o.words[2], o.words[3:], world.Owner{Namespace: ns, Name: name, UID: p.UID})
}

// parsePort reads "[NAME:]PORT[/PROTOCOL]".
func parsePort(text string) (world.ContainerPort, error) {
	c := world.ContainerPort{Protocol: packet.TCP}
	name, number, named := strings.Cut(text, ":")
	if !named {
		name, number = "", text
	}
	c.Name = name
	number, protocol, has := strings.Cut(number, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err == nil && has {
		c.Protocol, err = packet.ParseProtocol(protocol)
	}
	c.Port = uint16(n)
	return c, err
}

// policies reads a manifest, as a user writes it.
func (b *builder) policies(text []byte) error {
	objects, err := datastore.DecodeManifest(bytes.NewReader(text))
	if err != nil {
		return err
	}
	for _, o := range objects {
		kind, err := datastore.KindOf(o)
		if err != nil {
			return err
		}
		v, problems := feed.Convert(world.Kind(kind), o)
		if len(problems) > 0 {
			return fmt.Errorf("%s %s: %+v", kind, o.GetName(), problems)
		}
		b.set(world.Kind(kind), world.Key{Namespace: o.GetNamespace(), Name: o.GetName()}, v)
	}
	return nil
}
