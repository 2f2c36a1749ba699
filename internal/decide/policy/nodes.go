package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/decide/addressing"
	"github.com/fairlead-sdn/fairlead/internal/decide/selector"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// nodeKey names the addresses of the nodes that a selector chooses, as a VPC sees
// them: tunnel addresses are of one VPC, all others of every one.
type nodeKey struct{ selector, vpc string }

// nodeAddress is an address of a node, with the answer of a selector.
type nodeAddress struct {
	addr   netip.Addr
	answer selector.Answer
}

// collectNodes reads which addresses a selector of nodes stands for: those of the
// nodes' status, which the API names, and what else is the node's own, underlay and
// tunnel, for a Deny that a second address walks around denies nothing. Of an address
// that is several nodes' the highest answer counts.
func collectNodes(m selector.Matcher, vpc string, nodes world.Table[*world.Node], underlay *addressing.Underlay, tunnels []held) content {
	var list []nodeAddress
	add := func(a netip.Addr, answer selector.Answer) {
		if answer != selector.No && a.IsValid() && !a.Is4In6() && a.Zone() == "" {
			list = append(list, nodeAddress{a, answer})
		}
	}
	ask := func(name string) selector.Answer {
		if n, known := nodes.Get(world.Key{Name: name}); known {
			return m.Ask(n.Labels, true)
		}
		return m.Ask(nil, false)
	}
	for n := range nodes.Values() {
		answer := m.Ask(n.Labels, true)
		for _, a := range n.Addresses {
			add(a, answer)
		}
		for _, a := range n.ExternalAddresses {
			add(a, answer)
		}
	}
	for _, p := range underlay.Addresses {
		add(p.Addr(), ask(underlay.Self))
	}
	for _, p := range underlay.Peers {
		for _, a := range p.Addrs {
			add(a, ask(p.Name))
		}
	}
	for _, h := range tunnels {
		if h.vpc == vpc {
			add(h.addr, ask(h.node))
		}
	}
	return highest(list)
}

// highest sorts, and keeps the highest answer of each address.
func highest(list []nodeAddress) content {
	slices.SortFunc(list, func(a, b nodeAddress) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(b.answer, a.answer)) })
	list = slices.CompactFunc(list, func(a, b nodeAddress) bool { return a.addr == b.addr })
	var h halves
	for _, n := range list {
		if n.answer == selector.Yes {
			h.sure.add(n.addr)
		} else {
			h.unsure.add(n.addr)
		}
	}
	return h.content()
}
