package nft

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// notOfPort matches if the port that a packet came in by has no such address.
func notOfPort(addr nft.Field, f family) nft.Lookup {
	return nft.Lookup{Key: nft.Select(nft.MetaIIFName, addr), Op: nft.Neq, Set: "port-addresses-" + f.suffix}
}

// icmpFromPort holds the ICMP errors that pods send against the flows that they speak
// of. A pod says that a flow of others has a small MTU or an unreachable end, and
// whoever sends into it believes that: an error of a pod must be about a packet that
// was for the pod.
func (r *renderer) icmpFromPort() {
	const why = "ICMP error about a flow that is not the pod's"
	rules := []nft.Rule{drop(why, nft.AnyFlag(nft.CTState, nft.CTInvalid))}
	for _, f := range families {
		rules = append(rules, drop(why, nft.AnyFlag(nft.CTState, nft.CTRelated), notOfPort(f.sender, f), notOfPort(f.answerer, f)))
	}
	r.chain("icmp-from-port", nil, rules...)
}

// icmpErrors leads to the chain icmp-from-port, on further conditions.
func icmpErrors(conditions ...nft.Statement) (out []nft.Rule) {
	for _, f := range families {
		s := append([]nft.Statement{nft.Is(nft.MetaL4Proto, nft.Proto(f.icmp))}, conditions...)
		out = append(out, rule("errors of pods", append(s, nft.Verdict{Kind: nft.Jump, Chain: "icmp-from-port"})...))
	}
	return out
}

// vxlanFromPorts judges VXLAN that pods send to elsewhere a second time, behind
// destination NAT: none may get to a node's address, and none may get a node's
// address, since peers know each other by it.
func (r *renderer) vxlanFromPorts() {
	var rules []nft.Rule
	for _, f := range families {
		rules = append(rules, drop(vxlanFromPod, in(f.daddr, "nodes-"+f.suffix)))
	}
	for _, nat := range r.node.NATs {
		for _, f := range families {
			if has(nat.Sources, f.is4) {
				rules = append(rules, drop(vxlanFromPod, r.masqueraded(nat, f)...))
			}
		}
	}
	r.chain("vxlan-from-port", nil, rules...)
}

// masqueraded matches what a NAT gives another source.
func (r *renderer) masqueraded(nat intent.NAT, f family) []nft.Statement {
	return []nft.Statement{
		in(f.saddr, natSet(nat)+f.suffix), notIn(f.daddr, fmt.Sprintf("vpc-%d-%s-%s", r.own[nat.VPC], nat.Except, f.suffix)),
	}
}

// forward holds what pods must never send, then tells flows that were judged from new
// ones. Of those it keeps VPCs and tenants apart: a pod's packet for an address of
// some Subnet must be for one of its own VPC, and what reaches a port of an isolated
// tenant bears that tenant's VNI, the VPC's, or none (nodes, the outside). Rules that
// could match nothing, in a cluster of one VPC without isolated tenants, are left out.
func (r *renderer) forward() {
	several := r.severalVPCs()
	r.verdictMap("vpc-of-port", func(p intent.Port) string { return fmt.Sprintf("vpc-%d", r.own[p.VPC]) })
	r.verdictMap("into-port", func(p intent.Port) string {
		if p.VNI == r.own[p.VPC] {
			return ""
		}
		return fmt.Sprintf("into-%d", p.VNI)
	})
	r.vxlanFromPorts()
	var apart, fromVPC []nft.Rule
	if several {
		fromVPC = []nft.Rule{rule("VPC of the sender", nft.VMap{Key: nft.Select(nft.MetaIIFName), Map: "vpc-of-port"})}
	}
	if r.isolated() {
		apart = append(apart, rule("tenant of the receiver", nft.VMap{Key: nft.Select(nft.MetaOIFName), Map: "into-port"}))
	}
	apart = append(apart, fromVPC...)
	if len(apart) > 0 {
		r.chain("apart", nil, apart...)
	}
	base := append([]nft.Rule{
		learn(),
		rule("neither ICMP nor VXLAN", nft.Is(nft.MetaL4Proto, nft.Proto(protoTCP)), to("flows")),
	}, icmpErrors(fromPorts)...)
	base = append(base,
		rule("VXLAN of pods", vxlanPort, fromPorts, nft.Verdict{Kind: nft.Jump, Chain: "vxlan-from-port"}),
		rule("all others", to("flows")))
	r.chain("forward", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookForward, Priority: claims.NFTPriorityForward}, base...)
	r.judge(len(apart) > 0)
	for _, v := range r.node.VPCs {
		var others []nft.Rule
		for _, f := range families {
			others = append(others, drop("another VPC", in(f.daddr, "subnets-"+f.suffix), notIn(f.daddr, fmt.Sprintf("vpc-%d-subnets-%s", v.VNI, f.suffix))))
		}
		r.chain(fmt.Sprintf("vpc-%d", v.VNI), nil, others...)
		r.intoTenants(v)
	}
	r.chain("from-vpc", nil, fromVPC...)
}

const protoTCP = 6

// isolated reports whether a port is that of an isolated tenant.
func (r *renderer) isolated() bool {
	return slices.ContainsFunc(r.node.Ports, func(p intent.Port) bool { return p.VNI != r.own[p.VPC] })
}

// severalVPCs reports whether Subnets of more than one VPC exist.
func (r *renderer) severalVPCs() bool {
	first := ""
	for _, s := range r.node.AddressSets {
		if s.Name != SetSubnets || len(s.Prefixes) == 0 {
			continue
		}
		if first != "" && s.VPC != first {
			return true
		}
		first = s.VPC
	}
	// A port whose VPC is not that of the Subnets must not reach them either.
	return slices.ContainsFunc(r.node.Ports, func(p intent.Port) bool { return p.VPC != first })
}

// intoTenants adds the chains of a VPC's isolated tenants: whom they hear.
func (r *renderer) intoTenants(v intent.VPC) {
	for _, tenant := range v.Tenants {
		var rules []nft.Rule
		for _, from := range []struct {
			mark uint32
			who  string
		}{{0, "nodes and the outside"}, {claims.Mark(tenant), "the same tenant"}, {claims.Mark(v.VNI), "global tenants and nodes"}} {
			rules = append(rules, rule(from.who, nft.Masked(nft.MetaMark, claims.MarkVNIMask, from.mark), to("from-vpc")))
		}
		r.chain(fmt.Sprintf("into-%d", tenant), nil, append(rules, drop("another tenant"))...)
	}
}
