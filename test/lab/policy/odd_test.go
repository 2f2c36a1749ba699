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
	// never: it must not be delivered, whatever it seems to be.
	never bool
	token wire.Token
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

// odds are all packets to one port.
func (p pair) odds(port uint16) []odd {
	out := p.flags(port)
	add := func(name string, proto packet.Protocol, body func(packet.Packet, wire.Token) []byte, parts func([]byte) [][]byte) *odd {
		is, k := p.next(proto, port), p.mint.Next()
		is.SYN = proto == packet.TCP
		out = append(out, odd{name: fmt.Sprintf("%s to port %d", name, port), is: is, token: k, parts: parts(body(is, k))})
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
			name: fmt.Sprintf("TCP with flags %08b to port %d", f, port), is: is, token: k,
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

// S6: odd packets meet the same verdict as plain ones.
func TestScenarioS6Policies(t *testing.T) {
	c := newCluster(t)
	members := c.scene(oddScene + "---" + oddPolicies(2999))
	c.settled("node-1", "node-2")
	c.agree(members, labtest.Patience)
	model, mint, sport := c.model(), &wire.Mint{}, uint16(20000)
	from := members["odd/mallory"]
	mallory := from.sender(t)
	for _, name := range []string{"odd/near", "odd/far"} {
		to := members[name]
		tap := wire.Listen(t, to.ns, name)
		for _, is4 := range []bool{true, false} {
			p := pair{from: from, to: to, src: from.addr(is4), dst: to.addr(is4), mint: mint, sport: &sport}
			all := []odd{p.echo()}
			for _, port := range []uint16{portAllowed, portNoIngress, portNoEgress} {
				all = append(all, p.odds(port)...)
			}
			for _, x := range all {
				mallory.packets(t, x.parts...)
			}
			c.control(mallory, p, tap)
			allowed := 0
			for _, x := range all {
				v := model.Judge(nil, oracle.Probe{From: from.place(), Packet: x.is})
				want := v.Allowed && !x.never
				if want {
					allowed++
				}
				if got := tap.Got(x.token) > 0; got != want {
					t.Errorf("%s to %s: delivered is %t, want %t: %s", x.name, x.is.Dst, got, want, v.Why())
				}
			}
			t.Logf("%d packets to %s, %d of them delivered", len(all), p.dst, allowed)
			if allowed == 0 || allowed == len(all) {
				t.Error("no difference was made")
			}
		}
	}
}

// S6: an ICMP error arrives if it is about a flow that is allowed, and of its sender's.
func TestScenarioS6Errors(t *testing.T) {
	c := newCluster(t)
	members := c.scene(oddScene + "---" + oddPolicies(2999))
	c.agree(members, labtest.Patience)
	from := members["odd/mallory"]
	mallory, tap, mint, sport := from.sender(t), wire.Listen(t, from.ns, "mallory"), &wire.Mint{}, uint16(30000)
	limit := labtest.Limit(t, enforced)
	for _, name := range []string{"odd/near", "odd/far"} {
		to := members[name]
		victim, arrived := to.sender(t), wire.Listen(t, to.ns, name)
		for _, is4 := range []bool{true, false} {
			p := pair{from: from, to: to, src: from.addr(is4), dst: to.addr(is4), mint: mint, sport: &sport}
			third := members["odd/far"]
			if to == third {
				third = members["odd/near"]
			}
			// Flows: one that runs, one of others, one that is refused, one that never was.
			runs, others := p.next(packet.UDP, portAllowed), p.next(packet.UDP, portAllowed)
			others.Dst = third.addr(is4)
			refused, never := p.next(packet.UDP, portNoIngress), p.next(packet.UDP, portAllowed)
			model, flows := c.model(), &oracle.Flows{}
			for _, is := range []packet.Packet{runs, others, refused} {
				k := mint.Next()
				mallory.packets(t, wire.IP(is.Src, is.Dst, wire.ProtoUDP, datagram(is, k)))
				if v := model.Judge(flows, oracle.Probe{From: from.place(), Packet: is}); v.Allowed {
					flows.Begin(oracle.Probe{From: from.place(), Packet: is}, v.Outcomes[0])
				}
			}
			c.control(mallory, p, arrived)
			about := func(when string, model *oracle.Model, is packet.Packet) {
				t.Helper()
				k := mint.Next()
				quoted := wire.IP(is.Src, is.Dst, wire.ProtoUDP, datagram(is, k))
				proto, kind, body := packet.ICMP, uint8(wire.ProtoICMP), wire.ICMP(p.dst, p.src, 3, 3, 0, quoted)
				if !is4 {
					proto, kind, body = packet.ICMPv6, wire.ProtoICMPv6, wire.ICMP(p.dst, p.src, 1, 4, 0, quoted)
				}
				victim.packets(t, wire.IP(p.dst, p.src, kind, body))
				v := model.Judge(flows, oracle.Probe{From: to.place(), Packet: packet.Packet{Src: p.dst, Dst: p.src, Protocol: proto}, Embedded: &is})
				c.answerBehind(victim, p, tap)
				if got := tap.Got(k) > 0; got != v.Allowed {
					t.Errorf("an error about %s, %s: delivered is %t, want %t: %s", is, when, got, v.Allowed, v.Why())
				}
			}
			about("which runs", model, runs)
			about("of others", model, others)
			about("which was refused", model, refused)
			about("which never was", model, never)
			c.Apply(oddPolicies(1400))
			model = c.model()
			labtest.Eventually(t, limit, func() error {
				k, is := mint.Next(), runs
				mallory.packets(t, wire.IP(is.Src, is.Dst, wire.ProtoUDP, datagram(is, k)))
				c.control(mallory, p, arrived)
				if arrived.Got(k) > 0 {
					return errors.New("the flow is not cut")
				}
				return nil
			})
			about("which is cut", model, runs)
			c.Apply(oddPolicies(2999))
			c.control(mallory, p, arrived)
		}
	}
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
