package ipam_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/ipam"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func TestCapacity(t *testing.T) {
	tests := []struct {
		cidrs, exclude []string
		v4, v6         uint64
	}{
		{cidrs: []string{"10.0.0.0/28"}, v4: 14},
		{cidrs: []string{"10.0.0.0/31"}, v4: 2},
		{cidrs: []string{"10.0.0.7/32"}, v4: 1},
		{cidrs: []string{"10.0.0.0/8"}, v4: 1<<24 - 2},
		{cidrs: []string{"10.0.0.0/28", "10.0.0.16/28"}, v4: 28},
		{cidrs: []string{"fd00::/64"}, v6: ipam.MaxCount},
		{cidrs: []string{"fd00::/48"}, v6: ipam.MaxCount},
		{cidrs: []string{"fd00::/66"}, v6: 1<<62 - 1},
		{cidrs: []string{"fd00::/127"}, v6: 2},
		{cidrs: []string{"fd00::1/128"}, v6: 1},
		{cidrs: []string{"10.0.0.0/28"}, exclude: []string{"10.0.0.0/29", "10.0.0.1/32", "192.0.2.0/24"}, v4: 7},
		{cidrs: []string{"10.0.0.0/28"}, exclude: []string{"10.0.0.0/8"}},
		{cidrs: []string{"::ffff:10.0.0.0/120"}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.cidrs, tt.exclude), func(t *testing.T) {
			s := ipam.Subnet{CIDRs: prefixes(tt.cidrs...), Exclude: prefixes(tt.exclude...)}
			if got := [2]uint64{s.Capacity(ipam.IPv4), s.Capacity(ipam.IPv6)}; got != [2]uint64{tt.v4, tt.v6} {
				t.Errorf("capacity %v, want [%d %d]", got, tt.v4, tt.v6)
			}
		})
	}
}

func TestExcluded(t *testing.T) {
	s := ipam.Subnet{Name: "s", CIDRs: prefixes("10.0.0.0/28", "fd00::/64"), Exclude: prefixes("10.0.0.8/30")}
	for addr, want := range map[string]string{
		"10.0.0.0": "it is the network address of 10.0.0.0/28", "10.0.0.15": "it is the broadcast address of 10.0.0.0/28",
		"fd00::": "it is the subnet-router anycast address of fd00::/64 (RFC 4291)", "10.0.0.9": "the Subnet excludes 10.0.0.8/30",
		"10.0.0.7": "", "fd00::ffff:ffff:ffff:ffff": "", "10.0.0.16": "",
	} {
		if got := s.Excluded(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
}

func TestNextBlockUsesUpTheSubnet(t *testing.T) {
	s := ipam.Subnet{Name: "s", CIDRs: prefixes("10.0.0.0/24", "10.9.0.0/28"), Exclude: prefixes("10.0.0.64/26")}
	var taken []netip.Prefix
	for {
		p, ok := ipam.NextBlock(s, taken, fmt.Sprintf("n%d", len(taken)), ipam.IPv4)
		if !ok {
			break
		}
		taken = append(taken, p)
	}
	got := map[string]bool{}
	for _, p := range taken {
		got[p.String()] = true
	}
	// The excluded block is never claimed; a CIDR smaller than a block is one block.
	want := map[string]bool{"10.0.0.0/26": true, "10.0.0.128/26": true, "10.0.0.192/26": true, "10.9.0.0/28": true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	if _, ok := ipam.NextBlock(s, nil, "a", ipam.IPv6); ok {
		t.Error("a Subnet without IPv6 has an IPv6 block")
	}
}

func TestNextBlockSpreads(t *testing.T) {
	s := ipam.Subnet{Name: "default", CIDRs: prefixes("10.128.0.0/14", "fd00::/48")}
	for _, f := range ipam.Families() {
		seen, collisions := map[netip.Prefix]bool{}, 0
		for i := range 100 {
			p, ok := ipam.NextBlock(s, nil, fmt.Sprintf("node-%03d", i), f)
			if !ok {
				t.Fatal("no block")
			}
			if again, _ := ipam.NextBlock(s, nil, fmt.Sprintf("node-%03d", i), f); again != p {
				t.Error("the same call gives another block")
			}
			if seen[p] {
				collisions++
			}
			seen[p] = true
		}
		if collisions > 6 { // Of 4,096 blocks 100 nodes hit 1.2 twice on average.
			t.Errorf("%s: %d of 100 nodes want a block that another wants", f, collisions)
		}
	}
}

// TestNextBlockProperty: a block is inside the Subnet, free, aligned, has a usable
// address, and there is one as long as a slow search finds one.
func TestNextBlockProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := netip.MustParseAddr("10.0.0.0")
		cidr := netip.PrefixFrom(base, rapid.IntRange(20, 30).Draw(t, "bits"))
		s := ipam.Subnet{Name: "s", CIDRs: []netip.Prefix{cidr}, BlockBits4: rapid.IntRange(20, 32).Draw(t, "block")}
		small := func(label string) netip.Prefix {
			a := netip.AddrFrom4([4]byte{10, 0, byte(rapid.IntRange(0, 15).Draw(t, label+" 3")), byte(rapid.IntRange(0, 255).Draw(t, label+" 4"))})
			return netip.PrefixFrom(a, rapid.IntRange(21, 32).Draw(t, label+" bits")).Masked()
		}
		for range rapid.IntRange(0, 5).Draw(t, "excludes") {
			s.Exclude = append(s.Exclude, small("exclude"))
		}
		var taken []netip.Prefix
		for range rapid.IntRange(0, 8).Draw(t, "taken") {
			taken = append(taken, small("taken"))
		}
		bits := max(s.BlockBits4, cidr.Bits())
		claimable := func(p netip.Prefix) bool {
			for _, tk := range taken {
				if tk.Overlaps(p) {
					return false
				}
			}
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				if s.Excluded(a) == "" {
					return true
				}
			}
			return false
		}
		exists := false
		for p := netip.PrefixFrom(cidr.Addr(), bits); cidr.Contains(p.Addr()) && !exists; {
			exists = claimable(p)
			a := p.Addr()
			for p.Contains(a) {
				a = a.Next()
			}
			p = netip.PrefixFrom(a, bits)
		}
		got, ok := ipam.NextBlock(s, taken, rapid.StringMatching(`[a-z]{1,4}`).Draw(t, "node"), ipam.IPv4)
		if ok != exists {
			t.Fatalf("found %v, but a block is claimable: %v", ok, exists)
		}
		if ok && (got.Bits() != bits || got != got.Masked() || !cidr.Contains(got.Addr()) || !claimable(got)) {
			t.Fatalf("block %s of %s is not claimable", got, cidr)
		}
	})
}

func TestSubnetUsage(t *testing.T) {
	s := ipam.Subnet{Name: "s", CIDRs: prefixes("10.0.0.0/28")}
	owner := world.Owner{Namespace: "web", Name: "p"}
	block := &world.Block{Subnet: "s", CIDR: s.CIDRs[0], Node: "a", Lent: []world.Loan{{Addr: netip.MustParseAddr("10.0.0.9"), Node: "b"}, {Addr: netip.MustParseAddr("10.0.0.10"), Node: "b"}}}
	block.Allocations = append(block.Allocations, world.Allocation{Addr: netip.MustParseAddr("10.0.0.1"), Owner: ipam.TunnelOwner("a")})
	for i := range 6 {
		block.Allocations = append(block.Allocations, world.Allocation{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}), Owner: owner})
	}
	other := &world.Block{Subnet: "other", CIDR: s.CIDRs[0], Node: "a", Allocations: block.Allocations}
	b := &world.NodeNetwork{Name: "b", Borrowed: []world.Allocation{
		{Addr: netip.MustParseAddr("10.0.0.9"), Owner: owner}, {Addr: netip.MustParseAddr("10.0.0.10"), Owner: ipam.UnusedOwner("b")},
	}}
	got := ipam.SubnetUsage(s, ipam.IPv4, []*world.Block{block, other}, []*world.NodeNetwork{b})
	want := ipam.Usage{Subnet: "s", Family: ipam.IPv4, Blocks: 1, Capacity: 13, Used: 7, Tunnels: 1, Free: 6, Percent: 53}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var back ipam.Usage
	if err := json.Unmarshal(text, &back); err != nil || back != got || !strings.Contains(string(text), `"family":"IPv4"`) {
		t.Errorf("as JSON %s, read again %+v, %v", text, back, err)
	}
}
