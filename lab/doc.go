// Package lab makes a cluster's network out of namespaces on one machine: nodes
// with a real agent each, pods attached by the real CNI plugin, segments with
// routers between them, an outside host, etcd and the controller. It needs root and
// nothing else, and docs/lab.md is its manual.
//
// Up starts a supervisor process, which keeps the lab until Down; Open finds a lab
// that is running. Everything of a lab lives in namespaces of its own and in one
// directory, so that nothing of it can be seen in the host's network namespace, and
// nothing is left when it is down.
//
// The supervisor and the other processes of a lab are this same program: whoever
// links this package calls Main first thing in main.
//
// Below it: topology (addresses), netspace (namespaces), fabric (wires), process
// (children), probe (server and prober), machine (a node), cluster (scheduler and
// statuses), supervisor (the process that keeps a lab), spec (values), rpc.
package lab
