package ovsplane

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// A flow to an address may be older than the pod that gets it, and was allowed then: the
// address was somebody else's. The pod gets nothing of it.
func TestNewPortsInheritNoFlow(t *testing.T) {
	addrs := []netip.Addr{addr("10.128.9.5"), addr("fd00:128:0:9::5")}
	local := []intent.Route{here("10.128.9.0/26"), here("fd00:128:0:9::/122")}
	lent := []intent.Route{there("10.128.9.5/32"), there("fd00:128:0:9::5/128")}
	for _, tc := range []struct {
		name string
		// steps are routes between those that lead elsewhere and those of the new port.
		steps [][]intent.Route
		o     apply.Options
	}{
		{name: "new block"},
		{name: "new block, add only", o: apply.Options{AddOnly: true}},
		{name: "own block", steps: [][]intent.Route{local}},
		{name: "address that was lent to another node", steps: [][]intent.Route{append(slices.Clone(local), lent...)}},
		{name: "address that was lent and came back", steps: [][]intent.Route{append(slices.Clone(local), lent...), local}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			p := n.open(t)
			t.Cleanup(func() { _ = p.Close() })
			base := n.intentOf(t, 1)
			with := func(routes []intent.Route) intent.Node {
				out := base
				out.Routes = append(slices.Clone(base.Routes), routes...)
				slices.SortFunc(out.Routes, intent.Route.Compare)
				return out
			}
			applied(t, p, with([]intent.Route{there("10.128.9.0/26"), there("fd00:128:0:9::/122")}), apply.Options{})
			sent := n.impatient(t, base.Ports[0], addrs)
			judged := func() (out int) {
				for line := range strings.Lines(n.ovs.Run("ovs-appctl", "dpctl/dump-conntrack", "netdev@ovs-netdev")) {
					if c, ok := parseConnection(strings.TrimSpace(line)); ok && slices.Contains(addrs, c.dst) && c.mark != 0 {
						out++
					}
				}
				return out
			}
			until(t, "flows to the address elsewhere", func() bool { return judged() == len(addrs) })
			for _, routes := range tc.steps {
				applied(t, p, with(routes), apply.Options{})
				from := sent.Load()
				until(t, "more packets", func() bool { return sent.Load() > from+200 })
			}
			desired := with(local)
			ns := netnstest.New(t)
			up(t, handle(t, ns), "lo")
			n.pods[ns.String()] = ns
			got := n.arrivals(t, ns.String())
			late := intent.Port{
				ID: "late/eth0", VPC: packet.DefaultVPC, VNI: 10, Pod: "test/late", Netns: ns.String(), Interface: "eth0",
				HostInterface: "flplate", MAC: packet.PodMAC(packet.DefaultVPC, addrs[0]), Addresses: addrs, Ingress: "deny",
			}
			desired.Ports = append(slices.Clone(desired.Ports), late)
			slices.SortFunc(desired.Ports, intent.Port.Compare)
			desired.RuleLists = []intent.RuleList{{
				ID: "deny", Direction: intent.Ingress, VPC: packet.DefaultVPC, Rules: []intent.Rule{{Tier: intent.TierNetworkPolicy, Action: intent.Deny}},
			}}
			if _, err := p.Apply(t.Context(), desired, tc.o); err != nil {
				t.Fatal(err)
			}
			from := sent.Load()
			until(t, "more packets", func() bool { return sent.Load() > from+400 })
			if got.Load() > 0 || judged() > 0 {
				t.Errorf("%d packets that are forbidden came to the new pod, %d flows are judged", got.Load(), judged())
			}
			i := slices.IndexFunc(desired.Ports, func(p intent.Port) bool { return p.ID == late.ID })
			desired.Ports = slices.Clone(desired.Ports)
			desired.Ports[i].Ingress = ""
			applied(t, p, desired, apply.Options{})
			until(t, "allowed packets: the test tests nothing", func() bool { return got.Load() > 10 })
		})
	}
}

func here(dst string) intent.Route {
	return intent.Route{VPC: packet.DefaultVPC, Dst: netip.MustParsePrefix(dst), NextHop: intent.NextHop{Local: true}}
}

func there(dst string) intent.Route {
	return intent.Route{VPC: packet.DefaultVPC, Dst: netip.MustParsePrefix(dst), NextHop: intent.NextHop{Peer: "n2"}, Encapsulate: true}
}

// impatient sends to addresses, always from the same ports and all the time, whether
// anybody has them or not. It returns how many packets it has sent.
func (n *node) impatient(t *testing.T, from intent.Port, to []netip.Addr) *atomic.Int64 {
	t.Helper()
	var sent atomic.Int64
	for _, a := range to {
		var conn net.Conn
		err := n.pods[from.Netns].Do(func() (err error) {
			conn, err = net.Dial("udp", netip.AddrPortFrom(a, 80).String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			tick := time.NewTicker(300 * time.Microsecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
					_, _ = conn.Write([]byte("x")) // an error is that of an earlier packet
					sent.Add(1)
				}
			}
		}()
		t.Cleanup(func() {
			close(stop)
			<-done
			conn.Close()
		})
	}
	return &sent
}

// arrivals counts the datagrams that a namespace gets on port 80.
func (n *node) arrivals(t *testing.T, ns string) *atomic.Int64 {
	t.Helper()
	var got atomic.Int64
	var conn net.PacketConn
	err := n.pods[ns].Do(func() (err error) {
		conn, err = net.ListenPacket("udp", "[::]:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 64)
		for {
			if _, _, err := conn.ReadFrom(b); err != nil {
				return
			}
			got.Add(1)
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return &got
}
