// Package nft renders an intent as the one nftables table of ours: spoofed
// sources, VPC and tenant separation, packet marks and source NAT.
//
// The cost of a packet does not grow with pods, nodes or VPCs: a port is found in
// a verdict map by its interface, addresses in sets. docs/plane-linux.md explains
// every chain. The package is pure: the same intent gives the same table.
package nft
