package nft

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// example has two VPCs, one of them with two tenants, and one port in each tenant.
func example() intent.Node {
	return intent.Node{
		Name: "n1", MTU: 1450, Underlay: prefixes("172.30.0.11/24"), VTEPMAC: packet.VTEPMAC("n1"),
		VPCs: []intent.VPC{
			{Name: "blue", VNI: 20, Tenants: []packet.VNI{21, 22}},
			{Name: "default", VNI: 10},
		},
		Subnets: []intent.Subnet{
			{VPC: "blue", Name: "blue", CIDRs: prefixes("10.2.0.0/16", "fd02::/48"), Overlay: true},
			{VPC: "default", Name: "default", CIDRs: prefixes("10.1.0.0/16"), Overlay: true},
		},
		Peers:   []intent.Peer{{Name: "n2", Addrs: addrs("172.30.0.12"), Outer: addrs("172.30.0.12")[0]}},
		Tunnels: []intent.TunnelAddress{{VPC: "blue", Subnet: "blue", Addr: addrs("fd02::1")[0]}, {VPC: "default", Subnet: "default", Addr: addrs("10.1.0.1")[0]}},
		Ports: []intent.Port{
			{ID: "a/eth0", VPC: "blue", VNI: 21, HostInterface: "flpaaa", Addresses: addrs("10.2.0.5", "fd02::5")},
			{ID: "b/eth0", VPC: "blue", VNI: 22, HostInterface: "flpbbb", Addresses: addrs("10.2.0.6")},
			{ID: "c/eth0", VPC: "default", VNI: 10, HostInterface: "flpccc", Addresses: addrs("10.1.0.5")},
		},
		NATs: []intent.NAT{
			{VPC: "blue", Name: "blue", Sources: prefixes("10.2.0.0/16", "fd02::/48"), Except: SetSubnets},
			{VPC: "default", Name: "default", Sources: prefixes("10.1.0.0/16"), Except: SetSubnets},
		},
		AddressSets: []intent.AddressSet{
			{VPC: "blue", Name: SetSubnets, Prefixes: prefixes("10.2.0.0/16", "fd02::/48")},
			{VPC: "default", Name: SetDirect, Prefixes: prefixes("10.1.3.0/26")},
			{VPC: "default", Name: SetSubnets, Prefixes: prefixes("10.1.0.0/16")},
		},
	}
}

func TestRenderGolden(t *testing.T) {
	for name, n := range map[string]intent.Node{"empty": {Name: "n1"}, "tenants": example(), "policies": restricted()} {
		t.Run(name, func(t *testing.T) {
			table := Render(n, Options{})
			if err := table.Validate(); err != nil {
				t.Fatalf("the table is not valid: %v", err)
			}
			file := filepath.Join("testdata", name+".nft")
			if *update {
				if err := os.WriteFile(file, []byte(table.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v (run with -update to write it)", err)
			}
			if diff := cmp.Diff(string(want), table.String()); diff != "" {
				t.Errorf("rendered table differs (-want +got):\n%s", diff)
			}
		})
	}
}

// The text of a table does not depend on the order in which decide lists things
// of equal rank.
func TestRenderIgnoresOrder(t *testing.T) {
	want := Render(example(), Options{}).String()
	for range 20 {
		n := example()
		rand.Shuffle(len(n.Ports), func(i, j int) { n.Ports[i], n.Ports[j] = n.Ports[j], n.Ports[i] })
		rand.Shuffle(len(n.Peers), func(i, j int) { n.Peers[i], n.Peers[j] = n.Peers[j], n.Peers[i] })
		if got := Render(n, Options{}).String(); got != want {
			t.Fatalf("order changed the table (-want +got):\n%s", cmp.Diff(want, got))
		}
	}
}

// A VPC that has no Subnet, yet or any more, is no reason for a table that the kernel
// refuses.
func TestVPCWithoutSubnet(t *testing.T) {
	n := example()
	n.VPCs = append(n.VPCs, intent.VPC{Name: "empty", VNI: 30, Tenants: []packet.VNI{31}})
	if err := Render(n, Options{}).Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestHostileNames(t *testing.T) {
	n := example()
	long := strings.Repeat("s", 250)
	for _, name := range []string{long, "a\nb", `"; flush ruleset; "`, "$(x)", "é", "{}", "", "A B", strings.Repeat("é", 300), "\xff\x00"} {
		n.Subnets[0].Name, n.NATs[0].Name, n.VPCs[0].Name = name, name, name
		n.Subnets[0].VPC, n.NATs[0].VPC, n.AddressSets[0].VPC, n.Tunnels[0].VPC = name, name, name, name
		for i := range 2 {
			n.Ports[i].VPC = name
		}
		if err := Render(n, Options{}).Validate(); err != nil {
			t.Fatalf("name %q: %v", name, err)
		}
	}
}

func TestSetNamesDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "A", "a_b", "a b", "a$b", "é", "è", "", "-"} {
		got := setName("nat-", name)
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q have the set name %q", name, other, got)
		}
		seen[got] = name
	}
}
