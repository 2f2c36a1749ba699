// Package attach owns the attachments of one node: which container interface has
// which addresses, on disk and in the world.
//
// One JSON file per attachment is the node's truth. An address counts as given
// once the record that names it is on disk, and a runtime hears of an attachment
// only when the plane has applied it:
//
//	ADD  wait for the pod → allocate → record (fsync) → world → plane applied → answer
//	DEL  bury the record (rename, fsync) → withdraw from the world → address rests → answer
//	     later, by Run: plane has dropped it → address may be given again → grave removed
//
// Whatever step the process dies at, the disk says what to do: nothing (the
// address was never written down), an attachment (Restore brings it back, a
// retried ADD gets the same answer), or a grave (the address rests again, nothing
// else is left to do). DEL and collection need the record alone, never the
// datastore.
//
// A file is named LINK_SUBNET_ADDRESS[_ADDRESS].SUFFIX, where LINK is the name of
// the host's end of the link (a hash of container and interface) and the suffix says
// what the file is: ".json" an attachment, ".gone" a grave, ".torn" a record that
// could not be read and was set aside. The addresses are in the name so that a
// record whose content is lost still keeps them from being given twice.
//
// The package promises: two calls for the same container never overlap, calls for
// different ones never wait for each other; a DEL ends an ADD that is under way;
// a failed ADD leaves nothing. It never removes an attachment by its own decision
// unless the attachment's network namespace is dead, never writes outside of its
// directory, and knows neither Kubernetes nor the kernel: it sees both through the
// interfaces in contract.go.
package attach
