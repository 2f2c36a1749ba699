// Package addressing decides where addresses are: which Subnets are in use, which
// nodes are peers, and by which route this node reaches every block and every
// lent address.
//
//   - Of Subnets that overlap, in one VPC or in two, the oldest is used (creation
//     time, then name); the others are refused as a whole. So is a Subnet that
//     overlaps a segment of the nodes' own network, or whose transport does not
//     exist.
//   - A node is a peer for as long as its NodeNetwork exists, with or without its
//     Node: only the controller says when a node is gone.
//   - A block leads to its owner, a lent address to its borrower alone, whatever the
//     borrower says. Nothing leads to a node that is not known.
//   - Overlay with VXLAN always encapsulates. Overlay with CrossSubnet, and Routed,
//     send packets as they are to a peer in the same segment: both nodes' prefixes
//     of the destination's family contain the other's address. CrossSubnet
//     encapsulates to all others, Routed has no route to them. In a VPC that isolates
//     tenants every packet between nodes needs its VNI: CrossSubnet encapsulates
//     there always, and Routed Subnets are refused.
//
// Every function is a pure function of its arguments. What is wrong with an object
// becomes a Problem of that object and costs nothing else its route.
package addressing
