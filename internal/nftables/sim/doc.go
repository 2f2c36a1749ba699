// Package sim walks packets through nftables values as the kernel would: which
// rules a packet meets, what they do to it, and where its way ends.
//
// The package owns two walks:
//   - Ruleset.Hook walks the base chains of one hook. What lies outside of a table
//     (conntrack, the NAT engine, the routing table) is asked of a Host.
//   - Node is a Host of its own: it keeps flows as conntrack does and walks a packet
//     all the way through one machine, from prerouting or output to where it is
//     delivered or leaves.
//
// The semantics are those of the kernel (net/netfilter/nf_tables_core.c, nft_meta.c,
// nft_ct.c, nft_lookup.c, nf_nat_core.c, nf_conntrack_core.c), and a test compares them
// with a real kernel's on random tables:
//   - Base chains of a hook run by priority. "accept" ends its base chain and the next
//     one runs; "drop" is final.
//   - A statement that does not hold, reads what the packet does not have, or looks up
//     a key that a map lacks, ends its rule; the next rule runs.
//   - A base chain without a decision, or one that returns, has its policy.
//   - Chains of type nat all run at the hook's one priority of NAT (dstnat in prerouting
//     and output, srcnat in postrouting and input), in the order of their own priorities,
//     for the first packet of a tracked flow only, and until one of them has chosen an address.
//   - Before conntrack (priorities below -200 in prerouting and output) there is no
//     conntrack entry: "ct state" is invalid, other fields of ct do not match.
//
// It simulates the table and not the machine: checksums, fragments, lengths, time-outs and the
// states of a TCP or SCTP connection behind its first packet do not exist here.
//
// The package is pure: no I/O, no clock, no log. No table and no packet makes it panic;
// what the kernel would have refused (a missing chain, a missing set, a loop) is an error.
package sim
