package nft

import (
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// prerouting lets in from a port, and from the tunnel, what our programs there have
// checked and marked, and from the underlay no pod's address but those that peers have
// without encapsulation. Conntrack does not see the tunnel's own packets, here and in
// output: a flow of a pod whose source NAT happens to choose the tunnel's port would
// take them away.
//
// Every packet passes here, so the order is that of cost: what is checked comes to the
// end by one test, the tunnel's packets come next, names of interfaces are compared last.
func (r *renderer) prerouting() {
	accept := nft.Verdict{Kind: nft.Accept}
	rules := []nft.Rule{rule("checked by our programs", flagged(claims.MarkChecked), accept)}
	var underlay []nft.Rule
	for _, f := range families {
		rules = append(rules, r.tunnelled(f)...)
		underlay = append(underlay, rule("IPv"+f.suffix, nft.Is(nft.MetaNFProto, f.proto), to("underlay-"+f.suffix)))
		r.chain("underlay-"+f.suffix, nil,
			rule("the node itself", nft.Is(nft.MetaIIFName, nft.IfName("lo")), accept),
			drop(Unchecked, fromPorts),
			drop(Unchecked, nft.Is(nft.MetaIIFName, nft.IfName(claims.VXLANDevice))),
			drop("loopback address from the underlay", nft.Is(f.daddr, nft.Prefix(f.loopback))),
			drop("loopback address from the underlay", nft.Is(f.saddr, nft.Prefix(f.loopback))),
			drop("pod address from the underlay", in(f.saddr, "subnets-"+f.suffix), notIn(f.saddr, "direct-"+f.suffix)))
	}
	r.chain("prerouting", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: claims.NFTPriorityRaw}, append(rules, underlay...)...)
	for _, v := range r.node.VPCs {
		for _, vni := range append([]packet.VNI{v.VNI}, v.Tenants...) {
			r.chain(fmt.Sprintf("tenant-%d", vni), nil, rule("VPC "+label(v.Name), mark(vni)))
		}
	}
}

// Unchecked is said of packets from a port, or from the tunnel, that have not met the
// program there.
const Unchecked = "not checked by our program on the link"

// flagged matches if a bit of ours is in the mark.
func flagged(bit uint32) nft.Match { return nft.Masked(nft.MetaMark, bit, bit) }

// tunnelled lets in the tunnel's own packets for this node: wire_in judges them, their
// outer source too. There are none without an overlay.
func (r *renderer) tunnelled(f family) (rules []nft.Rule) {
	if !slices.ContainsFunc(r.node.Subnets, func(s intent.Subnet) bool { return s.Overlay }) {
		return nil
	}
	for _, p := range r.node.Underlay {
		if p.Addr().Is4() == f.is4 {
			rules = append(rules, rule("the tunnel is no flow; checked by wire_in",
				vxlanPort, nft.Is(f.daddr, nft.Addr(p.Addr())), notFrom(nft.IfNamePrefix(claims.PortPrefix)), notFrom(nft.IfName(claims.VXLANDevice)),
				nft.Notrack{}, nft.Verdict{Kind: nft.Accept}))
		}
	}
	return rules
}

func mark(vni packet.VNI) nft.Mangle {
	return nft.Mangle{Field: nft.MetaMark, Value: claims.Mark(vni), Mask: claims.MarkVNIMask}
}

// notFrom matches what comes from other interfaces.
func notFrom(name nft.Value) nft.Match { return nft.IsNot(nft.MetaIIFName, name) }

var vxlanPort = nft.Is(nft.UDPDport, nft.Port(claims.VXLANPort))

const vxlanFromPod = "VXLAN from a pod"
