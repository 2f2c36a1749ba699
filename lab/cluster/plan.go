package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// View is what the datastore holds, by key.
type View struct {
	Nodes map[datastore.Key]*corev1.Node
	// GoneNamespaces are namespaces that have been deleted. That one is missing is not
	// enough: what is in it may have been heard of first.
	GoneNamespaces map[string]bool
	Pods           map[datastore.Key]*corev1.Pod
	Deployments    map[datastore.Key]*appsv1.Deployment
}

// Writes is what has to change in the datastore.
type Writes struct {
	// DeletePods and DeleteDeployments in the order of their keys.
	DeletePods        []*corev1.Pod
	DeleteDeployments []*appsv1.Deployment
	// CreatePods are new pods of Deployments, with their node where one was found.
	CreatePods []*corev1.Pod
	// BindPods are pods of the datastore with a node.
	BindPods []*corev1.Pod
}

// LabelTemplate marks the pods of a Deployment with the hash of their template.
const LabelTemplate = "pod-template-hash"

// Plan says what has to change: pods of Deployments are made and removed, what
// belongs to a deleted Namespace, Deployment or Node is deleted, and pods without a
// node get one.
func Plan(v View) Writes {
	var w Writes
	gone := map[datastore.Key]bool{}
	remove := func(p *corev1.Pod) {
		if k := datastore.KeyOf(p); !gone[k] {
			gone[k] = true
			w.DeletePods = append(w.DeletePods, p)
		}
	}
	for _, d := range sorted(v.Deployments) {
		if v.GoneNamespaces[d.Namespace] {
			w.DeleteDeployments = append(w.DeleteDeployments, d)
		}
	}
	for _, p := range sorted(v.Pods) {
		if v.GoneNamespaces[p.Namespace] || orphaned(v, p) {
			remove(p)
		}
	}
	for _, d := range sorted(v.Deployments) {
		if v.GoneNamespaces[d.Namespace] {
			continue
		}
		wanted := replicas(d)
		for _, p := range sorted(v.Pods) {
			if !ownedBy(p, d) {
				continue
			}
			if i := slices.IndexFunc(wanted, func(q *corev1.Pod) bool { return q.Name == p.Name }); i >= 0 && !finished(p) {
				wanted = slices.Delete(wanted, i, i+1)
			} else {
				remove(p)
			}
		}
		for _, p := range wanted {
			// A pod of that name, somebody else's or one that is being deleted,
			// goes first.
			if v.Pods[datastore.KeyOf(p)] == nil {
				w.CreatePods = append(w.CreatePods, p)
			}
		}
	}
	place(v, gone, &w)
	return w
}

// orphaned tells whether what a pod belongs to is gone: its Deployment, or the node
// that it was bound to.
func orphaned(v View, p *corev1.Pod) bool {
	if o := metav1.GetControllerOf(p); o != nil && o.Kind == string(datastore.KindDeployment) {
		d := v.Deployments[datastore.Key{Namespace: p.Namespace, Name: o.Name}]
		if d == nil || d.UID != o.UID {
			return true
		}
	}
	// A pod may name a node before it exists, but not outlive it.
	return p.Spec.NodeName != "" && p.Status.HostIP != "" && v.Nodes[datastore.Key{Name: p.Spec.NodeName}] == nil
}

func ownedBy(p *corev1.Pod, d *appsv1.Deployment) bool {
	o := metav1.GetControllerOf(p)
	return p.Namespace == d.Namespace && o != nil && o.UID == d.UID
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// replicas are the pods that a Deployment asks for: NAME-HASH-0, NAME-HASH-1 and so
// on. The hash is that of the template, so that another template means other pods.
func replicas(d *appsv1.Deployment) []*corev1.Pod {
	hash := templateHash(d)
	n := int32(1)
	if d.Spec.Replicas != nil {
		n = *d.Spec.Replicas
	}
	yes := true
	var out []*corev1.Pod
	for i := range n {
		t := d.Spec.Template.DeepCopy()
		p := &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
		p.Name, p.Namespace, p.GenerateName = d.Name+"-"+hash+"-"+strconv.Itoa(int(i)), d.Namespace, ""
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[LabelTemplate] = hash
		p.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: appsv1.SchemeGroupVersion.String(), Kind: string(datastore.KindDeployment),
			Name: d.Name, UID: d.UID, Controller: &yes, BlockOwnerDeletion: &yes,
		}}
		out = append(out, p)
	}
	return out
}

func templateHash(d *appsv1.Deployment) string {
	raw, err := json.Marshal(d.Spec.Template)
	if err != nil {
		// The type is JSON's own: it was read from it.
		raw = fmt.Appendf(nil, "%v", d.Spec.Template)
	}
	h := fnv.New32a()
	h.Write(raw)
	return fmt.Sprintf("%08x", h.Sum32())
}

// place gives a node to every pod that has none: of the nodes that it may run on,
// the one with the fewest pods, of these the first by name.
func place(v View, gone map[datastore.Key]bool, w *Writes) {
	load := map[string]int{}
	for k, p := range v.Pods {
		if !gone[k] && !finished(p) && p.Spec.NodeName != "" {
			load[p.Spec.NodeName]++
		}
	}
	for _, p := range w.CreatePods {
		if p.Spec.NodeName != "" {
			load[p.Spec.NodeName]++
		}
	}
	nodes := sorted(v.Nodes)
	slices.SortStableFunc(nodes, func(a, b *corev1.Node) int { return compareNumbered(a.Name, b.Name) })
	choose := func(p *corev1.Pod) bool {
		var best *corev1.Node
		for _, n := range nodes {
			if fits(p, n) && (best == nil || load[n.Name] < load[best.Name]) {
				best = n
			}
		}
		if best == nil {
			return false
		}
		p.Spec.NodeName = best.Name
		load[best.Name]++
		return true
	}
	for _, p := range sorted(v.Pods) {
		if p.Spec.NodeName == "" && !gone[datastore.KeyOf(p)] {
			if bound := p.DeepCopy(); choose(bound) {
				w.BindPods = append(w.BindPods, bound)
			}
		}
	}
	for _, p := range w.CreatePods {
		if p.Spec.NodeName == "" {
			choose(p) // without a node it waits for one
		}
	}
}

// fits tells whether a pod may run on a node.
func fits(p *corev1.Pod, n *corev1.Node) bool {
	if n.Spec.Unschedulable {
		return false
	}
	for k, want := range p.Spec.NodeSelector {
		if got, ok := n.Labels[k]; !ok || got != want {
			return false
		}
	}
	return true
}

// compareNumbered orders node-2 before node-10.
func compareNumbered(a, b string) int {
	if c := cmp.Compare(len(a), len(b)); c != 0 {
		return c
	}
	return cmp.Compare(a, b)
}

// sorted are the values in the order of their keys.
func sorted[T any](m map[datastore.Key]T) []T {
	keys := make([]datastore.Key, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, datastore.CompareKeys)
	out := make([]T, 0, len(m))
	for _, k := range keys {
		out = append(out, m[k])
	}
	return out
}
