package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

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
	icmp  uint8
	// sender and answerer of a flow: the sources of its two directions.
	sender, answerer nft.Field
}

var families = [...]family{
	{
		"4", nft.TypeIPv4Addr, nft.IPSaddr, nft.IPDaddr, true, netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("224.0.0.0/3"), 1, nft.CTOriginalIPSaddr, nft.CTReplyIPSaddr,
	},
	{
		"6", nft.TypeIPv6Addr, nft.IP6Saddr, nft.IP6Daddr, false, netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("ff00::/8"), 58, nft.CTOriginalIP6Saddr, nft.CTReplyIP6Saddr,
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
// and in output-raw: a flow of a pod whose source NAT happens to choose the tunnel's
// port would take them away.
func (r *renderer) prerouting() {
	accept := nft.Verdict{Kind: nft.Accept}
	base := []nft.Rule{
		rule("pods", fromPorts, to("from-port")),
		rule("the node itself", nft.Is(nft.MetaIIFName, nft.IfName("lo")), accept),
		rule("checked by wire_in", nft.Is(nft.MetaIIFName, nft.IfName(claims.VXLANDevice)), accept),
	}
	var fromPort, outputRaw []nft.Rule
	for _, f := range families {
		loopback := nft.Is(f.daddr, nft.Prefix(f.loopback))
		untracked := rule("the tunnel is no flow", vxlanPort, in(f.daddr, "nodes-"+f.suffix), nft.Notrack{})
		base = append(base,
			drop("loopback address from the underlay", loopback),
			drop("loopback address from the underlay", nft.Is(f.saddr, nft.Prefix(f.loopback))),
			drop("pod address from the underlay", in(f.saddr, "subnets-"+f.suffix), notIn(f.saddr, "direct-"+f.suffix)),
			untracked)
		outputRaw = append(outputRaw, untracked)
		fromPort = append(fromPort,
			drop("spoofed source", notOfPort(f.saddr, f)),
			drop("loopback address from a pod", loopback),
			drop("broadcast or multicast from a pod", nft.Is(f.daddr, nft.Prefix(f.group))),
			drop(vxlanFromPod, vxlanPort, in(f.daddr, "nodes-"+f.suffix)))
	}
	fromPort = append(fromPort,
		rule("tenant of the port", nft.VMap{Key: nft.Select(nft.MetaIIFName), Map: "tenant-of-port"}),
		drop("unknown port"))
	r.verdictMap("tenant-of-port", func(p intent.Port) string { return fmt.Sprintf("tenant-%d", p.VNI) })
	r.chain("prerouting", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: claims.NFTPriorityRaw}, base...)
	r.chain("from-port", nil, fromPort...)
	r.chain("output-raw", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: claims.NFTPriorityRaw}, outputRaw...)
	for _, v := range r.node.VPCs {
		for _, vni := range append([]packet.VNI{v.VNI}, v.Tenants...) {
			r.chain(fmt.Sprintf("tenant-%d", vni), nil, rule("VPC "+clip(v.Name),
				nft.Mangle{Field: nft.MetaMark, Value: claims.Mark(vni), Mask: claims.MarkVNIMask}))
		}
	}
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

// clip bounds a name from an object to what a comment holds.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100]
	}
	return s
}

// forward keeps VPCs and tenants apart: a pod's packet for an address of some
// Subnet must be for one of its own VPC, and what reaches a port of an isolated
// tenant bears that tenant's VNI, the VPC's, or none (nodes, the outside).
func (r *renderer) forward() {
	r.verdictMap("vpc-of-port", func(p intent.Port) string { return fmt.Sprintf("vpc-%d", r.own[p.VPC]) })
	r.verdictMap("into-port", func(p intent.Port) string {
		if p.VNI == r.own[p.VPC] {
			return ""
		}
		return fmt.Sprintf("into-%d", p.VNI)
	})
	r.vxlanFromPorts()
	base := append(icmpFromPorts(),
		rule("VXLAN of pods", vxlanPort, fromPorts, nft.Verdict{Kind: nft.Jump, Chain: "vxlan-from-port"}),
		rule("tenant of the receiver", nft.VMap{Key: nft.Select(nft.MetaOIFName), Map: "into-port"}),
		rule("VPC of the sender", nft.VMap{Key: nft.Select(nft.MetaIIFName), Map: "vpc-of-port"}))
	r.chain("forward", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookForward, Priority: claims.NFTPriorityForward}, base...)
	for _, v := range r.node.VPCs {
		var apart []nft.Rule
		for _, f := range families {
			apart = append(apart, drop("another VPC", in(f.daddr, "subnets-"+f.suffix), notIn(f.daddr, fmt.Sprintf("vpc-%d-subnets-%s", v.VNI, f.suffix))))
		}
		r.chain(fmt.Sprintf("vpc-%d", v.VNI), nil, apart...)
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
	r.chain("from-vpc", nil, rule("VPC of the sender", nft.VMap{Key: nft.Select(nft.MetaIIFName), Map: "vpc-of-port"}))
}

// output marks what the node itself sends into the tunnel with the VPC's own VNI.
func (r *renderer) output() {
	device := nft.Is(nft.MetaOIFName, nft.IfName(claims.VXLANDevice))
	var rules []nft.Rule
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
		rules = append(rules, rule("VPC of the destination", device, nft.VMap{Key: nft.Select(f.daddr), Map: name}))
	}
	r.chain("output", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: claims.NFTPriorityOutput}, rules...)
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
func (r *renderer) postrouting() {
	var rules []nft.Rule
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
			rules = append(rules, rule("natOutgoing of "+clip(nat.Name), append(s, nft.Counter{}, nft.Masquerade{Flags: nft.NATFullyRandom})...))
		}
	}
	r.chain("postrouting", &nft.Base{Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: claims.NFTPrioritySrcNAT}, rules...)
}

// setName is prefix and name, cut with a hash where the kernel's 255 bytes could
// be too few (NFT_SET_MAXNAMELEN).
func setName(prefix, name string) string {
	if len(name) > 100 {
		sum := sha256.Sum256([]byte(name))
		name = name[:80] + "-" + hex.EncodeToString(sum[:8])
	}
	return prefix + name
}

func has(prefixes []netip.Prefix, is4 bool) bool {
	for _, p := range prefixes {
		if p.Addr().Is4() == is4 {
			return true
		}
	}
	return false
}
