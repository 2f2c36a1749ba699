// Package process starts and owns child processes for a program that is process 1
// of its pid namespace: one reaper collects every child that ends, the orphans that
// were handed to it too, and every child is signalled through a pidfd, never by a
// number that somebody else may bear by then.
//
// A program that uses a Table must start all its children through it: os/exec
// would wait for children that the Table has already collected.
package process
