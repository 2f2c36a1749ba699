package ovs

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// nftFamily is what differs between IPv4 and IPv6 in a rule.
type nftFamily struct {
	suffix              string
	is4                 bool
	typ                 nft.Type
	saddr, daddr        nft.Field
	loopback, linkLocal netip.Prefix
}

var nftFamilies = [...]nftFamily{
	{"4", true, nft.TypeIPv4Addr, nft.IPSaddr, nft.IPDaddr, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16")},
	{"6", false, nft.TypeIPv6Addr, nft.IP6Saddr, nft.IP6Daddr, netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fe80::/10")},
}

// RenderTable computes the host's filter table. It judges nothing that the bridge does:
// it sees to it that the bridge can tell by the source what the node itself sends, keeps
// pod addresses from coming in by the underlay, and masquerades.
func RenderTable(n intent.Node, s Switch) nft.Table {
	t := tableWriter{node: sorted(n)}
	t.sets()
	t.prerouting(s)
	t.forward()
	t.output(s)
	t.postrouting()
	return t.table
}

type tableWriter struct {
	node  intent.Node
	table nft.Table
}

func (t *tableWriter) chain(name string, base *nft.Base, rules []nft.Rule) {
	t.table.Chains = append(t.table.Chains, nft.Chain{Name: name, Base: base, Rules: rules})
}

func rule(comment string, s ...nft.Statement) nft.Rule {
	return nft.Rule{Comment: comment, Statements: s}
}

func drop(comment string, s ...nft.Statement) nft.Rule {
	return rule(comment, append(s, nft.Counter{}, nft.Verdict{Kind: nft.Drop})...)
}

func in(f nft.Field, set string) nft.Lookup { return nft.Lookup{Key: nft.Select(f), Set: set} }

func notIn(f nft.Field, set string) nft.Lookup {
	return nft.Lookup{Key: nft.Select(f), Op: nft.Neq, Set: set}
}

// The sets, with the family's suffix.
const (
	setSubnets = "subnets-" // of all VPCs
	setDirect  = "direct-"  // what peers have without the tunnel
	setNodes   = "nodes-"   // underlay addresses, and the node's own in Subnets
	setHere    = "here-"    // blocks of this node and addresses lent to it
	setOwn     = "own-"     // the node's own in the Subnets of one VPC, which follows
)

func (t *tableWriter) sets() {
	t.table.Name = claims.NFTTable
	var subnets, direct, nodes netipx.IPSetBuilder
	for _, s := range t.node.AddressSets {
		for _, p := range s.Prefixes {
			switch s.Name {
			case intent.SetSubnets:
				subnets.AddPrefix(p)
			case intent.SetDirect:
				direct.AddPrefix(p)
			}
		}
	}
	for _, p := range t.node.Underlay {
		nodes.Add(p.Addr())
	}
	for _, p := range t.node.Peers {
		for _, a := range p.Addrs {
			nodes.Add(a)
		}
	}
	for _, a := range t.node.Tunnels {
		nodes.Add(a.Addr)
	}
	t.intervals(setSubnets, &subnets)
	t.intervals(setDirect, &direct)
	t.intervals(setNodes, &nodes)
	t.intervals(setHere, here(t.node))
	for _, v := range t.node.VPCs {
		var own netipx.IPSetBuilder
		for _, a := range t.node.Tunnels {
			if a.VPC == v.Name {
				own.Add(a.Addr)
			}
		}
		t.intervals(ownName(v.Name)+"-", &own)
	}
	for _, nat := range t.node.NATs {
		var sources, except netipx.IPSetBuilder
		for _, p := range nat.Sources {
			sources.AddPrefix(p)
		}
		for _, s := range t.node.AddressSets {
			for _, p := range s.Prefixes {
				if s.VPC == nat.VPC && s.Name == nat.Except {
					except.AddPrefix(p)
				}
			}
		}
		t.intervals(natName(nat)+"-", &sources)
		t.intervals(natName(nat)+"-except-", &except)
	}
}

// here is what is on this node: its blocks, without what is lent out of them.
func here(n intent.Node) *netipx.IPSetBuilder {
	routes := slices.Clone(n.Routes)
	slices.SortStableFunc(routes, func(a, b intent.Route) int { return a.Dst.Bits() - b.Dst.Bits() })
	b := &netipx.IPSetBuilder{}
	for _, r := range routes {
		if r.NextHop.Local {
			b.AddPrefix(r.Dst)
		} else {
			b.RemovePrefix(r.Dst)
		}
	}
	return b
}

// intervals adds one interval set per family.
func (t *tableWriter) intervals(name string, b *netipx.IPSetBuilder) {
	// The builder fails for invalid prefixes only, which intent.Validate refuses.
	set, _ := b.IPSet()
	for _, f := range nftFamilies {
		s := nft.Set{Name: name + f.suffix, Key: []nft.Type{f.typ}, Interval: true}
		if set != nil {
			for _, x := range set.Ranges() {
				if x.From().Is4() == f.is4 {
					s.Elements = append(s.Elements, nft.Element{Key: []nft.Value{nft.AddrRange(x)}})
				}
			}
		}
		t.table.Sets = append(t.table.Sets, s)
	}
}

var (
	vxlanPort   = nft.Is(nft.UDPDport, nft.Port(claims.VXLANPort))
	fromBridge  = nft.Is(nft.MetaIIFName, nft.IfName(claims.OVSHostPort))
	intoBridge  = nft.Is(nft.MetaOIFName, nft.IfName(claims.OVSHostPort))
	notToBridge = nft.IsNot(nft.MetaOIFName, nft.IfName(claims.OVSHostPort))
	ownSource   = nft.Is(nft.FibSaddrType, nft.FibLocal)
)

// kernelTunnel says that the tunnel's packets pass the host's own stack.
func (s Switch) kernelTunnel(n intent.Node) bool { return s.Datapath == System && overlay(n) }

func (t *tableWriter) prerouting(s Switch) {
	accept := nft.Verdict{Kind: nft.Accept}
	rules := append(
		t.takenByBridge(s),
		rule("checked by the bridge", fromBridge, accept),
		rule("the node itself", nft.Is(nft.MetaIIFName, nft.IfName("lo")), accept),
	)
	for _, p := range t.node.Underlay {
		if f := nftFamilyOf(p.Addr()); s.kernelTunnel(t.node) {
			rules = append(rules, rule("the tunnel is no flow; checked by the bridge", vxlanPort, nft.Is(f.daddr, nft.Addr(p.Addr())), nft.Notrack{}, accept))
		}
	}
	for _, f := range nftFamilies {
		rules = append(rules,
			drop("loopback address from the underlay", nft.Is(f.daddr, nft.Prefix(f.loopback))),
			drop("loopback address from the underlay", nft.Is(f.saddr, nft.Prefix(f.loopback))),
			drop("pod address from the underlay", in(f.saddr, setSubnets+f.suffix), notIn(f.saddr, setDirect+f.suffix)))
	}
	t.chain("prerouting", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: claims.NFTPriorityRaw}, rules)
}

// takenByBridge drops what a datapath in userspace has taken: it gets copies of what
// arrives on its ports, and the host's own stack gets it all the same.
func (t *tableWriter) takenByBridge(s Switch) (rules []nft.Rule) {
	if s.Datapath != Netdev {
		return nil
	}
	ignore := func(st ...nft.Statement) {
		rules = append(rules, rule("taken by Open vSwitch", append(st, nft.Verdict{Kind: nft.Drop})...))
	}
	ignore(nft.Is(nft.MetaIIFName, nft.IfNamePrefix(claims.PortPrefix)))
	ignore(nft.Is(nft.MetaIIFName, nft.IfName(claims.OVSUnderlayBridge)))
	if s.Uplink != "" {
		for _, p := range t.node.Underlay {
			ignore(vxlanPort, nft.Is(nftFamilyOf(p.Addr()).daddr, nft.Addr(p.Addr())))
		}
	}
	return rules
}

func nftFamilyOf(a netip.Addr) nftFamily { return nftFamilies[familyIndex(a)] }

// forward drops what would pass for the node's own, and VXLAN of pods that would get a
// node's address, or to a node where destination NAT leads there.
func (t *tableWriter) forward() {
	rules := []nft.Rule{drop("the node's own address from elsewhere", intoBridge, ownSource)}
	for _, f := range nftFamilies {
		rules = append(rules, drop("VXLAN from a pod", fromBridge, vxlanPort, in(f.daddr, setNodes+f.suffix)))
	}
	for _, nat := range t.node.NATs {
		for _, f := range nftFamilies {
			if hasFamily(nat.Sources, f.is4) {
				rules = append(rules, drop("VXLAN from a pod", append([]nft.Statement{fromBridge, vxlanPort}, masqueraded(nat, f)...)...))
			}
		}
	}
	t.chain("forward", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookForward, Priority: claims.NFTPriorityForward}, rules)
}

func hasFamily(prefixes []netip.Prefix, is4 bool) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() == is4 })
}

// masqueraded matches what a NAT gives another source.
func masqueraded(nat intent.NAT, f nftFamily) []nft.Statement {
	return []nft.Statement{in(f.saddr, natName(nat)+"-"+f.suffix), notIn(f.daddr, natName(nat)+"-except-"+f.suffix)}
}

// output keeps the tunnel's own packets from conntrack.
func (t *tableWriter) output(s Switch) {
	if !s.kernelTunnel(t.node) {
		return
	}
	var rules []nft.Rule
	for _, f := range nftFamilies {
		rules = append(rules, rule("the tunnel is no flow", vxlanPort, in(f.daddr, setNodes+f.suffix), nft.Notrack{}))
	}
	t.chain("output", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: claims.NFTPriorityRaw}, rules)
}

// postrouting gives what the node itself sends to pods its address in their Subnet, by
// which the bridge knows it; masquerades what pods send out of their VPC; and lets
// nothing to link-local addresses leave the node (a cloud's metadata service would take
// it for the node's).
func (t *tableWriter) postrouting() {
	rules := []nft.Rule{rule("the node to itself", nft.Is(nft.MetaOIFName, nft.IfName("lo")), nft.Verdict{Kind: nft.Accept})}
	for _, f := range nftFamilies {
		rules = append(rules, drop("link-local destination beyond the node",
			notToBridge, nft.Is(f.daddr, nft.Prefix(f.linkLocal)), in(f.saddr, setSubnets+f.suffix)))
	}
	for _, s := range t.node.Subnets {
		for _, c := range s.CIDRs {
			rules = append(rules, t.intoBridge(s, c)...)
		}
	}
	for _, nat := range t.node.NATs {
		for _, f := range nftFamilies {
			if hasFamily(nat.Sources, f.is4) {
				st := append([]nft.Statement{notToBridge}, masqueraded(nat, f)...)
				rules = append(rules, rule("natOutgoing of "+label(nat.Name), append(st, nft.Counter{}, nft.Masquerade{Flags: nft.NATFullyRandom})...))
			}
		}
	}
	t.chain("postrouting", &nft.Base{Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: claims.NFTPrioritySrcNAT}, rules)
}

// intoBridge are the rules for what the host sends to a range of pods.
func (t *tableWriter) intoBridge(s intent.Subnet, c netip.Prefix) (rules []nft.Rule) {
	f := nftFamilyOf(c.Addr())
	to := []nft.Statement{intoBridge, nft.Is(f.daddr, nft.Prefix(c))}
	here, own := append(to[:2:2], in(f.daddr, setHere+f.suffix)), t.node.Source(s, f.is4)
	u, hasUnderlay := underlay(t.node, f.is4)
	switch known := knownBy(t.node, s, f.is4); {
	case known.IsValid():
		dst := to
		if !own.IsValid() {
			dst = here // elsewhere another Subnet's address would not be expected
		}
		rules = append(
			rules,
			rule("the node itself, by an address in the VPC", append(to[:2:2], in(f.saddr, ownName(s.VPC)+"-"+f.suffix), nft.Verdict{Kind: nft.Accept})...),
			rule("the node itself", append(dst[:len(dst):len(dst)], ownSource, nft.Counter{}, nft.NAT{Kind: nft.SNAT, Addr: known})...))
		// What kube-proxy would masquerade gets an address of the node that is not the one
		// by which the bridge knows the node itself: it is somebody else's, and is judged.
		if hasUnderlay {
			rules = append(rules, rule("masqueraded by others", append(here[:3:3],
				nft.Masked(nft.MetaMark, markMasquerade, markMasquerade), nft.Counter{}, nft.NAT{Kind: nft.SNAT, Addr: u, Flags: nft.NATFullyRandom})...))
		}
	case hasUnderlay:
		rules = append(rules, rule("the node itself, by its underlay address", append(here[:3:3], ownSource, nft.Counter{}, nft.NAT{Kind: nft.SNAT, Addr: u})...))
	}
	if own.IsValid() && s.Overlay {
		rules = append(rules, rule("into the tunnel from elsewhere", append(to[:2:2], notIn(f.daddr, setHere+f.suffix),
			notIn(f.saddr, setSubnets+f.suffix), nft.Counter{}, nft.NAT{Kind: nft.SNAT, Addr: own, Flags: nft.NATFullyRandom})...))
	}
	return rules
}

// markMasquerade is kube-proxy's packet mark, which we read and never set.
const markMasquerade = claims.MarkKubeProxy &^ 0x8000

// ownName begins the names of the sets of the node's own addresses in a VPC.
func ownName(vpc string) string { return setOwn + hashed(vpc) }

// natName begins the names of a NAT's sets.
func natName(nat intent.NAT) string { return "nat-" + hashed(nat.VPC+"\x00"+nat.Name) }

// hashed stands for a name, which may hold what that of a set may not.
func hashed(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:6])
}

// label is a name in a comment: bounded, and without what a comment may not hold.
func label(s string) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f || r == '"' {
			return '?'
		}
		return r
	}, s)
	return clean[:min(len(clean), 100)]
}
