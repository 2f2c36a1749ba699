package nft_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply/nft"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	n "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// cluster is a node with three pods, whose links it routes to, and the intent of it.
type cluster struct {
	node   string
	pods   map[string]string // network namespaces, by letter
	intent intent.Node
}

// The node's own addresses.
const node4, node6 = "172.30.0.11", "fd30::11"

func podAddr(letter, family string) string {
	i := letter[0] - 'a' + 5
	if family == "6" {
		return fmt.Sprintf("fd01::%d", i)
	}
	return fmt.Sprintf("10.1.0.%d", i)
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	c := cluster{node: testNS(t), pods: map[string]string{}}
	c.intent = intent.Node{
		Name: "n1", MTU: 1450, VTEPMAC: packet.VTEPMAC("n1"), VPCs: []intent.VPC{{Name: "default", VNI: 10}},
		Underlay:    []netip.Prefix{netip.MustParsePrefix(node4 + "/24"), netip.MustParsePrefix(node6 + "/64")},
		Subnets:     []intent.Subnet{{VPC: "default", Name: "default", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/48")}}},
		AddressSets: []intent.AddressSet{{VPC: "default", Name: intent.SetSubnets, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/48")}}},
	}
	run(t, c.node, "ip", "link", "set", "lo", "up")
	run(t, c.node, "ip", "addr", "add", node4+"/32", "dev", "lo")
	run(t, c.node, "ip", "addr", "add", node6+"/128", "dev", "lo", "nodad")
	for i, letter := range []string{"a", "b", "c"} {
		pod, port := testNS(t), "flp"+strings.Repeat(letter, 3)
		c.pods[letter] = pod
		run(t, c.node, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pod)
		for _, end := range [][2]string{{c.node, port}, {pod, "eth0"}} {
			// Without ARP a link sends to its own hardware address: both ends have one.
			run(t, end[0], "ip", "link", "set", end[1], "address", fmt.Sprintf("02:00:00:00:00:%02d", i), "arp", "off", "addrgenmode", "none", "up")
		}
		p := intent.Port{ID: letter + "/eth0", VPC: "default", VNI: 10, HostInterface: port, MAC: packet.MAC{2, 5: byte(i)}}
		for _, f := range []string{"4", "6"} {
			a := netip.MustParseAddr(podAddr(letter, f))
			p.Addresses = append(p.Addresses, a)
			one := netip.PrefixFrom(a, a.BitLen()).String()
			run(t, pod, "ip", "addr", "add", one, "dev", "eth0", "nodad")
			run(t, pod, "ip", "-"+f, "route", "add", "default", "dev", "eth0")
			run(t, c.node, "ip", "route", "add", one, "dev", port)
		}
		c.intent.Ports = append(c.intent.Ports, p)
	}
	inside(t, c.node, func() (struct{}, error) {
		var errs []error
		for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			errs = append(errs, os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0o644))
		}
		return struct{}{}, errors.Join(errs...)
	})
	c.programs(t)
	return c
}

// programs makes a table that stands in for the programs on the links of pods: it marks
// what they send.
func (c *cluster) programs(t *testing.T) {
	t.Helper()
	bits := claims.MarkChecked | claims.Mark(c.intent.VPCs[0].VNI)
	apply(t, open(t, nft.Config{Table: "programs", NetNS: c.node, Plain: true}), n.Table{Name: "programs", Chains: []n.Chain{{
		Name: "sent", Base: &n.Base{Type: n.TypeFilter, Hook: n.HookPrerouting, Priority: claims.NFTPriorityRaw - 1},
		Rules: []n.Rule{{Statements: []n.Statement{
			n.Is(n.MetaIIFName, n.IfNamePrefix(claims.PortPrefix)), n.Mangle{Field: n.MetaMark, Value: bits, Mask: bits},
		}}},
	}}})
}

func (c *cluster) ns(who string) string {
	if who == "node" {
		return c.node
	}
	return c.pods[who]
}

func addrOf(who, family string) string {
	switch {
	case who != "node":
		return podAddr(who, family)
	case family == "6":
		return node6
	}
	return node4
}

// restrict gives a pod a list.
func (c *cluster) restrict(letter string, d intent.Direction, rules ...intent.Rule) {
	for i := range rules {
		rules[i].Origin = intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "test", Name: "p", Index: i}
	}
	l := intent.NewRuleList("default", d, rules)
	c.intent.RuleLists = append(c.intent.RuleLists, l)
	slices.SortFunc(c.intent.RuleLists, intent.RuleList.Compare)
	for i := range c.intent.Ports {
		if p := &c.intent.Ports[i]; p.ID == letter+"/eth0" && d == intent.Ingress {
			p.Ingress = l.ID
		} else if p.ID == letter+"/eth0" {
			p.Egress = l.ID
		}
	}
}

func (c *cluster) set(name string, prefixes ...string) {
	s := intent.AddressSet{VPC: "default", Name: name}
	for _, p := range prefixes {
		s.Prefixes = append(s.Prefixes, netip.MustParsePrefix(p))
	}
	c.intent.AddressSets = append(c.intent.AddressSets, s)
	slices.SortFunc(c.intent.AddressSets, intent.AddressSet.Compare)
}

// serve echoes at a port of TCP and UDP until the test ends.
func (c *cluster) serve(t *testing.T, who, family string, port uint16) {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(addrOf(who, family)), port)
	var ended sync.WaitGroup
	tcp := inside(t, c.ns(who), func() (*net.TCPListener, error) { return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at)) })
	udp := inside(t, c.ns(who), func() (*net.UDPConn, error) { return net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)) })
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		_ = tcp.Close()
		_ = udp.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		ended.Wait()
	})
	ended.Go(func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			ended.Go(func() { echo(conn) })
		}
	})
	ended.Go(func() {
		buf := make([]byte, 100)
		for {
			n, from, err := udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteToUDPAddrPort(buf[:n], from)
		}
	})
}

func echo(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	buf := make([]byte, 100)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

// dial opens a flow.
func (c *cluster) dial(t *testing.T, network, who string, to netip.AddrPort, patience time.Duration) (net.Conn, error) {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	r := inside(t, c.ns(who), func() (result, error) {
		conn, err := net.DialTimeout(network, to.String(), patience)
		return result{conn, err}, nil
	})
	return r.conn, r.err
}

// says sends a word over a flow and reports whether it comes back.
func says(conn net.Conn, patience time.Duration) bool {
	if conn.SetDeadline(time.Now().Add(patience)) != nil {
		return false
	}
	if _, err := conn.Write([]byte("word")); err != nil {
		return false
	}
	n, err := conn.Read(make([]byte, 100))
	return err == nil && n == 4
}

// Who is refused is heard of no more than this; who is allowed has long enough even
// on a busy machine.
const refused, patient = 300 * time.Millisecond, 10 * time.Second

type probe struct {
	from, to string
	port     uint16
	allowed  string // "tcp4 udp4 tcp6 udp6"
}

// check sends the first packets of flows of both protocols and families.
func (c *cluster) check(t *testing.T, probes ...probe) {
	t.Helper()
	var running sync.WaitGroup
	for _, p := range probes {
		for _, family := range []string{"4", "6"} {
			for _, network := range []string{"tcp", "udp"} {
				running.Go(func() {
					want, patience := strings.Contains(p.allowed, network+family), refused
					if want {
						patience = patient
					}
					conn, err := c.dial(t, network, p.from, netip.AddrPortFrom(netip.MustParseAddr(addrOf(p.to, family)), p.port), patience)
					got := err == nil && says(conn, patience)
					if conn != nil {
						_ = conn.Close()
					}
					if got != want {
						t.Errorf("%s%s from %s to %s, port %d: answered %v, want %v", network, family, p.from, p.to, p.port, got, want)
					}
				})
			}
		}
	}
	running.Wait()
}

const all = "tcp4 udp4 tcp6 udp6"

// listing is a cluster whose pod a has an ingress list of three tiers and whose pod b
// may send little.
func listing(t *testing.T) (cluster, *nft.Driver) {
	t.Helper()
	c := newCluster(t)
	c.set("all but b", "0.0.0.0/0", "::/0")
	c.set("b", "10.1.0.6/32", "fd01::6/128")
	c.set("c", "10.1.0.7/32", "fd01::7/128")
	c.set("nobody")
	c.restrict("a", intent.Ingress,
		intent.Rule{Tier: intent.TierAdmin, Action: intent.Pass, Match: intent.Match{Sets: []string{"c"}, Protocol: packet.TCP}},
		intent.Rule{Tier: intent.TierAdmin, Action: intent.Deny, Match: intent.Match{Sets: []string{"c", "nobody"}}},
		intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"b", "c"}, Protocol: packet.TCP, Ports: []intent.PortRange{{First: 8000, Last: 8010}}}},
		intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Accept, Match: intent.Match{Sets: []string{"b"}, Protocol: packet.UDP}},
		intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Deny})
	c.restrict("b", intent.Egress,
		intent.Rule{Tier: intent.TierAdmin, Action: intent.Accept, Match: intent.Match{Sets: []string{"all but b"}, Protocol: packet.TCP, Ports: []intent.PortRange{{First: 8000, Last: 8011}}}},
		intent.Rule{Tier: intent.TierBaseline, Action: intent.Deny, Match: intent.Match{Sets: []string{"c"}, Protocol: packet.UDP}},
		intent.Rule{Tier: intent.TierBaseline, Action: intent.Deny, Match: intent.Match{Protocol: packet.TCP}})
	if faults := intent.Validate(c.intent); len(faults) > 0 {
		t.Fatalf("the intent has faults: %v", faults)
	}
	d := open(t, nft.Config{NetNS: c.node})
	apply(t, d, rendernft.Render(c.intent, rendernft.Options{}))
	return c, d
}

// TestPolicyText: what the kernel has of the rendered lists is what the text says.
func TestPolicyText(t *testing.T) {
	needNFT(t)
	c, d := listing(t)
	want := rendernft.Render(c.intent, rendernft.Options{})
	if got := listed(t, c.node); got != want.String() {
		t.Errorf("nft lists\n%s\nwant\n%s", got, want)
	}
	if diff, err := d.Audit(t.Context(), want); err != nil || len(diff) > 0 {
		t.Errorf("audit: %v, %v", diff, err)
	}
	file := t.TempDir() + "/table"
	writeFile(t, file, want.String())
	run(t, testNS(t), "nft", "-f", file)
}

// TestPolicyPackets sends real packets through rendered lists.
func TestPolicyPackets(t *testing.T) {
	c, d := listing(t)
	for _, family := range []string{"4", "6"} {
		for _, port := range []uint16{8000, 8010, 8011, 9000} {
			c.serve(t, "a", family, port)
			c.serve(t, "c", family, port)
		}
		c.serve(t, "b", family, 9000)
		c.serve(t, "node", family, 9000)
		c.serve(t, "node", family, 8000)
	}
	c.check(t,
		// Ingress by tiers, ranges of ports and protocols.
		probe{"b", "a", 8000, all},
		probe{"b", "a", 8010, all},
		probe{"b", "a", 8011, "udp4 udp6"}, // Sent by b, not taken by a.
		probe{"b", "a", 9000, "udp4 udp6"},
		probe{"c", "a", 8000, "tcp4 tcp6"},
		probe{"c", "a", 9000, ""},
		// Egress.
		probe{"b", "c", 8011, "tcp4 tcp6"},
		probe{"b", "c", 9000, ""},
		// Nobody says anything about those.
		probe{"a", "c", 9000, all},
		probe{"a", "b", 9000, all},
		// To the node only what the pod may send, from the node anything.
		probe{"b", "node", 9000, "udp4 udp6"},
		probe{"b", "node", 8000, all},
		probe{"a", "node", 9000, all},
		probe{"node", "a", 9000, all},
		probe{"node", "b", 9000, all},
	)
	counters, err := d.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, x := range counters {
		got[x.Comment] += x.Packets
	}
	for _, comment := range []string{
		"denied by NetworkPolicy test/p rule 1", "denied by NetworkPolicy test/p rule 2", "denied by NetworkPolicy test/p rule 4",
		"allowed by NetworkPolicy test/p rule 2", "allowed by NetworkPolicy test/p rule 0",
	} {
		if got[comment] == 0 {
			t.Errorf("no packet was counted as %q: %v", comment, got)
		}
	}
}

// TestPolicyHairpin reaches itself through an address of a service, which its list
// does not forbid.
func TestPolicyHairpin(t *testing.T) {
	needNFT(t)
	c := newCluster(t)
	c.restrict("a", intent.Ingress, intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Deny})
	c.restrict("a", intent.Egress, intent.Rule{Tier: intent.TierNetworkPolicy, Action: intent.Deny})
	apply(t, open(t, nft.Config{NetNS: c.node}), rendernft.Render(c.intent, rendernft.Options{}))
	run(t, c.node, "nft", `table ip services {
		chain in { type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 dnat to 10.1.0.5; }
		chain out { type nat hook postrouting priority srcnat; iifname "flpaaa" oifname "flpaaa" masquerade; }
	}`)
	c.serve(t, "a", "4", 9000)
	for _, network := range []string{"tcp", "udp"} {
		conn, err := c.dial(t, network, "a", netip.MustParseAddrPort("10.96.0.1:9000"), patient)
		if err != nil {
			t.Fatalf("%s: %v", network, err)
		}
		if !says(conn, patient) {
			t.Errorf("%s: no answer", network)
		}
		_ = conn.Close()
	}
}

// TestPolicyCut: a flow that bears the mark is silent, forwarded or with the node, a
// new one is not.
func TestPolicyCut(t *testing.T) {
	needNFT(t)
	c, d := listing(t)
	for _, who := range []string{"a", "node"} {
		c.serve(t, who, "4", 8000)
		c.serve(t, who, "6", 8000)
	}
	var flows []net.Conn
	for _, to := range []string{addrOf("a", "4"), addrOf("a", "6"), node4, node6} {
		conn, err := c.dial(t, "tcp", "b", netip.AddrPortFrom(netip.MustParseAddr(to), 8000), patient)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if !says(conn, patient) {
			t.Fatalf("no answer from %s", to)
		}
		flows = append(flows, conn)
	}
	run(t, c.node, "nft", `table inet cutter { chain every { type filter hook prerouting priority -100; ct state established ct mark set ct mark | 0x20000000; }; }`)
	for _, conn := range flows {
		if says(conn, refused) {
			t.Errorf("%s: a flow that was cut has an answer", conn.RemoteAddr())
		}
	}
	run(t, c.node, "nft", "delete table inet cutter")
	for _, conn := range flows {
		if says(conn, refused) {
			t.Errorf("%s: a flow that was cut has an answer", conn.RemoteAddr())
		}
	}
	c.check(t, probe{"b", "a", 8000, "tcp4 tcp6 udp4 udp6"})
	counters, err := d.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cut := map[string]uint64{}
	for _, x := range counters {
		if x.Comment == rendernft.FlowCut {
			cut[x.Chain] += x.Packets
		}
	}
	for _, chain := range []string{"judge", "to-node"} {
		if cut[chain] == 0 {
			t.Errorf("chain %s has counted no packet of a flow that was cut: %v", chain, cut)
		}
	}
}
