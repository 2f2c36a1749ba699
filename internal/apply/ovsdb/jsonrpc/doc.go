// Package jsonrpc frames JSON-RPC 1.0 messages on a stream, as the daemons of Open
// vSwitch speak it (RFC 7047 section 4, unixctl). Messages have no delimiter there:
// one ends with the brace that closes it.
//
// It promises bounded memory: a message over the reader's limit is an error and not
// read on. It starts no goroutine and keeps no connection.
package jsonrpc
