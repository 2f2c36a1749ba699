// Package plan decides what the controller writes. Make is a pure function of the
// world, of the objects whose status the controller writes, of what it remembers and
// of the time: it does no I/O, reads no clock, writes no log and changes none of its
// arguments. The same Input gives the same Plan, byte for byte.
//
// It owns: the VPC and the Subnet called "default", the VNIs of VPCs, NetNamespaces
// and their VNIs, the status of VPCs and Subnets, its own conditions of
// ClusterNetworkPolicies, the condition NetworkUnavailable of Nodes, the Events, and whatever a
// vanished node has left behind. What
// conditions and Events say about VPCs, Subnets and tenants is what packages
// decide/tenancy and decide/addressing decide; about policies, what the oracle reads.
//
// It promises:
//
//   - A world that is already as it should be gives a Plan without Writes.
//   - Nothing is removed because of a kind that has not been listed yet.
//   - No VNI is given twice within 24 hours, whoever has given it back and whether or
//     not a controller was there to see it (see Sequence).
//   - Nothing of a node is removed before its Node has been missing for the grace
//     period, and no block that holds an address of a living pod ever is: one whose
//     Pod object is bound to a Node that exists. Loans of living borrowers count.
//   - Events are one an object and reason, at most MaxEvents in all.
//
// Every removal names what must not exist in the datastore itself for it to happen:
// the one who carries a Plan out asks again, right before.
package plan
