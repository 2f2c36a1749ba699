package ovs

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	of "github.com/fairlead-sdn/fairlead/internal/openflow"
	"github.com/fairlead-sdn/fairlead/internal/openflow/sim"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// few are addresses at and beside the bounds of drawn sets, in both families.
var few = addrs("9.255.255.255", "10.1.0.6", "10.1.0.7", "10.1.0.64", "10.1.0.65", "10.1.0.66", "10.1.0.67", "10.1.0.68", "11.0.0.0",
	"fd01::6", "fd01::7", "fd01::40", "fd01::41", "fd01::42", "fd01::43", "fd02::")

// fewPorts are at and beside the bounds of drawn ranges.
var fewPorts = []uint16{0, 1, 79, 80, 81, 82, 90, 91, 65534, 65535}

func drawSets(t *rapid.T) (out []intent.AddressSet) {
	for i := range rapid.IntRange(0, 6).Draw(t, "sets") {
		s := intent.AddressSet{VPC: "default", Name: fmt.Sprintf("s%d", i)}
		for range rapid.IntRange(0, 4).Draw(t, "prefixes") {
			a := rapid.SampledFrom(few).Draw(t, "address")
			bits := a.BitLen() - rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, 8, 24, a.BitLen()}).Draw(t, "host bits")
			p := netip.PrefixFrom(a, bits).Masked()
			if !slices.ContainsFunc(s.Prefixes, p.Overlaps) {
				s.Prefixes = append(s.Prefixes, p)
			}
		}
		slices.SortFunc(s.Prefixes, intent.ComparePrefix)
		out = append(out, s)
	}
	return out
}

func drawRules(t *rapid.T, sets []intent.AddressSet) (out []intent.Rule) {
	for i := range rapid.IntRange(0, 8).Draw(t, "rules") {
		r := intent.Rule{
			Tier: rapid.SampledFrom([]intent.Tier{1, 2, 2, 2, 3}).Draw(t, "tier"), Action: intent.Action(rapid.IntRange(1, 3).Draw(t, "action")),
			Origin: origin("p", i),
		}
		for _, s := range sets {
			if rapid.IntRange(0, 3).Draw(t, "in") == 0 {
				r.Match.Sets = append(r.Match.Sets, s.Name)
			}
		}
		r.Match.Protocol = rapid.SampledFrom([]packet.Protocol{0, packet.TCP, packet.TCP, packet.UDP, packet.SCTP}).Draw(t, "protocol")
		if r.Match.Protocol != 0 {
			for _, first := range fewPorts {
				if n := len(r.Match.Ports); rapid.IntRange(0, 3).Draw(t, "port") == 0 && (n == 0 || int(r.Match.Ports[n-1].Last)+1 < int(first)) {
					r.Match.Ports = append(r.Match.Ports, intent.PortRange{First: first, Last: first + min(rapid.SampledFrom([]uint16{0, 0, 1, 9}).Draw(t, "more"), 65535-first)})
				}
			}
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b intent.Rule) int { return int(a.Tier) - int(b.Tier) })
	return out
}

func drawNode(t *rapid.T) intent.Node {
	sets := drawSets(t)
	return withLists(withPeers(single()), sets, drawRules(t, sets), drawRules(t, sets))
}

// verdict is what the pipeline does to the first packet of a flow.
func verdict(t *rapid.T, p *sim.Pipeline, k packet.Packet, from sim.Link) sim.Result {
	s := sim.Switch{Pipeline: p, Trace: true, TableName: TableName}
	r, err := s.Receive(sim.Of(k, from))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The pipeline does to a new flow what the intent says, for the sender's list and for
// the receiver's, whoever the other end is.
func TestPolicyIsThatOfTheIntent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		rendered := Render(n, numbersOf(n), Options{})
		check(t, rendered)
		pipeline, err := sim.New(rendered.Flows(), nil)
		if err != nil {
			t.Fatal(err)
		}
		a := n.Ports[0]
		for range 30 {
			other := rapid.SampledFrom(few).Draw(t, "peer")
			own := a.Addresses[0]
			if other.Is6() {
				own = a.Addresses[1]
			}
			k := packet.Packet{
				Src: own, Dst: other, Protocol: rapid.SampledFrom([]packet.Protocol{packet.TCP, packet.UDP, packet.SCTP, packet.ICMP}).Draw(t, "protocol"),
				SrcPort: 4000, DstPort: rapid.SampledFrom(fewPorts).Draw(t, "port"), SYN: true,
			}
			if k.Protocol == packet.ICMP && other.Is6() {
				k.Protocol = packet.ICMPv6
			}
			if k.Protocol == packet.ICMP || k.Protocol == packet.ICMPv6 {
				k.SrcPort, k.DstPort = 0, 0
			}
			if there(n, other) {
				allowed, by := n.Judge(a, intent.Egress, k)
				r := verdict(t, pipeline, k, sim.Link{InPort: 10, Src: a.MAC, Dst: claims.GatewayMAC})
				if r.Dropped() == allowed {
					t.Fatalf("%s: the intent allows it: %v (by %v); the pipeline: %s\n%s", k, allowed, by, r.Why, r.Trace)
				}
			}
			k.Src, k.Dst = k.Dst, k.Src
			link := sim.Link{InPort: HostPortNumber, Src: vtep, Dst: claims.GatewayMAC}
			switch {
			case other == n.Ports[1].Addresses[0] || other == n.Ports[1].Addresses[1]:
				link = sim.Link{InPort: 11, Src: n.Ports[1].MAC, Dst: claims.GatewayMAC}
			case slices.ContainsFunc(n.Subnets, func(s intent.Subnet) bool {
				return slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return c.Contains(other) })
			}):
				continue // comes by the tunnel, which TestWalks knows
			}
			allowed, by := n.Judge(a, intent.Ingress, k)
			r := verdict(t, pipeline, k, link)
			if r.Dropped() == allowed {
				t.Fatalf("%s: the intent allows it: %v (by %v); the pipeline: %s\n%s", k, allowed, by, r.Why, r.Trace)
			}
		}
	})
}

// there reports whether some place has an address, so that only policy can refuse it.
func there(n intent.Node, a netip.Addr) bool {
	for _, p := range n.Ports {
		if slices.Contains(p.Addresses, a) {
			return true
		}
	}
	for _, r := range n.Routes {
		if r.Dst.Contains(a) {
			return r.NextHop.Peer != ""
		}
	}
	return !slices.ContainsFunc(n.Subnets, func(s intent.Subnet) bool {
		return slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
	})
}

// A pipeline made from an earlier one is that made from nothing, whatever has changed.
func TestRenderAfter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p *Pipeline
		var sets []intent.AddressSet
		var ingress, egress []intent.Rule
		installed := map[of.Key]of.Flow{}
		for range 6 {
			switch change := rapid.IntRange(0, 3).Draw(t, "change"); {
			case change == 0 || p == nil:
				sets = drawSets(t)
				ingress, egress = drawRules(t, sets), drawRules(t, sets)
			case change == 1 && len(sets) > 0:
				// One address enters or leaves a set.
				sets = slices.Clone(sets)
				i := rapid.IntRange(0, len(sets)-1).Draw(t, "set")
				a := rapid.SampledFrom(few).Draw(t, "address")
				x := netip.PrefixFrom(a, a.BitLen())
				if at := slices.Index(sets[i].Prefixes, x); at >= 0 {
					sets[i].Prefixes = slices.Delete(slices.Clone(sets[i].Prefixes), at, at+1)
				} else if !slices.ContainsFunc(sets[i].Prefixes, x.Overlaps) {
					sets[i].Prefixes = append(slices.Clone(sets[i].Prefixes), x)
					slices.SortFunc(sets[i].Prefixes, intent.ComparePrefix)
				}
			case change == 2:
				ingress = drawRules(t, sets)
			}
			n := withLists(withPeers(single()), sets, ingress, egress)
			numbers := numbersOf(n)
			if rapid.Bool().Draw(t, "the second port is not there yet") {
				delete(numbers, n.Ports[1].HostInterface)
			}
			next := RenderAfter(p, n, numbers, Options{Adopting: rapid.Bool().Draw(t, "adopting")})
			check(t, next)
			before, after := next.Since(p)
			for _, f := range before {
				delete(installed, f.Key())
			}
			for _, f := range after {
				installed[f.Key()] = f
			}
			p = next
			want := Render(n, numbers, Options{Adopting: next.adopting()})
			if diff := cmp.Diff(text(want.Flows()), text(next.Flows())); diff != "" {
				t.Fatalf("made from an earlier one (-from nothing +from it):\n%s", diff)
			}
			var all []of.Flow
			for _, f := range installed {
				all = append(all, f)
			}
			if of.Hash(all) != of.Hash(want.Flows()) {
				t.Fatal("what Since says does not lead there")
			}
		}
	})
}

func (p *Pipeline) adopting() bool {
	return !slices.ContainsFunc(p.Flows(), func(f of.Flow) bool { return f.Comment == MiddleOfTCP })
}
