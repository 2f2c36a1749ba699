// Package attacks holds the tests in which somebody attacks: root inside of a pod,
// or a stranger on the underlay. Each forges packets or input by hand and throws
// them at the real agents, controller and CNI plugin of a lab; docs/security.md says
// what is promised.
//
// A forged packet bears a token. What must not be delivered must not be seen where
// it was aimed at, a control packet that is sent behind it by the same socket must
// be, and the counter of the reason must rise: so a test cannot pass because nothing
// was sent.
package attacks
