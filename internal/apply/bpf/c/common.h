// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//
// What all programs share: marks, verdicts, reasons of drops.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// internal/claims: the VNI lies around kube-proxy's two bits of the mark.
#define MARK_VNI_MASK 0x03ff3fffU
#define MARK_OF(vni) (((vni) & 0x3fffU) | (((vni) & 0xffc000U) << 2))
#define VNI_OF(mark) (((mark) & 0x3fffU) | (((mark) >> 2) & 0xffc000U))
#define MARK_CHECKED (1U << 26)
#define MARK_TUNNEL (1U << 27)
#define MARK_LEARN (1U << 28)
#define MARK_TRY_SHIFT 29
#define MARK_TRY_MASK (3U << MARK_TRY_SHIFT)
#define MARK_OURS (MARK_VNI_MASK | MARK_CHECKED | MARK_TUNNEL | MARK_LEARN | MARK_TRY_MASK)

// TCX_NEXT and TC_ACT_UNSPEC, TCX_DROP and TC_ACT_SHOT are the same numbers.
#define NEXT (-1)
#define DROP 2

// Why a packet was dropped: the indices of drops. Keep in step with wire.go.
enum reason {
	OUT_MALFORMED,   // not an IP packet, or an IPv4 address in IPv6
	OUT_NO_VNI,      // no VNI in the mark, or one that belongs to no VPC
	OUT_NO_ROUTE,    // no node has the destination
	OUT_LOCAL,       // the destination is on this node and has no port
	IN_MALFORMED,    // not an IP packet, an IPv4 address in IPv6, or no tunnel key
	IN_UNKNOWN_VNI,  // the VNI belongs to no VPC
	IN_BAD_SOURCE,   // the inner source is not at the node that sent the packet
	IN_NOT_LOCAL,    // the inner destination is not on this node
	PORT_UNKNOWN,    // the link is no port, or one that is about to go
	PORT_MALFORMED,  // an IP packet without the whole of its header
	PORT_SPOOFED,    // the source is not an address of the port
	PORT_LOOPBACK,   // the destination is a loopback address
	PORT_GROUP,      // the destination is broadcast, multicast or reserved
	REASONS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} fl_drops SEC(".maps");

static __always_inline int drop(__u32 why)
{
	__u64 *n = bpf_map_lookup_elem(&fl_drops, &why);
	if (n)
		*n += 1;
	return DROP;
}
