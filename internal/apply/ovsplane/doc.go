// Package ovsplane is the data plane of Open vSwitch: one bridge whose OpenFlow pipeline
// joins pods, tunnel and host, the host's own port in it, and a small filter table on the
// host. docs/pipeline-ovs.md explains the pipeline.
//
// The Plane renders an intent (render/ovs) and brings the pieces in, in an order in which
// nothing carries before what watches over it is there:
//
//  1. links of pods are made, the host's ends down (rtnl); those of pods that go are set down
//  2. the host's filter table (nft)
//  3. bridges and ports in the database (ovsdb/switchdb), which says the ports' numbers
//  4. the host's port: addresses and permanent neighbours
//  5. flows, in atomic bundles (openflowconn), additions first
//  6. flows that connection tracking knows already follow policy: what is denied now is cut
//     in both directions by a flow that matches its original tuple
//  7. links up, routes, removals
//
// Of pods that come, 1 to 5 overlap: their ports ask for numbers, and the flows that name them
// are handed to the switch while the links are made, as a bundle of which nothing holds yet. It is committed as soon as the switch says that the ports are there with those numbers, and
// thrown away if it says otherwise.
//
// If table, bridge or flows cannot be had, links that are down stay down. What runs
// already goes on.
//
// Open vSwitch is a service of the host: it is never started, stopped or configured beyond
// the bridges that bear our mark. When it is away an Apply fails after some seconds with
// one sentence; when it is back, with empty tables, another database or other port
// numbers, Watch tells, and the next Apply makes everything anew.
//
// With the datapath in userspace ("netdev") the NIC becomes a port of a second bridge,
// fairlead-phy, beside the host's own stack: addresses and routes of the node stay where
// they are, so that a dead ovs-vswitchd does not cut the node off. Both get every frame
// from the NIC; tables see to it that each takes only its part. How tunnel packets leave is
// told to ovs-vswitchd per peer, from the host's own routes.
//
// Flows and ports of others in our bridges are never touched. An Audit names the flows that
// take packets from ours.
package ovsplane
