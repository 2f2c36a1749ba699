// Package flows says what a change of an intent means for the flows that a node's
// connection tracking knows already: their packets are not asked about any more, so a flow
// that is not allowed now has to be cut, and one that is allowed again, let through.
//
// A Change holds what can concern a flow: ports whose lists, tenant or VPC are others
// now, addresses that entered or left a set, ports that are gone. Usually that is
// nothing, and then no flow need be looked at. What a Change does not concern it keeps;
// judging more flows than it concerns would give the same result. Where a change can only
// make more allowed than before, it concerns the flows that were cut and no others.
//
// The rules are those of render/nft and of intent.Node.Judge, with one difference: where
// tenants are kept apart, rules read the sender's in the packet, and here the tenant of a
// pod elsewhere is whose set has its address. So a sender here learns too what only the
// receiver's node enforces.
//
// Addresses that ports of several VPCs have are nobody's here: flows bear no VPC.
//
// The package is pure: the same intents and flow give the same verdict.
package flows
