// Package nftables holds the tables, chains, rules and sets of nf_tables as
// plain values. Renderers make them, the driver brings them into the kernel, a
// simulator can walk packets over them and people read them as text.
//
// The package owns the meaning of those values:
//   - Table.Validate says whether the kernel would take them, naming the chain,
//     rule or element that is wrong.
//   - Table.String prints exactly what "nft --stateless list table" (1.0.6)
//     prints for them, so that what the kernel holds can be compared with what
//     was meant. The text is canonical: elements are sorted the way nft sorts.
//   - Field says what a match reads, how wide it is and which protocol it
//     implies ("tcp dport" implies that the packet is TCP, just as in nft).
//
// Only the family inet exists here: it sees IPv4 and IPv6. There is no builder
// and no hidden state; values are written as literals and compared field by
// field. Names are those of nft, see nft(8).
//
// The package does no I/O and never looks at a host.
package nftables
