// Package intent is the only language between deciding and doing: what ONE node
// must do, as plain values that are sorted, validated and comparable.
//
// decide makes a Node, renderers turn it into the rules of a plane, and planes
// make it so. An intent is complete: what is not in it must not exist. Every
// Port, Route, NAT, AddressSet and Subnet names its VPC, and no AddressSet mixes
// VPCs.
//
// The package holds values and pure functions over them. It never does I/O.
package intent
