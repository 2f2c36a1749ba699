// Package controller runs fairlead-controller: it follows the datastore, stands for
// election, and, while it leads, carries out what package plan decides.
//
// It owns the loop and the writing, and decides nothing:
//
//   - Only the leader writes. Its context ends before another may lead, and every
//     write has that context; a leader whose loop makes no progress gives up, and the
//     process ends with an error, because nothing else is certain to stop it.
//   - It works on any datastore.Store, and remembers nothing that matters but in there:
//     a restart at any point goes on from the world as it is.
//   - Writes are bounded in rate. One that failed is tried again with growing pauses,
//     from the world as it then is; one that succeeded is not repeated before the watch
//     has shown it.
//   - Before anything is removed, the datastore itself is asked whether what it depended
//     on is really gone.
//   - A datastore that is away is waited for.
//
// It never writes an object of a living node but the condition NetworkUnavailable of its
// Node, and touches no kernel.
package controller
