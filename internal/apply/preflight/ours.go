package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// Ours lists what the kernel of this host holds that is Fairlead's, in the calling thread's
// network namespace, and what is pinned in bpfDir: links, routes, tables and pins, by the
// names and numbers of package claims. Nothing is changed.
func Ours(bpfDir string) ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the links: %w", err)
	}
	var out []string
	for _, l := range links {
		if ourLink(l.Attrs().Name) {
			out = append(out, "link "+l.Attrs().Name)
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: claims.RouteProtocol, Table: unix.RT_TABLE_UNSPEC},
		netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST {
			out = append(out, fmt.Sprintf("route %s to nowhere", r.Dst))
			continue
		}
		by := []string{linkName(r.LinkIndex)}
		if len(r.MultiPath) > 0 {
			by = nil
			for _, hop := range r.MultiPath {
				by = append(by, linkName(hop.LinkIndex))
			}
		}
		out = append(out, fmt.Sprintf("route %s by %s", r.Dst, strings.Join(by, " and ")))
	}
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("list the tables of nftables: %w", err)
	}
	tables, err := c.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list the tables of nftables: %w", err)
	}
	for _, t := range tables {
		if t.Name == claims.NFTTable && t.Family == nftables.TableFamilyINet {
			out = append(out, "table inet "+t.Name)
		}
	}
	pins, err := os.ReadDir(bpfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, p := range pins {
		out = append(out, "BPF pin "+filepath.Join(bpfDir, p.Name()))
	}
	slices.Sort(out)
	return out, nil
}

func ourLink(name string) bool {
	return strings.HasPrefix(name, claims.PortPrefix) || strings.HasPrefix(name, claims.TemporaryLinks) ||
		slices.Contains([]string{claims.VXLANDevice, claims.OVSBridge, claims.OVSHostPort, claims.OVSUnderlayBridge}, name)
}
