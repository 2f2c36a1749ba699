package world

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A checkpoint is
//
//	magic (8 bytes), version (4), CRC-32C of the payload (4), payload
//
// with numbers in big endian. The payload is the revision, the position, and the
// tables of the datastore, each sorted.
const (
	checkpointMagic   = "FLWORLD\n"
	checkpointVersion = 2
	checkpointHeader  = len(checkpointMagic) + 8
)

// ErrCheckpoint is wrapped by every error of Decode.
var ErrCheckpoint = errors.New("no usable checkpoint")

// Encode writes down what a snapshot knows from the datastore. Attachments and
// tunnel addresses are not in it: their records are the truth. The same snapshot
// gives the same bytes. It never fails for a snapshot of a Store; the error is for
// tables with nil values.
func Encode(s *Snapshot) ([]byte, error) {
	if key, found := findNil(s); found {
		return nil, fmt.Errorf("encode checkpoint: %s has no object", key)
	}
	// A pod takes some 300 bytes, its allocations included.
	c := &coder{buf: make([]byte, checkpointHeader, 4096+384*s.Pods.Len())}
	copied := *s
	c.snapshot(&copied)
	copy(c.buf, checkpointMagic)
	payload := c.buf[checkpointHeader:]
	binary.BigEndian.PutUint32(c.buf[len(checkpointMagic):], checkpointVersion)
	binary.BigEndian.PutUint32(c.buf[len(checkpointMagic)+4:], crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
	return c.buf, nil
}

// Decode reads a checkpoint. The snapshot's Synced is empty: whatever is in it may
// be stale. Torn, corrupt and foreign input is an error that wraps ErrCheckpoint.
func Decode(data []byte) (*Snapshot, error) {
	if len(data) < checkpointHeader || !bytes.HasPrefix(data, []byte(checkpointMagic)) {
		return nil, fmt.Errorf("%w: it does not begin as one", ErrCheckpoint)
	}
	version := binary.BigEndian.Uint32(data[len(checkpointMagic):])
	if version != checkpointVersion {
		return nil, fmt.Errorf("%w: it has version %d, and this program reads %d", ErrCheckpoint, version, checkpointVersion)
	}
	payload := data[checkpointHeader:]
	want := binary.BigEndian.Uint32(data[len(checkpointMagic)+4:])
	if got := crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)); got != want {
		return nil, fmt.Errorf("%w: torn or corrupt: its checksum is %08x, not %08x", ErrCheckpoint, got, want)
	}
	c := &coder{reading: true, buf: payload, seen: map[string]string{}}
	s := &Snapshot{}
	c.snapshot(s)
	if c.err == nil && len(c.buf) > 0 {
		c.fail(fmt.Errorf("%d bytes follow its end", len(c.buf)))
	}
	if c.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCheckpoint, c.err)
	}
	return s, nil
}

// findNil returns the key of an entry without an object.
func findNil(s *Snapshot) (Key, bool) {
	for _, find := range []func() (Key, bool){
		s.Nodes.findNil, s.Namespaces.findNil, s.Pods.findNil, s.VPCs.findNil,
		s.Subnets.findNil, s.Blocks.findNil, s.NodeNetworks.findNil, s.NetNamespaces.findNil,
		s.NetworkPolicies.findNil, s.ClusterNetworkPolicies.findNil,
	} {
		if k, found := find(); found {
			return k, true
		}
	}
	return Key{}, false
}

func (t Table[V]) findNil() (Key, bool) {
	var none V
	for k, v := range t.All() {
		if v == none {
			return k, true
		}
	}
	return Key{}, false
}

func (c *coder) snapshot(s *Snapshot) {
	c.uint(&s.Revision)
	stringMap(c, (*map[Kind]string)(&s.Position))
	table(c, &s.Nodes, (*coder).node)
	table(c, &s.Namespaces, (*coder).namespace)
	table(c, &s.Pods, (*coder).pod)
	table(c, &s.VPCs, (*coder).vpc)
	table(c, &s.Subnets, (*coder).subnet)
	table(c, &s.Blocks, (*coder).block)
	table(c, &s.NodeNetworks, (*coder).nodeNetwork)
	table(c, &s.NetNamespaces, (*coder).netNamespace)
	table(c, &s.NetworkPolicies, (*coder).networkPolicy)
	table(c, &s.ClusterNetworkPolicies, (*coder).clusterNetworkPolicy)
}

func (c *coder) node(n *Node) {
	c.string(&n.Name)
	c.string(&n.UID)
	stringMap(c, &n.Labels)
	c.addrs(&n.Addresses)
	c.addrs(&n.ExternalAddresses)
}

func (c *coder) namespace(n *Namespace) {
	c.string(&n.Name)
	c.string(&n.UID)
	stringMap(c, &n.Labels)
}

func (c *coder) pod(p *Pod) {
	c.string(&p.Namespace)
	c.string(&p.Name)
	c.string(&p.UID)
	c.string(&p.Node)
	stringMap(c, &p.Labels)
	c.bool(&p.HostNetwork)
	c.bool(&p.Finished)
	c.addrs(&p.Addresses)
	list(c, &p.Ports, func(c *coder, port *ContainerPort) {
		c.string(&port.Name)
		number(c, &port.Protocol)
		number(c, &port.Port)
	})
	c.string(&p.WantSubnet)
	c.string(&p.WantIP)
	c.string(&p.StaticUID)
}

func (c *coder) vpc(v *VPC) {
	c.string(&v.Name)
	c.string(&v.UID)
	c.time(&v.Created)
	c.selector(&v.Namespaces)
	c.bool(&v.Tenant)
	number(c, &v.VNI)
}

func (c *coder) subnet(s *Subnet) {
	c.string(&s.Name)
	c.string(&s.UID)
	c.time(&s.Created)
	c.string(&s.VPC)
	c.prefixes(&s.CIDRs)
	c.strings(&s.BadCIDRs)
	number(c, &s.Transport)
	number(c, &s.Encapsulation)
	number(c, &s.BlockBits4)
	number(c, &s.BlockBits6)
	c.prefixes(&s.Exclude)
	c.addrs(&s.Gateway)
	c.bool(&s.NATOutgoing)
	c.selector(&s.Namespaces)
}

func (c *coder) allocation(a *Allocation) {
	c.addr(&a.Addr)
	c.string(&a.Owner.Namespace)
	c.string(&a.Owner.Name)
	c.string(&a.Owner.UID)
}

func (c *coder) block(b *Block) {
	c.string(&b.Name)
	c.string(&b.UID)
	c.string(&b.Subnet)
	c.prefix(&b.CIDR)
	c.string(&b.Node)
	list(c, &b.Allocations, (*coder).allocation)
	list(c, &b.Lent, func(c *coder, l *Loan) {
		c.addr(&l.Addr)
		c.string(&l.Node)
	})
}

func (c *coder) nodeNetwork(n *NodeNetwork) {
	c.string(&n.Name)
	c.prefixes(&n.Addresses)
	c.mac(&n.VTEPMAC)
	number(c, &n.MTU)
	c.string(&n.Plane)
	c.strings(&n.Wanted)
	list(c, &n.Borrowed, (*coder).allocation)
}

func (c *coder) netNamespace(n *NetNamespace) {
	c.string(&n.Name)
	number(c, &n.VNI)
	c.bool(&n.Global)
}
