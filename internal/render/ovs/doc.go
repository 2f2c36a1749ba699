// Package ovs renders an intent for Open vSwitch: the flows of the one bridge
// (Pipeline), the bridges and ports that OVSDB must hold, and what the host needs
// beside them (Host): links of pods, the addresses and routes of the host's own port,
// and a filter table that masquerades.
//
// layout.go is the one list of tables and registers; docs/pipeline-ovs.md explains
// them with real flows. Every flow bears the cookie of package claims, and a Comment
// that names the object of the intent that it came from.
//
// A flow refers to later tables only. So whoever adds flows from the last table to the
// first, and deletes them the other way round, at no time allows more than before or
// after, even if the change does not fit into one bundle. The tables of lists and their
// peers are an exception: a class keeps its number when it comes into other sets, so that
// a change of lists concerns few flows, and what the number means changes with those of
// the lists. Whatever changes there belongs into one bundle.
//
// The package is pure: the same intent gives the same flows, in whatever order its
// lists are. It never fails as a whole: what cannot be rendered becomes a Problem of
// that object, and everything else is rendered all the same.
package ovs
