// Package apply defines what a data plane is. The packages below it are the
// planes (linuxplane, memplane, ovsplane) and the drivers that they use (rtnl,
// nft, netns, bpf, …). Drivers decide nothing: they make the kernel equal to
// values that a renderer computed.
//
// planetest holds the one contract suite that every plane passes: the same
// intents, the same packets, the same verdicts.
package apply
