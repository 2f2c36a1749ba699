package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/health"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// statusPatience is how long "fairlead status" waits for agents.
const statusPatience = 5 * time.Second

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
		Use: "status", Short: "Show how the network is: nodes, addresses, problems", Args: usage.Arguments(0, 0),
		Long: "Show how the network is, from the datastore, and what agents say that cannot write to it. Exits\nwith 1 if a node or a Subnet is not ready, an agent does not answer, or an object has a problem.",
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			st, err := readStatus(ctx, s)
			if err != nil {
				return err
			}
			answers, silent := a.askHealth(ctx)
			st.told(answers)
			st.heardNothing(silent)
			if in, ok := s.(keyed); ok {
				strays, err := in.Strays(ctx)
				if err != nil {
					return err
				}
				for _, key := range strays {
					a.unreadable.Delete(key)
				}
				st.stray(strays)
			}
			a.unreadable.Range(func(key, err any) bool { st.unread(key.(string), err.(error)); return true })
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
	snap, err := readWorld(ctx, s)
	if err != nil {
		return st, err
	}
	st.Problems = gather(networks, worldProblems(snap, allPolicies(snap)))
	overlaps, err := serviceOverlaps(ctx, s)
	if err != nil {
		return st, err
	}
	st.Problems = append(st.Problems, overlaps...)
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

// askHealth asks the agents how they are, those that can be reached at once, and returns
// those that did not answer in time as well. It is no fault that others cannot be reached:
// what the datastore says of their nodes is shown.
func (a *app) askHealth(ctx context.Context) ([]answer[admin.Status], []silentError) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	answers, err := ask[admin.Status](ctx, a, nil, "/v1/status")
	var silent []silentError
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range all.Unwrap() {
			if s := (silentError{}); errors.As(err, &s) {
				silent = append(silent, s)
			}
		}
	}
	return answers, silent
}

// heardNothing marks the nodes whose agents do not answer. One that is frozen keeps its
// socket, and cannot tell the datastore that the node is not well any more.
func (s *clusterStatus) heardNothing(silent []silentError) {
	for _, x := range silent {
		i := slices.IndexFunc(s.Nodes, func(n nodeSummary) bool { return n.Name == x.node })
		if i < 0 || !strings.HasPrefix(s.Nodes[i].Ready, "True") {
			continue
		}
		n := &s.Nodes[i]
		n.Ready, n.Message = "Unknown (NoAnswer)", fmt.Sprintf("the agent did not answer in %s; what it wrote last: %s", x.in, n.Message)
	}
}

// told adds what agents say of themselves: one whose credentials have expired cannot write it
// to the datastore, which goes on to say that the node is well.
func (s *clusterStatus) told(answers []answer[admin.Status]) {
	for _, x := range answers {
		i := slices.IndexFunc(s.Nodes, func(n nodeSummary) bool { return n.Name == x.node })
		worst := slices.MaxFunc(append(x.value.Health, health.State{Level: health.OK}), func(a, b health.State) int {
			return cmp.Or(cmp.Compare(severity(a), severity(b)), cmp.Compare(cause(a), cause(b)))
		})
		if i < 0 || s.Nodes[i].Ready != "True" || severity(worst) == 0 {
			continue
		}
		s.Nodes[i].Ready, s.Nodes[i].Message = "True (Degraded)", worst.Component+": "+worst.Message
		if worst.Level == health.Failed {
			s.Nodes[i].Ready = "False (Failed)"
		}
	}
}

// unread adds a value of the datastore that cannot be decoded, unless nodes say so already,
// as they do of policies.
func (s *clusterStatus) unread(key string, err error) {
	if slices.ContainsFunc(s.Problems, func(p clusterProblem) bool { return strings.HasPrefix(p.Message, err.Error()) }) {
		return
	}
	s.Problems = append(s.Problems, clusterProblem{Object: key, Reason: "Unreadable", Message: err.Error() + ": it counts as if it did not exist: delete the object"})
	slices.SortFunc(s.Problems, byObject)
}

// maxStrays is how many keys that are no object's are named.
const maxStrays = 20

// stray adds the keys in etcd that are no object's.
func (s *clusterStatus) stray(keys []string) {
	for i, key := range keys {
		name := quoteKey(key)
		p := clusterProblem{Object: name, Reason: "Stray", Message: fmt.Sprintf(
			"this version has no object with that key, and reads it nowhere; unless a newer release wrote it: fairlead delete --key '%s'", name)}
		if i == maxStrays {
			p.Message = fmt.Sprintf("so are %s more; they are named when these are deleted", count(len(keys)-i, "key", "keys"))
		}
		s.Problems = append(s.Problems, p)
		if i == maxStrays {
			break
		}
	}
	slices.SortFunc(s.Problems, byObject)
}

// byObject orders problems.
func byObject(x, y clusterProblem) int {
	return cmp.Or(cmp.Compare(x.Object, y.Object), cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Message, y.Message))
}

// severity orders the levels of health.
func severity(s health.State) int {
	return slices.Index([]health.Level{health.OK, health.Degraded, health.Failed}, s.Level)
}

// cause puts a disk that cannot be written before what could not be written to it.
func cause(s health.State) int {
	if s.Component == "disk" {
		return 1
	}
	return 0
}

// serviceOverlaps finds Subnets that hold addresses of Services: the range of Services is
// known by those that have addresses in it, of which every cluster has the one of its API
// server.
func serviceOverlaps(ctx context.Context, s datastore.Store) ([]clusterProblem, error) {
	subnets, err := listTyped[*v1alpha1.Subnet](ctx, s, datastore.KindSubnet)
	if err != nil {
		return nil, err
	}
	services, err := listTyped[*corev1.Service](ctx, s, datastore.KindService)
	if err != nil {
		return nil, err
	}
	var out []clusterProblem
	for _, sn := range subnets {
		for _, text := range sn.Spec.CIDRs {
			cidr, err := netip.ParsePrefix(text)
			if err != nil {
				continue // The Subnet's condition says so.
			}
			if at, name := serviceWithin(cidr, services); name != "" {
				out = append(out, clusterProblem{Object: "Subnet " + sn.Name, Reason: "ServiceRange", Nodes: []string{"every node"}, Message: fmt.Sprintf(
					"%s holds the address %s of Service %s: pods and Services would share addresses; make a Subnet of another range", cidr, at, name)})
			}
		}
	}
	return out, nil
}

// serviceWithin is the first Service that has an address in a range.
func serviceWithin(cidr netip.Prefix, services []*corev1.Service) (at netip.Addr, name string) {
	for _, svc := range services {
		for _, text := range svc.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(text); err == nil && cidr.Contains(a) {
				return a, svc.Namespace + "/" + svc.Name
			}
		}
	}
	return netip.Addr{}, ""
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

// gather joins the problems that nodes report: the same one on many nodes is one line.
// What the policies themselves tell is added where no node says it, nor anything of that
// reason about that policy, in words of its own.
func gather(networks []*v1alpha1.NodeNetwork, policies []world.Problem) []clusterProblem {
	type key struct{ object, reason, message string }
	of := func(kind string, name world.Key, field, reason, message string) key {
		if field != "" {
			message = field + ": " + message
		}
		return key{kind + " " + name.String(), reason, message}
	}
	nodes := map[key][]string{}
	said := map[key]bool{}
	for _, n := range networks {
		for _, p := range n.Status.Problems {
			k := of(p.Kind, world.Key{Namespace: p.Namespace, Name: p.Name}, p.Field, p.Reason, p.Message)
			nodes[k] = append(nodes[k], n.Name)
			said[key{object: k.object, reason: k.reason}] = true
		}
	}
	for _, p := range policies {
		b := p.Brief()
		if k := of(string(p.Kind), p.Key, b.Field, b.Reason, b.Message); !said[key{object: k.object, reason: k.reason}] {
			nodes[k] = nil
		}
	}
	out := []clusterProblem{}
	for k, on := range nodes {
		out = append(out, clusterProblem{k.object, k.reason, k.message, on})
	}
	slices.SortFunc(out, byObject)
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
	if err := a.say("%s, %s, %s, %s, %s", count(st.Counts["nodes"], "node", "nodes"), count(st.Counts["pods"], "pod", "pods"),
		count(st.Counts["namespaces"], "namespace", "namespaces"), count(st.Counts["vpcs"], "VPC", "VPCs"), count(st.Counts["blocks"], "block", "blocks")); err != nil {
		return err
	}
	for _, p := range st.Problems {
		where := ""
		if len(p.Nodes) > 0 {
			where = " (on " + some(p.Nodes) + ")"
		}
		if err := a.say("PROBLEM  %s: %s: %s%s", p.Object, p.Reason, p.Message, where); err != nil {
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
