// Package v1alpha1 holds the objects of the API group fairlead.dev: VPC, Subnet,
// IPBlock, NodeNetwork and NetNamespace, all cluster-scoped.
//
// The types are stored by the Kubernetes API server as custom resources and by
// etcd as JSON. The CRDs in deploy/crds and the deepcopy functions are generated
// from this package (make generate). Defaulting and validation are Go code
// beside the types (Default… and Validate…): the etcd datastore and the CLI call
// it, and the CEL rules in the markers say the same to an API server.
//
// +kubebuilder:object:generate=true
// +groupName=fairlead.dev
package v1alpha1
