// Package oracle is the slow, obvious evaluator of the model: what may happen to
// this packet, and why. It reads the same world as package decide with other code
// (it must not import it), so that the two can be held against each other: an
// oracle that shares code with what it judges proves nothing.
//
// Read makes a Model of a world, Judge answers for one packet. The answer is the
// set of permitted outcomes; whatever a plane does must be one of them.
//
// The rules, in the order in which a packet meets them:
//
//  1. source       A pod sends with its own addresses only, a node with its
//     underlay and tunnel addresses. What has no network sends nothing.
//  2. destination  An address of a Subnet in use belongs to whom its block, or the
//     borrower of a lent address, says. A node's underlay address is the node.
//     All else is outside. Nobody holds loopback, link-local or multicast.
//  3. vpc          No packet crosses a VPC.
//  4. tenant       In a VPC with isolation Tenant pods of different tenants do not
//     reach each other, unless one is global. Nodes and the outside have no
//     tenant.
//  5. egress       The policies of the pod that sends, tier after tier: Admin
//     ClusterNetworkPolicies, NetworkPolicies, Baseline ones. Nothing that is
//     allowed here crosses what was cut above. The addresses are the client's own and
//     the endpoint's: after a Service's address was replaced, before masquerading.
//  6. flow         A TCP flow begins with a SYN; what belongs to a known flow goes
//     with it, unless the flow itself is not allowed any more. A node's packets to
//     pods are allowed by origin.
//  7. nat          natOutgoing: what a pod sends to the outside or to another node
//     bears its node's address; pod to pod and pod to own node are unchanged.
//  8. path         Between nodes: the tunnel needs an address family in common,
//     the plain route one segment. What enters the tunnel is of the sending
//     node's blocks: packets of the node itself or from outside bear its tunnel
//     address there.
//  9. ingress      The policies of the pod that receives, of the packet as it comes.
//     What its own node sends is allowed by origin.
//  10. delivery    Finished pods listen no more.
//
// Policies are read as the documentation of their API types says, which the code
// quotes. What that leaves open, or what the API would refuse, means here:
//
//   - Of what cannot be read, or asks for the labels of a pod that the world does not
//     know, the answer is maybe. A NetworkPolicy's rule and an Accept need a yes; a
//     NetworkPolicy isolates, and a Deny denies, on a maybe too; a Pass on a maybe is a
//     Deny. So nothing ever allows more than what was understood.
//   - In a ClusterNetworkPolicy a rule is unreadable as a whole, whatever part of it
//     is; in a NetworkPolicy, which only allows, the peer or port is.
//   - Equal priorities: the order is that of the names.
//   - A pod in the host's network is its node: no selector chooses it, ipBlocks,
//     networks and nodes do.
//   - What a pod sends to itself is nobody's to judge: it does not leave the pod.
//   - ICMP and other protocols match rules that name no ports, and no others.
//   - A flow whose first packet would be refused now is cut in both directions, its
//     ICMP errors included.
//
// The package is pure: no I/O, no clock, no log.
package oracle
