package controller

import (
	"maps"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/controller/plan"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// cache keeps whole objects of the kinds whose status or metadata the controller reads;
// the world has only what the network needs of them. The world says what exists: the
// cache may hold an object for a little longer.
type cache struct {
	mu            sync.Mutex
	vpcs          map[string]*v1alpha1.VPC
	subnets       map[string]*v1alpha1.Subnet
	nodeNetworks  map[string]*v1alpha1.NodeNetwork
	netNamespaces map[string]*v1alpha1.NetNamespace
	policies      map[string]*policyv1beta1.ClusterNetworkPolicy
	// nodes is nil if their conditions are not the controller's.
	nodes map[string]plan.Node
	// serviceRanges are sorted, and never changed in place.
	serviceRanges []netip.Prefix
	changed       chan struct{}
}

func newCache(nodes bool) *cache {
	c := &cache{
		vpcs: map[string]*v1alpha1.VPC{}, subnets: map[string]*v1alpha1.Subnet{},
		nodeNetworks: map[string]*v1alpha1.NodeNetwork{}, netNamespaces: map[string]*v1alpha1.NetNamespace{},
		policies: map[string]*policyv1beta1.ClusterNetworkPolicy{},
		changed:  make(chan struct{}),
	}
	if nodes {
		c.nodes = map[string]plan.Node{}
	}
	return c
}

// seen takes what the world holds already.
func (c *cache) seen(_ world.Kind, o datastore.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o := o.(type) {
	case *v1alpha1.VPC:
		c.vpcs[o.Name] = o
	case *v1alpha1.Subnet:
		c.subnets[o.Name] = o
	case *v1alpha1.NodeNetwork:
		c.nodeNetworks[o.Name] = o
	case *v1alpha1.NetNamespace:
		c.netNamespaces[o.Name] = o
	case *policyv1beta1.ClusterNetworkPolicy:
		c.policies[o.Name] = o
	case *corev1.Node:
		n := plan.NodeOf(o)
		if c.nodes == nil || c.nodes[o.Name].Same(n) {
			return // A kubelet tells much that is not about the network.
		}
		c.nodes[o.Name] = n
	default:
		return
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// objects returns what is cached, and a channel that is closed at the next change. The
// objects must not be changed. A snapshot of the world that is taken afterwards is at
// least as new.
func (c *cache) objects() (plan.Objects, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return plan.Objects{
		VPCs: maps.Clone(c.vpcs), Subnets: maps.Clone(c.subnets),
		NodeNetworks: maps.Clone(c.nodeNetworks), NetNamespaces: maps.Clone(c.netNamespaces),
		ClusterNetworkPolicies: maps.Clone(c.policies), Nodes: maps.Clone(c.nodes), ServiceRanges: c.serviceRanges,
	}, c.changed
}

// forget drops those of objects that the world, taken after them, does not hold, unless
// they have come again meanwhile.
func (c *cache) forget(objects plan.Objects, snap *world.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	forget(c.vpcs, objects.VPCs, snap.VPCs)
	forget(c.subnets, objects.Subnets, snap.Subnets)
	forget(c.nodeNetworks, objects.NodeNetworks, snap.NodeNetworks)
	forget(c.netNamespaces, objects.NetNamespaces, snap.NetNamespaces)
	forget(c.policies, objects.ClusterNetworkPolicies, snap.ClusterNetworkPolicies)
	forget(c.nodes, objects.Nodes, snap.Nodes)
}

func forget[O comparable, W any](cached, seen map[string]O, table world.Table[*W]) {
	for name, o := range seen {
		if _, ok := table.Get(world.Key{Name: name}); !ok && cached[name] == o {
			delete(cached, name)
		}
	}
}
