// Package policy holds labs to the network policies in them with real packets: the
// scenarios P1 to P4, P7 and S6, a reboot without the datastore, the worked examples of
// examples/policy, and what the command line tool says of flows that run. What ought to happen is asked of the oracle, never
// written down twice.
//
// It has tests only, which need root and the built programs.
package policy
