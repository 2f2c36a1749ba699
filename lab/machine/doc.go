// Package machine is one node of a lab, from the inside: process 1 of the node's
// pid namespace. It builds the node's view of the file system, sets up its network,
// owns the agent's process, and plays kubelet and container runtime: a sandbox
// namespace for every pod it is told to run, the CNI plugin called through libcni,
// the containers' commands, or the built-in probe server.
//
// It is told the complete list of the node's pods and reports what became of each,
// over HTTP with JSON on a unix socket that the lab's supervisor made (Client is
// the other end). It decides nothing about the cluster and knows no datastore.
//
// When process 1 ends, the kernel ends everything in the node: that is how power is
// lost. Nothing of a node outlives it but the directory on disk.
package machine
