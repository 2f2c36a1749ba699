package rtnl

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// What the kernel sends is never trusted to be whole.
func FuzzParse(f *testing.F) {
	kinds := []uint16{
		unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_NEWROUTE, unix.RTM_DELROUTE,
		unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH, unix.RTM_NEWNETCONF,
	}
	f.Add(byte(4), []byte(exampleRoute().message()))
	f.Add(byte(6), []byte(neighHeader(neighKey{3, netip.MustParseAddr("fe80::1")}, unix.NUD_PERMANENT)))
	f.Add(byte(2), []byte(addrHeader(addrKey{3, netip.MustParsePrefix("10.0.0.1/32")})))
	f.Add(byte(0), []byte(linkHeader(1, 2, 3)))
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		if r, ok := parseRule(data); ok {
			_ = r.describe()
		}
		k := kinds[int(kind)%len(kinds)]
		e, ok := parseEvent(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: k}, Data: data})
		if !ok {
			return
		}
		if p, isAddr := e.key.(addrKey); isAddr && !p.prefix.IsValid() {
			t.Errorf("an address without a valid prefix: %v", p)
		}
		if e.key == nil {
			t.Error("an event about nothing")
		}
	})
}

func exampleRoute() route {
	return route{
		routeKey: routeKey{netip.MustParsePrefix("fd00:128::/48"), 1024}, protocol: 97, kind: unix.RTN_UNICAST, src: netip.MustParseAddr("fd00:128::1"),
		hops: []hop{{2, netip.MustParseAddr("2001:db8::2")}, {3, netip.MustParseAddr("2001:db8::3")}},
	}
}

// What is sent is what is read back.
func TestRouteMessage(t *testing.T) {
	for _, want := range []route{
		exampleRoute(),
		{routeKey: routeKey{netip.MustParsePrefix("10.0.0.0/8"), 0}, protocol: 97, kind: unix.RTN_UNICAST, hops: []hop{{index: 7}}},
		{routeKey: routeKey{netip.MustParsePrefix("0.0.0.0/0"), 5}, protocol: 97, kind: unix.RTN_UNREACHABLE},
	} {
		got, table, ok := parseRoute(want.message())
		if !ok || table != claims.RouteTable || !got.equal(want) {
			t.Errorf("%s: read back as (-want +got):\n%s", want.dst, cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got)))
		}
	}
}
