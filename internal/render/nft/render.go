package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

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
	typ          nft.Type
	saddr, daddr nft.Field
	is4          bool
	loopback     netip.Prefix
	// group holds the addresses of several hosts, and IPv4's reserved ones.
	group netip.Prefix
	// linkLocal addresses have a meaning on one link only (RFC 3927, RFC 4291 §2.5.6).
	linkLocal netip.Prefix
	icmp      uint8
	// sender and answerer of a flow: the sources of its two directions.
	sender, answerer nft.Field
}

var families = [...]family{
	{
		"4", nft.TypeIPv4Addr, nft.IPSaddr, nft.IPDaddr, true, netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("169.254.0.0/16"), 1, nft.CTOriginalIPSaddr, nft.CTReplyIPSaddr,
	},
	{
		"6", nft.TypeIPv6Addr, nft.IP6Saddr, nft.IP6Daddr, false, netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("ff00::/8"), netip.MustParsePrefix("fe80::/10"), 58, nft.CTOriginalIP6Saddr, nft.CTReplyIP6Saddr,
	},
}

// fromPorts matches what pods of this node send.
var fromPorts = nft.Is(nft.MetaIIFName, nft.IfNamePrefix(claims.PortPrefix))

// Render computes the table.
func Render(n intent.Node) nft.Table {
	r := renderer{node: n, own: map[string]packet.VNI{}}
	for _, v := range n.VPCs {
		r.own[v.Name] = v.VNI
	}
	r.addressSets()
	r.prerouting()
	r.input()
	r.forward()
	r.output()
	r.postrouting()
	return nft.Table{Name: claims.NFTTable, Sets: r.sets, Chains: r.chains}
}

type renderer struct {
	node   intent.Node
	own    map[string]packet.VNI // VPC name to its own VNI
	sets   []nft.Set
	chains []nft.Chain
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

// intervals adds one interval set per family with the given prefixes, merged.
func (r *renderer) intervals(name string, prefixes []netip.Prefix) {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	// The builder fails for invalid prefixes only, which intent.Validate refuses.
	set, _ := b.IPSet()
	for _, f := range families {
		s := nft.Set{Name: name + f.suffix, Key: []nft.Type{f.typ}, Interval: true}
		if set != nil {
			for _, x := range set.Ranges() {
				if x.From().Is4() == f.is4 {
					s.Elements = append(s.Elements, nft.Element{Key: []nft.Value{nft.AddrRange(x)}})
				}
			}
		}
		r.sets = append(r.sets, s)
	}
}

func (r *renderer) addressSets() {
	var all, direct, nodes []netip.Prefix
	subnets := map[string][]netip.Prefix{} // by VPC
	for _, s := range r.node.AddressSets {
		switch s.Name {
		case SetSubnets:
			all = append(all, s.Prefixes...)
			subnets[s.VPC] = append(subnets[s.VPC], s.Prefixes...)
		case SetDirect:
			direct = append(direct, s.Prefixes...)
		}
	}
	// A VPC without a Subnet has its sets too: rules refer to them, and one missing set
	// would keep the whole table from the kernel.
	for _, v := range r.node.VPCs {
		r.intervals(fmt.Sprintf("vpc-%d-subnets-", v.VNI), subnets[v.Name])
	}
	host := func(a netip.Addr) { nodes = append(nodes, netip.PrefixFrom(a, a.BitLen())) }
	for _, p := range r.node.Underlay {
		host(p.Addr())
	}
	for _, p := range r.node.Peers {
		for _, a := range p.Addrs {
			host(a)
		}
	}
	for _, t := range r.node.Tunnels {
		host(t.Addr)
	}
	r.intervals("subnets-", all)
	r.intervals("direct-", direct)
	r.intervals("nodes-", nodes)
	for _, f := range families {
		s := nft.Set{Name: "port-addresses-" + f.suffix, Key: []nft.Type{nft.TypeIfName, f.typ}}
		for _, p := range r.node.Ports {
			for _, a := range p.Addresses {
				if a.Is4() == f.is4 {
					s.Elements = append(s.Elements, nft.Element{Key: []nft.Value{nft.IfName(p.HostInterface), nft.Addr(a)}})
				}
			}
		}
		r.sets = append(r.sets, s)
	}
}

// verdictMap adds a map from the host's interface of each port to a chain; ports
// for which chain returns "" are left out.
func (r *renderer) verdictMap(name string, chain func(intent.Port) string) {
	m := nft.Set{Name: name, Key: []nft.Type{nft.TypeIfName}, Data: []nft.Type{nft.TypeVerdict}}
	for _, p := range r.node.Ports {
		if c := chain(p); c != "" {
			m.Elements = append(m.Elements, nft.Element{Key: []nft.Value{nft.IfName(p.HostInterface)}, Verdict: to(c)})
		}
	}
	r.sets = append(r.sets, m)
}

// prerouting lets in from a port only what bears the port's address and marks it
// with its tenant, and from the underlay no pod's address but those that peers
// have without encapsulation. Conntrack does not see the tunnel's own packets, here
// and in output: a flow of a pod whose source NAT happens to choose the tunnel's
// port would take them away.
//
// Every packet of a pod passes here, so the order is that of cost: one look-up finds
// sender and tenant at once, and a packet meets the rules of its own family only.
func (r *renderer) prerouting() {
	accept := nft.Verdict{Kind: nft.Accept}
	base := []nft.Rule{
		rule("pods", fromPorts, to("from-port")),
		rule("checked by wire_in", nft.Is(nft.MetaIIFName, nft.IfName(claims.VXLANDevice)), accept),
		rule("the node itself", nft.Is(nft.MetaIIFName, nft.IfName("lo")), accept),
		rule("IPv4", nft.Is(nft.MetaNFProto, nft.IPv4), to("underlay-4")),
		rule("IPv6", nft.Is(nft.MetaNFProto, nft.IPv6), to("underlay-6")),
	}
	var fromPort []nft.Rule
	for _, f := range families {
		r.chain("underlay-"+f.suffix, nil, append(r.tunnelled(f),
			drop("loopback address from the underlay", nft.Is(f.daddr, nft.Prefix(f.loopback))),
			drop("loopback address from the underlay", nft.Is(f.saddr, nft.Prefix(f.loopback))),
			drop("pod address from the underlay", in(f.saddr, "subnets-"+f.suffix), notIn(f.saddr, "direct-"+f.suffix)))...)
		r.fromTenants(f)
		fromPort = append(fromPort, rule("tenant of the sender",
			nft.VMap{Key: nft.Select(nft.MetaIIFName, f.saddr), Map: "tenant-of-port-" + f.suffix}))
	}
	r.chain("prerouting", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: claims.NFTPriorityRaw}, base...)
	r.chain("from-port", nil, append(fromPort, drop("spoofed source"))...)
	for _, v := range r.node.VPCs {
		for _, vni := range append([]packet.VNI{v.VNI}, v.Tenants...) {
			r.chain(fmt.Sprintf("tenant-%d", vni), nil, rule("VPC "+label(v.Name), mark(vni)))
		}
	}
}

// tunnelled lets in the tunnel's own packets for this node: wire_in judges them, their
// outer source too. There are none without an overlay.
func (r *renderer) tunnelled(f family) (rules []nft.Rule) {
	if !slices.ContainsFunc(r.node.Subnets, func(s intent.Subnet) bool { return s.Overlay }) {
		return nil
	}
	for _, p := range r.node.Underlay {
		if p.Addr().Is4() == f.is4 {
			rules = append(rules, rule("the tunnel is no flow; checked by wire_in",
				vxlanPort, nft.Is(f.daddr, nft.Addr(p.Addr())), nft.Notrack{}, nft.Verdict{Kind: nft.Accept}))
		}
	}
	return rules
}

func mark(vni packet.VNI) nft.Mangle {
	return nft.Mangle{Field: nft.MetaMark, Value: claims.Mark(vni), Mask: claims.MarkVNIMask}
}

// fromTenants adds, for one family, the map from a port and its address to the chain
// of its tenant, and these chains: what no pod may send to anybody is dropped there,
// the rest is marked.
func (r *renderer) fromTenants(f family) {
	m := nft.Set{Name: "tenant-of-port-" + f.suffix, Key: []nft.Type{nft.TypeIfName, f.typ}, Data: []nft.Type{nft.TypeVerdict}}
	chain := func(vni packet.VNI) string { return fmt.Sprintf("from-tenant-%d-%s", vni, f.suffix) }
	used := map[packet.VNI]bool{}
	for _, p := range r.node.Ports {
		for _, a := range p.Addresses {
			if a.Is4() == f.is4 {
				used[p.VNI] = true
				m.Elements = append(m.Elements, nft.Element{Key: []nft.Value{nft.IfName(p.HostInterface), nft.Addr(a)}, Verdict: to(chain(p.VNI))})
			}
		}
	}
	for _, vni := range slices.Sorted(maps.Keys(used)) {
		r.chain(chain(vni), nil,
			drop("loopback address from a pod", nft.Is(f.daddr, nft.Prefix(f.loopback))),
			drop("broadcast or multicast from a pod", nft.Is(f.daddr, nft.Prefix(f.group))),
			drop(vxlanFromPod, vxlanPort, in(f.daddr, "nodes-"+f.suffix)),
			rule("tenant of the sender", mark(vni)))
	}
	r.sets = append(r.sets, m)
}

var vxlanPort = nft.Is(nft.UDPDport, nft.Port(claims.VXLANPort))

const vxlanFromPod = "VXLAN from a pod"

// notOfPort matches if the port that a packet came in by has no such address.
func notOfPort(addr nft.Field, f family) nft.Lookup {
	return nft.Lookup{Key: nft.Select(nft.MetaIIFName, addr), Op: nft.Neq, Set: "port-addresses-" + f.suffix}
}

// input holds the ICMP errors that pods send to the node itself against the flows
// that they speak of. Nothing else is judged here.
func (r *renderer) input() {
	r.chain("input", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookInput, Priority: claims.NFTPriorityInput}, icmpFromPorts()...)
	const why = "ICMP error about a flow that is not the pod's"
	rules := []nft.Rule{drop(why, nft.AnyFlag(nft.CTState, nft.CTInvalid))}
	for _, f := range families {
		rules = append(rules, drop(why, nft.AnyFlag(nft.CTState, nft.CTRelated), notOfPort(f.sender, f), notOfPort(f.answerer, f)))
	}
	r.chain("icmp-from-port", nil, rules...)
}

// icmpFromPorts leads to the chain icmp-from-port. A pod says that a flow of others
// has a small MTU or an unreachable end, and whoever sends into it believes that: an
// error of a pod must be about a packet that was for the pod.
func icmpFromPorts() (out []nft.Rule) {
	for _, f := range families {
		out = append(out, rule("errors of pods", nft.Is(nft.MetaL4Proto, nft.Proto(f.icmp)), fromPorts, nft.Verdict{Kind: nft.Jump, Chain: "icmp-from-port"}))
	}
	return out
}

// vxlanFromPorts judges VXLAN that pods send to elsewhere a second time, behind
// destination NAT: none may get to a node's address, and none may get a node's
// address, since peers know each other by it.
func (r *renderer) vxlanFromPorts() {
	var rules []nft.Rule
	for _, f := range families {
		rules = append(rules, drop(vxlanFromPod, in(f.daddr, "nodes-"+f.suffix)))
	}
	for _, nat := range r.node.NATs {
		for _, f := range families {
			if has(nat.Sources, f.is4) {
				rules = append(rules, drop(vxlanFromPod, r.masqueraded(nat, f)...))
			}
		}
	}
	r.chain("vxlan-from-port", nil, rules...)
}

// masqueraded matches what a NAT gives another source.
func (r *renderer) masqueraded(nat intent.NAT, f family) []nft.Statement {
	return []nft.Statement{
		in(f.saddr, natSet(nat)+f.suffix), notIn(f.daddr, fmt.Sprintf("vpc-%d-%s-%s", r.own[nat.VPC], nat.Except, f.suffix)),
	}
}

func natSet(nat intent.NAT) string { return setName("nat-", nat.Name) + "-" }

// label is the name of an object in a comment: bounded, and without what a comment
// may not hold. Names are checked where they come in, but one that slipped through
// must not keep the whole table from the kernel.
func label(s string) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f || r == '"' {
			return '?'
		}
		return r
	}, s)
	return clean[:min(len(clean), 100)]
}

// forward keeps VPCs and tenants apart: a pod's packet for an address of some
// Subnet must be for one of its own VPC, and what reaches a port of an isolated
// tenant bears that tenant's VNI, the VPC's, or none (nodes, the outside). Rules that
// could match nothing, in a cluster of one VPC without isolated tenants, are left
// out: they would cost every packet a look-up.
func (r *renderer) forward() {
	several := r.severalVPCs()
	r.verdictMap("vpc-of-port", func(p intent.Port) string { return fmt.Sprintf("vpc-%d", r.own[p.VPC]) })
	r.verdictMap("into-port", func(p intent.Port) string {
		if p.VNI == r.own[p.VPC] {
			return ""
		}
		return fmt.Sprintf("into-%d", p.VNI)
	})
	r.vxlanFromPorts()
	var apart, fromVPC []nft.Rule
	if several {
		fromVPC = []nft.Rule{rule("VPC of the sender", nft.VMap{Key: nft.Select(nft.MetaIIFName), Map: "vpc-of-port"})}
	}
	if slices.ContainsFunc(r.node.Ports, func(p intent.Port) bool { return p.VNI != r.own[p.VPC] }) {
		apart = append(apart, rule("tenant of the receiver", nft.VMap{Key: nft.Select(nft.MetaOIFName), Map: "into-port"}))
	}
	r.chain("apart", nil, append(apart, fromVPC...)...)
	base := append([]nft.Rule{rule("neither ICMP nor VXLAN", nft.Is(nft.MetaL4Proto, nft.Proto(protoTCP)), to("apart"))}, icmpFromPorts()...)
	base = append(base,
		rule("VXLAN of pods", vxlanPort, fromPorts, nft.Verdict{Kind: nft.Jump, Chain: "vxlan-from-port"}),
		rule("all others", to("apart")))
	r.chain("forward", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookForward, Priority: claims.NFTPriorityForward}, base...)
	for _, v := range r.node.VPCs {
		var others []nft.Rule
		for _, f := range families {
			others = append(others, drop("another VPC", in(f.daddr, "subnets-"+f.suffix), notIn(f.daddr, fmt.Sprintf("vpc-%d-subnets-%s", v.VNI, f.suffix))))
		}
		r.chain(fmt.Sprintf("vpc-%d", v.VNI), nil, others...)
		r.intoTenants(v)
	}
	r.chain("from-vpc", nil, fromVPC...)
}

const protoTCP = 6

// severalVPCs reports whether Subnets of more than one VPC exist.
func (r *renderer) severalVPCs() bool {
	first := ""
	for _, s := range r.node.AddressSets {
		if s.Name != SetSubnets || len(s.Prefixes) == 0 {
			continue
		}
		if first != "" && s.VPC != first {
			return true
		}
		first = s.VPC
	}
	// A port whose VPC is not that of the Subnets must not reach them either.
	return slices.ContainsFunc(r.node.Ports, func(p intent.Port) bool { return p.VPC != first })
}

// intoTenants adds the chains of a VPC's isolated tenants: whom they hear.
func (r *renderer) intoTenants(v intent.VPC) {
	for _, tenant := range v.Tenants {
		var rules []nft.Rule
		for _, from := range []struct {
			mark uint32
			who  string
		}{{0, "nodes and the outside"}, {claims.Mark(tenant), "the same tenant"}, {claims.Mark(v.VNI), "global tenants and nodes"}} {
			rules = append(rules, rule(from.who, nft.Masked(nft.MetaMark, claims.MarkVNIMask, from.mark), to("from-vpc")))
		}
		r.chain(fmt.Sprintf("into-%d", tenant), nil, append(rules, drop("another tenant"))...)
	}
}

// output marks what the node itself sends into the tunnel with the VPC's own VNI, and
// keeps the tunnel's own packets from conntrack. That is one chain before conntrack
// and not two, since every packet to a peer passes here.
func (r *renderer) output() {
	var marks []nft.Rule
	rules := []nft.Rule{rule("into the tunnel", nft.Is(nft.MetaOIFName, nft.IfName(claims.VXLANDevice)), to("output-tunnel"))}
	for _, f := range families {
		name := "vpc-of-address-" + f.suffix
		m := nft.Set{Name: name, Key: []nft.Type{f.typ}, Data: []nft.Type{nft.TypeVerdict}, Interval: true}
		for _, s := range r.node.Subnets {
			for _, p := range s.CIDRs {
				if p.Addr().Is4() == f.is4 {
					m.Elements = append(m.Elements, nft.Element{
						Key: []nft.Value{nft.Prefix(p)}, Verdict: to(fmt.Sprintf("tenant-%d", r.own[s.VPC])),
					})
				}
			}
		}
		r.sets = append(r.sets, m)
		marks = append(marks, rule("VPC of the destination", nft.VMap{Key: nft.Select(f.daddr), Map: name}))
		rules = append(rules, rule("the tunnel is no flow", vxlanPort, in(f.daddr, "nodes-"+f.suffix), nft.Notrack{}))
	}
	r.chain("output-tunnel", nil, marks...)
	r.chain("output", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: claims.NFTPriorityRaw}, rules...)
}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}

// postrouting gives the node's address to what pods send out of their VPC, and
// the node's own address towards the Subnet to what enters the tunnel from elsewhere:
// a peer takes nothing from the tunnel that is not of a block of ours.
//
// What pods send to link-local addresses never leaves the node: a cloud's metadata
// service would take it for the node's and hand out the node's credentials. It is
// dropped here, where the destination is final and one packet of each flow passes.
func (r *renderer) postrouting() {
	var rules []nft.Rule
	for _, f := range families {
		rules = append(rules, drop("link-local destination beyond the node",
			nft.Is(f.daddr, nft.Prefix(f.linkLocal)), in(f.saddr, "subnets-"+f.suffix)))
	}
	device := nft.IfName(claims.VXLANDevice)
	for _, n := range r.node.Subnets {
		for _, p := range n.CIDRs {
			f := familyOf(p.Addr())
			if source := r.node.Source(n, f.is4); n.Overlay && source.IsValid() {
				rules = append(rules, rule("into the tunnel from elsewhere",
					nft.Is(nft.MetaOIFName, device), nft.Is(f.daddr, nft.Prefix(p)), notIn(f.saddr, "subnets-"+f.suffix),
					nft.Counter{}, nft.NAT{Kind: nft.SNAT, Addr: source, Flags: nft.NATFullyRandom}))
			}
		}
	}
	for _, nat := range r.node.NATs {
		r.intervals(natSet(nat), nat.Sources)
		for _, f := range families {
			if !has(nat.Sources, f.is4) {
				continue
			}
			s := append([]nft.Statement{nft.IsNot(nft.MetaOIFName, device)}, r.masqueraded(nat, f)...)
			rules = append(rules, rule("natOutgoing of "+label(nat.Name), append(s, nft.Counter{}, nft.Masquerade{Flags: nft.NATFullyRandom})...))
		}
	}
	r.chain("postrouting", &nft.Base{Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: claims.NFTPrioritySrcNAT}, rules...)
}

// setName is prefix and name, with a hash where the kernel's 255 bytes could be too
// few (NFT_SET_MAXNAMELEN) or where a set cannot have such a name.
func setName(prefix, name string) string {
	if len(name) <= 100 && !strings.ContainsFunc(name, notInSetName) {
		return prefix + name
	}
	sum := sha256.Sum256([]byte(name))
	clean := strings.Map(func(r rune) rune {
		if notInSetName(r) {
			return '_'
		}
		return r
	}, name)
	return prefix + clean[:min(len(clean), 80)] + "-" + hex.EncodeToString(sum[:8])
}

func notInSetName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
}

func has(prefixes []netip.Prefix, is4 bool) bool {
	for _, p := range prefixes {
		if p.Addr().Is4() == is4 {
			return true
		}
	}
	return false
}
