package datastore

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
)

// The kinds that Fairlead reads or writes.
const (
	KindNamespace            Kind = "Namespace"
	KindNode                 Kind = "Node"
	KindPod                  Kind = "Pod"
	KindService              Kind = "Service"
	KindEndpointSlice        Kind = "EndpointSlice"
	KindNetworkPolicy        Kind = "NetworkPolicy"
	KindClusterNetworkPolicy Kind = "ClusterNetworkPolicy"
	KindEvent                Kind = "Event"
	KindLease                Kind = "Lease"
	KindServiceCIDR          Kind = "ServiceCIDR"
	KindDeployment           Kind = "Deployment"
	KindVPC                  Kind = "VPC"
	KindSubnet               Kind = "Subnet"
	KindIPBlock              Kind = "IPBlock"
	KindNodeNetwork          Kind = "NodeNetwork"
	KindNetNamespace         Kind = "NetNamespace"
)

// Resource says all that the packages here need to know about one kind.
type Resource struct {
	Kind Kind
	// GroupVersion that objects have inside Fairlead and are stored as.
	GroupVersion schema.GroupVersion
	// Equivalent versions of the group, accepted in manifests because their
	// schema is the same.
	Equivalent []string
	// Plural is unique across the kinds: "networkpolicies".
	Plural     string
	ShortNames []string
	Namespaced bool
	// HasStatus: the status is written by UpdateStatus alone.
	HasStatus bool
	// New makes an empty object.
	New func() Object

	validName apivalidation.ValidateNameFunc
	// setDefaults and validate are nil where there is nothing to do. validate gets
	// nil for old on create.
	setDefaults func(Object)
	validate    func(o, old Object) field.ErrorList
}

// GroupVersionKind of the stored objects.
func (r *Resource) GroupVersionKind() schema.GroupVersionKind {
	return r.GroupVersion.WithKind(string(r.Kind))
}

// GroupResource names the resource in errors.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.GroupVersion.Group, Resource: r.Plural}
}

// Default fills in the absent fields of o as an API server would. Objects read
// from an API server's custom resources need it too, where a default depends on
// another field.
func (r *Resource) Default(o Object) {
	if r.setDefaults != nil {
		r.setDefaults(o)
	}
}

// Validate checks the metadata and the fields of o, defaults filled in. old is
// nil on create.
func (r *Resource) Validate(o, old Object) field.ErrorList {
	errs := validateMeta(r, o, old)
	if r.validate != nil {
		errs = append(errs, r.validate(o, old)...)
	}
	return errs
}

// CheckKey refuses a key that no object of the resource can have, so that no
// implementation ever builds a path from it.
func (r *Resource) CheckKey(k Key) error {
	switch {
	case r.Namespaced && k.Namespace == "":
		return apierrors.NewBadRequest(fmt.Sprintf("%s %q: a namespace is needed", r.Kind, k.Name))
	case !r.Namespaced && k.Namespace != "":
		return apierrors.NewBadRequest(fmt.Sprintf("%s %q: the kind has no namespace, but %q was given", r.Kind, k.Name, k.Namespace))
	case k.Name == "" || strings.ContainsAny(k.Name, "/\x00") || strings.ContainsAny(k.Namespace, "/\x00"):
		return apierrors.NewBadRequest(fmt.Sprintf("%s %q: not a name", r.Kind, k))
	}
	return nil
}

// resources is the registry. Nothing changes it.
var resources = map[Kind]*Resource{
	KindNamespace: {
		GroupVersion: corev1.SchemeGroupVersion, Plural: "namespaces", ShortNames: []string{"ns"}, HasStatus: true,
		New:       newOf[corev1.Namespace],
		validName: apivalidation.ValidateNamespaceName, setDefaults: forType(defaultNamespace),
	},
	KindNode: {
		GroupVersion: corev1.SchemeGroupVersion, Plural: "nodes", ShortNames: []string{"no"}, HasStatus: true,
		New:      newOf[corev1.Node],
		validate: check(validateNode),
	},
	KindPod: {
		GroupVersion: corev1.SchemeGroupVersion, Plural: "pods", ShortNames: []string{"po"}, Namespaced: true, HasStatus: true,
		New:         newOf[corev1.Pod],
		setDefaults: forType(defaultPod), validate: check(validatePod),
	},
	KindService: {
		GroupVersion: corev1.SchemeGroupVersion, Plural: "services", ShortNames: []string{"svc"}, Namespaced: true, HasStatus: true,
		New:       newOf[corev1.Service],
		validName: apivalidation.NameIsDNS1035Label, setDefaults: forType(defaultService), validate: check(validateService),
	},
	KindEndpointSlice: {
		GroupVersion: discoveryv1.SchemeGroupVersion, Plural: "endpointslices", Namespaced: true,
		New:         newOf[discoveryv1.EndpointSlice],
		setDefaults: forType(defaultEndpointSlice), validate: check(validateEndpointSlice),
	},
	KindNetworkPolicy: {
		GroupVersion: networkingv1.SchemeGroupVersion, Plural: "networkpolicies", ShortNames: []string{"netpol"}, Namespaced: true,
		New:         newOf[networkingv1.NetworkPolicy],
		setDefaults: forType(defaultNetworkPolicy), validate: check(validateNetworkPolicy),
	},
	KindClusterNetworkPolicy: {
		GroupVersion: schema.GroupVersion(policyv1beta1.GroupVersion), Equivalent: []string{"v1alpha2"},
		Plural: "clusternetworkpolicies", ShortNames: []string{"cnp"}, HasStatus: true,
		New:      newOf[policyv1beta1.ClusterNetworkPolicy],
		validate: check(validateClusterNetworkPolicy),
	},
	KindEvent: {
		GroupVersion: corev1.SchemeGroupVersion, Plural: "events", ShortNames: []string{"ev"}, Namespaced: true,
		New: newOf[corev1.Event],
	},
	KindLease: {
		GroupVersion: coordinationv1.SchemeGroupVersion, Plural: "leases", Namespaced: true,
		New:      newOf[coordinationv1.Lease],
		validate: check(validateLease),
	},
	KindServiceCIDR: {
		GroupVersion: networkingv1.SchemeGroupVersion, Plural: "servicecidrs", HasStatus: true,
		New: newOf[networkingv1.ServiceCIDR],
	},
	KindDeployment: {
		GroupVersion: appsv1.SchemeGroupVersion, Plural: "deployments", ShortNames: []string{"deploy"}, Namespaced: true, HasStatus: true,
		New:         newOf[appsv1.Deployment],
		setDefaults: forType(defaultDeployment), validate: check(validateDeployment),
	},
	KindVPC: {
		GroupVersion: v1alpha1.GroupVersion, Plural: "vpcs", HasStatus: true,
		New:         newOf[v1alpha1.VPC],
		setDefaults: forType(v1alpha1.DefaultVPC), validate: check(v1alpha1.ValidateVPC),
	},
	KindSubnet: {
		GroupVersion: v1alpha1.GroupVersion, Plural: "subnets", ShortNames: []string{"sn"}, HasStatus: true,
		New:         newOf[v1alpha1.Subnet],
		setDefaults: forType(v1alpha1.DefaultSubnet), validate: check(v1alpha1.ValidateSubnet),
	},
	KindIPBlock: {
		GroupVersion: v1alpha1.GroupVersion, Plural: "ipblocks", ShortNames: []string{"ipb"},
		New:      newOf[v1alpha1.IPBlock],
		validate: check(v1alpha1.ValidateIPBlock),
	},
	KindNodeNetwork: {
		GroupVersion: v1alpha1.GroupVersion, Plural: "nodenetworks", ShortNames: []string{"nn"}, HasStatus: true,
		New:      newOf[v1alpha1.NodeNetwork],
		validate: check(v1alpha1.ValidateNodeNetwork),
	},
	KindNetNamespace: {
		GroupVersion: v1alpha1.GroupVersion, Plural: "netnamespaces", ShortNames: []string{"netns"},
		New:      newOf[v1alpha1.NetNamespace],
		validate: check(v1alpha1.ValidateNetNamespace),
	},
}

// pointerTo says that P is *T and an Object: what newOf, forType and check need
// to turn functions on typed objects into functions on any.
type pointerTo[T any] interface {
	*T
	Object
}

func newOf[T any, P pointerTo[T]]() Object { return P(new(T)) }

func forType[P Object](f func(P)) func(Object) {
	return func(o Object) { f(o.(P)) }
}

func check[P Object](f func(o, old P) field.ErrorList) func(o, old Object) field.ErrorList {
	return func(o, old Object) field.ErrorList {
		var before P
		if old != nil {
			before = old.(P)
		}
		return f(o.(P), before)
	}
}

// Kinds lists every kind, sorted.
func Kinds() []Kind { return slices.Sorted(maps.Keys(resources)) }

// Lookup finds the resource of a kind. An unknown kind is a BadRequest.
func Lookup(kind Kind) (*Resource, error) {
	r, ok := resources[kind]
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("kind %q is not one that Fairlead knows: %s", kind, joinKinds()))
	}
	out := *r
	out.Kind = kind
	if out.validName == nil {
		out.validName = apivalidation.NameIsDNSSubdomain
	}
	return &out, nil
}

// LookupObject finds the resource of an object by its Go type. An object whose
// apiVersion and kind say something else is a BadRequest.
func LookupObject(o Object) (*Resource, error) {
	kind, err := KindOf(o)
	if err != nil {
		return nil, err
	}
	r, err := Lookup(kind)
	if err != nil {
		return nil, err
	}
	gvk := o.GetObjectKind().GroupVersionKind()
	if !gvk.Empty() && gvk != r.GroupVersionKind() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s %q: apiVersion %s, kind %s does not fit, want %s", kind, KeyOf(o), gvk.GroupVersion(), gvk.Kind, r.GroupVersion))
	}
	return r, nil
}

// KindOf is the kind of an object, by its Go type: typed objects need not carry
// apiVersion and kind.
func KindOf(o Object) (Kind, error) {
	t := reflect.TypeOf(o)
	if t == nil || t.Kind() != reflect.Pointer || reflect.ValueOf(o).IsNil() {
		return "", apierrors.NewBadRequest("no object was given")
	}
	kind := Kind(t.Elem().Name())
	if r, ok := resources[kind]; ok && reflect.TypeOf(r.New()) == t {
		return kind, nil
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("%T is not a kind that Fairlead knows: %s", o, joinKinds()))
}

// ParseKind reads what a person types: a kind, its plural, or a short name, in
// any case ("po", "pods", "Pod", "netpol", "nn").
func ParseKind(s string) (Kind, error) {
	word := strings.ToLower(strings.TrimSpace(s))
	for _, kind := range Kinds() {
		r := resources[kind]
		if word == strings.ToLower(string(kind)) || word == r.Plural || slices.Contains(r.ShortNames, word) ||
			word == r.Plural+"."+r.GroupVersion.Group {
			return kind, nil
		}
	}
	return "", fmt.Errorf("unknown kind %q: one of %s", s, joinKinds())
}

func joinKinds() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// CompareKeys orders by namespace, then by name.
func CompareKeys(a, b Key) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}
