package intent

import (
	"net/netip"
	"testing"
)

func TestSource(t *testing.T) {
	a := netip.MustParseAddr
	n := Node{Tunnels: []TunnelAddress{
		{VPC: "blue", Subnet: "x", Addr: a("10.9.0.1")},
		{VPC: "default", Subnet: "old", Addr: a("10.1.0.1")},
		{VPC: "default", Subnet: "pods", Addr: a("10.2.0.1")},
		{VPC: "default", Subnet: "pods", Addr: a("fd02::1")},
	}}
	for _, tt := range []struct {
		name   string
		subnet Subnet
		is4    bool
		want   string
	}{
		{"its own address in the Subnet", Subnet{VPC: "default", Name: "pods", Overlay: true}, true, "10.2.0.1"},
		{"of the family", Subnet{VPC: "default", Name: "pods", Overlay: true}, false, "fd02::1"},
		{"another Subnet's of the VPC", Subnet{VPC: "default", Name: "new", Overlay: true}, true, "10.1.0.1"},
		{"never another VPC's", Subnet{VPC: "green", Name: "new", Overlay: true}, true, "invalid IP"},
		{"no tunnel address where there is no tunnel", Subnet{VPC: "default", Name: "plain"}, true, "invalid IP"},
	} {
		if got := n.Source(tt.subnet, tt.is4); got.String() != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
