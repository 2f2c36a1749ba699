package datastore

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
)

// The checks here are those of the Kubernetes API on the fields that Fairlead
// reads; what only a kubelet or a scheduler reads is left to them.

func validateNode(n, _ *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	for i, c := range n.Spec.PodCIDRs {
		if _, err := v1alpha1.ParseCIDR(c); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("spec", "podCIDRs").Index(i), c, err.Error()))
		}
	}
	return errs
}

func validatePod(p, old *corev1.Pod) field.ErrorList {
	errs := validatePodAnnotations(p.Annotations, field.NewPath("metadata", "annotations"))
	path := field.NewPath("spec")
	errs = append(errs, validatePodSpec(&p.Spec, path)...)
	if old != nil {
		errs = append(errs, validatePodUpdate(&p.Spec, &old.Spec, path)...)
	}
	return errs
}

// validatePodAnnotations checks the syntax of our annotations. Whether the address
// is in the Subnet and free is known only to the agent that is asked for it.
func validatePodAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s, ok := annotations[v1alpha1.AnnotationSubnet]; ok {
		if msgs := validation.IsDNS1123Label(s); len(msgs) > 0 {
			errs = append(errs, field.Invalid(path.Key(v1alpha1.AnnotationSubnet), s, "must be the name of a Subnet: "+msgs[0]))
		}
	}
	s, ok := annotations[v1alpha1.AnnotationIP]
	if !ok {
		return errs
	}
	key := path.Key(v1alpha1.AnnotationIP)
	var seen [2]netip.Addr
	for part := range strings.SplitSeq(s, ",") {
		a, err := v1alpha1.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return append(errs, field.Invalid(key, s, fmt.Sprintf("%q %v; write one IPv4 address, one IPv6 address, or both with a comma", part, err)))
		}
		family := a.BitLen() / 128
		if seen[family].IsValid() {
			return append(errs, field.Invalid(key, s, fmt.Sprintf("%s and %s are of one family: at most one each", seen[family], a)))
		}
		seen[family] = a
	}
	return errs
}

func validatePodSpec(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), "at least one container"))
	}
	names := sets.New[string]()
	errs = append(errs, validateContainers(s, s.InitContainers, names, path.Child("initContainers"))...)
	errs = append(errs, validateContainers(s, s.Containers, names, path.Child("containers"))...)
	if s.NodeName != "" {
		if msgs := validation.IsDNS1123Subdomain(s.NodeName); len(msgs) > 0 {
			errs = append(errs, field.Invalid(path.Child("nodeName"), s.NodeName, "must be the name of a Node: "+msgs[0]))
		}
	}
	policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
	if !slices.Contains(policies, s.RestartPolicy) {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), s.RestartPolicy, policies))
	}
	return append(errs, metav1validation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector"))...)
}

func validateContainers(s *corev1.PodSpec, containers []corev1.Container, names sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range containers {
		at := path.Index(i)
		if msgs := validation.IsDNS1123Label(c.Name); c.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if len(msgs) > 0 {
			errs = append(errs, field.Invalid(at.Child("name"), c.Name, msgs[0]))
		} else if names.Has(c.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		names.Insert(c.Name)
		portNames := sets.New[string]()
		for j, port := range c.Ports {
			errs = append(errs, validateContainerPort(s, port, portNames, at.Child("ports").Index(j))...)
		}
	}
	return errs
}

func validateContainerPort(s *corev1.PodSpec, port corev1.ContainerPort, names sets.Set[string], path *field.Path) field.ErrorList {
	errs := validatePort(port.ContainerPort, path.Child("containerPort"))
	errs = append(errs, validateProtocol(port.Protocol, path.Child("protocol"))...)
	if port.HostPort != 0 {
		errs = append(errs, validatePort(port.HostPort, path.Child("hostPort"))...)
	}
	if s.HostNetwork && port.HostPort != port.ContainerPort {
		errs = append(errs, field.Invalid(path.Child("hostPort"), port.HostPort, "must equal containerPort with hostNetwork"))
	}
	if port.Name != "" {
		if msgs := validation.IsValidPortName(port.Name); len(msgs) > 0 {
			errs = append(errs, field.Invalid(path.Child("name"), port.Name, msgs[0]))
		} else if names.Has(port.Name) {
			errs = append(errs, field.Duplicate(path.Child("name"), port.Name))
		}
		names.Insert(port.Name)
	}
	if port.HostIP != "" {
		if _, err := v1alpha1.ParseAddr(port.HostIP); err != nil {
			errs = append(errs, field.Invalid(path.Child("hostIP"), port.HostIP, err.Error()))
		}
	}
	return errs
}

// validatePodUpdate allows what the Kubernetes API allows, and to bind an unbound
// pod to its node, for which an API server has a subresource.
func validatePodUpdate(now, before *corev1.PodSpec, path *field.Path) field.ErrorList {
	want := before.DeepCopy()
	if want.NodeName == "" {
		want.NodeName = now.NodeName
	}
	if want.NodeName != now.NodeName {
		return field.ErrorList{field.Invalid(path.Child("nodeName"), now.NodeName, fmt.Sprintf("is immutable: the pod is bound to %s", want.NodeName))}
	}
	want.ActiveDeadlineSeconds = now.ActiveDeadlineSeconds
	want.TerminationGracePeriodSeconds = now.TerminationGracePeriodSeconds
	want.Tolerations = now.Tolerations
	copyImages(want.Containers, now.Containers)
	copyImages(want.InitContainers, now.InitContainers)
	if !equality.Semantic.DeepEqual(want, now) {
		return field.ErrorList{field.Forbidden(path, "of a pod only images, tolerations, activeDeadlineSeconds, terminationGracePeriodSeconds and, once, nodeName may change: delete the pod and create it anew")}
	}
	return nil
}

func copyImages(to, from []corev1.Container) {
	for i := range min(len(to), len(from)) {
		to[i].Image = from[i].Image
	}
}

func validateDeployment(d, old *appsv1.Deployment) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if d.Spec.Replicas != nil && *d.Spec.Replicas < 0 {
		errs = append(errs, field.Invalid(path.Child("replicas"), *d.Spec.Replicas, "must not be negative"))
	}
	template := path.Child("template")
	errs = append(errs, metav1validation.ValidateLabels(d.Spec.Template.Labels, template.Child("metadata", "labels"))...)
	errs = append(errs, validatePodAnnotations(d.Spec.Template.Annotations, template.Child("metadata", "annotations"))...)
	errs = append(errs, validatePodSpec(&d.Spec.Template.Spec, template.Child("spec"))...)
	switch {
	case d.Spec.Selector == nil || len(d.Spec.Selector.MatchLabels)+len(d.Spec.Selector.MatchExpressions) == 0:
		return append(errs, field.Required(path.Child("selector"), "a selector that matches the template's labels"))
	case old != nil && !equality.Semantic.DeepEqual(d.Spec.Selector, old.Spec.Selector):
		return append(errs, field.Invalid(path.Child("selector"), metav1.FormatLabelSelector(d.Spec.Selector), "is immutable"))
	}
	bad := validateSelector(d.Spec.Selector, path.Child("selector"))
	errs = append(errs, bad...)
	if len(bad) > 0 {
		return errs
	}
	if sel, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err != nil {
		errs = append(errs, field.Invalid(path.Child("selector"), metav1.FormatLabelSelector(d.Spec.Selector), err.Error()))
	} else if !sel.Matches(labels.Set(d.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(template.Child("metadata", "labels"), d.Spec.Template.Labels, "the selector "+sel.String()+" does not match them"))
	}
	return errs
}

func validateLease(l, _ *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if d := l.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must not be negative"))
	}
	return errs
}
