package cli

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

func (a *app) getCommand() *cobra.Command {
	var namespace, node string
	cmd := &cobra.Command{
		Use: "get KIND [NAME]", Short: "List objects, or show one", Args: cobra.RangeArgs(1, 2),
		Long: `List objects of a kind, or show one.

Kinds may be written as kubectl takes them (pods, po, subnet, netns, …). "get peers"
asks the nodes' agents how packets reach the other nodes.`,
		ValidArgsFunction: a.completeObject,
	}
	format := outputFlag(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only objects of this namespace")
	cmd.Flags().StringVar(&node, "node", "", "with peers: only as this node sees them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strings.EqualFold(args[0], "peers") || strings.EqualFold(args[0], "peer") {
			return a.getPeers(cmd.Context(), node, *format)
		}
		kind, err := datastore.ParseKind(args[0])
		if err != nil {
			return usageError{err}
		}
		return a.withStore(cmd.Context(), func(ctx context.Context, s datastore.Store) error {
			if len(args) == 2 {
				return a.getOne(ctx, s, kind, namespace, args[1], *format)
			}
			return a.getAll(ctx, s, kind, namespace, *format)
		})
	}
	return cmd
}

// keyFor builds a key from what a person typed: "ns/name", or name with a namespace
// flag; "default" is the namespace that is not named.
func keyFor(kind datastore.Kind, namespace, name string) (datastore.Key, error) {
	r, err := datastore.Lookup(kind)
	if err != nil {
		return datastore.Key{}, usageError{err}
	}
	if ns, rest, found := strings.Cut(name, "/"); found && r.Namespaced {
		namespace, name = ns, rest
	}
	if !r.Namespaced {
		return datastore.Key{Name: name}, nil
	}
	if namespace == "" {
		namespace = "default"
	}
	return datastore.Key{Namespace: namespace, Name: name}, nil
}

func (a *app) getOne(ctx context.Context, s datastore.Store, kind datastore.Kind, namespace, name, format string) error {
	key, err := keyFor(kind, namespace, name)
	if err != nil {
		return err
	}
	o, err := s.Get(ctx, kind, key)
	if err != nil {
		return err
	}
	withKind(kind, o)
	return a.print(format, o, func(wide bool) table { return drawObjects(kind, []datastore.Object{o}, wide) })
}

func (a *app) getAll(ctx context.Context, s datastore.Store, kind datastore.Kind, namespace, format string) error {
	list, err := s.List(ctx, kind)
	if err != nil {
		return err
	}
	items := slices.DeleteFunc(list.Items, func(o datastore.Object) bool { return namespace != "" && o.GetNamespace() != namespace })
	for _, o := range items {
		withKind(kind, o)
	}
	if items == nil {
		items = []datastore.Object{}
	}
	value := struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta    `json:"metadata"`
		Items           []datastore.Object `json:"items"`
	}{metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, metav1.ListMeta{ResourceVersion: list.ResourceVersion}, items}
	return a.print(format, value, func(wide bool) table { return drawObjects(kind, items, wide) })
}

// withKind fills in what typed objects leave out, so that what is printed can be
// applied again.
func withKind(kind datastore.Kind, o datastore.Object) {
	if r, err := datastore.Lookup(kind); err == nil {
		o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	}
}

// column is one column of a kind's table.
type column struct {
	name string
	wide bool
	cell func(datastore.Object) string
}

func drawObjects(kind datastore.Kind, items []datastore.Object, wide bool) table {
	columns := []column{{name: "NAME", cell: func(o datastore.Object) string { return o.GetName() }}}
	if r, err := datastore.Lookup(kind); err == nil && r.Namespaced {
		columns = slices.Insert(columns, 0, column{name: "NAMESPACE", cell: func(o datastore.Object) string { return o.GetNamespace() }})
	}
	columns = append(columns, columnsOf(kind)...)
	columns = append(columns, column{name: "AGE", cell: func(o datastore.Object) string { return age(o.GetCreationTimestamp().Time) }})
	columns = slices.DeleteFunc(columns, func(c column) bool { return c.wide && !wide })
	var t table
	for _, c := range columns {
		t.header = append(t.header, c.name)
	}
	for _, o := range items {
		var row []string
		for _, c := range columns {
			row = append(row, c.cell(o))
		}
		t.add(row...)
	}
	return t
}

// of makes a cell of a typed object.
func of[T datastore.Object](f func(T) string) func(datastore.Object) string {
	return func(o datastore.Object) string {
		typed, ok := o.(T)
		if !ok {
			return "?"
		}
		return f(typed)
	}
}

func columnsOf(kind datastore.Kind) []column {
	switch kind {
	case datastore.KindPod:
		return []column{
			{name: "STATUS", cell: of(podStatus)},
			{name: "ADDRESSES", cell: of(podAddresses)},
			{name: "NODE", cell: of(func(p *corev1.Pod) string { return p.Spec.NodeName })},
			{name: "LABELS", wide: true, cell: of(func(p *corev1.Pod) string { return labels(p.Labels) })},
		}
	case datastore.KindNode:
		return []column{
			{name: "READY", cell: of(nodeReady)},
			{name: "ADDRESSES", cell: of(nodeAddresses)},
		}
	case datastore.KindNamespace:
		return []column{{name: "LABELS", cell: of(func(n *corev1.Namespace) string { return labels(n.Labels) })}}
	case datastore.KindDeployment:
		return []column{{name: "READY", cell: of(func(d *appsv1.Deployment) string {
			want := int32(1)
			if d.Spec.Replicas != nil {
				want = *d.Spec.Replicas
			}
			return fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, want)
		})}}
	case datastore.KindEvent:
		return eventColumns()
	}
	return ourColumns(kind)
}

func ourColumns(kind datastore.Kind) []column {
	switch kind {
	case datastore.KindVPC:
		return []column{
			{name: "ISOLATION", cell: of(func(v *v1alpha1.VPC) string { return string(v.Spec.Isolation) })},
			{name: "VNI", cell: of(func(v *v1alpha1.VPC) string { return strconv.Itoa(int(v.Status.VNI)) })},
			{name: "READY", cell: of(func(v *v1alpha1.VPC) string { return ready(v.Status.Conditions) })},
			{name: "MESSAGE", wide: true, cell: of(func(v *v1alpha1.VPC) string { return readyMessage(v.Status.Conditions) })},
		}
	case datastore.KindSubnet:
		return []column{
			{name: "VPC", cell: of(func(s *v1alpha1.Subnet) string { return s.Spec.VPC })},
			{name: "CIDRS", cell: of(func(s *v1alpha1.Subnet) string { return strings.Join(s.Spec.CIDRs, ",") })},
			{name: "TRANSPORT", cell: of(func(s *v1alpha1.Subnet) string {
				return string(s.Spec.Transport) + "/" + string(s.Spec.Encapsulation)
			})},
			{name: "BLOCKS", cell: of(func(s *v1alpha1.Subnet) string { return strconv.Itoa(int(s.Status.Blocks)) })},
			{name: "USED", cell: of(func(s *v1alpha1.Subnet) string {
				return used(s.Status.Allocated, s.Status.Capacity)
			})},
			{name: "READY", cell: of(func(s *v1alpha1.Subnet) string { return ready(s.Status.Conditions) })},
			{name: "MESSAGE", wide: true, cell: of(func(s *v1alpha1.Subnet) string { return readyMessage(s.Status.Conditions) })},
		}
	case datastore.KindIPBlock:
		return []column{
			{name: "SUBNET", cell: of(func(b *v1alpha1.IPBlock) string { return b.Spec.Subnet })},
			{name: "CIDR", cell: of(func(b *v1alpha1.IPBlock) string { return b.Spec.CIDR })},
			{name: "NODE", cell: of(func(b *v1alpha1.IPBlock) string { return b.Spec.Node })},
			{name: "ALLOCATED", cell: of(func(b *v1alpha1.IPBlock) string { return strconv.Itoa(len(b.Spec.Allocations)) })},
			{name: "LENT", cell: of(func(b *v1alpha1.IPBlock) string { return strconv.Itoa(len(b.Spec.Lent)) })},
		}
	case datastore.KindNodeNetwork:
		return []column{
			{name: "ADDRESSES", cell: of(func(n *v1alpha1.NodeNetwork) string { return strings.Join(n.Spec.Addresses, ",") })},
			{name: "PLANE", cell: of(func(n *v1alpha1.NodeNetwork) string { return string(n.Spec.Plane) })},
			{name: "POD-MTU", cell: of(func(n *v1alpha1.NodeNetwork) string { return strconv.Itoa(int(n.Status.PodMTU)) })},
			{name: "READY", cell: of(func(n *v1alpha1.NodeNetwork) string { return ready(n.Status.Conditions) })},
			{name: "PROBLEMS", cell: of(func(n *v1alpha1.NodeNetwork) string { return strconv.Itoa(int(n.Status.ProblemCount)) })},
			{name: "VTEP-MAC", wide: true, cell: of(func(n *v1alpha1.NodeNetwork) string { return n.Spec.VTEPMAC })},
			{name: "MESSAGE", wide: true, cell: of(func(n *v1alpha1.NodeNetwork) string { return readyMessage(n.Status.Conditions) })},
		}
	case datastore.KindNetNamespace:
		return []column{
			{name: "VNI", cell: of(func(n *v1alpha1.NetNamespace) string { return strconv.Itoa(int(n.Spec.VNI)) })},
			{name: "GLOBAL", cell: of(func(n *v1alpha1.NetNamespace) string { return strconv.FormatBool(n.Spec.Global) })},
		}
	}
	return nil
}

func ready(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil {
		if c.Status != metav1.ConditionTrue || c.Reason == "Degraded" {
			return string(c.Status) + " (" + c.Reason + ")"
		}
		return string(c.Status)
	}
	return "Unknown"
}

// used is how full a Subnet is. The capacity of an IPv6 Subnet is capped at the
// largest number of its type, which tells nobody anything.
func used(allocated, capacity int64) string {
	if capacity == math.MaxInt64 {
		return fmt.Sprintf("%d of over 10^18", allocated)
	}
	return fmt.Sprintf("%d of %d", allocated, capacity)
}

func readyMessage(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil {
		return c.Message
	}
	return ""
}

func podStatus(p *corev1.Pod) string {
	if p.Status.Reason != "" {
		return string(p.Status.Phase) + " (" + p.Status.Reason + ")"
	}
	return string(p.Status.Phase)
}

func podAddresses(p *corev1.Pod) string {
	var out []string
	for _, ip := range p.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return strings.Join(out, ",")
}

func nodeReady(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status != corev1.ConditionTrue {
				return string(c.Status) + " (" + c.Message + ")"
			}
			return string(c.Status)
		}
	}
	return "Unknown"
}

func nodeAddresses(n *corev1.Node) string {
	var out []string
	for _, x := range n.Status.Addresses {
		if x.Type == corev1.NodeInternalIP {
			out = append(out, x.Address)
		}
	}
	return strings.Join(out, ",")
}

func labels(m map[string]string) string {
	var out []string
	for k, v := range m {
		if k != corev1.LabelMetadataName {
			out = append(out, k+"="+v)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// nodePeers is how one node sees the others.
type nodePeers struct {
	Node  string       `json:"node"`
	Peers []admin.Peer `json:"peers"`
}

func (a *app) getPeers(ctx context.Context, node, format string) error {
	var names []string
	if node != "" {
		names = []string{node}
	}
	agents, err := a.agents(ctx, names)
	if err != nil {
		return err
	}
	var all []nodePeers
	for _, n := range agents {
		p := nodePeers{Node: n.node}
		if err := n.client.Get(ctx, "/v1/peers", &p.Peers); err != nil {
			return fmt.Errorf("node %s: %w", n.node, err)
		}
		n.client.Close()
		all = append(all, p)
	}
	return a.print(format, all, func(bool) table {
		t := table{header: []string{"NODE", "PEER", "VPC", "PATH", "PREFIXES"}}
		for _, n := range all {
			for _, p := range n.Peers {
				for _, path := range p.Paths {
					var prefixes []string
					for _, x := range path.Prefixes {
						prefixes = append(prefixes, x.String())
					}
					t.add(n.Node, p.Name, path.VPC, path.Via, strings.Join(prefixes, ","))
				}
				if len(p.Paths) == 0 {
					t.add(n.Node, p.Name, "-", "no block yet", "-")
				}
			}
		}
		return t
	})
}

// completeObject completes kinds and names of objects.
func (a *app) completeObject(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if len(args) == 0 {
		for _, k := range datastore.Kinds() {
			if r, err := datastore.Lookup(k); err == nil {
				out = append(out, r.Plural)
			}
		}
		return append(out, "peers"), cobra.ShellCompDirectiveNoFileComp
	}
	kind, err := datastore.ParseKind(args[0])
	if err != nil || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeNames(cmd.Context(), kind)
}

func (a *app) completeNames(ctx context.Context, kind datastore.Kind) ([]string, cobra.ShellCompDirective) {
	if ctx == nil || reflect.ValueOf(ctx).IsZero() {
		ctx = context.Background()
	}
	var out []string
	err := a.withStore(ctx, func(ctx context.Context, s datastore.Store) error {
		list, err := s.List(ctx, kind)
		for _, o := range list.Items {
			out = append(out, datastore.KeyOf(o).String())
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
