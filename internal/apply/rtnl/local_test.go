package rtnl

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
)

// busy adds and removes links in a namespace of its own until the test ends: all who change
// links, the kernel's own workers too, then wait for their turn.
func busy(t *testing.T) {
	h := handle(t, netnstest.New(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		for t.Context().Err() == nil {
			l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "busy"}, PeerName: "idle"}
			if err := h.LinkAdd(l); err != nil {
				t.Error(err)
				return
			}
			if err := h.LinkDel(l); err != nil {
				t.Error(err)
				return
			}
		}
	})
	t.Cleanup(wg.Wait) // the context ends before
}

// The IPv6 addresses of a pod that has just been set up, and the node's own, can be reached
// at once: the kernel makes their local routes some time after it has taken the addresses.
func TestAddressesReceiveAtOnce(t *testing.T) {
	busy(t)
	local := func(c *conn, what string, a netip.Addr) {
		t.Helper()
		if r, err := c.lookup(a); err != nil || r.kind != unix.RTN_LOCAL {
			t.Errorf("%s: the route to %s is %+v (%v), want a local one", what, a, r, err)
		}
	}
	const nodes, pods = 20, 5
	for range nodes {
		n, w := newNode(t), newWorld()
		for i := range pods {
			p := w.addPod(t, 2+2*i)
			w.addPod(t, 3+2*i) // one more at the same time
			inside, err := dial(w.pods[p.ID], nil)
			if err != nil {
				t.Fatal(err)
			}
			defer inside.close()
			n.mustApplyQuick(w)
			if i == 0 {
				local(n.d.conn, "node", w.Tunnels[1].Addr)
			}
			local(inside, "new pod", p.Addresses[1])
			port := &w.Ports[len(w.Ports)-2]
			port.Addresses = []netip.Addr{p.Addresses[0], netip.MustParseAddr("fd00:128::aaaa")}
			n.mustApplyQuick(w)
			local(inside, "new address", port.Addresses[1])
			w.Ports = nil
		}
	}
}

// Where a pod's own rules lead elsewhere, its port is set up all the same, after a while.
func TestAddressThatNeverReceives(t *testing.T) {
	n, w := newNode(t), newWorld()
	p := w.addPod(t, 2)
	pod := handle(t, w.pods[p.ID])
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = unix.AF_INET6, 0, claims.RouteTable
	if err := pod.RuleAdd(rule); err != nil {
		t.Fatal(err)
	}
	local := netlink.NewRule()
	local.Family, local.Priority, local.Table = unix.AF_INET6, 0, unix.RT_TABLE_LOCAL
	if err := pod.RuleDel(local); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	n.mustApply(w.state(), apply.Options{})
	if took := time.Since(start); took < localPatience {
		t.Errorf("it took %v, want a wait of %v", took, localPatience)
	}
}
