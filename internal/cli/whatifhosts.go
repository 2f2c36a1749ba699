package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// How many nodes, addresses outside and ports stand for all.
const (
	maxNodeHosts    = 4
	maxOutsideHosts = 16
	maxOutsidePorts = 8
)

// cidrs are all that policies of either world name, sorted, each once, and addresses of
// nodes that a pod bears too.
func (c *comparison) cidrs() []netip.Prefix {
	var out []netip.Prefix
	add := func(texts ...string) {
		for _, text := range texts {
			if p, err := netip.ParsePrefix(text); err == nil && !p.Addr().Is4In6() {
				out = append(out, p.Masked())
			}
		}
	}
	for _, w := range c.worlds {
		for p := range w.NetworkPolicies.Values() {
			for _, r := range slices.Concat(p.Ingress, p.Egress) {
				for _, peer := range r.Peers {
					if peer.Range != nil {
						add(peer.Range.CIDR)
						add(peer.Range.Except...)
					}
				}
			}
		}
		for p := range w.ClusterNetworkPolicies.Values() {
			for _, r := range slices.Concat(p.Ingress, p.Egress) {
				for _, peer := range r.Peers {
					add(peer.Networks...)
				}
			}
		}
	}
	out = append(out, c.sharedAddresses()...)
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// sharedAddresses are those of Node objects that pods have too.
func (c *comparison) sharedAddresses() []netip.Prefix {
	nodes := map[netip.Addr]bool{}
	for _, w := range c.worlds {
		for n := range w.Nodes.Values() {
			for _, a := range slices.Concat(n.Addresses, n.ExternalAddresses) {
				nodes[a] = true
			}
		}
	}
	var out []netip.Prefix
	for _, both := range c.ends() {
		if a := firstAddr(both); nodes[a] && (both[0].Place.Kind == oracle.Pod || both[1].Place.Kind == oracle.Pod) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// namedPorts are the ranges of ports that policies of either world name.
func (c *comparison) namedPorts() [][2]int32 {
	var out [][2]int32
	for _, w := range c.worlds {
		for p := range w.NetworkPolicies.Values() {
			for _, r := range slices.Concat(p.Ingress, p.Egress) {
				for _, port := range r.Ports {
					if first, last, ok := policyRange(port); ok {
						out = append(out, [2]int32{first, last})
					}
				}
			}
		}
		for p := range w.ClusterNetworkPolicies.Values() {
			for _, r := range slices.Concat(p.Ingress, p.Egress) {
				for _, proto := range r.Protocols {
					for _, x := range clusterRanges(proto) {
						out = append(out, x.numbers)
					}
				}
			}
		}
	}
	return out
}

// policyRange is the range of numbers that a NetworkPolicy's port names.
func policyRange(p world.PolicyPort) (first, last int32, ok bool) {
	if p.Port == nil || p.Port.By != world.ByNumber {
		return 0, 0, false
	}
	first, last = p.Port.Number, p.Port.Number
	if p.EndPort != nil {
		last = *p.EndPort
	}
	return first, last, first >= 1 && first <= last && last <= 65535
}

// numbersOf are the ports of one protocol that a ClusterNetworkPolicy names.
type numbersOf struct {
	protocol packet.Protocol
	numbers  [2]int32
}

func clusterRanges(p world.ClusterProtocol) []numbersOf {
	var out []numbersOf
	add := func(protocol packet.Protocol, ports *world.ClusterPorts) {
		if ports == nil || ports.Destination == nil {
			return
		}
		n := [2]int32{ports.Destination.Number, ports.Destination.Number}
		if r := ports.Destination.Range; r != nil {
			n = [2]int32{r.Start, r.End}
		}
		if n[0] >= 1 && n[0] <= n[1] && n[1] <= 65535 {
			out = append(out, numbersOf{protocol, n})
		}
	}
	add(packet.TCP, p.TCP)
	add(packet.UDP, p.UDP)
	add(packet.SCTP, p.SCTP)
	return out
}

// otherPort is a port that no policy names and no pod declares, or, if all are named,
// one that is in ranges only.
func (c *comparison) otherPort() uint16 {
	const from = 20000
	named := c.namedPorts()
	declared := map[uint16]bool{}
	for _, w := range c.worlds {
		for p := range w.Pods.Values() {
			for _, port := range p.Ports {
				declared[port.Port] = true
			}
		}
	}
	for port := int32(from); port <= 65535; port++ {
		if !declared[uint16(port)] && !slices.ContainsFunc(named, func(r [2]int32) bool { return r[0] <= port && port <= r[1] }) {
			return uint16(port)
		}
	}
	return from
}

// outsidePorts are the ports that are judged of nodes and addresses outside: those that
// the egress rules of policies that change name, and another.
func (c *comparison) outsidePorts(other uint16) []reachPort {
	out := []reachPort{{Protocol: packet.TCP, Port: other, Other: true}}
	add := func(protocol packet.Protocol, n int32) {
		if x := (reachPort{Protocol: protocol, Port: uint16(n)}); len(out) < maxOutsidePorts && !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	for d := range world.Diff(c.worlds[0].NetworkPolicies, c.worlds[1].NetworkPolicies) {
		for _, p := range []*world.NetworkPolicy{d.Old, d.New} {
			if p == nil {
				continue
			}
			for _, r := range p.Egress {
				for _, port := range r.Ports {
					protocol := packet.TCP
					if port.Protocol != nil {
						protocol, _ = packet.ParseProtocol(*port.Protocol)
					}
					if first, _, ok := policyRange(port); ok && protocol != 0 {
						add(protocol, first)
					}
				}
			}
		}
	}
	for d := range world.Diff(c.worlds[0].ClusterNetworkPolicies, c.worlds[1].ClusterNetworkPolicies) {
		for _, p := range []*world.ClusterNetworkPolicy{d.Old, d.New} {
			if p == nil {
				continue
			}
			for _, r := range p.Egress {
				for _, proto := range r.Protocols {
					for _, x := range clusterRanges(proto) {
						add(x.protocol, x.numbers[0])
					}
				}
			}
		}
	}
	return out
}

// nodeHosts are nodes that policies may tell apart, a few of them.
func (c *comparison) nodeHosts(cidrs []netip.Prefix, ports []reachPort) []host {
	byNode := map[string]*host{}
	for _, both := range c.ends() {
		e := both[0]
		if !e.Addr.IsValid() || e.Place.Kind != oracle.Node {
			continue
		}
		n, known := c.worlds[0].NodeNetworks.Get(world.Key{Name: e.Place.Node})
		own := known && slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return p.Addr() == e.Addr })
		if !own {
			continue
		}
		h := byNode[e.Place.Node]
		if h == nil {
			h = &host{name: "node/" + e.Place.Node, ports: ports}
			byNode[e.Place.Node] = h
		}
		h.ends[familyIndex(e.Addr)] = e
	}
	seen := map[string]bool{}
	var out []host
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		h := byNode[name]
		var key strings.Builder
		for _, w := range c.worlds {
			if n, ok := w.Nodes.Get(world.Key{Name: name}); ok {
				fmt.Fprintf(&key, "%q ", labels(n.Labels))
			}
		}
		for _, e := range h.ends {
			key.WriteString(membership(e.Addr, cidrs))
		}
		if !seen[key.String()] && len(out) < maxNodeHosts {
			seen[key.String()] = true
			out = append(out, *h)
		}
	}
	return out
}

// outsideHosts are addresses outside that policies tell apart, a few of them.
func (c *comparison) outsideHosts(cidrs []netip.Prefix, ports []reachPort) []host {
	candidates := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} // RFC 5737, RFC 3849
	for _, p := range cidrs {
		last := netipx.PrefixLastIP(p)
		candidates = append(candidates, p.Addr(), p.Addr().Next(), last, last.Next(), p.Addr().Prev())
	}
	inside := func(a netip.Addr) bool {
		for _, w := range c.worlds {
			for s := range w.Subnets.Values() {
				if slices.ContainsFunc(s.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
					return true
				}
			}
			for n := range w.NodeNetworks.Values() {
				if slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
					return true
				}
			}
		}
		return false
	}
	seen := map[string]bool{}
	var out []host
	for _, a := range candidates {
		if !a.IsValid() || a.IsUnspecified() || !a.IsGlobalUnicast() || len(out) >= maxOutsideHosts || inside(a) {
			continue
		}
		key := fmt.Sprint(a.Is4(), membership(a, cidrs))
		if seen[key] {
			continue
		}
		seen[key] = true
		h := host{name: "outside " + a.String(), ports: ports}
		h.ends[familyIndex(a)] = oracle.End{Addr: a}
		out = append(out, h)
	}
	slices.SortStableFunc(out, func(a, b host) int { return cmp.Compare(a.name, b.name) })
	return out
}
