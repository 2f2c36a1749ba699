// Package packet holds the smallest words of the model: hardware addresses,
// VNIs, protocols, and the packet that the oracle and the simulators judge.
//
// It is the lowest package of the tree: values only, no I/O, and it imports
// nothing but the standard library.
package packet
