// Package cyclonus holds the oracle, and what the Linux plane renders, walked by the
// simulator, against the published truth about network policy: every case of the cyclonus
// generator, whose own matcher is an evaluator written by others, and the conformance
// cases of ClusterNetworkPolicy. In a lab, real packets of cyclonus's default cases are
// held against its matcher: some of them, and with FAIRLEAD_LONG=1 all.
//
// It has tests only.
package cyclonus
