// Package etcdserver runs an etcd server of one member inside this process, for
// the lab and for tests. It is tuned for a machine that is thrown away: it does
// not wait for the disk, so a crash of the machine (not of the process) can lose
// data, and it elects itself at once. It listens only where it is told, by
// default on unix sockets in its directory, and prints nothing.
package etcdserver
