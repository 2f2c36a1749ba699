package nftables

import (
	"slices"
	"strings"
)

// paths follows every way from the base chains through jumps and verdict maps,
// and refuses loops, depths and statements that the kernel refuses there.
func (v *validator) paths() {
	w := walker{validator: v, depth: map[string]int{}, seen: map[visit]bool{}}
	for _, c := range v.table.Chains {
		w.loops(c.Name, nil)
	}
	if len(v.errs) > 0 {
		return
	}
	for _, c := range v.table.Chains {
		if c.Base != nil {
			w.walk(c.Name, *c.Base)
		}
		if d := w.depth[c.Name]; c.Base != nil && d > maxDepth {
			v.fail("chain %s: jumps are %d deep, at most %d", c.Name, d, maxDepth)
		}
	}
}

type visit struct {
	chain string
	base  Base
}

type walker struct {
	*validator
	// depth of the chain's deepest path, once known.
	depth map[string]int
	seen  map[visit]bool
}

// loops finds the depth of a chain; path leads to it.
func (w *walker) loops(name string, path []string) int {
	if d, ok := w.depth[name]; ok {
		return d
	}
	if i := slices.Index(path, name); i >= 0 {
		w.fail("chain %s: jumps in a circle: %s", name, strings.Join(append(path[i:], name), " → "))
		return 0
	}
	path = append(path, name)
	deepest := 0
	for _, next := range w.targets(w.chains[name]) {
		deepest = max(deepest, 1+w.loops(next, path))
	}
	w.depth[name] = deepest
	return deepest
}

// targets is the chains that a chain leads to, each once.
func (v *validator) targets(c Chain) []string {
	var names []string
	for _, r := range c.Rules {
		for _, s := range r.Statements {
			switch s := s.(type) {
			case Verdict:
				if s.Chain != "" {
					names = append(names, s.Chain)
				}
			case VMap:
				names = append(names, v.mapTargets(s.Map)...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// mapTargets is the chains that a verdict map leads to, sorted.
func (v *validator) mapTargets(name string) []string {
	if names, ok := v.vmaps[name]; ok {
		return names
	}
	var names []string
	for _, e := range v.sets[name].Elements {
		if e.Verdict.Chain != "" {
			names = append(names, e.Verdict.Chain)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	v.vmaps[name] = names
	return names
}

// walk checks the statements of a chain as they run from a base chain.
func (w *walker) walk(name string, base Base) {
	// The policy does not matter, and of the priority only its side of conntrack.
	base.Policy, base.Priority = 0, 0
	if w.seen[visit{name, base}] {
		return
	}
	w.seen[visit{name, base}] = true
	c := w.chains[name]
	for i, r := range c.Rules {
		for _, s := range r.Statements {
			if why := misplaced(s, base); why != "" {
				w.fail("rule %d of chain %s: %v: %s, but the chain is reached from %s at %s", i+1, RuleName(name, r), s, why, base.Type, base.Hook)
			}
		}
	}
	for _, next := range w.targets(c) {
		w.walk(next, base)
	}
}

// misplaced says where a statement belongs if the kernel refuses it at base.
func misplaced(s Statement, base Base) string {
	at := func(hooks ...Hook) bool { return slices.Contains(hooks, base.Hook) }
	switch s := s.(type) {
	case Masquerade:
		if base.Type != TypeNAT || !at(HookPostrouting) {
			return "works in nat chains at postrouting"
		}
	case NAT:
		if s.Kind == SNAT && (base.Type != TypeNAT || !at(HookPostrouting, HookInput)) {
			return "works in nat chains at postrouting and input"
		}
		if s.Kind == DNAT && (base.Type != TypeNAT || !at(HookPrerouting, HookOutput)) {
			return "works in nat chains at prerouting and output"
		}
	case Reject:
		if !at(HookInput, HookForward, HookOutput) {
			return "works at input, forward and output"
		}
	case Notrack:
		if !at(HookPrerouting, HookOutput) {
			return "works at prerouting and output"
		}
	case Match:
		if (s.Field == FibSaddrIIF || s.Field == FibSaddr) && !at(HookPrerouting, HookInput, HookForward) {
			return "works at prerouting, input and forward"
		}
	}
	return ""
}
