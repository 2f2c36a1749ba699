package linuxplane

import (
	"net/netip"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/intent"
)

func TestVacancy(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	local := func(p string) intent.Route {
		return intent.Route{VPC: "default", Dst: prefix(p), NextHop: intent.NextHop{Local: true}}
	}
	peer := func(p string) intent.Route {
		return intent.Route{VPC: "default", Dst: prefix(p), NextHop: intent.NextHop{Peer: "n2"}}
	}
	pod := func(a string) intent.Port { return intent.Port{ID: a, Addresses: []netip.Addr{addr(a)}} }
	own := []intent.Route{local("10.0.0.0/26"), local("fd00::/122")}
	with := func(ports []intent.Port, more ...intent.Route) intent.Node {
		return intent.Node{Routes: append(more, own...), Ports: ports}
	}
	for _, tt := range []struct {
		name  string
		after []intent.Node // the first is the one at which flows were forgotten
		addr  string
		want  bool
	}{
		{"nothing is known at first", nil, "10.0.0.5", false},
		{"vacant since", []intent.Node{with(nil), with(nil)}, "10.0.0.5", true},
		{"vacant since, IPv6", []intent.Node{with(nil)}, "fd00::5", true},
		{"not of a block", []intent.Node{with(nil)}, "10.0.0.64", false},
		{"another's block", []intent.Node{with(nil, peer("10.0.1.0/26"))}, "10.0.1.5", false},
		{"came at that time", []intent.Node{with([]intent.Port{pod("10.0.0.5")})}, "10.0.0.5", false},
		{"came and went", []intent.Node{with(nil), with([]intent.Port{pod("10.0.0.5")}), with(nil)}, "10.0.0.5", false},
		{"another came and went", []intent.Node{with(nil), with([]intent.Port{pod("10.0.0.5")}), with(nil)}, "10.0.0.6", true},
		{"was lent", []intent.Node{with(nil), with(nil, peer("10.0.0.5/32")), with(nil)}, "10.0.0.5", false},
		{"part of its block was elsewhere", []intent.Node{with(nil), with(nil, peer("10.0.0.0/28")), with(nil)}, "10.0.0.5", false},
		{"the block went and came back", []intent.Node{with(nil), {Routes: own[1:]}, with(nil)}, "10.0.0.5", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var v vacancy
			for i, n := range tt.after {
				if i == 0 {
					v.forgotten(n)
				} else {
					v.follow(n)
				}
			}
			if got := v.has(addr(tt.addr)); got != tt.want {
				t.Errorf("has(%s) is %t, want %t", tt.addr, got, tt.want)
			}
			v.forget()
			if v.has(addr(tt.addr)) {
				t.Errorf("has(%s) after everything was forgotten", tt.addr)
			}
		})
	}
}
