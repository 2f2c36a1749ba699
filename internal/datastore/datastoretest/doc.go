// Package datastoretest holds the contract of datastore.Store as a test suite.
// Every implementation runs it; what one of them does beyond the contract is
// tested beside it.
package datastoretest
