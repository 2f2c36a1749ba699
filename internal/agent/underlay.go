package agent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// underlay is the node's place on the network that joins the nodes.
type underlay struct {
	device string
	// addresses with the prefix length of their segment, at most one a family, IPv4
	// first.
	addresses []netip.Prefix
	mtu       int
}

// findUnderlay reads the addresses and MTU of the given interface, or, if none is
// named, of the one that the default route leaves by.
func findUnderlay(name string) (underlay, error) {
	var device *net.Interface
	var err error
	if name != "" {
		device, err = net.InterfaceByName(name)
	} else {
		device, err = defaultInterface()
	}
	if err != nil {
		return underlay{}, fmt.Errorf("find the underlay interface %q: %w", name, err)
	}
	addrs, err := device.Addrs()
	if err != nil {
		return underlay{}, fmt.Errorf("read the addresses of %s: %w", device.Name, err)
	}
	var prefixes []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	u := underlay{device: device.Name, addresses: choose(prefixes), mtu: device.MTU}
	if len(u.addresses) == 0 {
		return underlay{}, fmt.Errorf("interface %s has no address that other nodes could reach: give it one, or name another interface in underlay.interface", device.Name)
	}
	return u, nil
}

// choose takes the first address of each family that other nodes can reach, IPv4
// first.
func choose(all []netip.Prefix) []netip.Prefix {
	var v4, v6 netip.Prefix
	for _, p := range all {
		switch {
		case !p.Addr().IsGlobalUnicast():
		case p.Addr().Is4() && !v4.IsValid():
			v4 = p
		case p.Addr().Is6() && !v6.IsValid():
			v6 = p
		}
	}
	return slices.DeleteFunc([]netip.Prefix{v4, v6}, func(p netip.Prefix) bool { return !p.IsValid() })
}

// defaultInterface asks the routing table which address the node would use for a
// documentation address (RFC 5737, RFC 3849). Connecting a UDP socket sends nothing.
func defaultInterface() (*net.Interface, error) {
	for _, probe := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", probe)
		if err != nil {
			continue
		}
		local := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		conn.Close()
		all, err := net.Interfaces()
		if err != nil {
			return nil, err
		}
		for _, i := range all {
			if has(i, local) {
				return &i, nil
			}
		}
	}
	return nil, fmt.Errorf("there is no default route: name the interface in underlay.interface")
}

func has(i net.Interface, want netip.Addr) bool {
	addrs, err := i.Addrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == want {
			return true
		}
	}
	return false
}
