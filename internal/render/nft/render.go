package nft

import (
	"net/netip"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// The address sets that decide puts into an intent for this renderer, one of each
// per VPC.
const (
	// SetSubnets holds the CIDRs of all the VPC's Subnets.
	SetSubnets = "subnets"
	// SetDirect holds what peers have without encapsulation: the only pod sources
	// that may come in from the underlay.
	SetDirect = "direct"
)

// family is what differs between IPv4 and IPv6 in a rule.
type family struct {
	suffix       string
	proto        nft.Value
	typ          nft.Type
	saddr, daddr nft.Field
	is4          bool
	loopback     netip.Prefix
	// linkLocal addresses have a meaning on one link only (RFC 3927, RFC 4291 §2.5.6).
	linkLocal netip.Prefix
	icmp      uint8
	// sender and answerer of a flow: the sources of its two directions.
	sender, answerer nft.Field
}

var families = [...]family{
	{
		"4", nft.IPv4, nft.TypeIPv4Addr, nft.IPSaddr, nft.IPDaddr, true, netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("169.254.0.0/16"), 1, nft.CTOriginalIPSaddr, nft.CTReplyIPSaddr,
	},
	{
		"6", nft.IPv6, nft.TypeIPv6Addr, nft.IP6Saddr, nft.IP6Daddr, false, netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("fe80::/10"), 58, nft.CTOriginalIP6Saddr, nft.CTReplyIP6Saddr,
	},
}

// fromPorts matches what pods of this node send.
var fromPorts = nft.Is(nft.MetaIIFName, nft.IfNamePrefix(claims.PortPrefix))

// intoPorts matches what is forwarded to them.
var intoPorts = nft.Is(nft.MetaOIFName, nft.IfNamePrefix(claims.PortPrefix))

// Options say what of a table does not come from the intent.
type Options struct {
	// Adopting lets TCP flows go on that were there before the table: those that
	// conntrack takes for new though their first packet is not the first of a
	// connection. They are judged like new ones.
	Adopting bool
}

// Render computes the table.
func Render(n intent.Node, o Options) nft.Table {
	t, _ := RenderAfter(nil, n, o)
	return t
}

// RenderAfter computes the table, and the State for the next one. prev is that of an
// earlier table, or nil: the result is the same, but rule lists that did not change
// share their chains and sets with those of the earlier table.
func RenderAfter(prev *State, n intent.Node, o Options) (nft.Table, *State) {
	r := renderer{node: n, options: o, own: map[string]packet.VNI{}}
	for _, v := range n.VPCs {
		r.own[v.Name] = v.VNI
	}
	r.addressSets()
	r.lists(prev)
	r.prerouting()
	r.icmpFromPort()
	r.toNode()
	r.forward()
	r.output()
	r.postrouting()
	return nft.Table{Name: claims.NFTTable, Sets: r.sets, Chains: r.chains}, r.state
}

type renderer struct {
	node    intent.Node
	options Options
	own     map[string]packet.VNI // VPC name to its own VNI
	state   *State
	// lacking says that a port has a list that the intent lacks.
	lacking bool
	sets    []nft.Set
	chains  []nft.Chain
}

func (r *renderer) chain(name string, base *nft.Base, rules ...nft.Rule) {
	r.chains = append(r.chains, nft.Chain{Name: name, Base: base, Rules: rules})
}

func rule(comment string, s ...nft.Statement) nft.Rule {
	return nft.Rule{Comment: comment, Statements: s}
}

func drop(comment string, s ...nft.Statement) nft.Rule {
	return rule(comment, append(s, nft.Counter{}, nft.Verdict{Kind: nft.Drop})...)
}

func to(chain string) nft.Verdict { return nft.Verdict{Kind: nft.Goto, Chain: chain} }

func in(f nft.Field, set string) nft.Lookup { return nft.Lookup{Key: nft.Select(f), Set: set} }

func notIn(f nft.Field, set string) nft.Lookup {
	return nft.Lookup{Key: nft.Select(f), Op: nft.Neq, Set: set}
}
