// Package nft brings one nftables table into the kernel over netlink and keeps
// it there.
//
// The caller hands over the complete table (Apply); the driver compares it with
// its shadow of what the kernel holds and sends the difference as one batch,
// which the kernel takes whole or not at all. Nothing is sent when nothing
// changed, also after a restart: the shadow is read back from the kernel at
// Open, rules are recognised by a digest of their content that lies beside the
// comment in their userdata, sets by their elements.
//
// Ownership. On kernels from 6.9 on the table bears the flags owner and persist:
// only the socket that the driver holds may change it ("nft flush ruleset" of
// somebody else leaves it alone), and it outlives the process. The next driver
// claims it by saying NEWTABLE with the same flags. A table that another live
// process owns is refused (OwnedError). Older kernels get a plain table; there
// the shadow is read again whenever the ruleset's generation has moved, and a
// batch says which generation it was made for, so that a foreign change is
// noticed and overwritten, never worked around.
//
// Everything in the table is ours: chains, rules and sets that were not asked
// for are removed. Other tables are never touched.
//
// The package never calls the nft program and starts no goroutine: Watch runs in
// its caller's. A Driver is safe for use by several goroutines.
package nft
