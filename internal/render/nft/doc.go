// Package nft renders an intent as the one nftables table of ours: spoofed
// sources, VPC and tenant separation, policies, packet marks and source NAT.
//
// The cost of a packet does not grow with pods, nodes, VPCs or policies: a port is
// found in a verdict map by its interface, addresses in sets, and only the first
// packet of a flow is judged. docs/plane-linux.md explains every chain. The package is
// pure: the same intent gives the same table.
package nft
