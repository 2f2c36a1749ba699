package linuxplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// impatient sends to an address, always from the same port and all the time, whether
// anybody has it or not. It returns how many packets it has sent.
func (c *cluster) impatient(from *netns.NS, to netip.Addr) *atomic.Int64 {
	c.Helper()
	var conn *net.UDPConn
	err := from.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 80)))
		return err
	})
	if err != nil {
		c.Fatal(err)
	}
	var sent atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_, _ = conn.Write([]byte("x")) // an error is that of an earlier packet
				sent.Add(1)
			}
		}
	})
	c.Cleanup(func() {
		cancel()
		running.Wait()
		_ = conn.Close()
	})
	return &sent
}

// arrivals counts what comes into a namespace for some addresses.
func (c *cluster) arrivals(ns *netns.NS, addrs []netip.Addr) *atomic.Int64 {
	c.Helper()
	fd := -1
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		return err
	})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	}
	if err != nil {
		c.Fatal(err)
	}
	var got atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		b := make([]byte, 2048)
		for ctx.Err() == nil {
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err == nil && slices.Contains(addrs, destination(b[:n])) {
				got.Add(1)
			}
		}
	})
	c.Cleanup(func() {
		cancel()
		running.Wait()
		_ = unix.Close(fd)
	})
	return &got
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// destination of an IP packet.
func destination(b []byte) (a netip.Addr) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		a, _ = netip.AddrFromSlice(b[16:20])
	case len(b) >= 40 && b[0]>>4 == 6:
		a, _ = netip.AddrFromSlice(b[24:40])
	}
	return a
}

// until waits for something that the test's own senders bring about.
func (c *cluster) until(what string, is func() bool) {
	c.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); {
		if time.Now().After(deadline) {
			c.Fatalf("not in time: %s", what)
		}
	}
}

// A flow to an address may be older than the pod that gets it, and was allowed then: the
// address was nobody's. The pod gets nothing of it.
func TestNewPortsInheritNoFlow(t *testing.T) {
	for _, encapsulate := range []bool{true, false} {
		for _, tc := range []struct {
			name string
			// steps are the states of the node between the one without the block and the
			// one with the port.
			steps func(n intent.Node, local, lent []intent.Route) []intent.Node
			o     apply.Options
		}{
			{name: "new block", steps: func(intent.Node, []intent.Route, []intent.Route) []intent.Node { return nil }},
			{name: "new block, add only", o: apply.Options{AddOnly: true}, steps: func(intent.Node, []intent.Route, []intent.Route) []intent.Node { return nil }},
			{name: "own block", steps: func(n intent.Node, local, _ []intent.Route) []intent.Node {
				return []intent.Node{routed(n, local)}
			}},
			{name: "address that was lent to another node", steps: func(n intent.Node, local, lent []intent.Route) []intent.Node {
				return []intent.Node{routed(n, local, lent)}
			}},
		} {
			t.Run(fmt.Sprintf("%s, encapsulate %t", tc.name, encapsulate), func(t *testing.T) {
				c := newCluster(t, encapsulate, false)
				var local, lent, there []intent.Route
				var addrs []netip.Addr
				for _, p := range []netip.Prefix{netip.MustParsePrefix("10.128.9.0/26"), netip.MustParsePrefix("fd00:128:0:9::/122")} {
					a := nth(p, 5)
					addrs = append(addrs, a)
					local = append(local, intent.Route{VPC: "default", Dst: p, NextHop: intent.NextHop{Local: true}})
					lent = append(lent, intent.Route{VPC: "default", Dst: netip.PrefixFrom(a, a.BitLen()), NextHop: intent.NextHop{Peer: "n1"}, Encapsulate: encapsulate})
					there = append(there, intent.Route{VPC: "default", Dst: p, NextHop: intent.NextHop{Peer: "n0"}, Encapsulate: encapsulate})
				}
				c.nodes[1].intent = routed(c.nodes[1].intent, there)
				c.apply(1)
				c.arrive(addrs, local, tc.steps(c.nodes[0].intent, local, lent), tc.o)
			})
		}
	}
}

// routed is an intent with more routes.
func routed(n intent.Node, more ...[]intent.Route) intent.Node {
	n.Routes = slices.Concat(append([][]intent.Route{n.Routes}, more...)...)
	slices.SortFunc(n.Routes, intent.Route.Compare)
	return n
}

func (c *cluster) arrive(addrs []netip.Addr, local []intent.Route, steps []intent.Node, o apply.Options) {
	here, ns := c.nodes[0], netnstest.New(c.T)
	port := intent.Port{ID: "late/eth0", VPC: "default", VNI: here.intent.Ports[0].VNI, Pod: "test/late", Interface: "eth0", HostInterface: "flplate", Netns: ns.String(), MAC: packet.PodMAC("default", addrs[0]), Addresses: addrs}
	got := c.arrivals(ns, addrs)
	sent := map[netip.Addr][]*atomic.Int64{}
	for _, a := range addrs {
		for _, m := range c.nodes {
			sent[a] = append(sent[a], c.impatient(m.pods[0], a))
		}
	}
	judged := func(a netip.Addr) bool {
		return len(c.marksOf(0, func(f conntrack.Flow) bool {
			return f.Src == own(here.intent.Ports[0], a) && f.ReplySrc == a && f.Mark&claims.CTJudged != 0
		})) > 0
	}
	for _, a := range addrs {
		c.until("a judged flow to "+a.String(), func() bool { return judged(a) })
	}
	more := func() {
		c.Helper()
		for a, senders := range sent {
			for _, s := range senders {
				from := s.Load()
				c.until("packets to "+a.String(), func() bool { return s.Load() > from+100 })
			}
		}
	}
	for _, n := range steps {
		here.intent = n
		c.apply(0)
		more()
	}
	here.intent = routed(c.without(here.intent, local, addrs), local)
	here.intent.Ports = append(slices.Clone(here.intent.Ports), port)
	slices.SortFunc(here.intent.Ports, intent.Port.Compare)
	i := slices.IndexFunc(here.intent.Ports, func(p intent.Port) bool { return p.ID == port.ID })
	here.list(i, intent.Ingress, intent.Match{})
	c.report(0, o)
	more()
	if n := got.Load(); n > 0 {
		c.Errorf("%d packets that are forbidden came to the new pod", n)
	}
	for _, a := range addrs {
		if judged(a) {
			c.Errorf("a flow to %s that nobody may send is taken for judged", a)
		}
	}
	here.allow()
	c.apply(0)
	before := got.Load()
	c.until("allowed packets: the test tests nothing", func() bool { return got.Load() > before+10 })
}

// without takes routes out that lead to the block, or to one of its addresses.
func (c *cluster) without(n intent.Node, local []intent.Route, addrs []netip.Addr) intent.Node {
	n.Routes = slices.DeleteFunc(slices.Clone(n.Routes), func(r intent.Route) bool {
		return slices.ContainsFunc(local, func(l intent.Route) bool { return l.Dst == r.Dst }) ||
			slices.ContainsFunc(addrs, func(a netip.Addr) bool { return r.Dst == netip.PrefixFrom(a, a.BitLen()) })
	})
	return n
}

// own is the address of a port in the family of another address.
func own(p intent.Port, a netip.Addr) netip.Addr {
	i := slices.IndexFunc(p.Addresses, func(o netip.Addr) bool { return o.Is4() == a.Is4() })
	return p.Addresses[i]
}
