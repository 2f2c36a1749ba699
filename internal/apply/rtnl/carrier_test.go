package rtnl

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
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
