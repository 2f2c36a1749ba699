// Package memplane is a data plane in memory: it holds what it was told to make,
// and carries packets by it. Several planes on one Fabric are a cluster that needs
// no root: a test asks whether a packet of this port would reach that one, and how
// it would look there.
//
// It follows the wire contract to the letter (docs/wire.md): what arrives through
// the tunnel is delivered only if the outer source is a known node, the VNI belongs
// to the VPC in which the packet is delivered, and the inner source is at that very
// node. It keeps conversations as conntrack does, refuses a TCP flow that begins in
// its middle, and masquerades.
//
// Failures are injected object by object (Fail), damage by outsiders as well
// (Damage). Nothing here does I/O or starts a goroutine; a Fabric and its planes
// are safe for concurrent use.
package memplane
