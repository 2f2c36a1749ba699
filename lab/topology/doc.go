// Package topology plans the addresses of a lab: which segment every node is in,
// and the address of every node, router, outside host and of the control plane.
//
// It is pure: the same options give the same plan, and it does no I/O.
package topology
