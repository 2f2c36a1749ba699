package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

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
