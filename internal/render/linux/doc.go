// Package linux renders an intent into what the kernel of one node must hold
// besides packet filter rules: links, addresses, routes, neighbours and sysctls
// (State), and the contents of the tunnel programs' maps (Wire).
//
// It is pure: the same intent gives the same, sorted values. It never fails as a
// whole. What cannot be rendered becomes a Problem of that object, and everything
// else is rendered all the same. In particular no name that could reach outside
// of its place in the file system (an interface called "../../x" or "all") ever
// gets into a State.
package linux
