package linux

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Wire is what the tunnel programs know: which VNIs there are, and at which node
// each address of each VPC is. A VPC is identified by its own VNI.
type Wire struct {
	VNIs    []WireVNI   // sorted by VNI
	Entries []WireEntry // sorted by VPC, prefix
}

// WireVNI says that packets with VNI belong to VPC.
type WireVNI struct {
	VNI, VPC packet.VNI
}

// WireEntry says where the addresses of a prefix are. The longest prefix wins.
type WireEntry struct {
	VPC    packet.VNI
	Prefix netip.Prefix
	// Outer is the underlay address of the node that has the prefix; invalid for
	// this node itself.
	Outer netip.Addr
	// MAC of that node's tunnel device, the inner destination of what is sent there.
	MAC packet.MAC
}

// Local reports whether the prefix is on this node.
func (e WireEntry) Local() bool { return !e.Outer.IsValid() }

// RenderWire computes the tunnel programs' maps: this node's own prefixes, and
// those of all peers. What goes to a peer without encapsulation may still send into
// the tunnel: the Subnet of the destination decides how a packet goes. A route to a
// peer without an outer address in common is left out: nothing can be sent there.
func RenderWire(n intent.Node) Wire {
	var w Wire
	own := map[string]packet.VNI{}
	for _, v := range n.VPCs {
		own[v.Name] = v.VNI
		w.VNIs = append(w.VNIs, WireVNI{VNI: v.VNI, VPC: v.VNI})
		for _, t := range v.Tenants {
			w.VNIs = append(w.VNIs, WireVNI{VNI: t, VPC: v.VNI})
		}
	}
	peers := map[string]intent.Peer{}
	for _, p := range n.Peers {
		peers[p.Name] = p
	}
	for _, r := range n.Routes {
		e := WireEntry{VPC: own[r.VPC], Prefix: r.Dst}
		switch {
		case r.NextHop.Local:
		case r.NextHop.Peer != "" && peers[r.NextHop.Peer].Outer.IsValid():
			e.Outer, e.MAC = peers[r.NextHop.Peer].Outer, peers[r.NextHop.Peer].VTEPMAC
		default:
			continue
		}
		w.Entries = append(w.Entries, e)
	}
	slices.SortFunc(w.VNIs, func(a, b WireVNI) int { return cmp.Compare(a.VNI, b.VNI) })
	slices.SortFunc(w.Entries, func(a, b WireEntry) int {
		return cmp.Or(cmp.Compare(a.VPC, b.VPC), a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return w
}
