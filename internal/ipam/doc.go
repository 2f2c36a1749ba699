// Package ipam is the allocator of pod addresses: Subnet → blocks → addresses.
// It is a state machine without I/O, clock, logger or goroutine: the time is an
// argument, and the same calls give the same answers.
//
// A node allocates only from blocks it owns and from single addresses that
// another node has lent to it. Pool is the state of one node. It promises:
//
//   - An address that is allocated, lent away or resting is never given.
//   - Addresses outside the Subnet's CIDRs, the network and broadcast address of an
//     IPv4 CIDR, the all-zero address of an IPv6 CIDR (the subnet-router anycast
//     address, RFC 4291 section 2.6.1) and the Subnet's exclude list are never given.
//   - A freed address goes to the back of the queue. It rests for RestTime, and until
//     Dropped says that the data plane has forgotten it.
//   - Records are the truth: Restore takes what they say, reports two records that
//     claim one address and keeps the first of them.
//   - A block that was lost keeps its allocations and gives nothing any more.
//
// What makes loans safe is a protocol of two objects, each written by one side with
// compare-and-swap. The borrower lists an address (its NodeNetwork) and only then
// reads the block again; it uses the address if the block still lends it and does
// not recall it. The owner marks the address as recalled (its IPBlock) and only then
// reads the borrower's list; it takes the address back if it is not listed. Whatever
// the order, one of the two sees the other's mark. The tests of this package run the
// protocol against random schedules, crashes and partitions.
//
// The package never decides when to claim, lend or give up: that is the caller's.
package ipam
