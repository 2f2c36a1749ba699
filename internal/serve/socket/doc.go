// Package socket makes the agent's unix sockets: mode 0600, root's alone (peer
// credentials are checked too), never without an owner that lives, and never in the
// place of something that is not a dead socket.
package socket
