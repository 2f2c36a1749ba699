// Package policy decides which flows the policies of the cluster let the pods of one
// node have: NetworkPolicies and ClusterNetworkPolicies become ordered lists of rules
// over sets of addresses, one list for each direction of a port, shared by all ports
// that have the same.
//
// Tiers are asked in the order Admin, NetworkPolicy, Baseline; what none decides is
// allowed. VPCs and tenants are no matter of these lists: a packet bears its VNI, and
// planes cut what crosses before a list is asked. The sets of a VPC hold the addresses
// of its own pods only.
//
// Who has an address is read from the blocks, which know it before the kubelet does;
// where no block says anything, a pod's status counts. Pods in the host's network have
// no address of their own, and no selector selects them.
//
// What a policy may mean:
//
//   - What cannot be read, or asks for labels that are not known (yet), makes an
//     answer "maybe". Rules that allow need a yes. NetworkPolicies isolate on a maybe,
//     rules that deny deny on a maybe, and a Pass on a maybe is a Deny.
//   - In a NetworkPolicy the peer or the port that cannot be read matches nothing; in a
//     ClusterNetworkPolicy the whole rule cannot be read then, and an Accept matches
//     nothing, all else denies everything.
//   - Equal priorities are asked in the order of the names.
//
// Each fault is a Problem that names the policy, the field with the rule's index, and
// what it means.
//
// Decide is total and deterministic. The State that it returns is a cache for the next
// call and nothing more: it is immutable, what did not change is shared, and the result
// equals one from scratch. The package does no I/O, reads no clock and writes no log.
package policy
