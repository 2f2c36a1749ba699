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

// What is read of a request can be written, and is read as the same again.
func FuzzRequests(f *testing.F) {
	f.Add("src=10.0.0.1&dst=10.0.0.2&protocol=TCP&sport=1&dport=2&vni=4096&from=node")
	f.Add("namespace=shop&pod=web&for=3s&packets=9&snap=64&filter=tcp")
	f.Add("src=fd00::1%25eth0&dst=::ffff:10.0.0.1&protocol=icmpv6")
	again := func(t *testing.T, path string) url.Values {
		_, query, _ := strings.Cut(path, "?")
		v, err := url.ParseQuery(query)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return v
	}
	f.Fuzz(func(t *testing.T, query string) {
		v, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		if q, err := ParseQuestion(v); err == nil {
			if same, err := ParseQuestion(again(t, q.Path())); err != nil || same != q {
				t.Errorf("%q is %+v, and then %+v, %v", query, q, same, err)
			}
		}
		if c, err := ParseCapture(v); err == nil {
			if same, err := ParseCapture(again(t, c.Path())); err != nil || same != c {
				t.Errorf("%q is %+v, and then %+v, %v", query, c, same, err)
			}
		}
	})
}
