package topology_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/lab/topology"
)

func lines(h topology.Host) []string {
	var out []string
	for _, a := range h.Addresses {
		out = append(out, a.String())
	}
	for _, g := range h.Gateways {
		out = append(out, "via "+g.String())
	}
	return out
}

func TestNew(t *testing.T) {
	p, err := topology.New(3, 2, topology.DefaultUnderlay())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{"outside": lines(p.Outside), "control": lines(p.Control)}
	for _, n := range p.Nodes {
		got[n.Name+" in "+n.Segment] = lines(n)
	}
	want := map[string][]string{
		"node-1 in segment-1": {"172.30.0.11/24", "fd00:30::11/64", "via 172.30.0.1", "via fd00:30::1"},
		"node-2 in segment-2": {"172.30.1.12/24", "fd00:30:1::12/64", "via 172.30.1.1", "via fd00:30:1::1"},
		"node-3 in segment-1": {"172.30.0.13/24", "fd00:30::13/64", "via 172.30.0.1", "via fd00:30::1"},
		"outside":             {"172.30.254.10/24", "fd00:30:254::10/64", "via 172.30.254.1", "via fd00:30:254::1"},
		"control":             {"172.30.255.2/24", "fd00:30:255::2/64", "via 172.30.255.1", "via fd00:30:255::1"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("addresses (-want +got):\n%s", d)
	}
}

func TestAddressesAreUnique(t *testing.T) {
	p, err := topology.New(topology.MaxNodes, 7, topology.DefaultUnderlay())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]string{}
	for _, h := range append(p.Nodes, p.Outside, p.Control) {
		for _, a := range append(h.Addrs(), h.Gateways...) {
			if other, ok := seen[a]; ok && other != "router" && other != h.Name {
				t.Errorf("%s belongs to %s and to %s", a, other, h.Name)
			}
			seen[a] = h.Name
		}
		for _, g := range h.Gateways {
			seen[g] = "router"
		}
	}
}

func TestRefused(t *testing.T) {
	prefixes := func(s ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	for _, tc := range []struct {
		name            string
		nodes, segments int
		underlay        []netip.Prefix
	}{
		{"no nodes", 0, 1, topology.DefaultUnderlay()},
		{"too many nodes", 201, 1, topology.DefaultUnderlay()},
		{"no segment", 1, 0, topology.DefaultUnderlay()},
		{"empty segments", 2, 3, topology.DefaultUnderlay()},
		{"no underlay", 1, 1, nil},
		{"small underlay", 1, 1, prefixes("172.30.0.0/24")},
		{"two of a family", 1, 1, prefixes("172.30.0.0/16", "172.31.0.0/16")},
		{"host bits", 1, 1, prefixes("172.30.1.0/16")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := topology.New(tc.nodes, tc.segments, tc.underlay); err == nil {
				t.Error("accepted")
			}
		})
	}
}
