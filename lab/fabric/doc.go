// Package fabric builds the wires of a lab: bridges, veth pairs, addresses, routes
// and the router between segments.
//
// The bridges are in the network namespace that the program itself runs in (a
// lab's supervisor has one of its own); hosts are attached by one end of a veth pair
// in theirs. It never touches a namespace that it was not given.
package fabric
