// Package conformance is a suite of cases that every CNI plugin which gives a
// container an interface must pass (CNI specification 1.1.0), for any plugin and
// any network configuration list. It drives the plugin as a runtime does, through
// libcni, and where libcni would refuse first, by executing it directly; then it
// looks with netlink at what is really there, and sends packets.
//
// From the command line:
//
//	go test ./test/conformance/cni -args -plugin-dir DIR[:DIR…] -conflist FILE
//
// and from a test:
//
//	conformance.Run(t, conformance.Target{PluginDirs: dirs, Conflist: list, RunIn: node.Run})
//
// What a plugin does not claim is skipped with the reason, never passed: versions
// and the commands that came with them by the plugin's own answer to VERSION, the
// rest by Target.NotClaimed. What cannot be observed from outside, which addresses
// a plugin holds, is checked if Target.Held tells and logged as unobserved if not.
//
// The suite never works in the namespace of the process that runs it: everything
// happens where Target.RunIn leads, by default in a fresh node of its own (network
// and mount namespace), of which nothing is left.
package conformance
