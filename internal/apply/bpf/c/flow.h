// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//
// The flow cache: packets of flows that live, were judged and are not translated pass by
// the kernel's own path, from the program where they come in to the link that they leave
// by. A flow is learned from a packet that took the whole path:
//
//	in     the program puts into the mark that it would like to know the flow, with the
//	       generation of the time: it was current before anything was judged
//	filter a rule adds MARK_LEARN if the flow is established, judged, not cut and not
//	       translated
//	out    the program on the link that it leaves by notes where the flow goes, unless
//	       the generation is another by now
//
// Conntrack must know when a connection is established and when it closes. So SYN, its
// answer, and what completes them take the whole path, and so does the first FIN; that of
// the other end may pass by.
//
// What is noted holds for half a second, so that the kernel's path sees one packet of
// each flow in that time: conntrack keeps the flow, and what others change in rules and
// routes counts. What the agent changes counts at once: it raises the generation.

#include <linux/tcp.h>

#define VXLAN_PORT 4789

#define FLOW_TCP 6
#define FLOW_UDP 17

struct flow_config {
	__u32 generation;
	__u32 mtu;   // of all links of ours; 0: there is no cache
	__u32 life;  // of what is noted, in jiffies
	__u32 vni;   // of what enters the tunnel without one; 0: there are several VPCs
};

struct flow_key {
	__u32 ifindex;  // where it comes in
	__u32 mark;     // the VNI in it
	__u8 src[16];   // IPv4 as ::ffff:a.b.c.d
	__u8 dst[16];
	__be16 sport;
	__be16 dport;
	__u32 protocol;
} __attribute__((aligned(8)));

struct flow_way {
	__u32 ifindex;  // where it leaves
	__u32 mark;
	__u8 ethernet[ETH_HLEN];
	__u8 last;  // the other end has sent its FIN; 0 if written when this was padding
	__u8 pad;
};

struct flow {
	struct bpf_spin_lock lock;
	__u32 generation;
	__u64 expires;  // in jiffies, which cost less to read than a clock; 0: the way is not known
	struct flow_key key;
	struct flow_way way;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_config);
} fl_cache SEC(".maps");

static __always_inline struct flow_config *config(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&fl_cache, &zero);
}

// A flow has one place in here, which it shares with others: the last to come has it.
// All flows between two addresses are close together, so that places of short
// connections, one after the other, are soon used again and still in the CPU's cache.
#define FLOW_SLOTS_BITS 14
#define FLOW_PAIR_BITS 9

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << FLOW_SLOTS_BITS);
	__type(key, __u32);
	__type(value, struct flow);
} fl_flows SEC(".maps");

// flow_try is how a generation shows in the mark: 1 to 3. It comes again after three
// changes, each of which takes the agent longer than a packet its way.
static __always_inline __u32 flow_try(__u32 generation)
{
	return (generation % 3 + 1) << MARK_TRY_SHIFT;
}

// What a packet is to the flow cache.
enum kind {
	FLOW_NONE,  // it neither passes by nor is learned from
	FLOW_DATA,
	FLOW_BARE,    // TCP without data, and without what follows
	FLOW_BEGIN,   // SYN
	FLOW_ANSWER,  // SYN and ACK
	FLOW_END,     // FIN
};

// flow_key_of reads the flow of a packet that may pass by: whole, without options or
// extensions, with hops left, of a size that the links carry. salt is another number for
// each packet of a flow.
static __always_inline enum kind flow_key_of(struct __sk_buff *skb, struct flow_key *k, __u32 mtu, __u32 *salt)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 length = skb->len - ETH_HLEN, headers;
	void *transport;
	enum kind special = FLOW_NONE;

	if (skb->vlan_present || skb->pkt_type)
		return FLOW_NONE;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return FLOW_NONE;
		if (*(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(0xbfff) || ip->ttl < 2 ||
		    bpf_ntohs(ip->tot_len) != length)
			return FLOW_NONE;
		k->src[10] = k->src[11] = k->dst[10] = k->dst[11] = 0xff;
		__builtin_memcpy(k->src + 12, &ip->saddr, 4);
		__builtin_memcpy(k->dst + 12, &ip->daddr, 4);
		k->protocol = ip->protocol;
		transport = ip + 1;
		headers = sizeof(*ip);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return FLOW_NONE;
		if (*(__u8 *)ip >> 4 != 6 || ip->hop_limit < 2 || bpf_ntohs(ip->payload_len) + sizeof(*ip) != length)
			return FLOW_NONE;
		__builtin_memcpy(k->src, &ip->saddr, 16);
		__builtin_memcpy(k->dst, &ip->daddr, 16);
		k->protocol = ip->nexthdr;
		transport = ip + 1;
		headers = sizeof(*ip);
	} else {
		return FLOW_NONE;
	}
	if (k->protocol == FLOW_TCP) {
		struct tcphdr *tcp = transport;
		if ((void *)(tcp + 1) > end || tcp->rst || tcp->doff < 5 || (tcp->syn ? tcp->fin : !tcp->ack))
			return FLOW_NONE;
		if (tcp->syn)
			special = tcp->ack ? FLOW_ANSWER : FLOW_BEGIN;
		else if (tcp->fin)
			special = FLOW_END;
		k->sport = tcp->source;
		k->dport = tcp->dest;
		headers += tcp->doff * 4;
		*salt = bpf_ntohl(tcp->seq) + bpf_ntohl(tcp->ack_seq);
	} else if (k->protocol == FLOW_UDP) {
		__be16 *ports = transport;
		if (transport + 8 > end || ports[1] == bpf_htons(VXLAN_PORT))
			return FLOW_NONE;
		k->sport = ports[0];
		k->dport = ports[1];
		headers += 8;
		*salt = bpf_get_prandom_u32();
	} else {
		return FLOW_NONE;
	}
	if (length < headers || (skb->gso_size ? headers + skb->gso_size : length) > mtu)
		return FLOW_NONE;
	if (special)
		return special;
	return length > headers ? FLOW_DATA : FLOW_BARE;
}

static __always_inline int flow_same(const struct flow_key *x, const struct flow_key *y)
{
	__u64 a[6], b[6];
	__builtin_memcpy(a, x, sizeof(a));
	__builtin_memcpy(b, y, sizeof(b));
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] && a[4] == b[4] && a[5] == b[5];
}

// flow_place is the one place of a flow.
static __always_inline struct flow *flow_place(const struct flow_key *k)
{
	__u64 w[6];
	__builtin_memcpy(w, k, sizeof(w));
	__u64 pair = (w[0] ^ w[1] * 0xc2b2ae3d27d4eb4fULL) + (w[2] ^ w[3] * 0x165667b19e3779f9ULL) + w[4] * 0xff51afd7ed558ccdULL;
	__u32 slot = (pair * 0x9e3779b97f4a7c15ULL) >> (64 - FLOW_SLOTS_BITS);
	slot ^= (w[5] * 0xc4ceb9fe1a85ec53ULL) >> (64 - FLOW_PAIR_BITS);
	return bpf_map_lookup_elem(&fl_flows, &slot);
}

// flow_forward sends a packet the way that its flow is known to go. It returns NEXT,
// and leaves the packet as it is, if it cannot.
static __always_inline int flow_forward(struct __sk_buff *skb, struct flow_way *f)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 to = f->ifindex, mark = f->mark;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct {
			__u8 pad[2];
			__u8 ethernet[ETH_HLEN];
			struct iphdr ip;
		} h;
		if (data + ETH_HLEN + sizeof(h.ip) > end)
			return NEXT;
		__builtin_memcpy(h.ethernet, f->ethernet, ETH_HLEN);
		__builtin_memcpy(&h.ip, data + ETH_HLEN, sizeof(h.ip));
		h.ip.ttl--;
		// RFC 1141: one less in the upper byte of a word is one more in the sum.
		__u32 check = h.ip.check;
		check += bpf_htons(0x0100);
		h.ip.check = check + (check >= 0xffff);
		if (bpf_skb_store_bytes(skb, 0, h.ethernet, ETH_HLEN + sizeof(h.ip), 0) < 0)
			return NEXT;
	} else {
		struct ipv6hdr *ip = data + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return NEXT;
		__u8 left = ip->hop_limit - 1, ethernet[ETH_HLEN];
		__builtin_memcpy(ethernet, f->ethernet, ETH_HLEN);
		if (bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct ipv6hdr, hop_limit), &left, 1, BPF_F_RECOMPUTE_CSUM) < 0)
			return NEXT;
		// Writable by now.
		if (bpf_skb_store_bytes(skb, 0, ethernet, ETH_HLEN, 0) < 0)
			return DROP;
	}
	skb->mark = mark;
	return bpf_redirect(to, 0);
}

// flow_ends notes that one end of a connection has sent its FIN, which conntrack is about to
// see: that of the other end may pass by. k is the flow of the first, which leaves by the
// given link.
static __always_inline void flow_ends(const struct flow_key *k, __u32 ifindex)
{
	struct flow_key back = {.ifindex = ifindex, .mark = k->mark, .sport = k->dport, .dport = k->sport, .protocol = k->protocol};
	__builtin_memcpy(back.src, k->dst, 16);
	__builtin_memcpy(back.dst, k->src, 16);
	struct flow *f = flow_place(&back);
	// Without the lock: if another flow gets the place meanwhile, it is that one's first FIN
	// that passes by and the second that does not.
	if (f && flow_same(&f->key, &back))
		f->way.last = 1;
}

// flow_pass ends a program on the way in: the packet is good, and gets our bits of the
// mark. It passes by if its flow is known. Else the first packet of a flow asks to be
// learned from, and later ones if that had worked before, or seldom.
static __always_inline int flow_pass(struct __sk_buff *skb, __u32 bits)
{
	__u32 salt = 0;
	struct flow_key k = {};
	struct flow_config *c = config();

	skb->mark = (skb->mark & ~MARK_OURS) | bits;
	if (!c || !c->mtu)
		return NEXT;
	__u32 generation = c->generation;
	enum kind kind = flow_key_of(skb, &k, c->mtu, &salt);
	if (kind == FLOW_NONE)
		return NEXT;
	if (kind == FLOW_ANSWER)
		goto ask;
	k.ifindex = skb->ifindex;
	k.mark = bits & MARK_VNI_MASK;
	struct flow *f = flow_place(&k);
	if (!f)
		return NEXT;
	int seldom = (salt * 0x9e3779b1U) >> 29 == 0;
	// Without the lock these are but a guess.
	if (!flow_same(&f->key, &k)) {
		if (kind >= FLOW_BEGIN || (kind == FLOW_DATA && !seldom))
			return NEXT; // who has the place may need it more
		bpf_spin_lock(&f->lock);
		f->expires = 0;
		f->key = k;
		bpf_spin_unlock(&f->lock);
	} else if (kind == FLOW_BEGIN) {
		// Nothing that was learned of a connection before goes for this one.
		if (f->expires) {
			bpf_spin_lock(&f->lock);
			if (flow_same(&f->key, &k))
				f->expires = 0;
			bpf_spin_unlock(&f->lock);
		}
		return NEXT;
	} else if (f->expires) {
		struct flow_way way;
		__u64 now = bpf_jiffies64();
		bpf_spin_lock(&f->lock);
		int good = flow_same(&f->key, &k) && f->generation == generation && f->expires > now;
		way = f->way;
		bpf_spin_unlock(&f->lock);
		if (good && (kind != FLOW_END || way.last))
			return flow_forward(skb, &way);
		if (kind == FLOW_END) {
			if (good)
				flow_ends(&k, way.ifindex);
			return NEXT;
		}
	} else if (kind == FLOW_END || !seldom) {
		return NEXT;
	}
ask:
	skb->mark |= flow_try(generation);
	return NEXT;
}

// flow_learn notes where a packet goes that the filter has allowed to be learned from.
static __always_inline void flow_learn(struct __sk_buff *skb)
{
	__u32 mark = skb->mark, salt;
	struct flow_key k = {};
	struct flow_way way = {};

	if (!(mark & MARK_LEARN))
		return;
	skb->mark = mark & ~(MARK_LEARN | MARK_TRY_MASK);
	struct flow_config *c = config();
	if (!c || !c->mtu)
		return;
	__u32 generation = c->generation;
	if (flow_try(generation) != (mark & MARK_TRY_MASK))
		return;
	k.ifindex = skb->ingress_ifindex;
	if (!k.ifindex || k.ifindex == skb->ifindex || flow_key_of(skb, &k, c->mtu, &salt) == FLOW_NONE)
		return;
	k.mark = mark & MARK_VNI_MASK;
	way.ifindex = skb->ifindex;
	way.mark = skb->mark;
	void *data = (void *)(long)skb->data;
	if (data + ETH_HLEN > (void *)(long)skb->data_end)
		return;
	__builtin_memcpy(way.ethernet, data, ETH_HLEN);
	struct flow *f = flow_place(&k);
	if (!f)
		return;
	__u64 expires = bpf_jiffies64() + c->life;
	bpf_spin_lock(&f->lock);
	f->key = k;
	f->generation = generation;
	f->expires = expires;
	f->way = way;
	bpf_spin_unlock(&f->lock);
}
