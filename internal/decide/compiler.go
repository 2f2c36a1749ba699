package decide

import (
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/decide/tenancy"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Config of a Compiler.
type Config struct {
	// Node is the name of the node to compile for.
	Node string
	// MTU of pods in bytes, up to 65535; zero for the largest that every node's
	// underlay carries.
	MTU int
}

// Compiler compiles worlds for one node. It is immutable and safe for concurrent use.
type Compiler struct {
	config Config
}

// New returns a Compiler.
func New(c Config) *Compiler { return &Compiler{config: c} }

// State is what a Compile found, kept for the next one. It is immutable.
type State struct {
	config Config
	world  world.Snapshot

	tenancy  *tenancy.Result
	underlay *addressing.Underlay
	subnets  *addressing.Subnets
	routes   *addressing.Routes
	tunnels  *tunnels
	ports    *ports
	tenants  *tenants
	policies *policies

	// computed names the stages that this Compile did not take over, in order.
	computed []string
}

type tunnels struct {
	list     []intent.TunnelAddress
	problems []world.Problem
}

// Compile computes the intent of the node, and everything that is wrong with
// objects, sorted and without doubles. prev is the State of an earlier Compile, or
// nil; it saves work and changes no result.
func (c *Compiler) Compile(prev *State, snap *world.Snapshot) (intent.Node, *State, []world.Problem) {
	if snap == nil {
		snap = &world.Snapshot{}
	}
	if prev == nil || prev.config != c.config {
		prev = &State{config: c.config}
	}
	next := &State{
		config: c.config, world: *snap,
		tenancy: prev.tenancy, underlay: prev.underlay, subnets: prev.subnets,
		routes: prev.routes, tunnels: prev.tunnels, ports: prev.ports, tenants: prev.tenants, policies: prev.policies,
	}
	next.update(prev)
	n, mtuProblems := next.intent()
	return n, next, next.problems(mtuProblems)
}

// update computes the stages whose inputs differ from those of prev.
func (s *State) update(prev *State) {
	old, now := &prev.world, &s.world
	if s.tenancy == nil || old.Namespaces != now.Namespaces || old.VPCs != now.VPCs || old.NetNamespaces != now.NetNamespaces {
		s.tenancy = tenancy.Decide(now.Namespaces, now.VPCs, now.NetNamespaces)
		s.computed = append(s.computed, "tenancy")
	}
	if s.underlay == nil || changed(old.Nodes, now.Nodes, sameName) || changed(old.NodeNetworks, now.NodeNetworks, sameUnderlay) {
		exists := func(name string) bool {
			_, ok := now.Nodes.Get(world.Key{Name: name})
			return ok
		}
		s.underlay = addressing.DecideUnderlay(s.config.Node, exists, now.NodeNetworks)
		s.computed = append(s.computed, "underlay")
	}
	if s.subnets == nil || old.Subnets != now.Subnets || s.tenancy != prev.tenancy || s.underlay != prev.underlay {
		s.subnets = addressing.DecideSubnets(s.tenancy, s.underlay.Segments, now.Subnets)
		s.computed = append(s.computed, "subnets")
	}
	if s.routes == nil || s.subnets != prev.subnets || s.underlay != prev.underlay || changed(old.Blocks, now.Blocks, addressing.SameRouting) {
		s.routes = addressing.DecideRoutes(s.underlay, s.subnets, now.Blocks)
		s.computed = append(s.computed, "routes")
	}
	if s.tunnels == nil || s.subnets != prev.subnets || old.TunnelAddresses != now.TunnelAddresses {
		list, problems := s.subnets.Tunnels(now.TunnelAddresses)
		s.tunnels = &tunnels{list: list, problems: problems}
		s.computed = append(s.computed, "tunnels")
	}
	if s.ports == nil || s.subnets != prev.subnets || s.tenancy != prev.tenancy || old.Attachments != now.Attachments {
		s.ports = decidePorts(s.tenancy, s.subnets, now.Attachments)
		s.computed = append(s.computed, "ports")
	}
	s.updateTenants(prev)
	s.updatePolicies(prev)
}

// intent puts the stages together.
func (s *State) intent() (intent.Node, []world.Problem) {
	mtu, problems := s.underlay.MTU(s.config.MTU, s.subnets.Overlay, s.subnets.IPv6)
	return intent.Node{
		Name: s.config.Node, MTU: mtu,
		Underlay: s.underlay.Addresses, VTEPMAC: s.underlay.VTEPMAC,
		VPCs: s.tenancy.VPCs, Subnets: s.subnets.List, Peers: s.underlay.Peers,
		Routes: s.routes.List, Tunnels: s.tunnels.list, Ports: s.policies.ports,
		NATs: s.subnets.NATs, AddressSets: s.policies.sets, RuleLists: s.policies.lists,
	}, problems
}

func (s *State) problems(more []world.Problem) []world.Problem {
	all := slices.Concat(s.tenancy.Problems, s.underlay.Problems, s.subnets.Problems,
		s.routes.Problems, s.tunnels.problems, s.ports.problems, s.policies.problems, more)
	slices.SortFunc(all, world.Problem.Compare)
	return slices.Compact(all)
}

// changed reports whether two versions of a table differ in more than same forgives.
// The cost is that of the difference.
func changed[T any](old, now world.Table[*T], same func(a, b *T) bool) bool {
	for d := range world.Diff(old, now) {
		if !d.HadOld || !d.HasNew || !same(d.Old, d.New) {
			return true
		}
	}
	return false
}

// sameName: of Nodes only the existence matters.
func sameName(a, b *world.Node) bool { return a.Name == b.Name }

// sameUnderlay: what a node wants and has borrowed changes nothing for its peers.
func sameUnderlay(a, b *world.NodeNetwork) bool {
	return a.Name == b.Name && a.MTU == b.MTU && a.VTEPMAC == b.VTEPMAC && slices.Equal(a.Addresses, b.Addresses)
}
