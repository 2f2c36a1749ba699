package rtnl

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
)

// What a pod sends the moment after it was set up is not dropped by a link of which the
// kernel has yet to learn that it has a carrier.
func TestFirstPacketOfAPod(t *testing.T) {
	n, w := newNode(t), newWorld()
	n.mustApply(w.state(), apply.Options{})
	to := netip.AddrPortFrom(w.Tunnels[0].Addr, 8081)
	var node net.PacketConn
	err := n.ns.Do(func() (err error) {
		node, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	const bursts, pods = 6, 8
	for burst := range bursts {
		for i := range pods {
			w.addPod(t, 2+burst*pods+i)
		}
		fresh := w.Ports[len(w.Ports)-pods:]
		n.apply(w.state(), apply.Options{})
		// The last that was set up has had the least time.
		for i := range fresh {
			p := fresh[len(fresh)-1-i]
			err := w.pods[p.ID].Do(func() error {
				c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.Write([]byte(p.ID))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for range pods {
			if err := node.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := node.ReadFrom(make([]byte, 64)); err != nil {
				t.Fatalf("burst %d: the first packet of a pod did not arrive: %v", burst, err)
			}
		}
	}
}

// Where the kernel is busy with links each change waits for its turn. Those of ports that
// come, and those that set down the links of ports that go, wait together, not one after
// the other.
func TestPortsWaitTogether(t *testing.T) {
	n, w := newNode(t), newWorld()
	n.mustApply(w.state(), apply.Options{})
	for i := range atOnce {
		w.addPod(t, i+2)
	}
	var mu sync.Mutex
	waiting, all := 0, make(chan struct{})
	var alone atomic.Bool
	together := func() error {
		if alone.Load() {
			return errCrash
		}
		mu.Lock()
		met := all
		if waiting++; waiting == atOnce {
			waiting, all = 0, make(chan struct{})
			close(met)
		}
		mu.Unlock()
		limit := time.NewTimer(10 * time.Second)
		defer limit.Stop()
		select {
		case <-met:
			return nil
		case <-limit.C:
			alone.Store(true)
			return errCrash
		}
	}
	for _, c := range n.d.spare {
		c.refuse = together
	}
	n.d.conn.refuse = together
	n.d.dial = func(ns *netns.NS, also func() error) (*conn, error) {
		c, err := dial(ns, also)
		if err == nil && ns.ID() == n.d.ns.ID() {
			c.refuse = together
		}
		return c, err
	}
	r, err := n.try(t.Context(), w.state(), apply.Options{})
	if err != nil || alone.Load() {
		t.Fatalf("a change was asked for alone: %v, %v", err, r.Failed)
	}
	w.Ports = w.Ports[:len(w.Ports)-atOnce]
	if r, err = n.try(t.Context(), w.state(), apply.Options{}); err != nil || alone.Load() {
		t.Fatalf("a link was set down alone: %v, %v", err, r.Failed)
	}
	n.hook(func() error { return nil })
	for _, c := range n.d.spare {
		c.refuse = nil
	}
	n.audit()
}
