// Package agreement holds what the planes render against the oracle: worlds are
// compiled for every node (decide), rendered, and packets are walked through all of it with
// simulators; what becomes of each must be one of the outcomes that the oracle permits.
//
// Cluster is that walk: for the Linux plane (render/nft, render/linux, render/flows, the
// nftables simulator), and for the one of Open vSwitch (render/ovs, the OpenFlow
// simulator, and the nftables simulator for the host beside the bridge). It knows of a
// node what lies around the tables: routes, links, and the tunnel by the wire contract
// (docs/wire.md). Nothing of it decides anything by itself, and it needs no root.
//
// The package is for tests.
package agreement
