package selector

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Matcher is a parsed selector. The zero Matcher matches nothing.
type Matcher struct {
	present      bool
	requirements []requirement // sorted
}

type operator uint8

const (
	in operator = iota
	notIn
	exists
	doesNotExist
)

type requirement struct {
	key    string
	op     operator
	values []string // sorted
}

// Parse reads a selector as written. All faults are reported, each with the path
// of its requirement; a selector with a fault yields the Matcher of nothing.
func Parse(s *world.Selector) (Matcher, error) {
	if s == nil {
		return Matcher{}, nil
	}
	m := Matcher{present: true}
	var faults []error
	for key, value := range s.MatchLabels {
		if err := errors.Join(checkKey(key), checkValue(value)); err != nil {
			faults = append(faults, fmt.Errorf("matchLabels[%q]: %w", key, err))
			continue
		}
		m.requirements = append(m.requirements, requirement{key: key, op: in, values: []string{value}})
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	for i, e := range s.MatchExpressions {
		r, err := parseRequirement(e)
		if err != nil {
			faults = append(faults, fmt.Errorf("matchExpressions[%d] (key %q): %w", i, e.Key, err))
			continue
		}
		m.requirements = append(m.requirements, r)
	}
	if len(faults) > 0 {
		return Matcher{}, errors.Join(faults...)
	}
	slices.SortFunc(m.requirements, requirement.compare)
	m.requirements = slices.CompactFunc(m.requirements, func(a, b requirement) bool { return a.compare(b) == 0 })
	return m, nil
}

func (r requirement) compare(o requirement) int {
	return cmp.Or(cmp.Compare(r.key, o.key), cmp.Compare(r.op, o.op), slices.Compare(r.values, o.values))
}

func parseRequirement(e world.Requirement) (requirement, error) {
	if err := checkKey(e.Key); err != nil {
		return requirement{}, err
	}
	r := requirement{key: e.Key}
	switch e.Operator {
	case "In":
		r.op = in
	case "NotIn":
		r.op = notIn
	case "Exists":
		r.op = exists
	case "DoesNotExist":
		r.op = doesNotExist
	default:
		return requirement{}, fmt.Errorf("unknown operator %q: want In, NotIn, Exists or DoesNotExist", e.Operator)
	}
	wantsValues := r.op == in || r.op == notIn
	if wantsValues && len(e.Values) == 0 {
		return requirement{}, fmt.Errorf("operator %s needs at least one value", e.Operator)
	}
	if !wantsValues && len(e.Values) > 0 {
		return requirement{}, fmt.Errorf("operator %s takes no values", e.Operator)
	}
	for _, v := range e.Values {
		if err := checkValue(v); err != nil {
			return requirement{}, err
		}
	}
	r.values = slices.Compact(slices.Sorted(slices.Values(e.Values)))
	return r, nil
}

// Matches reports whether labels satisfy every requirement.
func (m Matcher) Matches(labels map[string]string) bool {
	if !m.present {
		return false
	}
	for _, r := range m.requirements {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r requirement) matches(labels map[string]string) bool {
	value, has := labels[r.key]
	switch r.op {
	case exists:
		return has
	case doesNotExist:
		return !has
	}
	_, found := slices.BinarySearch(r.values, value)
	if r.op == in {
		return has && found
	}
	return !has || !found
}
