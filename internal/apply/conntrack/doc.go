// Package conntrack reads and changes the flows that the kernel remembers. An entry is
// made by a flow's first packet, and what was decided then, a verdict or a translation of
// addresses, is never decided again unless somebody changes the entry or deletes it.
//
// A Table walks the entries of one network namespace, in all zones, and asks its caller
// about each: to keep it, to change bits of its mark, or to delete it. Entries stream by:
// memory does not grow with their number. The package decides nothing, watches nothing,
// and keeps no state between walks.
package conntrack
