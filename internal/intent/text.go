package intent

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// String is the intent as text for people and golden files: one object a line,
// in the order of Node's fields.
func (n Node) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Node %s: %s\n", n.Name, n.describe())
	writeAll(&b, n.VPCs)
	writeAll(&b, n.Subnets)
	writeAll(&b, n.Peers)
	writeAll(&b, n.Routes)
	writeAll(&b, n.Tunnels)
	writeAll(&b, n.Ports)
	writeAll(&b, n.NATs)
	writeAll(&b, n.AddressSets)
	return b.String()
}

func writeAll[T Object[T]](b *strings.Builder, list []T) {
	for _, o := range list {
		fmt.Fprintf(b, "%s: %s\n", o.Ref(), o.String())
	}
}

func (n Node) describe() string {
	return fmt.Sprintf("MTU %d, underlay %s, VTEP %s", n.MTU, list(n.Underlay), n.VTEPMAC)
}

// String says for people what it is.
func (v VPC) String() string {
	if len(v.Tenants) == 0 {
		return fmt.Sprintf("VNI %d", v.VNI)
	}
	return fmt.Sprintf("VNI %d, tenants %s", v.VNI, numbers(v.Tenants))
}

// String says for people what it is.
func (s Subnet) String() string {
	kind := "direct"
	if s.Overlay {
		kind = "overlay"
	}
	return fmt.Sprintf("VPC %s, %s, %s", s.VPC, list(s.CIDRs), kind)
}

// String says for people what it is.
func (p Peer) String() string {
	outer := "no tunnel"
	if p.Outer.IsValid() {
		outer = "outer " + p.Outer.String()
	}
	return fmt.Sprintf("%s, %s, VTEP %s", list(p.Addrs), outer, p.VTEPMAC)
}

// String is "local", "via NODE", "dev LINK", "via ADDRESS", or a list of them.
func (h NextHop) String() string {
	switch {
	case h.Local:
		return "local"
	case h.Peer != "":
		return "via " + h.Peer
	case h.Device != "":
		return "dev " + h.Device
	case h.Gateway.IsValid():
		return "via " + h.Gateway.String()
	}
	return "ECMP " + list(h.ECMP)
}

// String is the origin in one word.
func (o Origin) String() string {
	switch o {
	case OriginBlock:
		return "block"
	case OriginStatic:
		return "static"
	case OriginBGP:
		return "BGP"
	}
	return fmt.Sprintf("origin %d", uint8(o))
}

// String says for people what it is.
func (r Route) String() string {
	s := r.NextHop.String()
	if r.Encapsulate {
		s += ", encapsulated"
	}
	if r.Origin != OriginBlock {
		s += ", from " + r.Origin.String()
	}
	return s
}

// String says for people what it is.
func (t TunnelAddress) String() string { return "Subnet " + t.Subnet }

// String says for people what it is.
func (p Port) String() string {
	pod := "no pod"
	if p.Pod != "" {
		pod = "pod " + p.Pod
	}
	return fmt.Sprintf("%s, VPC %s, VNI %d, %s, MAC %s, %s in %s, host %s", pod, p.VPC, p.VNI, list(p.Addresses), p.MAC, p.Interface, p.Netns, p.HostInterface)
}

// String says for people what it is.
func (n NAT) String() string { return fmt.Sprintf("from %s, not to %s", list(n.Sources), n.Except) }

// String says for people what it is.
func (s AddressSet) String() string { return list(s.Prefixes) }

func list[T netip.Addr | netip.Prefix | NextHop](items []T) string {
	if len(items) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, item := range items {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, item)
	}
	return b.String()
}

func numbers(vnis []packet.VNI) string {
	var b strings.Builder
	for i, v := range vnis {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d", v)
	}
	return b.String()
}
