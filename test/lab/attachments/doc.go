// Package attachments tests, in a lab, what happens to pod interfaces and their
// addresses when runtimes, disks, nodes and agents misbehave: the scenarios A1 to
// A12, and the CNI conformance suite against Fairlead.
package attachments
