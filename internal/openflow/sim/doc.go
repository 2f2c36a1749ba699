// Package sim walks packets through an OpenFlow pipeline as Open vSwitch would: which
// flows a packet meets, what they do to it, and where it is sent.
//
// The package owns two things:
//   - Pipeline finds the flow that a packet meets in a table, conjunctions included.
//   - Switch walks packets through a Pipeline, and keeps connections as the connection
//     tracker does, so that a packet's way depends on the packets before it.
//
// The semantics are those of ovs-fields(7) and ovs-actions(7), where these are silent
// those of the code (ofproto/ofproto-dpif-xlate.c, lib/classifier.c, lib/conntrack.c), and
// tests compare them with a real switch on random pipelines:
//   - goto_table does not come back; resubmit does, with everything that was changed
//     meanwhile. A table without a flow that matches does nothing.
//   - Output never sends a packet to the port that it came from; that takes PortInPort.
//   - ct goes on in its table with a tracked copy. What follows the ct sees the packet
//     untracked, with the addresses of before; but it is sent out as NAT left it.
//   - A flow's actions end where the TTL is used up; those of the flow that resubmitted
//     to it go on.
//   - The buckets of a group are action sets: they are done in the order that OpenFlow
//     1.5.1, 5.6 gives, on a copy of the packet.
//   - What follows check_pkt_larger in a flow happens to a copy of the packet.
//
// Connections are those of the userspace datapath: a TCP connection is established with
// the second segment that is not a lone SYN, others with the first answer. Time does not
// exist here, so no connection ends by itself, nor do sequence numbers and checksums.
// SCTP has ports, as in the kernel and in Open vSwitch since 3.3.
//
// It does not simulate the learning switch (NORMAL), flooding, learn, helpers of the
// connection tracker (alg) and tracking of fragments: meeting one of them is an error.
// Meters let everything pass.
//
// The package is pure: no I/O, no clock, no log. No pipeline and no packet makes it panic
// or run without end; what the switch would have refused, or would give up, is an error.
package sim
