package cli

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// reachGroup are pairs that change alike: every one of From with every one of To.
type reachGroup struct {
	From []string `json:"from"`
	To   []string `json:"to"`
	// Port is "80/TCP"; "other/TCP" stands for every port that no policy names.
	Port string `json:"port"`
	// Families are "IPv4", "IPv6", or both.
	Families []string `json:"families"`
	// Before and After are "allowed" or "denied"; After is "gone" if an end is deleted.
	Before string `json:"before"`
	After  string `json:"after"`
	// Policy denies it, now or before; nil if no policy does.
	Policy *whyPolicy `json:"policy,omitempty"`
	// Direction in which the policy is asked: "egress" of From, "ingress" of To.
	Direction string `json:"direction,omitempty"`
	Why       string `json:"why"`
}

// change is what a pair may have in common with others.
type change struct {
	port     reachPort
	families uint8 // bit 0: IPv4, bit 1: IPv6
	after    bool
	by       int
}

// grouping gathers pairs by what they have in common.
type grouping struct {
	c *comparison
	// row are the changes of the receiver that is under way: by change, its senders.
	row map[change][]int
	// rows by change and senders: the receivers.
	rows map[change]map[string][]int
	from map[string][]int
	// last pair of row, for its second family.
	pair struct {
		from   int
		change change
		set    bool
	}
}

func newGrouping(c *comparison) *grouping {
	return &grouping{c: c, row: map[change][]int{}, rows: map[change]map[string][]int{}, from: map[string][]int{}}
}

// add notes a change of a pair. The families of a pair follow one another.
func (g *grouping) add(from, _ int, port reachPort, family int, v pairVerdict) {
	next := change{port: port, families: 1 << family, after: v.allowed[1], by: v.by}
	if g.pair.set && g.pair.from == from {
		both := g.pair.change
		both.families |= next.families
		if last := g.pair.change; last.port == port && last.after == next.after && last.by == next.by && last.families != next.families {
			list := g.row[last]
			g.row[last] = list[:len(list)-1]
			next = both
		}
	}
	g.row[next] = append(g.row[next], from)
	g.pair.from, g.pair.change, g.pair.set = from, next, true
}

// endOf puts the changes of a receiver to those of receivers that change alike.
func (g *grouping) endOf(to int) {
	for k, list := range g.row {
		if len(list) == 0 {
			continue
		}
		slices.Sort(list)
		key := encodeInts(list)
		if g.rows[k] == nil {
			g.rows[k] = map[string][]int{}
		}
		g.rows[k][key] = append(g.rows[k][key], to)
		g.from[key] = list
	}
	g.row, g.pair.set = map[change][]int{}, false
}

// encodeInts makes a key of a list.
func encodeInts(list []int) string {
	b := make([]byte, 0, 3*len(list))
	for _, n := range list {
		b = append(b, byte(n), byte(n>>8), byte(n>>16))
	}
	return string(b)
}

// list returns the groups, sorted.
func (g *grouping) list() []reachGroup {
	out := []reachGroup{}
	names := func(list []int) []string {
		s := make([]string, len(list))
		for i, n := range list {
			s[i] = g.c.hosts[n].name
		}
		slices.Sort(s)
		return s
	}
	for k, rows := range g.rows {
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			d := g.c.by[k.by]
			group := reachGroup{
				From: names(g.from[key]), To: names(rows[key]), Port: k.port.String(), Before: allowWord(!k.after), After: allowWord(k.after), Why: d.why,
			}
			if d.gone {
				group.After = "gone"
			}
			for i, name := range []string{"IPv4", "IPv6"} {
				if k.families&(1<<i) != 0 {
					group.Families = append(group.Families, name)
				}
			}
			if d.has {
				policy := d.policy
				group.Policy, group.Direction = &policy, d.direction
			}
			out = append(out, group)
		}
	}
	slices.SortFunc(out, func(a, b reachGroup) int {
		return cmp.Or(-cmp.Compare(a.After, b.After), slices.Compare(a.To, b.To), slices.Compare(a.From, b.From),
			cmp.Compare(a.Port, b.Port), slices.Compare(a.Families, b.Families), cmp.Compare(a.Why, b.Why))
	})
	return out
}

// sizes counts the pods of each namespace that are judged.
func (c *comparison) sizes() map[string]int {
	out := map[string]int{}
	for _, h := range c.hosts {
		if h.pod {
			ns, _, _ := strings.Cut(h.name, "/")
			out[ns]++
		}
	}
	return out
}
