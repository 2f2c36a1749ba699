package linuxplane

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// nodePort leads to a pod of another node; serviceIP is an address of nobody that does.
const nodePort = 30080

var serviceIP = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}

// outside is a machine behind a router of its own on a node: it is in no Subnet, and the
// node forwards for it.
func (c *cluster) outside(m *member) (host *netns.NS, node []netip.Addr) {
	c.Helper()
	host = netnstest.New(c.T)
	here, there := handle(c.T, m.ns), handle(c.T, host)
	must := func(err error) {
		c.Helper()
		if err != nil {
			c.Fatal(err)
		}
	}
	must(here.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "outer"}, PeerName: "outer", PeerNamespace: netlink.NsFd(host.FD())}))
	for i, h := range []*netlink.Handle{here, there} {
		link, err := h.LinkByName("outer")
		must(err)
		for _, p := range []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:51::/64")} {
			a := nth(p, byte(i+1))
			must(h.AddrAdd(link, &netlink.Addr{IPNet: network(netip.PrefixFrom(a, p.Bits())), Flags: unix.IFA_F_NODAD}))
		}
		must(h.LinkSetUp(link))
	}
	node = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:51::1")}
	link, err := there.LinkByName("outer")
	must(err)
	for _, gw := range node {
		must(there.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.AsSlice(), Dst: network(netip.PrefixFrom(gw, 0).Masked())}))
	}
	return host, node
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// serve leads nodePort of the node, and serviceIP, to addresses, as a service proxy does,
// without masquerade.
func (c *cluster) serve(m *member, to []netip.Addr) {
	c.Helper()
	d, err := nft.Open(c.Context(), nft.Config{Table: "foreign", NetNS: m.ns.String(), Plain: true})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = d.Close() })
	var rules []nftables.Rule
	for i, a := range to {
		daddr := []nftables.Field{nftables.IPDaddr, nftables.IP6Daddr}[i]
		for _, dport := range []nftables.Field{nftables.TCPDport, nftables.UDPDport} {
			dnat := nftables.NAT{Kind: nftables.DNAT, Addr: a, Port: 8080}
			rules = append(rules,
				nftables.Rule{Statements: []nftables.Statement{nftables.Is(daddr, nftables.Addr(serviceIP[i])), nftables.Is(dport, nftables.Port(8080)), dnat}},
				nftables.Rule{Statements: []nftables.Statement{
					nftables.IsNot(daddr, nftables.Addr(a)), nftables.Is(dport, nftables.Port(nodePort)), dnat,
				}})
		}
	}
	base := func(h nftables.Hook) *nftables.Base {
		return &nftables.Base{Type: nftables.TypeNAT, Hook: h, Priority: -100}
	}
	_, err = d.Apply(c.Context(), nftables.Table{Name: "foreign", Chains: []nftables.Chain{
		{Name: "in", Base: base(nftables.HookPrerouting), Rules: rules},
		{Name: "out", Base: base(nftables.HookOutput), Rules: rules},
	}})
	if err != nil {
		c.Fatal(err)
	}
}

// What a node forwards into the tunnel for others, and what it sends there to a Service,
// bears the VPC's own VNI: it reaches pods of other nodes. Where there is one VPC, the
// tunnel's program gives it to what the node sends to a Service; else the filter.
func TestIntoTheTunnelFromElsewhere(t *testing.T) {
	for name, several := range map[string]bool{"one VPC": false, "two VPCs": true} {
		t.Run(name, func(t *testing.T) { intoTheTunnelFromElsewhere(t, several) })
	}
}

func intoTheTunnelFromElsewhere(t *testing.T, several bool) {
	c := newCluster(t, true, false)
	if several {
		addVPC(c, 0, netip.MustParsePrefix("10.77.0.0/16"))
	}
	entry, far := c.nodes[0], c.nodes[1]
	host, node := c.outside(entry)
	pod := far.intent.Ports[0].Addresses
	c.serve(entry, pod)
	for i := range pod {
		routable := netlink.Route{Dst: network(netip.PrefixFrom(serviceIP[i], serviceIP[i].BitLen())), Gw: underlay(1)[i].Addr().AsSlice()}
		if err := handle(t, entry.ns).RouteAdd(&routable); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name string
			from *netns.NS
			to   netip.AddrPort
		}{
			{"outside to a pod of another node", host, netip.AddrPortFrom(pod[i], 8080)},
			{"outside to a node port", host, netip.AddrPortFrom(node[i], nodePort)},
			{"the pod's node to another's node port", far.ns, netip.AddrPortFrom(underlay(0)[i].Addr(), nodePort)},
			{"a node to a Service", entry.ns, netip.AddrPortFrom(serviceIP[i], 8080)},
			{"a pod to a Service", entry.pods[0], netip.AddrPortFrom(serviceIP[i], 8080)},
		} {
			for _, proto := range []string{"tcp", "udp"} {
				if _, err := netnstest.Probe(t.Context(), tc.from, proto, tc.to); err != nil {
					t.Errorf("%s, %s to %s: %v", tc.name, proto, tc.to, err)
				}
			}
		}
	}
}

// A pod reaches its node by the node's address in another VPC no more than it reaches
// the pods there.
func TestNodeAddressOfAnotherVPC(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	netnstest.Serve(t, here.ns, 8080)
	other := netip.MustParsePrefix("10.77.0.0/16")
	addVPC(c, 0, other)
	own, foreign := here.intent.Tunnels[1].Addr, nth(other, 1)
	if _, err := netnstest.Probe(t.Context(), here.pods[0], "tcp", netip.AddrPortFrom(own, 8080)); err != nil {
		t.Errorf("the node's address in the pod's VPC: %v", err)
	}
	if _, err := netnstest.Probe(t.Context(), here.pods[0], "udp", netip.AddrPortFrom(foreign, 8080)); err == nil {
		t.Error("the node's address in another VPC answers")
	}
	drops, err := here.plane.Drops(t.Context())
	if err != nil || drops["another VPC"] == 0 {
		t.Errorf("drops %v %v, want some for another VPC", drops, err)
	}
}

// What is masqueraded takes its source port from those of clients, never one that a
// service of the node may listen on.
func TestMasqueradePorts(t *testing.T) {
	c := newCluster(t, true, false)
	from, to := c.nodes[0].pods[0], c.nodes[1].ns
	for i, own := range underlay(1) {
		var conn net.PacketConn
		err := to.Do(func() (err error) {
			conn, err = net.ListenPacket([]string{"udp4", "udp6"}[i], netip.AddrPortFrom(own.Addr(), 9000).String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		for k := range 40 {
			err := from.Do(func() error {
				local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.nodes[0].intent.Ports[0].Addresses[i], uint16(2000+k)))
				d := net.Dialer{LocalAddr: local}
				out, err := d.DialContext(t.Context(), "udp", netip.AddrPortFrom(own.Addr(), 9000).String())
				if err != nil {
					return err
				}
				defer out.Close()
				_, err = out.Write([]byte("x"))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(netnstest.Patience)); err != nil {
				t.Fatal(err)
			}
			_, sender, err := conn.ReadFrom(make([]byte, 8))
			if err != nil {
				t.Fatal(err)
			}
			at := netip.MustParseAddrPort(sender.String())
			if at.Addr() != underlay(0)[i].Addr() || at.Port() < 32768 || at.Port() > 60999 {
				t.Errorf("comes from %s, want the node and a port of clients", at)
			}
		}
	}
}

// addVPC gives a node an address in a Subnet of a VPC that has no pod here.
func addVPC(c *cluster, i int, cidr netip.Prefix) {
	c.Helper()
	n := &c.nodes[i].intent
	n.VPCs = append([]intent.VPC{{Name: "blue", VNI: 20}}, n.VPCs...)
	n.Subnets = append([]intent.Subnet{{VPC: "blue", Name: "blue", Overlay: true, CIDRs: []netip.Prefix{cidr}}}, n.Subnets...)
	n.Tunnels = append([]intent.TunnelAddress{{VPC: "blue", Subnet: "blue", Addr: nth(cidr, 1)}}, n.Tunnels...)
	n.AddressSets = append([]intent.AddressSet{{VPC: "blue", Name: intent.SetSubnets, Prefixes: []netip.Prefix{cidr}}}, n.AddressSets...)
	c.apply(i)
}

// Policies are one reason for drops, however many they are; who wants to know which asks
// for the rules.
func TestReasonsAreBounded(t *testing.T) {
	for comment, want := range map[string]string{
		rendernft.DeniedBy + "NetworkPolicy default/web rule 2":         "denied by policy",
		rendernft.DeniedBy + "ClusterNetworkPolicy a rule 1 and 7 more": "denied by policy",
		rendernft.DeniedByNoList:                                        rendernft.DeniedByNoList,
		rendernft.FlowCut:                                               rendernft.FlowCut,
	} {
		if got := reason(comment); got != want {
			t.Errorf("%q: %q, want %q", comment, got, want)
		}
	}
}
