// Package cyclonus holds the oracle, and what the Linux plane renders, walked by the
// simulator, against the published truth about network policy: every case of the cyclonus
// generator, whose own matcher is an evaluator written by others, and the conformance
// tests of ClusterNetworkPolicy. In a lab, real packets of both are held against the same
// truth: of some of the cases, and with FAIRLEAD_LONG=1 of all. What needs SCTP is
// skipped, and counted, where the kernel has none.
//
// It has tests only.
package cyclonus
