package linuxplane

import (
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/intent"
)

func TestUntranslated(t *testing.T) {
	n := intent.Node{
		Underlay: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
		Tunnels:  []intent.TunnelAddress{{VPC: "v", Subnet: "s", Addr: netip.MustParseAddr("10.0.0.0")}},
		NATs:     []intent.NAT{{VPC: "v", Name: "s", Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64")}, Except: "subnets"}},
		AddressSets: []intent.AddressSet{
			{VPC: "v", Name: "subnets", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/15"), netip.MustParsePrefix("fd00::/48")}},
			{VPC: "other", Name: "subnets", Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
		},
	}
	for _, tc := range []struct {
		name, src, dst, reply string
		want                  bool
	}{
		{"began in a gap", "10.0.0.1", "203.0.113.1", "10.0.0.1", true},
		{"IPv6", "fd00::1", "2001:db8::1", "fd00::1", true},
		{"to another node", "10.0.0.1", "192.0.2.2", "10.0.0.1", true},
		{"masqueraded", "10.0.0.1", "203.0.113.1", "192.0.2.1", false},
		{"to a pod", "10.0.0.1", "10.1.0.1", "10.0.0.1", false},
		{"to the node itself", "10.0.0.1", "192.0.2.1", "10.0.0.1", false},
		{"of a Subnet that keeps its addresses", "10.1.0.1", "203.0.113.1", "10.1.0.1", false},
		{"the node's own", "192.0.2.1", "203.0.113.1", "192.0.2.1", false},
	} {
		f := conntrack.Flow{Src: netip.MustParseAddr(tc.src), Dst: netip.MustParseAddr(tc.dst), ReplyDst: netip.MustParseAddr(tc.reply)}
		if got := Untranslated(n, f); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
