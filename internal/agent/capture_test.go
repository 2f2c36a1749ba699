package agent

import (
	"bytes"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

func TestServeCaptureRefuses(t *testing.T) {
	n := newNode(t, cluster(t))
	n.boot()
	n.add("c1", "web")
	for _, tt := range []struct {
		name, path, want string
	}{
		{"nothing", "/v1/capture", "are needed"},
		{"a filter that is none", admin.Capture{Namespace: "shop", Pod: "web", Filter: "prot 80"}.Path(), "is no condition"},
		{"a pod that is elsewhere", admin.Capture{Namespace: "shop", Pod: "db"}.Path(), "node n1 has no link of pod shop/db"},
		{"an interface that is not there", admin.Capture{Namespace: "shop", Pod: "web", Interface: "eth9"}.Path(), `pod shop/web on node n1 has no interface "eth9" of Fairlead's; it has eth0`},
		// The plane of this test makes no links.
		{"a link that is gone", admin.Capture{Namespace: "shop", Pod: "web"}.Path(), "capture on "},
	} {
		var b bytes.Buffer
		if _, err := n.client.Stream(t.Context(), tt.path, &b); err == nil || !strings.Contains(err.Error(), tt.want) || b.Len() > 0 {
			t.Errorf("%s: %v, %d bytes; want %q", tt.name, err, b.Len(), tt.want)
		}
	}
	// Those that failed have given their places back; more than there are are refused.
	for range maxCaptures {
		if !n.agent.captures.begin() {
			t.Fatal("a capture that failed has kept its place")
		}
	}
	if _, err := n.client.Stream(t.Context(), admin.Capture{Namespace: "shop", Pod: "web"}.Path(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "4 captures run already") {
		t.Errorf("one too many: %v", err)
	}
}

// The packets are those of the host's end of the pod's link, and the journal tells of it.
func TestServeCapture(t *testing.T) {
	ns := netnstest.New(t)
	n := newNode(t, cluster(t))
	n.boot()
	n.add("c1", "web")
	u, err := url.Parse(admin.Capture{Namespace: "shop", Pod: "web", Filter: "ip6", Packets: 1, For: time.Minute}.Path())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	var note string
	err = ns.Do(func() error {
		a := netlink.NewLinkAttrs()
		a.Name = n.agent.attachments.List()[0].HostInterface
		// Both ends speak as soon as they are up: IPv6 looks for neighbours and routers.
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "pod0"}); err != nil {
			return err
		}
		for _, name := range []string{a.Name, "pod0"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		note, err = n.agent.serveCapture(t.Context(), u.Query(), &b)
		return err
	})
	if err != nil || !strings.HasPrefix(note, "1 packets, ") || b.Len() < 24+16+54 {
		t.Fatalf("%q, %v; %d bytes", note, err, b.Len())
	}
	var entries []journal.Entry
	if err := n.client.Get(t.Context(), "/v1/journal", &entries); err != nil {
		t.Fatal(err)
	}
	var notes []string
	for _, e := range entries {
		notes = append(notes, e.Note)
	}
	if text := strings.Join(notes, "\n"); !strings.Contains(text, "capture of pod shop/web") || !strings.Contains(text, "ended: 1 packets") {
		t.Errorf("the journal says %q", text)
	}
}
