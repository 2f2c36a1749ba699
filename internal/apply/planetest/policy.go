package planetest

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Every policy is about two pods, the peer and the stranger, who have no list
// themselves. Rules name them by these sets.
const (
	setPeer     = "peer"
	setPeer6    = "peer6" // its IPv6 address only
	setStranger = "stranger"
	setNobody   = "nobody"
	setMissing  = "missing" // is in no intent
)

const (
	accept = intent.Accept
	deny   = intent.Deny
	pass   = intent.Pass

	admin    = intent.TierAdmin
	policy   = intent.TierNetworkPolicy
	baseline = intent.TierBaseline
)

// rule is about peers in any of the sets, or about everybody.
func rule(tier intent.Tier, action intent.Action, sets ...string) intent.Rule {
	slices.Sort(sets)
	return intent.Rule{
		Tier: tier, Action: action, Match: intent.Match{Sets: sets},
		Origin: intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "test", Name: "policy", Index: -1},
	}
}

// on restricts a rule to a protocol, and to ports if there are any.
func on(r intent.Rule, p packet.Protocol, ports ...intent.PortRange) intent.Rule {
	r.Match.Protocol, r.Match.Ports = p, ports
	return r
}

// probedPort is the one that Probe sends to.
const probedPort = 8080

func ports(first, last uint16) intent.PortRange { return intent.PortRange{First: first, Last: last} }

// verdicts are lists, each with the words that a flow must match to be allowed: one of
// the alternatives, all of its words. The words are peer, stranger, TCP, UDP, 4 and 6.
var verdicts = []struct {
	name    string
	rules   []intent.Rule
	allowed []string
}{
	{"deny all", []intent.Rule{rule(policy, deny)}, nil},
	{"allow a set", []intent.Rule{rule(policy, accept, setPeer), rule(policy, deny)}, []string{"peer"}},
	{"allow one of two sets", []intent.Rule{rule(policy, accept, setPeer6, setStranger), rule(policy, deny)}, []string{"peer 6", "stranger"}},
	{"allow a set of no addresses", []intent.Rule{rule(policy, accept, setNobody), rule(policy, deny)}, nil},
	{
		"allow a set and a port",
		[]intent.Rule{on(rule(policy, accept, setPeer), packet.TCP, ports(80, 80), ports(probedPort, probedPort)), rule(policy, deny)},
		[]string{"peer TCP"},
	},
	{"allow a range of ports", []intent.Rule{on(rule(policy, accept), packet.UDP, ports(8000, 8100)), rule(policy, deny)}, []string{"UDP"}},
	{"allow up to a port", []intent.Rule{on(rule(policy, accept), packet.TCP, ports(1, probedPort)), rule(policy, deny)}, []string{"TCP"}},
	{
		"allow other ports", []intent.Rule{
			on(rule(policy, accept), packet.TCP, ports(1, probedPort-1), ports(probedPort+1, 65535)),
			on(rule(policy, accept), packet.UDP, ports(probedPort+1, 65535)), rule(policy, deny),
		}, nil,
	},
	{"allow a protocol", []intent.Rule{on(rule(policy, accept), packet.TCP), on(rule(policy, accept), packet.SCTP), rule(policy, deny)}, []string{"TCP"}},
	{"the first match decides", []intent.Rule{rule(admin, deny, setPeer), rule(admin, accept), rule(policy, deny)}, []string{"stranger"}},
	{
		"deny between accepts",
		[]intent.Rule{on(rule(policy, accept, setPeer), packet.UDP), rule(policy, deny, setPeer), rule(policy, accept)},
		[]string{"peer UDP", "stranger"},
	},
	{"what no rule matches is allowed", []intent.Rule{rule(admin, deny, setPeer)}, []string{"stranger"}},
	{"an accept ends all tiers", []intent.Rule{rule(admin, accept, setPeer), rule(policy, deny), rule(baseline, deny)}, []string{"peer"}},
	{
		"pass falls to the next tier",
		[]intent.Rule{rule(admin, pass, setPeer), rule(admin, deny), on(rule(policy, accept), packet.UDP), rule(policy, deny)},
		[]string{"peer UDP"},
	},
	{"pass falls over a tier without rules", []intent.Rule{rule(admin, pass), rule(admin, deny), rule(baseline, deny, setPeer)}, []string{"stranger"}},
	{"pass out of the last tier", []intent.Rule{rule(baseline, pass, setPeer), rule(baseline, deny)}, []string{"peer"}},
	{"pass of a family", []intent.Rule{rule(admin, pass, setPeer6), rule(admin, deny, setPeer), rule(policy, deny, setStranger)}, []string{"peer 6"}},
}

// flow is one probe, and what is wanted of it.
type flow struct {
	name     string
	from, to intent.Port
	family   int // of addresses, as an index
	protocol packet.Protocol
	allowed  bool
}

// flows are all between a port and one of the two pods whom its rules name, both ways.
func flows(name string, p, other intent.Port, who string, allowed func(words string) bool) []flow {
	var list []flow
	for family, digit := range []string{"4", "6"} {
		for _, protocol := range []packet.Protocol{packet.TCP, packet.UDP} {
			f := flow{family: family, protocol: protocol, allowed: allowed(who + " " + protocol.String() + " " + digit)}
			f.name, f.from, f.to = name+", ingress from the "+who, other, p
			list = append(list, f)
			f.name, f.from, f.to = name+", egress to the "+who, p, other
			list = append(list, f)
		}
	}
	return list
}

func always(string) bool { return true }
func never(string) bool  { return false }

// anyOf the alternatives allows what has all its words.
func anyOf(alternatives []string) func(string) bool {
	return func(words string) bool {
		has := strings.Fields(words)
		return slices.ContainsFunc(alternatives, func(a string) bool {
			return !slices.ContainsFunc(strings.Fields(a), func(w string) bool { return !slices.Contains(has, w) })
		})
	}
}

// probeAll probes many flows at once: one that is refused takes as long as the harness
// waits for answers.
func (s *suite) probeAll(list []flow) {
	s.Helper()
	if s.Probe == nil {
		return
	}
	atOnce := make(chan struct{}, 160)
	var running sync.WaitGroup
	for _, f := range list {
		running.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			if got := s.Probe(s.T, f.from, f.to, f.to.Addresses[f.family], f.protocol); got != f.allowed {
				s.Errorf("%s: %s to %s over %s: answered %v, want %v", f.name, f.from.Pod, f.to.Addresses[f.family], f.protocol, got, f.allowed)
			}
		})
	}
	running.Wait()
}

// restricted is a node with sets for its first two ports, the peer and the stranger,
// and as many more ports as wanted.
func (s *suite) restricted(more int) (n intent.Node, peer, stranger intent.Port) {
	s.Helper()
	n = s.node(2 + more)
	peer, stranger = n.Ports[0], n.Ports[1]
	set := func(name string, addrs ...netip.Addr) {
		a := intent.AddressSet{VPC: peer.VPC, Name: name}
		for _, addr := range addrs {
			a.Prefixes = append(a.Prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		}
		n.AddressSets = append(n.AddressSets, a)
	}
	n.AddressSets = slices.Clone(n.AddressSets)
	set(setPeer, peer.Addresses...)
	set(setPeer6, peer.Addresses[1])
	set(setStranger, stranger.Addresses...)
	set(setNobody)
	slices.SortFunc(n.AddressSets, intent.AddressSet.Compare)
	return n, peer, stranger
}

// restrict returns the intent with lists of the rules for some of its ports, in both
// directions, in place of those that they had.
func restrict(n intent.Node, rules []intent.Rule, ids ...string) intent.Node {
	n.Ports = slices.Clone(n.Ports)
	lists := map[string]intent.RuleList{}
	for _, l := range n.RuleLists {
		lists[l.ID] = l
	}
	used := map[string]bool{}
	for i := range n.Ports {
		p := &n.Ports[i]
		if slices.Contains(ids, p.ID) {
			p.Ingress, p.Egress = "", ""
			if len(rules) > 0 {
				in, out := intent.NewRuleList(p.VPC, intent.Ingress, rules), intent.NewRuleList(p.VPC, intent.Egress, rules)
				p.Ingress, p.Egress = in.ID, out.ID
				lists[in.ID], lists[out.ID] = in, out
			}
		}
		used[p.Ingress], used[p.Egress] = true, true
	}
	n.RuleLists = nil
	for id, l := range lists {
		if used[id] {
			n.RuleLists = append(n.RuleLists, l)
		}
	}
	slices.SortFunc(n.RuleLists, intent.RuleList.Compare)
	return n
}

// valid is the intent, which the suite made.
func (s *suite) valid(n intent.Node) intent.Node {
	s.Helper()
	if faults := intent.Validate(n); len(faults) > 0 {
		s.Fatalf("the suite's own intent is invalid: %v", faults)
	}
	return n
}

// judges gives each port a list of its own, and the last one none.
func (s *suite) judges() {
	n, peer, stranger := s.restricted(len(verdicts) + 1)
	s.made(n, apply.Options{})
	var list []flow
	for i, v := range verdicts {
		p := n.Ports[i+2]
		n = restrict(n, v.rules, p.ID)
		for who, other := range map[string]intent.Port{"peer": peer, "stranger": stranger} {
			list = append(list, flows(v.name, p, other, who, anyOf(v.allowed))...)
		}
		list = append(list, flow{name: v.name + ", to itself", from: p, to: p, family: i % 2, protocol: packet.TCP, allowed: true})
	}
	free := n.Ports[len(n.Ports)-1]
	list = append(list, flows("no list", free, peer, "peer", always)...)
	list = append(list, flows("no list", stranger, peer, "peer", always)...)
	s.made(s.valid(n), apply.Options{})
	s.probeAll(list)
	for _, o := range []apply.Options{{}, {AddOnly: true}, {Refresh: true}} {
		if r := s.made(n, o); len(r.Changes) > 0 {
			s.Errorf("the same lists again changed: %v", r.Changes)
		}
	}
}

// policyChanges follows lists that are given, shared, changed and taken away, and sets
// that change.
func (s *suite) policyChanges() {
	n, peer, stranger := s.restricted(2)
	a, b := n.Ports[2], n.Ports[3]
	wants := func(name string, n intent.Node, ofA, ofB func(string) bool) {
		s.Helper()
		s.made(s.valid(n), apply.Options{})
		var list []flow
		for who, other := range map[string]intent.Port{"peer": peer, "stranger": stranger} {
			list = append(list, flows(name, a, other, who, ofA)...)
			list = append(list, flows(name, b, other, who, ofB)...)
		}
		s.probeAll(list)
	}
	wants("no list yet", n, always, always)
	peers := []intent.Rule{rule(policy, accept, setPeer), rule(policy, deny)}
	toPeer := anyOf([]string{"peer"})
	shared := restrict(n, peers, a.ID, b.ID)
	wants("a list that two share", shared, toPeer, toPeer)
	wants("one has it no more", restrict(shared, nil, a.ID), always, toPeer)
	wants("the other has another", restrict(shared, []intent.Rule{rule(policy, deny)}, b.ID), toPeer, never)

	moved := shared
	moved.AddressSets = slices.Clone(shared.AddressSets)
	i := slices.IndexFunc(moved.AddressSets, func(a intent.AddressSet) bool { return a.Name == setPeer })
	j := slices.IndexFunc(moved.AddressSets, func(a intent.AddressSet) bool { return a.Name == setStranger })
	moved.AddressSets[i].Prefixes, moved.AddressSets[j].Prefixes = shared.AddressSets[j].Prefixes, shared.AddressSets[i].Prefixes
	toStranger := anyOf([]string{"stranger"})
	wants("another is in the set", moved, toStranger, toStranger)
	moved.AddressSets[i].Prefixes = nil
	wants("nobody is in the set", moved, never, never)
	wants("no list any more", n, always, always)
}

// missingSet: a set that is not in the intent holds nobody.
func (s *suite) missingSet() {
	n, peer, _ := s.restricted(2)
	a, b := n.Ports[2], n.Ports[3]
	n = restrict(n, []intent.Rule{rule(policy, accept, setMissing), rule(policy, deny)}, a.ID)
	n = restrict(n, []intent.Rule{rule(policy, deny, setMissing), rule(policy, accept, setPeer), rule(policy, deny)}, b.ID)
	s.apply(n, apply.Options{})
	s.probeAll(flows("accept from a set that is missing", a, peer, "peer", never))
	s.probeAll(flows("deny from a set that is missing", b, peer, "peer", always))
}

// flowsFollow opens conversations and changes policy: those that could not begin any
// more are cut in both directions, no others, and a change back lets them go on.
func (s *suite) flowsFollow() {
	if s.Open == nil {
		s.Skip("this harness cannot open conversations")
	}
	n, peer, stranger := s.restricted(1)
	server := n.Ports[2]
	s.made(n, apply.Options{})
	type conversation struct {
		name string
		send func(back bool) bool
		cut  bool
	}
	var list []conversation
	for _, protocol := range []packet.Protocol{packet.TCP, packet.UDP} {
		for family := range 2 {
			to := func(client intent.Port) func(bool) bool {
				return s.Open(s.T, client, server, server.Addresses[family], protocol)
			}
			list = append(list,
				conversation{"peer to server over " + protocol.String(), to(peer), false},
				conversation{"stranger to server over " + protocol.String(), to(stranger), true},
				conversation{"stranger to peer over " + protocol.String(), s.Open(s.T, stranger, peer, peer.Addresses[family], protocol), false},
			)
		}
	}
	wants := func(when string, alive func(conversation) bool) {
		s.Helper()
		for _, c := range list {
			for _, back := range []bool{false, true} {
				if got := c.send(back); got != alive(c) {
					s.Errorf("%s, %s, back %v: arrived %v, want %v", when, c.name, back, got, alive(c))
				}
			}
		}
	}
	wants("before", func(conversation) bool { return true })
	s.made(s.valid(restrict(n, []intent.Rule{rule(policy, accept, setPeer), rule(policy, deny)}, server.ID)), apply.Options{})
	wants("restricted", func(c conversation) bool { return !c.cut })
	s.made(n, apply.Options{})
	wants("after", func(conversation) bool { return true })
}
