package nft

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/intent"
	nft "github.com/fairlead-sdn/fairlead/internal/nftables"
)

// State is what a table was made of, so that the next one can share what is the same.
// It is never changed.
type State struct {
	lists    map[string]listed   // by ID
	tiers    map[string]*tiered  // by name
	contents map[string]*content // by name
	wholes   map[wholeKey]*wholeSet
}

// listed is a RuleList in nftables: its tiers in their order.
type listed struct {
	list  intent.RuleList
	tiers []*tiered
}

// tiered is one tier of lists in nftables. Lists with the same rules in it, and the same
// ones behind it, share it: its name is a hash of these.
type tiered struct {
	name string
	*content
	chains []nft.Chain
}

// content is what sorts of peers a tier knows, and its sets. Tiers whose rules match and
// do the same share it, whatever policies they come from, in both directions.
type content struct {
	name    string
	classes []class
	rest    conduct
	sets    []nft.Set
	written bool // sets are complete, and classes without peers
	// used are the prefixes that it was made of, in the order of the rules and their
	// sets; of is the names of those.
	used [][]netip.Prefix
	of   []string
}

// wholeSet is an AddressSet in nftables, for all classes whose peers are just that: two
// policies often allow the same pods. It is there only where such a class is.
type wholeSet struct {
	key      wholeKey
	name     string
	used     []netip.Prefix
	elements [2][]nft.Element
}

type wholeKey struct{ vpc, set string }

// tierNames are parts of the names of chains.
var tierNames = map[intent.Tier]string{intent.TierAdmin: "admin", intent.TierNetworkPolicy: "policy", intent.TierBaseline: "baseline"}

// entry is the chain that asks a list, "" for one that has no rules.
func (l listed) entry() string {
	if len(l.tiers) == 0 {
		return ""
	}
	return l.tiers[0].name
}

// lister renders lists, and takes from an earlier State what has not changed.
type lister struct {
	prev, next *State
	// in is the prefixes of a set of a VPC.
	in func(vpc, set string) []netip.Prefix
	// current says of contents of prev whether they are what would be made now.
	current map[*content]bool
	known   map[string]bool // sets of the table
	peers   map[wholeKey][2][]piece
}

func newLister(prev *State, lists int, in func(vpc, set string) []netip.Prefix) *lister {
	if prev == nil {
		prev = &State{}
	}
	next := &State{lists: make(map[string]listed, lists), tiers: map[string]*tiered{}, contents: map[string]*content{}, wholes: map[wholeKey]*wholeSet{}}
	return &lister{prev: prev, next: next, in: in, current: map[*content]bool{}, known: map[string]bool{}, peers: map[wholeKey][2][]piece{}}
}

// list renders a list, and returns what no list before it had.
func (r *lister) list(l intent.RuleList) (chains []nft.Chain, sets []nft.Set) {
	out, found := r.prev.lists[l.ID]
	if !found || !out.list.Equal(l) || slices.ContainsFunc(out.tiers, func(t *tiered) bool { return !r.isCurrent(l.VPC, t.content) }) {
		out = listed{list: l, tiers: r.split(l)}
	}
	r.next.lists[l.ID] = out
	for _, t := range out.tiers {
		if r.next.tiers[t.name] == nil {
			r.next.tiers[t.name] = t
			chains = append(chains, t.chains...)
		}
		if r.next.contents[t.content.name] == nil {
			r.next.contents[t.content.name] = t.content
			r.keepWholes(t.content)
			for _, s := range t.sets {
				if !r.known[s.Name] {
					r.known[s.Name] = true
					sets = append(sets, s)
				}
			}
		}
	}
	return chains, sets
}

// keepWholes hands the sets of a content that was taken over to the next State.
func (r *lister) keepWholes(c *content) {
	for _, x := range c.classes {
		if x.whole != nil {
			r.next.wholes[x.whole.key] = x.whole
		}
	}
}

// split renders the tiers of a list, from the last, as each knows the one behind it.
func (r *lister) split(l intent.RuleList) (tiers []*tiered) {
	next := ""
	for end := len(l.Rules); end > 0; {
		first := end - 1
		for first > 0 && l.Rules[first-1].Tier == l.Rules[end-1].Tier {
			first--
		}
		t := r.tier(l.VPC, l.Direction, l.Rules[first:end], next)
		tiers, next, end = append(tiers, t), t.name, first
	}
	slices.Reverse(tiers)
	return tiers
}

// tier renders one tier, unless it is there already.
func (r *lister) tier(vpc string, d intent.Direction, rules []intent.Rule, next string) *tiered {
	sum := sha256.Sum256([]byte(intent.NewRuleList(vpc, d, rules).ID + " " + next))
	kind := tierNames[rules[0].Tier]
	c := r.content(vpc, kind, rules)
	name := d.String() + "-" + kind + "-" + hex.EncodeToString(sum[:12])
	for _, s := range []*State{r.next, r.prev} {
		if t := s.tiers[name]; t != nil && t.content == c {
			return t
		}
	}
	w := tierWriter{content: c, direction: d, name: name, next: next, rules: rules}
	return &tiered{name: name, content: c, chains: w.write()}
}

// content sorts the peers of a tier, unless that is done.
func (r *lister) content(vpc, kind string, rules []intent.Rule) *content {
	plain := make([]intent.Rule, len(rules))
	for i, x := range rules {
		plain[i] = intent.Rule{Action: x.Action, Match: x.Match}
	}
	id := intent.NewRuleList(vpc, intent.Ingress, plain).ID
	name := kind + strings.TrimPrefix(id, intent.Ingress.String())
	if c := r.next.contents[name]; c != nil {
		return c
	}
	if c := r.prev.contents[name]; c != nil && r.isCurrent(vpc, c) {
		return c
	}
	c := &content{name: name}
	for _, x := range rules {
		for _, s := range x.Match.Sets {
			c.of, c.used = append(c.of, s), append(c.used, r.in(vpc, s))
		}
	}
	c.classes, c.rest = classify(rules, func(set string) []netip.Prefix { return r.in(vpc, set) })
	// The ones with the most ranges of ports come first, which does not depend on who
	// the peers are.
	slices.SortStableFunc(c.classes, func(a, b class) int {
		return cmp.Or(cmp.Compare(ranges(b.conduct), ranges(a.conduct)), cmp.Compare(a.conduct.key(), b.conduct.key()))
	})
	for i := range c.classes {
		r.findWhole(vpc, rules, &c.classes[i])
	}
	return c
}

// findWhole finds the AddressSet that a class is.
func (r *lister) findWhole(vpc string, rules []intent.Rule, c *class) {
	for _, i := range c.rules {
		for _, set := range rules[i].Match.Sets {
			key := wholeKey{vpc, set}
			if peers := r.peersOf(key); slices.Equal(peers[0], c.peers[0]) && slices.Equal(peers[1], c.peers[1]) {
				c.whole = r.whole(key, c.peers)
				return
			}
		}
	}
}

// peersOf are those of an AddressSet, in the pieces that a class of just them has.
func (r *lister) peersOf(key wholeKey) [2][]piece {
	peers, known := r.peers[key]
	if !known {
		only := []intent.Rule{{Action: intent.Accept, Match: intent.Match{Sets: []string{key.set}}}}
		classes, _ := classify(only, func(set string) []netip.Prefix { return r.in(key.vpc, set) })
		if len(classes) > 0 {
			peers = classes[0].peers
		}
		r.peers[key] = peers
	}
	return peers
}

// whole is an AddressSet as a set, that of an earlier table if it has not changed.
func (r *lister) whole(key wholeKey, peers [2][]piece) *wholeSet {
	if w := r.next.wholes[key]; w != nil {
		return w
	}
	prefixes := r.in(key.vpc, key.set)
	w := r.prev.wholes[key]
	if w == nil || len(w.used) != len(prefixes) || &w.used[0] != &prefixes[0] {
		sum := sha256.Sum256([]byte(key.vpc + " " + key.set))
		w = &wholeSet{key: key, name: "peers-" + hex.EncodeToString(sum[:12]), used: prefixes}
		for i, f := range families {
			w.elements[i] = elements(peers[i], f)
		}
	}
	r.next.wholes[key] = w
	return w
}

// isCurrent reports whether a content would be the same now.
func (r *lister) isCurrent(vpc string, c *content) bool {
	is, known := r.current[c]
	if known {
		return is
	}
	is = true
	for i, set := range c.of {
		a, b := c.used[i], r.in(vpc, set)
		is = is && len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
	}
	r.current[c] = is
	return is
}
