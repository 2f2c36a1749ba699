// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//
// The tc programs of the node. One VXLAN device in external mode serves every VPC and
// every peer: wire_out gives each packet its tunnel key, wire_in holds each packet from
// the wire against the contract (docs/wire.md). On the node's end of each pod's link
// port_in checks what the pod sends and port_out learns which flows may pass by
// (flow.h).

#include "common.h"
#include "flow.h"
#include "port.h"

struct place_key {
	__u32 prefixlen;  // counts vpc and addr
	__be32 vpc;
	__u8 addr[16];  // IPv4 as ::ffff:a.b.c.d
} __attribute__((aligned(8)));

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

// Where addresses were found, by CPU: a longest prefix costs many times as much. What is
// in here is of one generation of the flow cache's, which counts all changes.
#define PLACE_SLOTS 512

struct place_slot {
	__u8 addr[16];
	__u32 vni;
	__u32 generation;  // 0: nothing is known
	struct place place;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PLACE_SLOTS);
	__type(key, __u32);
	__type(value, struct place_slot);
} fl_place_slots SEC(".maps");

static __always_inline int same(const __u8 *x, const __u8 *y)
{
	// As two words: the verifier has no memcmp. All that is compared is so aligned.
	__u64 a[2], b[2];
	__builtin_memcpy(a, __builtin_assume_aligned(x, 8), 16);
	__builtin_memcpy(b, __builtin_assume_aligned(y, 8), 16);
	return a[0] == b[0] && a[1] == b[1];
}

// place_of finds where an address is, in the VPC that a VNI belongs to. known is 0 if
// there is no such VPC.
static __always_inline struct place *place_of(__u32 vni, struct place_key *k, __u32 generation, int *known)
{
	__u32 slot;
	__builtin_memcpy(&slot, k->addr + 12, 4);
	slot = ((slot + vni) * 0x9e3779b1U) >> 23;
	struct place_slot *s = bpf_map_lookup_elem(&fl_place_slots, &slot);
	*known = 1;
	if (s && generation && s->generation == generation && s->vni == vni && same(s->addr, k->addr))
		return &s->place;
	__u32 *vpc = bpf_map_lookup_elem(&fl_vnis, &vni);
	if (!vpc) {
		*known = 0;
		return 0;
	}
	k->prefixlen = 8 * (sizeof(k->vpc) + sizeof(k->addr));
	k->vpc = bpf_htonl(*vpc);
	struct place *p = bpf_map_lookup_elem(&fl_places, k);
	if (p && s) {
		s->generation = generation;
		s->vni = vni;
		__builtin_memcpy(s->addr, k->addr, 16);
		s->place = *p;
	}
	return p;
}

SEC("tc")
int wire_out(struct __sk_buff *skb)
{
	struct place_key src = {}, dst = {};
	if (addresses(skb, src.addr, dst.addr) < 0)
		return drop(OUT_MALFORMED);

	// The filter gives most of what the node itself sends a VNI; where there is one VPC, what
	// a Service has led here gets it from us: the filter would look for it in every packet.
	struct flow_config *c = config();
	__u32 vni = VNI_OF(skb->mark);
	if (!vni && c)
		vni = c->vni;
	int known;
	struct place *to = place_of(vni, &dst, c ? c->generation : 0, &known);
	if (!to)
		return drop(known ? OUT_NO_ROUTE : OUT_NO_VNI);
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
	flow_learn(skb);
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), flags) < 0 ||
	    bpf_skb_store_bytes(skb, 0, mac, 6, 0) < 0)
		return drop(OUT_MALFORMED);
	// The mark stays with the packet around this one: the filter knows it by this bit.
	skb->mark = (skb->mark & ~(MARK_OURS ^ MARK_VNI_MASK)) | MARK_TUNNEL;
	return NEXT;
}

SEC("tc")
int wire_in(struct __sk_buff *skb)
{
	__u8 outer[16] __attribute__((aligned(8))) = {};
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
	int known;
	struct flow_config *c = config();
	__u32 generation = c ? c->generation : 0;
	struct place *from = place_of(vni, &src, generation, &known);
	if (!from || from->local || from->outer6 != outer6 || !same(from->outer, outer))
		return drop(known ? IN_BAD_SOURCE : IN_UNKNOWN_VNI);

	struct place *to = place_of(vni, &dst, generation, &known);
	if (!to || !to->local)
		return drop(IN_NOT_LOCAL);

	return flow_pass(skb, MARK_CHECKED | MARK_OF(vni));
}

char _license[] SEC("license") = "Dual BSD/GPL";
