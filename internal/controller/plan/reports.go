package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// objectRef names an object in the words of the world.
type objectRef struct {
	kind world.Kind
	key  world.Key
}

// report is a problem as one node tells it; the controller's own has no node.
type report struct {
	node string
	world.Problem
}

// readReports gathers what the controller itself and every node that exists say is
// wrong with objects, sorted: the controller's own first, then by node.
func (p *planner) readReports() {
	p.reported = map[objectRef][]report{}
	add := func(node string, pr world.Problem) {
		ref := objectRef{pr.Kind, pr.Key}
		p.reported[ref] = append(p.reported[ref], report{node, pr})
	}
	for _, list := range [][]world.Problem{p.tenancy.Problems, p.subnets.Problems, p.policies, p.Unreadable} {
		for _, pr := range list {
			add("", pr)
		}
	}
	for n := range p.snap.NodeNetworks.Values() {
		o := p.Objects.NodeNetworks[n.Name]
		if o == nil || !p.nodeExists(n.Name) {
			continue
		}
		for _, pr := range o.Status.Problems {
			add(n.Name, world.Problem{
				Kind: world.Kind(pr.Kind), Key: world.Key{Namespace: pr.Namespace, Name: pr.Name},
				Field: pr.Field, Reason: pr.Reason, Message: pr.Message,
			})
		}
	}
	for _, list := range p.reported {
		slices.SortStableFunc(list, func(a, b report) int {
			return cmp.Or(cmp.Compare(a.node, b.node), a.Problem.Compare(b.Problem))
		})
	}
}

// own are the problems that the controller itself sees with an object.
func (p *planner) own(kind world.Kind, name string) []world.Problem {
	var out []world.Problem
	for _, r := range p.reported[objectRef{kind, world.Key{Name: name}}] {
		if r.node == "" {
			out = append(out, r.Problem)
		}
	}
	return out
}

// realisation is how many nodes have done what an object asks.
type realisation struct {
	done, nodes int
	// lacking says why not, a sentence a node, sorted.
	lacking []string
}

// realised asks every node's report. A problem that the controller sees too is not the
// node's; a node whose own network is broken has realised nothing.
func (p *planner) realised(kind world.Kind, name string) realisation {
	lacking := map[string]string{}
	known := map[string]bool{}
	for _, r := range p.reported[objectRef{kind, world.Key{Name: name}}] {
		switch {
		case r.node == "":
			known[r.Reason] = true
		case !known[r.Reason] && lacking[r.node] == "":
			lacking[r.node] = fmt.Sprintf("%s: %s: %s", r.node, r.Reason, r.Message)
		}
	}
	return p.onNodes(lacking)
}

// onNodes asks how every node is, beside those that lack something, by name.
func (p *planner) onNodes(lacking map[string]string) realisation {
	var out realisation
	for n := range p.snap.NodeNetworks.Values() {
		o := p.Objects.NodeNetworks[n.Name]
		if o == nil || !p.nodeExists(n.Name) {
			continue
		}
		out.nodes++
		why := lacking[n.Name]
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); why == "" && c != nil && c.Status == "False" {
			why = fmt.Sprintf("%s: its network is not ready: %s", n.Name, c.Message)
		}
		if why == "" {
			out.done++
			continue
		}
		out.lacking = append(out.lacking, why)
	}
	return out
}

// String is "realised on 7 of 8 nodes; n3: …".
func (r realisation) String() string {
	return strings.Join(append([]string{fmt.Sprintf("realised on %d of %d nodes", r.done, r.nodes)}, shorten(r.lacking)...), "; ")
}

// shorten keeps the first few of a list and counts the others.
func shorten(list []string) []string {
	const shown = 3
	if len(list) <= shown {
		return list
	}
	return append(slices.Clone(list[:shown]), fmt.Sprintf("and %d more", len(list)-shown))
}

// sentences are the messages of problems, each once.
func sentences(problems []world.Problem) string {
	var out []string
	for _, pr := range problems {
		text := pr.Message
		if pr.Field != "" {
			text = pr.Field + ": " + text
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return strings.Join(shorten(out), "; ")
}
