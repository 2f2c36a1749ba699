package kube

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// leanMark is in the selfLink of objects that are not whole. Servers stopped using that
// field long ago.
const leanMark = "fairlead.dev/lean"

// normalise makes an object read from the server one of the contract.
func normalise(r *datastore.Resource, o datastore.Object) datastore.Object {
	o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	o.SetManagedFields(nil)
	r.Default(o)
	return o
}

// kept is normalise for what is listed and watched: the only objects that are many and
// held for long.
func (s *Store) kept(r *datastore.Resource, o datastore.Object) datastore.Object {
	normalise(r, o)
	if !s.config.Lean {
		return o
	}
	switch o := o.(type) {
	case *corev1.Pod:
		leanPod(o)
	case *corev1.Node:
		leanNode(o)
	}
	return o
}

// leanPod keeps what the network of a pod depends on: its labels, node, ports and
// addresses, who owns it, and how far it has come.
func leanPod(p *corev1.Pod) {
	p.SetSelfLink(leanMark)
	delete(p.Annotations, corev1.LastAppliedConfigAnnotation)
	p.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, ServiceAccountName: p.Spec.ServiceAccountName,
		RestartPolicy: p.Spec.RestartPolicy, Hostname: p.Spec.Hostname, Subdomain: p.Spec.Subdomain,
		TerminationGracePeriodSeconds: p.Spec.TerminationGracePeriodSeconds, ReadinessGates: p.Spec.ReadinessGates,
		InitContainers: leanContainers(p.Spec.InitContainers), Containers: leanContainers(p.Spec.Containers),
	}
	p.Status = corev1.PodStatus{
		Phase: p.Status.Phase, Conditions: p.Status.Conditions, Reason: p.Status.Reason,
		HostIP: p.Status.HostIP, HostIPs: p.Status.HostIPs, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs, StartTime: p.Status.StartTime,
	}
}

func leanContainers(in []corev1.Container) []corev1.Container {
	for i, c := range in {
		in[i] = corev1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy}
	}
	return in
}

// leanNode keeps all but what is large and about storage and images.
func leanNode(n *corev1.Node) {
	n.SetSelfLink(leanMark)
	delete(n.Annotations, corev1.LastAppliedConfigAnnotation)
	n.Status = corev1.NodeStatus{
		Phase: n.Status.Phase, Conditions: n.Status.Conditions, Addresses: n.Status.Addresses, NodeInfo: n.Status.NodeInfo,
	}
}

// whole refuses to write an object of which a part was dropped when it was read.
func whole(r *datastore.Resource, o datastore.Object) error {
	if o.GetSelfLink() != leanMark {
		return nil
	}
	return apierrors.NewBadRequest(string(r.Kind) + " " + datastore.KeyOf(o).String() + ": the object is from a list or a watch that leaves parts out: read it with Get before it is changed")
}
