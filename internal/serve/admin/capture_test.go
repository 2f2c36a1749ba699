package admin

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCapturePath(t *testing.T) {
	for _, want := range []Capture{
		{Namespace: "shop", Pod: "web-0"},
		{Namespace: "shop", Pod: "web-0", Interface: "eth1", Filter: "tcp and (port 80 or net fd00::/8)", Snap: 96, Packets: 10, For: 90 * time.Second},
	} {
		u, err := url.Parse(want.Path())
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseCapture(u.Query())
		if d := cmp.Diff(want, got); d != "" || err != nil || u.Path != "/v1/capture" {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
	}
	for query, want := range map[string]string{
		"": "are needed", "namespace=a": "are needed", "namespace=a&pod=b&snap=-1": "snap", "namespace=a&pod=b&packets=x": "packets", "namespace=a&pod=b&for=1": "for",
	} {
		v, _ := url.ParseQuery(query)
		if _, err := ParseCapture(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", query, err, want)
		}
	}
}
