package linuxplane

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
)

// A pod does not get at the metadata service that a cloud has for the node; the node
// does, and a pod gets at what the node itself serves at a link-local address.
func TestLinkLocalStaysOnTheNode(t *testing.T) {
	c := newCluster(t, true, false)
	here, cloud := c.nodes[0], c.nodes[1]
	metadata, cache := netip.MustParseAddrPort("169.254.169.254:8080"), netip.MustParseAddrPort("169.254.20.10:8080")
	for m, addr := range map[*member]netip.Addr{cloud: metadata.Addr(), here: cache.Addr()} {
		h := handle(t, m.ns)
		lo, err := h.LinkByName("lo")
		if err == nil {
			err = h.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}})
		}
		if err != nil {
			t.Fatal(err)
		}
		netnstest.Serve(t, m.ns, 8080)
	}
	err := handle(t, here.ns).RouteAdd(&netlink.Route{
		Dst: &net.IPNet{IP: metadata.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}, Gw: underlay(1)[0].Addr().AsSlice(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := netnstest.Probe(t.Context(), here.ns, "tcp", metadata); err != nil {
		t.Errorf("node to its cloud's metadata: %v", err)
	}
	if _, err := netnstest.Probe(t.Context(), here.pods[0], "tcp", cache); err != nil {
		t.Errorf("pod to the node's own service: %v", err)
	}
	if _, err := netnstest.Probe(t.Context(), here.pods[0], "tcp", netip.AddrPortFrom(underlay(1)[0].Addr(), 8080)); err != nil {
		t.Errorf("pod to the outside: %v", err)
	}
	if _, err := netnstest.Probe(t.Context(), here.pods[0], "tcp", metadata); err == nil {
		t.Error("pod to the cloud's metadata: answered")
	}
}
