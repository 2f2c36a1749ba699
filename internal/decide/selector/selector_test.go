package selector

import (
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

func TestMatches(t *testing.T) {
	in := func(key, op string, values ...string) *world.Selector {
		return &world.Selector{MatchExpressions: []world.Requirement{{Key: key, Operator: op, Values: values}}}
	}
	labels := map[string]string{"app": "web", "tier": "", "example.com/team": "net"}
	for _, tt := range []struct {
		name string
		s    *world.Selector
		want bool
	}{
		{"absent", nil, false},
		{"empty", &world.Selector{}, true},
		{"empty, not nil", &world.Selector{MatchLabels: map[string]string{}, MatchExpressions: []world.Requirement{}}, true},
		{"label", &world.Selector{MatchLabels: map[string]string{"app": "web"}}, true},
		{"another value", &world.Selector{MatchLabels: map[string]string{"app": "db"}}, false},
		{"empty value of a label that is absent", &world.Selector{MatchLabels: map[string]string{"nobody": ""}}, false},
		{"empty value", &world.Selector{MatchLabels: map[string]string{"tier": ""}}, true},
		{"one of two labels", &world.Selector{MatchLabels: map[string]string{"app": "web", "x": "y"}}, false},
		{"prefixed key", in("example.com/team", "In", "net"), true},
		{"In", in("app", "In", "web", "db"), true},
		{"In, another", in("app", "In", "db"), false},
		{"In, absent", in("x", "In", "web"), false},
		{"In, empty value, absent", in("x", "In", ""), false},
		{"NotIn", in("app", "NotIn", "web"), false},
		{"NotIn, another", in("app", "NotIn", "db"), true},
		{"NotIn, absent", in("x", "NotIn", "web"), true},
		{"Exists", in("tier", "Exists"), true},
		{"Exists, absent", in("x", "Exists"), false},
		{"DoesNotExist", in("app", "DoesNotExist"), false},
		{"DoesNotExist, absent", in("x", "DoesNotExist"), true},
		{"both parts", &world.Selector{
			MatchLabels:      map[string]string{"app": "web"},
			MatchExpressions: []world.Requirement{{Key: "x", Operator: "Exists"}},
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Parse(tt.s)
			if err != nil {
				t.Fatal(err)
			}
			if got := m.Matches(labels); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestInvalid(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, tt := range []struct {
		name string
		s    world.Selector
		want string // part of the message
	}{
		{"operator", world.Selector{MatchExpressions: []world.Requirement{{Key: "a", Operator: "Exists"}, {Key: "b", Operator: "in", Values: []string{"x"}}}}, `matchExpressions[1] (key "b"): unknown operator "in"`},
		{"In without values", world.Selector{MatchExpressions: []world.Requirement{{Key: "a", Operator: "In"}}}, "operator In needs at least one value"},
		{"Exists with values", world.Selector{MatchExpressions: []world.Requirement{{Key: "a", Operator: "Exists", Values: []string{"x"}}}}, "operator Exists takes no values"},
		{"no key", world.Selector{MatchExpressions: []world.Requirement{{Operator: "Exists"}}}, "label key without a name"},
		{"key", world.Selector{MatchLabels: map[string]string{"a b": ""}}, `matchLabels["a b"]: label key "a b"`},
		{"long key", world.Selector{MatchLabels: map[string]string{long: ""}}, "at most 63"},
		{"prefix", world.Selector{MatchLabels: map[string]string{"Example.com/a": ""}}, "must be a DNS subdomain"},
		{"empty prefix", world.Selector{MatchLabels: map[string]string{"/a": ""}}, "must be a DNS subdomain"},
		{"two slashes", world.Selector{MatchLabels: map[string]string{"a/b/c": ""}}, `label key "a/b/c"`},
		{"value", world.Selector{MatchLabels: map[string]string{"a": "x y"}}, `label value "x y"`},
		{"value of an expression", world.Selector{MatchExpressions: []world.Requirement{{Key: "a", Operator: "In", Values: []string{"-"}}}}, `label value "-"`},
		{"megabyte", world.Selector{MatchLabels: map[string]string{"a": strings.Repeat("x", 1<<20)}}, "…"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Parse(&tt.s)
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 500 {
				t.Fatalf("error %.600v, want one with %q", err, tt.want)
			}
			if m.Matches(map[string]string{"a": "x"}) {
				t.Error("an invalid selector matches something")
			}
		})
	}
}

func TestEveryFaultIsNamed(t *testing.T) {
	_, err := Parse(&world.Selector{MatchLabels: map[string]string{"": "", "!": ""}, MatchExpressions: []world.Requirement{{Key: "a"}}})
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("want three faults: %v", err)
	}
}
