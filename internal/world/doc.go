// Package world holds the cluster as plain, immutable Go values: what the
// datastore says (nodes, namespaces, pods, VPCs, subnets, blocks, policies, …)
// and what only this node knows (its attachments and tunnel addresses).
//
// A Snapshot never changes once it is made; successive snapshots share
// structure, so that a change of one pod among 50,000 copies a few dozen
// pointers. Diff of two tables costs what differs, not what they hold.
//
// Store is the one mutable value of the package: it takes Changes, bumps the
// revision and wakes whoever waits. Objects are carried as written: selectors
// are not parsed, defaults are not filled in, and nil differs from empty, because
// decide and oracle must read them independently.
//
// The package does no I/O, reads no clock and starts no goroutine.
package world
