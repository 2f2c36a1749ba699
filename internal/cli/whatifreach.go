package cli

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// comparison judges two worlds against each other.
//
// The two answers differ for few pairs, and most pods are alike: policies cannot tell
// pods of one namespace apart that have the same labels, ports, and place in every CIDR
// that a policy names. So policies are asked once for every pair of such classes, and
// the rest of the oracle, which knows nodes and paths, only where it can matter.
type comparison struct {
	worlds [2]*world.Snapshot // before, after
	models [2]*oracle.Model
	// bare are the models without policies; one if only policies change.
	bare [2]*oracle.Model
	// everyone: something else changes than policies, pods and namespaces, so no pair
	// can be left out.
	everyone bool
	affected map[world.Key]bool

	hosts []host
	// memo holds what policies say of two classes and a port.
	memo    map[classPair]pairVerdict
	by      []decider
	byIndex map[decider]int
	// budget is how many judgements may still be made.
	budget int
}

// host is one end of pairs.
type host struct {
	name string
	// ends by family: IPv4, IPv6. Those it lacks are not valid.
	ends [2]oracle.End
	// class by family; zero for nodes and addresses outside, which have none.
	class    [2]int
	pod      bool
	affected bool
	ports    []reachPort
}

// reachPort is a port that is judged.
type reachPort struct {
	Protocol packet.Protocol
	Port     uint16
	// Other stands for every port that no policy names.
	Other bool
}

// String is "80/TCP".
func (p reachPort) String() string {
	if p.Other {
		return "other/" + p.Protocol.String()
	}
	return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
}

type classPair struct {
	from, to int
	port     reachPort
}

// pairVerdict is before and after: allowed, and who decided (an index of by).
type pairVerdict struct {
	allowed [2]bool
	by      int
}

// decider is what made a difference.
type decider struct {
	direction string
	policy    whyPolicy
	has       bool
	why       string
	// gone: an end is deleted, so nobody denies it.
	gone bool
}

// maxJudgements bounds a comparison: half a minute, or less.
const maxJudgements = 1_000_000

func newComparison(before, after *world.Snapshot) *comparison {
	c := &comparison{worlds: [2]*world.Snapshot{before, after}, memo: map[classPair]pairVerdict{}, byIndex: map[decider]int{}, affected: map[world.Key]bool{}, budget: maxJudgements}
	for i, w := range c.worlds {
		c.models[i] = oracle.Read(w)
		bare := *w
		bare.NetworkPolicies, bare.ClusterNetworkPolicies = world.Table[*world.NetworkPolicy]{}, world.Table[*world.ClusterNetworkPolicy]{}
		c.bare[i] = oracle.Read(&bare)
	}
	if c.onlyPolicies() {
		c.bare[1] = c.bare[0]
	}
	c.findAffected()
	c.findHosts()
	return c
}

func (c *comparison) onlyPolicies() bool {
	b, a := c.worlds[0], c.worlds[1]
	return !c.topology() && b.Pods == a.Pods && b.Namespaces == a.Namespaces
}

// topology reports whether something changes that every pair may depend on.
func (c *comparison) topology() bool {
	b, a := c.worlds[0], c.worlds[1]
	return b.Nodes != a.Nodes || b.VPCs != a.VPCs || b.Subnets != a.Subnets || b.Blocks != a.Blocks ||
		b.NodeNetworks != a.NodeNetworks || b.NetNamespaces != a.NetNamespaces
}

// separates reports whether labels of namespaces say more than policies read: which VPC
// they are in, and so which VNIs are whose.
func separates(w *world.Snapshot) bool {
	if w.VPCs.Len() > 1 {
		return true
	}
	for v := range w.VPCs.Values() {
		if v.Tenant || v.Namespaces != nil {
			return true
		}
	}
	return false
}

// findAffected finds the pods of which at least one end of every pair that can change is.
func (c *comparison) findAffected() {
	b, a := c.worlds[0], c.worlds[1]
	c.everyone = c.topology() || b.Namespaces != a.Namespaces && separates(b)
	note := func(kind world.Kind, key world.Key) {
		for _, m := range c.models {
			for _, pod := range m.Selected(kind, key) {
				c.affected[pod] = true
			}
		}
	}
	for d := range world.Diff(b.NetworkPolicies, a.NetworkPolicies) {
		note(world.KindNetworkPolicy, d.Key)
	}
	for d := range world.Diff(b.ClusterNetworkPolicies, a.ClusterNetworkPolicies) {
		note(world.KindClusterNetworkPolicy, d.Key)
	}
	for d := range world.Diff(b.Pods, a.Pods) {
		c.affected[d.Key] = true
	}
	for d := range world.Diff(b.Namespaces, a.Namespaces) {
		for _, w := range c.worlds {
			for k := range w.Pods.All() {
				if k.Namespace == d.Key.Name {
					c.affected[k] = true
				}
			}
		}
	}
}

// run judges all pairs.
func (c *comparison) run(ctx context.Context, r *whatifReport) error {
	groups := newGrouping(c)
	for t := range c.hosts {
		to := &c.hosts[t]
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.budget <= 0 {
			r.Limited = fmt.Sprintf("the pairs of %d of %d receivers were judged, the others were not: the cluster is too large to judge them all", t, len(c.hosts))
			break
		}
		for _, port := range to.ports {
			for f := range c.hosts {
				from := &c.hosts[f]
				if f == t || !from.pod && !to.pod || !c.everyone && !from.affected && !to.affected {
					continue
				}
				c.pair(r, groups, f, t, port)
			}
		}
		groups.endOf(t)
	}
	r.Reach = groups.list()
	return nil
}

// pair judges a pair in both families.
func (c *comparison) pair(r *whatifReport, g *grouping, f, t int, port reachPort) {
	from, to := &c.hosts[f], &c.hosts[t]
	for family := range from.ends {
		src, dst := from.ends[family], to.ends[family]
		if !src.Addr.IsValid() || !dst.Addr.IsValid() {
			continue
		}
		r.Pairs++
		v := c.verdict(from, to, family, port)
		if v.allowed[0] != v.allowed[1] {
			r.Changed++
			g.add(f, t, port, family, v)
		}
	}
}

func (c *comparison) verdict(from, to *host, family int, port reachPort) pairVerdict {
	probe := probeOf(from.ends[family], to.ends[family], port)
	if v, gone := c.judgeGone(probe, to.ends[family].Place); gone {
		return v
	}
	if !from.pod || !to.pod {
		return c.judgeWhole(probe)
	}
	key := classPair{from.class[family], to.class[family], port}
	v, known := c.memo[key]
	if !known {
		v = c.judgePolicies(probe)
		c.memo[key] = v
	}
	sameBare := c.bare[0] == c.bare[1]
	if v.allowed[0] == v.allowed[1] && (sameBare || !v.allowed[0]) {
		return pairVerdict{}
	}
	var reaches [2]bool
	for i := range c.bare {
		if i == 1 && sameBare {
			reaches[1] = reaches[0]
			continue
		}
		c.budget--
		reaches[i] = c.bare[i].Judge(nil, probe).Allowed
	}
	before, after := v.allowed[0] && reaches[0], v.allowed[1] && reaches[1]
	if before != after && v.allowed[0] == v.allowed[1] {
		return c.judgeWhole(probe) // Not by a policy: have the oracle say why.
	}
	v.allowed = [2]bool{before, after}
	return v
}

// judgeGone judges a pair of which a pod is deleted: it talks no more, whatever the
// blocks say, which hold a pod's address until its node gives it back.
func (c *comparison) judgeGone(probe oracle.Probe, to oracle.Place) (v pairVerdict, gone bool) {
	var why string
	switch {
	case c.deleted(to):
		why = "the pod that receives is deleted"
	case c.deleted(probe.From):
		why = "the pod that sends is deleted"
	default:
		return pairVerdict{}, false
	}
	c.budget--
	if v.allowed[0] = c.models[0].Judge(nil, probe).Allowed; v.allowed[0] {
		v.by = c.noteDecider(decider{why: why, gone: true})
	}
	return v, true
}

// deleted reports whether a place is a pod that was there before.
func (c *comparison) deleted(p oracle.Place) bool {
	if p.Kind != oracle.Pod {
		return false
	}
	_, before := c.worlds[0].Pods.Get(p.Pod)
	_, after := c.worlds[1].Pods.Get(p.Pod)
	return before && !after
}

func probeOf(src, dst oracle.End, port reachPort) oracle.Probe {
	p := packet.Packet{
		Src: src.Addr, Dst: dst.Addr, Protocol: port.Protocol, SrcPort: firstEphemeral, DstPort: port.Port, SYN: port.Protocol == packet.TCP,
	}
	if port.Protocol == packet.ICMP || port.Protocol == packet.ICMPv6 {
		p.SrcPort = 0
	}
	from := src.Place
	if from.Kind == oracle.Outside {
		from.Node = dst.Place.Node
	}
	return oracle.Probe{From: from, Packet: p}
}

// judgePolicies asks only the policies, which see no difference within classes.
func (c *comparison) judgePolicies(p oracle.Probe) pairVerdict {
	var v pairVerdict
	var answers [2]oracle.PolicyAnswer
	for i, m := range c.models {
		c.budget--
		answers[i] = m.Policies(p)
		v.allowed[i] = answers[i].Allowed()
	}
	if v.allowed[0] != v.allowed[1] {
		i := 0
		if v.allowed[0] {
			i = 1
		}
		v.by = c.decider(append(slices.Clone(answers[i].Egress), answers[i].Ingress...))
	}
	return v
}

// judgeWhole asks the oracle about everything.
func (c *comparison) judgeWhole(p oracle.Probe) pairVerdict {
	var v pairVerdict
	var verdicts [2]oracle.Verdict
	for i, m := range c.models {
		c.budget--
		verdicts[i] = m.Judge(nil, p)
		v.allowed[i] = verdicts[i].Allowed
	}
	switch {
	case v.allowed[0] && !v.allowed[1]:
		v.by = c.decider(verdicts[1].Stages)
	case v.allowed[1] && !v.allowed[0]:
		v.by = c.decider(verdicts[0].Stages)
	}
	return v
}

// decider notes the stage that stopped a packet.
func (c *comparison) decider(stages []oracle.Stage) int {
	i := slices.IndexFunc(stages, func(s oracle.Stage) bool { return !s.Pass })
	if i < 0 {
		return c.noteDecider(decider{why: "it is not delivered for sure"})
	}
	s := stages[i]
	d := decider{direction: s.Name, why: s.Why}
	if m := s.Match; m != nil {
		d.has = true
		d.policy = whyPolicy{Kind: string(m.Kind), Name: m.Policy.String(), Tier: m.Tier, Rule: m.Rule, RuleName: m.Name, Action: m.Action}
	}
	return c.noteDecider(d)
}

func (c *comparison) noteDecider(d decider) int {
	i, known := c.byIndex[d]
	if !known {
		i = len(c.by)
		c.by, c.byIndex[d] = append(c.by, d), i
	}
	return i
}

// findHosts lists the ends that pairs are made of: all pods that have an address, and a
// few nodes and addresses outside.
func (c *comparison) findHosts() {
	cidrs := c.cidrs()
	other := c.otherPort()
	classes := map[string]int{}
	byPod := map[world.Key]*host{}
	for _, both := range c.ends() {
		e := both[0]
		if !e.Addr.IsValid() {
			e = both[1] // A change of Subnets brings it.
		}
		if e.Place.Kind != oracle.Pod {
			continue
		}
		pods, ok := c.podsAt(e.Place.Pod)
		if !ok {
			continue
		}
		h := byPod[e.Place.Pod]
		if h == nil {
			h = &host{name: e.Place.Pod.String(), pod: true, affected: c.affected[e.Place.Pod], ports: podPorts(pods, other)}
			byPod[e.Place.Pod] = h
		}
		// Policies may be about a pod whose labels nobody knows.
		h.affected = h.affected || both[0].Addr.IsValid() && !both[0].Known || both[1].Addr.IsValid() && !both[1].Known
		family := familyIndex(e.Addr)
		if h.ends[family].Addr.IsValid() {
			continue // One address of a family is judged.
		}
		h.ends[family] = e
		key := classKey(both, e, pods, cidrs)
		if classes[key] == 0 {
			classes[key] = len(classes) + 1
		}
		h.class[family] = classes[key]
	}
	for _, k := range slices.SortedFunc(maps.Keys(byPod), world.Key.Compare) {
		c.hosts = append(c.hosts, *byPod[k])
	}
	ports := c.outsidePorts(other)
	c.hosts = append(c.hosts, c.nodeHosts(cidrs, ports)...)
	c.hosts = append(c.hosts, c.outsideHosts(cidrs, ports)...)
}

// ends are the addresses of both worlds, each as it is before and after, in order.
func (c *comparison) ends() [][2]oracle.End {
	var out [][2]oracle.End
	at := map[netip.Addr]int{}
	for i, m := range c.models {
		for _, e := range m.Ends() {
			k, seen := at[e.Addr]
			if !seen {
				k = len(out)
				at[e.Addr] = k
				out = append(out, [2]oracle.End{})
			}
			out[k][i] = e
		}
	}
	slices.SortFunc(out, func(a, b [2]oracle.End) int {
		return firstAddr(a).Compare(firstAddr(b))
	})
	return out
}

func firstAddr(e [2]oracle.End) netip.Addr {
	if e[0].Addr.IsValid() {
		return e[0].Addr
	}
	return e[1].Addr
}

func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// podsAt is a pod before and after; one that exists in neither, or has finished, is no
// end of anything.
func (c *comparison) podsAt(key world.Key) (pods [2]*world.Pod, ok bool) {
	for i, w := range c.worlds {
		pods[i], _ = w.Pods.Get(key)
		ok = ok || pods[i] != nil && !pods[i].Finished && !pods[i].HostNetwork
	}
	return pods, ok
}

// podPorts are the container ports; a pod that declares none is judged on a port that no
// policy names.
func podPorts(pods [2]*world.Pod, other uint16) []reachPort {
	var out []reachPort
	for _, p := range pods {
		if p == nil {
			continue
		}
		for _, port := range p.Ports {
			if x := (reachPort{Protocol: port.Protocol, Port: port.Port}); !slices.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	if len(out) == 0 {
		out = append(out, reachPort{Protocol: packet.TCP, Port: other, Other: true})
	}
	return out
}

// classKey is the same for addresses of pods that no policy of either world tells apart.
func classKey(both [2]oracle.End, e oracle.End, pods [2]*world.Pod, cidrs []netip.Prefix) string {
	text := fmt.Sprintf("%q", e.Place.Pod.Namespace)
	for i, p := range pods {
		text += fmt.Sprintf(" %t %t", both[i].Addr.IsValid(), both[i].Known)
		if p == nil {
			text += " none"
			continue
		}
		text += fmt.Sprintf(" %t", p.HostNetwork)
		for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
			text += fmt.Sprintf(" %q=%q", k, p.Labels[k])
		}
		for _, port := range p.Ports {
			text += fmt.Sprintf(" %q %d %d", port.Name, port.Protocol, port.Port)
		}
	}
	return text + membership(e.Addr, cidrs)
}

// membership says which of the CIDRs hold an address.
func membership(a netip.Addr, cidrs []netip.Prefix) string {
	bits := make([]byte, len(cidrs))
	for i, p := range cidrs {
		bits[i] = '.'
		if p.Contains(a) {
			bits[i] = '1'
		}
	}
	return string(bits)
}
