package nft

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Comments of the rules that decide about new flows begin so, and name the policies.
const (
	// AllowedBy begins the comment of a rule that counts what a policy allows.
	AllowedBy = "allowed by "
	// DeniedBy begins the comment of a rule that counts and drops what one denies.
	DeniedBy = "denied by "
)

// maxClasses is how many kinds of peers of a tier have a set and a chain of their
// own, each a look-up. Those beyond share sets of address, protocol and port: a
// look-up in them costs as much whatever they hold, but the kernel copies the whole
// set for every change.
const maxClasses = 8

// maxRanges is how many ranges of ports are rules of their own rather than a set.
const maxRanges = 3

// listed is a RuleList in nftables: its chains and sets.
type listed struct {
	list intent.RuleList
	// used are the prefixes that it was made of, in the order of list's rules and
	// their sets.
	used   [][]netip.Prefix
	chains []nft.Chain
	sets   []nft.Set
}

// tierNames are parts of the names of chains.
var tierNames = map[intent.Tier]string{intent.TierAdmin: "admin", intent.TierNetworkPolicy: "policy", intent.TierBaseline: "baseline"}

// listName is the beginning of the names of a list's chains and sets: its ID, which
// is a hash of its content.
func listName(id string, d intent.Direction) string {
	return setName(d.String()+"-", strings.TrimPrefix(id, d.String()+"-"))
}

// entry is the chain that asks a list, "" for one that has no rules.
func entry(l intent.RuleList) string {
	if len(l.Rules) == 0 {
		return ""
	}
	return listName(l.ID, l.Direction) + "-" + tierNames[l.Rules[0].Tier]
}

// newListed renders a list.
func newListed(l intent.RuleList, in func(set string) []netip.Prefix) *listed {
	out := &listed{list: l, used: usedBy(l, in)}
	for rules := l.Rules; len(rules) > 0; {
		n := 1
		for n < len(rules) && rules[n].Tier == rules[0].Tier {
			n++
		}
		w := tierWriter{listed: out, rules: rules[:n], name: listName(l.ID, l.Direction) + "-" + tierNames[rules[0].Tier]}
		if n < len(rules) {
			w.next = listName(l.ID, l.Direction) + "-" + tierNames[rules[n].Tier]
		}
		w.write(in)
		rules = rules[n:]
	}
	// A half of a list may allow what the list does not.
	for i := range out.chains {
		out.chains[i].Whole = true
	}
	for i := range out.sets {
		out.sets[i].Whole = true
	}
	return out
}

// usedBy are the prefixes of a list's sets.
func usedBy(l intent.RuleList, in func(set string) []netip.Prefix) (out [][]netip.Prefix) {
	for _, r := range l.Rules {
		for _, s := range r.Match.Sets {
			out = append(out, in(s))
		}
	}
	return out
}

// current reports whether a list of the same ID would be rendered just so.
func (l *listed) current(in func(set string) []netip.Prefix) bool {
	n := 0
	for _, r := range l.list.Rules {
		for _, s := range r.Match.Sets {
			a, b := l.used[n], in(s)
			if n++; len(a) != len(b) || len(a) > 0 && &a[0] != &b[0] && !slices.Equal(a, b) {
				return false
			}
		}
	}
	return true
}

// tierWriter writes the chains of one tier of a list. Who leaves them by return is
// allowed in this direction; next is the chain of the tier behind, if there is one.
type tierWriter struct {
	*listed
	name, next string
	rules      []intent.Rule
}

func (w *tierWriter) write(in func(set string) []netip.Prefix) {
	classes, rest := classify(w.rules, in)
	// The ones with the most ranges of ports come first, which does not depend on who
	// the peers are.
	slices.SortStableFunc(classes, func(a, b class) int {
		return cmp.Or(cmp.Compare(ranges(b.conduct), ranges(a.conduct)), cmp.Compare(a.conduct.key(), b.conduct.key()))
	})
	own := min(len(classes), maxClasses)
	var rules []nft.Rule
	for _, c := range classes[:own] {
		rules = append(rules, w.class(c)...)
	}
	rules = append(rules, w.shared(classes[own:])...)
	rules = append(rules, w.decide(rest, w.name+"-rest", w.openRules())...)
	w.chains = append(w.chains, nft.Chain{Name: w.name, Rules: rules})
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
	if w.list.Direction == intent.Egress {
		return f.daddr
	}
	return f.saddr
}

// class writes the sets of a class and the rules that lead to what happens to it.
func (w *tierWriter) class(c class) (rules []nft.Rule) {
	sum := sha256.Sum256([]byte(c.conduct.key()))
	name := w.name + "-" + hex.EncodeToString(sum[:4])
	var then nft.Rule
	if is, ok := c.conduct.uniform(); ok {
		then = w.fate(is, w.of(c), nil)
	} else {
		then = rule("", to(name))
		w.chains = append(w.chains, nft.Chain{Name: name, Rules: w.decide(c.conduct, name, w.of(c))})
	}
	for i, f := range families {
		if len(c.peers[i]) == 0 {
			continue
		}
		set := nft.Set{Name: name + "-" + f.suffix, Key: []nft.Type{f.typ}, Interval: true, Elements: elements(c.peers[i], f)}
		w.sets = append(w.sets, set)
		rules = append(rules, rule(then.Comment, append([]nft.Statement{in(w.peer(f), set.Name)}, then.Statements...)...))
	}
	return rules
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
	s := nft.Set{Name: set, Key: []nft.Type{nft.TypeInetService}, Interval: true}
	for _, r := range of {
		s.Elements = append(s.Elements, nft.Element{Key: []nft.Value{nft.PortRange(r.First, r.Last)}})
	}
	w.sets = append(w.sets, s)
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
			s := nft.Set{Name: w.name + "-ports-" + fateNames[is] + "-" + f.suffix, Key: []nft.Type{f.typ, nft.TypeInetProto, nft.TypeInetService}, Interval: true}
			for _, c := range classes {
				s.Elements = append(s.Elements, c.portElements(i, is)...)
			}
			key := []nft.Field{w.peer(f), nft.MetaL4Proto, nft.THDport}
			out = append(out, w.lookup(s, is, key...)...)
		}
		for _, is := range actions {
			s := nft.Set{Name: w.name + "-peers-" + fateNames[is] + "-" + f.suffix, Key: []nft.Type{f.typ}, Interval: true}
			var peers []piece
			for _, c := range classes {
				if others, _ := uniform(c.conduct[onOthers]); others == is {
					peers = append(peers, c.peers[i]...)
				}
			}
			slices.SortFunc(peers, func(a, b piece) int { return a.from.compare(b.from) })
			s.Elements = elements(peers, f)
			out = append(out, w.lookup(s, is, w.peer(f))...)
		}
	}
	return out
}

// lookup is a rule that looks into a set, and the set, unless that is empty.
func (w *tierWriter) lookup(s nft.Set, is intent.Action, key ...nft.Field) []nft.Rule {
	if len(s.Elements) == 0 {
		return nil
	}
	w.sets = append(w.sets, s)
	return []nft.Rule{after(w.fate(is, w.rules, nil), nft.Lookup{Key: nft.Select(key...), Set: s.Name})}
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

// origins names the rules of policies with an action, as many as fit a comment.
func origins(prefix string, is intent.Action, rules []intent.Rule, about *portsOf) string {
	const room = 112 // of 127 bytes, for " and 12345 more"
	text, more := prefix, 0
	var before string
	for _, r := range rules {
		if r.Action != is || !about.concerns(r) {
			continue
		}
		name := originText(r.Origin)
		switch {
		case name == before:
		case before == "":
			text += name
		case more == 0 && len(text)+len(name)+2 <= room:
			text += ", " + name
		default:
			more++
		}
		before = name
	}
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// originText is "NetworkPolicy default/web rule 2": at most 101 bytes.
func originText(o intent.RuleOrigin) string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	what := "isolates"
	if o.Index >= 0 {
		what = fmt.Sprintf("rule %d", o.Index)
	}
	kind := label(o.Kind)
	name = label(name)
	return kind[:min(len(kind), 20)] + " " + name[:min(len(name), 62)] + " " + what
}
