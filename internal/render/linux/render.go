package linux

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// RenderState computes what the kernel of the node must hold.
func RenderState(n intent.Node) State {
	var s State
	s.Tunnel = renderTunnel(n)
	s.renderPorts(n)
	s.renderRoutes(n)
	s.Sysctls = renderSysctls(n)
	for _, p := range n.Underlay {
		s.Underlay = append(s.Underlay, p.Addr())
	}
	slices.SortFunc(s.Problems, func(a, b Problem) int { return cmp.Or(compareRefs(a.Ref, b.Ref), cmp.Compare(a.Text, b.Text)) })
	return s
}

func (s *State) problem(ref intent.Ref, format string, args ...any) {
	s.Problems = append(s.Problems, Problem{Ref: ref, Text: fmt.Sprintf(format, args...)})
}

func compareRefs(a, b intent.Ref) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// renderTunnel makes the VXLAN device if an overlay Subnet needs it, or an
// address that lives on it.
func renderTunnel(n intent.Node) *Tunnel {
	t := Tunnel{Name: claims.VXLANDevice, MAC: n.VTEPMAC, MTU: n.MTU, Port: claims.VXLANPort}
	for _, s := range n.Subnets {
		if s.Overlay {
			t.Refs = append(t.Refs, s.Ref())
		}
	}
	for _, a := range n.Tunnels {
		t.Addresses = append(t.Addresses, TunnelAddress{Addr: a.Addr, Ref: a.Ref()})
	}
	if len(t.Refs) == 0 && len(t.Addresses) == 0 {
		return nil
	}
	slices.SortFunc(t.Refs, compareRefs)
	slices.SortFunc(t.Addresses, func(a, b TunnelAddress) int { return cmp.Or(a.Addr.Compare(b.Addr), compareRefs(a.Ref, b.Ref)) })
	t.Addresses = slices.CompactFunc(t.Addresses, func(a, b TunnelAddress) bool { return a.Addr == b.Addr })
	return &t
}

func (s *State) renderPorts(n intent.Node) {
	owner := map[string]string{}
	for _, ip := range sortedPorts(n.Ports) {
		p, err := RenderPort(ip, n.MTU)
		if err != nil {
			s.problem(p.Ref, "%v", err)
			continue
		}
		keys := []string{"link " + p.HostName, "interface " + p.Name + " in " + p.Netns}
		for _, a := range p.Addresses {
			keys = append(keys, "address "+a.String())
		}
		if i := slices.IndexFunc(keys, func(k string) bool { return owner[k] != "" }); i >= 0 {
			s.problem(p.Ref, "%s is already that of port %s", keys[i], owner[keys[i]])
			continue
		}
		for _, k := range keys {
			owner[k] = ip.ID
		}
		s.Ports = append(s.Ports, p)
	}
	slices.SortFunc(s.Ports, func(a, b Port) int { return cmp.Compare(a.HostName, b.HostName) })
}

// sortedPorts makes the choice between two ports that claim the same thing
// independent of their order.
func sortedPorts(ports []intent.Port) []intent.Port {
	byID := func(a, b intent.Port) int { return cmp.Compare(a.ID, b.ID) }
	if slices.IsSortedFunc(ports, byID) {
		return ports
	}
	ports = slices.Clone(ports)
	slices.SortFunc(ports, byID)
	return ports
}

// RenderPort computes the links of one attachment. The Port's Ref is set even
// with an error.
func RenderPort(ip intent.Port, mtu int) (Port, error) {
	p := Port{
		Ref: ip.Ref(), Pod: ip.Pod, HostName: ip.HostInterface, Name: ip.Interface, Netns: ip.Netns,
		HostMAC: claims.GatewayMAC, MAC: ip.MAC, MTU: mtu, Addresses: slices.Clone(ip.Addresses), VNI: ip.VNI,
	}
	switch {
	case !validLinkName(ip.Interface):
		return p, fmt.Errorf("interface name %q: want 1 to 15 printable bytes without '/' and ':', not \"all\", \"default\" or \"lo\"", ip.Interface)
	case !validLinkName(ip.HostInterface) || !strings.HasPrefix(ip.HostInterface, claims.PortPrefix):
		return p, fmt.Errorf("name %q of the host's end: want a link name that begins with %q", ip.HostInterface, claims.PortPrefix)
	case !path.IsAbs(ip.Netns) || path.Clean(ip.Netns) != ip.Netns || strings.ContainsRune(ip.Netns, 0):
		return p, fmt.Errorf("network namespace %q: want a clean absolute path", ip.Netns)
	case ip.MAC.IsZero() || ip.MAC[0]&1 != 0:
		return p, fmt.Errorf("MAC address %s: want a unicast address", ip.MAC)
	}
	var seen4, seen6 bool
	for _, a := range p.Addresses {
		seen := &seen6
		if a.Is4() {
			seen = &seen4
		}
		if !validHost(a) || *seen {
			return p, fmt.Errorf("addresses %v: want at most one unicast address a family", ip.Addresses)
		}
		*seen = true
	}
	return p, nil
}

// validLinkName is dev_valid_name of the kernel, less the names that mean
// something else below /proc/sys/net/ipv4/conf.
func validLinkName(name string) bool {
	if name == "" || len(name) > 15 || name == "." || name == ".." || name == "all" || name == "default" || name == "lo" {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == ':' || r == '%' })
}

func validHost(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback()
}

// renderSysctls asks for forwarding, in the families that pods have.
func renderSysctls(n intent.Node) []Sysctl {
	var v4, v6 bool
	see := func(a netip.Addr) { v4, v6 = v4 || a.Is4(), v6 || a.Is6() }
	for _, s := range n.Subnets {
		for _, c := range s.CIDRs {
			see(c.Addr())
		}
	}
	for _, p := range n.Ports {
		for _, a := range p.Addresses {
			see(a)
		}
	}
	var out []Sysctl
	if v4 {
		out = append(out, Sysctl{Key: "net/ipv4/ip_forward", Value: "1"})
	}
	if v6 {
		out = append(out, Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"})
	}
	return out
}
