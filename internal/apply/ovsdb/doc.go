// Package ovsdb is a client of an OVSDB server (RFC 7047, and the monitors of
// ovsdb-server(7)) on a unix socket.
//
// A Client keeps one connection, and a replica of the tables and columns that it was
// asked to watch. The replica is published as immutable Snapshots; whoever waits
// gets the newest, not each one. On every reconnect the replica is dropped and read
// afresh: a Snapshot never mixes two connections, and one that is not Synced is empty.
//
// Transact sends a transaction and returns its results or a typed error. An
// operation that the server refused is an *OpError; ErrDisconnected says that
// nothing was sent, ErrUncertain that the connection broke before the answer, so
// that the caller must look at the next Snapshot to know what holds.
//
// One goroutine, that of Run, owns the connection and the replica; one more per
// connection reads, and ends with it. A server that says nothing for the probe
// interval is taken for dead, also one that is frozen and still accepts
// connections. Memory is bounded: a message, the rows of the replica and the
// transactions under way have limits.
//
// The package decides nothing about what is in the database; package switchdb
// does for the database of Open vSwitch.
package ovsdb
