// Package forwarding tests, in a lab, that packets keep going where they should while
// agents, datastores, nodes and outsiders misbehave: the scenarios F1 to F10.
//
// Packets are real and are counted: flows (flows_test.go) say what was lost and what
// was answered by somebody else, captures (capture_test.go) say which way it went,
// and a monitor (monitor_test.go) says what was written to the kernel.
package forwarding
