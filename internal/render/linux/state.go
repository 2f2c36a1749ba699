package linux

import (
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// State is what the kernel of one node must hold, besides filter rules and maps.
type State struct {
	// Tunnel is the node's VXLAN device, nil if nothing is sent through one.
	Tunnel *Tunnel
	// Ports, sorted by HostName, which is unique.
	Ports []Port
	// Routes of the node, sorted by destination and metric, which is their key.
	// Those of pods on this node are among them.
	Routes []Route
	// Sysctls of the node as a whole, sorted by key.
	Sysctls []Sysctl
	// Underlay are the node's addresses among nodes: the links that bear them carry
	// what goes to others, though they are not ours.
	Underlay []netip.Addr
	// Problems are objects that could not be rendered, sorted by Ref.
	Problems []Problem
}

// Problem says why an object of the intent is missing from a State.
type Problem struct {
	Ref  intent.Ref
	Text string
}

// Sysctl is a kernel setting of a network namespace.
type Sysctl struct {
	// Key is the path below /proc/sys, "net/ipv4/ip_forward".
	Key   string
	Value string
	// Optional: nothing but what asks for it suffers where it cannot be had.
	Optional bool
}

// Tunnel is the one external-mode VXLAN device of a node: it takes outer address
// and VNI of every packet from the tunnel programs, so it knows neither peers nor
// VNIs, learns nothing and resolves nothing.
type Tunnel struct {
	Name string
	MAC  packet.MAC
	// MTU in bytes.
	MTU int
	// Port is the UDP port.
	Port uint16
	// Addresses of this node in its Subnets, sorted.
	Addresses []TunnelAddress
	// Refs are the objects that need the device, sorted.
	Refs []intent.Ref
}

// TunnelAddress is an address on the tunnel device, without a prefix route.
type TunnelAddress struct {
	Addr netip.Addr
	Ref  intent.Ref
}

// Port is a veth pair between the node and a pod.
type Port struct {
	Ref intent.Ref
	// Pod is "namespace/name", for people.
	Pod string
	// HostName is the link's name in the node's namespace, Name in the pod's.
	HostName string
	Name     string
	// Netns is the absolute path of the pod's namespace.
	Netns string
	// HostMAC and MAC are the hardware addresses of the two ends.
	HostMAC packet.MAC
	MAC     packet.MAC
	// MTU of both ends, in bytes.
	MTU int
	// Addresses of the pod, at most one a family, IPv4 first.
	Addresses []netip.Addr
	// VNI of the pod's tenant.
	VNI packet.VNI
}

// Equal reports whether p and o are the same.
func (p Port) Equal(o Port) bool {
	return slices.Equal(p.Addresses, o.Addresses) && p.Ref == o.Ref && p.Pod == o.Pod && p.HostName == o.HostName && p.Name == o.Name && p.Netns == o.Netns &&
		p.HostMAC == o.HostMAC && p.MAC == o.MAC && p.MTU == o.MTU && p.VNI == o.VNI
}

// Gateways are the next hops of the pod's default routes, one for each family
// that it has an address of. They exist on no device: a permanent neighbour in
// the pod leads them to HostMAC.
func (p Port) Gateways() []netip.Addr {
	var gws []netip.Addr
	for _, a := range p.Addresses {
		gws = append(gws, gateway(a))
	}
	return gws
}

func gateway(a netip.Addr) netip.Addr {
	if a.Is4() {
		return claims.Gateway4
	}
	return claims.Gateway6
}

// HasIPv6 reports whether the pod has an IPv6 address.
func (p Port) HasIPv6() bool { return slices.ContainsFunc(p.Addresses, netip.Addr.Is6) }

// HostSysctls are the settings of the host's end. They must hold before the link
// is up: a router advertisement or redirect from the pod must find them there.
func (p Port) HostSysctls() []Sysctl {
	return append(quietLink(p.HostName, p.HasIPv6()),
		// The pod's default gateway is a permanent neighbour: nobody may answer for it.
		Sysctl{Key: "net/ipv4/conf/" + p.HostName + "/proxy_arp", Value: "0"},
		// The packet filter checks source addresses, per port and for IPv6 too.
		Sysctl{Key: "net/ipv4/conf/" + p.HostName + "/rp_filter", Value: "0"},
	)
}

// PodSysctls are the settings of the pod's end, in the pod's namespace.
func (p Port) PodSysctls() []Sysctl { return quietLink(p.Name, p.HasIPv6()) }

// Sysctls are the settings of the tunnel device.
func (t Tunnel) Sysctls() []Sysctl {
	return append(quietLink(t.Name, slices.ContainsFunc(t.Addresses, func(a TunnelAddress) bool { return a.Addr.Is6() })),
		Sysctl{Key: "net/ipv4/conf/" + t.Name + "/rp_filter", Value: "0"},
	)
}

// quietLink is what every link of ours needs: it configures nothing by itself and
// believes nothing that a neighbour tells. addr_gen_mode 1 is "none": no
// link-local address.
func quietLink(name string, ipv6 bool) []Sysctl {
	v6 := "net/ipv6/conf/" + name + "/"
	s := []Sysctl{
		{Key: "net/ipv4/conf/" + name + "/accept_redirects", Value: "0"},
		{Key: v6 + "accept_ra", Value: "0"},
		{Key: v6 + "accept_redirects", Value: "0"},
		{Key: v6 + "addr_gen_mode", Value: "1"},
		{Key: v6 + "autoconf", Value: "0"},
	}
	if ipv6 {
		s = append(s, Sysctl{Key: v6 + "disable_ipv6", Value: "0"})
	}
	return s
}

// Metrics of our routes. IPv6 knows no metric 0: the kernel would make it 1024.
const (
	metric4 = 0
	metric6 = 1024
	// MetricUnreachable is that of "unreachable" routes: higher than those of all
	// others, so that the route of a pod may have the very prefix of a block.
	MetricUnreachable = 2048
)

// Route is a route in the node's main table. Without Hops it is "unreachable":
// the sender gets an ICMP error.
type Route struct {
	Ref    intent.Ref
	Dst    netip.Prefix
	Metric uint32
	// Src is the preferred source of what the node itself sends; invalid for none.
	Src netip.Addr
	// Hops, sorted; several share the load.
	Hops []Hop
}

// Hop is one next hop.
type Hop struct {
	// Dev is the link's name; empty means the link that bears the address Near.
	Dev  string
	Near netip.Addr
	// Gateway is invalid for what is directly on the link. It is always on the
	// link, whatever the link's prefixes say.
	Gateway netip.Addr
}

// Equal reports whether r and o are the same.
func (r Route) Equal(o Route) bool {
	return r.Ref == o.Ref && r.Dst == o.Dst && r.Metric == o.Metric && r.Src == o.Src && slices.Equal(r.Hops, o.Hops)
}
