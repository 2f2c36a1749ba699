package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/ovs"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
	"github.com/fairlead-sdn/fairlead/test/lab/wire"
)

// Ports of the odd packets.
const (
	portAllowed   = 1500
	portNoIngress = 2500
	portNoEgress  = 3500
)

var oddScene = namespace("odd", "") +
	pod("odd", "mallory", "node-1", "app: mallory", "80/TCP") +
	pod("odd", "near", "node-1", "app: victim", "80/TCP") +
	pod("odd", "far", "node-2", "app: victim", "80/TCP")

// oddPolicies let mallory send to the ports from 1000 to last, and others hear those
// from 1000 to 1999.
func oddPolicies(last int) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: victims, namespace: odd}
spec:
  podSelector: {matchLabels: {app: victim}}
  ingress:
    - from: [{podSelector: {matchLabels: {app: mallory}}}]
      ports: [{protocol: TCP, port: 1000, endPort: 1999}, {protocol: UDP, port: 1000, endPort: 1999}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: mallory, namespace: odd}
spec:
  podSelector: {matchLabels: {app: mallory}}
  policyTypes: [Egress]
  egress:
    - ports: [{protocol: TCP, port: 1000, endPort: %d}, {protocol: UDP, port: 1000, endPort: %[1]d}]
`, last)
}

// odd is one packet, perhaps in pieces, and what it is once it is whole.
type odd struct {
	name string
	is   packet.Packet
	// parts are IP packets.
	parts [][]byte
	// flags are those of TCP.
	flags uint8
	// never: it must not be delivered, whatever it seems to be.
	never bool
	token wire.Token
}

// beginning is what a datapath sees of it.
func (o odd) beginning() ovs.Beginning {
	b := ovs.Beginning{Is4: o.is.Src.Is4(), Protocol: o.is.Protocol, TCPFlags: o.flags}
	for _, p := range o.parts {
		const more4, header6 = 0x20, 40 // of the byte with the flags
		if b.Is4 && p[6]&more4 != 0 || !b.Is4 && p[6] == wire.ProtoFragment && p[header6+3]&1 != 0 {
			b.Fragments = append(b.Fragments, len(p))
		}
	}
	return b
}

// pair is who sends odd packets to whom, in one family.
type pair struct {
	from, to *member
	src, dst netip.Addr
	mint     *wire.Mint
	sport    *uint16
}

// next is a packet of a flow that nobody has seen.
func (p pair) next(proto packet.Protocol, port uint16) packet.Packet {
	*p.sport++
	return packet.Packet{Src: p.src, Dst: p.dst, Protocol: proto, SrcPort: *p.sport, DstPort: port}
}

// datagram is UDP with a token.
func datagram(is packet.Packet, k wire.Token) []byte {
	return wire.UDP(is.Src, is.Dst, is.SrcPort, is.DstPort, thrice(k))
}

// thrice is a payload in which one of the tokens is whole wherever it is cut, twice: what
// came in fragments leaves in fragments, perhaps in others.
func thrice(k wire.Token) []byte {
	gap := string(make([]byte, 23))
	return []byte(string(k) + gap + string(k) + gap + string(k))
}

// large is where a payload is cut that comes in fragments as hosts send them, and is longer
// than that.
const large = 1248

// long is such a payload, with tokens in both parts.
func long(k wire.Token) []byte { return slices.Concat(thrice(k), make([]byte, large), thrice(k)) }

// odds are all packets to one port.
func (p pair) odds(port uint16) []odd {
	out := p.flags(port)
	add := func(name string, proto packet.Protocol, body func(packet.Packet, wire.Token) []byte, parts func([]byte) [][]byte) *odd {
		is, k := p.next(proto, port), p.mint.Next()
		is.SYN = proto == packet.TCP
		x := odd{name: fmt.Sprintf("%s to port %d", name, port), is: is, token: k, parts: parts(body(is, k))}
		if is.SYN {
			x.flags = wire.SYN
		}
		out = append(out, x)
		return &out[len(out)-1]
	}
	tcp := func(is packet.Packet, k wire.Token) []byte {
		return wire.TCP(is.Src, is.Dst, is.SrcPort, is.DstPort, wire.SYN, thrice(k))
	}
	split := func(proto uint8, at int) func([]byte) [][]byte {
		return func(b []byte) [][]byte { s := wire.Split(p.src, p.dst, proto, b, at, *p.sport); return s[:] }
	}
	backwards := func(parts func([]byte) [][]byte) func([]byte) [][]byte {
		return func(b []byte) [][]byte { out := parts(b); slices.Reverse(out); return out }
	}
	longUDP := func(is packet.Packet, k wire.Token) []byte {
		return wire.UDP(is.Src, is.Dst, is.SrcPort, is.DstPort, long(k))
	}
	add("UDP in large fragments", packet.UDP, longUDP, split(wire.ProtoUDP, large))
	add("UDP in large fragments, the last first", packet.UDP, longUDP, backwards(split(wire.ProtoUDP, large)))
	add("TCP in large fragments", packet.TCP, func(is packet.Packet, k wire.Token) []byte {
		return wire.TCP(is.Src, is.Dst, is.SrcPort, is.DstPort, wire.SYN, long(k))
	}, split(wire.ProtoTCP, large))
	add("UDP in fragments", packet.UDP, datagram, split(wire.ProtoUDP, 8))
	add("UDP in fragments, the last first", packet.UDP, datagram, backwards(split(wire.ProtoUDP, 16)))
	// IPv6 wants all headers in the first fragment (RFC 8200 section 4.5); nodes drop it
	// otherwise.
	add("TCP whose first fragment ends before its flags", packet.TCP, tcp, split(wire.ProtoTCP, 8)).never = p.src.Is6()
	add("TCP in fragments, the last first", packet.TCP, tcp, backwards(split(wire.ProtoTCP, 24)))
	// A second first fragment, with a port that is allowed: if either counts, none may.
	other := add("UDP in fragments that overlap", packet.UDP, datagram, split(wire.ProtoUDP, 16))
	decoy := other.is
	decoy.DstPort = portAllowed + 1
	fake := wire.Split(p.src, p.dst, wire.ProtoUDP, datagram(decoy, other.token), 24, *p.sport)
	other.parts, other.never = [][]byte{fake[0], other.parts[0], other.parts[1]}, true
	if p.src.Is6() {
		add("UDP behind hop-by-hop options", packet.UDP, datagram, func(b []byte) [][]byte {
			return [][]byte{wire.IP(p.src, p.dst, wire.ProtoHopByHop, wire.Extension(wire.ProtoUDP, b))}
		})
		add("UDP behind many destination options", packet.UDP, datagram, func(b []byte) [][]byte {
			b = wire.Extension(wire.ProtoUDP, b)
			for range 5 {
				b = wire.Extension(wire.ProtoDestOpts, b)
			}
			return [][]byte{wire.IP(p.src, p.dst, wire.ProtoDestOpts, b)}
		})
		add("TCP behind destination options", packet.TCP, tcp, func(b []byte) [][]byte {
			return [][]byte{wire.IP(p.src, p.dst, wire.ProtoDestOpts, wire.Extension(wire.ProtoTCP, b))}
		})
		add("UDP in an atomic fragment", packet.UDP, datagram, func(b []byte) [][]byte {
			return [][]byte{wire.IP(p.src, p.dst, wire.ProtoFragment, wire.Fragment6(wire.ProtoUDP, 0, false, b))}
		})
		add("UDP behind options, in fragments", packet.UDP, datagram, func(b []byte) [][]byte {
			return split(wire.ProtoDestOpts, 16)(wire.Extension(wire.ProtoUDP, b))
		})
		add("UDP behind options that fill the first fragment", packet.UDP, datagram, func(b []byte) [][]byte {
			return split(wire.ProtoDestOpts, 8)(wire.Extension(wire.ProtoUDP, b))
		}).never = true
	}
	return out
}

// alone is the first fragment of a packet whose others do not come.
func (p pair) alone(port uint16) odd {
	is, k := p.next(packet.UDP, port), p.mint.Next()
	parts := wire.Split(p.src, p.dst, wire.ProtoUDP, wire.UDP(is.Src, is.Dst, is.SrcPort, is.DstPort, long(k)), large, *p.sport)
	return odd{name: fmt.Sprintf("the first fragment alone to port %d", port), is: is, token: k, parts: parts[:1]}
}

// flags are TCP segments with all sorts of flags.
func (p pair) flags(port uint16) (out []odd) {
	const beginning = wire.FIN | wire.SYN | wire.RST | wire.ACK
	for _, f := range []uint8{
		wire.SYN, wire.SYN | wire.ECE | wire.CWR, wire.SYN | wire.PSH, wire.SYN | wire.URG,
		0, wire.FIN, wire.RST, wire.ACK, wire.PSH, wire.SYN | wire.ACK, wire.SYN | wire.FIN, wire.SYN | wire.RST, wire.RST | wire.ACK,
		wire.FIN | wire.PSH | wire.URG, wire.PSH | wire.ACK, 0xff,
	} {
		is, k := p.next(packet.TCP, port), p.mint.Next()
		is.SYN = f&beginning == wire.SYN
		out = append(out, odd{
			name: fmt.Sprintf("TCP with flags %08b to port %d", f, port), is: is, token: k, flags: f,
			parts: [][]byte{wire.IP(p.src, p.dst, wire.ProtoTCP, wire.TCP(p.src, p.dst, is.SrcPort, is.DstPort, f, []byte(k)))},
		})
	}
	return out
}

// echo is a ping, which rules with ports are not about.
func (p pair) echo() odd {
	is, k, proto, typ := p.next(packet.ICMP, 0), p.mint.Next(), uint8(wire.ProtoICMP), uint8(8)
	if p.src.Is6() {
		is.Protocol, proto, typ = packet.ICMPv6, wire.ProtoICMPv6, 128
	}
	is.SrcPort = 0
	body := wire.ICMP(p.src, p.dst, typ, 0, uint32(*p.sport)<<16|1, []byte(k))
	return odd{name: "echo request", is: is, token: k, parts: [][]byte{wire.IP(p.src, p.dst, proto, body)}}
}

// sender sends IP packets of a pod.
type sender struct {
	*wire.Injector
	mac packet.MAC
}

func (m *member) sender(t testing.TB) *sender {
	t.Helper()
	s := &sender{Injector: wire.Inject(t, m.ns, "eth0", m.key.String())}
	if err := netspace.Do(m.ns, func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			copy(s.mac[:], link.HardwareAddr)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *sender) packets(t testing.TB, parts ...[]byte) {
	t.Helper()
	for _, p := range parts {
		s.Send(t, wire.Frame(claims.GatewayMAC, s.mac, p))
	}
}

// S6: odd packets meet the same verdict as plain ones, but those that the switch's datapath
// is known to refuse: these are dropped.
func TestScenarioS6Policies(t *testing.T) {
	c := newCluster(t)
	members := c.scene(oddScene + "---" + oddPolicies(2999))
	c.settled("node-1", "node-2")
	c.agree(members, labtest.Patience)
	model, mint, sport, datapath := c.model(), &wire.Mint{}, uint16(20000), ""
	if c.OVS() {
		datapath = strings.TrimSpace(c.MustExec("node-1", "ovs-vsctl", "get", "bridge", claims.OVSBridge, "datapath_type"))
	}
	from := members["odd/mallory"]
	mallory := from.sender(t)
	var alone []odd
	taps := map[string]*wire.Tap{}
	for _, name := range []string{"odd/near", "odd/far"} {
		to := members[name]
		tap := wire.Listen(t, to.ns, name)
		taps[name] = tap
		for _, is4 := range []bool{true, false} {
			p := pair{from: from, to: to, src: from.addr(is4), dst: to.addr(is4), mint: mint, sport: &sport}
			alone = append(alone, p.alone(portAllowed), p.alone(portNoEgress))
			mallory.packets(t, alone[len(alone)-1].parts...)
			mallory.packets(t, alone[len(alone)-2].parts...)
			all := []odd{p.echo()}
			for _, port := range []uint16{portAllowed, portNoIngress, portNoEgress} {
				all = append(all, p.odds(port)...)
			}
			for _, x := range all {
				mallory.packets(t, x.parts...)
			}
			c.control(mallory, p, tap)
			allowed, refused := 0, 0
			for _, x := range all {
				v := model.Judge(nil, oracle.Probe{From: from.place(), Packet: x.is})
				want, why := v.Allowed && !x.never, v.Why()
				if refuses := ovs.Refuses(datapath, x.beginning()); want && refuses != "" {
					want, why = false, refuses
					refused++
				}
				if want {
					allowed++
				}
				if got := tap.Got(x.token) > 0; got != want {
					t.Errorf("%s to %s: delivered is %t, want %t: %s", x.name, x.is.Dst, got, want, why)
				}
			}
			t.Logf("%d packets to %s, %d of them delivered, %d that policy allows refused by the datapath", len(all), p.dst, allowed, refused)
			if allowed == 0 || allowed == len(all) {
				t.Error("no difference was made")
			}
			if datapath == ovs.Netdev && name == "odd/far" && !is4 {
				c.forgetFragments(mallory, p, tap)
			}
		}
	}
	for name, tap := range taps {
		for _, x := range alone {
			if tap.Got(x.token) > 0 {
				t.Errorf("%s, to %s, is delivered to %s", x.name, x.is.Dst, name)
			}
		}
	}
}

// forgetFragments waits until the switch of node-1 keeps no fragments any more, which it
// gives up when their others do not come, and gets rid of behind plain packets.
func (c *cluster) forgetFragments(s *sender, p pair, tap *wire.Tap) {
	c.t.Helper()
	labtest.Eventually(c.t, labtest.Patience, func() error {
		for range 10 {
			c.control(s, p, tap)
		}
		if kept := c.MustExec("node-1", "ovs-appctl", "dpctl/ipf-get-status"); !strings.Contains(kept, "num frag: 0\n") {
			return fmt.Errorf("the switch keeps fragments: %s", kept)
		}
		return nil
	})
}

// settled waits until no node takes a TCP flow any more that it has not seen begin, as it
// does for a while after its rules were made, and until the first change after that.
func (c *cluster) settled(nodes ...string) {
	c.t.Helper()
	const nothing = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing, namespace: odd}
spec: {podSelector: {}, ingress: [{ports: [{port: %d}]}]}
`
	applied, port := false, 1
	look := []string{"nft", "list", "chain", "inet", "fairlead", "judge"}
	if c.OVS() {
		look = []string{"ovs-ofctl", "-O", "OpenFlow15", "dump-flows", claims.OVSBridge, fmt.Sprintf("table=%d", ovs.TableFlows)}
	}
	labtest.Eventually(c.t, 2*labtest.Patience, func() error {
		for _, node := range nodes {
			if !strings.Contains(c.MustExec(node, look...), "syn") {
				applied, port = true, port^2
				c.Apply(fmt.Sprintf(nothing, port))
				return errors.New(node + " still adopts flows")
			}
		}
		return nil
	})
	if applied {
		c.Delete(datastore.KindNetworkPolicy, "odd/nothing")
	}
}

// portControl is allowed whatever the policies of the test are.
const portControl = 1100

// control sends a plain packet that is allowed until it has arrived: what was sent before
// it has then been judged.
func (c *cluster) control(s *sender, p pair, tap *wire.Tap) {
	c.t.Helper()
	is, k := p.next(packet.UDP, portControl), p.mint.Next()
	labtest.Eventually(c.t, labtest.Patience, func() error {
		s.packets(c.t, wire.IP(p.src, p.dst, wire.ProtoUDP, datagram(is, k)))
		if tap.Got(k) == 0 {
			return errors.New("an allowed packet does not arrive")
		}
		return nil
	})
}

// answerBehind lets the victim answer on a flow that is allowed, behind what it sent
// before.
func (c *cluster) answerBehind(victim *sender, p pair, tap *wire.Tap) {
	c.t.Helper()
	is, k := p.next(packet.UDP, portControl), p.mint.Next()
	question := wire.IP(p.src, p.dst, wire.ProtoUDP, datagram(is, p.mint.Next()))
	back := is.Reverse()
	asker := p.from.sender(c.t)
	labtest.Eventually(c.t, labtest.Patience, func() error {
		asker.packets(c.t, question)
		victim.packets(c.t, wire.IP(back.Src, back.Dst, wire.ProtoUDP, datagram(back, k)))
		if tap.Got(k) == 0 {
			return errors.New("an answer does not arrive")
		}
		return nil
	})
}
