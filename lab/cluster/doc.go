// Package cluster is what stands in for Kubernetes' control plane in a lab:
// scheduler, Deployments, the cascade of deletions, and the status of Nodes and
// Pods. It knows the cluster through a datastore.Store, and the nodes through an
// interface that takes the complete list of a node's pods.
//
// Decisions are a pure function of what the datastore holds (Plan); the Cluster
// watches, plans and writes, one round at a time. Names, placement and order are
// deterministic: the same objects give the same pods on the same nodes.
package cluster
