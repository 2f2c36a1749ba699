package oracle

import (
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// answer is what can be said of a condition. It is maybe where a policy cannot be
// read, or asks for labels of a pod that the world does not know (yet). Whoever
// allows needs a yes; whoever denies does so on a maybe too: so nothing unreadable
// ever allows more.
type answer int

const (
	no answer = iota
	maybe
	yes
)

func is(b bool) answer {
	if b {
		return yes
	}
	return no
}

// all of several conditions; of none it is yes.
func all(answers ...answer) answer {
	out := yes
	for _, a := range answers {
		out = min(out, a)
	}
	return out
}

// anyOf a list's elements; of none it is no.
func anyOf[T any](list []T, ask func(T) answer) answer {
	out := no
	for _, e := range list {
		out = max(out, ask(e))
	}
	return out
}

// choice asks a selector about labels: an absent one selects nothing, an empty one
// everything, whatever is known (meta/v1 LabelSelector). One that the API would
// refuse may have meant anything.
func choice(s *world.Selector, labels map[string]string, known bool) answer {
	switch {
	case s == nil:
		return no
	case !wellFormed(s):
		return maybe
	case len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0:
		return yes
	case !known:
		return maybe
	}
	return is(selects(s, labels))
}

// party is one end of a packet, as policies see it.
type party struct {
	m     *Model
	place Place
	// pod is nil for a pod that the world does not know: then it has a namespace,
	// and its labels and ports are nobody's knowledge.
	pod *world.Pod
}

// selectable: selectors choose pods that have a network of their own. Pods in the
// host's network are their node (networking/v1 leaves that open, and
// ClusterNetworkPolicy says "host-networked pods are not included"); a container
// without a pod is no pod.
func (p party) selectable() bool { return p.place.Kind == Pod && p.place.Pod.Namespace != "" }

// inNamespaces asks a namespace selector about a party.
func (p party) inNamespaces(s *world.Selector) answer {
	if !p.selectable() {
		return no
	}
	ns, known := p.m.snap.Namespaces.Get(world.Key{Name: p.place.Pod.Namespace})
	if !known {
		return choice(s, nil, false)
	}
	return choice(s, ns.Labels, true)
}

// amongPods asks a pod selector about a party.
func (p party) amongPods(s *world.Selector) answer {
	switch {
	case !p.selectable():
		return no
	case p.pod == nil:
		return choice(s, nil, false)
	}
	return choice(s, p.pod.Labels, true)
}
