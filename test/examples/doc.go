// Package examples reads the worked policies of examples/policy: ordinary YAML, with
// what is expected of it in its comments. docs/policy.md prints some of them.
//
// Its tests hold every expectation against the oracle and against compiled intents,
// and the documentation against the files. test/lab/policy reads the same files and
// asks a lab with real packets.
package examples
