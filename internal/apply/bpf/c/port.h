// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//
// The programs on the node's end of a pod's link. What port_in has not marked, the
// filter drops.

struct port {
	__u8 addr6[16];  // zero: the port has none
	__be32 addr4;    // zero: the port has none
	__u32 vni;
	__u32 index;  // of the link
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);  // index of the link
	__type(value, struct port);
} fl_ports SEC(".maps");

// Most of fl_ports once more, by the lower bits of the index: finding one in there costs
// a tenth of what it does in a hash table.
#define PORT_SLOTS 1024

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORT_SLOTS);
	__type(key, __u32);
	__type(value, struct port);
} fl_port_slots SEC(".maps");

static __always_inline struct port *port_of(__u32 index)
{
	__u32 slot = index % PORT_SLOTS;
	struct port *p = bpf_map_lookup_elem(&fl_port_slots, &slot);
	if (p && p->index == index)
		return p;
	return bpf_map_lookup_elem(&fl_ports, &index);
}

// port_header makes a header of the network layer readable, nearly always by looking.
static __always_inline void *port_header(struct __sk_buff *skb, __u32 size)
{
	if ((void *)(long)skb->data + ETH_HLEN + size > (void *)(long)skb->data_end &&
	    bpf_skb_pull_data(skb, ETH_HLEN + size) < 0)
		return 0;
	void *header = (void *)(long)skb->data + ETH_HLEN;
	return header + size > (void *)(long)skb->data_end ? 0 : header;
}

SEC("tc")
int port_in(struct __sk_buff *skb)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct port *p = port_of(skb->ifindex);
		if (!p)
			return drop(PORT_UNKNOWN);
		struct iphdr *ip = port_header(skb, sizeof(*ip));
		if (!ip)
			return drop(PORT_MALFORMED);
		if (!ip->saddr || ip->saddr != p->addr4)
			return drop(PORT_SPOOFED);
		__u32 to = bpf_ntohl(ip->daddr);
		if (to >> 24 == 127)
			return drop(PORT_LOOPBACK);
		if (to >> 29 == 7)
			return drop(PORT_GROUP);
		return flow_pass(skb, MARK_CHECKED | MARK_OF(p->vni));
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		__u64 pair[4], own[2];
		struct port *p = port_of(skb->ifindex);
		if (!p)
			return drop(PORT_UNKNOWN);
		struct ipv6hdr *ip = port_header(skb, sizeof(*ip));
		if (!ip)
			return drop(PORT_MALFORMED);
		__builtin_memcpy(pair, &ip->saddr, 32);
		__builtin_memcpy(own, p->addr6, 16);
		if (!(pair[0] | pair[1]) || pair[0] != own[0] || pair[1] != own[1])
			return drop(PORT_SPOOFED);
		if (!pair[2] && pair[3] == bpf_cpu_to_be64(1))
			return drop(PORT_LOOPBACK);
		if (*(__u8 *)&pair[2] == 0xff)
			return drop(PORT_GROUP);
		return flow_pass(skb, MARK_CHECKED | MARK_OF(p->vni));
	}
	return NEXT;
}

SEC("tc")
int port_out(struct __sk_buff *skb)
{
	flow_learn(skb);
	return NEXT;
}
