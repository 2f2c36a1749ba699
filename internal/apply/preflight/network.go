package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// minUnderlay is the least MTU at which a tunnelled packet of 1280 bytes, the least of IPv6,
// fits; the underlay may be IPv6 too.
const minUnderlay = 1280 + claims.VXLANOverhead6

// checkUnderlay looks at the link of the default route, which is the agents' choice.
func checkUnderlay() Check {
	const next = "give the node a default route, or name the interface in the agent's configuration (underlay.interface)"
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return missing("underlay", fmt.Errorf("read the routes: %w", err), "")
	}
	i := slices.IndexFunc(routes, func(r netlink.Route) bool { return r.LinkIndex > 0 && (r.Dst == nil || r.Dst.IP.IsUnspecified()) })
	if i < 0 {
		return Check{"underlay", Warning, "there is no default route", next}
	}
	l, err := netlink.LinkByIndex(routes[i].LinkIndex)
	if err != nil {
		return missing("underlay", fmt.Errorf("the link of the default route: %w", err), next)
	}
	a := l.Attrs()
	if a.MTU < minUnderlay {
		return Check{"underlay", Warning, fmt.Sprintf("the MTU of %s is %d bytes: pods that are reached by VXLAN have no IPv6 below %d", a.Name, a.MTU, minUnderlay), "raise the MTU"}
	}
	return ok("underlay", "%s, MTU %d: pods that are reached by VXLAN get %d over IPv4, %d over IPv6", a.Name, a.MTU, a.MTU-claims.VXLANOverhead4, a.MTU-claims.VXLANOverhead6)
}

// checkPort wants the VXLAN port, unless it is Fairlead that has it.
func checkPort() Check {
	name := fmt.Sprintf("port %d/UDP", claims.VXLANPort)
	if _, err := netlink.LinkByName(claims.VXLANDevice); err == nil {
		return ok(name, "Fairlead's own tunnel %s has it", claims.VXLANDevice)
	}
	for _, network := range []string{"udp4", "udp6"} {
		c, err := net.ListenUDP(network, &net.UDPAddr{Port: int(claims.VXLANPort)})
		switch {
		case errors.Is(err, unix.EAFNOSUPPORT):
			continue
		case err != nil:
			return missing(name, fmt.Errorf("somebody has it (%w)%s", err, otherTunnels()), "remove the other network, or what else listens: ss -lnup shows it, but for tunnels of the kernel: ip -d link show type vxlan")
		}
		_ = c.Close()
	}
	return ok(name, "is free")
}

// otherTunnels names the VXLAN links that there are.
func otherTunnels() string {
	links, err := netlink.LinkList()
	if err != nil {
		return ""
	}
	var names []string
	for _, l := range links {
		if v, ok := l.(*netlink.Vxlan); ok && v.Port == int(claims.VXLANPort) {
			names = append(names, v.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ": the tunnel " + strings.Join(names, ", ")
}

// checkConfigurations looks for other plugins' network configurations. A runtime takes the
// first of the directory.
func checkConfigurations(dir, own string) Check {
	const name = "CNI configurations"
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return ok(name, "%s is not there yet", dir)
	}
	if err != nil {
		return missing(name, err, "")
	}
	var first, later []string
	for _, e := range entries {
		if e.IsDir() || e.Name() == own || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		if e.Name() < own {
			first = append(first, e.Name())
		} else {
			later = append(later, e.Name())
		}
	}
	switch {
	case len(first) > 0:
		return missing(name, fmt.Errorf("%s sorts before %s in %s: the container runtime would use it", strings.Join(first, ", "), own, dir),
			"remove the other network, or install Fairlead's under a name that sorts first (cni.confFile)")
	case len(later) > 0:
		return Check{name, Warning, fmt.Sprintf("%s is also in %s: the container runtime would use it if Fairlead's were gone", strings.Join(later, ", "), dir), "remove the other network"}
	}
	return ok(name, "%s has none of others", dir)
}

// checkPrefixes holds the planned prefixes against each other.
func checkPrefixes(subnets, services []netip.Prefix) Check {
	const name = "prefixes"
	var wrong []string
	for i, s := range subnets {
		for _, other := range subnets[:i] {
			if s.Overlaps(other) {
				wrong = append(wrong, fmt.Sprintf("Subnet %s overlaps Subnet %s", s, other))
			}
		}
		for _, other := range services {
			if s.Overlaps(other) {
				wrong = append(wrong, fmt.Sprintf("Subnet %s overlaps the Services' %s", s, other))
			}
		}
	}
	switch {
	case len(wrong) > 0:
		return missing(name, errors.New(strings.Join(wrong, "; ")), "choose other prefixes")
	case len(subnets) == 0:
		return Check{name, Warning, "no Subnet was named: nothing was compared", "name them with --subnet, and the Services' with --service-cidr"}
	case len(services) == 0:
		return Check{name, Warning, "the Services' range was not named: it was not compared", "name it with --service-cidr"}
	}
	return ok(name, "Subnets and Services do not overlap")
}

// checkRoutes holds the planned Subnets against the networks that the host reaches.
func checkRoutes(subnets []netip.Prefix) Check {
	const name = "routes"
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return missing(name, fmt.Errorf("read the routes: %w", err), "")
	}
	var wrong []string
	for _, r := range routes {
		// Those of ours lead to pods; a default route is no network.
		if r.Dst == nil || r.Protocol == claims.RouteProtocol {
			continue
		}
		dst, ok := netipx.FromStdIPNet(r.Dst)
		if !ok || dst.Bits() == 0 {
			continue
		}
		for _, s := range subnets {
			if s.Overlaps(dst) {
				wrong = append(wrong, fmt.Sprintf("Subnet %s overlaps %s, which the host reaches by %s", s, dst, linkName(r.LinkIndex)))
			}
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return missing(name, errors.New(strings.Join(slices.Compact(wrong), "; ")), "choose another prefix, or remove the other network and its routes")
	}
	return ok(name, "none of the host's networks overlaps a Subnet")
}

func linkName(index int) string {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("link %d", index)
	}
	return l.Attrs().Name
}
