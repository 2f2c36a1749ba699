// Package memplane is a data plane in memory: it holds what it was told to make,
// and carries packets by it. Several planes on one Fabric are a cluster that needs
// no root: a test asks whether a packet of this port would reach that one, and how
// it would look there.
//
// It follows the wire contract to the letter (docs/wire.md): what arrives through
// the tunnel is delivered only if the outer source is a known node, the VNI belongs
// to the VPC in which the packet is delivered, and the inner source is at that very
// node. It keeps conversations as conntrack does, once their first packet has arrived,
// refuses a TCP flow that begins in its middle, and masquerades.
//
// Of a new flow it asks the egress list of the port that sends, then, at the other
// node and with the addresses that the packet comes with, the ingress list of the
// port that receives; what the receiver's own node sends is not asked. Each later
// packet, either way, passes only as long as the first one still would.
//
// Failures are injected object by object (Fail), damage by outsiders as well
// (Damage). Nothing here does I/O or starts a goroutine; a Fabric and its planes
// are safe for concurrent use.
package memplane
