package oracle

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// selects evaluates a label selector as its documentation in the Kubernetes API
// says (meta/v1 LabelSelector): all of matchLabels and matchExpressions must hold;
// an absent selector selects nothing, an empty one everything. A selector that the
// API would refuse selects nothing.
func selects(s *world.Selector, labels map[string]string) bool {
	if s == nil || !wellFormed(s) {
		return false
	}
	for key, want := range s.MatchLabels {
		if got, has := labels[key]; !has || got != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		got, has := labels[e.Key]
		holds := false
		switch e.Operator {
		case "Exists":
			holds = has
		case "DoesNotExist":
			holds = !has
		case "In":
			holds = has && slices.Contains(e.Values, got)
		case "NotIn":
			holds = !has || !slices.Contains(e.Values, got)
		}
		if !holds {
			return false
		}
	}
	return true
}

// The syntax of labels: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/.
var (
	nameSyntax   = syntax(`[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`)
	prefixSyntax = syntax(`[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`)
)

func syntax(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^` + expression + `$`) })
}

func wellFormed(s *world.Selector) bool {
	for key, value := range s.MatchLabels {
		if !isLabelKey(key) || !isLabelValue(value) {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		if !isLabelKey(e.Key) || slices.ContainsFunc(e.Values, func(v string) bool { return !isLabelValue(v) }) {
			return false
		}
		switch e.Operator {
		case "In", "NotIn":
			if len(e.Values) == 0 {
				return false
			}
		case "Exists", "DoesNotExist":
			if len(e.Values) > 0 {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func isLabelKey(key string) bool {
	name := key
	if prefix, rest, has := strings.Cut(key, "/"); has {
		if len(prefix) > 253 || !matches(prefixSyntax, prefix) {
			return false
		}
		name = rest
	}
	return matches(nameSyntax, name)
}

func isLabelValue(value string) bool { return value == "" || matches(nameSyntax, value) }

func matches(syntax func() *regexp.Regexp, s string) bool {
	return syntax().MatchString(s) && !strings.HasSuffix(s, "\n")
}
