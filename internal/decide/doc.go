// Package decide turns a world into an intent: what ONE node must do.
//
// Compile is total and deterministic. A bad object becomes a Problem that names
// it, and costs nothing else anything; no input makes it fail or panic; the result
// depends on the current world only, never on the order in which it came to be.
//
// The State that a Compile returns is a cache for the next one and nothing more:
// stages whose inputs are the same tables are not computed again, and the result
// equals a compile from scratch. The stage of policies, which almost every change
// reaches, looks at what the change concerns only. The intent shares its slices with
// the State and with later intents: whoever holds one must not change it.
//
// The stages, each a pure function in a package below or a file here:
//
//	tenancy    Namespaces, VPCs, NetNamespaces  → VPCs, VNIs
//	underlay   NodeNetworks, names of Nodes     → own addresses, Peers
//	subnets    Subnets, tenancy, underlay       → Subnets, NATs, AddressSets
//	routes     Blocks, subnets, underlay        → Routes, AddressSets
//	tunnels    TunnelAddresses, subnets         → Tunnels
//	ports      Attachments, tenancy, subnets    → Ports
//	tenants    Blocks, NodeNetworks, tenancy,   → AddressSets of isolated tenants
//	           routes
//	policies   both kinds of policies, Pods,    → RuleLists, the lists of Ports,
//	           Namespaces, Nodes, NodeNetworks,   AddressSets
//	           Blocks, underlay, routes, ports
//
// The package does no I/O, reads no clock and writes no log.
package decide
