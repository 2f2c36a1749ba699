package flows

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
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
	// tenants of pods elsewhere, by VPC and address; nil until somebody asks.
	tenants map[string]*bart.Table[packet.VNI]
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
func (r *rules) judge(p packet.Packet) (ok bool, why string) {
	from, to := r.port(p.Src), r.port(p.Dst)
	switch {
	case from == nil && (to == nil || r.ownOrLoopback(p.Src)):
		return true, "" // nobody's, or begun by the node
	case from == to:
		return true, "" // with itself
	}
	if ok, why := r.apart(p, from, to); !ok {
		return false, why
	}
	if from != nil {
		if ok, why := r.ask(from.Egress, p, p.Dst); !ok {
			return false, why
		}
	}
	if to != nil {
		if ok, why := r.ask(to.Ingress, p, p.Src); !ok {
			return false, why
		}
	}
	return true, ""
}

// apart are the rules of VPCs and tenants.
func (r *rules) apart(p packet.Packet, from, to *intent.Port) (ok bool, why string) {
	if from != nil && !r.in(from.VPC, intent.SetSubnets, p.Dst) && r.inAnySubnet(p.Dst) {
		return false, "another VPC"
	}
	vpc, sender, receiver := vpcOf(to, from), r.tenant(from, to, p.Src), r.tenant(to, from, p.Dst)
	if sender != receiver && r.isolated(vpc, sender) && r.isolated(vpc, receiver) {
		return false, "another tenant"
	}
	return true, ""
}

// vpcOf is the VPC of one of two ports.
func vpcOf(a, b *intent.Port) string {
	if a != nil {
		return a.VPC
	}
	return b.VPC
}

// tenant is the VNI of an end of a flow: of the port, or, if it is not here, of the pod
// that has the address in the other's VPC. 0 is none.
func (r *rules) tenant(port, other *intent.Port, a netip.Addr) packet.VNI {
	if port != nil {
		return port.VNI
	}
	if r.tenants == nil {
		r.tenants = map[string]*bart.Table[packet.VNI]{}
		for _, s := range r.node.AddressSets {
			vni, is := s.Tenant()
			if !is {
				continue
			}
			if r.tenants[s.VPC] == nil {
				r.tenants[s.VPC] = &bart.Table[packet.VNI]{}
			}
			for _, p := range s.Prefixes {
				r.tenants[s.VPC].Insert(p, vni)
			}
		}
	}
	if t := r.tenants[other.VPC]; t != nil {
		vni, _ := t.Lookup(a)
		return vni
	}
	return 0
}

// isolated reports whether a VNI is that of a tenant which does not reach the others.
func (r *rules) isolated(vpc string, vni packet.VNI) bool {
	return vni != 0 && uint32(vni) != r.vnis[vpc]
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
func (r *rules) ask(id string, p packet.Packet, peer netip.Addr) (ok bool, why string) {
	if id == "" {
		return true, ""
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
		return true, ""
	case v.by == nil:
		return false, "the rule list " + id + " is missing"
	}
	return false, v.by.Origin.String()
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
