// Package supervisor is the process that keeps a lab: process 1 of a pid namespace
// that holds everything of the lab, in a network namespace that is the lab's
// fabric, with a view of the mounts of its own.
//
// It builds the fabric, starts etcd and the controller in the control namespace and
// one process per node, stands in for Kubernetes' control plane (package cluster),
// and serves what people do to a lab over a unix socket in the lab's directory.
// When it ends, however it ends, the kernel ends all the rest: there is nothing to
// undo but the directory.
package supervisor
