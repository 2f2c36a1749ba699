package plan

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Config is what does not change while the controller runs.
type Config struct {
	// Grace is how long what has lost its Node, or its Namespace, is kept.
	Grace time.Duration
	// DefaultSubnet is created if there is no Subnet of its name; nil creates none.
	DefaultSubnet *v1alpha1.Subnet
	// Identity of this controller, for Events.
	Identity string
}

// Objects are those whose metadata or status the world does not hold, by name. One
// that the world holds and that is missing here is left alone.
type Objects struct {
	VPCs          map[string]*v1alpha1.VPC
	Subnets       map[string]*v1alpha1.Subnet
	NodeNetworks  map[string]*v1alpha1.NodeNetwork
	NetNamespaces map[string]*v1alpha1.NetNamespace
	// ClusterNetworkPolicies are read, and their conditions of ours are written.
	ClusterNetworkPolicies map[string]*policyv1beta1.ClusterNetworkPolicy
	// Nodes whose condition NetworkUnavailable is the controller's to write.
	Nodes map[string]Node
	// ServiceRanges are the ranges that Services get their addresses from, sorted.
	ServiceRanges []netip.Prefix
	// Events that a controller of ours has written.
	Events map[datastore.Key]*corev1.Event
}

// Input of Make. Nothing in it is changed.
type Input struct {
	Config
	Now     time.Time
	World   *world.Snapshot
	Objects Objects
	// Record is what the datastore remembers, Memory what this controller does since
	// it leads; nil at the beginning.
	Record Record
	Memory *Memory
	// Unreadable are the problems of objects that could not be read in full.
	Unreadable []world.Problem
}

// Memory is what a leader remembers from one Plan to the next. It is immutable.
type Memory struct {
	// missing says since when this leader has missed a node.
	missing map[string]time.Time
	// orphans says since when it has seen a NetNamespace that never had a Namespace.
	orphans map[string]time.Time
	// active are the names of Events whose problem lasts.
	active map[datastore.Key]bool
	// granted are the VNIs that were given to VPCs and namespaces which the world does
	// not show with them yet: a write that fails costs no second VNI.
	granted map[objectRef]packet.VNI
	// decided and counted save work where the tables they were made from are the same.
	decided *decided
	counted *counted
	// written says when the status of a VPC or Subnet was last changed.
	written map[objectRef]time.Time
}

// Action is what a Write does.
type Action uint8

// The actions.
const (
	Create Action = iota
	Update
	UpdateStatus
	Delete
	// Release deletes an IPBlock of a vanished node, by the protocol that makes loans
	// safe: mark the loans as recalled, then read what the borrowers list.
	Release
	// SetCondition sets one condition of a Node, whose status is the kubelet's else.
	SetCondition
)

// String is the word used in logs and metrics.
func (a Action) String() string {
	return [...]string{"create", "update", "update-status", "delete", "release", "set-condition"}[a]
}

// Ref names an object. With a UID it names one life of it.
type Ref struct {
	Kind datastore.Kind
	Key  datastore.Key
	UID  types.UID
}

// Write is one thing to do.
type Write struct {
	Action
	Ref
	// Object to create or update, with the resourceVersion that it was read at.
	Object datastore.Object
	// Condition to set.
	Condition corev1.NodeCondition
	// Absent must not exist in the datastore when a Delete or Release is carried out.
	Absent Ref
	// Why, for the log.
	Why string
}

// Vanished is a node without a Node object that has left something behind.
type Vanished struct {
	Node   string
	Blocks int
	// Pods that are still bound to the node and have not finished.
	Pods int
	// Due is when what it has left is removed.
	Due time.Time
}

// Plan is what to do now.
type Plan struct {
	// Record to be stored before any of the Writes, if it differs from the Input's.
	Record Record
	Writes []Write
	Memory *Memory
	// Again is when to plan again even if nothing changes; zero: never.
	Again time.Time
	// Vanished nodes, sorted, and how many nodes are known in all.
	Vanished []Vanished
	Nodes    int
	// Held says which blocks of vanished nodes are kept for living pods.
	Held []world.Problem
	// Suppressed counts problems for which there was no room among the Events.
	Suppressed int
}

// planner gathers a Plan.
type planner struct {
	Input
	old *Memory
	out Plan

	// snap is the world with the VNIs that this Plan gives.
	snap     world.Snapshot
	tenancy  *tenancy.Result
	subnets  *addressing.Subnets
	policies []world.Problem
	reported map[objectRef][]report
	counts   map[string]count
	// full are Subnets that have little room left.
	full      []world.Problem
	newEvents int
}

// Make decides what to write. Before every kind has been listed that is nothing.
func Make(in Input) Plan {
	p := &planner{Input: in, old: in.Memory, snap: *in.World}
	if p.old == nil {
		p.old = &Memory{}
	}
	p.out.Record = in.Record
	p.out.Memory = &Memory{
		missing: map[string]time.Time{}, orphans: map[string]time.Time{},
		active: map[datastore.Key]bool{}, written: map[objectRef]time.Time{}, granted: map[objectRef]packet.VNI{},
	}
	if !in.World.AllSynced() {
		p.out.Memory = in.Memory
		return p.out
	}
	for ref, at := range p.old.written {
		if p.Now.Sub(at) < countsPause {
			p.out.Memory.written[ref] = at
		}
	}
	p.createDefaults()
	vnis := p.sequence()
	p.nameVPCs(vnis)
	p.decide()
	p.giveTenants(vnis)
	p.out.Record.Next, p.out.Record.Reserved = vnis.Next, vnis.reserved()
	p.readReports()
	p.describeVPCs()
	p.describeSubnets()
	p.describePolicies()
	p.describeNodes()
	p.collect()
	p.tell()
	return p.out
}

// decided is what the packages that every agent asks too have said of some tables.
type decided struct {
	from    world.Snapshot
	tenancy *tenancy.Result
	subnets *addressing.Subnets
	// policies are what is wrong with them.
	policies []world.Problem
}

func (p *planner) decide() {
	d, now := p.old.decided, &p.snap
	if d == nil || d.from.Namespaces != now.Namespaces || d.from.VPCs != now.VPCs || d.from.NetNamespaces != now.NetNamespaces ||
		d.from.Nodes != now.Nodes || d.from.NodeNetworks != now.NodeNetworks || d.from.Subnets != now.Subnets {
		t := tenancy.Decide(now.Namespaces, now.VPCs, now.NetNamespaces)
		underlay := addressing.DecideUnderlay("", p.nodeExists, now.NodeNetworks)
		var policies []world.Problem
		if d != nil && d.samePolicies(now) {
			policies = d.policies
		} else {
			policies = policyProblems(now)
		}
		d = &decided{*now, t, addressing.DecideSubnets(t, underlay.Segments, now.Subnets), policies}
	} else if !d.samePolicies(now) {
		d = &decided{*now, d.tenancy, d.subnets, policyProblems(now)}
	}
	p.tenancy, p.subnets, p.policies = d.tenancy, d.subnets, d.policies
	p.out.Memory.decided = d
}

func (p *planner) nodeExists(name string) bool {
	_, ok := p.snap.Nodes.Get(world.Key{Name: name})
	return ok
}

// again asks for another Plan at t.
func (p *planner) again(t time.Time) {
	if p.out.Again.IsZero() || t.Before(p.out.Again) {
		p.out.Again = t
	}
}

func (p *planner) write(w Write) { p.out.Writes = append(p.out.Writes, w) }

// createDefaults creates what a new cluster needs before it can do anything.
func (p *planner) createDefaults() {
	if _, ok := p.snap.VPCs.Get(world.Key{Name: packet.DefaultVPC}); !ok {
		vpc := &v1alpha1.VPC{}
		vpc.Name = packet.DefaultVPC
		v1alpha1.DefaultVPC(vpc)
		p.create(datastore.KindVPC, vpc, "there is none of this name")
	}
	if s := p.DefaultSubnet; s != nil {
		if _, ok := p.snap.Subnets.Get(world.Key{Name: s.Name}); !ok {
			p.create(datastore.KindSubnet, s.DeepCopy(), "the configuration has defaultSubnet")
		}
	}
}

func (p *planner) create(kind datastore.Kind, o datastore.Object, why string) {
	p.write(Write{Action: Create, Ref: Ref{Kind: kind, Key: datastore.KeyOf(o)}, Object: o, Why: why})
}
