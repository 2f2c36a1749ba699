package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// column is one column of a kind's table.
type column struct {
	name string
	wide bool
	cell func(datastore.Object) string
}

// drawObjects makes the table of a kind; more are columns that the objects alone do
// not tell.
func (a *app) drawObjects(kind datastore.Kind, items []datastore.Object, wide bool, more ...column) table {
	columns := []column{{name: "NAME", cell: func(o datastore.Object) string { return o.GetName() }}}
	if r, err := datastore.Lookup(kind); err == nil && r.Namespaced {
		columns = slices.Insert(columns, 0, column{name: "NAMESPACE", cell: func(o datastore.Object) string { return o.GetNamespace() }})
	}
	columns = append(columns, columnsOf(kind)...)
	columns = append(columns, more...)
	last := "AGE"
	if kind == datastore.KindEvent {
		last = "LAST-SEEN"
	}
	columns = append(columns, column{name: last, cell: func(o datastore.Object) string { return a.age(lastSeen(o)) }})
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
	case datastore.KindLease:
		return []column{{name: "HOLDER", cell: of(func(l *coordinationv1.Lease) string {
			if l.Spec.HolderIdentity == nil {
				return "-"
			}
			return *l.Spec.HolderIdentity
		})}}
	case datastore.KindEvent:
		return eventColumns()
	}
	return ourColumns(kind)
}

// ourColumns are those of Fairlead's own kinds.
func ourColumns(kind datastore.Kind) []column {
	switch kind {
	case datastore.KindVPC:
		return vpcColumns()
	case datastore.KindSubnet:
		return subnetColumns()
	case datastore.KindIPBlock:
		return []column{
			{name: "SUBNET", cell: of(func(b *v1alpha1.IPBlock) string { return b.Spec.Subnet })},
			{name: "CIDR", cell: of(func(b *v1alpha1.IPBlock) string { return b.Spec.CIDR })},
			{name: "NODE", cell: of(func(b *v1alpha1.IPBlock) string { return b.Spec.Node })},
			{name: "ALLOCATED", cell: of(func(b *v1alpha1.IPBlock) string { return strconv.Itoa(len(b.Spec.Allocations)) })},
			{name: "LENT", cell: of(func(b *v1alpha1.IPBlock) string { return strconv.Itoa(len(b.Spec.Lent)) })},
		}
	case datastore.KindNodeNetwork:
		return nodeNetworkColumns()
	case datastore.KindNetNamespace:
		return []column{
			{name: "VNI", cell: of(func(n *v1alpha1.NetNamespace) string { return strconv.Itoa(int(n.Spec.VNI)) })},
			{name: "GLOBAL", cell: of(func(n *v1alpha1.NetNamespace) string { return strconv.FormatBool(n.Spec.Global) })},
		}
	}
	return nil
}

func vpcColumns() []column {
	return []column{
		{name: "ISOLATION", cell: of(func(v *v1alpha1.VPC) string { return string(v.Spec.Isolation) })},
		{name: "VNI", cell: of(func(v *v1alpha1.VPC) string { return strconv.Itoa(int(v.Status.VNI)) })},
		{name: "READY", cell: of(func(v *v1alpha1.VPC) string { return ready(v.Status.Conditions) })},
		{name: "MESSAGE", wide: true, cell: of(func(v *v1alpha1.VPC) string { return readyMessage(v.Status.Conditions) })},
	}
}

func subnetColumns() []column {
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
}

func nodeNetworkColumns() []column {
	return []column{
		{name: "ADDRESSES", cell: of(func(n *v1alpha1.NodeNetwork) string { return strings.Join(n.Spec.Addresses, ",") })},
		{name: "PLANE", cell: of(func(n *v1alpha1.NodeNetwork) string { return string(n.Spec.Plane) })},
		{name: "POD-MTU", cell: of(func(n *v1alpha1.NodeNetwork) string { return strconv.Itoa(int(n.Status.PodMTU)) })},
		{name: "READY", cell: of(func(n *v1alpha1.NodeNetwork) string { return ready(n.Status.Conditions) })},
		{name: "PROBLEMS", cell: of(func(n *v1alpha1.NodeNetwork) string { return strconv.Itoa(int(n.Status.ProblemCount)) })},
		{name: "VTEP-MAC", wide: true, cell: of(func(n *v1alpha1.NodeNetwork) string { return n.Spec.VTEPMAC })},
		{name: "MESSAGE", wide: true, cell: of(func(n *v1alpha1.NodeNetwork) string { return readyMessage(n.Status.Conditions) })},
	}
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
