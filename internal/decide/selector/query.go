package selector

import (
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Answer is what can be said of a condition.
type Answer uint8

// The answers, in their order.
const (
	No Answer = iota
	// Maybe: it depends on labels that are not known.
	Maybe
	Yes
)

// Is turns a fact into an Answer.
func Is(b bool) Answer {
	if b {
		return Yes
	}
	return No
}

// Everything is the Matcher of an empty selector.
func Everything() Matcher { return Matcher{present: true} }

// Ask is Matches for labels that may be unknown.
func (m Matcher) Ask(labels map[string]string, known bool) Answer {
	switch {
	case !m.present:
		return No
	case len(m.requirements) == 0:
		return Yes
	case !known:
		return Maybe
	}
	return Is(m.Matches(labels))
}

// Key is the same for two Matchers if they ask the same.
func (m Matcher) Key() string {
	if !m.present {
		return "none"
	}
	var b strings.Builder
	for _, r := range m.requirements { // No key or value holds one of the separators.
		b.WriteString(r.key)
		b.WriteString([]string{"=", "!", "?", "-"}[r.op])
		b.WriteString(strings.Join(r.values, "|"))
		b.WriteByte(';')
	}
	return b.String()
}

// Query selects pods by namespace and by their own labels.
type Query struct {
	// Namespace is the one namespace by name; if it is empty, Namespaces selects.
	Namespace  string
	Namespaces Matcher
	Pods       Matcher
}

// Key is the same for two queries if they ask the same.
func (q Query) Key() string {
	if q.Namespace != "" {
		return "in " + q.Namespace + ": " + q.Pods.Key()
	}
	return "by " + q.Namespaces.Key() + ": " + q.Pods.Key()
}

// Ask asks about a pod of a namespace. ns is nil if its labels are not known.
func (q Query) Ask(namespace string, ns *world.Namespace, labels map[string]string, known bool) Answer {
	in := q.inNamespace(namespace, ns)
	if in == No {
		return No
	}
	return min(in, q.Pods.Ask(labels, known))
}

func (q Query) inNamespace(name string, ns *world.Namespace) Answer {
	switch {
	case name == "":
		return No
	case q.Namespace != "":
		return Is(q.Namespace == name)
	case ns == nil:
		return q.Namespaces.Ask(nil, false)
	}
	return q.Namespaces.Ask(ns.Labels, true)
}

// term is something that a pod has, or its namespace.
type term struct {
	kind       byte // which of the two, and what of it
	key, value string
}

const (
	podLabel = iota
	podKey
	namespaceName
	namespaceLabel
	namespaceKey
)

// terms returns what a pod must have at least one of if the query is to say Yes,
// the rarer the better; nil if there is no such thing.
func (q Query) terms() []term {
	if q.Namespace != "" {
		return []term{{namespaceName, q.Namespace, ""}}
	}
	if t := q.Pods.terms(podLabel, podKey); t != nil {
		return t
	}
	return q.Namespaces.terms(namespaceLabel, namespaceKey)
}

func (m Matcher) terms(label, key byte) []term {
	var named []term
	for _, r := range m.requirements {
		switch r.op {
		case in:
			terms := make([]term, len(r.values))
			for i, v := range r.values {
				terms[i] = term{label, r.key, v}
			}
			return terms
		case exists:
			named = []term{{key, r.key, ""}}
		}
	}
	return named
}
