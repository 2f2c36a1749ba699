// Package netspace makes, enters and watches network namespaces, and starts
// commands inside all the namespaces of a process.
//
// It promises that no goroutine of the program is ever left in a namespace that is
// not the process's own: work inside another one runs on a thread of its own, and
// a thread that cannot be brought back is ended. It never gives a namespace a name
// in the file system by itself.
package netspace
