// Package journal keeps what a node's network did: for every pass that changed
// something, when, at which position of the datastore, which objects had changed,
// what was changed in the kernel, what failed, and what somebody else had changed.
//
// The journal is bounded: two files of JSON lines in the node's state directory,
// the older one dropped when the newer is full. It survives a restart of the
// agent; a line that a crash tore is skipped. Writing to it never fails a pass:
// a full disk costs history, not packets.
package journal
