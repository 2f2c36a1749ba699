package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

// witnesses are the agents that know what their nodes do to a packet. Each is found once,
// and one that did not answer is not waited for again.
type witnesses struct {
	app *app

	mu    sync.Mutex
	doors map[string]*witness
}

// witness is the agent of a node, or why it says nothing.
type witness struct {
	once  sync.Once
	agent agentOf

	mu  sync.Mutex
	why error
}

// of returns the agent of a node.
func (w *witnesses) of(ctx context.Context, node string) *witness {
	w.mu.Lock()
	if w.doors == nil {
		w.doors = map[string]*witness{}
	}
	one := w.doors[node]
	if one == nil {
		one = &witness{}
		w.doors[node] = one
	}
	w.mu.Unlock()
	one.once.Do(func() {
		agents, err := w.app.agents(ctx, []string{node})
		switch {
		case err != nil:
			one.why = err
		case len(agents) == 0:
			one.why = errors.New("there is no agent of this node")
		default:
			one.agent = agents[0]
		}
	})
	return one
}

// explain asks it about a packet.
func (w *witness) explain(ctx context.Context, q admin.Question) (admin.Explanation, error) {
	w.mu.Lock()
	why := w.why
	w.mu.Unlock()
	var x admin.Explanation
	if why != nil {
		return x, why
	}
	err := w.agent.get(ctx, q.Path(), &x)
	if errors.As(err, &silentError{}) {
		w.mu.Lock()
		w.why = err
		w.mu.Unlock()
	}
	return x, err
}

func (w *witnesses) close() {
	for _, one := range w.doors {
		if one.agent.client != nil {
			one.agent.client.Close()
		}
	}
}

// askAll asks the agents of all nodes that packets meet, at the same time.
func (w *witnesses) askAll(ctx context.Context, flows []whyFlow) {
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for i := range flows {
		f := &flows[i]
		questions := f.questions()
		f.Nodes = make([]whyNode, len(questions))
		for k, q := range questions {
			g.Go(func() error {
				n := whyNode{Node: q.node, Packet: q.Packet}
				if x, err := w.of(ctx, q.node).explain(ctx, q.Question); err != nil {
					n.Error = err.Error()
				} else {
					n.Explanation = &x
				}
				f.Nodes[k] = n
				return nil
			})
		}
	}
	_ = g.Wait() // What failed is in the Nodes.
}

// question is what a node is asked.
type question struct {
	node string
	admin.Question
}

// questions are for the sender's node, and for that of the receiver if it is another.
func (f *whyFlow) questions() []question {
	var out []question
	sends := f.From.Node != "" && f.From.Kind != "outside"
	if sends {
		out = append(out, question{f.From.Node, admin.Question{Packet: f.Packet, FromNode: f.From.Kind == "node"}})
	}
	if f.To.Kind != "outside" && (f.To.Node != f.From.Node || !sends) && !f.staysBehind() {
		out = append(out, question{f.To.Node, admin.Question{Packet: f.arrives, VNI: f.vni}})
	}
	return out
}

// staysBehind: no packet goes on to another node, which knows nothing of it then.
func (f *whyFlow) staysBehind() bool {
	return f.To.Kind == "node" && f.stopped() != ""
}

// compare says where the nodes do not say what the oracle says.
func (f *whyFlow) compare() {
	last := cmp.Or(f.stopped(), "delivery")
	for _, n := range f.Nodes {
		x := n.Explanation
		if x == nil {
			f.Missing = append(f.Missing, whyMissing{n.Node, strings.TrimPrefix(n.Error, "node "+n.Node+": ")})
			continue
		}
		if f.From.Kind == "pod" && n.Node == f.From.Node {
			f.compareList(n.Node, "egress", f.Egress, x.Egress)
		}
		if f.To.Kind == "pod" && n.Node == f.To.Node {
			f.compareList(n.Node, "ingress", f.Ingress, x.Ingress)
		}
		if at := f.From; at.Kind != "outside" && n.Node == at.Node && x.VNI != 0 && f.vni != 0 && x.VNI != f.vni {
			f.disagree("node %s: %s: the objects give the packet VNI %d, the node VNI %d", n.Node, apply.StageTenant, f.vni, x.VNI)
		}
		if x.Rules != nil {
			f.compareWalk(n.Node, last, x.Rules)
		}
	}
}

// compareWalk holds a node's rules, and what the node has of them, against the oracle.
func (f *whyFlow) compareWalk(node, stopped string, w *apply.Walk) {
	for _, m := range w.Missing {
		f.disagree("node %s: %s", node, m)
	}
	want, got := f.expect(node, stopped), w.Verdict
	if want == "" || want == got || got == "" && len(w.Steps) == 0 {
		return
	}
	if got == "drop" || got == "" {
		end := "there is no step"
		stage := stopped
		if len(w.Steps) > 0 {
			s := w.Steps[len(w.Steps)-1]
			end, stage = stepText(s), cmp.Or(s.Stage, stopped)
		}
		f.disagree("node %s: %s: the oracle expects the rules to accept the packet, and they drop it: %s", node, stage, end)
		return
	}
	f.disagree("node %s: %s: the oracle expects the rules to drop the packet, and they accept it", node, stopped)
}

// stopped is the name of the stage that ended the packet's way, "" if none did.
func (f *whyFlow) stopped() string {
	for _, s := range f.Stages {
		if !s.Pass {
			return s.Name
		}
	}
	return ""
}

// expect is what the rules of a node should do to the packet, "" where the oracle does
// not say: routes and tunnels stop packets too, and what was stopped does not arrive.
func (f *whyFlow) expect(node, stopped string) string {
	at := func(place whyPlace) bool { return place.Kind == "pod" && place.Node == node }
	switch stopped {
	case "delivery":
		return "accept"
	case "vpc", "egress": // By the node of the sender.
		if at(f.From) {
			return "drop"
		}
	case "tenant": // By that of the receiver, which knows whom its pod hears.
		if at(f.To) {
			return "drop"
		}
	case "ingress":
		if at(f.To) {
			return "drop"
		}
		return "accept"
	}
	return ""
}

func (f *whyFlow) compareList(node, direction string, said []whyStage, j *admin.Judgement) {
	if len(said) == 0 {
		return // The packet has no sender or receiver: no list is asked.
	}
	want := said[len(said)-1]
	switch {
	case j == nil:
		f.disagree("node %s: no port of it has the pod's address, so nothing of it passes", node)
	case j.Allowed != want.Pass:
		f.disagree("node %s: %s: the oracle says %s (%s), the node's rule list %s says %s (%s)",
			node, direction, allowWord(want.Pass), want.Why, cmp.Or(j.List, "(none)"), allowWord(j.Allowed), judgementText(j))
	// Both allow it, or both deny it: whether for the same reason tells what comes next.
	case want.Policy != nil && j.List == "":
		f.disagree("node %s: %s: the oracle says that a policy decides (%s), the node has no rule list for it (%s)", node, direction, want.Why, j.Reason)
	case j.Rule != nil && !slices.ContainsFunc(said, func(s whyStage) bool { return s.Policy != nil }):
		f.disagree("node %s: %s: the oracle knows no policy that decides (%s), the node's rule list %s has one (%s)", node, direction, want.Why, j.List, judgementText(j))
	}
}

func (f *whyFlow) disagree(format string, args ...any) {
	f.Disagreements = append(f.Disagreements, fmt.Sprintf(format, args...))
}

func allowWord(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}
