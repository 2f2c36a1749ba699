// Package conntrack makes the kernel forget flows that it remembers in a way that is no
// longer right: an entry is made by a flow's first packet, and what was decided then,
// such as a translation of addresses, is never decided again.
//
// It deletes entries of one network namespace and does nothing else: it changes none,
// watches nothing, and keeps no state.
package conntrack
