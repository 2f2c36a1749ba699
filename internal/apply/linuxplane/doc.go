// Package linuxplane is the data plane of an ordinary Linux kernel: veth pairs,
// routes, one external-mode VXLAN device with two tc programs, and one nftables
// table. docs/plane-linux.md explains all of it.
//
// The Plane renders an intent (render/linux, render/nft) and brings the pieces
// into the kernel in an order in which no packet ever finds a gap:
//
//  1. links are made, with nothing on them that carries: host's ends down;
//     ports that must go are set down while their rules still stand
//  2. the nftables table: anti-spoofing, tenants, policy
//  3. the flows that the kernel knows already: what the rules deny now is cut, what
//     they allow again let through, what a port that is gone left is forgotten
//     (render/flows decides). An add-only Apply cuts nothing: its world may lack what
//     allows a flow
//  4. the tunnel programs' maps, and the programs on the tunnel device
//  5. addresses, neighbours, links up, routes
//  6. removals
//
// Where ports only join, 2 to 4 come first, and again, for what has come meanwhile, while
// the kernel changes links (Ahead).
//
// If the table or the programs cannot be had, links that are down stay down: a
// pod without its policy gets no network. What runs already goes on.
//
// The drivers below it do the work (rtnl, bpf, nft); the Plane only orders them
// and gathers what failed. Of its own it remembers which intent all flows obey, to look
// only at those that a change concerns, and how long flows from before the table may go
// on. A new Plane looks at all flows once. Close leaves the kernel as it is.
package linuxplane
