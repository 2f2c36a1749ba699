// Package openflowconn brings flows, groups and meters into one bridge of Open vSwitch
// over its management socket, in OpenFlow 1.5.
//
// Read gives what is installed and ours, by cookie and by ranges of numbers; Diff is
// what leads from there to what is desired; Commit makes it so. Nothing that bears
// another cookie is listed, changed or deleted; but two flows cannot have one table,
// priority and match, so a flow of ours replaces a foreign one that has exactly those.
//
// Commit sends flows and groups in bundles, ordered and atomic: of a bundle everything
// holds from one packet to the next, or nothing. What the switch refuses is named
// (RefusedError). A bundle has a size (Config.MaxBundle), for the switch forwards
// nothing new while it takes one up; a larger change becomes several bundles, each
// atomic, in an order in which what exists is never without what it refers to: groups
// and new or changed flows first, deletions last. Meters cannot be part of a bundle:
// they are made before and deleted after.
//
// A bundle can be handed over ahead (Prepare) of what it waits for, such as that the switch
// says that a port is there (AwaitPorts).
//
// While connected, the switch tells which flows of ours somebody else added, changed
// or removed (State.Touched), and that they did so to their own (State.Foreign). After a new connection (State.Connection) the switch may
// be a new process with empty tables: read again.
//
// Control speaks to a daemon's control socket, natively: ofproto/trace and the other
// commands of ovs-appctl(8).
//
// One goroutine, that of Run, owns the connection; two more per connection read and
// write, and end with it. Calls are served one after the other.
package openflowconn
