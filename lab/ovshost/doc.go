// Package ovshost is one private Open vSwitch: where its files are, how its empty
// database is made, and the commands that run its two daemons. A node of the lab
// has one; so do tests.
//
// It starts nothing: whoever owns the processes does. Nothing of the machine's own
// Open vSwitch is read or written, only its programs and its schema are used.
package ovshost
