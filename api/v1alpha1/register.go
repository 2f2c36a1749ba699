package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of every type in this package.
var GroupVersion = schema.GroupVersion{Group: "fairlead.dev", Version: "v1alpha1"}

// AddToScheme registers the package's types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VPC{}, &VPCList{}, &Subnet{}, &SubnetList{}, &IPBlock{}, &IPBlockList{},
		&NodeNetwork{}, &NodeNetworkList{}, &NetNamespace{}, &NetNamespaceList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
