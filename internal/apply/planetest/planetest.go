package planetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// Harness is a plane in a place of its own, and what can be done around it.
type Harness struct {
	Plane apply.Plane
	// Reopen closes the plane and returns a new one on the same kernel, as a restart
	// of the agent does. It may be nil.
	Reopen func(t *testing.T) apply.Plane
	// Netns makes the network namespace of a pod, its loopback up as runtimes do, and
	// returns its path.
	Netns func(t *testing.T) string
	// Break makes it impossible to set the port up. heal undoes that as far as it
	// can be undone; the port is not wanted any more then.
	Break func(t *testing.T, p intent.Port) (heal func())
	// Damage undoes something of an object behind the plane's back. It may be nil.
	Damage func(t *testing.T, r intent.Ref)
	// Probe sends a packet of the protocol from one port of the node to another one's
	// address, at port 8080, and reports whether it was answered. It may be nil. It is
	// called by several goroutines at once.
	Probe func(t *testing.T, from, to intent.Port, addr netip.Addr, p packet.Protocol) bool
	// Open begins a conversation of the protocol between two ports, like Probe, and
	// returns what sends one more packet of it, there or back, and reports whether that
	// arrived. It may be nil.
	Open func(t *testing.T, from, to intent.Port, addr netip.Addr, p packet.Protocol) (send func(back bool) bool)
}

// Run runs the suite. newHarness is called for each test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, tc := range []struct {
		name string
		run  func(s *suite)
	}{
		{"complete desired state", (*suite).complete},
		{"idempotent", (*suite).idempotent},
		{"any intent after any other", (*suite).anyOrder},
		{"a failure stays with its object", (*suite).isolation},
		{"add only", (*suite).addOnly},
		{"refresh repairs", (*suite).refresh},
		{"watch tells and the next apply repairs", (*suite).watch},
		{"restart adopts", (*suite).restart},
		{"policy: verdicts", (*suite).judges},
		{"policy: changes", (*suite).policyChanges},
		{"policy: a missing set is empty", (*suite).missingSet},
		{"policy: flows follow", (*suite).flowsFollow},
		{"closed", (*suite).closed},
		{"a context that has ended", (*suite).ended},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t)
			s := &suite{T: t, Harness: h}
			t.Cleanup(func() {
				if err := s.Plane.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			tc.run(s)
		})
	}
}

type suite struct {
	*testing.T
	Harness
}

// node is the intent of a node with pods and peers: two behind the tunnel, two
// that are reached directly.
func (s *suite) node(pods int) intent.Node {
	s.Helper()
	n := Node()
	for i := range pods {
		n.Ports = append(n.Ports, Port(i+2, s.Netns(s.T)))
	}
	if faults := intent.Validate(n); len(faults) > 0 {
		s.Fatalf("the suite's own intent is invalid: %v", faults)
	}
	return n
}

// Node is a valid dual-stack intent without ports. The underlay addresses
// 192.0.2.1/24 and 2001:db8::1/64 are the node's own: a harness that has a real
// kernel puts them on a link.
func Node() intent.Node {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	n := intent.Node{
		Name: "n1", MTU: 1430, VTEPMAC: packet.VTEPMAC("n1"),
		Underlay: []netip.Prefix{prefix("192.0.2.1/24"), prefix("2001:db8::1/64")},
		VPCs:     []intent.VPC{{Name: packet.DefaultVPC, VNI: 10}},
		Subnets: []intent.Subnet{{
			VPC: packet.DefaultVPC, Name: "default", Overlay: true, CIDRs: []netip.Prefix{prefix("10.128.0.0/14"), prefix("fd00:128::/48")},
		}},
		Tunnels: []intent.TunnelAddress{
			{VPC: packet.DefaultVPC, Subnet: "default", Addr: addr("10.128.0.1")},
			{VPC: packet.DefaultVPC, Subnet: "default", Addr: addr("fd00:128::1")},
		},
		Routes: []intent.Route{
			{VPC: packet.DefaultVPC, Dst: prefix("10.128.0.0/26"), NextHop: intent.NextHop{Local: true}},
			{VPC: packet.DefaultVPC, Dst: prefix("fd00:128::/122"), NextHop: intent.NextHop{Local: true}},
		},
		AddressSets: []intent.AddressSet{
			{VPC: packet.DefaultVPC, Name: "direct", Prefixes: []netip.Prefix{prefix("10.130.0.0/26"), prefix("10.131.0.0/26")}},
			{VPC: packet.DefaultVPC, Name: "subnets", Prefixes: []netip.Prefix{prefix("10.128.0.0/14"), prefix("fd00:128::/48")}},
		},
		NATs: []intent.NAT{{
			VPC: packet.DefaultVPC, Name: "default", Except: "subnets", Sources: []netip.Prefix{prefix("10.128.0.0/14"), prefix("fd00:128::/48")},
		}},
	}
	for i := 2; i <= 5; i++ {
		name := fmt.Sprintf("n%d", i)
		outer := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		n.Peers = append(n.Peers, intent.Peer{
			Name: name, Addrs: []netip.Addr{outer, addr(fmt.Sprintf("2001:db8::%d", i))}, Outer: outer, VTEPMAC: packet.VTEPMAC(name),
		})
		tunnel := i <= 3
		n.Routes = append(n.Routes,
			intent.Route{VPC: packet.DefaultVPC, Dst: prefix(fmt.Sprintf("10.%d.0.0/26", 126+i)), NextHop: intent.NextHop{Peer: name}, Encapsulate: tunnel},
			intent.Route{VPC: packet.DefaultVPC, Dst: prefix(fmt.Sprintf("fd00:128:0:%d::/122", i)), NextHop: intent.NextHop{Peer: name}, Encapsulate: true})
	}
	// 10.128.0.40 was lent out of this node's own block.
	n.Routes = append(n.Routes, intent.Route{VPC: packet.DefaultVPC, Dst: prefix("10.128.0.40/32"), NextHop: intent.NextHop{Peer: "n3"}, Encapsulate: true})
	// n2's block is not at 10.128.0.0/26, which is this node's.
	for i := range n.Routes {
		if n.Routes[i].NextHop.Peer == "n2" && n.Routes[i].Dst.Addr().Is4() {
			n.Routes[i].Dst = prefix("10.128.1.0/26")
		}
	}
	slices.SortFunc(n.Routes, intent.Route.Compare)
	return n
}

// Port is pod number i, from 2 to 30, of the node's own block.
func Port(i int, netns string) intent.Port {
	a4 := netip.AddrFrom4([4]byte{10, 128, 0, byte(i)})
	id := fmt.Sprintf("container%02d/eth0", i)
	return intent.Port{
		ID: id, VPC: packet.DefaultVPC, VNI: 10, Pod: fmt.Sprintf("test/pod%02d", i), Netns: netns, Interface: "eth0",
		HostInterface: fmt.Sprintf("flptest%02d", i), MAC: packet.PodMAC(packet.DefaultVPC, a4),
		Addresses: []netip.Addr{a4, netip.MustParseAddr(fmt.Sprintf("fd00:128::%x", i))},
	}
}

// apply wants no error.
func (s *suite) apply(n intent.Node, o apply.Options) apply.Report {
	s.Helper()
	r, err := s.Plane.Apply(s.Context(), n, o)
	if err != nil {
		s.Fatalf("apply: %v", err)
	}
	return r
}

// made wants no failure, and that the plane is as the intent says.
func (s *suite) made(n intent.Node, o apply.Options) apply.Report {
	s.Helper()
	r := s.apply(n, o)
	for _, f := range r.Failed {
		s.Errorf("failed: %v", f)
	}
	s.asWanted(n)
	return r
}

func (s *suite) asWanted(n intent.Node) {
	s.Helper()
	for _, d := range s.audit(n) {
		s.Errorf("differs from the intent: %+v", d)
	}
}

func (s *suite) audit(n intent.Node) []apply.Difference {
	s.Helper()
	diffs, err := s.Plane.Audit(s.Context(), n)
	if err != nil {
		s.Fatalf("audit: %v", err)
	}
	return diffs
}

// reach probes every ordered pair of the ports, on TCP and UDP and each family.
func (s *suite) reach(ports ...intent.Port) {
	s.Helper()
	if s.Probe == nil {
		return
	}
	for _, from := range ports {
		for _, to := range ports {
			if from.ID == to.ID {
				continue
			}
			for _, addr := range to.Addresses {
				for _, p := range []packet.Protocol{packet.TCP, packet.UDP} {
					if !s.Probe(s.T, from, to, addr, p) {
						s.Errorf("%s does not reach %s at %s over %s", from.Pod, to.Pod, addr, p)
					}
				}
			}
		}
	}
}

func (s *suite) complete() {
	n := s.node(3)
	empty := intent.Node{Name: n.Name, MTU: n.MTU, VTEPMAC: n.VTEPMAC, Underlay: n.Underlay}
	if len(s.audit(n)) == 0 {
		s.Error("before the first Apply the plane claims that everything is there")
	}
	if r := s.made(n, apply.Options{}); len(r.Changes) == 0 {
		s.Error("the first Apply tells of no change")
	}
	s.reach(n.Ports...)
	if len(s.audit(empty)) == 0 {
		s.Error("the plane claims that nothing is there")
	}
	two := n
	two.Ports = n.Ports[:2]
	s.made(two, apply.Options{})
	s.reach(two.Ports...)
	s.made(empty, apply.Options{})
	s.made(n, apply.Options{})
	s.reach(n.Ports...)
}

func (s *suite) idempotent() {
	n := s.node(2)
	s.made(n, apply.Options{})
	for i := range 3 {
		if r := s.made(n, apply.Options{Refresh: i == 2, AddOnly: i == 1}); len(r.Changes) > 0 {
			s.Errorf("the same again changed: %v", r.Changes)
		}
	}
}

// anyOrder walks through random parts of an intent; the last decides.
func (s *suite) anyOrder() {
	full := s.node(4)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 12 {
		part := full
		part.Ports = some(rng, full.Ports)
		part.Routes = some(rng, full.Routes)
		for _, r := range full.Routes {
			// A port without the block that its address is of is no intent.
			if r.NextHop.Local && !slices.ContainsFunc(part.Routes, r.Equal) {
				part.Routes = append(part.Routes, r)
			}
		}
		slices.SortFunc(part.Routes, intent.Route.Compare)
		part.NATs = some(rng, full.NATs)
		part.Tunnels = some(rng, full.Tunnels)
		s.made(part, apply.Options{})
		s.reach(part.Ports...)
	}
	s.made(full, apply.Options{})
	s.reach(full.Ports...)
}

func some[T any](rng *rand.Rand, list []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(T) bool { return rng.IntN(2) == 0 })
}

func (s *suite) isolation() {
	n := s.node(3)
	bad := n.Ports[1]
	heal := s.Break(s.T, bad)
	r := s.apply(n, apply.Options{})
	if r.Err(bad.Ref()) == nil {
		s.Errorf("%s cannot be set up, but did not fail: %v", bad.Ref(), r.Failed)
	}
	for _, f := range r.Failed {
		if f.Ref != bad.Ref() {
			s.Errorf("%s failed too: %v", f.Ref, f.Err)
		}
	}
	s.reach(n.Ports[0], n.Ports[2])
	if again := s.apply(n, apply.Options{}); again.Err(bad.Ref()) == nil {
		s.Errorf("%s did not fail again", bad.Ref())
	}
	heal()
	n.Ports = []intent.Port{n.Ports[0], n.Ports[2]}
	s.made(n, apply.Options{})
}

func (s *suite) addOnly() {
	full := s.node(3)
	before, after := full, full
	before.Ports, after.Ports = full.Ports[:2], full.Ports[1:]
	after.Routes = slices.DeleteFunc(slices.Clone(full.Routes), func(r intent.Route) bool { return r.NextHop.Peer == "n4" })
	s.made(before, apply.Options{})
	r := s.apply(after, apply.Options{AddOnly: true})
	for _, f := range r.Failed {
		s.Errorf("failed: %v", f)
	}
	unexpected := 0
	for _, d := range s.audit(after) {
		if d.Problem != "unexpected" {
			s.Errorf("not added: %+v", d)
			continue
		}
		unexpected++
	}
	if unexpected == 0 {
		s.Error("an add-only Apply removed something")
	}
	s.reach(full.Ports...)
	s.made(after, apply.Options{})
	s.reach(after.Ports...)
}

func (s *suite) refresh() {
	if s.Damage == nil {
		s.Skip("this harness cannot damage anything")
	}
	n := s.node(2)
	for _, ref := range damageable(n) {
		s.made(n, apply.Options{})
		s.Damage(s.T, ref)
		if r := s.made(n, apply.Options{Refresh: true}); len(r.Changes) == 0 {
			s.Errorf("damage to %s: a refresh repaired nothing", ref)
		}
	}
	s.reach(n.Ports...)
}

// damageable are objects that every plane has something for.
func damageable(n intent.Node) []intent.Ref {
	i := slices.IndexFunc(n.Routes, func(r intent.Route) bool { return r.NextHop.Peer == "n4" })
	return []intent.Ref{n.Ports[0].Ref(), n.Routes[i].Ref()}
}

func (s *suite) watch() {
	if s.Damage == nil {
		s.Skip("this harness cannot damage anything")
	}
	n := s.node(2)
	s.made(n, apply.Options{})
	ctx, cancel := context.WithCancel(s.Context())
	told, ended := make(chan apply.Foreign, 1000), make(chan error, 1)
	plane := s.Plane
	go func() { ended <- plane.Watch(ctx, func(f apply.Foreign) { told <- f }) }()
	for _, ref := range damageable(n) {
		f, ok := s.damageUntilTold(n, ref, told)
		if !ok || f.What == "" || f.Subsystem == "" || f.Time.IsZero() {
			s.Errorf("damage to %s: told %+v, want what, where and when", ref, f)
		}
		s.made(n, apply.Options{})
	}
	cancel()
	if err := <-ended; err != nil {
		s.Errorf("watch ended with %v", err)
	}
	s.reach(n.Ports...)
}

// damageUntilTold tries again if nothing is told: the Watch may not have begun yet.
func (s *suite) damageUntilTold(n intent.Node, ref intent.Ref, told <-chan apply.Foreign) (apply.Foreign, bool) {
	s.Helper()
	for range 50 {
		s.Damage(s.T, ref)
		select {
		case f := <-told:
			return f, true
		case <-time.After(100 * time.Millisecond):
			s.made(n, apply.Options{})
		}
	}
	return apply.Foreign{}, false
}

func (s *suite) restart() {
	if s.Reopen == nil {
		s.Skip("this plane does not outlive its process")
	}
	n := s.node(2)
	s.made(n, apply.Options{})
	s.Plane = s.Reopen(s.T)
	s.reach(n.Ports...)
	s.asWanted(n)
	for _, o := range []apply.Options{{AddOnly: true}, {}} {
		if r := s.made(n, o); len(r.Changes) > 0 {
			s.Errorf("a restart changed: %v", r.Changes)
		}
	}
	n.Ports = n.Ports[:1]
	s.Plane = s.Reopen(s.T)
	if r := s.made(n, apply.Options{}); len(r.Changes) == 0 {
		s.Error("what went while no agent ran is still there")
	}
}

func (s *suite) closed() {
	n := s.node(2)
	s.made(n, apply.Options{})
	if err := s.Plane.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
	if _, err := s.Plane.Apply(s.Context(), n, apply.Options{}); err == nil {
		s.Error("a closed plane applies")
	}
	if _, err := s.Plane.Audit(s.Context(), n); err == nil {
		s.Error("a closed plane audits")
	}
	s.reach(n.Ports...)
}

func (s *suite) ended() {
	n := s.node(2)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if _, err := s.Plane.Apply(ctx, n, apply.Options{}); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		s.Errorf("apply in a context that has ended: %v", err)
	}
	s.made(n, apply.Options{})
	s.reach(n.Ports...)
}
