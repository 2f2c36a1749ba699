// Package datastore is the contract between Fairlead and the place where its
// objects live: the Kubernetes API, or etcd. The packages below it implement the
// contract, and datastoretest holds the one suite that all of them pass.
//
// The contract is that of the Kubernetes API, cut down to what Fairlead needs:
// typed objects, an opaque resourceVersion, compare-and-swap updates, and list
// plus watch. Errors are those of k8s.io/apimachinery/pkg/api/errors, so that
// callers branch with IsNotFound, IsAlreadyExists, IsConflict, IsInvalid,
// IsResourceExpired and IsServiceUnavailable on every implementation.
//
// An implementation that is not an API server does an API server's work itself,
// in the Admission of this package: strict decoding, defaults, validation,
// uid, generation, creationTimestamp, the kubernetes.io/metadata.name label of
// Namespaces, and separate status updates.
package datastore
