package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Comments of the rules that decide about new flows begin so, and name the policies.
const (
	// AllowedBy begins the comment of a rule that counts what a policy allows.
	AllowedBy = "allowed by "
	// DeniedBy begins the comment of a rule that counts and drops what one denies.
	DeniedBy = "denied by "
	// DeniedByNoList is said where the intent lacks a list that a port has.
	DeniedByNoList = DeniedBy + "a list that is missing"
)

// maxClasses is how many kinds of peers of a tier have a set and a chain of their
// own, each a look-up. Those beyond share sets of address, protocol and port: a
// look-up in them costs as much whatever they hold, but the kernel copies the whole
// set for every change.
const maxClasses = 8

// maxRanges is how many ranges of ports are rules of their own rather than a set.
const maxRanges = 3

// tierWriter writes the chains of one tier of lists. Who leaves them by return is
// allowed in this direction; next is the chain of the tier behind, if there is one.
type tierWriter struct {
	*content
	direction  intent.Direction
	name, next string
	rules      []intent.Rule
	chains     []nft.Chain
}

func (w *tierWriter) write() []nft.Chain {
	own := min(len(w.classes), maxClasses)
	var rules []nft.Rule
	for _, c := range w.classes[:own] {
		rules = append(rules, w.class(c)...)
	}
	rules = append(rules, w.shared(w.classes[own:])...)
	rules = append(rules, w.decide(w.rest, w.content.name+"-rest", w.openRules())...)
	w.chains = append(w.chains, nft.Chain{Name: w.name, Rules: rules})
	for i := range w.chains {
		w.chains[i].Whole = true // A half of a list may allow what the list does not.
	}
	if !w.written {
		for i := range w.classes {
			w.classes[i].peers = [2][]piece{} // They are in the sets now.
		}
		w.written = true
	}
	return w.chains
}

// add makes a set known, unless it has no elements: then it reports false. The chains
// that are written first for a content fill its sets.
func (w *tierWriter) add(s nft.Set, elements func() []nft.Element) bool {
	if w.written {
		return slices.ContainsFunc(w.sets, func(o nft.Set) bool { return o.Name == s.Name })
	}
	if s.Elements = elements(); len(s.Elements) == 0 {
		return false
	}
	s.Interval, s.Whole = true, true
	w.sets = append(w.sets, s)
	return true
}

func ranges(c conduct) (n int) {
	for _, s := range c {
		n += len(s)
	}
	return n
}

// openRules are the rules for every peer.
func (w *tierWriter) openRules() (out []intent.Rule) {
	for _, r := range w.rules {
		if len(r.Match.Sets) == 0 {
			out = append(out, r)
		}
	}
	return out
}

// peer is the address that a list's sets are about.
func (w *tierWriter) peer(f family) nft.Field {
	if w.direction == intent.Egress {
		return f.daddr
	}
	return f.saddr
}

// class writes the sets of a class and the rules that lead to what happens to it.
func (w *tierWriter) class(c class) (rules []nft.Rule) {
	sum := sha256.Sum256([]byte(c.conduct.key()))
	suffix := "-" + hex.EncodeToString(sum[:4])
	name := w.content.name + suffix
	var then nft.Rule
	if is, ok := c.conduct.uniform(); ok {
		then = w.fate(is, w.of(c), nil)
	} else {
		then = rule("", to(w.name+suffix))
		w.chains = append(w.chains, nft.Chain{Name: w.name + suffix, Rules: w.decide(c.conduct, name, w.of(c))})
	}
	peers := name
	if c.whole != nil {
		peers = c.whole.name
	}
	for i, f := range families {
		set := nft.Set{Name: peers + "-" + f.suffix, Key: []nft.Type{f.typ}}
		if w.add(set, func() []nft.Element { return c.elements(i) }) {
			rules = append(rules, rule(then.Comment, append([]nft.Statement{in(w.peer(f), set.Name)}, then.Statements...)...))
		}
	}
	return rules
}

// elements are the peers of a family, shared by all classes that have the same.
func (c class) elements(f int) []nft.Element {
	if c.whole != nil {
		return c.whole.elements[f]
	}
	return elements(c.peers[f], families[f])
}

// of are the rules of a class.
func (w *tierWriter) of(c class) []intent.Rule {
	out := make([]intent.Rule, len(c.rules))
	for i, r := range c.rules {
		out[i] = w.rules[r]
	}
	return out
}

// elements are those of an interval set.
func elements(peers []piece, f family) []nft.Element {
	out, values := make([]nft.Element, len(peers)), make([]nft.Value, len(peers))
	for i, p := range peers {
		values[i] = p.value(f.is4)
		out[i].Key = values[i : i+1 : i+1]
	}
	return out
}

// fate is what happens to packets: the end of a rule, with a comment that names the
// rules of policies that it may come from, those about the given ports of a protocol.
func (w *tierWriter) fate(is intent.Action, rules []intent.Rule, about *portsOf) nft.Rule {
	switch is {
	case intent.Accept:
		return rule(origins(AllowedBy, is, rules, about), nft.Counter{}, nft.Verdict{Kind: nft.Return})
	case intent.Deny:
		return drop(origins(DeniedBy, is, rules, about))
	}
	if w.next == "" {
		return rule("no policy says no", nft.Verdict{Kind: nft.Return})
	}
	return rule("passed on", to(w.next))
}

// transports are the protocols with ports, in the order of a conduct.
var transports = [...]struct {
	name  string
	proto uint8
	dport nft.Field
}{{"tcp", protoTCP, nft.TCPDport}, {"udp", 17, nft.UDPDport}, {"sctp", 132, nft.SCTPDport}}

// decide are the rules for packets whose peer is known.
func (w *tierWriter) decide(c conduct, name string, from []intent.Rule) (out []nft.Rule) {
	others, _ := uniform(c[onOthers])
	for p, t := range transports {
		if is, ok := uniform(c[p]); ok {
			if is != others {
				out = append(out, after(w.fate(is, from, &portsOf{p, anyPort}), nft.Is(nft.MetaL4Proto, nft.Proto(t.proto))))
			}
			continue
		}
		for _, is := range []intent.Action{intent.Accept, intent.Deny, intent.Pass} {
			if is != others {
				out = append(out, w.ports(c[p], is, p, fmt.Sprintf("%s-%s-%s", name, t.name, fateNames[is]), from)...)
			}
		}
	}
	if others == intent.Pass && w.next == "" {
		return out // the end of a chain is a return
	}
	return append(out, w.fate(others, from, &portsOf{onOthers, anyPort}))
}

var fateNames = map[intent.Action]string{intent.Accept: "accept", intent.Deny: "deny", intent.Pass: "pass"}

// ports are the rules for the ports of a protocol that have one fate.
func (w *tierWriter) ports(spans []span, is intent.Action, p int, set string, from []intent.Rule) (out []nft.Rule) {
	t := transports[p]
	var of []intent.PortRange
	for _, s := range spans {
		if s.is == is {
			of = append(of, intent.PortRange{First: s.first, Last: s.last})
		}
	}
	if len(of) <= maxRanges {
		for _, r := range of {
			out = append(out, after(w.fate(is, from, &portsOf{p, r}), nft.Is(t.dport, nft.PortRange(r.First, r.Last))))
		}
		return out
	}
	w.add(nft.Set{Name: set, Key: []nft.Type{nft.TypeInetService}}, func() (out []nft.Element) {
		for _, r := range of {
			out = append(out, nft.Element{Key: []nft.Value{nft.PortRange(r.First, r.Last)}})
		}
		return out
	})
	return []nft.Rule{after(w.fate(is, from, &portsOf{p, anyPort}), in(t.dport, set))}
}

// after is a rule with conditions before it.
func after(r nft.Rule, s ...nft.Statement) nft.Rule {
	return rule(r.Comment, append(s, r.Statements...)...)
}

// shared are the rules for the peers of many classes: one set per family and fate,
// of address, protocol and port, then one of addresses, for whom what is left of
// protocols and ports has that fate.
func (w *tierWriter) shared(classes []class) (out []nft.Rule) {
	actions := []intent.Action{intent.Accept, intent.Deny, intent.Pass}
	for i, f := range families {
		for _, is := range actions {
			s := nft.Set{Name: w.content.name + "-ports-" + fateNames[is] + "-" + f.suffix, Key: []nft.Type{f.typ, nft.TypeInetProto, nft.TypeInetService}}
			if w.add(s, func() []nft.Element { return portElements(classes, i, is) }) {
				out = append(out, w.lookup(s, is, w.peer(f), nft.MetaL4Proto, nft.THDport))
			}
		}
		for _, is := range actions {
			s := nft.Set{Name: w.content.name + "-peers-" + fateNames[is] + "-" + f.suffix, Key: []nft.Type{f.typ}}
			if w.add(s, func() []nft.Element { return peerElements(classes, i, is) }) {
				out = append(out, w.lookup(s, is, w.peer(f)))
			}
		}
	}
	return out
}

// lookup is a rule that looks into a set.
func (w *tierWriter) lookup(s nft.Set, is intent.Action, key ...nft.Field) nft.Rule {
	return after(w.fate(is, w.rules, nil), nft.Lookup{Key: nft.Select(key...), Set: s.Name})
}

// peerElements are the peers whose protocols, but for those in portElements, have a fate.
func peerElements(classes []class, f int, is intent.Action) []nft.Element {
	var peers []piece
	for _, c := range classes {
		if others, _ := uniform(c.conduct[onOthers]); others == is {
			peers = append(peers, c.peers[f]...)
		}
	}
	slices.SortFunc(peers, func(a, b piece) int { return a.from.compare(b.from) })
	return elements(peers, families[f])
}

func portElements(classes []class, f int, is intent.Action) (out []nft.Element) {
	for _, c := range classes {
		out = append(out, c.portElements(f, is)...)
	}
	return out
}

// portElements are address, protocol and port of what has a fate other than that of
// the peers' other protocols.
func (c class) portElements(f int, is intent.Action) (out []nft.Element) {
	others, _ := uniform(c.conduct[onOthers])
	if is == others {
		return nil
	}
	for p, t := range transports {
		for _, s := range c.conduct[p] {
			if s.is != is {
				continue
			}
			for _, r := range c.peers[f] {
				out = append(out, nft.Element{Key: []nft.Value{r.value(families[f].is4), nft.Proto(t.proto), nft.PortRange(s.first, s.last)}})
			}
		}
	}
	return out
}

// portsOf is a range of ports of a protocol, by its place in a conduct.
type portsOf struct {
	protocol int
	ports    intent.PortRange
}

// concerns reports whether a rule may match some of the ports.
func (p *portsOf) concerns(r intent.Rule) bool {
	switch {
	case p == nil:
		return true
	case r.Match.Protocol == 0:
		return true
	case p.protocol == onOthers || protocolOf(r.Match.Protocol) != p.protocol:
		return false
	}
	return len(r.Match.Ports) == 0 || slices.ContainsFunc(r.Match.Ports, func(x intent.PortRange) bool {
		return x.First <= p.ports.Last && p.ports.First <= x.Last
	})
}
