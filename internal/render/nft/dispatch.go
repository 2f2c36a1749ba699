package nft

import (
	"net/netip"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// lists adds the chains and sets of the rule lists, those of prev where nothing
// changed, and the maps that lead from a port to its lists.
func (r *renderer) lists(prev *State) {
	l := newLister(prev, len(r.node.RuleLists), r.prefixes)
	for _, list := range r.node.RuleLists {
		chains, sets := l.list(list)
		r.chains, r.sets = append(r.chains, chains...), append(r.sets, sets...)
	}
	r.state = l.next
	r.asked(egressOfPort, func(p intent.Port) string { return p.Egress })
	r.asked(ingressOfPort, func(p intent.Port) string { return p.Ingress })
}

const (
	egressOfPort  = "egress-of-port"
	ingressOfPort = "ingress-of-port"
	// samePort holds what has a list, as the way in and the way out.
	samePort = "same-port"
	noList   = "no-list"
)

// prefixes are those of a set; a set that is missing has none.
func (r *renderer) prefixes(vpc, set string) []netip.Prefix {
	i, found := slices.BinarySearchFunc(r.node.AddressSets, intent.AddressSet{VPC: vpc, Name: set}, intent.AddressSet.Compare)
	if !found {
		return nil
	}
	return r.node.AddressSets[i].Prefixes
}

// asked adds the map from the ports that have a list to its first chain, unless there
// are none.
func (r *renderer) asked(name string, id func(intent.Port) string) {
	m := nft.Set{Name: name, Key: []nft.Type{nft.TypeIfName}, Data: []nft.Type{nft.TypeVerdict}}
	for _, p := range r.node.Ports {
		l := id(p)
		if l == "" {
			continue
		}
		// A list that the intent lacks allows nothing (intent.Node.Judge).
		chain := noList
		if list, ok := r.state.lists[l]; ok {
			chain = list.entry()
		} else if !r.lacking {
			r.lacking = true
			r.chain(noList, nil, drop(DeniedByNoList))
		}
		if chain != "" {
			m.Elements = append(m.Elements, nft.Element{Key: []nft.Value{nft.IfName(p.HostInterface)}, Verdict: nft.Verdict{Kind: nft.Jump, Chain: chain}})
		}
	}
	if len(m.Elements) > 0 {
		r.sets = append(r.sets, m)
	}
}

func (r *renderer) hasSet(name string) bool {
	return slices.ContainsFunc(r.sets, func(s nft.Set) bool { return s.Name == name })
}

// Comments of drops that are about flows, for all who count or explain them.
const (
	// FlowCut is said of packets of a flow that was allowed and is no longer.
	FlowCut = "flow cut by a change of policy"
	// AnswerUnjudged is said of answers to a flow that no policy has seen.
	AnswerUnjudged = "answer of a flow that was not judged"
	// MiddleOfTCP is said of TCP that begins with another packet than a SYN.
	MiddleOfTCP = "TCP flow without its beginning"
	// NoFlow is said of what conntrack cannot make out.
	NoFlow = "part of no flow"
)

// verdicts on flows are kept in the conntrack mark.
const ctMask = claims.CTJudged | claims.CTCut

// known accepts packets of flows that were judged before. That is most of them.
func known() nft.Rule {
	return rule("flow that was judged", seen(), nft.Verdict{Kind: nft.Accept})
}

// seen matches packets of flows that were judged and not cut.
func seen() nft.Match { return nft.Masked(nft.CTMark, ctMask, claims.CTJudged) }

// learn lets the flow cache learn from a packet of a flow that was judged, has been
// answered and that nobody translates, if the program where it came in asks for that. It
// asks for TCP and UDP alone, but for the port of VXLAN.
func learn() nft.Rule {
	return rule("flow that may pass by", nft.AnyFlag(nft.MetaMark, claims.MarkTry),
		seen(), nft.Masked(nft.CTStatus, nft.CTSeenReply|nft.CTSNAT|nft.CTDNAT, nft.CTSeenReply),
		nft.Mangle{Field: nft.MetaMark, Value: claims.MarkLearn, Mask: claims.MarkLearn}, nft.Verdict{Kind: nft.Accept})
}

// cut drops packets of flows that were cut, on further conditions.
func cut(conditions ...nft.Statement) nft.Rule {
	return drop(FlowCut, append([]nft.Statement{nft.Masked(nft.CTMark, claims.CTCut, claims.CTCut)}, conditions...)...)
}

// judged ends a chain: nobody has refused the flow.
func judged() nft.Rule {
	return rule("judged", nft.Mangle{Field: nft.CTMark, Value: claims.CTJudged, Mask: claims.CTJudged})
}

// invalid drops what conntrack cannot make out, but for the time of adoption: packets of
// flows from before may look so.
func (r *renderer) invalid() []nft.Rule {
	if r.options.Adopting {
		return nil
	}
	return []nft.Rule{drop(NoFlow, nft.AnyFlag(nft.CTState, nft.CTInvalid))}
}

// beginning drops TCP flows that begin in their middle: their direction is not
// known, so that a list could take the answer for the question. While the table is
// being adopted they are flows from before.
func (r *renderer) beginning() []nft.Rule {
	if r.options.Adopting {
		return nil
	}
	const flags = nft.TCPFin | nft.TCPSyn | nft.TCPRst | nft.TCPAck
	notSYN := nft.Masked(nft.TCPFlags, flags, nft.TCPSyn)
	notSYN.Op = nft.Neq
	return []nft.Rule{drop(MiddleOfTCP, notSYN, nft.AnyFlag(nft.CTState, nft.CTNew))}
}

// ask leads to the lists of the port in the given field.
func (r *renderer) ask(comment string, f nft.Field, name string) []nft.Rule {
	if !r.hasSet(name) {
		return nil
	}
	return []nft.Rule{rule(comment, nft.VMap{Key: nft.Select(f), Map: name})}
}

// judge is what new flows that are forwarded meet: separation of VPCs and tenants,
// the list of the sender, that of the receiver. Who comes to the end is marked.
func (r *renderer) judge(apart bool) {
	rules := append([]nft.Rule{cut()}, r.invalid()...)
	rules = append(rules, drop(AnswerUnjudged, nft.Is(nft.CTDirection, nft.DirReply)))
	rules = append(rules, r.beginning()...)
	if apart {
		rules = append(rules, rule("VPCs and tenants", nft.Verdict{Kind: nft.Jump, Chain: "apart"}))
	}
	if r.twice() {
		rules = append(rules, rule("a pod to itself", nft.Lookup{Key: nft.Select(nft.MetaIIFName, nft.MetaOIFName), Set: samePort}, to("judged")))
		r.chain("judged", nil, judged())
	}
	rules = append(rules, r.ask("policies of the sender", nft.MetaIIFName, egressOfPort)...)
	rules = append(rules, r.ask("policies of the receiver", nft.MetaOIFName, ingressOfPort)...)
	r.chain("judge", nil, append(rules, judged())...)
	// What neither comes from a pod here nor goes to one is none of our business. But
	// what enters the tunnel needs a VNI: that of the VPC, as of the node itself. Here is
	// the one place that packets of judged flows, and so nearly all of pods, do not come to.
	r.chain("flows", nil, known(), rule("other flows of pods", fromPorts, to("judge")), rule("other flows to pods", intoPorts, to("judge")),
		rule("into the tunnel from elsewhere", nft.Is(nft.MetaOIFName, nft.IfName(claims.VXLANDevice)), nft.Masked(nft.MetaMark, claims.MarkVNIMask, 0), to("output-tunnel")))
}

// twice adds the set of the ports that have a list, and reports whether there are any.
func (r *renderer) twice() bool {
	s := nft.Set{Name: samePort, Key: []nft.Type{nft.TypeIfName, nft.TypeIfName}}
	for _, p := range r.node.Ports {
		if p.Ingress != "" || p.Egress != "" {
			name := nft.IfName(p.HostInterface)
			s.Elements = append(s.Elements, nft.Element{Key: []nft.Value{name, name}})
		}
	}
	if len(s.Elements) == 0 {
		return false
	}
	r.sets = append(r.sets, s)
	return true
}

// toNode is what pods send to the node itself: it must not be for the node's address in
// another VPC, and their egress lists are asked. Answers to the node's own flows are not,
// nor is anything marked for them. What the node sends to a pod is not asked at all, but
// for answers of a flow that was cut.
func (r *renderer) toNode() {
	rules := append([]nft.Rule{drop(vxlanFromPod, vxlanPort)}, icmpErrors()...)
	rules = append(append(rules, known(), cut()), r.invalid()...)
	rules = append(rules, rule("answers to the node itself", nft.Is(nft.CTDirection, nft.DirReply), nft.Verdict{Kind: nft.Accept}))
	rules = append(rules, r.beginning()...)
	if r.severalVPCs() {
		rules = append(rules, rule("the node's address in another VPC", nft.Verdict{Kind: nft.Jump, Chain: "from-vpc"}))
	}
	rules = append(rules, r.ask("policies of the sender", nft.MetaIIFName, egressOfPort)...)
	r.chain("to-node", nil, append(rules, judged())...)
	r.chain("input", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookInput, Priority: claims.NFTPriorityInput}, rule("pods", flagged(claims.MarkChecked), fromPorts, to("to-node")))
	r.sent()
}

// sent is what the node itself sends, behind destination NAT: answers of a flow that was
// cut are dropped, and what a Service led to a pod elsewhere gets its VNI, since in output
// nobody knew that it goes into the tunnel. (Nor does oifname: it is that of the first
// route for the whole hook.) Every packet to a peer passes here: where there is one VPC,
// whose VNI wire_out gives to what has none, there may be no such chain.
func (r *renderer) sent() {
	var rules []nft.Rule
	if r.hasSet(egressOfPort) {
		rules = append(rules, cut(intoPorts))
	}
	if len(r.node.VPCs) > 1 && slices.ContainsFunc(r.node.Subnets, func(s intent.Subnet) bool { return s.Overlay }) {
		rules = append(rules, rule("led by a Service", nft.AnyFlag(nft.CTStatus, nft.CTDNAT), nft.Masked(nft.MetaMark, claims.MarkVNIMask, 0), to("output-tunnel")))
	}
	if len(rules) > 0 {
		r.chain("sent", &nft.Base{Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: claims.NFTPriorityInput}, rules...)
	}
}
