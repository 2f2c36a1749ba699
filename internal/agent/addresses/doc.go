// Package addresses runs the allocator of one node (package ipam) against the
// datastore. It owns this node's IPBlock objects, its tunnel addresses, and the
// lists of wanted and borrowed addresses that the agent publishes in its NodeNetwork.
//
// Allocate answers from memory while the node's own blocks have room: the datastore
// may be away. Only a block that must be claimed, or an address that must be lent,
// makes it wait, and never longer than its context.
//
// Service promises:
//
//   - An address is used only from a block that the datastore gave to this node by
//     Create, or that another node has lent by the protocol of package ipam.
//   - What must not be forgotten is in the state file before the datastore hears of
//     it: an address before it is lent, a block before it is given up. A block that
//     was given up, or may have been, is not used again unless it is claimed anew.
//   - Allocations reach the node's IPBlocks within 10 ms while the datastore
//     answers, and are retried at least every 2 s while it does not. No caller waits for it.
//   - A block that is gone although its Node exists is claimed again with its
//     allocations; one that belongs to another node is lost: its allocations are kept
//     and reported, and it gives no more.
//   - Nothing that a durable record holds is ever freed by anything but Release.
//
// One goroutine writes all IPBlocks (Run); claims are made by the callers that need
// them, one at a time for each Subnet and family. Blocks, Subnets and other nodes'
// wishes are read from the world; whatever decides on ownership is read again from the
// datastore first.
//
// It never touches the kernel, never writes another node's objects, and never
// decides when an attachment ends.
package addresses
