package agreement

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/decide"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	"github.com/fairlead-sdn/fairlead/internal/nftables/sim"
	"github.com/fairlead-sdn/fairlead/internal/oracle"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/render/flows"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
	"github.com/fairlead-sdn/fairlead/internal/render/nft"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

const (
	// nic is the link to the underlay.
	nic          = "eth0"
	tunnelDevice = claims.VXLANDevice
)

// machine is one node: what the plane would put into its kernel.
type machine struct {
	name     string
	compiler *decide.Compiler
	compiled *decide.State
	options  nft.Options

	intent intent.Node
	state  linux.State
	wire   linux.Wire
	node   *sim.Node
	pods   map[string]world.Key // by port
}

func (m *machine) become(local *world.Snapshot) error {
	desired, err := m.compile(local)
	if err != nil {
		return err
	}
	table := nft.Render(desired, m.options)
	if err := table.Validate(); err != nil {
		return fmt.Errorf("invalid table: %w\n%s", err, table)
	}
	var old *intent.Node
	if m.node == nil {
		m.node = &sim.Node{Routing: m}
	} else {
		before := m.intent
		old = &before
	}
	m.intent = desired
	m.state, m.wire = linux.RenderState(desired), linux.RenderWire(desired)
	m.node.Rules = sim.New(table)
	m.follow(flows.Compare(old, desired, flows.Options{Adopting: m.options.Adopting || old == nil}))
	return nil
}

// compile computes the intent of a world, and who has which link.
func (m *machine) compile(local *world.Snapshot) (intent.Node, error) {
	desired, compiled, _ := m.compiler.Compile(m.compiled, local)
	if faults := intent.Validate(desired); len(faults) > 0 {
		return intent.Node{}, fmt.Errorf("invalid intent: %w\n%s", errors.Join(faults...), desired)
	}
	m.compiled = compiled
	m.pods = map[string]world.Key{}
	for a := range local.Attachments.Values() {
		key := world.Key{Namespace: a.Pod.Namespace, Name: a.Pod.Name}
		if a.Pod.Namespace == "" {
			key = world.Key{Name: "container/" + a.ContainerID[1:]} // worldtest.Local writes "NAMESPACE.NAME".
		}
		m.pods[a.HostInterface] = key
	}
	return desired, nil
}

// follow does to the flows what the plane does to those of the kernel.
func (m *machine) follow(change *flows.Change) {
	decider := change.Decider(nil)
	for _, q := range change.Queries() {
		for _, f := range m.node.Flows.All() {
			if q.End.IsValid() && f.Original.Src != q.End && f.Answer.Src != q.End || q.Unjudged && f.Mark&(claims.CTJudged|claims.CTCut) != 0 || q.Cut && f.Mark&claims.CTCut == 0 {
				continue
			}
			first := packet.Packet{Src: f.Original.Src, Dst: f.Answer.Src, Protocol: f.Original.Protocol, SrcPort: f.Original.SrcPort, DstPort: f.Answer.SrcPort}
			v, _ := decider.Decide(flows.Flow{First: first, Mark: f.Mark})
			if v == flows.Forget {
				m.node.Flows.Delete(f)
				continue
			}
			mark, mask := v.Mark()
			f.Mark = f.Mark&^mask | mark&mask
		}
	}
}

// own is the node's address on the underlay, of the family of a.
func (m *machine) own(a netip.Addr) (netip.Addr, bool) {
	for _, p := range m.intent.Underlay {
		if p.Addr().BitLen() == a.BitLen() {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// has reports whether an address is the node's own.
func (m *machine) has(a netip.Addr) bool {
	own, ok := m.own(a)
	return ok && own == a || slices.ContainsFunc(m.intent.Tunnels, func(t intent.TunnelAddress) bool { return t.Addr == a })
}

func (m *machine) inSubnet(a netip.Addr) bool {
	return slices.ContainsFunc(m.intent.Subnets, func(s intent.Subnet) bool {
		return slices.ContainsFunc(s.CIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
	})
}

// holder is who has the far end of a port's link.
func (m *machine) holder(link string) oracle.Place {
	return oracle.Place{Kind: oracle.Pod, Node: m.name, Pod: m.pods[link]}
}

// lookup finds the route of the longest prefix, and of those the least metric.
func (m *machine) lookup(a netip.Addr) (linux.Route, bool) {
	var best linux.Route
	found := false
	for _, r := range m.state.Routes {
		if r.Dst.Contains(a) && (!found || r.Dst.Bits() > best.Dst.Bits() || r.Dst.Bits() == best.Dst.Bits() && r.Metric < best.Metric) {
			best, found = r, true
		}
	}
	return best, found
}

// Route implements sim.Routing with the rendered routes, and a default route.
func (m *machine) Route(p sim.Packet) sim.Route {
	if !forwarded(p) {
		return sim.Route{Why: fmt.Sprintf("the kernel routes nothing from %s to %s", p.Src, p.Dst)}
	}
	if m.has(p.Dst) {
		return sim.Route{Local: true}
	}
	r, found := m.lookup(p.Dst)
	switch {
	case found && len(r.Hops) == 0:
		return sim.Route{Why: "the route " + r.Dst.String() + " is unreachable"}
	case found && r.Hops[0].Dev != "":
		return sim.Route{Out: r.Hops[0].Dev}
	}
	if _, ok := m.own(p.Dst); !ok {
		return sim.Route{Why: "there is no route to " + p.Dst.String()}
	}
	return sim.Route{Out: nic}
}

// gateway is the address that a packet goes to on the underlay.
func (m *machine) gateway(dst netip.Addr) netip.Addr {
	if r, found := m.lookup(dst); found && len(r.Hops) > 0 && r.Hops[0].Gateway.IsValid() {
		return r.Hops[0].Gateway
	}
	return dst
}

// Source implements sim.Routing.
func (m *machine) Source(out string, is4 bool) (netip.Addr, bool) {
	family := netip.IPv6Unspecified()
	if is4 {
		family = netip.IPv4Unspecified()
	}
	if out != nic {
		return netip.Addr{}, false
	}
	return m.own(family)
}
