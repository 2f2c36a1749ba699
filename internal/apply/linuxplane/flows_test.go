package linuxplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/apply/conntrack"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/netns/netnstest"
	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// stream is a flow both ends of which send all the time, whether they are heard or not.
type stream struct {
	*testing.T
	name string
	// heard gets a value when the client, or the server, hears something.
	heard [2]chan struct{}
}

// flow begins a stream from one namespace to an address that another one has, at dial.
func (c *cluster) flow(network string, from, to *netns.NS, at, dial netip.AddrPort) *stream {
	c.Helper()
	return c.flowOf(network, from, to, at, dial, true)
}

// flowOf begins a stream whose client may say nothing.
func (c *cluster) flowOf(network string, from, to *netns.NS, at, dial netip.AddrPort, clientTalks bool) *stream {
	c.Helper()
	s := &stream{T: c.T, name: fmt.Sprintf("%s to %s", network, dial)}
	for i := range s.heard {
		s.heard[i] = make(chan struct{}, 1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var open []interface{ Close() error }
	c.Cleanup(func() {
		cancel()
		for _, o := range open {
			_ = o.Close()
		}
		running.Wait()
	})
	var client, server net.Conn
	var listener net.Listener
	var socket net.PacketConn
	err := to.Do(func() (err error) {
		if network == "udp" {
			socket, err = net.ListenPacket(network, at.String())
			return err
		}
		listener, err = net.Listen(network, at.String())
		return err
	})
	if err == nil {
		err = from.Do(func() (err error) {
			client, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, dial.String())
			return err
		})
	}
	if err != nil {
		c.Fatalf("%s: %v", s.name, err)
	}
	open = append(open, client)
	switch network {
	case "udp":
		open = append(open, socket)
		server, err = answered(client, socket)
	default:
		open = append(open, listener)
		server, err = listener.Accept()
	}
	if err != nil {
		c.Fatalf("%s: %v", s.name, err)
	}
	open = append(open, server)
	for i, conn := range []net.Conn{client, server} {
		running.Go(func() { hear(conn, s.heard[i]) })
		if i == 1 || clientTalks {
			running.Go(func() { talk(ctx, conn) })
		}
	}
	return s
}

// peer is a socket with one peer.
type peer struct {
	net.PacketConn
	to net.Addr
}

func (p peer) Read(b []byte) (int, error) {
	n, _, err := p.ReadFrom(b)
	return n, err
}
func (p peer) Write(b []byte) (int, error) { return p.WriteTo(b, p.to) }
func (p peer) RemoteAddr() net.Addr        { return p.to }

// answered sends a first packet and returns the server's view of the client.
func answered(client net.Conn, socket net.PacketConn) (net.Conn, error) {
	if _, err := client.Write([]byte("first")); err != nil {
		return nil, err
	}
	_ = socket.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, from, err := socket.ReadFrom(make([]byte, 64))
	_ = socket.SetReadDeadline(time.Time{})
	return peer{socket, from}, err
}

func hear(c net.Conn, heard chan<- struct{}) {
	b := make([]byte, 2048)
	for {
		if _, err := c.Read(b); err != nil {
			if ne := net.Error(nil); errors.As(err, &ne) && !errors.Is(err, net.ErrClosed) && strings.Contains(err.Error(), "refused") {
				continue // an ICMP error of a UDP socket
			}
			return
		}
		select {
		case heard <- struct{}{}:
		default:
		}
	}
}

func talk(ctx context.Context, c net.Conn) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond))
			_, _ = c.Write([]byte("x"))
		}
	}
}

// runs wants both ends to hear something from now on.
func (s *stream) runs() {
	s.Helper()
	for i := range s.heard {
		s.hears(i)
	}
}

// hears wants an end to hear something from now on.
func (s *stream) hears(end int) {
	s.Helper()
	for range 2 { // the first may be old
		select {
		case <-s.heard[end]:
		case <-time.After(10 * time.Second):
			s.Errorf("%s: end %d hears nothing", s.name, end)
			return
		}
	}
}

// silent wants both ends to hear nothing more, within a second.
func (s *stream) silent() {
	s.Helper()
	const quiet = 300 * time.Millisecond
	deadline := time.Now().Add(time.Second)
	for {
		select {
		case <-s.heard[0]:
		case <-s.heard[1]:
		case <-time.After(quiet):
			return
		}
		if time.Now().After(deadline) {
			s.Errorf("%s: an end hears something a second later", s.name)
			return
		}
	}
}

// list gives a port of a node a list with one rule, before one that accepts the rest.
func (m *member) list(port int, d intent.Direction, rule intent.Match) {
	origin := intent.RuleOrigin{Kind: "NetworkPolicy", Namespace: "test", Name: "deny"}
	l := intent.NewRuleList("default", d, []intent.Rule{{Tier: intent.TierNetworkPolicy, Action: intent.Deny, Match: rule, Origin: origin}})
	ports := slices.Clone(m.intent.Ports)
	if d == intent.Ingress {
		ports[port].Ingress = l.ID
	} else {
		ports[port].Egress = l.ID
	}
	m.intent.Ports = ports
	m.intent.RuleLists = append(slices.Clone(m.intent.RuleLists), l)
	slices.SortFunc(m.intent.RuleLists, intent.RuleList.Compare)
}

// set sets an address set of the default VPC.
func (m *member) set(name string, addrs ...netip.Addr) {
	s := intent.AddressSet{VPC: "default", Name: name}
	for _, a := range addrs {
		s.Prefixes = append(s.Prefixes, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(s.Prefixes, intent.ComparePrefix)
	m.intent.AddressSets = slices.DeleteFunc(slices.Clone(m.intent.AddressSets), func(o intent.AddressSet) bool { return o.Name == name })
	m.intent.AddressSets = append(m.intent.AddressSets, s)
	slices.SortFunc(m.intent.AddressSets, intent.AddressSet.Compare)
}

// allow takes all lists away.
func (m *member) allow() {
	m.intent.Ports = slices.Clone(m.intent.Ports)
	for i := range m.intent.Ports {
		m.intent.Ports[i].Ingress, m.intent.Ports[i].Egress = "", ""
	}
	m.intent.RuleLists = nil
}

func (c *cluster) report(i int, o apply.Options) apply.Report {
	c.Helper()
	r, err := c.nodes[i].plane.Apply(c.Context(), c.nodes[i].intent, o)
	if err != nil || len(r.Failed) > 0 {
		c.Fatalf("apply on node %d: %v, failed %v", i, err, r.Failed)
	}
	return r
}

// marks are those of a node's flows that have an end at an address.
func (c *cluster) marks(i int, end netip.Addr) []uint32 {
	c.Helper()
	return c.marksOf(i, func(f conntrack.Flow) bool { return f.Src == end || f.ReplySrc == end })
}

func (c *cluster) marksOf(i int, which func(conntrack.Flow) bool) (marks []uint32) {
	c.Helper()
	_, err := c.nodes[i].plane.flows.Walk(c.Context(), []conntrack.Query{{}}, func(f conntrack.Flow) conntrack.Decision {
		if which(f) {
			marks = append(marks, f.Mark)
		}
		return conntrack.Decision{}
	})
	if err != nil {
		c.Fatal(err)
	}
	return marks
}

// sign sets a foreign bit in the mark of every flow.
func (c *cluster) sign(i int) {
	c.Helper()
	_, err := c.nodes[i].plane.flows.Walk(c.Context(), []conntrack.Query{{}}, func(conntrack.Flow) conntrack.Decision {
		return conntrack.Decision{Mark: foreign, Mask: foreign}
	})
	if err != nil {
		c.Fatal(err)
	}
}

const foreign uint32 = 1

func eachAddr(p intent.Port, port uint16) (out []netip.AddrPort) {
	for _, a := range p.Addresses {
		out = append(out, netip.AddrPortFrom(a, port))
	}
	return out
}

func told(r apply.Report, part string) bool {
	return slices.ContainsFunc(r.Changes, func(c string) bool { return strings.Contains(c, part) })
}

func TestFlowsFollowPolicy(t *testing.T) {
	c := newCluster(t, true, false)
	here, there := c.nodes[0], c.nodes[1]
	var denied []*stream
	for _, at := range eachAddr(here.intent.Ports[1], 9000) {
		for _, network := range []string{"tcp", "udp"} {
			denied = append(denied, c.flow(network, here.pods[0], here.pods[1], at, at))
		}
	}
	at := eachAddr(here.intent.Ports[1], 9001)[0]
	others := []*stream{
		c.flow("tcp", there.pods[0], here.pods[1], at, at),
		c.flow("udp", here.ns, here.pods[1], netip.AddrPortFrom(at.Addr(), 9002), netip.AddrPortFrom(at.Addr(), 9002)),
		c.flow("udp", here.pods[1], here.pods[0], eachAddr(here.intent.Ports[0], 9003)[0], eachAddr(here.intent.Ports[0], 9003)[0]),
	}
	for _, s := range slices.Concat(denied, others) {
		s.runs()
	}
	c.sign(0)
	for _, set := range [][]netip.Addr{here.intent.Ports[0].Addresses, append(slices.Clone(here.intent.Ports[0].Addresses), underlay(0)[0].Addr())} {
		here.set("bad", set...)
		here.list(1, intent.Ingress, intent.Match{Sets: []string{"bad"}})
		r := c.report(0, apply.Options{})
		for _, s := range denied {
			s.silent()
		}
		if !told(r, "cut flow "+here.intent.Ports[0].Addresses[0].String()) || !told(r, "(NetworkPolicy test/deny rule 0)") {
			t.Errorf("the report does not tell of the flows that were cut: %q", r.Changes)
		}
		for _, s := range others {
			s.runs() // the node's own flow too, whatever address it bears
		}
		for _, m := range c.marks(0, there.intent.Ports[0].Addresses[0]) {
			if m != foreign|claims.CTJudged {
				t.Errorf("a flow that the change does not concern has the mark %#x", m)
			}
		}
		here.allow()
		if r = c.report(0, apply.Options{}); !told(r, "uncut flow") {
			t.Errorf("the report does not tell of the flows that were let through again: %q", r.Changes)
		}
		for _, s := range denied {
			s.runs()
		}
		for _, m := range c.marks(0, here.intent.Ports[0].Addresses[1]) {
			if m != foreign|claims.CTJudged {
				t.Errorf("a flow that is allowed again has the mark %#x", m)
			}
		}
	}
}

// Only the address set changes: the peer is another pod now.
func TestFlowsFollowSets(t *testing.T) {
	c := newCluster(t, false, false)
	here, there := c.nodes[0], c.nodes[1]
	here.set("bad")
	here.list(0, intent.Egress, intent.Match{Sets: []string{"bad"}, Protocol: packet.UDP, Ports: []intent.PortRange{{First: 9000, Last: 9000}}})
	c.apply(0)
	at := eachAddr(there.intent.Ports[0], 9000)
	cut, other := c.flow("udp", here.pods[0], there.pods[0], at[1], at[1]), c.flow("udp", here.pods[0], there.pods[0], netip.AddrPortFrom(at[1].Addr(), 9001), netip.AddrPortFrom(at[1].Addr(), 9001))
	here.set("bad", at[1].Addr())
	c.apply(0)
	cut.silent()
	other.runs()
	here.set("bad", at[0].Addr())
	c.apply(0)
	cut.runs()
}

func TestFlowsToTheNodeFollowPolicy(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	var flows []*stream
	for i, p := range underlay(0) {
		at := netip.AddrPortFrom(p.Addr(), uint16(9000+i))
		flows = append(flows, c.flow("tcp", here.pods[0], here.ns, at, at), c.flow("udp", here.pods[0], here.ns, at, at))
	}
	here.set("bad", underlay(0)[0].Addr(), underlay(0)[1].Addr())
	here.list(0, intent.Egress, intent.Match{Sets: []string{"bad"}})
	c.apply(0)
	for _, s := range flows {
		s.silent()
	}
	here.allow()
	c.apply(0)
	for _, s := range flows {
		s.runs()
	}
}

// What is cut is what the rules saw: the endpoint, not the Service.
func TestTranslatedFlowsFollowPolicy(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	service := netip.MustParseAddrPort("10.96.0.10:53")
	at := eachAddr(here.intent.Ports[1], 9000)[0]
	c.translate(here.ns, service, at)
	s := c.flow("udp", here.pods[0], here.pods[1], at, service)
	s.runs()
	here.set("bad", at.Addr())
	here.list(0, intent.Egress, intent.Match{Sets: []string{"bad"}, Protocol: packet.UDP, Ports: []intent.PortRange{{First: 9000, Last: 9000}}})
	c.apply(0)
	s.silent()
	here.allow()
	c.apply(0)
	s.runs()
}

func TestFlowsFollowTenants(t *testing.T) {
	c := newCluster(t, true, false)
	here, there := c.nodes[0], c.nodes[1]
	at := eachAddr(here.intent.Ports[1], 9000)
	local, remote := c.flow("udp", here.pods[0], here.pods[1], at[0], at[0]), c.flow("udp", there.pods[0], here.pods[1], at[1], at[1])
	global := c.flow("udp", there.pods[1], here.pods[1], netip.AddrPortFrom(at[0].Addr(), 9001), netip.AddrPortFrom(at[0].Addr(), 9001))
	isolate := func(i, port int, vni packet.VNI) {
		m := c.nodes[i]
		m.intent.VPCs = []intent.VPC{{Name: "default", VNI: 10, Tenants: []packet.VNI{11, 12}}}
		m.intent.Ports = slices.Clone(m.intent.Ports)
		m.intent.Ports[port].VNI = vni
		c.tenants()
	}
	isolate(0, 0, 11)
	isolate(1, 0, 11)
	c.apply(0)
	c.apply(1)
	for _, s := range []*stream{local, remote, global} {
		s.runs() // the receiver is global
	}
	isolate(0, 1, 12)
	r := c.report(0, apply.Options{})
	local.silent()
	remote.silent()
	global.runs()
	if !told(r, "(another tenant)") {
		t.Errorf("the report does not say why: %q", r.Changes)
	}
	isolate(0, 1, 11)
	c.apply(0)
	for _, s := range []*stream{local, remote, global} {
		s.runs()
	}
}

// tenants tells every node the addresses of isolated tenants, as decide does.
func (c *cluster) tenants() {
	members := map[packet.VNI][]netip.Prefix{}
	for _, m := range c.nodes {
		for _, p := range m.intent.Ports {
			for _, a := range p.Addresses {
				members[p.VNI] = append(members[p.VNI], netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	for _, m := range c.nodes {
		sets := slices.DeleteFunc(slices.Clone(m.intent.AddressSets), func(s intent.AddressSet) bool {
			_, is := s.Tenant()
			return is
		})
		for _, vni := range m.intent.VPCs[0].Tenants {
			if list := members[vni]; len(list) > 0 {
				slices.SortFunc(list, intent.ComparePrefix)
				sets = append(sets, intent.AddressSet{VPC: "default", Name: intent.SetTenant(vni), Prefixes: list})
			}
		}
		slices.SortFunc(sets, intent.AddressSet.Compare)
		m.intent.AddressSets = sets
	}
}

// The next owner of an address inherits no flow of the last one.
func TestFlowsOfPortThatIsGone(t *testing.T) {
	c := newCluster(t, true, false)
	here, there := c.nodes[0], c.nodes[1]
	gone := here.intent.Ports[0]
	at := eachAddr(there.intent.Ports[0], 9000)
	for _, a := range at {
		c.flow("udp", here.pods[0], there.pods[0], a, a).runs()
	}
	keep := c.flow("udp", here.pods[1], there.pods[0], netip.AddrPortFrom(at[0].Addr(), 9001), netip.AddrPortFrom(at[0].Addr(), 9001))
	here.intent.Ports = here.intent.Ports[1:]
	c.report(0, apply.Options{})
	// Another container gets the address, later.
	again := gone
	again.ID, again.HostInterface, again.Netns = "again/eth0", "flpagain", netnstest.New(t).String()
	here.intent.Ports = append([]intent.Port{again}, here.intent.Ports...)
	if r := c.report(0, apply.Options{}); !told(r, "forget 2 flows") {
		t.Errorf("the report does not tell of the flows that were forgotten: %q", r.Changes)
	}
	// The peer still sends: that is a new flow, and it may be there already.
	for _, a := range gone.Addresses {
		if m := c.marksOf(0, func(f conntrack.Flow) bool { return f.Src == a }); len(m) > 0 {
			t.Errorf("flows of %s are left to its next owner, marks %x", a, m)
		}
	}
	keep.runs()
	// The same in one step: another container with the same address.
	gone = here.intent.Ports[1]
	next := gone
	next.ID, next.HostInterface = "next/eth0", "flpnext"
	next.Netns = here.pods[0].String()
	here.intent.Ports = []intent.Port{next}
	c.report(0, apply.Options{})
	if m := c.marksOf(0, func(f conntrack.Flow) bool { return f.Src == gone.Addresses[0] }); len(m) > 0 {
		t.Errorf("flows of %s are left to its next owner, marks %x", gone.Addresses[0], m)
	}
}

// A world that may lack something is no reason to cut.
func TestAddOnlyDoesNotCut(t *testing.T) {
	c := newCluster(t, true, false)
	here := c.nodes[0]
	at := eachAddr(here.intent.Ports[1], 9000)[0]
	s := c.flow("udp", here.pods[0], here.pods[1], at, at)
	here.list(1, intent.Ingress, intent.Match{})
	r := c.report(0, apply.Options{AddOnly: true})
	s.runs()
	if told(r, "cut flow") {
		t.Errorf("changes: %q", r.Changes)
	}
	c.apply(0)
	s.silent()
}
