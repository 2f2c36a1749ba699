package kube

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// definitions is the group of CustomResourceDefinitions, of which only metadata is read.
var definitions = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

const (
	protobuf  = "application/vnd.kubernetes.protobuf"
	plainJSON = "application/json"
	// onlyMetadata asks for an object's metadata alone.
	onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
)

// newScheme knows the types of the registry and no others: client-go's own scheme would
// add every group of Kubernetes to the program.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, coordinationv1.AddToScheme,
		appsv1.AddToScheme, policyv1beta1.Install, v1alpha1.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("kube: %w", err)
		}
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	metav1.AddToGroupVersion(s, definitions)
	for _, kind := range datastore.Kinds() {
		r, err := datastore.Lookup(kind)
		if err != nil {
			return nil, err
		}
		if !s.Recognizes(r.GroupVersionKind()) || !s.Recognizes(listKind(r)) {
			return nil, fmt.Errorf("kube: %s is not in the scheme", r.GroupVersionKind())
		}
	}
	return s, nil
}

func listKind(r *datastore.Resource) schema.GroupVersionKind {
	return r.GroupVersion.WithKind(string(r.Kind) + "List")
}

// custom tells the groups whose kinds are custom resources, which have no protobuf.
func custom(group string) bool {
	return group == v1alpha1.GroupVersion.Group || group == policyv1beta1.GroupVersion.Group || group == definitions.Group
}

// own tells our own kinds.
func own(r *datastore.Resource) bool { return r.GroupVersion.Group == v1alpha1.GroupVersion.Group }

// optional tells a kind that works without being installed.
func optional(r *datastore.Resource) bool { return r.Kind == datastore.KindClusterNetworkPolicy }
