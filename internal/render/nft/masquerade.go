package nft

import nft "github.com/fairlead-sdn/fairlead/internal/nftables"

// masqueradePorts are the source ports of what is masqueraded: those that kernels give
// to clients (net.ipv4.ip_local_port_range). Left to itself the kernel takes any from 1024
// on, and so takes packets away from what listens there, such as node ports.
var masqueradePorts = nft.PortRange(32768, 60999)

// masquerade adds the chain that all masqueraded flows go to.
func (r *renderer) masquerade() {
	var rules []nft.Rule
	for _, t := range transports {
		rules = append(rules, rule("", nft.Is(nft.MetaL4Proto, nft.Proto(t.proto)), nft.Masquerade{Ports: masqueradePorts, Flags: nft.NATFullyRandom}))
	}
	r.chain("masqueraded", nil, append(rules, rule("no ports", nft.Masquerade{Flags: nft.NATFullyRandom}))...)
}
