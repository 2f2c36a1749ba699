package nft

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// prerouting lets in from a port only what bears the port's address and marks it
// with its tenant, and from the underlay no pod's address but those that peers
// have without encapsulation. Conntrack does not see the tunnel's own packets, here
// and in output: a flow of a pod whose source NAT happens to choose the tunnel's
// port would take them away.
//
// Every packet of a pod passes here, so the order is that of cost: one look-up finds
// sender and tenant at once, and a packet meets the rules of its own family only.
func (r *renderer) prerouting() {
	accept := nft.Verdict{Kind: nft.Accept}
	base := []nft.Rule{
		rule("pods", fromPorts, to("from-port")),
		rule("checked by wire_in", nft.Is(nft.MetaIIFName, nft.IfName(claims.VXLANDevice)), accept),
		rule("the node itself", nft.Is(nft.MetaIIFName, nft.IfName("lo")), accept),
		rule("IPv4", nft.Is(nft.MetaNFProto, nft.IPv4), to("underlay-4")),
		rule("IPv6", nft.Is(nft.MetaNFProto, nft.IPv6), to("underlay-6")),
	}
	var fromPort []nft.Rule
	for _, f := range families {
		r.chain("underlay-"+f.suffix, nil, append(r.tunnelled(f),
			drop("loopback address from the underlay", nft.Is(f.daddr, nft.Prefix(f.loopback))),
			drop("loopback address from the underlay", nft.Is(f.saddr, nft.Prefix(f.loopback))),
			drop("pod address from the underlay", in(f.saddr, "subnets-"+f.suffix), notIn(f.saddr, "direct-"+f.suffix)))...)
		r.fromTenants(f)
		fromPort = append(fromPort, rule("tenant of the sender",
			nft.VMap{Key: nft.Select(nft.MetaIIFName, f.saddr), Map: "tenant-of-port-" + f.suffix}))
	}
	r.chain("prerouting", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: claims.NFTPriorityRaw}, base...)
	r.chain("from-port", nil, append(fromPort, drop("spoofed source"))...)
	for _, v := range r.node.VPCs {
		for _, vni := range append([]packet.VNI{v.VNI}, v.Tenants...) {
			r.chain(fmt.Sprintf("tenant-%d", vni), nil, rule("VPC "+label(v.Name), mark(vni)))
		}
	}
}

// tunnelled lets in the tunnel's own packets for this node: wire_in judges them, their
// outer source too. There are none without an overlay.
func (r *renderer) tunnelled(f family) (rules []nft.Rule) {
	if !slices.ContainsFunc(r.node.Subnets, func(s intent.Subnet) bool { return s.Overlay }) {
		return nil
	}
	for _, p := range r.node.Underlay {
		if p.Addr().Is4() == f.is4 {
			rules = append(rules, rule("the tunnel is no flow; checked by wire_in",
				vxlanPort, nft.Is(f.daddr, nft.Addr(p.Addr())), nft.Notrack{}, nft.Verdict{Kind: nft.Accept}))
		}
	}
	return rules
}

func mark(vni packet.VNI) nft.Mangle {
	return nft.Mangle{Field: nft.MetaMark, Value: claims.Mark(vni), Mask: claims.MarkVNIMask}
}

// fromTenants adds, for one family, the map from a port and its address to the chain
// of its tenant, and these chains: what no pod may send to anybody is dropped there,
// the rest is marked.
func (r *renderer) fromTenants(f family) {
	m := nft.Set{Name: "tenant-of-port-" + f.suffix, Key: []nft.Type{nft.TypeIfName, f.typ}, Data: []nft.Type{nft.TypeVerdict}}
	chain := func(vni packet.VNI) string { return fmt.Sprintf("from-tenant-%d-%s", vni, f.suffix) }
	used := map[packet.VNI]bool{}
	for _, p := range r.node.Ports {
		for _, a := range p.Addresses {
			if a.Is4() == f.is4 {
				used[p.VNI] = true
				m.Elements = append(m.Elements, nft.Element{Key: []nft.Value{nft.IfName(p.HostInterface), nft.Addr(a)}, Verdict: to(chain(p.VNI))})
			}
		}
	}
	for _, vni := range slices.Sorted(maps.Keys(used)) {
		r.chain(chain(vni), nil,
			drop("loopback address from a pod", nft.Is(f.daddr, nft.Prefix(f.loopback))),
			drop("broadcast or multicast from a pod", nft.Is(f.daddr, nft.Prefix(f.group))),
			drop(vxlanFromPod, vxlanPort, in(f.daddr, "nodes-"+f.suffix)),
			rule("tenant of the sender", mark(vni)))
	}
	r.sets = append(r.sets, m)
}

var vxlanPort = nft.Is(nft.UDPDport, nft.Port(claims.VXLANPort))

const vxlanFromPod = "VXLAN from a pod"
