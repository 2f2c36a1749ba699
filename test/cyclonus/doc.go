// Package cyclonus holds the oracle, and what the Linux plane renders, walked by the
// simulator, against the published truth about network policy: every case of the cyclonus generator, whose own matcher is an evaluator
// written by others, and the conformance cases of ClusterNetworkPolicy.
//
// It has tests only.
package cyclonus
