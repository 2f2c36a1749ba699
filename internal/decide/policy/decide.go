package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Endpoint is a port of this node, and whose it is.
type Endpoint struct {
	// Port is the ID of the intent's Port, VPC its VPC.
	Port, VPC string
	// Pod as the attachment's record names it; without a namespace it is no pod, and
	// no policy is about it.
	Pod world.Owner
}

// Input is what policies are decided from. The stages before are not changed any
// more, and the same pointer means that they say the same.
type Input struct {
	World     *world.Snapshot
	Underlay  *addressing.Underlay
	Routes    *addressing.Routes
	Endpoints []Endpoint
}

// Lists are the IDs of the RuleLists of a port; empty is not restricted.
type Lists struct{ Ingress, Egress string }

// State is what a Decide found. It is immutable, and so is what its fields refer to.
type State struct {
	// Ports holds the lists of each endpoint that has one, by the port's ID.
	Ports map[string]Lists
	// RuleLists are sorted by ID, AddressSets by VPC and name. Every set that a list
	// refers to is there, empty or not, and no other.
	RuleLists   []intent.RuleList
	AddressSets []intent.AddressSet
	Problems    []world.Problem // sorted

	in          Input
	book        *book
	policies    *policies
	classes     map[string]*class
	wants       []wanted
	collections *collections
	uses        []use
	nodes       map[nodeKey]content
	work        work
}

// work counts what a Decide did not take over.
type work struct{ parsed, pods, collections, classes, compiled int }

// Compiled counts the sorts of pods whose lists this Decide wrote; all others it took
// over.
func (s *State) Compiled() int { return s.work.compiled }

// Decide decides the policies of a world for the ports of one node. prev is the
// State of an earlier Decide, or nil; it saves work and changes no result.
func Decide(prev *State, in Input) *State {
	if prev == nil {
		prev = &State{in: Input{World: &world.Snapshot{}}, book: &book{}, policies: &policies{}}
	}
	s := &State{in: in}
	s.policies, s.work.parsed = prev.policies.update(prev.in.World, in.World)
	var changes []podChange
	s.book, changes = prev.book.update(prev.in.World, in.World, in.Routes)
	s.work.pods = len(changes)
	changes = s.withNamespaces(prev, changes)
	of := s.classify(prev)
	s.wants = s.wanted(prev)
	s.collections, s.work.collections = prev.collections.update(prev.book.index, s.book.index, changes)
	s.collections = s.collections.with(s.wants, s.book.index)
	s.compile(prev)
	s.uses = s.used(prev)
	s.collectNodes(prev)
	s.fill()
	s.list(of)
	s.report()
	return s
}

// withNamespaces adds the pods whose namespace changed to the pods that changed.
func (s *State) withNamespaces(prev *State, changes []podChange) []podChange {
	if prev.collections == nil {
		return changes
	}
	seen := map[place]bool{}
	for d := range world.Diff(prev.in.World.Namespaces, s.in.World.Namespaces) {
		if d.HadOld && d.HasNew && maps.Equal(d.Old.Labels, d.New.Labels) {
			continue
		}
		if len(seen) == 0 {
			for _, c := range changes {
				seen[placeOf(c)] = true
			}
		}
		for _, p := range s.book.index.Of(d.Key.Name) { // Others have changed themselves.
			c := podChange{Old: p, New: p}
			if at := placeOf(c); !seen[at] {
				seen[at] = true
				changes = append(changes, c)
			}
		}
	}
	return changes
}

type place struct {
	key   world.Key
	known bool
}

func placeOf(c podChange) place {
	p := cmp.Or(c.New, c.Old)
	return place{p.Key, p.Known}
}

// classify sorts the endpoints into classes, and returns the class of each port.
func (s *State) classify(prev *State) map[string]*class {
	s.classes = map[string]*class{}
	of := make(map[string]*class, len(s.in.Endpoints))
	for _, e := range s.in.Endpoints {
		if e.Pod.Namespace == "" {
			continue
		}
		c := &class{vpc: e.VPC, namespace: e.Pod.Namespace}
		if p, ok := s.in.World.Pods.Get(world.Key{Namespace: e.Pod.Namespace, Name: e.Pod.Name}); ok && isInstance(p, e.Pod.UID) {
			c.known, c.labels, c.ports = true, p.Labels, p.Ports
		}
		key := c.key()
		c.name = key
		if s.classes[key] == nil {
			s.classes[key] = s.class(c, prev.classes[key])
		}
		of[e.Port] = s.classes[key]
	}
	return of
}

// key is the same for two classes whose pods no policy can tell apart.
func (c *class) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %t", c.vpc, c.namespace, c.known)
	for _, k := range slices.Sorted(maps.Keys(c.labels)) {
		fmt.Fprintf(&b, " %q=%q", k, c.labels[k])
	}
	for _, p := range c.ports {
		if p.Name != "" {
			fmt.Fprintf(&b, " %q %d %d", p.Name, p.Protocol, p.Port)
		}
	}
	return b.String()
}

// class finds the policies of a class, or takes over what an earlier State found.
func (s *State) class(c, old *class) *class {
	c.ns = s.book.index.Namespace(c.namespace)
	c.network, _ = s.policies.byNamespace.Get(world.Key{Name: c.namespace})
	c.cluster = s.policies.cluster
	if old != nil && old.ns == c.ns && old.network == c.network && old.cluster == c.cluster {
		return old
	}
	s.work.classes++
	c.apply()
	if old != nil && slices.Equal(old.ingress, c.ingress) && slices.Equal(old.egress, c.egress) {
		c.wants, c.computed, c.done = old.wants, old.computed, true
		return c
	}
	c.want()
	return c
}

// wanted lists what all classes want.
func (s *State) wanted(prev *State) []wanted {
	if maps.Equal(s.classes, prev.classes) {
		return prev.wants
	}
	seen := map[collectionKey]bool{}
	var list []wanted
	for _, c := range s.classes {
		for _, w := range c.wants {
			if !seen[w.key] {
				seen[w.key] = true
				list = append(list, w)
			}
		}
	}
	slices.SortFunc(list, func(a, b wanted) int { return compareKey(a.key, b.key) })
	return list
}

// compile writes the lists of the classes that are new, and of those whose ports
// depend on what other pods declare.
func (s *State) compile(prev *State) {
	for key, c := range s.classes {
		moved := func(k collectionKey) bool { return !s.collections.get(k).sameShape(prev.collections.get(k)) }
		if c.done && !slices.ContainsFunc(c.computed.byName, moved) {
			continue
		}
		if prev.classes[key] == c { // It belongs to prev.
			own := *c
			c = &own
			s.classes[key] = c
		}
		s.work.compiled++
		c.compile(s.collections)
		c.done = true
	}
}

// used lists the sets that all classes use.
func (s *State) used(prev *State) []use {
	if maps.Equal(s.classes, prev.classes) {
		return prev.uses
	}
	var list []use
	seen := map[[2]string]bool{}
	for _, c := range s.classes {
		for _, u := range c.computed.uses {
			if at := [2]string{u.vpc, u.name}; !seen[at] {
				seen[at] = true
				list = append(list, u)
			}
		}
	}
	slices.SortFunc(list, use.compare)
	return list
}

// collectNodes reads the nodes' addresses, unless nothing of them changed.
func (s *State) collectNodes(prev *State) {
	same := prev.in.World.Nodes == s.in.World.Nodes && prev.in.Underlay == s.in.Underlay && slices.Equal(prev.book.nodes, s.book.nodes)
	s.nodes = map[nodeKey]content{}
	for _, u := range s.uses {
		if u.from.kind != nodes {
			continue
		}
		key := nodeKey{u.from.key, u.vpc}
		if _, done := s.nodes[key]; done {
			continue
		}
		if old, ok := prev.nodes[key]; ok && same {
			s.nodes[key] = old
			continue
		}
		s.nodes[key] = collectNodes(u.from.nodes, u.vpc, s.in.World.Nodes, s.in.Underlay, s.book.nodes)
	}
}

// fill makes the sets.
func (s *State) fill() {
	s.AddressSets = make([]intent.AddressSet, len(s.uses))
	for i, u := range s.uses {
		s.AddressSets[i] = intent.AddressSet{VPC: u.vpc, Name: u.name, Prefixes: s.prefixes(u)}
	}
}

func (s *State) prefixes(u use) []netip.Prefix {
	if u.from.kind == addresses && u.key == (collectionKey{}) {
		return u.from.prefixes
	}
	var in content
	if u.from.kind == nodes {
		in = s.nodes[nodeKey{u.from.key, u.vpc}]
	} else if c := s.collections.get(u.key); c != nil {
		in = c.buckets[u.bucket]
	}
	list := in.narrow
	if u.wide {
		list = in.wide
	}
	if u.from.kind == addresses {
		return both(list, u.from.prefixes)
	}
	return list
}

// list collects the lists of all ports.
func (s *State) list(of map[string]*class) {
	s.Ports = make(map[string]Lists, len(of))
	lists := map[string]*intent.RuleList{}
	id := func(l *intent.RuleList) string {
		if l == nil {
			return ""
		}
		lists[l.ID] = l
		return l.ID
	}
	for port, c := range of {
		c = s.classes[c.name]
		if l := (Lists{id(c.computed.ingress), id(c.computed.egress)}); l != (Lists{}) {
			s.Ports[port] = l
		}
	}
	s.RuleLists = make([]intent.RuleList, 0, len(lists))
	for _, l := range lists {
		s.RuleLists = append(s.RuleLists, *l)
	}
	slices.SortFunc(s.RuleLists, intent.RuleList.Compare)
}

// report collects the Problems: what is wrong with policies, and port names that
// nobody declares.
func (s *State) report() {
	s.Problems = slices.Clone(s.policies.problems)
	seen := map[*parsed]bool{}
	for _, c := range s.classes {
		for _, a := range slices.Concat(c.ingress, c.egress) {
			if !seen[a.policy] {
				seen[a.policy] = true
				s.unresolved(a.policy)
			}
		}
	}
	slices.SortFunc(s.Problems, world.Problem.Compare)
	s.Problems = slices.Compact(s.Problems)
}

func (s *State) unresolved(p *parsed) {
	for _, n := range p.named {
		if k := (collectionKey{n.query.Key(), n.named.name}); !s.declared(k, n.named) {
			s.undeclared(p, n.field, n.named, "no pod that the policy is about")
		}
	}
	for _, r := range p.rules[intent.Egress] {
		for _, n := range r.named {
			found := r.unreadable
			for _, d := range r.among(n) {
				found = found || s.collections.get(d.key) == nil || s.declared(d.key, n)
			}
			if !found {
				s.undeclared(p, r.field, n, "none of the rule's peers")
			}
		}
	}
}

// declared reports whether some pod of a collection has a port that is meant, or may
// have.
func (s *State) declared(k collectionKey, n named) bool {
	c := s.collections.get(k)
	if c == nil { // Not asked for: no pod of this node is concerned.
		return true
	}
	for b := range c.buckets {
		if b.protocol == 0 || n.may(b.protocol) {
			return true
		}
	}
	return false
}

func (s *State) undeclared(p *parsed, field string, n named, who string) {
	protocol := ""
	if n.protocol != 0 {
		protocol = " of protocol " + n.protocol.String()
	}
	s.Problems = append(s.Problems, world.Problem{
		Kind: p.kind, Key: p.key, Field: field, Reason: "UnresolvedPort",
		Message: fmt.Sprintf("%s has a container port named %.80q%s: the name matches nothing until one has", who, n.name, protocol),
	})
}
