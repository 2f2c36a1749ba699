package world

import (
	"maps"
	"reflect"
	"sync"
)

// Kind names a table of the world, in the words of the API.
type Kind string

// The kinds that come from the datastore, and the two that only this node knows.
const (
	KindNode                 Kind = "Node"
	KindNamespace            Kind = "Namespace"
	KindPod                  Kind = "Pod"
	KindVPC                  Kind = "VPC"
	KindSubnet               Kind = "Subnet"
	KindBlock                Kind = "IPBlock"
	KindNodeNetwork          Kind = "NodeNetwork"
	KindNetNamespace         Kind = "NetNamespace"
	KindNetworkPolicy        Kind = "NetworkPolicy"
	KindClusterNetworkPolicy Kind = "ClusterNetworkPolicy"
	KindAttachment           Kind = "Attachment"
	KindTunnelAddress        Kind = "TunnelAddress"
)

// DatastoreKinds are the kinds that a feed watches, in the order in which a
// person would read them.
func DatastoreKinds() []Kind {
	return []Kind{
		KindNode, KindNamespace, KindPod, KindVPC, KindSubnet, KindBlock, KindNodeNetwork, KindNetNamespace,
		KindNetworkPolicy, KindClusterNetworkPolicy,
	}
}

// Position says up to which resourceVersion of each kind a snapshot has seen the
// datastore.
type Position map[Kind]string

// Snapshot is the cluster at one moment. It is immutable: whoever holds one may
// read it for as long as they like, and must not change what its maps, slices and
// pointers refer to.
type Snapshot struct {
	// Revision grows by one with every batch of changes that changed something.
	Revision uint64
	Position Position
	// Synced holds the kinds whose list has arrived from the datastore since the
	// process started. A kind that is in the tables but not here comes from a
	// checkpoint: it may be stale, and nothing may be removed because of it.
	Synced map[Kind]bool

	Nodes                  Table[*Node]
	Namespaces             Table[*Namespace]
	Pods                   Table[*Pod]
	VPCs                   Table[*VPC]
	Subnets                Table[*Subnet]
	Blocks                 Table[*Block]
	NodeNetworks           Table[*NodeNetwork]
	NetNamespaces          Table[*NetNamespace]
	NetworkPolicies        Table[*NetworkPolicy]
	ClusterNetworkPolicies Table[*ClusterNetworkPolicy]
	Attachments            Table[*Attachment]
	TunnelAddresses        Table[*TunnelAddress]
}

// AllSynced reports whether every kind of the datastore has arrived.
func (s *Snapshot) AllSynced() bool {
	for _, k := range DatastoreKinds() {
		if !s.Synced[k] {
			return false
		}
	}
	return true
}

// Change sets or removes one object, or, with the zero Key, only moves the
// position of a kind.
type Change struct {
	Kind Kind
	Key  Key
	// Object is a pointer to a value of the kind's type, nil to remove. It belongs
	// to the world afterwards.
	Object any
	// ResourceVersion is the new position of the kind; empty leaves it.
	ResourceVersion string
	// Synced marks the kind as listed.
	Synced bool
}

// Store holds the current Snapshot. It is safe for concurrent use.
type Store struct {
	mu      sync.Mutex
	current *Snapshot
	changed chan struct{}
}

// NewStore starts from the given snapshot; nil is an empty world.
func NewStore(s *Snapshot) *Store {
	if s == nil {
		s = &Snapshot{}
	}
	return &Store{current: s, changed: make(chan struct{})}
}

// Snapshot returns the current snapshot, and a channel that is closed when a
// later one exists.
func (s *Store) Snapshot() (*Snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.changed
}

// Apply applies changes in order, as one revision, and returns the snapshot that
// holds them. Changes that set an object to what it already is change nothing;
// if no change changed anything the revision stays, though positions may move.
// A change whose kind or object type is unknown is ignored: feeds are typed, and
// a bad object is its feed's to report.
func (s *Store) Apply(changes ...Change) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.current
	content, moved := false, false
	for _, c := range changes {
		if c.Key != (Key{}) && next.set(c) {
			content = true
		}
		if c.ResourceVersion != "" && next.Position[c.Kind] != c.ResourceVersion {
			if !moved {
				next.Position = maps.Clone(next.Position)
				moved = true
			}
			if next.Position == nil {
				next.Position = Position{}
			}
			next.Position[c.Kind] = c.ResourceVersion
		}
		if c.Synced && !next.Synced[c.Kind] {
			next.Synced = maps.Clone(next.Synced)
			if next.Synced == nil {
				next.Synced = map[Kind]bool{}
			}
			next.Synced[c.Kind] = true
			content = true
		}
	}
	if !content && !moved {
		return s.current
	}
	if content {
		next.Revision++
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.current = &next
	return s.current
}

// set applies one change of an object and reports whether it changed anything.
func (s *Snapshot) set(c Change) bool {
	switch c.Kind {
	case KindNode:
		return put(&s.Nodes, c)
	case KindNamespace:
		return put(&s.Namespaces, c)
	case KindPod:
		return put(&s.Pods, c)
	case KindVPC:
		return put(&s.VPCs, c)
	case KindSubnet:
		return put(&s.Subnets, c)
	case KindBlock:
		return put(&s.Blocks, c)
	case KindNodeNetwork:
		return put(&s.NodeNetworks, c)
	case KindNetNamespace:
		return put(&s.NetNamespaces, c)
	case KindNetworkPolicy:
		return put(&s.NetworkPolicies, c)
	case KindClusterNetworkPolicy:
		return put(&s.ClusterNetworkPolicies, c)
	case KindAttachment:
		return put(&s.Attachments, c)
	case KindTunnelAddress:
		return put(&s.TunnelAddresses, c)
	}
	return false
}

func put[T any](t *Table[*T], c Change) bool {
	old, had := t.Get(c.Key)
	if c.Object == nil {
		*t = t.Without(c.Key)
		return had
	}
	v, ok := c.Object.(*T)
	if !ok || v == nil || had && reflect.DeepEqual(old, v) {
		return false
	}
	*t = t.With(c.Key, v)
	return true
}
