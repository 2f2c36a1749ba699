// Package rtnl drives links, addresses, neighbours, routes and sysctls of one
// node over rtnetlink: it makes the kernel equal to a linux.State.
//
// What is ours is known by its marks (internal/claims): links by their names,
// routes by their protocol, and addresses and permanent neighbours by the link
// that they are on. Everything else is foreign: it is never changed, and where it
// stands in the way the object fails with a sentence that names it.
//
// The Driver keeps a shadow of the namespace, so that an Apply of what is there
// already sends nothing at all. The shadow follows the kernel's notifications:
// the kernel queues the notification of a change before it answers whoever made
// it, so once the Driver holds its lock and has emptied the queue, whatever still
// differs from the shadow was done by somebody else. Then everything is read anew,
// the differences are reported as foreign, and the next Apply repairs them.
//
// A pod's own namespace is entered when its port is new, unfinished or damaged,
// once after a start, and on a refresh; never for a port that has not changed. The
// host's end of a pair is set up last: a pair whose host's end is down is
// unfinished, whatever crashed in between, and is taken up again where it stands. When
// Commit returns, new addresses receive: it waits for the local routes of IPv6, which
// the kernel makes later, a second at most.
//
// The Driver never decides what ought to be there, never waits for the slow end
// of a link's removal, and leaves the kernel as it is when it is closed.
package rtnl
