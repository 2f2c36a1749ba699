package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// parsed is a policy, of either kind, with everything that can be said without the
// rest of the world. It is immutable.
type parsed struct {
	kind    world.Kind
	key     world.Key
	subject subject
	// affects says of each direction whether the policy is about it.
	affects map[intent.Direction]selector.Answer
	rules   map[intent.Direction][]rule
	// tier and priority are a ClusterNetworkPolicy's.
	tier     intent.Tier
	priority int32
	problems []world.Problem
	// named are the ingress rules' port names, to be found on the subject.
	named []portName
}

// portName is where a policy names a port.
type portName struct {
	field string
	named named
	query selector.Query
}

// part is a selector as written: one that cannot be read may have meant anything.
type part struct {
	matcher selector.Matcher
	broken  bool
}

func (p part) ask(labels map[string]string, known bool) selector.Answer {
	if p.broken {
		return selector.Maybe
	}
	return p.matcher.Ask(labels, known)
}

// subject is whom a policy is about. Without a namespace it is chosen by labels.
type subject struct {
	namespace        string
	namespaces, pods part
	broken           bool // It may be anybody.
}

func (s subject) ask(namespace string, ns *world.Namespace, labels map[string]string, known bool) selector.Answer {
	in := selector.Is(s.namespace == namespace)
	if s.namespace == "" {
		in = s.namespaces.ask(nil, false)
		if ns != nil {
			in = s.namespaces.ask(ns.Labels, true)
		}
	}
	if s.broken {
		in = selector.Maybe
	}
	return min(in, s.pods.ask(labels, known))
}

// query is the subject as a Query, if all of it can be read.
func (s subject) query() (selector.Query, bool) {
	return selector.Query{Namespace: s.namespace, Namespaces: s.namespaces.matcher, Pods: s.pods.matcher}, !s.broken && !s.namespaces.broken && !s.pods.broken
}

// rule is one rule of a policy.
type rule struct {
	origin intent.RuleOrigin
	action intent.Action
	// unreadable: it may be about every packet. Of a NetworkPolicy's rules only what
	// can be read is here.
	unreadable bool
	anyPeer    bool
	peers      []group
	anyPort    bool
	ports      []protocolPorts // sorted by protocol
	named      []named
	field      string
}

// group is what one peer of a rule stands for: pods, nodes, or addresses.
type group struct {
	kind  groupKind
	set   string // the name of its AddressSet, without what else makes it narrower
	key   string // of the pods or nodes
	query selector.Query
	nodes selector.Matcher
	// prefixes of addresses.
	prefixes []netip.Prefix
}

type groupKind uint8

const (
	pods groupKind = iota
	nodes
	addresses
)

// protocolPorts are port numbers of one protocol; none is all of them.
type protocolPorts struct {
	protocol packet.Protocol
	ranges   []intent.PortRange
}

// named is a port by name. Protocol zero is whatever the pod declares.
type named struct {
	name     string
	protocol packet.Protocol
}

// transports are the protocols with ports.
func transports() []packet.Protocol {
	return []packet.Protocol{packet.TCP, packet.UDP, packet.SCTP}
}

func setName(kind, key string) string {
	const hashed = 10 // bytes
	sum := sha256.Sum256([]byte(key))
	return kind + "-" + hex.EncodeToString(sum[:hashed])
}

// String begins the names of the group's AddressSets.
func (k groupKind) String() string { return [...]string{"pods", "nodes", "range"}[k] }

func podGroup(q selector.Query) group {
	key := q.Key()
	return group{kind: pods, key: key, set: setName(pods.String(), key), query: q}
}

func nodeGroup(m selector.Matcher) group {
	key := m.Key()
	return group{kind: nodes, key: key, set: setName(nodes.String(), key), nodes: m}
}

func addressGroup(prefixes []netip.Prefix) group {
	var b strings.Builder
	for _, p := range prefixes {
		b.WriteString(p.String() + " ")
	}
	return group{kind: addresses, set: setName(addresses.String(), b.String()), prefixes: prefixes}
}

// reader collects what is wrong with a policy.
type reader struct {
	kind     world.Kind
	key      world.Key
	problems []world.Problem
}

func (r *reader) problem(field, reason, format string, args ...any) {
	r.problems = append(r.problems, world.Problem{Kind: r.kind, Key: r.key, Field: field, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// selector reads a selector, or notes what an unreadable one means there.
func (r *reader) selector(s *world.Selector, field, means string) part {
	m, err := selector.Parse(s)
	if err != nil {
		r.problem(field, "InvalidSelector", "%s: %s", strings.ReplaceAll(err.Error(), "\n", "; "), means)
	}
	return part{matcher: m, broken: err != nil}
}

// readCIDR reads a CIDR; bits beyond the prefix mean nothing.
func readCIDR(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}

// readRange reads numbers of ports, both ends included.
func readRange(first, last int32) (intent.PortRange, bool) {
	if first < 1 || last > 65535 || first > last {
		return intent.PortRange{}, false
	}
	return intent.PortRange{First: uint16(first), Last: uint16(last)}, true
}

// mergePorts makes one sorted entry of each protocol.
func mergePorts(ports []protocolPorts) []protocolPorts {
	var out []protocolPorts
	for _, t := range transports() {
		var ranges []intent.PortRange
		found, everything := false, false
		for _, p := range ports {
			if p.protocol == t {
				found = true
				everything = everything || len(p.ranges) == 0
				ranges = append(ranges, p.ranges...)
			}
		}
		switch {
		case everything:
			out = append(out, protocolPorts{protocol: t})
		case found:
			out = append(out, protocolPorts{protocol: t, ranges: mergeRanges(ranges)})
		}
	}
	return out
}

func mergeRanges(ranges []intent.PortRange) []intent.PortRange {
	slices.SortFunc(ranges, func(a, b intent.PortRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	var out []intent.PortRange
	for _, r := range ranges {
		if n := len(out); n > 0 && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

func at(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

// readTransport reads a protocol by the API's own words.
func readTransport(s string) (packet.Protocol, bool) {
	for _, t := range transports() {
		if s == t.String() {
			return t, true
		}
	}
	return 0, false
}
