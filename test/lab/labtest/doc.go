// Package labtest is the harness of the tests that run in a lab: the real agent,
// controller and CNI plugin, on nodes of namespaces, with real packets.
//
// A package of such tests has a TestMain that calls Main, starts labs with Up, or
// one for several tests with Shared, and tries things until a deadline with
// Eventually. A test's lab is taken down when the test ends; if the test has failed,
// the ends of the lab's logs are in its output. Without root, or without Fairlead's
// programs, the tests are skipped and say why.
//
// Nothing here is specific to a scenario, and nothing touches the host's own network
// namespace.
package labtest
