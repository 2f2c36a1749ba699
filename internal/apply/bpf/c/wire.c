// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//
// The two tc programs of the tunnel device (docs/wire.md). One VXLAN device in
// external mode serves every VPC and every peer: wire_out gives each packet its
// tunnel key, wire_in holds each packet from the wire against the contract.

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
	REASONS,
};

struct place_key {
	__u32 prefixlen;  // counts vpc and addr
	__be32 vpc;
	__u8 addr[16];  // IPv4 as ::ffff:a.b.c.d
};

struct place {
	__u8 outer[16];  // underlay address of the node, zero for this node
	__u8 mac[6];     // of its tunnel device
	__u8 local;
	__u8 outer6;  // outer is an IPv6 address
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct place_key);
	__type(value, struct place);
} fl_places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);    // VNI
	__type(value, __u32);  // the VPC's own VNI
} fl_vnis SEC(".maps");

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

// mapped says whether an address is ::ffff:a.b.c.d, by which the maps know IPv4. On
// no wire may an IPv6 packet bear one: it would pass for an IPv4 pod.
static __always_inline int mapped(const __u8 *a)
{
	__u32 w[3];
	__builtin_memcpy(w, a, 12);
	return w[0] == 0 && w[1] == 0 && w[2] == bpf_htonl(0xffff);
}

// addresses reads the inner source and destination as 16-byte addresses.
static __always_inline int addresses(struct __sk_buff *skb, __u8 *src, __u8 *dst)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u32 pair[2];
		if (bpf_skb_load_bytes(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, saddr), pair, 8) < 0)
			return -1;
		src[10] = src[11] = dst[10] = dst[11] = 0xff;
		__builtin_memcpy(src + 12, &pair[0], 4);
		__builtin_memcpy(dst + 12, &pair[1], 4);
		return 0;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6hdr, saddr), src, 16) < 0)
			return -1;
		if (bpf_skb_load_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6hdr, daddr), dst, 16) < 0)
			return -1;
		return mapped(src) || mapped(dst) ? -1 : 0;
	}
	return -1;
}

SEC("tc")
int wire_out(struct __sk_buff *skb)
{
	struct place_key src = {}, dst = {};
	if (addresses(skb, src.addr, dst.addr) < 0)
		return drop(OUT_MALFORMED);

	__u32 vni = VNI_OF(skb->mark);
	__u32 *vpc = bpf_map_lookup_elem(&fl_vnis, &vni);
	if (!vpc)
		return drop(OUT_NO_VNI);

	dst.prefixlen = 8 * (sizeof(dst.vpc) + sizeof(dst.addr));
	dst.vpc = bpf_htonl(*vpc);
	struct place *to = bpf_map_lookup_elem(&fl_places, &dst);
	if (!to)
		return drop(OUT_NO_ROUTE);
	if (to->local)
		return drop(OUT_LOCAL);

	struct bpf_tunnel_key key = {.tunnel_id = vni, .tunnel_ttl = 64};
	__u64 flags = BPF_F_DONT_FRAGMENT;
	if (to->outer6) {
		__builtin_memcpy(key.remote_ipv6, to->outer, 16);
		flags |= BPF_F_TUNINFO_IPV6;
	} else {
		__u32 remote;
		__builtin_memcpy(&remote, to->outer + 12, 4);
		key.remote_ipv4 = bpf_ntohl(remote);
		// RFC 7348 section 5: the outer UDP checksum should be zero over IPv4.
		flags |= BPF_F_ZERO_CSUM_TX;
	}
	__u8 mac[6];
	__builtin_memcpy(mac, to->mac, 6);
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), flags) < 0 ||
	    bpf_skb_store_bytes(skb, 0, mac, 6, 0) < 0)
		return drop(OUT_MALFORMED);
	return NEXT;
}

SEC("tc")
int wire_in(struct __sk_buff *skb)
{
	__u8 outer[16] = {};
	__u8 outer6 = 0;
	struct bpf_tunnel_key key = {};
	if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0) == 0) {
		__u32 remote = bpf_htonl(key.remote_ipv4);
		outer[10] = outer[11] = 0xff;
		__builtin_memcpy(outer + 12, &remote, 4);
	} else if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), BPF_F_TUNINFO_IPV6) == 0) {
		__builtin_memcpy(outer, key.remote_ipv6, 16);
		outer6 = 1;
	} else {
		return drop(IN_MALFORMED);
	}

	struct place_key src = {}, dst = {};
	if (addresses(skb, src.addr, dst.addr) < 0)
		return drop(IN_MALFORMED);

	__u32 vni = key.tunnel_id;
	__u32 *vpc = bpf_map_lookup_elem(&fl_vnis, &vni);
	if (!vpc)
		return drop(IN_UNKNOWN_VNI);

	src.prefixlen = dst.prefixlen = 8 * (sizeof(dst.vpc) + sizeof(dst.addr));
	src.vpc = dst.vpc = bpf_htonl(*vpc);
	struct place *from = bpf_map_lookup_elem(&fl_places, &src);
	if (!from || from->local || from->outer6 != outer6)
		return drop(IN_BAD_SOURCE);
	// Compared as two words: the verifier has no memcmp.
	__u64 a[2], b[2];
	__builtin_memcpy(a, from->outer, 16);
	__builtin_memcpy(b, outer, 16);
	if (a[0] != b[0] || a[1] != b[1])
		return drop(IN_BAD_SOURCE);

	struct place *to = bpf_map_lookup_elem(&fl_places, &dst);
	if (!to || !to->local)
		return drop(IN_NOT_LOCAL);

	skb->mark = (skb->mark & ~MARK_VNI_MASK) | MARK_OF(vni);
	return NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
