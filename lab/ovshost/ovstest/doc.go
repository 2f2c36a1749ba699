// Package ovstest gives a test an Open vSwitch of its own, in a network namespace of
// its own. Its daemons end with the test, also with one that is killed.
package ovstest
