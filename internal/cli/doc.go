// Package cli is the command line of Fairlead: every command of docs/cli.md. It
// talks to the datastore of one context (a lab, a Kubernetes cluster, or an etcd) and to agents, through
// their admin sockets or, in a cluster, through commands in their pods; prints what it gets as a table, JSON or YAML, and decides
// nothing about the network.
//
// Exit codes: 0 well, 1 what was asked failed or was found wrong, 2 wrong usage, or
// a machine on which it cannot work, 3 that the sources of "policy why" disagree.
package cli
