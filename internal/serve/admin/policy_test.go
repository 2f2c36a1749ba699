package admin

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

func TestQuestion(t *testing.T) {
	for _, want := range []Question{
		{Packet: packet.Packet{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), Protocol: packet.TCP, SrcPort: 49152, DstPort: 80, SYN: true}, VNI: 4097},
		{Packet: packet.Packet{Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2"), Protocol: packet.ICMPv6}, FromNode: true},
	} {
		u, err := url.Parse(want.Path())
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseQuestion(u.Query())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", u, d)
		}
	}
}

func TestBadQuestions(t *testing.T) {
	for _, tt := range []struct{ query, want string }{
		{"", "is no address"},
		{"src=10.0.0.1&dst=fd00::1&protocol=TCP", "two families"},
		{"src=10.0.0.1&dst=10.0.0.2&protocol=X", "protocol"},
		{"src=10.0.0.1&dst=10.0.0.2&protocol=TCP&dport=70000", "dport"},
		{"src=10.0.0.1&dst=10.0.0.2&protocol=TCP&dport=7&from=pod", "from"},
		{"src=10.0.0.1&dst=10.0.0.2&protocol=TCP&vni=99999999", "vni"},
	} {
		v, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseQuestion(v); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want it to say %q", tt.query, err, tt.want)
		}
	}
}
