package nftables

import (
	"errors"
	"fmt"
	"slices"
)

// Limits of the kernel (nf_tables.h).
const (
	maxName      = 255 // NFT_NAME_MAXLEN with its end
	maxKeyBytes  = 64  // NFT_DATA_VALUE_MAXLEN
	maxComment   = 127 // 128 with its end, in nft
	maxLogPrefix = 127 // NF_LOG_PREFIXLEN with its end
	maxDepth     = 15  // NFT_JUMP_STACK_SIZE less the base chain
	// maxStatements keeps rules below the kernel's 128 expressions.
	maxStatements = 32
)

// Validate says everything for which the kernel would refuse the table, or for
// which nft would not print it as it is written. Nil means that Apply can work.
func (t Table) Validate() error { return t.ValidateAfter(Table{}) }

// ValidateAfter is Validate for a table of which prev, a valid one, is an earlier
// version: the sets and chains that are still the same are not looked at again.
func (t Table) ValidateAfter(prev Table) error {
	checked, known := make(map[string]Set, len(prev.Sets)), make(map[string]Chain, len(prev.Chains))
	for _, s := range prev.Sets {
		checked[s.Name] = s
	}
	for _, c := range prev.Chains {
		known[c.Name] = c
	}
	v := validator{table: t, sets: map[string]Set{}, chains: map[string]Chain{}, vmaps: map[string][]string{}}
	if err := validName(t.Name); err != nil {
		v.fail("table: %w", err)
	}
	for _, s := range t.Sets {
		if err := newName(checked, s.Name); err != nil {
			v.fail("set: %w", err)
		} else if _, ok := v.sets[s.Name]; ok {
			v.fail("set %s: there are two sets or maps of that name", s.Name)
		}
		v.sets[s.Name] = s
	}
	for _, c := range t.Chains {
		if err := newName(known, c.Name); err != nil {
			v.fail("chain: %w", err)
		} else if _, ok := v.chains[c.Name]; ok {
			v.fail("chain %s: there are two chains of that name", c.Name)
		}
		v.chains[c.Name] = c
	}
	for _, s := range t.Sets {
		// Verdicts lead to chains, which may have gone.
		if old, ok := checked[s.Name]; !ok || s.IsVerdictMap() || !s.Equal(old) {
			v.set(s)
		}
	}
	grown := v.holds(prev)
	for _, c := range t.Chains {
		if old, ok := known[c.Name]; !grown || !ok || !c.Equal(old) {
			v.chain(c)
		}
	}
	if len(v.errs) == 0 {
		v.paths()
	}
	return errors.Join(v.errs...)
}

// newName is validName for a name that was not there before.
func newName[T any](known map[string]T, name string) error {
	if _, ok := known[name]; ok {
		return nil
	}
	return validName(name)
}

// holds reports whether all that rules of prev refer to is there as it was.
func (v *validator) holds(prev Table) bool {
	for _, o := range prev.Sets {
		s, ok := v.sets[o.Name]
		if !ok || s.Interval != o.Interval || !slices.Equal(s.Key, o.Key) || !slices.Equal(s.Data, o.Data) {
			return false
		}
	}
	for _, o := range prev.Chains {
		if c, ok := v.chains[o.Name]; !ok || c.Base != nil && o.Base == nil {
			return false
		}
	}
	return true
}

type validator struct {
	table  Table
	sets   map[string]Set
	chains map[string]Chain
	// vmaps caches the chains that a verdict map leads to.
	vmaps map[string][]string
	errs  []error
}

func (v *validator) fail(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

// validName holds names to what nft's scanner reads as one word.
func validName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("name %q: want 1 to %d bytes", name, maxName)
	}
	for i, r := range []byte(name) {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || (r < '0' || r > '9') && r != '-' && r != '.' && r != '/') {
			return fmt.Errorf("name %q: want a letter, then letters, digits, '_', '-', '.' and '/'", name)
		}
	}
	if isKeyword(name) {
		return fmt.Errorf("name %q is a word of nft's own language, so nobody could read the table back", name)
	}
	return nil
}

// set checks one set or map with its elements.
func (v *validator) set(s Set) {
	before := len(v.errs)
	if err := validTypes(s.Key, TypeIPv4Addr, TypeVerdict-1); err != nil {
		v.fail("set %s: key: %w", s.Name, err)
	}
	if s.IsMap() && !s.IsVerdictMap() {
		if err := validTypes(s.Data, TypeIPv4Addr, TypeVerdict-1); err != nil {
			v.fail("map %s: data: %w", s.Name, err)
		}
	}
	if len(v.errs) > before {
		return
	}
	for _, e := range s.Elements {
		if err := v.element(s, e); err != nil {
			v.fail("set %s: element %s: %w", s.Name, joinValues(e.Key), err)
		}
	}
	if len(v.errs) == before {
		if a, b, ok := overlap(s.Elements); ok {
			v.fail("set %s: elements %s and %s overlap", s.Name, joinValues(a.Key), joinValues(b.Key))
		}
	}
}

func validTypes(types []Type, lo, hi Type) error {
	size := 0
	for _, t := range types {
		if t < lo || t > hi {
			return fmt.Errorf("type %s cannot be held by a set", t)
		}
		size += (t.Size() + 3) / 4 * 4
	}
	if size == 0 || size > maxKeyBytes {
		return fmt.Errorf("%s has %d bytes, want 1 to %d", joinTypes(types), size, maxKeyBytes)
	}
	return nil
}

func (v *validator) element(s Set, e Element) error {
	if err := validValues(e.Key, s.Key, s.Interval); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if !s.IsVerdictMap() && e.Verdict != (Verdict{}) {
		return errors.New("only verdict maps hold verdicts")
	}
	if !s.IsMap() || s.IsVerdictMap() {
		if e.Data != nil {
			return errors.New("only maps hold data, and verdict maps hold verdicts")
		}
		if s.IsVerdictMap() {
			return v.verdict(e.Verdict)
		}
		return nil
	}
	if err := validValues(e.Data, s.Data, false); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return nil
}

func validValues(values []Value, types []Type, ranges bool) error {
	if len(values) != len(types) {
		return fmt.Errorf("%d values for %s", len(values), joinTypes(types))
	}
	for i, x := range values {
		if !x.valid() || x.Type != types[i] {
			return fmt.Errorf("value %s of type %s, want %s", x, x.Type, types[i])
		}
		if x.IsRange() && (!ranges || x.Type == TypeIfName) {
			return fmt.Errorf("range %s, want a single value (only interval sets hold ranges, and none of ifname)", x)
		}
	}
	return nil
}

// verdict checks the verdict of a rule or element.
func (v *validator) verdict(d Verdict) error {
	switch d.Kind {
	case Accept, Drop, Return, Continue:
		if d.Chain != "" {
			return fmt.Errorf("verdict %s leads to no chain, but names %q", d.Kind, d.Chain)
		}
		return nil
	case Jump, Goto:
		target, ok := v.chains[d.Chain]
		if !ok {
			return fmt.Errorf("%s: there is no chain %q", d.Kind, d.Chain)
		}
		if target.Base != nil {
			return fmt.Errorf("%s %s: a base chain cannot be jumped to", d.Kind, d.Chain)
		}
		return nil
	}
	return errors.New("no verdict given")
}

func (v *validator) chain(c Chain) {
	if c.Base != nil {
		if err := c.Base.validate(); err != nil {
			v.fail("chain %s: %w", c.Name, err)
		}
	}
	for i, r := range c.Rules {
		if err := v.rule(r); err != nil {
			v.fail("rule %d of chain %s: %w", i+1, RuleName(c.Name, r), err)
		}
	}
}

// RuleName is the chain's name followed by the rule's comment, for messages.
func RuleName(chain string, r Rule) string {
	if r.Comment == "" {
		return chain
	}
	return fmt.Sprintf("%s (%q)", chain, r.Comment)
}

func (b Base) validate() error {
	switch {
	case b.Hook > HookPostrouting:
		return fmt.Errorf("unknown hook %d", b.Hook)
	case b.Policy > PolicyDrop:
		return fmt.Errorf("unknown policy %d", b.Policy)
	case b.Type > TypeRoute:
		return fmt.Errorf("unknown chain type %d", b.Type)
	case b.Type == TypeRoute && b.Hook != HookOutput:
		return fmt.Errorf("type route runs at output only, not at %s", b.Hook)
	case b.Type == TypeNAT && b.Hook == HookForward:
		return errors.New("type nat does not run at forward")
	case b.Type == TypeNAT && b.Priority <= -200:
		return fmt.Errorf("type nat needs conntrack, so a priority above -200, not %d", b.Priority)
	}
	return nil
}
