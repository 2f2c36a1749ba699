package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
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

func TestABatchTellsWhatBecameOfEach(t *testing.T) {
	c, err := dial(netnstest.New(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	here := addressRequest(addrKey{1, netip.MustParsePrefix("10.0.0.1/32")})
	there := addressRequest(addrKey{1, netip.MustParsePrefix("10.0.0.2/32")})
	nowhere := addressRequest(addrKey{99, netip.MustParsePrefix("10.0.0.3/32")})
	stop := errors.New("stop")
	tests := []struct {
		name   string
		batch  []request
		refuse int // from which request on; -1 for none
		want   []error
	}{
		{"nothing", nil, -1, nil},
		{"all succeed", []request{here, there}, -1, nil},
		{"the first, the one in the middle and the last fail", []request{here, addressRemoval(addrKey{1, netip.MustParsePrefix("10.0.0.2/32")}), nowhere, there, nowhere}, -1, []error{unix.EEXIST, nil, unix.ENODEV, nil, unix.ENODEV}},
		{"one fails, the next is refused", []request{here, nowhere}, 1, []error{unix.EEXIST, stop}},
		{"all are refused", []request{here, there}, 0, []error{stop, stop}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			count := 0
			c.refuse = func() error {
				if count++; tt.refuse >= 0 && count > tt.refuse {
					return stop
				}
				return nil
			}
			got := c.batch(tt.batch)
			if len(got) != len(tt.want) {
				t.Fatalf("got %v, want %v", got, tt.want)
			}
			for i := range got {
				if !errors.Is(got[i], tt.want[i]) {
					t.Errorf("request %d: got %v, want %v", i, got[i], tt.want[i])
				}
			}
		})
	}
	// What lies unread from a batch that failed is no answer to the next request.
	if _, ok, err := c.link("lo"); err != nil || !ok {
		t.Errorf("look for lo: %t, %v", ok, err)
	}
}
