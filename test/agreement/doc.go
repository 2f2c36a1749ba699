// Package agreement holds what the Linux plane renders against the oracle: worlds are
// compiled for every node (decide), rendered (render/nft, render/linux, render/flows),
// and packets are walked through all of it with the nftables simulator; what becomes
// of each must be one of the outcomes that the oracle permits.
//
// Cluster is that walk. It knows of the kernel what lies between the tables of two
// nodes: routes, and the tunnel programs by the wire contract (docs/wire.md). Nothing of
// it decides anything by itself, and it needs no root.
//
// The package is for tests.
package agreement
