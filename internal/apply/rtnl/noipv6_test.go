package rtnl

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// The kernel takes IPv6 from a link with an MTU below 1280 bytes. What needs IPv4
// alone must not notice; what needs IPv6 is told why, and works with another MTU.
func TestNarrowMTU(t *testing.T) {
	n, w := newNode(t), newWorld()
	w.MTU = 1250
	a, b, dual := w.addPod(t, 2), w.addPod(t, 3), w.addPod(t, 4)
	for i := range w.Ports {
		if w.Ports[i].ID != dual.ID {
			w.Ports[i].Addresses = slices.DeleteFunc(slices.Clone(w.Ports[i].Addresses), netip.Addr.Is6)
		}
	}
	r := n.apply(w.state(), apply.Options{})
	told := map[string]bool{}
	for _, f := range r.Failed {
		told[f.Ref.Kind] = true
		switch f.Ref {
		case intent.PortRef(a.ID), intent.PortRef(b.ID):
			t.Errorf("a port without IPv6 failed: %v", f.Err)
		case intent.PortRef(dual.ID):
			if !errors.Is(f.Err, errNoIPv6) {
				t.Errorf("the port with IPv6: %v, want %v", f.Err, errNoIPv6)
			}
		}
	}
	if !told[intent.PortRef(dual.ID).Kind] || len(told) < 2 {
		t.Errorf("failures: %v, want the port and the tunnel's address with IPv6 among them", r.Failed)
	}
	netnstest.Serve(t, w.pods[b.ID], 8080)
	reach(t, w.pods[a.ID], b.Addresses[0])
	diffs, err := n.d.Audit(t.Context(), w.state())
	if err != nil {
		t.Errorf("audit: %v", err)
	}
	for _, d := range diffs {
		if strings.Contains(d.Object, a.HostInterface) {
			t.Errorf("audit of a port without IPv6: %v", d)
		}
	}

	w.MTU = 1400
	w.Ports[0].Addresses, w.Ports[1].Addresses = a.Addresses, b.Addresses
	n.mustApply(w.state(), apply.Options{})
	reach(t, w.pods[a.ID], b.Addresses[1])
	reach(t, w.pods[dual.ID], b.Addresses[1])
	if err := w.pods[a.ID].Do(func() error {
		raw, err := os.ReadFile("/proc/thread-self/net/if_inet6")
		for line := range strings.Lines(string(raw)) {
			if strings.HasPrefix(line, "fe80") && strings.Contains(line, "eth0") {
				t.Errorf("the pod has a link-local address: %s", line)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
