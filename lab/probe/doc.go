// Package probe asks, and answers, whether traffic passes: a server that tells
// everybody who they reached and which source address it saw, and a prober that
// asks thousands of servers at once, each from inside the network namespace that
// the question starts in.
//
// The answer is one line: the server's name and the client's address and port as
// the server sees them, "demo/web-0 10.128.0.7:40312". Over TCP every line that
// the client sends is answered so, and a client that sends nothing gets one line
// after a second; a client that speaks HTTP gets the line in an HTTP response. Over
// UDP every datagram is answered. SCTP is spoken as TCP is, where the kernel has it.
//
// Nothing is retried: a probe reports what one attempt found.
package probe
