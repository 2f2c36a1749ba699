package linux

import (
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Guard is what the program on the node's end of a pod's link knows: what the pod may
// send from there, and as which tenant.
type Guard struct {
	Ref intent.Ref
	// Link is the name of the node's end, Index its number in the kernel.
	Link  string
	Index int
	// Addresses of the pod, at most one a family.
	Addresses []netip.Addr
	VNI       packet.VNI
}

// Guards are what the programs on the links of ports know; index are the links' numbers
// by name. Ports without a link are left out.
func (s State) Guards(index map[string]int) []Guard {
	var out []Guard
	for _, p := range s.Ports {
		if i := index[p.HostName]; i != 0 {
			out = append(out, Guard{Ref: p.Ref, Link: p.HostName, Index: i, Addresses: p.Addresses, VNI: p.VNI})
		}
	}
	return out
}

// Why the program on a port's link drops a packet.
const (
	SpoofedSource   = "spoofed source"
	LoopbackFromPod = "loopback address from a pod"
	GroupFromPod    = "broadcast or multicast from a pod"
)

// Judge says what the program does to a packet: the bits of claims that it sets in the
// mark, or why it drops it.
func (g Guard) Judge(src, dst netip.Addr) (mark uint32, why string) {
	switch {
	case !slices.Contains(g.Addresses, src):
		return 0, SpoofedSource
	case dst.IsLoopback():
		return 0, LoopbackFromPod
	case dst.Is4() && dst.As4()[0] >= 224, dst.Is6() && dst.IsMulticast():
		return 0, GroupFromPod
	}
	return claims.MarkChecked | claims.Mark(g.VNI), ""
}
