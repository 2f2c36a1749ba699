// Package lease elects one leader among several processes by a Lease object in
// the datastore, so that it works on every datastore alike.
//
// A candidate takes the Lease when nobody holds it, when its holder gave it up,
// or when it has not changed for its duration as this candidate's own clock
// measured it: clocks of different machines are never compared. The leader
// renews; if it cannot for RenewDeadline, which is shorter than the duration, it
// cancels its work and waits for the work's end, before anybody else may think
// that the Lease has run out. It never works as leader without having seen its
// own name in the datastore.
package lease
