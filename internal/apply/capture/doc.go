// Package capture copies the packets of one link to a reader, as a pcap file.
//
// It owns a small filter language and its compiler to classic BPF, so that the kernel
// hands over only what was asked for; the socket; and the file format. A capture is
// bounded in packets, bytes, time and rate: packets that come faster than the rate
// allows are left out and counted.
//
// The language knows hosts, networks, ports and protocols:
//
//	[src|dst] host ADDRESS    [src|dst] net CIDR    [src|dst] port N[-M]
//	ip  ip6  arp  tcp  udp  sctp  icmp  icmp6  proto N|NAME
//
// joined by "and" (or nothing), "or", "not" and parentheses; "and" binds closer than
// "or". Hosts and networks of IPv4 match in ARP too. Ports are those of TCP, UDP and SCTP,
// and not of later fragments. What follows an IPv6 extension header is not seen.
//
// It changes nothing of the link, and never touches what does not pass it. On the host's
// end of a pod's link, what the pod sends is seen before any policy is asked, and what the
// pod gets after.
package capture
