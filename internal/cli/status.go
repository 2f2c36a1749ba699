package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/run/journal"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
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
}

type clusterProblem struct {
	Object  string   `json:"object"`
	Reason  string   `json:"reason"`
	Message string   `json:"message"`
	Nodes   []string `json:"nodes,omitempty"`
}

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show how the network is: nodes, addresses, problems", Args: cobra.NoArgs,
		Long: "Show how the network is, from the datastore alone. Exits with 1 if a node is not ready\nor an object has a problem.",
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			st, err := readStatus(ctx, s)
			if err != nil {
				return err
			}
			if err := a.printStatus(*format, st); err != nil {
				return err
			}
			bad := slices.ContainsFunc(st.Nodes, func(n nodeSummary) bool { return !strings.HasPrefix(n.Ready, "True") })
			if bad || len(st.Problems) > 0 {
				return exitError(exitFailed)
			}
			return nil
		})
	}
	return cmd
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

func (a *app) printStatus(format string, st clusterStatus) error {
	if format == "json" || format == "yaml" {
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
	t = table{header: []string{"SUBNET", "CIDRS", "BLOCKS", "USED"}}
	for _, n := range st.Subnets {
		t.add(n.Subnet, strings.Join(n.CIDRs, ","), fmt.Sprint(n.Blocks), used(n.Allocated, n.Capacity))
	}
	if err := t.write(a.out); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "\n%d nodes, %d pods, %d namespaces, %d VPCs, %d blocks\n",
		st.Counts["nodes"], st.Counts["pods"], st.Counts["namespaces"], st.Counts["vpcs"], st.Counts["blocks"])
	for _, p := range st.Problems {
		fmt.Fprintf(a.out, "PROBLEM  %s: %s: %s (on %s)\n", oneLine(p.Object), p.Reason, oneLine(p.Message), some(p.Nodes))
	}
	return nil
}

// some lists a few names and counts the others.
func some(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more nodes", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// ask asks every named agent for a path, in order. An agent that does not answer is
// an error at the end; the others are shown.
func ask[T any](ctx context.Context, a *app, names []string, path string) ([]T, error) {
	agents, err := a.agents(ctx, names)
	if err != nil {
		return nil, err
	}
	out := []T{}
	var errs []error
	for _, n := range agents {
		var v T
		if err := n.client.Get(ctx, path, &v); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.node, err))
		} else {
			out = append(out, v)
		}
		n.client.Close()
	}
	return out, errors.Join(errs...)
}

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "status [NODE…]", Short: "Show what the agents say: revisions, health, features, drops"}
	format := outputFlag(cmd)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.completeNames(cmd.Context(), datastore.KindNode)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		all, failed := ask[admin.Status](cmd.Context(), a, args, "/v1/status")
		if len(all) == 0 && failed != nil {
			return failed
		}
		err := a.print(*format, all, func(wide bool) table { return drawNodes(all, wide) })
		if err == nil && *format == "table" && len(args) > 0 {
			for _, s := range all {
				a.explainNode(s)
			}
		}
		return errors.Join(err, failed)
	}
	return group("node", "Nodes, as their agents see them", cmd)
}

func drawNodes(all []admin.Status, wide bool) table {
	t := table{header: []string{"NODE", "READY", "REVISION", "PORTS", "PEERS", "ROUTES", "POD-MTU", "MEMORY", "HEALTH"}}
	if wide {
		t.header = append(t.header, "PLANE", "VERSION", "UP")
	}
	for _, s := range all {
		ready := "yes"
		if s.NotReady != "" {
			ready = "no: " + s.NotReady
		}
		var worst []string
		for _, h := range s.Health {
			if h.Level != "ok" {
				worst = append(worst, h.Component+" "+string(h.Level)+": "+h.Message)
			}
		}
		row := []string{
			s.Node, ready, fmt.Sprintf("%d/%d", s.AppliedRevision, s.Revision), fmt.Sprint(s.Counts["ports"]), fmt.Sprint(s.Counts["peers"]),
			fmt.Sprint(s.Counts["routes"]), fmt.Sprint(s.PodMTU), fmt.Sprintf("%d MiB", s.Memory>>20), cmp.Or(strings.Join(worst, "; "), "ok"),
		}
		if wide {
			row = append(row, s.Plane, s.Version, age(s.Started))
		}
		t.add(row...)
	}
	return t
}

// explainNode prints what a table has no room for.
func (a *app) explainNode(s admin.Status) {
	fmt.Fprintf(a.out, "\n%s\n", s.Node)
	for _, f := range s.Features {
		fmt.Fprintln(a.out, "  uses     ", f)
	}
	for _, h := range s.Health {
		fmt.Fprintf(a.out, "  health    %-12s %s since %s %s\n", h.Component, h.Level, h.Since.Format(time.RFC3339), oneLine(h.Message))
	}
	for _, reason := range slices.Sorted(keys(s.Drops)) {
		if n := s.Drops[reason]; n > 0 {
			fmt.Fprintf(a.out, "  dropped   %d packets: %s\n", n, reason)
		}
	}
	for _, p := range s.Problems {
		fmt.Fprintf(a.out, "  problem   %s %s: %s: %s\n", p.Kind, oneLine(p.Object), p.Reason, oneLine(p.Message))
	}
	for _, f := range s.Failed {
		fmt.Fprintln(a.out, "  failed   ", oneLine(f))
	}
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit [NODE…]", Short: "Compare the kernel with what it should hold, and name what others changed",
		Long: "Compare the kernel of every node with what it should hold, and name what others changed in\nthe last hour. Exits with 1 if anything differs.",
	}
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		all, failed := ask[admin.Audit](cmd.Context(), a, args, "/v1/audit")
		if len(all) == 0 && failed != nil {
			return failed
		}
		if err := a.printAudit(*format, all); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
		if slices.ContainsFunc(all, func(x admin.Audit) bool { return len(x.Differences) > 0 }) {
			return exitError(exitFailed)
		}
		return nil
	}
	return cmd
}

func (a *app) printAudit(format string, all []admin.Audit) error {
	if format == "json" || format == "yaml" {
		return a.print(format, all, nil)
	}
	for _, x := range all {
		if len(x.Differences) == 0 {
			fmt.Fprintf(a.out, "%s: the kernel holds what it should\n", x.Node)
		}
		for _, d := range x.Differences {
			line := fmt.Sprintf("%s: %s %s is %s", x.Node, d.Subsystem, d.Object, map[string]string{"differs": "not as it should be"}[d.Problem])
			if d.Problem != "differs" {
				line = fmt.Sprintf("%s: %s %s is %s", x.Node, d.Subsystem, d.Object, d.Problem)
			}
			if d.Want != "" || d.Got != "" {
				line += fmt.Sprintf(" (want %q, got %q)", d.Want, d.Got)
			}
			fmt.Fprintln(a.out, oneLine(line))
		}
		for _, f := range x.Foreign {
			who := cmp.Or(f.Process, "somebody")
			fmt.Fprintln(a.out, oneLine(fmt.Sprintf("%s: %s  %s changed from outside: %s", x.Node, f.Time.Format(time.TimeOnly), who, f.What)))
		}
	}
	return nil
}

func (a *app) journalCommand() *cobra.Command {
	var since time.Duration
	cmd := &cobra.Command{Use: "journal NODE", Short: "Show what a node's network did, and when", Args: cobra.ExactArgs(1)}
	format := outputFlag(cmd)
	cmd.Flags().DurationVar(&since, "since", time.Hour, "how far back")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := "/v1/journal?since=" + url.QueryEscape(time.Now().Add(-since).UTC().Format(time.RFC3339))
		lists, err := ask[[]journal.Entry](cmd.Context(), a, args, path)
		if err != nil {
			return err
		}
		entries := lists[0]
		return a.print(*format, entries, func(bool) table {
			t := table{header: []string{"TIME", "REVISION", "WHAT"}}
			for _, e := range entries {
				for _, line := range journalLines(e) {
					t.add(e.Time.Format(time.DateTime), fmt.Sprint(e.Revision), line)
				}
			}
			return t
		})
	}
	return cmd
}

func journalLines(e journal.Entry) []string {
	var out []string
	if e.Note != "" {
		out = append(out, e.Note)
	}
	for _, f := range e.Foreign {
		out = append(out, cmp.Or(f.Process, "somebody")+" changed: "+f.What)
	}
	for _, o := range e.Objects {
		out = append(out, "intent: "+o)
	}
	for _, c := range e.Changes {
		out = append(out, "kernel: "+c)
	}
	for _, f := range e.Failed {
		out = append(out, "failed: "+f)
	}
	return out
}

func eventColumns() []column {
	return []column{
		{name: "TYPE", cell: of(func(e *corev1.Event) string { return e.Type })},
		{name: "REASON", cell: of(func(e *corev1.Event) string { return e.Reason })},
		{name: "OBJECT", cell: of(func(e *corev1.Event) string {
			return strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
		})},
		{name: "COUNT", cell: of(func(e *corev1.Event) string { return fmt.Sprint(e.Count) })},
		{name: "MESSAGE", cell: of(func(e *corev1.Event) string { return e.Message })},
	}
}

func (a *app) eventsCommand() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{Use: "events", Short: "List events: what is wrong with objects that have no status", Args: cobra.NoArgs}
	format := outputFlag(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only events of this namespace")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			return a.getAll(ctx, s, datastore.KindEvent, namespace, *format)
		})
	}
	return cmd
}

func (a *app) configCommand() *cobra.Command {
	check := &cobra.Command{
		Use: "check FILE…", Short: "Check configuration files of the daemons", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var errs []error
			for _, f := range args {
				kind, err := config.Check(f)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(a.out, "%s: a valid %s\n", f, kind)
			}
			return errors.Join(errs...)
		},
	}
	return group("config", "Configuration of the daemons", check)
}

// bundle is what "fairlead diag" gathers: text and values, no secrets (Fairlead reads
// none, and objects' annotations of others are not in it).
type bundle struct {
	Time    time.Time                  `json:"time"`
	Version string                     `json:"version"`
	Cluster *clusterStatus             `json:"cluster,omitempty"`
	Nodes   map[string]map[string]any  `json:"nodes"`
	Objects map[string][]objectSummary `json:"objects"`
	Errors  []string                   `json:"errors,omitempty"`
}

type objectSummary struct {
	Name            string `json:"name"`
	ResourceVersion string `json:"resourceVersion"`
	Spec            any    `json:"spec,omitempty"`
	Status          any    `json:"status,omitempty"`
}

// diagPaths are what every agent is asked for.
var diagPaths = []string{"status", "audit", "peers", "attachments", "ipam", "intent", "config", "journal"}

func (a *app) diagCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "diag -o FILE", Short: "Gather what a person needs to find a fault, into one JSON file", Args: cobra.NoArgs,
		Long: "Gather the state of all agents and of Fairlead's own objects into one JSON file. Pods,\nSecrets, environments and annotations are not in it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usagef("say where to write with -o FILE")
			}
			raw, err := json.MarshalIndent(a.gatherBundle(cmd.Context()), "", "  ")
			if err != nil {
				return err
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("write the bundle (an existing file is not overwritten): %w", err)
			}
			if _, err := f.Write(raw); err != nil {
				return errors.Join(err, f.Close(), os.Remove(file))
			}
			if err := f.Close(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s: %d bytes\n", file, len(raw))
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write; it must not exist")
	return cmd
}

// gatherBundle gathers what it can; what failed is in Errors.
func (a *app) gatherBundle(ctx context.Context) bundle {
	b := bundle{Time: time.Now().UTC(), Version: a.version, Nodes: map[string]map[string]any{}, Objects: map[string][]objectSummary{}}
	note := func(err error) {
		if err != nil {
			b.Errors = append(b.Errors, err.Error())
		}
	}
	note(a.withStore(ctx, func(ctx context.Context, s datastore.Store) error {
		st, err := readStatus(ctx, s)
		b.Cluster = &st
		for _, kind := range []datastore.Kind{datastore.KindVPC, datastore.KindSubnet, datastore.KindIPBlock, datastore.KindNodeNetwork, datastore.KindNetNamespace} {
			list, lerr := s.List(ctx, kind)
			err = errors.Join(err, lerr)
			for _, o := range list.Items {
				b.Objects[string(kind)] = append(b.Objects[string(kind)], summarize(o))
			}
		}
		return err
	}))
	agents, err := a.agents(ctx, nil)
	note(err)
	for _, n := range agents {
		b.Nodes[n.node] = map[string]any{}
		for _, path := range diagPaths {
			var v any
			if err := n.client.Get(ctx, "/v1/"+path, &v); err != nil {
				note(fmt.Errorf("node %s: %w", n.node, err))
				continue
			}
			b.Nodes[n.node][path] = v
		}
		n.client.Close()
	}
	return b
}

func summarize(o datastore.Object) objectSummary {
	s := objectSummary{Name: o.GetName(), ResourceVersion: o.GetResourceVersion()}
	switch o := o.(type) {
	case *v1alpha1.VPC:
		s.Spec, s.Status = o.Spec, o.Status
	case *v1alpha1.Subnet:
		s.Spec, s.Status = o.Spec, o.Status
	case *v1alpha1.IPBlock:
		s.Spec = o.Spec
	case *v1alpha1.NodeNetwork:
		s.Spec, s.Status = o.Spec, o.Status
	case *v1alpha1.NetNamespace:
		s.Spec = o.Spec
	}
	return s
}
