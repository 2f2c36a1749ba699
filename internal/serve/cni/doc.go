// Package cni is the agent's door for container runtimes: it answers what the CNI
// plugin (cmd/fairlead-cni) passes on over a unix socket, by the CNI specification
// 1.1.0 and, for configurations that say so, its versions back to 0.2.0.
//
// It parses and validates what the runtime sent, calls package attach, and writes
// the answer: a result in the version that was asked for, or a CNI error with a
// code, one line that says what to do, and details. It keeps no state; whatever
// it is sent, it answers, and never panics.
//
// The socket is root's alone: mode 0600, and every peer's credentials are checked.
// The socket of an agent that still lives is never taken away from it.
//
// DEL is lenient where ADD is strict: a runtime must be able to get rid of a
// container under a configuration that ADD would refuse.
package cni
