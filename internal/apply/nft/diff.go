package nft

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/nftables"
)

// Changes is what an Apply did. The zero value means that nothing was sent.
type Changes struct {
	// TableCreated says that the table was not there, or had to be made anew.
	TableCreated                              bool
	ChainsAdded, ChainsChanged, ChainsRemoved int
	SetsAdded, SetsRebuilt, SetsRemoved       int
	RulesAdded, RulesRemoved                  int
	ElementsAdded, ElementsRemoved            int
	// Messages and Bytes is the size of the transaction.
	Messages, Bytes int
	// Lines tells the changes of chains, sets and rules to a person, at most
	// MaxLines of them.
	Lines []string
}

// MaxLines bounds Changes.Lines.
const MaxLines = 200

// Empty says whether nothing was sent.
func (c Changes) Empty() bool { return c.Messages == 0 }

func (c *Changes) line(format string, args ...any) {
	if len(c.Lines) < MaxLines {
		c.Lines = append(c.Lines, fmt.Sprintf(format, args...))
	}
}

// differ writes the messages that lead from one state to another. All removals
// come first, from what refers to what is referred to, then all additions in the
// opposite order; the kernel switches to the result at once, so packets see
// nothing in between.
type differ struct {
	have, want *state
	desired    nftables.Table
	b          *batch
	Changes

	// rebuilt are sets, recreated chains that go and come within the batch.
	rebuilt, recreated map[string]bool
	plans              map[string]chainPlan
	added, removed     map[string][]string // elements by set
}

// chainPlan says which rules of a chain stay: kept[j] is the index of the present
// rule that is rule j of the wanted ones, or -1.
type chainPlan struct{ kept []int }

func diff(have, want *state, desired nftables.Table, b *batch) Changes {
	d := differ{
		have: have, want: want, desired: desired, b: b,
		rebuilt: map[string]bool{}, recreated: map[string]bool{}, plans: map[string]chainPlan{},
		added: map[string][]string{}, removed: map[string][]string{},
	}
	d.plan()
	d.removeRules()
	d.removeElements()
	d.removeSets()
	d.removeChains()
	d.addChains()
	d.addSets()
	d.addRules()
	if !b.empty() {
		d.Messages, d.Bytes = len(b.labels)+1, len(b.buf)
	}
	return d.Changes
}

// plan compares, before anything is written.
func (d *differ) plan() {
	for _, name := range sortedNames(d.want.sets) {
		want, have := d.want.sets[name], d.have.sets[name]
		if have == want {
			continue // the same encoding, see encode
		}
		if have == nil {
			d.added[name] = want.order
			continue
		}
		added, removed := elementDiff(have, want)
		changed := len(added)+len(removed) > 0
		if have.def != want.def || have.broken || changed && want.def.flags&unix.NFT_SET_CONSTANT != 0 {
			d.rebuilt[name] = true
			d.added[name] = want.order
			continue
		}
		d.added[name], d.removed[name] = added, removed
	}
	for _, name := range sortedNames(d.want.chains) {
		want, have := d.want.chains[name], d.have.chains[name]
		switch {
		case have == want && !d.looksRebuilt(want):
			// The same encoding, see encode: it is left out below.
		case have == nil:
			d.plans[name] = newChainPlan(len(want.rules))
		case !sameBase(have.base, want.base):
			d.recreated[name] = true
			d.plans[name] = newChainPlan(len(want.rules))
		default:
			d.plans[name] = planRules(have.rules, want.rules, d.rebuilt)
		}
	}
}

// looksRebuilt reports whether a rule of the chain looks into a set that goes and comes.
func (d *differ) looksRebuilt(c *chainState) bool {
	return len(d.rebuilt) > 0 && slices.ContainsFunc(c.rules, d.looks)
}

func (d *differ) looks(r ruleState) bool {
	return slices.ContainsFunc(r.looks, func(set string) bool { return d.rebuilt[set] })
}

// elementDiff is the keys to add, in the order wanted, and to remove, sorted. One
// whose data changed is in both.
func elementDiff(have, want *setState) (added, removed []string) {
	for _, key := range want.order {
		data, ok := have.elements[key]
		if !ok || data != want.elements[key] {
			added = append(added, key)
		}
		if ok && data != want.elements[key] {
			removed = append(removed, key)
		}
	}
	if len(have.elements)+len(added)-len(removed) > len(want.elements) {
		for key := range have.elements {
			if _, ok := want.elements[key]; !ok {
				removed = append(removed, key)
			}
		}
	}
	slices.Sort(removed)
	return added, removed
}

func newChainPlan(n int) chainPlan {
	p := chainPlan{kept: make([]int, n)}
	for j := range p.kept {
		p.kept[j] = -1
	}
	return p
}

// planRules keeps as many rules as can stay where they are: equal rules are
// paired in order, and the longest run of pairs that agree in their order stays.
func planRules(have, want []ruleState, rebuilt map[string]bool) chainPlan {
	p := newChainPlan(len(want))
	byDigest := map[digest][]int{}
	for i, r := range have {
		byDigest[r.digest] = append(byDigest[r.digest], i)
	}
	pairs := make([][2]int, 0, len(want)) // have, want
	for j, r := range want {
		if slices.ContainsFunc(r.looks, func(set string) bool { return rebuilt[set] }) {
			continue
		}
		if at := byDigest[r.digest]; len(at) > 0 {
			pairs = append(pairs, [2]int{at[0], j})
			byDigest[r.digest] = at[1:]
		}
	}
	for _, k := range longestIncreasing(pairs) {
		p.kept[pairs[k][1]] = pairs[k][0]
	}
	return p
}

// longestIncreasing is the indices of a longest run of pairs, not necessarily
// adjacent, whose first numbers increase.
func longestIncreasing(pairs [][2]int) []int {
	var tails []int // index of the least end of a run of each length
	before := make([]int, len(pairs))
	for k, pair := range pairs {
		n, _ := slices.BinarySearchFunc(tails, pair[0], func(t, first int) int { return pairs[t][0] - first })
		before[k] = -1
		if n > 0 {
			before[k] = tails[n-1]
		}
		if n == len(tails) {
			tails = append(tails, k)
		} else {
			tails[n] = k
		}
	}
	run := make([]int, len(tails))
	if len(tails) > 0 {
		for i, k := len(tails)-1, tails[len(tails)-1]; k >= 0; i, k = i-1, before[k] {
			run[i] = k
		}
	}
	return run
}

func (d *differ) removeRules() {
	for _, name := range sortedNames(d.have.chains) {
		have := d.have.chains[name]
		if _, planned := d.plans[name]; !planned && d.want.chains[name] != nil {
			continue
		}
		stays := map[int]bool{}
		for _, i := range d.plans[name].kept {
			if i >= 0 {
				stays[i] = true
			}
		}
		d.RulesRemoved += len(have.rules) - len(stays)
		if len(stays) == 0 && len(have.rules) > 0 {
			d.b.deleteRule(name, 0, "all rules of chain "+name)
			d.line("remove all %d rules of chain %s", len(have.rules), name)
			continue
		}
		for i, r := range have.rules {
			if !stays[i] {
				d.b.deleteRule(name, r.handle, describe(name, i, r))
				d.line("remove %s", describe(name, i, r))
			}
		}
	}
}

func (d *differ) removeElements() {
	for _, name := range sortedNames(d.removed) {
		if keys := d.removed[name]; len(keys) > 0 {
			d.ElementsRemoved += len(keys)
			d.b.elements(d.have.sets[name], keys, true)
		}
	}
}

func (d *differ) removeSets() {
	for _, name := range sortedNames(d.have.sets) {
		switch {
		case d.have.sets[name].def.flags&unix.NFT_SET_ANONYMOUS != 0:
			continue // goes with its rule
		case d.want.sets[name] == nil:
			d.SetsRemoved++
			d.line("remove set %s", name)
		case d.rebuilt[name]:
			d.SetsRebuilt++
			d.line("rebuild set %s", name)
		default:
			continue
		}
		d.b.deleteSet(name)
	}
}

func (d *differ) removeChains() {
	for _, name := range sortedNames(d.have.chains) {
		switch {
		case d.want.chains[name] == nil:
			d.ChainsRemoved++
			d.line("remove chain %s", name)
		case d.recreated[name]:
			d.ChainsChanged++
			d.line("recreate chain %s", name)
		default:
			continue
		}
		d.b.deleteChain(name)
	}
}

func (d *differ) addChains() {
	for _, c := range d.desired.Chains {
		have, want := d.have.chains[c.Name], d.want.chains[c.Name]
		switch {
		case have == nil:
			d.ChainsAdded++
			d.line("add chain %s", c.Name)
			d.b.newChain(want)
		case d.recreated[c.Name]:
			d.b.newChain(want)
		case want.base != nil && have.base.Policy != want.base.Policy:
			d.ChainsChanged++
			d.line("set policy of chain %s to %s", c.Name, want.base.Policy)
			d.b.setPolicy(want)
		}
	}
}

func (d *differ) addSets() {
	for i, set := range d.desired.Sets {
		want := d.want.sets[set.Name]
		if d.have.sets[set.Name] == nil || d.rebuilt[set.Name] {
			d.b.newSet(set, want, uint32(i+1))
		}
		if d.have.sets[set.Name] == nil {
			d.SetsAdded++
			d.line("add set %s", set.Name)
		}
		keys := d.added[set.Name]
		d.ElementsAdded += len(keys)
		if removed := len(d.removed[set.Name]); len(keys)+removed > 0 {
			d.line("set %s: %d elements added, %d removed", set.Name, len(keys), removed)
		}
		d.b.elements(want, keys, false)
	}
}

// addRules adds what is missing, each rule before the next one that stays, and
// hands the handles of those to the wanted state.
func (d *differ) addRules() {
	for _, c := range d.desired.Chains {
		want := d.want.chains[c.Name]
		plan, planned := d.plans[c.Name]
		if !planned {
			continue
		}
		kept := plan.kept
		next := make([]uint64, len(kept)+1)
		for j := len(kept) - 1; j >= 0; j-- {
			next[j] = next[j+1]
			if kept[j] >= 0 {
				want.rules[j].handle = d.have.chains[c.Name].rules[kept[j]].handle
				next[j] = want.rules[j].handle
			}
		}
		for j, r := range want.rules {
			if kept[j] < 0 {
				want.rules[j].handle = 0 // until it is read back
				d.RulesAdded++
				d.line("add %s: %s", describe(c.Name, j, r), c.Rules[j])
				d.b.newRule(c.Name, j, r, next[j+1])
			}
		}
	}
}
