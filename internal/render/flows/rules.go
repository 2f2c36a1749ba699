package flows

import (
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// answer is what the rules of a node say about a flow.
type answer uint8

const (
	allowed answer = iota
	denied
	// unknown: it depends on the tenant of a pod that is not here.
	unknown
)

// rules are those of an intent, found by address and name.
type rules struct {
	node intent.Node
	// ports by address, nil where several have it; taken are the addresses of all.
	ports map[netip.Addr]*intent.Port
	taken map[netip.Addr]bool
	// own addresses of the node.
	own   map[netip.Addr]bool
	vnis  map[string]uint32
	sets  map[string]map[string]intent.AddressSet // by VPC and name
	asked map[question]verdict
}

// question is what a list is asked.
type question struct {
	list     string
	peer     netip.Addr
	protocol packet.Protocol
	port     uint16
}

type verdict struct {
	allowed bool
	by      *intent.Rule
}

// maxAsked bounds the answers that are remembered.
const maxAsked = 1 << 16

func newRules(n intent.Node, own []netip.Addr) *rules {
	r := &rules{
		node: n, ports: map[netip.Addr]*intent.Port{}, taken: map[netip.Addr]bool{}, own: map[netip.Addr]bool{},
		vnis: vnis(n), sets: map[string]map[string]intent.AddressSet{}, asked: map[question]verdict{},
	}
	for i, p := range n.Ports {
		for _, a := range p.Addresses {
			if r.taken[a] {
				delete(r.ports, a)
				continue
			}
			r.ports[a], r.taken[a] = &n.Ports[i], true
		}
	}
	for _, a := range own {
		r.own[a] = true
	}
	for _, p := range n.Underlay {
		r.own[p.Addr()] = true
	}
	for _, t := range n.Tunnels {
		r.own[t.Addr] = true
	}
	for _, s := range n.AddressSets {
		if r.sets[s.VPC] == nil {
			r.sets[s.VPC] = map[string]intent.AddressSet{}
		}
		r.sets[s.VPC][s.Name] = s
	}
	return r
}

func (r *rules) port(a netip.Addr) *intent.Port { return r.ports[a] }

func (r *rules) ownOrLoopback(a netip.Addr) bool { return r.own[a] || a.IsLoopback() }

// judge asks the rules about the first packet of a flow.
func (r *rules) judge(p packet.Packet) (answer, string) {
	from, to := r.port(p.Src), r.port(p.Dst)
	switch {
	case from == nil && (to == nil || r.ownOrLoopback(p.Src)):
		return allowed, "" // nobody's, or begun by the node
	case from == to:
		return allowed, "" // with itself
	}
	apart := allowed
	if to != nil || !r.own[p.Dst] {
		var why string
		if apart, why = r.apart(p, from, to); apart == denied {
			return denied, why
		}
	}
	if from != nil {
		if a, why := r.ask(from.Egress, p, p.Dst); a == denied {
			return denied, why
		}
	}
	if to != nil {
		if a, why := r.ask(to.Ingress, p, p.Src); a == denied {
			return denied, why
		}
	}
	return apart, ""
}

// apart are the rules of VPCs and tenants.
func (r *rules) apart(p packet.Packet, from, to *intent.Port) (answer, string) {
	if from != nil && !r.in(from.VPC, intent.SetSubnets, p.Dst) && r.inAnySubnet(p.Dst) {
		return denied, "another VPC"
	}
	if to == nil || uint32(to.VNI) == r.vnis[to.VPC] {
		return allowed, "" // tenants elsewhere are their nodes' concern
	}
	switch {
	case from == nil && r.inAnySubnet(p.Src):
		return unknown, ""
	case from != nil && from.VNI != to.VNI && uint32(from.VNI) != r.vnis[to.VPC]:
		return denied, "another tenant"
	}
	return allowed, ""
}

func (r *rules) in(vpc, set string, a netip.Addr) bool { return r.sets[vpc][set].Contains(a) }

func (r *rules) inAnySubnet(a netip.Addr) bool {
	for vpc := range r.sets {
		if r.in(vpc, intent.SetSubnets, a) {
			return true
		}
	}
	return false
}

// ask asks a list. One that the intent lacks allows nothing.
func (r *rules) ask(id string, p packet.Packet, peer netip.Addr) (answer, string) {
	if id == "" {
		return allowed, ""
	}
	q := question{list: id, peer: peer, protocol: p.Protocol, port: p.DstPort}
	v, known := r.asked[q]
	if !known {
		v = r.verdict(id, p)
		if len(r.asked) == maxAsked {
			clear(r.asked)
		}
		r.asked[q] = v
	}
	switch {
	case v.allowed:
		return allowed, ""
	case v.by == nil:
		return denied, "the rule list " + id + " is missing"
	}
	return denied, v.by.Origin.String()
}

func (r *rules) verdict(id string, p packet.Packet) verdict {
	i, found := slices.BinarySearchFunc(r.node.RuleLists, intent.RuleList{ID: id}, intent.RuleList.Compare)
	if !found {
		return verdict{}
	}
	list := r.node.RuleLists[i]
	ok, rule := list.Judge(p, func(set string, a netip.Addr) bool { return r.in(list.VPC, set, a) })
	v := verdict{allowed: ok}
	if rule >= 0 {
		v.by = &list.Rules[rule]
	}
	return v
}
