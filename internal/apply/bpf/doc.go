// Package bpf drives the tc programs of a node: it loads them, attaches them, and
// keeps their maps equal to what render/linux computed.
//
// port_in, on the node's end of each pod's link, holds what the pod sends against the
// addresses that it has, and puts the tenant's VNI and the bit "checked" into the mark.
// wire_out gives a packet that leaves by the tunnel device its tunnel key: the VNI from
// the mark, the outer destination and the inner destination MAC from the longest prefix
// that matches. wire_in holds a packet from the wire against the contract (docs/wire.md):
// known VNI, an inner source that is at the very node that sent it, an inner destination
// that is here; then it sets the mark as port_in does. The filter drops what comes from a
// port or the tunnel and is not marked.
//
// The flow cache (c/flow.h) is in the same programs, with port_out on the way into pods:
// packets of flows that the filter has let be learned pass by the kernel's own path.
// Everything that is learned is of a generation, which Invalidate ends.
//
// Maps, and the tunnel device's attachments, are pinned below one directory of a BPF file
// system, so that traffic goes on while no agent runs and the next agent adopts what it
// finds. Programs on ports need no pin: they live as long as the link. The directory
// carries the version of the maps' layout. The tunnel's programs are attached by tcx where
// the kernel has that (6.6), else, and on ports always, as direct-action filters of a
// clsact qdisc.
//
// The package decides nothing: what is where, and what a port may send, is its caller's
// to say.
package bpf
