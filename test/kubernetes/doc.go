// Command kubernetes runs a real Kubernetes cluster on this machine: API server,
// controller manager, scheduler, etcd, kubelets, kube-proxies, containerd, runc and CoreDNS, all
// built from their Go modules, with images that are made here; no container engine, no
// registry (docs/kubernetes.md).
//
//	go run ./test/kubernetes up --nodes 3 --cni fairlead
//	go run ./test/kubernetes kubectl -- get pods -A
//	go run ./test/kubernetes down
//
// Every node and the control plane is a machine: a process 1 of ours in fresh pid, mount,
// uts, ipc and network namespaces, which starts the machine's daemons and starts them again
// when they end. One more is the fabric (bridges and a router), one the world outside.
// Nothing is in the host's own network namespace, nothing is mounted in the host's mount
// namespace, and what a node writes to /etc, /opt and /var stays in the node. "down" kills
// each machine's process 1, with which everything in it dies, and removes its cgroups and
// files.
//
// It imports nothing of k8s.io/kubernetes: it compiles as fast as any other package here.
package main
