package nft

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// output marks what the node itself sends into the tunnel with the VPC's own VNI, and
// keeps the tunnel's own packets from conntrack. That is one chain before conntrack
// and not two, since every packet to a peer passes here.
func (r *renderer) output() {
	var marks []nft.Rule
	rules := []nft.Rule{
		rule("the tunnel is no flow", flagged(claims.MarkTunnel), nft.Notrack{}, nft.Verdict{Kind: nft.Accept}),
		rule("into the tunnel", nft.Is(nft.MetaOIFName, nft.IfName(claims.VXLANDevice)), to("output-tunnel")),
	}
	for _, f := range families {
		name := "vpc-of-address-" + f.suffix
		m := nft.Set{Name: name, Key: []nft.Type{f.typ}, Data: []nft.Type{nft.TypeVerdict}, Interval: true}
		for _, s := range r.node.Subnets {
			for _, p := range s.CIDRs {
				if p.Addr().Is4() == f.is4 {
					m.Elements = append(m.Elements, nft.Element{
						Key: []nft.Value{nft.Prefix(p)}, Verdict: to(fmt.Sprintf("tenant-%d", r.own[s.VPC])),
					})
				}
			}
		}
		r.sets = append(r.sets, m)
		marks = append(marks, rule("VPC of the destination", nft.VMap{Key: nft.Select(f.daddr), Map: name}))
	}
	r.chain("output-tunnel", nil, marks...)
	r.chain("output", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: claims.NFTPriorityRaw}, rules...)
}

func natSet(nat intent.NAT) string { return setName("nat-", nat.Name) + "-" }

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}

// postrouting gives the node's address to what pods send out of their VPC, and
// the node's own address towards the Subnet to what enters the tunnel from elsewhere:
// a peer takes nothing from the tunnel that is not of a block of ours.
//
// What pods send to link-local addresses never leaves the node: a cloud's metadata
// service would take it for the node's and hand out the node's credentials. It is
// dropped here, where the destination is final and one packet of each flow passes.
func (r *renderer) postrouting() {
	device := nft.IfName(claims.VXLANDevice)
	accept := nft.Verdict{Kind: nft.Accept}
	rules := []nft.Rule{
		rule("between pods", flagged(claims.MarkChecked), intoPorts, accept),
		rule("between pods", flagged(claims.MarkChecked), nft.Is(nft.MetaOIFName, device), accept),
		rule("the node to itself", nft.Is(nft.MetaOIFName, nft.IfName("lo")), accept),
	}
	for _, f := range families {
		rules = append(rules, drop("link-local destination beyond the node",
			nft.Is(f.daddr, nft.Prefix(f.linkLocal)), in(f.saddr, "subnets-"+f.suffix)))
	}
	for _, n := range r.node.Subnets {
		for _, p := range n.CIDRs {
			f := familyOf(p.Addr())
			if source := r.node.Source(n, f.is4); n.Overlay && source.IsValid() {
				rules = append(rules, rule("into the tunnel from elsewhere",
					nft.Is(nft.MetaOIFName, device), nft.Is(f.daddr, nft.Prefix(p)), notIn(f.saddr, "subnets-"+f.suffix),
					nft.Counter{}, nft.NAT{Kind: nft.SNAT, Addr: source, Flags: nft.NATFullyRandom}))
			}
		}
	}
	if len(r.node.NATs) > 0 {
		r.masquerade()
	}
	for _, nat := range r.node.NATs {
		r.intervals(natSet(nat), nat.Sources)
		for _, f := range families {
			if !has(nat.Sources, f.is4) {
				continue
			}
			s := append([]nft.Statement{nft.IsNot(nft.MetaOIFName, device)}, r.masqueraded(nat, f)...)
			rules = append(rules, rule("natOutgoing of "+label(nat.Name), append(s, nft.Counter{}, to("masqueraded"))...))
		}
	}
	r.chain("postrouting", &nft.Base{Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: claims.NFTPrioritySrcNAT}, rules...)
}
