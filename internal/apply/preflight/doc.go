// Package preflight finds out whether a host can be a node: it tries what an agent needs
// of the kernel, and looks at what stands in the way of the network that is planned.
//
// Each thing is one Check, which says what was found and, if it is not as it must be, what
// to do next. One that cannot be made for want of privileges is Missing too: nothing is
// guessed.
//
// It changes nothing: kernel features are tried in a network namespace that is thrown
// away. The kernel may load modules for it, as it would for the agent.
package preflight
