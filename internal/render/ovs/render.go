package ovs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Options say what of a pipeline does not come from the intent.
type Options struct {
	// Adopting lets TCP flows go on that were there before connection tracking knew
	// them: at first install, and after a restart of the switch.
	Adopting bool
}

// Numbers are the OpenFlow numbers of ports, by the name of their interface.
type Numbers map[string]of.Port

// Problem says why an object of the intent is missing from a Pipeline.
type Problem struct {
	Ref  intent.Ref
	Text string
}

// Part is some of a pipeline's flows: those of a port, a list, and so on.
type Part struct {
	// Name is unique in the pipeline.
	Name  string
	Flows []of.Flow
}

// same reports whether two parts share their flows.
func (p Part) same(o Part) bool {
	return len(p.Flows) == len(o.Flows) && (len(p.Flows) == 0 || &p.Flows[0] == &o.Flows[0])
}

// Pipeline is what the bridge of a node does. It is never changed.
type Pipeline struct {
	// Parts, sorted by name. No two flows of all of them have the same key.
	Parts []Part
	// Problems, sorted.
	Problems []Problem

	peers map[peersKey]*peers
	lists map[string]*listed
	ports map[string]renderedPort
	about surroundings
}

// Flows are those of all parts.
func (p *Pipeline) Flows() []of.Flow {
	n := 0
	for _, part := range p.Parts {
		n += len(part.Flows)
	}
	out := make([]of.Flow, 0, n)
	for _, part := range p.Parts {
		out = append(out, part.Flows...)
	}
	return out
}

// Since returns flows of the parts that differ from those of an earlier pipeline, as they
// were and as they are, but for those that are known to be the same. It takes time for what
// differs only, if p was made from prev by RenderAfter. A nil prev has no flows.
func (p *Pipeline) Since(prev *Pipeline) (before, after []of.Flow) {
	var old []Part
	if prev != nil {
		old = prev.Parts
	}
	now := p.Parts
	for len(old)+len(now) > 0 {
		switch {
		case len(now) == 0 || len(old) > 0 && old[0].Name < now[0].Name:
			before, old = append(before, old[0].Flows...), old[1:]
		case len(old) == 0 || now[0].Name < old[0].Name:
			after, now = append(after, now[0].Flows...), now[1:]
		default:
			if !old[0].same(now[0]) {
				before, after = appendUnshared(before, old[0].Flows, now[0].Flows), appendUnshared(after, now[0].Flows, old[0].Flows)
			}
			old, now = old[1:], now[1:]
		}
	}
	return before, after
}

// appendUnshared appends the flows that are not taken from others, or by them.
func appendUnshared(out, flows, others []of.Flow) []of.Flow {
	taken := make(map[*of.Term]*of.Flow, len(others))
	for i := range others {
		if match := others[i].Match; len(match) > 0 {
			taken[&match[0]] = &others[i]
		}
	}
	for _, f := range flows {
		if len(f.Match) == 0 || !shared(taken[&f.Match[0]], f) {
			out = append(out, f)
		}
	}
	return out
}

// shared reports whether two flows with one match in memory are the same.
func shared(a *of.Flow, b of.Flow) bool {
	return a != nil && a.Table == b.Table && a.Priority == b.Priority && len(a.Match) == len(b.Match) &&
		len(a.Actions) == len(b.Actions) && (len(a.Actions) == 0 || &a.Actions[0] == &b.Actions[0])
}

// Render computes the pipeline of a node. A port without a number has no flows yet.
func Render(n intent.Node, numbers Numbers, o Options) *Pipeline {
	return RenderAfter(nil, n, numbers, o)
}

// RenderAfter computes the pipeline too; prev is an earlier one, or nil. The result is
// the same, but what did not change shares its flows with the earlier one.
func RenderAfter(prev *Pipeline, n intent.Node, numbers Numbers, o Options) *Pipeline {
	if prev == nil {
		prev = &Pipeline{}
	}
	r := &renderer{
		node: sorted(n), numbers: numbers, options: o, prev: prev,
		next: &Pipeline{peers: map[peersKey]*peers{}, lists: map[string]*listed{}, ports: map[string]renderedPort{}},
	}
	r.gateway, r.tunnel = numbers[claims.OVSHostPort], numbers[claims.OVSTunnelPort]
	zones := Zones(r.node.VPCs)
	r.vpcs = make(map[string]vpc, len(r.node.VPCs))
	for _, v := range r.node.VPCs {
		r.vpcs[v.Name] = vpc{v.VNI, zones[v.Name]}
	}
	r.surroundings()
	r.policies()
	r.ports()
	slices.SortFunc(r.next.Parts, func(a, b Part) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.next.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Ref.Kind, b.Ref.Kind), cmp.Compare(a.Ref.Name, b.Ref.Name), cmp.Compare(a.Text, b.Text))
	})
	return r.next
}

// sorted makes every choice between objects independent of their order.
func sorted(n intent.Node) intent.Node {
	n.VPCs, n.Subnets, n.Peers = inOrder(n.VPCs), inOrder(n.Subnets), inOrder(n.Peers)
	n.Routes, n.Tunnels, n.Ports = inOrder(n.Routes), inOrder(n.Tunnels), inOrder(n.Ports)
	n.NATs, n.AddressSets, n.RuleLists = inOrder(n.NATs), inOrder(n.AddressSets), inOrder(n.RuleLists)
	return n
}

func inOrder[T interface{ Compare(T) int }](list []T) []T {
	compare := func(a, b T) int { return a.Compare(b) }
	if slices.IsSortedFunc(list, compare) {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, compare)
	return list
}

type renderer struct {
	node    intent.Node
	numbers Numbers
	options Options
	prev    *Pipeline
	next    *Pipeline
	// gateway and tunnel are the numbers of those ports, 0 while they have none.
	gateway, tunnel of.Port
	vpcs            map[string]vpc
}

// vpc is what flows bear of a VPC.
type vpc struct {
	vni  packet.VNI
	zone uint16
}

// Zones gives every VPC a conntrack zone that follows from its VNI, so that it stays the
// same while other VPCs come and go. The key is the VPC's name.
func Zones(vpcs []intent.VPC) map[string]uint16 {
	const n = uint32(claims.OVSZoneLast-claims.OVSZoneFirst) + 1
	out := make(map[string]uint16, len(vpcs))
	byVNI := slices.Clone(vpcs)
	slices.SortFunc(byVNI, func(a, b intent.VPC) int { return cmp.Compare(a.VNI, b.VNI) })
	taken := map[uint32]bool{}
	for _, v := range byVNI {
		z := uint32(v.VNI) % n
		for range n {
			if !taken[z] {
				break
			}
			z = (z + 1) % n
		}
		taken[z] = true
		out[v.Name] = claims.OVSZoneFirst + uint16(z)
	}
	return out
}

func (r *renderer) problem(ref intent.Ref, format string, args ...any) {
	r.next.Problems = append(r.next.Problems, Problem{ref, fmt.Sprintf(format, args...)})
}

// part adds a part.
func (r *renderer) part(name string, flows []of.Flow) {
	if len(flows) > 0 {
		r.next.Parts = append(r.next.Parts, Part{name, flows})
	}
}

// surroundings are the parts that do not depend on ports and lists, and what they were
// made of.
type surroundings struct {
	node            intent.Node
	options         Options
	gateway, tunnel of.Port
	parts           []Part
	problems        []Problem
}

// same reports whether the same parts would be made.
func (s *surroundings) same(o *surroundings) bool {
	a, b := &s.node, &o.node
	return s.options == o.options && s.gateway == o.gateway && s.tunnel == o.tunnel &&
		a.Name == b.Name && a.VTEPMAC == b.VTEPMAC && slices.Equal(a.Underlay, b.Underlay) && slices.Equal(a.Tunnels, b.Tunnels) &&
		slices.EqualFunc(a.VPCs, b.VPCs, intent.VPC.Equal) && slices.EqualFunc(a.Subnets, b.Subnets, intent.Subnet.Equal) &&
		slices.EqualFunc(a.Peers, b.Peers, intent.Peer.Equal) && slices.EqualFunc(a.Routes, b.Routes, intent.Route.Equal) &&
		slices.EqualFunc(a.AddressSets, b.AddressSets, intent.AddressSet.Equal)
}

// surroundings adds what does not depend on ports and lists, or takes it from prev.
func (r *renderer) surroundings() {
	s := &r.next.about
	s.node, s.options, s.gateway, s.tunnel = r.node, r.options, r.gateway, r.tunnel
	s.node.AddressSets = nil
	for _, set := range r.node.AddressSets {
		if set.Name == intent.SetDirect {
			s.node.AddressSets = append(s.node.AddressSets, set)
		}
	}
	if old := &r.prev.about; old.parts != nil && old.same(s) {
		s.parts, s.problems = old.parts, old.problems
		r.next.Parts, r.next.Problems = append(r.next.Parts, s.parts...), append(r.next.Problems, s.problems...)
		return
	}
	r.fixed()
	r.wire()
	r.routes()
	s.parts, s.problems = slices.Clone(r.next.Parts), slices.Clone(r.next.Problems)
}

// writer collects flows.
type writer []of.Flow

func (w *writer) add(table uint8, priority int, comment string, match of.Match, actions ...of.Action) {
	*w = append(*w, of.Flow{
		Table: table, Priority: uint16(priority), Cookie: claims.OVSCookie, Match: match, Actions: actions, Comment: comment,
	})
}

// when makes a match.
func when(terms ...of.Term) of.Match { return of.NewMatch(terms...) }

func is(part of.Subfield, v uint64) of.Term { return of.SubEq(part, v) }

func load(part of.Subfield, v uint64) of.Action { return of.Load(part, v) }

func to(table uint8) of.Action { return of.GotoTable{Table: table} }

// family is what differs between IPv4 and IPv6 in a flow.
type family struct {
	is4            bool
	name           string
	ip             of.Term
	src, dst       of.Field
	ctSrc, ctDst   of.Field
	tunSrc, tunDst of.Field
	icmp           of.Term
	icmpType       of.Field
	// errors are the types of ICMP that speak of another packet.
	errors []uint64
	// never are destinations that no pod may send to.
	never []unwanted
}

type unwanted struct {
	prefix netip.Prefix
	why    string
}

// families are in order; IPv6 errors are those of RFC 4443 §2.1 that have a number.
var families = [...]family{
	{
		true, "IPv4", of.Eq(of.EthType, of.EthTypeIPv4), of.IPSrc, of.IPDst, of.CTNwSrc, of.CTNwDst, of.TunSrc, of.TunDst,
		of.Eq(of.IPProto, of.ProtoICMP), of.ICMPType,
		[]uint64{3, 4, 5, 11, 12},
		[]unwanted{
			{netip.MustParsePrefix("127.0.0.0/8"), "loopback address from a pod"},
			{netip.MustParsePrefix("224.0.0.0/3"), "broadcast or multicast from a pod"},
		},
	},
	{
		false, "IPv6", of.Eq(of.EthType, of.EthTypeIPv6), of.IPv6Src, of.IPv6Dst, of.CTIPv6Src, of.CTIPv6Dst, of.TunIPv6Src, of.TunIPv6Dst,
		of.Eq(of.IPProto, of.ProtoICMPv6), of.ICMPv6Type,
		[]uint64{1, 2, 3, 4},
		[]unwanted{
			{netip.MustParsePrefix("::1/128"), "loopback address from a pod"},
			{netip.MustParsePrefix("ff00::/8"), "broadcast or multicast from a pod"},
		},
	},
}

func familyOf(a netip.Addr) *family { return &families[familyIndex(a)] }

func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}
