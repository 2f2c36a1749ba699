// Package tenancy decides which VPC each namespace is in, which VPCs are usable,
// and which VNI a pod's packets bear.
//
// A namespace is in the oldest VPC (creation time, then name) whose selector
// matches it, otherwise in "default". A VPC is usable once it has a VNI that no
// older VPC has. In a VPC with isolation Tenant the VNI of a namespace's
// NetNamespace names its tenant; a VNI belongs to exactly one VPC, the oldest that
// uses it. What has no tenant of its own is never given a wider reach: it has none.
//
// The package is a pure function of three tables of the world.
package tenancy
