package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// clusterStatus is what "fairlead status" prints.
type clusterStatus struct {
	Nodes    []nodeSummary    `json:"nodes"`
	Subnets  []subnetUse      `json:"subnets"`
	Counts   map[string]int   `json:"counts"`
	Problems []clusterProblem `json:"problems"`
}

type nodeSummary struct {
	Name    string `json:"name"`
	Ready   string `json:"ready"`
	Message string `json:"message,omitempty"`
	// Unlisted problems are more than a NodeNetwork lists.
	Unlisted int `json:"unlisted,omitempty"`
}

type clusterProblem struct {
	Object  string   `json:"object"`
	Reason  string   `json:"reason"`
	Message string   `json:"message"`
	Nodes   []string `json:"nodes,omitempty"`
}

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show how the network is: nodes, addresses, problems", Args: noArgs,
		Long: "Show how the network is, from the datastore alone. Exits with 1 if a node or a Subnet is not\nready, or an object has a problem.",
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			st, err := readStatus(ctx, s)
			if err != nil {
				return err
			}
			if err := a.printStatus(format, st); err != nil {
				return err
			}
			if !st.well() {
				return exitError(exitFailed)
			}
			return nil
		})
	}
	return cmd
}

// well tells whether nothing is known to be wrong. A Subnet that the controller has
// not judged yet is no fault.
func (s clusterStatus) well() bool {
	return len(s.Problems) == 0 &&
		!slices.ContainsFunc(s.Nodes, func(n nodeSummary) bool { return !strings.HasPrefix(n.Ready, "True") }) &&
		!slices.ContainsFunc(s.Subnets, func(n subnetUse) bool { return strings.HasPrefix(n.Ready, "False") })
}

func readStatus(ctx context.Context, s datastore.Store) (clusterStatus, error) {
	st := clusterStatus{Nodes: []nodeSummary{}, Counts: map[string]int{}, Problems: []clusterProblem{}}
	networks, err := listTyped[*v1alpha1.NodeNetwork](ctx, s, datastore.KindNodeNetwork)
	if err != nil {
		return st, err
	}
	nodes, err := listTyped[*corev1.Node](ctx, s, datastore.KindNode)
	if err != nil {
		return st, err
	}
	byName := map[string]*v1alpha1.NodeNetwork{}
	for _, n := range networks {
		byName[n.Name] = n
	}
	for _, n := range nodes {
		sum := nodeSummary{Name: n.Name, Ready: "Unknown", Message: "no agent has announced this node yet"}
		if nn := byName[n.Name]; nn != nil {
			sum.Ready, sum.Message = ready(nn.Status.Conditions), readyMessage(nn.Status.Conditions)
			sum.Unlisted = max(int(nn.Status.ProblemCount)-len(nn.Status.Problems), 0)
		}
		// An agent that died cannot say so: the node's kubelet does.
		if why, down := notReady(n); down && strings.HasPrefix(sum.Ready, "True") {
			sum.Ready, sum.Message = "False (NodeNotReady)", why
		}
		st.Nodes = append(st.Nodes, sum)
	}
	r, err := readIPAM(ctx, s)
	if err != nil {
		return st, err
	}
	st.Subnets = r.Subnets
	st.Problems = gather(networks)
	for kind, name := range map[datastore.Kind]string{
		datastore.KindNode: "nodes", datastore.KindPod: "pods", datastore.KindNamespace: "namespaces", datastore.KindVPC: "vpcs", datastore.KindIPBlock: "blocks",
	} {
		list, err := s.List(ctx, kind)
		if err != nil {
			return st, err
		}
		st.Counts[name] = len(list.Items)
	}
	return st, nil
}

// notReady tells whether the Node object says that the node is down, and why.
func notReady(n *corev1.Node) (why string, down bool) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return "the node is not ready: " + cmp.Or(c.Message, c.Reason, string(c.Status)), true
		}
	}
	return "", false
}

// gather joins the problems that nodes report: the same one on many nodes is one
// line.
func gather(networks []*v1alpha1.NodeNetwork) []clusterProblem {
	type key struct{ object, reason, message string }
	nodes := map[key][]string{}
	for _, n := range networks {
		for _, p := range n.Status.Problems {
			object := p.Name
			if p.Namespace != "" {
				object = p.Namespace + "/" + p.Name
			}
			k := key{p.Kind + " " + object, p.Reason, p.Message}
			nodes[k] = append(nodes[k], n.Name)
		}
	}
	out := []clusterProblem{}
	for k, on := range nodes {
		out = append(out, clusterProblem{k.object, k.reason, k.message, on})
	}
	slices.SortFunc(out, func(x, y clusterProblem) int {
		return cmp.Or(cmp.Compare(x.Object, y.Object), cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Message, y.Message))
	})
	return out
}

func (a *app) printStatus(format *outputFormat, st clusterStatus) error {
	if !format.forPeople() {
		return a.print(format, st, nil)
	}
	t := table{header: []string{"NODE", "READY", "MESSAGE"}}
	for _, n := range st.Nodes {
		t.add(n.Name, n.Ready, n.Message)
	}
	if err := t.write(a.out); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	t = drawSubnets(st.Subnets)
	if err := t.write(a.out); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	if err := a.say("%d nodes, %d pods, %d namespaces, %d VPCs, %d blocks",
		st.Counts["nodes"], st.Counts["pods"], st.Counts["namespaces"], st.Counts["vpcs"], st.Counts["blocks"]); err != nil {
		return err
	}
	for _, p := range st.Problems {
		if err := a.say("PROBLEM  %s: %s: %s (on %s)", p.Object, p.Reason, p.Message, some(p.Nodes)); err != nil {
			return err
		}
	}
	for _, n := range st.Nodes {
		if n.Unlisted == 0 {
			continue
		}
		if err := a.say("PROBLEM  %s more on %s: fairlead node status %s", count(n.Unlisted, "is", "are"), n.Name, n.Name); err != nil {
			return err
		}
	}
	return nil
}

// some lists a few names and counts the others.
func some(names []string) string {
	if len(names) > 3 {
		return strings.Join(names[:3], ", ") + " and " + count(len(names)-3, "more node", "more nodes")
	}
	return strings.Join(names, ", ")
}
