package linuxplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// cluster is two nodes on one wire, with two pods each.
type cluster struct {
	*testing.T
	nodes [2]*member
}

type member struct {
	ns     *netns.NS
	bpf    string
	plane  *Plane
	intent intent.Node
	pods   []*netns.NS
}

// newCluster makes nodes whose blocks are reached through the tunnel or directly.
// ipv6 makes the underlay IPv6 only.
func newCluster(t *testing.T, encapsulate, ipv6 bool) *cluster {
	t.Helper()
	c := &cluster{T: t}
	for i := range c.nodes {
		c.nodes[i] = &member{ns: netnstest.New(t)}
	}
	c.wire()
	c.ready()
	for i := range c.nodes {
		c.start(i, encapsulate, ipv6)
	}
	return c
}

func underlay(i int) []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24),
		netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1)),
	}
}

// wire joins the nodes by a veth pair.
func (c *cluster) wire() {
	c.Helper()
	a, b := handle(c.T, c.nodes[0].ns), handle(c.T, c.nodes[1].ns)
	err := a.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nic"}, PeerName: "nic", PeerNamespace: netlink.NsFd(c.nodes[1].ns.FD())})
	if err != nil {
		c.Fatal(err)
	}
	for i, h := range []*netlink.Handle{a, b} {
		nic, err := h.LinkByName("nic")
		if err != nil {
			c.Fatal(err)
		}
		for _, p := range underlay(i) {
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
			if err := h.AddrAdd(nic, addr); err != nil {
				c.Fatal(err)
			}
		}
		if err := h.LinkSetUp(nic); err != nil {
			c.Fatal(err)
		}
	}
}

// ready waits until the wire carries both families in both directions: the kernel
// lets a fresh carrier settle, and solicits an IPv6 neighbour once a second.
func (c *cluster) ready() {
	c.Helper()
	for i, m := range c.nodes {
		for _, p := range underlay(1 - i) {
			err := unix.EAGAIN
			for try := 0; try < 10 && !errors.Is(err, unix.ECONNREFUSED); try++ {
				_, probeErr := netnstest.Probe(c.Context(), m.ns, "tcp", netip.AddrPortFrom(p.Addr(), 9))
				if !errors.As(probeErr, &err) {
					err = unix.EAGAIN
				}
			}
			if !errors.Is(err, unix.ECONNREFUSED) {
				c.Fatalf("the test's own wire does not carry %s: %v", p, err)
			}
		}
	}
}

func block(i int) []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, byte(i), 0}), 26),
		netip.MustParsePrefix(fmt.Sprintf("fd00:128:0:%d::/122", i)),
	}
}

// nth is an address of a block.
func nth(p netip.Prefix, n byte) netip.Addr {
	raw := p.Addr().AsSlice()
	raw[len(raw)-1] += n
	a, _ := netip.AddrFromSlice(raw)
	return a
}

func (c *cluster) start(i int, encapsulate, ipv6 bool) {
	c.Helper()
	m, other := c.nodes[i], 1-i
	name, peer := fmt.Sprintf("n%d", i), fmt.Sprintf("n%d", other)
	under, peerAddrs := underlay(i), []netip.Addr{underlay(other)[0].Addr(), underlay(other)[1].Addr()}
	if ipv6 {
		under, peerAddrs = under[1:], peerAddrs[1:]
	}
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("fd00:128::/48")}
	n := intent.Node{
		Name: name, MTU: 1430, VTEPMAC: packet.VTEPMAC(name), Underlay: under,
		VPCs:    []intent.VPC{{Name: "default", VNI: 10}},
		Subnets: []intent.Subnet{{VPC: "default", Name: "default", Overlay: true, CIDRs: cidrs}},
		Peers:   []intent.Peer{{Name: peer, Addrs: peerAddrs, Outer: peerAddrs[0], VTEPMAC: packet.VTEPMAC(peer)}},
		NATs:    []intent.NAT{{VPC: "default", Name: "default", Sources: cidrs, Except: "subnets"}},
	}
	var direct []netip.Prefix
	for f := range block(i) {
		n.Tunnels = append(n.Tunnels, intent.TunnelAddress{VPC: "default", Subnet: "default", Addr: nth(block(i)[f], 1)})
		n.Routes = append(n.Routes,
			intent.Route{VPC: "default", Dst: block(i)[f], NextHop: intent.NextHop{Local: true}},
			intent.Route{VPC: "default", Dst: block(other)[f], NextHop: intent.NextHop{Peer: peer}, Encapsulate: encapsulate})
		if !encapsulate {
			direct = append(direct, block(other)[f])
		}
	}
	slices.SortFunc(n.Routes, intent.Route.Compare)
	n.AddressSets = []intent.AddressSet{{VPC: "default", Name: "direct", Prefixes: direct}, {VPC: "default", Name: "subnets", Prefixes: cidrs}}
	for k := range byte(2) {
		ns := netnstest.New(c.T)
		netnstest.Serve(c.T, ns, 8080)
		m.pods = append(m.pods, ns)
		addrs := []netip.Addr{nth(block(i)[0], k+2), nth(block(i)[1], k+2)}
		n.Ports = append(n.Ports, intent.Port{
			ID: fmt.Sprintf("c%d%d/eth0", i, k), VPC: "default", VNI: 10, Pod: fmt.Sprintf("test/pod%d%d", i, k), Netns: ns.String(), Interface: "eth0",
			HostInterface: fmt.Sprintf("flpc%d%d", i, k), MAC: packet.PodMAC("default", addrs[0]), Addresses: addrs,
		})
	}
	if faults := intent.Validate(n); len(faults) > 0 {
		c.Fatalf("invalid intent: %v", faults)
	}
	m.intent, m.bpf = n, filepath.Join(mountBPF(c.T), "fairlead")
	var err error
	m.plane, err = Open(c.Context(), Options{NS: m.ns, BPFDir: m.bpf, SavedSysctls: filepath.Join(c.TempDir(), "sysctls.json"), FlowCache: true})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		if err := m.plane.Close(); err != nil {
			c.Error(err)
		}
	})
	c.apply(i)
}

func (c *cluster) apply(i int) {
	c.Helper()
	m := c.nodes[i]
	r, err := m.plane.Apply(c.Context(), m.intent, apply.Options{})
	if err != nil || len(r.Failed) > 0 {
		c.Fatalf("apply on node %d: %v, failed %v", i, err, r.Failed)
	}
	diffs, err := m.plane.Audit(c.Context(), m.intent)
	if err != nil || len(diffs) > 0 {
		c.Errorf("audit of node %d: %v %v", i, diffs, err)
	}
}

// everyPair probes every pod from every other one and from every node, TCP and
// UDP, IPv4 and IPv6.
func (c *cluster) everyPair() {
	c.Helper()
	for i, m := range c.nodes {
		for k, from := range append(slices.Clone(m.pods), m.ns) {
			for j, other := range c.nodes {
				for l, p := range other.intent.Ports {
					if i == j && k == l {
						continue
					}
					for _, a := range p.Addresses {
						for _, proto := range []string{"tcp", "udp"} {
							if _, err := netnstest.Probe(c.Context(), from, proto, netip.AddrPortFrom(a, 8080)); err != nil {
								c.Errorf("from node %d, pod %d (2 is the node) to %s over %s: %v", i, k, a, proto, err)
							}
						}
					}
				}
			}
		}
	}
}

func TestAcrossNodes(t *testing.T) {
	for _, tc := range []struct {
		name              string
		encapsulate, ipv6 bool
	}{
		{"tunnel over IPv4", true, false},
		{"tunnel over IPv6", true, true},
		{"direct", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			newCluster(t, tc.encapsulate, tc.ipv6).everyPair()
		})
	}
}

// An address that was lent out of a node's own block is reached where it is.
func TestLentAddress(t *testing.T) {
	c := newCluster(t, true, false)
	owner, borrower := c.nodes[0], c.nodes[1]
	lent := nth(block(0)[0], 40)
	route := intent.Route{VPC: "default", Dst: netip.PrefixFrom(lent, 32)}
	route.NextHop, route.Encapsulate = intent.NextHop{Peer: "n1"}, true
	owner.intent.Routes = append(owner.intent.Routes, route)
	route.NextHop, route.Encapsulate = intent.NextHop{Local: true}, false
	borrower.intent.Routes = append(borrower.intent.Routes, route)
	for _, m := range c.nodes {
		slices.SortFunc(m.intent.Routes, intent.Route.Compare)
	}
	ns := netnstest.New(t)
	netnstest.Serve(t, ns, 8080)
	borrower.pods = append(borrower.pods, ns)
	borrower.intent.Ports = append(borrower.intent.Ports, intent.Port{
		ID: "c2/eth0", VPC: "default", VNI: 10, Pod: "test/lent", Netns: ns.String(), Interface: "eth0", HostInterface: "flplent",
		MAC: packet.PodMAC("default", lent), Addresses: []netip.Addr{lent},
	})
	c.apply(0)
	c.apply(1)
	for _, from := range []*netns.NS{owner.pods[0], owner.ns, borrower.pods[0], borrower.ns} {
		if _, err := netnstest.Probe(t.Context(), from, "tcp", netip.AddrPortFrom(lent, 8080)); err != nil {
			t.Errorf("the lent address is not reached from %s: %v", from, err)
		}
	}
	if _, err := netnstest.Probe(t.Context(), ns, "tcp", netip.AddrPortFrom(owner.intent.Ports[0].Addresses[0], 8080)); err != nil {
		t.Errorf("from the lent address: %v", err)
	}
}
