// Package bpf drives the two tc programs of the tunnel device: it loads them,
// attaches them, and keeps their maps equal to the wire that render/linux
// computed.
//
// wire_out gives a packet that leaves by the tunnel device its tunnel key: the
// VNI from the packet's mark, the outer destination and the inner destination MAC
// from the longest prefix that matches. wire_in holds a packet from the wire
// against the contract (docs/wire.md): known VNI, an inner source that is at the
// very node that sent it, an inner destination that is here; then it puts the VNI
// into the mark.
//
// Maps and attachments are pinned below one directory of a BPF file system, so
// that traffic goes on while no agent runs and the next agent adopts what it
// finds. The directory carries the version of the maps' layout. On kernels with
// tcx (6.6) the programs are tcx links; on older ones they are direct-action
// filters of a clsact qdisc.
//
// The package decides nothing: which prefixes are where is its caller's to say.
package bpf
